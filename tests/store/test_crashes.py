"""A power cut at any call of the store, whatever of the calls before it has reached the disk: the newest checkpoint is
found.

Every sequence of up to three operations, on a home that is empty and on one that has checkpoints. From each state that
the cut may leave a run resumes, as `detrain run` does, saves once more, and resumes again.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from detrain.base import messages
from detrain.base.errors import CheckpointDamaged
from detrain.cli.ckpt import export_tensors as export
from detrain.store import atomic_file, journal
from tests.store.crashes import Call, Files, crash_states, pending, recording
from tests.store.homes import PROGRAM, Run, resumed


class Home:
    """A home and the run in it, on which the operations are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = Run(folder, keep=9)
        self.newest = 0

    def save(self) -> None:
        self.run.save(self.newest + 1)
        self.newest += 1

    def prune(self) -> None:
        self.run.catalogue.prune(PROGRAM, 1, 1)

    def resume(self) -> None:
        self.run.journal.close()
        found = resumed(self.folder)
        self.run = Run(self.folder, keep=9) if found is None else found[0]
        self.run.keep = 9

    def export(self) -> None:
        entries = self.run.catalogue.entries()
        if entries:
            options = ["--to", "npz" if self.newest % 2 else "safetensors", str(entries[-1].path)]
            done = CliRunner().invoke(export, options, catch_exceptions=False)
            assert done.exit_code == 0


OPERATIONS: dict[str, Callable[[Home], None]] = {
    "save": Home.save,
    "prune": Home.prune,
    "resume": Home.resume,
    "export": Home.export,
}


class Checker:
    """Lays out states in a folder and resumes from them. States that were met before are passed over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.met: set[int] = set()
        self.tried = 0

    def check(self, files: Files, allowed: Sequence[int], where: str) -> None:
        self.tried += 1
        key = hash((frozenset(files.items()), tuple(allowed)))
        if key in self.met:
            return
        self.met.add(key)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for name, data in files.items():
            (self.folder / name).write_bytes(data)
        for exported in [*self.folder.glob("*.npz"), *self.folder.glob("*.safetensors")]:
            assert (np.load(exported) if exported.suffix == ".npz" else load_file(exported))["steps"] > 0
        found = resumed(self.folder)
        number = 0 if found is None else found[1]
        assert number in allowed, f"{where}: resumed from {number}, not from one of {list(allowed)}; the folder has {sorted(files)}"
        assert not list(self.folder.glob(".*.h5.*.tmp"))
        if len(self.met) % 4 == 0:
            run = found[0] if found else Run(self.folder)
            run.save(number + 1)
            run.journal.close()
            again = resumed(self.folder)
            assert again is not None
            assert again[1] == number + 1
            again[0].journal.close()
        elif found:
            found[0].journal.close()


def try_all(sequences: Sequence[tuple[int, tuple[str, ...]]], tmp_path: Path, most: int = 32) -> Checker:
    """Do each sequence of operations after so many saves, and cut the power at each call of its last operation."""
    checker = Checker(tmp_path / "cut")
    draw = random.Random(5)
    for turn, (saves, names) in enumerate(sequences):
        folder = tmp_path / str(turn)
        folder.mkdir()
        with recording(folder) as calls, contextlib.redirect_stdout(io.StringIO()):
            home = Home(folder)
            for _ in range(saves):
                home.save()
            for name in names[:-1]:
                OPERATIONS[name](home)
            began, before = len(calls), home.newest
            OPERATIONS[names[-1]](home)
            home.run.journal.close()
            recorded: list[Call] = list(calls)
        for end in range(began, len(recorded) + 1):
            allowed = (before, home.newest) if end < len(recorded) else (home.newest,)
            for files in crash_states(recorded[:end], draw, most):
                checker.check(files, allowed, f"{saves} saves, then {', '.join(names)}, cut before call {end} of {len(recorded)}")
        shutil.rmtree(folder)
    return checker


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "say", lambda _text: None)


def sequences(longest: int) -> list[tuple[int, tuple[str, ...]]]:
    found = [names for length in range(1, longest + 1) for names in itertools.product(OPERATIONS, repeat=length)]
    return [(saves, names) for saves in (0, 2) for names in found]


def test_no_power_cut_in_one_operation_loses_a_checkpoint(tmp_path: Path) -> None:
    checker = try_all(sequences(1), tmp_path)

    print(f"{checker.tried} states of folders, {len(checker.met)} of them different")
    assert len(checker.met) > 300


@pytest.mark.slow
def test_no_power_cut_in_three_operations_loses_a_checkpoint(tmp_path: Path) -> None:
    checker = try_all(sequences(3), tmp_path, most=64)

    print(f"{checker.tried} states of folders, {len(checker.met)} of them different, {len(sequences(3))} sequences")
    assert len(checker.met) > 3000


@pytest.mark.parametrize("module", [atomic_file, journal])
def test_the_model_finds_a_store_that_does_not_flush(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same search must fail where one flush of the folder is left out."""
    monkeypatch.setattr(module, "sync_folder", lambda _folder: None)
    with pytest.raises((AssertionError, CheckpointDamaged)):
        try_all([(0, ("save",)), (2, ("save", "prune"))], tmp_path)


def test_calls_that_are_flushed_have_one_outcome(tmp_path: Path) -> None:
    with recording(tmp_path) as calls:
        run = Run(tmp_path)
        run.save(1)

    loose = [calls[index] for index in pending(calls)]
    assert {call.kind for call in loose} <= {"make", "write"}  # the line of the manifest, which nothing rests on
    assert len(loose) <= 2
    assert {call.kind for call in calls} == {"make", "write", "cut", "flush", "rename"}


CHANGING = (
    "write,pwrite64,pwritev,writev,ftruncate,truncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,"
    "link,linkat,symlink,symlinkat,mkdir,mkdirat,fallocate,mmap,sendfile"
)
KINDS = {"pwrite64": "write", "write": "write", "ftruncate": "cut", "fsync": "flush", "rename": "rename", "unlink": "delete"}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_kernel_sees_the_calls_that_are_recorded_and_no_others(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir()
    program = f"from pathlib import Path\nfrom tests.store.homes import Run\nRun(Path({str(home)!r})).save(1)"
    command = ["strace", "-f", "-y", "-e", f"trace={CHANGING}", "-o", str(log), sys.executable, "-c", program]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    if "PTRACE" in done.stderr or "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    traced = [line.split(maxsplit=1)[1] for line in log.read_text().splitlines() if str(home) in line]
    traced = [line for line in traced if not line.rstrip().endswith("ENOENT (No such file or directory)")]
    recorded_folder = tmp_path / "recorded"
    recorded_folder.mkdir()
    with recording(recorded_folder) as calls:
        Run(recorded_folder).save(1)

    assert [KINDS[line.partition("(")[0]] for line in traced] == [call.kind for call in calls if call.kind != "make"]
