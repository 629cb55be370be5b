"""The restore of a checkpoint home from its mirror, on a machine that has no home, or an older one."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Container, Set
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.errors import MirrorFailed
from detrain.store.atomic_file import sync_folder, way_out
from detrain.store.catalogue import KEPT, Catalogue, is_ours, parse_name, with_ways
from detrain.store.mirror.remote import Remote
from detrain.store.mirror.states import MirroredFile, NotWhole, State, get_part, get_state, state_names


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a home's mirror, as a file in the home records it."""

    url: str
    term: int = 0
    number: int = -1
    """The number of the last state that was sent."""
    checkpoint: str = ""
    """The newest checkpoint in that state."""
    waiting: str = ""
    """A newer checkpoint that is not in the mirror yet."""
    error: str = ""
    """The error because of which it is not there, if the mirror failed."""
    pid: int = 0
    """The process that sends."""


def sent_path(home: Path, program: str) -> Path:
    """Return the path of the file in a home that records the progress of a program's mirror."""
    return home / f".{program}.mirror"


def read_sent(home: Path, program: str) -> Sent | None:
    """Return the recorded progress of a program's mirror; None if there is no legible record."""
    try:
        return msgspec.json.decode(sent_path(home, program).read_bytes(), type=Sent)
    except (OSError, msgspec.DecodeError):
        return None


def write_sent(home: Path, program: str, sent: Sent) -> None:
    """Write the progress of a program's mirror."""
    path = sent_path(home, program)
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(msgspec.json.encode(sent))
    temporary.replace(path)


_ASIDE: Final = "before-the-mirror"


def bring_back(
    remote: Remote, home: Path, program: str, folder: Path, common: str | None = None, *, is_holder: bool = False
) -> State | None:
    """Put the newest state of a mirror into a home that is behind it or has no files of the program. Older files in the
    home, and files of the program in `folder` that differ from the state's, are put aside. If parts are damaged, the
    checkpoints that need them do not come back: the state chosen has the newest checkpoint whose parts are all whole.

    `common`: for a rank, the newest checkpoint that the mirror has of all ranks: the newest state with it is taken.
    `is_holder`: this process may write the mirror: damaged parts are removed there, so that they are sent again.

    Returns the state put back; None if the home is as new, or the mirror is empty. Raises MirrorFailed if no state
    allows a run to go on, or the mirror does not answer.
    """

    def put_back(state: State) -> State:
        _put_back(remote, state, home, folder)
        write_sent(home, program, Sent(url=remote.url, term=state.term, number=state.number, checkpoint=state.checkpoint))
        return state

    why, left, whole = "", list[State](), set[str]()
    for name in reversed(state_names(remote)):
        try:
            state = get_state(remote, name)
        except NotWhole as error:
            why = why or _told(error)
            continue
        wanted = state.checkpoint if common is None else common
        if wanted not in state.checkpoints or any(_order(each) > (state.term, _place(wanted)) for each in left):
            continue
        if is_as_new(home, state, remote.url):
            return None
        try:
            return put_back(state)
        except NotWhole as error:
            why = why or _told(error)
        lost = damage_in(remote, state, whole)
        if is_holder:
            _remove_damaged(remote, {part for each in lost for part in each.parts} - whole)
        if (rest := without(state, lost, wanted)) is not None:
            left.append(rest)
    if left:
        return put_back(max(left, key=_order))
    if why:
        raise MirrorFailed(
            f"no state of the mirror {remote.url!r} is whole: {why}", "start anew with --fresh, or give another --mirror"
        )
    return None


def _told(error: NotWhole) -> str:
    messages.warn(f"a state of the mirror is not whole: {error.what}")
    return error.what


def damage_in(remote: Remote, state: State, whole: set[str]) -> dict[MirroredFile, str]:
    """Return the files of a state with missing or damaged parts, each with a text that names the damage. All parts are
    read but those in `whole`; each part found whole is added there. Raises MirrorFailed if the mirror does not answer.
    """
    lost: dict[MirroredFile, str] = {}
    for each in (*state.home, *state.files):
        try:
            for part in each.parts:
                if part not in whole:
                    get_part(remote, part)
                    whole.add(part)
        except NotWhole as error:
            lost[each] = f"{each.path}: {error.what}"
    return lost


def without(state: State, lost: Container[MirroredFile], upto: str) -> State | None:
    """Return a state without its `lost` files. Its `checkpoint` is then the newest one, up to `upto`, that lost none of
    the files it needs; None if there is none. A checkpoint needs its stations and all files that are neither
    checkpoints nor the chronicle.
    """
    left = tuple(each for each in state.home if each not in lost)
    entries = [entry for each in left if (entry := parse_name(Path(each.path))) is not None]
    ways = with_ways([entry for entry in entries if (entry.program, entry.run) == (state.program, state.run)])
    usable = [entry.path.name for entry in ways if _place(entry.path.name) <= _place(upto)]
    spare = {each for each in state.home if each.path.endswith((".h5", ".chronicle"))}
    if not usable or any(each in lost and each not in spare for each in (*state.home, *state.files)):
        return None
    return msgspec.structs.replace(state, checkpoint=max(usable, key=_place), home=left)


def is_as_new(home: Path, state: State, url: str) -> bool:
    """Return True if a home is as new as a state of its mirror, or newer. Only checkpoints listed in manifests count:
    others may be left from a restore that was cut short when the machine vanished.
    """
    catalogue = Catalogue(home)
    mine = [entry for entry in catalogue.entries() if entry.program == state.program]
    runs = {entry.run: catalogue.manifest(state.program, entry.run).digests() for entry in mine}
    committed = [(entry.run, entry.cursor.key()) for entry in mine if entry.path.name in runs[entry.run]]
    known = read_sent(home, state.program)
    if committed and known is not None and known.url == url and known.number >= 0:
        return (known.term, known.number) >= (state.term, state.number)
    return max(committed, default=(0, ())) >= _place(state.checkpoint)


def _place(name: str) -> tuple[int, tuple[int, ...]]:
    entry = parse_name(Path(name))
    assert entry is not None, name  # `get_state` accepts no other names
    return entry.run, entry.cursor.key()


def _order(state: State) -> tuple[int, tuple[int, tuple[int, ...]]]:
    return state.term, _place(state.checkpoint)


def _put_back(remote: Remote, state: State, home: Path, folder: Path) -> None:
    """Write all files under temporary names, then give them their own names, the manifest last."""
    written: list[tuple[Path, Path]] = []
    try:
        home.mkdir(parents=True, exist_ok=True)
        for base, files in ((folder, state.files), (home, state.home)):
            for each in files:
                path = base / each.path
                beside = home if base == home else path.parent
                beside.mkdir(parents=True, exist_ok=True)
                temporary = beside / f".{path.name}.{os.getpid()}.tmp"
                written.append((temporary, path))
                _write(remote, each, temporary)
                if base == home and path.suffix == ".changes":
                    _lead_to(temporary, state.folder, folder.absolute())
        aside = next(path for number in range(1, 1 << 20) if not (path := home / f"{_ASIDE}-{number}").exists())
        _put_aside(home, state.program, aside)
        for temporary, path in written:
            if path.is_file() and not path.is_relative_to(home):
                if filecmp.cmp(temporary, path, shallow=False):
                    continue
                where = aside / path.relative_to(folder)
                where.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, where)
                messages.say(f"{messages.shown(path)} is not what the mirror has: it is {messages.shown(where)} now")
            path.parent.mkdir(exist_ok=True)
            temporary.replace(path)
    except OSError as error:
        what = f"{state.checkpoint} of the mirror cannot be put into {str(home)!r}: {error.strerror or error}"
        raise MirrorFailed(what, way_out(error)) from error
    finally:
        for temporary, _path in written:
            with contextlib.suppress(OSError):
                temporary.unlink()
    sync_folder(home)


def _remove_damaged(remote: Remote, parts: Set[str]) -> None:
    for part in parts:
        try:
            get_part(remote, part)
        except NotWhole:
            remote.remove(part)


def _write(remote: Remote, each: MirroredFile, path: Path) -> None:
    with path.open("wb") as file:
        for part in each.parts:
            file.write(get_part(remote, part))
        file.flush()
        os.fsync(file.fileno())


def _lead_to(changes: Path, before: str, now: Path) -> None:
    """Change the paths in a log of changes from the folder `before` to the folder in which the program runs now."""
    lines = []
    for line in changes.read_bytes().split(b"\n"):
        try:
            values = msgspec.json.decode(line, type=list)
        except msgspec.DecodeError:  # a torn line, or an empty one
            lines.append(line)
        else:
            moved = [_moved(each, before, now) for each in values]
            lines.append(line if moved == values else msgspec.json.encode(moved))
    changes.write_bytes(b"\n".join(lines))


def _moved(value: object, before: str, now: Path) -> object:
    is_in = before != "" and isinstance(value, str) and value.startswith(f"{before}/")
    return f"{now}{str(value)[len(before) :]}" if is_in else value


def _put_aside(home: Path, program: str, aside: Path) -> None:
    """Move a program's files in a home that is behind its mirror into the folder `aside`, so that no file is lost."""
    found = [path for path in home.iterdir() if path.name.startswith(f"{program}-r")]
    mine = [path for path in found if (is_ours(path) if path.is_file() else path.suffix == KEPT)]
    if not mine:
        return
    aside.mkdir()
    for path in mine:
        path.replace(aside / path.name)
    messages.say(f"this home was behind its mirror: its checkpoints are in {messages.shown(aside)} now")
