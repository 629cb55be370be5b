"""A disk that is full stops a campaign with one message, is no outcome of a trial, and loses nothing.

The disk is a small file system in memory, so that it is the kernel that says so. Where none can be mounted, there is no
test.
"""

from __future__ import annotations

import io
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from detrain.base.errors import StoreError
from detrain.campaign.engine.ledger import Ledger, Ledgers
from detrain.campaign.full_disk import require_room, told
from detrain.faults.experiment import Experiment
from detrain.runtime.observers.experiment_run import ExperimentRun, Log
from tests.campaign.test_engine import PROGRAM, detrain, row, run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, left: int) -> Path:
    """Fill a disk but for so many bytes."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(max(file.tell() - left, 0))
    return filler


def test_a_full_ledger_says_so_and_keeps_what_was_written(small_disk: Path) -> None:
    ledger = Ledger(small_disk / "a.sqlite", "plan")
    for number in range(300):
        ledger.add(row(number))
    ledger.commit()
    filler = fill(small_disk, 200_000)
    add = ledger.add
    with pytest.raises(StoreError, match="full") as error:
        [add(row(number)) for number in range(300, 100_000)]
    assert "make room there and run the campaign again" in error.value.todo
    known = Ledgers(small_disk, "plan").known()
    filler.unlink()
    assert set(range(300)) <= known
    again = Ledger(small_disk / "a.sqlite", "plan")
    again.add(row(100_000))
    again.close()
    assert [one.number for one in Ledgers(small_disk, "plan").rows()] == [*sorted(known), 100_000]
    assert Ledgers(small_disk, "plan").set_damaged_aside() == []


def test_a_log_that_cannot_be_written_is_an_error_of_detrains_and_not_the_programs(tmp_path: Path) -> None:
    experiment = ExperimentRun([Experiment(log=str(tmp_path / "log"))], dict, lambda: None)
    experiment._log = io.FileIO("/dev/full", "w")
    with pytest.raises(StoreError, match="No space left on device"):
        experiment._write(Log(end="until"))


def test_a_process_that_failed_for_want_of_room_is_no_crash(small_disk: Path) -> None:
    require_room(small_disk, 1, "ValueError: no")
    with pytest.raises(StoreError, match="for want of room"):
        require_room(small_disk, 1, "OSError: [Errno 28] No space left on device")
    fill(small_disk, 0)
    with pytest.raises(StoreError, match="No space left on device"):
        require_room(small_disk, -6, "")
    with pytest.raises(ZeroDivisionError), told(small_disk):
        raise ZeroDivisionError


@pytest.mark.slow
def test_a_campaign_whose_disk_fills_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    """Whole commands: worker, program and driver each write to the disk, and any may be the first to find it full."""
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    plan = ("campaign", "plan", "--mode", "ISCA", "--after", 3, "-n", 100)
    assert detrain(*plan, "program.py", cwd=tmp_path).status == 0
    expected = run(tmp_path, "--workers", 1)
    assert detrain(*plan, "--ckpt", small_disk, "program.py", cwd=tmp_path).status == 0
    stopped = []
    for after_s in (0.0, 6.0, 9.0):
        filler = threading.Timer(after_s, fill, (small_disk, 0))
        filler.start()
        began = time.monotonic()
        done = detrain("campaign", "run", "--ckpt", small_disk, "--workers", 2, "program.py", cwd=tmp_path)
        filler.join()
        stopped.append((done.status, time.monotonic() - began))
        assert done.status in (0, 73), done.err
        assert done.status == 0 or ("make room" in done.err and "Traceback" not in done.err and "defect" not in done.err), done.err
        (small_disk / "filler").unlink()
    found = json.loads(detrain("campaign", "run", "--ckpt", small_disk, "--json", "program.py", cwd=tmp_path).out)

    assert stopped[0][0] == 73, stopped
    assert (found["done"], found["shares"], found["digest"]) == (expected["done"], expected["shares"], expected["digest"])
