"""The contents of a mirror: states of a checkpoint home. A state is a list of files, a file is a list of parts, and the
name of a part is made from the digest of its bytes.

A part that is there is not sent again. A state is written after its parts, so a state that is there is whole. The name
of a state is its term and its number: each process that takes a mirror over begins a new term, and the newest state of
the newest term counts.
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
    """A checkpoint home as it was after a commit, and files of the program."""

    version: int = FORMAT
    term: int
    number: int
    program: str
    run: int
    checkpoint: str
    """The name of the newest checkpoint."""
    made: str
    """The time at which it was made, by the clock of `host`: for people."""
    host: str
    home: tuple[MirroredFile, ...]
    """The home's files, in the order in which they are put back."""
    files: tuple[MirroredFile, ...] = ()
    folder: str = ""
    """The folder in which the program ran: the log of changes has the full paths of files in it."""

    @property
    def name(self) -> str:
        """The name of the state's file."""
        return f"{_STATES}/{self.term:06d}-{self.number:09d}.json"

    @property
    def checkpoints(self) -> set[str]:
        """The names of all checkpoints in the state."""
        return {each.path for each in self.home if each.path.endswith(".h5")}

    @property
    def size(self) -> int:
        """The size of all files together, in bytes."""
        return sum(each.size for each in (*self.home, *self.files))

    @property
    def parts(self) -> set[str]:
        """The names of all parts of its files."""
        return {part for each in (*self.home, *self.files) for part in each.parts}


class NotWhole(MirrorFailed):
    """A state or part is missing, or its bytes differ from those written. The mirror itself has answered."""


class _Later:
    """Parts that are held in memory until `send` is called, or they take too many bytes."""

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
    """A reader of a checkpoint home that a run is writing."""

    def __init__(
        self, home: Path, program: str, patterns: Sequence[str] = (), folder: Path = Path(), part_bytes: int = PART_BYTES
    ) -> None:
        """Open a home. `patterns`: globs for files of the program, relative to the `folder` in which it runs. The name
        of a folder, and a glob that ends in `**`, mean all files below.
        """
        self._catalogue, self._program = Catalogue(home), program
        self._patterns, self._folder, self._part_bytes = patterns, folder, part_bytes
        self._known: dict[Path, tuple[tuple[int, int, int], MirroredFile]] = {}

    def committed(self) -> tuple[int, str] | None:
        """Return the program's newest run and the name of its newest committed checkpoint; None if there is none."""
        try:
            runs = [entry.run for entry in self._catalogue.entries() if entry.program == self._program]
        except FileNotFoundError:  # the home is being removed
            return None
        names = self._catalogue.manifest(self._program, max(runs)).digests() if runs else {}
        there = [name for name in names if (self._catalogue.folder / name).is_file()]
        return (max(runs), there[-1]) if there else None

    def state(self, term: int, number: int, there: Set[str], send: Callable[[str, bytes], None]) -> State | None:
        """Return the home's state as it is now, with a committed checkpoint as its newest; None if it has none yet.
        `send` is called with each part's name and bytes. Checkpoints are not read again if their parts are `there`.

        The files that a checkpoint needs are read after it, so that they hold the records it needs.
        """
        for _ in range(_READS):
            newest = self.committed()
            if newest is None:
                return None
            try:
                home, files = self._read(*newest, there, send)
            except OSError as error:  # a checkpoint has been pruned, or the home is being removed
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

        The program's files are read after the commit and before the log of their changes, and that before the copies
        kept of them at cuts. All these are read before any is sent, as far as memory allows: the run deletes kept
        copies a few cuts later.
        """
        folder, manifest = self._catalogue.folder, self._catalogue.manifest(self._program, run)
        journal, later = self._catalogue.journal(self._program, run), _Later(send)
        with contextlib.ExitStack() as held:
            committed = held.enter_context(manifest.path.open("rb"))
            size = os.fstat(committed.fileno()).st_size
            found: dict[Path, BinaryIO] = {}  # open files, so that a slow mirror still gets checkpoints pruned meanwhile
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
                path.stat()  # raises if the home is being removed: not all of it was read then
        return home, files

    def _kept(self, folder: Path, send: Callable[[str, bytes], None]) -> Iterator[MirroredFile]:
        """Yield the copies of files kept at cuts, each with an entry that its name is taken. These entries are not read
        from the folder: there a name can be taken though its copy is gone.
        """
        names = sorted(path for path in folder.iterdir() if path.suffix != TAKEN) if folder.is_dir() else []
        for each in self._those_there(names, folder.parent, send):
            yield each
            yield MirroredFile(f"{each.path}{TAKEN}", 0, ())

    def _of_program(self, send: Callable[[str, bytes], None]) -> Iterator[MirroredFile]:
        found = {path for pattern in self._patterns for path in self._folder.glob(_of_files(pattern, self._folder))}
        mine = (path for path in sorted(found) if not path.is_relative_to(self._catalogue.folder))
        return self._those_there(mine, self._folder, send)

    def _those_there(self, paths: Iterable[Path], folder: Path, send: Callable[[str, bytes], None]) -> Iterator[MirroredFile]:
        """Yield files as they are now; those that are gone are left out."""
        for path in paths:
            if path.is_file():
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    yield self._in_parts(path.relative_to(folder).as_posix(), file, size, send)

    def _checkpoint(self, path: Path, file: BinaryIO, there: Set[str], send: Callable[[str, bytes], None]) -> MirroredFile:
        """Return the parts of a checkpoint file. They are kept: a checkpoint never changes under its name."""
        status = os.fstat(file.fileno())
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
        before, made = self._known.get(path, (None, None))
        if made is None or before != stamp or not there >= set(made.parts):
            made = self._in_parts(path.name, file, status.st_size, send)
            self._known[path] = stamp, made
        return made

    def _in_parts(self, name: str, file: BinaryIO, size: int, send: Callable[[str, bytes], None]) -> MirroredFile:
        """Return the first `size` bytes of a file, in parts: bytes appended since are for the next state."""
        parts: list[str] = []
        left = size
        while left and (content := file.read(min(self._part_bytes, left))):
            parts.append(part_of(content))
            send(parts[-1], content)
            left -= len(content)
        return MirroredFile(name, size - left, tuple(parts))


def _of_files(pattern: str, folder: Path) -> str:
    """Return a glob that finds files: before Python 3.13, one that ends in `**` finds folders only."""
    given = PurePosixPath(pattern)
    deep = given / "**" if (folder / given).is_dir() else given
    return str(deep / "*" if deep.name == "**" else deep)


def part_of(content: bytes) -> str:
    """Return the name of a part: the xxh3-128 of its bytes, and its size."""
    digest = xxhash.xxh3_128_hexdigest(content)
    return f"{_PARTS}/{digest[:2]}/{digest}-{len(content)}"


def size_of(part: str) -> int:
    """Return the size of a part, in bytes, by its name."""
    return int(part.rpartition("-")[2])


def put_state(remote: Remote, state: State) -> None:
    """Write a state after its parts. Raises MirrorFailed."""
    text = msgspec.json.encode(state)
    remote.put(state.name, f"{xxhash.xxh3_128_hexdigest(text)}\n".encode() + text + b"\n")


def state_names(remote: Remote) -> list[str]:
    """Return the names of all states, from the oldest to the newest. Raises MirrorFailed."""
    return [f"{_STATES}/{name}" for name in sorted(remote.sizes(_STATES))]


def part_names(remote: Remote) -> dict[str, int]:
    """Return the size in bytes of each part's file in the mirror, by name. Raises MirrorFailed."""
    return {f"{_PARTS}/{name}": size for name, size in remote.sizes(_PARTS).items()}


def get_state(remote: Remote, name: str) -> State:
    """Return a state. Raises NotWhole if it is gone or damaged, MirrorFailed if it has another format."""
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
    """Return the name of the newest checkpoint of which the mirror has every rank's part; empty if there is none.
    Raises MirrorFailed.
    """
    found: list[set[str]] = []
    for rank in range(world):
        remote = Remote(url, f"{program}/rank-{rank}")
        parts: set[str] = set()
        for name in state_names(remote):
            with contextlib.suppress(NotWhole):  # the rank's sender may just have removed the state
                parts |= get_state(remote, name).checkpoints
        found.append(parts)
    entries = [entry for name in set.intersection(*found) if (entry := parse_name(Path(name))) is not None]
    return max(entries, key=lambda entry: (entry.run, entry.cursor.key())).path.name if entries else ""


def get_part(remote: Remote, part: str) -> bytes:
    """Return the bytes of a part. Raises NotWhole if it is missing or damaged."""
    content = remote.get(part)
    if content is None:
        raise NotWhole(f"{part} is not in the mirror {remote.url!r}")
    if part_of(content) != part:
        raise NotWhole(f"{part} in the mirror {remote.url!r} is damaged")
    return content
