"""The lock of a checkpoint home, where its process opens and closes the file once more:

POSIX takes the lock away then.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from detrain.base.errors import HomeInUse
from detrain.store.lock import Lock, hold

OTHER = """
import sys
from pathlib import Path
from detrain.base.errors import HomeInUse
from detrain.store.lock import hold
try:
    hold(Path(sys.argv[1]), "train")
    print("held", flush=True)
except HomeInUse:
    print("refused", flush=True)
sys.stdin.read()
"""


def other(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Another process that wants the lock, and what became of that."""
    process = subprocess.Popen([sys.executable, "-c", OTHER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_lock_that_the_program_has_lost_is_taken_again(tmp_path: Path) -> None:
    hold(tmp_path, "train")
    (tmp_path / ".train.lock").read_bytes()
    Lock(tmp_path, "train").renew()

    process, said = other(tmp_path)
    process.communicate("")

    assert said == "refused"


def test_a_run_whose_lock_another_one_has_taken_ends(tmp_path: Path) -> None:
    hold(tmp_path, "train")
    lock = Lock(tmp_path, "train")
    lock.renew()
    (tmp_path / ".train.lock").read_bytes()

    process, said = other(tmp_path)
    assert said == "held"
    with pytest.raises(HomeInUse, match=f"process {process.pid} on "):
        lock.renew()
    process.communicate("")
    lock.renew()


def test_tasks_of_one_launcher_are_told_how_to_be_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    process, said = other(tmp_path)
    assert said == "held"
    with pytest.raises(HomeInUse, match=r"each process of srun another folder .* export MASTER_ADDR"):
        hold(tmp_path, "train")
    process.communicate("")
