"""Checkpoints that the process of low priority writes: the same bytes, the same errors, and nothing left behind."""

from __future__ import annotations

import dataclasses
import errno
import gc
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from detrain.base.errors import StoreError
from detrain.store import Snapshot, verify
from detrain.store.hdf5_writer import write
from detrain.store.snapshot import LateArrays
from detrain.store.writing_process import WritingProcess
from tests.store.homes import epoch, state, with_small_arrays

MARK = "OF_THIS_TEST"


@pytest.fixture(autouse=True)
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that a test starts be known: others run beside it."""
    monkeypatch.setenv(MARK, str(tmp_path))


@pytest.fixture
def process() -> Iterator[WritingProcess]:
    found = WritingProcess()
    yield found
    found.close()
    gc.collect()


def many_kinds(number: int = 3, size: int = 600_000) -> Snapshot:
    arrays = {
        "0": np.arange(12.0).reshape(3, 4).T,
        "1": np.arange(7).astype(ml_dtypes.bfloat16),
        "2": np.zeros((0, 3)),
        "3": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        "4": np.array("2026-11-29", "M8[D]"),
        "5": np.array(["some", "text", ""]),
        "6": np.array(True),
    }
    made = with_small_arrays(state(epoch(number), size=size))
    return dataclasses.replace(made, arrays=dict(made.arrays) | arrays)


def copied(process: WritingProcess, snapshot: Snapshot) -> Snapshot:
    found = process.copied(snapshot)
    until = time.monotonic() + 20
    while found is None and time.monotonic() < until:
        time.sleep(0.05)
        found = process.copied(snapshot)
    assert found is not None
    return found


def processes() -> set[int]:
    found = set()
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                is_mine = f"{MARK}={os.environ[MARK]}".encode() in (each / "environ").read_bytes()
                if is_mine and b"detrain.store.writing_process" in (each / "cmdline").read_bytes():
                    found.add(int(each.name))
            except OSError:
                continue
    return found


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 20
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    return holds()


def test_the_bytes_are_those_that_the_run_itself_writes(tmp_path: Path, process: WritingProcess) -> None:
    for number in (1, 2):
        snapshot = many_kinds(number, size=500_000 * number)
        digest = write(tmp_path / "a.h5", snapshot)
        assert write(tmp_path / "b.h5", copied(process, snapshot)) == digest == verify(tmp_path / "b.h5")
        assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_what_training_writes_meanwhile_is_not_in_the_file(tmp_path: Path, process: WritingProcess) -> None:
    snapshot = many_kinds()
    digest = write(tmp_path / "a.h5", snapshot)
    held = copied(process, snapshot)
    for array in (*snapshot.tensors.values(), *snapshot.arrays.values()):
        if array.dtype.kind == "f":
            array.fill(-1)
    assert write(tmp_path / "b.h5", held) == digest


def test_the_second_copy_finds_the_memory_brought_in(process: WritingProcess) -> None:
    snapshot = state(epoch(1), size=8_000_000)
    assert process.copied(snapshot) is None
    assert eventually(lambda: bool(process._brought_in))  # nothing else shows it, and a call would bring the pages in
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    held = process.copied(snapshot)

    assert held is not None
    size = sum(array.nbytes for array in held.tensors.values())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < size // mmap.PAGESIZE // 4


def test_a_full_disk_is_the_error_that_it_is(tmp_path: Path, process: WritingProcess) -> None:
    snapshot = copied(process, many_kinds())
    write(tmp_path / "a.h5", snapshot)
    (number,) = processes()
    resource.prlimit(number, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    with pytest.raises(StoreError, match=os.strerror(errno.EFBIG)):
        write(tmp_path / "b.h5", snapshot)
    assert [each.name for each in tmp_path.iterdir()] == ["a.h5"]


def test_a_process_that_is_killed_costs_nothing(tmp_path: Path, process: WritingProcess) -> None:
    snapshot = copied(process, many_kinds())
    digest = write(tmp_path / "a.h5", snapshot)
    (number,) = processes()
    os.kill(number, signal.SIGKILL)
    assert write(tmp_path / "b.h5", snapshot) == digest == verify(tmp_path / "b.h5")
    assert write(tmp_path / "c.h5", copied(process, many_kinds())) == digest
    assert eventually(lambda: number not in processes())
    assert processes(), "another one has taken its place"


def test_it_ends_with_its_run(tmp_path: Path) -> None:
    process = WritingProcess()
    write(tmp_path / "a.h5", copied(process, many_kinds()))
    (number,) = processes()
    assert os.getpriority(os.PRIO_PROCESS, number) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    process.close()
    assert eventually(lambda: number not in processes())


@pytest.mark.parametrize("which", ["memory", "link"])
def test_files_that_the_program_has_opened_in_their_place_are_its_own(tmp_path: Path, process: WritingProcess, which: str) -> None:
    snapshot = copied(process, many_kinds())
    digest = write(tmp_path / "a.h5", snapshot)
    assert process._link is not None
    number = process._number if which == "memory" else process._link.fileno()
    kept = os.dup(number)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.write(other, b"the program's" + bytes(1 << 24))
    os.dup2(other, number)
    os.close(other)
    assert write(tmp_path / "b.h5", snapshot) == digest == verify(tmp_path / "b.h5")
    assert process.copied(many_kinds(size=10_000_000)) is None
    process.close()
    assert os.pread(number, 13, 0) == b"the program's"
    os.dup2(kept, number)
    os.close(kept)


def test_a_state_that_grows_by_little_has_room(process: WritingProcess) -> None:
    copied(process, many_kinds(size=600_000))
    assert process.copied(many_kinds(size=630_000)) is not None


def test_modules_in_the_current_folder_are_not_its_own(
    tmp_path: Path, process: WritingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("subprocess", "select", "mmap", "runpy", "numpy", "detrain"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert write(tmp_path / "a.h5", copied(process, many_kinds())) == write(tmp_path / "b.h5", many_kinds())
    assert processes()


class OnDevice:
    """An array that has not been fetched."""

    nbytes, dtype = 8, np.dtype("f8")

    def fetch(self) -> object:
        """Come too early."""
        raise AssertionError("it was fetched while training waits")


@pytest.mark.parametrize("what", ["on a device", "no data", "too large"])
def test_what_it_cannot_take_the_run_writes(process: WritingProcess, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    snapshot = many_kinds()
    if what == "on a device":
        snapshot = dataclasses.replace(snapshot, arrays=LateArrays({"0": OnDevice()}))
    elif what == "no data":
        snapshot = dataclasses.replace(snapshot, arrays={"0": np.array([object()])})
    else:
        monkeypatch.setattr("detrain.store.writing_process.free_bytes", lambda: 1 << 20)
    assert process.copied(snapshot) is None
    time.sleep(0.5)
    assert process.copied(snapshot) is None
    assert not processes()


RUN = """
import os, signal, time
from pathlib import Path
from detrain.store.hdf5_writer import write
from detrain.store.writing_process import WritingProcess
from tests.store.test_writing_process import copied, many_kinds, processes
process = WritingProcess()
"""
RUNS = {
    "one that waits for its children": (
        "process.copied(many_kinds())\ntry:\n    os.wait()\nexcept ChildProcessError:\n    print('has none')",
        "has none",
    ),
    "one that a broken pipe ends": (
        """
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
snapshot = copied(process, many_kinds())
(number,) = processes()
os.kill(number, signal.SIGKILL)
time.sleep(0.5)
write(Path("a.h5"), snapshot)
print("goes on")
""",
        "goes on",
    ),
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_program_sees_nothing_of_it(tmp_path: Path, kind: str) -> None:
    text, said = RUNS[kind]
    assert _began(tmp_path, RUN + text).communicate(timeout=60)[0].strip() == said


def test_a_file_of_the_program_with_the_name_of_a_module_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("struct", "secrets", "numpy"):
        Path(f"{name}.py").write_text("open('was_run', 'w').close()")
    process = WritingProcess()
    write(tmp_path / "a.h5", copied(process, many_kinds()))
    process.close()
    assert not Path("was_run").exists()


def test_it_ends_with_a_run_that_is_killed_though_a_child_lives_on(tmp_path: Path) -> None:
    """The child has the run's end of the socket."""
    text = """
copied(process, many_kinds())
if not (child := os.fork()):
    signal.pause()
print(*processes(), child, flush=True)
signal.pause()
"""
    run = _began(tmp_path, RUN + text)
    assert run.stdout is not None
    number, child = map(int, run.stdout.readline().split())
    try:
        assert processes() == {number}
        run.kill()
        run.wait()
        assert eventually(lambda: not processes())
    finally:
        os.kill(child, signal.SIGKILL)
        run.communicate()


def _began(folder: Path, text: str) -> subprocess.Popen[str]:
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    (folder / "run.py").write_text(text)
    return subprocess.Popen([sys.executable, "run.py"], cwd=folder, env=paths, stdout=subprocess.PIPE, text=True)
