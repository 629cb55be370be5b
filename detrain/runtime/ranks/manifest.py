"""The files of a just-in-time checkpoint, and its manifest, which comes last.

    HOME/jit-INCARNATION/manifest.json      which round is the checkpoint, and its list of files
    HOME/jit-INCARNATION/ROUND/big/…        the big state, as the framework's side wrote it
    HOME/jit-INCARNATION/ROUND/small-RANK-POINT

An incarnation is one start of the job. It has at most one manifest: the file is linked to its name, which fails if that
name exists. So an incarnation commits only one checkpoint, no matter which ranks vote, and how often.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from detrain.runtime.ranks.vote import Decision, StatePoint
from detrain.runtime.ranks.wire import File, View
from detrain.store.atomic_file import sync_folder

FORMAT: Final = 1
_NAME: Final = "manifest.json"
_CHUNK_BYTES: Final = 1 << 22


class CommitManifest(msgspec.Struct, frozen=True):
    """The manifest of a committed checkpoint."""

    format: int
    job: str
    """The name of program, arguments and environment, as the caller of `ranks` gives it."""
    incarnation: str
    round: str
    world: int
    point: StatePoint
    base: StatePoint
    dead: tuple[int, ...]
    why: str
    extra: bytes
    """Bytes that the framework's side needs before the restore, such as the order of its buckets; not read here."""
    files: tuple[File, ...]

    @property
    def done(self) -> int:
        """The number of steps behind the saved state."""
        return self.point.done


class FoundCheckpoint(msgspec.Struct, frozen=True):
    """A complete just-in-time checkpoint. `folder` is its incarnation's."""

    folder: Path
    manifest: CommitManifest

    @property
    def big(self) -> Path:
        """The folder that the framework's side wrote."""
        return self.folder / self.manifest.round / "big"

    def small(self, rank: int, point: StatePoint) -> bytes:
        """Return the small state of a rank at a point: `manifest.point`, or `manifest.base`."""
        return (self.folder / self.manifest.round / _small_name(rank, point)).read_bytes()


def folder_of(home: Path, incarnation: str) -> Path:
    """Return the folder that an incarnation writes to."""
    return home / f"jit-{incarnation}"


def write_part(
    folder: Path, view: View, decision: Decision, rank: int, small: Callable[[int, StatePoint], bytes], save: Callable[[Path], None]
) -> tuple[File, ...]:
    """Write this rank's part of a decision, and flush it to the disk. Raises OSError, and the errors of `save`."""
    place = folder / view.name
    place.mkdir(parents=True, exist_ok=True)
    paths = []
    if decision.saver == rank:
        big = place / "big"
        big.mkdir(exist_ok=True)
        save(big)
        paths += sorted(path for path in big.rglob("*") if path.is_file())
        if not paths:
            raise OSError(errno.EIO, f"the big state was saved, and {big} is empty")
    for point, writers in decision.writers:
        for owner, writer in enumerate(writers):
            if writer == rank:
                path = place / _small_name(owner, point)
                path.write_bytes(small(owner, point))
                paths.append(path)
    files = tuple(_flushed(folder, path) for path in paths)
    for changed in sorted({path.parent for path in paths} | {place, folder, folder.parent}):
        sync_folder(changed)
    return files


def seal(folder: Path, manifest: CommitManifest | None) -> str | None:
    """Commit a manifest, unless the incarnation has one; return the committed round, perhaps another one.

    With None, only look for a manifest. Raises OSError.
    """
    path = folder / _NAME
    if manifest is not None and not path.exists():
        temporary = folder / f".{_NAME}.{manifest.round}.{os.getpid()}"
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest)))
            file.flush()
            os.fsync(file.fileno())
        try:
            _name_it(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink()
        sync_folder(folder)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=CommitManifest).round
    except msgspec.DecodeError as error:
        raise OSError(errno.EIO, f"{path} cannot be read: {error}") from error


def _name_it(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}:
            raise
        temporary.rename(path)  # a file system without links: the last one wins, and each is whole


def find(home: Path, job: str, world: int) -> tuple[FoundCheckpoint | None, list[str]]:
    """Return the newest complete checkpoint of a job, and a line with the reason for each folder passed over."""
    found, passed = [], []
    for folder in sorted(home.glob("jit-*")):
        try:
            manifest = _checked(folder, job, world)
        except (OSError, ValueError) as error:
            passed.append(f"{folder.name} is passed over: {error}")
        else:
            found.append(FoundCheckpoint(folder, manifest))
    newest = max(found, key=lambda each: (each.manifest.done, each.manifest.point), default=None)
    return newest, passed


def _checked(folder: Path, job: str, world: int) -> CommitManifest:
    path = folder / _NAME
    if not path.exists():
        raise ValueError("it has no manifest: its run ended before all was saved")
    manifest = msgspec.json.decode(path.read_bytes(), type=CommitManifest)  # DecodeError is a ValueError
    if manifest.format != FORMAT:
        raise ValueError(f"it has format {manifest.format}; this detrain reads {FORMAT}")
    if manifest.world != world:
        raise ValueError(f"it is of {manifest.world} ranks, and this job has {world}")
    if manifest.job != job:
        raise ValueError(f"it is of another job ({manifest.job}; this one is {job})")
    needed = {f"{manifest.round}/{_small_name(rank, point)}" for point in (manifest.point, manifest.base) for rank in range(world)}
    listed = {file.path for file in manifest.files}
    if not needed <= listed or not any(file.startswith(f"{manifest.round}/big/") for file in listed):
        raise ValueError(f"its manifest does not name {min(needed - listed, default='the big state')}")
    for file in manifest.files:
        if not Path(file.path).parts[:1] == (manifest.round,) or ".." in Path(file.path).parts:
            raise ValueError(f"its manifest names {file.path!r}, which is outside of it")
        if _measured(folder / file.path) != (file.size_bytes, file.digest):
            raise ValueError(f"{file.path} has not the bytes that were written")
    return manifest


def _small_name(rank: int, point: StatePoint) -> str:
    return f"small-{rank}-{point.name}"


def _flushed(folder: Path, path: Path) -> File:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    size, digest = _measured(path)
    return File(path.relative_to(folder).as_posix(), size, digest)


def _measured(path: Path) -> tuple[int, bytes]:
    state, size = xxhash.xxh3_128(), 0
    for chunk in _chunks(path):
        state.update(chunk)
        size += len(chunk)
    return size, bytes(state.digest())


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
