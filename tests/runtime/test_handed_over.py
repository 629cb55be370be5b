"""What the commands hand to the training process, which may be more than an environment variable holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from detrain.base.config import Config
from detrain.base.options import Every
from detrain.runtime.observers.verify_hooks import VerifyPlan
from tests.e2e.runs import environment

PROBED = """
from detrain import batch_loop, epoch_loop, record_batch, record_epoch
for epoch in epoch_loop(range(3)):
    record_epoch(epoch)
    for batch in batch_loop(range(2)):
        if not record_batch(batch):
            continue
    print(epoch)
"""


def test_a_trial_with_many_readings_reaches_a_process(tmp_path: Path) -> None:
    """A process is started, because what an environment holds shows there."""
    trial = VerifyPlan("states", {"time": [repr(1.7e9 + number / 7) for number in range(20_000)]}, kill_at=3)
    code = "import msgspec; from detrain.runtime.observers.verify_hooks import VerifyPlan; "
    code += "print(msgspec.json.encode(VerifyPlan.of_environment()).decode())"
    variables = environment(**trial.hand_over(tmp_path / "trial"))
    done = subprocess.run([sys.executable, "-c", code], env=variables, check=True, capture_output=True)
    assert msgspec.json.decode(done.stdout, type=VerifyPlan) == trial


def test_a_trial_in_the_variable_itself_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETRAIN_TRIAL", json.dumps({"states": "here", "kill_at": 3}))
    assert VerifyPlan.of_environment() == VerifyPlan("here", kill_at=3)


def test_a_configuration_with_many_probes_is_handed_over() -> None:
    edits = {f"module{number}.py": [(each, each, "probe()") for each in range(100)] for number in range(200)}
    config = Config(
        target="t", is_module=False, entry="t", shown="t", arguments=(), program="t", run=1, home="h", seed=0, threads=1,
        every=Every(1, "epochs"), keep=1, edits=edits,
    )  # fmt: skip
    assert Config.handed_over(config.hand_over()) == config


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_with_closed_streams_is_the_run(tmp_path: Path, closed: str) -> None:
    """The whole command, because it is started with files closed; what it opens next must not be taken for stderr."""
    (tmp_path / "train.py").write_text(
        PROBED + "import os\nopen('end', 'w').write(str(epoch))\nos.write(2, b'said by ' + b'C code')\n"
    )
    command = f"{sys.executable} -m detrain run train.py {closed}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(), check=False, capture_output=True, text=True)
    assert (done.returncode, (tmp_path / "end").read_text()) == (0, "2"), done.stderr
    assert done.stdout == ("" if ">&-" in closed.split() else "0\n1\n2\n")
    for file in (tmp_path / "ckpt").rglob("*"):
        assert file.is_dir() or b"said by C code" not in file.read_bytes()
    assert list((tmp_path / "ckpt").glob("*.h5"))
