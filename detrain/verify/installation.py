"""Checks of whether detrain can work here: frameworks and their versions, devices, the file system of the checkpoints,
its locks, and the computations that the machine repeats bit for bit, run to run and process to process.

Imports no framework: their versions are read from the packages' metadata.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from detrain.base import VERSION, messages
from detrain.base.errors import FrameworkUnsupported
from detrain.base.framework_names import FRAMEWORKS, KNOWN

_ROOM_BYTES: Final = 1_000_000_000
_TIMEOUT_S: Final = 20

PROCESSES: Final = 2
"""The number of processes in which each computation is repeated."""


class Check(msgspec.Struct, frozen=True):
    """The result of one check."""

    what: str
    found: str
    is_good: bool = True
    todo: str = ""
    """The advice to the user; may be set although the check is good."""


def check_installation(home: Path) -> list[Check]:
    """Return the checks of all that detrain needs. `home`: the folder for checkpoints, which need not exist."""
    folder = home if home.is_dir() else next(each for each in home.absolute().parents if each.is_dir())
    return [_python(), *_frameworks(), *_devices(), *_file_system(folder)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _python() -> Check:
    return Check("Python", f"{platform.python_version()}, detrain {VERSION}")


def _frameworks() -> Iterator[Check]:
    installed = {}
    for each in FRAMEWORKS:
        package, (low, high) = each.imported, each.versions
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
        wanted = f"{'.'.join(map(str, low))} to below {'.'.join(map(str, high))}"
        if package in installed:
            is_known = low <= _numbers(installed[package]) < high
            todo = "" if is_known else f"pip install 'detrain[{package}]' (this detrain knows {wanted})"
            yield Check(each.name, installed[package], is_known, todo)
    if not installed:
        choices = " or ".join(f"'detrain[{each.imported}]'" for each in FRAMEWORKS)
        yield Check("frameworks", "none", is_good=False, todo=f"pip install {choices}")


def _devices() -> Iterator[Check]:
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Check("processors", f"{processors} ({platform.machine()})")
    command = shutil.which("nvidia-smi")
    found: list[str] = []
    if command is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([command, "-L"], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
            found = [line.partition(" (UUID")[0] for line in done.stdout.splitlines() if line.startswith("GPU")]
    yield Check("GPU", "; ".join(found) or "none that nvidia-smi knows")


def _file_system(folder: Path) -> Iterator[Check]:
    """Check the operations of a checkpoint in a folder: write, sync, rename, lock."""
    where = f"checkpoints in {folder}"
    try:
        with tempfile.TemporaryDirectory(prefix=".detrain-doctor-", dir=folder) as scratch:
            file = Path(scratch, "new")
            with file.open("wb") as sink:
                sink.write(b"\0" * 65536)
                sink.flush()
                os.fsync(sink.fileno())
            file.replace(Path(scratch, "old"))
            lock = _lock(Path(scratch, "lock"))
    except OSError as error:
        yield Check(where, f"cannot be written: {error.strerror or error}", is_good=False, todo="give another folder with --ckpt")
        return
    room = shutil.disk_usage(folder).free
    todo = "" if room >= _ROOM_BYTES else "make room, or give another folder with --ckpt"
    yield Check(where, f"written, synced and renamed; {room / 1e9:.1f} GB free", room >= _ROOM_BYTES, todo)
    yield lock


def _lock(file: Path) -> Check:
    """Check that a file can be locked, as a run does it to keep other runs from its checkpoints."""
    with file.open("wb") as sink:
        try:
            fcntl.lockf(sink, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            todo = "see that no second run writes there, or put the checkpoints elsewhere"
            return Check("locks there", f"none ({error.strerror or error})", is_good=False, todo=todo)
    return Check("locks there", "held and let go")


class Repeated(msgspec.Struct, frozen=True):
    """One computation on one device.

    For each setting, two answers: under `runs`, whether repetitions in a process agree; under `processes`, whether
    processes agree. An answer is yes, no, or the reason why it is not known.
    """

    device: str
    computation: str
    stock: dict[str, str]
    """With the framework's own settings."""
    deterministic: dict[str, str]
    """With the settings of `detrain run`."""


class Repeatability(msgspec.Struct, frozen=True):
    """The result of `measure`."""

    version: str
    """The version of the framework."""
    rows: list[Repeated]

    @property
    def is_repeatable(self) -> bool:
        """True if no computation differs with deterministic ops."""
        return not any("no" in row.deterministic.values() for row in self.rows)


WITH_DOCTOR: Final = {each.imported: each.name for each in KNOWN if each.has_doctor}
"""The usual names, by module, of the frameworks with computations to measure."""


def installed() -> str | None:
    """Return the first of these frameworks that is installed; None if none is."""
    return next((name for name in WITH_DOCTOR if importlib.util.find_spec(name) is not None), None)


def measure(framework: str, repeats: int) -> Repeatability:
    """Repeat each computation `repeats` times in each process. Raises FrameworkUnsupported if that cannot be done."""
    stock = [_measure(framework, is_deterministic=False, repeats=repeats) for _ in range(PROCESSES)]
    settled = [_measure(framework, is_deterministic=True, repeats=repeats) for _ in range(PROCESSES)]
    rows = [
        Repeated(
            device,
            name,
            _said([run["cases"][device][name] for run in stock]),
            _said([run["cases"][device][name] for run in settled]),
        )
        for device, cases in settled[0]["cases"].items()
        for name in cases
    ]
    return Repeatability(settled[0]["version"], rows)


def _measure(framework: str, *, is_deterministic: bool, repeats: int) -> dict[str, Any]:
    name = WITH_DOCTOR[framework]
    command = [sys.executable, "-m", f"detrain.adapters.{framework}.doctor", str(int(is_deterministic)), str(repeats)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}
    if is_deterministic:
        environment |= {name: os.environ.get(name) or value for each in KNOWN for name, value in each.chosen}
    with messages.working("doctor: measuring", "with deterministic ops" if is_deterministic else f"as {name} is"):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        tail = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise FrameworkUnsupported(f"{name} cannot be measured: {tail[0]}", f"install it: pip install 'detrain[{framework}]'")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _said(processes: list[list[str]]) -> dict[str, str]:
    """Return the answers under `runs` and `processes`, as `Repeated` has them, from each process's digests."""
    refused = next((digests[0] for digests in processes if digests[0].startswith("refused")), None)
    if refused is not None:
        return {"runs": refused, "processes": refused}
    within = all(len(set(digests)) == 1 for digests in processes)
    between = len({tuple(digests) for digests in processes}) == 1
    return {"runs": "yes" if within else "no", "processes": "yes" if between else "no"}
