"""What runs of a program leave for the eye, and where they leave it: what they print, and the files that they write,
compared between runs.

Runs that are compared work in copies of the current folder, one after another under one path: none finds what another
has written, and the user's own files stay as they are. What a program writes elsewhere, by an absolute path, is not
looked at.

Some of what is printed is of a clock. Numbers that are others in two whole runs, and durations, are left out of the
comparison by the line's shape (the line without its numbers) and the number's place in it.

Of TensorBoard's event files the points are compared: tag, step and value. Each process writes files of its own, with
times in them. A file is records of `length (uint64) | checksum | Event | checksum` (TFRecord); of an Event (protocol
buffers, `tensorflow/core/util/event.proto`) field 2 is the step, and 5 the summary, whose values (field 1) hold tag and
value. Wall time, graphs and the rest are left out.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from detrain.base.byte_digests import digest_bytes
from detrain.base.errors import UsageError
from detrain.python.outside.event_files import MARK
from detrain.store.catalogue import parse_name

_NUMBER: Final = re.compile(
    r"(?P<clock>(?:(?<=ETA: )|(?<=ETA ))\d+(?::\d\d){0,2}s?|(?<=[\[<])\d+(?::\d\d){1,2}(?=[<,]))|"
    r"(?:[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b)"
    r"(?P<unit>\s?(?:us|µs|ms|s|sec|secs|seconds|min|minutes|h|hours|it/s|s/it)\b)?"
)
"""A number, and the unit of time behind it: a duration may be of another unit in another run.

Before it the time left and gone on a progress bar (Keras's, tqdm's), which has as many parts as it is long.
"""
_LINKED: Final = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "venv"})
"""Folders that no training program writes to."""
_BYTECODE: Final = "__pycache__"
"""Folders that Python makes again, and writes to."""
_MOST_FILES: Final = 20_000
_COPIED_BYTES: Final = 16 << 20
"""Larger files are linked where that cannot do harm: data sets, mostly."""
_MOST_SHOWN: Final = 90
"""Characters of a line."""
Field = tuple[str, int]
"""The shape of a line, and a number's place in it."""

_STEP, _SUMMARY, _VALUE = 2, 5, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
EventPoint = tuple[int, bytes]
"""The step, and the value with its tag."""


def copy_folder(source: Path, target: Path, *, without: Collection[Path] = (), unchanged_since: float = -math.inf) -> bool:
    """Copy a folder for a run to work in, so that what it writes there does not come into the user's own files. Returns
    False, and copies nothing, if it holds too many. Raises UsageError where large ones find no room.

    Large files are linked if nothing has changed them since a time (seconds since 1970): a run that began then has not
    written them, as no program can set back what the system keeps of that. The user's links lead into the copy if they
    lead into the folder.
    """
    found = list(_walk(source, {path.resolve() for path in without}))
    if len(found) > _MOST_FILES:
        return False
    apart = {path for path, is_apart in found if is_apart and not path.is_symlink()}
    linked = {path for path in apart if path.is_dir() or _is_as_it_was(path, unchanged_since)}
    needed = sum(path.stat().st_size for path in apart - linked)
    if needed > (free := shutil.disk_usage(target.parent).free):
        raise UsageError(
            f"{needed:,} bytes of large files in {str(source)!r}, which the program may write, are to be copied into "
            f"{str(target.parent)!r}, which has {free:,} left",
            "set TMPDIR to a folder that has room, or move files that are only read elsewhere",
        )
    target.mkdir()
    for path, _is_apart in found:
        copy = target / path.relative_to(source)
        if path.is_symlink():
            inside = os.path.relpath(os.path.realpath(path), source.resolve())
            is_outside = inside.split(os.sep)[0] == os.pardir
            copy.symlink_to(os.path.realpath(path) if is_outside else os.path.relpath(target / inside, copy.parent))
        elif path in linked:
            copy.symlink_to(path.resolve())
        elif path.is_dir():
            copy.mkdir()
        else:
            shutil.copy2(path, copy)
    return True


def is_large(path: Path) -> bool:
    """Return whether a file is so large that it is rather linked than copied."""
    return path.stat().st_size > _COPIED_BYTES


def _is_as_it_was(path: Path, since: float) -> bool:
    """Return whether nothing has changed a file since a time; of checkpoints, nothing ever does."""
    return parse_name(path) is not None or path.stat().st_ctime < since


def _walk(folder: Path, without: Collection[Path]) -> Iterator[tuple[Path, bool]]:
    """Yield what is in a folder, folders before what is in them, and whether it stands apart: a link, a large file, a
    folder that is not gone into.
    """
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if path.resolve() in without or entry.name == _BYTECODE:
            continue
        if entry.is_dir(follow_symlinks=False):
            is_apart = entry.name in _LINKED or (path / "pyvenv.cfg").is_file()
            yield path, is_apart
            if not is_apart:
                yield from _walk(path, without)
        elif entry.is_file(follow_symlinks=False):
            yield path, is_large(path)
        elif entry.is_symlink():
            yield path, True


def written(folder: Path, before: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of files in a folder, by their names in it, but for those that are as they were before.

    TensorBoard's event files count by their points, all of a folder as one.
    """
    paths = {path.relative_to(folder).as_posix(): path for path, is_apart in _walk(folder, ()) if not is_apart and path.is_file()}
    now = {name: digest_bytes(path.read_bytes()) for name, path in paths.items()}
    found = {name: digest for name, digest in now.items() if before.get(name) != digest}
    events = {name: paths[name].read_bytes() for name in found if is_event_file(name)}
    return {**{name: digest for name, digest in found.items() if name not in events}, **points_by_folder(events)}


def timed_fields(one: str, other: str) -> set[Field] | None:
    """Return the numbers of lines that differ between two whole runs, or None if their lines differ in more."""
    lines, others = _lines(one), _lines(other)
    if len(lines) != len(others):
        return None
    found: set[Field] = set()
    for line, twin in zip(lines, others, strict=True):
        (shape, numbers), (other_shape, other_numbers) = _parsed(line), _parsed(twin)
        if shape != other_shape:
            return None
        found |= {(shape, place) for place, pair in enumerate(zip(numbers, other_numbers, strict=True)) if pair[0] != pair[1]}
    return found


def first_difference(whole: str, resumed: str, timed: Collection[Field]) -> str | None:
    """Return the first line that differs between what two runs printed from one cut on, in words, or None."""
    lines, others = _lines(whole), _lines(resumed)
    for number, (line, twin) in enumerate(zip(lines, others, strict=False)):
        if line != twin and _without(line, timed) != _without(twin, timed):
            return f"line {number + 1} after the resume is {_short(twin, line)}, in the whole run it is {_short(line, twin)}"
    if len(lines) != len(others):
        return f"{len(others)} lines after the resume, in the whole run there are {len(lines)}"
    return None


def _lines(text: str) -> Sequence[str]:
    """Return lines as a terminal shows them: of what was written over only the last."""
    return [line.rstrip("\r\b").rpartition("\r")[2] for line in text.split("\n")]


def _parsed(line: str) -> tuple[str, list[str]]:
    return _NUMBER.sub("#", line), [match[0] for match in _NUMBER.finditer(line)]


def _without(line: str, timed: Collection[Field]) -> tuple[str, list[str]]:
    shape, _numbers = _parsed(line)
    kept = []
    for place, match in enumerate(_NUMBER.finditer(line)):
        is_time = (shape, place) in timed or match["unit"] is not None or match["clock"] is not None
        kept.append("" if is_time else match[0])
    return shape, kept


def _short(line: str, other: str) -> str:
    """Return a line, of a long one what stands around the first difference."""
    if len(line) <= _MOST_SHOWN:
        return repr(line)
    common = next((at for at, (one, two) in enumerate(zip(line, other, strict=False)) if one != two), min(len(line), len(other)))
    begin = max(common - _MOST_SHOWN // 2, 0)
    end = begin + _MOST_SHOWN
    return repr(f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''}")


@dataclass(frozen=True)
class WorkFolder:
    """Where the runs work: in copies of the current folder, all under one path, or in the folder itself."""

    source: Path
    folder: Path
    """Temporary, for everything that the runs leave."""
    is_copied: bool
    _large: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    """Files of the first copy that runs are given links to, and in which state; gone if one has written them."""

    @classmethod
    def around(cls, source: Path, folder: Path, *, unchanged_since: float = -math.inf) -> WorkFolder:
        """Return the place for a current folder, as `copy_folder` copies it. What lies beside that and above it
        is found there from its copies, too.
        """
        made = cls(source, folder, copy_folder(source, folder / "first", unchanged_since=unchanged_since))
        if made.is_copied:
            place_like(source, folder / "beside")
            files = (path for path in (folder / "first").rglob("*") if path.is_file() and not path.is_symlink())
            made._large.update((path, _state(path)) for path in files if is_large(path))
        return made

    @property
    def work(self) -> Path:
        """The folder in which runs work."""
        return _in(self.folder / "beside", self.source) if self.is_copied else self.source

    def program(self, path: str) -> str:
        """Return the path by which the runs find the program."""
        whole = Path(path).resolve()
        is_inside = self.source.resolve() in whole.parents
        return os.path.relpath(whole, self.source.resolve()) if is_inside else str(whole)

    def begin(self) -> dict[str, str]:
        """Make the folder for a run; return the digests of what is in it."""
        if not self.is_copied:
            return {}
        shutil.rmtree(self.work, ignore_errors=True)
        first = self.folder / "first"
        for path in [path for path, state in self._large.items() if _state(path) != state]:
            del self._large[path]
            shutil.copy2(self.source / path.relative_to(first), path)
        shutil.copytree(first, self.work, symlinks=True, copy_function=self._copy)
        return written(self.work, {})

    def _copy(self, path: str, copy: str) -> None:
        """Copy a file for one run; large ones are linked, as long as no run has written one."""
        if Path(path) in self._large:
            os.symlink(path, copy)
        else:
            shutil.copy2(path, copy)


def place_like(source: Path, root: Path) -> Path:
    """Make folders in `root` like those above a folder, with links to what lies beside the way there: paths that lead
    out of the folder lead out of its copy to the same files. Return where the copy is to be made.
    """
    for above in reversed(source.resolve().parents):
        here = _in(root, above)
        here.mkdir(parents=True)
        following = source.resolve().relative_to(above).parts[0]
        with contextlib.suppress(OSError):  # one that may not be looked into
            for entry in os.scandir(above):
                if entry.name != following:
                    (here / entry.name).symlink_to(entry.path)
    return _in(root, source)


def _in(root: Path, folder: Path) -> Path:
    """Return where in `root` a folder has its place."""
    whole = folder.resolve()
    return root / whole.relative_to(whole.anchor)


def _state(path: Path) -> tuple[int, ...]:
    """Return what changes of a file when something is written to it."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def is_event_file(name: str) -> bool:
    """Return whether a file is one of TensorBoard's by its name."""
    return MARK in PurePosixPath(name).name


def points_by_folder(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return a digest of the points in each folder's event files, given by name and content.

    A process that goes on runs the code before its loop again, which writes what the first one wrote there: what a
    later file begins with, as the first one does, is left out.
    """
    by_folder: dict[str, list[list[EventPoint]]] = {}
    for name in sorted(files, key=_in_time):
        by_folder.setdefault(str(PurePosixPath(name).parent), []).append(list(points_in(files[name])))
    return {f"{folder}/*{MARK}* (points)": _digest(_merged(each)) for folder, each in by_folder.items()}


def points_in(data: bytes) -> Iterator[EventPoint]:
    """Yield the points of an event file, up to where it is cut off."""
    for event in _records(data):
        fields = list(_fields(event))
        step = next((value for number, value in fields if number == _STEP and isinstance(value, int)), 0)
        for number, value in fields:
            if number == _SUMMARY and isinstance(value, bytes):
                yield from ((step, inner) for kind, inner in _fields(value) if kind == _VALUE and isinstance(inner, bytes))


def _in_time(name: str) -> tuple[str, list[int | str]]:
    """Sort key: event files carry the second of their making, then host, process and a number."""
    path = PurePosixPath(name)
    return str(path.parent), [int(part) if part.isdecimal() else part for part in path.name.partition(MARK)[2].split(".")][:1]


def _merged(files: list[list[EventPoint]]) -> Iterable[EventPoint]:
    first = files[0]
    yield from first
    for later in files[1:]:
        same = next((at for at, (one, other) in enumerate(zip(first, later, strict=False)) if one != other), None)
        yield from later[min(len(first), len(later)) if same is None else same :]


def _digest(points: Iterable[EventPoint]) -> str:
    counted = sorted(Counter(points).items())
    return digest_bytes(b"".join(struct.pack("<qqq", step, len(value), count) + value for (step, value), count in counted))


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            return
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of a message of protocol buffers; numbers of fixed width as their bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value - (1 << 64) if value >> 63 else value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            return
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    return value, at
