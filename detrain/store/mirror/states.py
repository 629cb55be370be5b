"""What a mirror holds: states of a checkpoint home, each a list of files, and these in parts that are named by what is
in them.

A part that is there is not sent again. A state is written behind its parts, so one that is there is whole. The name of
a state is its term and its number: each machine that takes a mirror over begins a new term, and the newest state of
the newest term is the one that counts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

import msgspec
import xxhash

from detrain.base.errors import MirrorFailed
from detrain.store.catalogue import INFO_NAME, KEPT, TAKEN, Catalogue, is_ours, parse_name
from detrain.store.mirror.remote import Remote

FORMAT: Final = 1
PART_BYTES: Final = 8 << 20
_READS: Final = 100
_HELD_BYTES: Final = 8 * PART_BYTES
_STATES: Final = "states"
_PARTS: Final = "parts"


class MirroredFile(msgspec.Struct, frozen=True):
    """One file: its path, relative to the checkpoint home or to the folder of the program, and the names of its
    parts.
    """

    path: str
    size: int
    parts: tuple[str, ...]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint home as it was behind a commit, and files of the program."""

    version: int = FORMAT
    term: int
    number: int
    program: str
    run: int
    checkpoint: str
    """The newest."""
    made: str
    """When, by the clock of `host`: for people."""
    host: str
    home: tuple[MirroredFile, ...]
    """In the order in which they are put back."""
    files: tuple[MirroredFile, ...] = ()
    folder: str = ""
    """In which the program ran: files of it have their whole paths in the log of changes."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{_STATES}/{self.term:06d}-{self.number:09d}.json"

    @property
    def checkpoints(self) -> set[str]:
        """Names of all checkpoints in it."""
        return {each.path for each in self.home if each.path.endswith(".h5")}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in (*self.home, *self.files))

    @property
    def parts(self) -> set[str]:
        """Names of all parts."""
        return {part for each in (*self.home, *self.files) for part in each.parts}


class NotWhole(MirrorFailed):
    """A state, or a part of one, is not there, or is not what was written. The mirror itself has answered."""


class _Later:
    """Parts that are held until they are sent, or are too many."""

    def __init__(self, send: Callable[[str, bytes], None]) -> None:
        self._send, self._held = send, dict[str, bytes]()

    def __call__(self, part: str, content: bytes) -> None:
        self._held[part] = content
        if sum(map(len, self._held.values())) > _HELD_BYTES:
            self.send()

    def send(self) -> None:
        while self._held:
            self._send(*self._held.popitem())


class Gatherer:
    """Reads a checkpoint home while a run writes it."""

    def __init__(
        self, home: Path, program: str, patterns: Sequence[str] = (), folder: Path = Path(), part_bytes: int = PART_BYTES
    ) -> None:
        """`patterns`: of files of the program, relative to the folder in which it runs."""
        self._catalogue, self._program = Catalogue(home), program
        self._patterns, self._folder, self._part_bytes = patterns, folder, part_bytes
        self._known: dict[Path, tuple[tuple[int, int, int], MirroredFile]] = {}

    def committed(self) -> tuple[int, str] | None:
        """Return the program's newest run, and its newest checkpoint that stands committed; None: there is none."""
        try:
            runs = [entry.run for entry in self._catalogue.entries() if entry.program == self._program]
        except FileNotFoundError:  # the home is being removed
            return None
        names = self._catalogue.manifest(self._program, max(runs)).digests() if runs else {}
        there = [name for name in names if (self._catalogue.folder / name).is_file()]
        return (max(runs), there[-1]) if there else None

    def state(self, term: int, number: int, there: Set[str], send: Callable[[str, bytes], None]) -> State | None:
        """Return the home as it is now, with a commit as its newest; `send` is given each part with its name. Files
        that never change are not read again if their parts are `there`.

        None where it has no checkpoint yet. What a checkpoint rests on is read behind it: so it is there.
        """
        for _ in range(_READS):
            newest = self.committed()
            if newest is None:
                return None
            try:
                home, files = self._read(*newest, there, send)
            except OSError as error:  # a checkpoint that is kept no longer, or the home is being removed
                why = f"{error.filename or newest[1]}: {error.strerror or error}"
                time.sleep(0.01)
                continue
            return State(
                term=term,
                number=number,
                program=self._program,
                run=newest[0],
                checkpoint=newest[1],
                made=time.strftime("%Y-%m-%d %H:%M:%S %z"),
                host=socket.gethostname(),
                home=tuple(home),
                files=tuple(files),
                folder=str(self._folder.absolute()),
            )
        raise MirrorFailed(f"the home cannot be read for the mirror: {why}")

    def _read(
        self, run: int, newest: str, there: Set[str], send: Callable[[str, bytes], None]
    ) -> tuple[list[MirroredFile], list[MirroredFile]]:
        """Return the files of the home, and those of the program.

        These are read behind the commit, and before the log that says how they changed since; that before what it says
        is kept of them. All this at once, as far as it can be held: a few cuts later that is kept no longer.
        """
        folder, manifest = self._catalogue.folder, self._catalogue.manifest(self._program, run)
        journal, later = self._catalogue.journal(self._program, run), _Later(send)
        with contextlib.ExitStack() as held:
            committed = held.enter_context(manifest.path.open("rb"))
            size = os.fstat(committed.fileno()).st_size
            found: dict[Path, BinaryIO] = {}  # open, so that a mirror that is slow gets those that are kept no longer, too
            for name in manifest.digests():
                with contextlib.suppress(FileNotFoundError):
                    found[folder / name] = held.enter_context((folder / name).open("rb"))
            if folder / newest not in found:
                raise FileNotFoundError(newest)
            files = list(self._of_program(later))
            home = list(self._those_there([manifest.path.with_suffix(".changes")], folder, later))
            if self._patterns:
                home += self._kept(manifest.path.with_suffix(KEPT), later)
            later.send()
            home += [self._checkpoint(path, file, there, send) for path, file in found.items()]
            home += self._those_there([journal, manifest.path.with_suffix(".chronicle"), folder / INFO_NAME], folder, send)
            home.append(self._in_parts(manifest.path.name, committed, size, send))
            for path in (journal, manifest.path):
                path.stat()  # where the home is being removed, what was read is not all of it
        return home, files

    def _kept(self, folder: Path, send: Callable[[str, bytes], None]) -> Iterator[MirroredFile]:
        """Yield what files were at the cuts. A name counts as taken with its file alone: else that may be gone."""
        names = sorted(path for path in folder.iterdir() if path.suffix != TAKEN) if folder.is_dir() else []
        for each in self._those_there(names, folder.parent, send):
            yield each
            yield MirroredFile(f"{each.path}{TAKEN}", 0, ())

    def _of_program(self, send: Callable[[str, bytes], None]) -> Iterator[MirroredFile]:
        found = {path for pattern in self._patterns for path in self._folder.glob(pattern)}
        mine = (path for path in sorted(found) if not path.is_relative_to(self._catalogue.folder))
        return self._those_there(mine, self._folder, send)

    def _those_there(self, paths: Iterable[Path], folder: Path, send: Callable[[str, bytes], None]) -> Iterator[MirroredFile]:
        """Yield files as they are now, but for those that are gone."""
        for path in paths:
            if path.is_file():
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    yield self._in_parts(path.relative_to(folder).as_posix(), file, size, send)

    def _checkpoint(self, path: Path, file: BinaryIO, there: Set[str], send: Callable[[str, bytes], None]) -> MirroredFile:
        """Return a file that never changes under its name."""
        status = os.fstat(file.fileno())
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
        before, made = self._known.get(path, (None, None))
        if made is None or before != stamp or not there >= set(made.parts):
            made = self._in_parts(path.name, file, status.st_size, send)
            self._known[path] = stamp, made
        return made

    def _in_parts(self, name: str, file: BinaryIO, size: int, send: Callable[[str, bytes], None]) -> MirroredFile:
        """Return a file up to a size: what has come behind it is for the next time."""
        parts: list[str] = []
        left = size
        while left and (content := file.read(min(self._part_bytes, left))):
            parts.append(part_of(content))
            send(parts[-1], content)
            left -= len(content)
        return MirroredFile(name, size - left, tuple(parts))


def part_of(content: bytes) -> str:
    """Return the name of a part: the xxh3-128 of what is in it, and its size."""
    digest = xxhash.xxh3_128_hexdigest(content)
    return f"{_PARTS}/{digest[:2]}/{digest}-{len(content)}"


def size_of(part: str) -> int:
    """Return the size of a part, in bytes, by its name."""
    return int(part.rpartition("-")[2])


def put_state(remote: Remote, state: State) -> None:
    """Write a state, whose parts are there. Raises MirrorFailed."""
    text = msgspec.json.encode(state)
    remote.put(state.name, f"{xxhash.xxh3_128_hexdigest(text)}\n".encode() + text + b"\n")


def state_names(remote: Remote) -> list[str]:
    """Return the names of all states, from the oldest to the newest. Raises MirrorFailed."""
    return [f"{_STATES}/{name}" for name in sorted(remote.sizes(_STATES))]


def part_names(remote: Remote) -> dict[str, int]:
    """Return the names of all parts, with the size in bytes that each has there. Raises MirrorFailed."""
    return {f"{_PARTS}/{name}": size for name, size in remote.sizes(_PARTS).items()}


def get_state(remote: Remote, name: str) -> State:
    """Return a state. Raises NotWhole for one that is gone or damaged, MirrorFailed for one of a newer format."""
    digest, _, text = (remote.get(name) or b"").partition(b"\n")
    text = text.removesuffix(b"\n")
    if xxhash.xxh3_128_hexdigest(text).encode() != digest:
        raise NotWhole(f"{name} in the mirror {remote.url!r} is gone, or damaged")
    try:
        state = msgspec.json.decode(text, type=State)
    except msgspec.DecodeError as error:
        raise MirrorFailed(f"{name} in the mirror {remote.url!r} is of another format: {error}", "update detrain") from error
    if state.version > FORMAT:
        raise MirrorFailed(f"{name} in the mirror {remote.url!r} has format {state.version}", "update detrain")
    for each in (*state.home, *state.files):
        path = PurePosixPath(each.path)
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise NotWhole(f"{name} in the mirror {remote.url!r} leads out of its folder: {each.path!r}")
        if sum(map(size_of, each.parts)) != each.size:
            raise NotWhole(f"{each.path!r} in {name} has {each.size} bytes, and parts of others")
        if each in state.home and not (is_ours(Path(path)) if len(path.parts) == 1 else path.parent.suffix == KEPT):
            raise NotWhole(f"{each.path!r} in {name} is no file of a checkpoint home")
    if parse_name(Path(state.checkpoint)) is None:
        raise NotWhole(f"{state.checkpoint!r} in {name} is no name of a checkpoint")
    return state


def newest_state(remote: Remote) -> State | None:
    """Return the newest state that can be read; None if there is none. Raises MirrorFailed."""
    for name in reversed(state_names(remote)):
        with contextlib.suppress(NotWhole):
            return get_state(remote, name)
    return None


def common_checkpoint(url: str, program: str, world: int) -> str:
    """Return the newest checkpoint of which each rank of a job has its part in a state of its mirror; empty if there is
    none. Raises MirrorFailed.
    """
    found: list[set[str]] = []
    for rank in range(world):
        remote = Remote(url, f"{program}/rank-{rank}")
        parts: set[str] = set()
        for name in state_names(remote):
            with contextlib.suppress(NotWhole):  # its rank may just have removed it
                parts |= get_state(remote, name).checkpoints
        found.append(parts)
    entries = [entry for name in set.intersection(*found) if (entry := parse_name(Path(name))) is not None]
    return max(entries, key=lambda entry: (entry.run, entry.cursor.key())).path.name if entries else ""


def get_part(remote: Remote, part: str) -> bytes:
    """Return what is in a part. Raises NotWhole where it is not there, or is another."""
    content = remote.get(part)
    if content is None:
        raise NotWhole(f"{part} is not in the mirror {remote.url!r}")
    if part_of(content) != part:
        raise NotWhole(f"{part} in the mirror {remote.url!r} is damaged")
    return content
