"""The checkpoint home: the checkpoints in a folder by program and run, which of them are good, and which to keep."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.child_processes import has_ended
from detrain.base.cursor import Address, Cursor, Cut
from detrain.base.errors import CheckpointDamaged, StoreError
from detrain.store.chronicle import Chronicle
from detrain.store.journal import Ends
from detrain.store.manifest import Manifest
from detrain.store.reader import look, read_meta
from detrain.store.snapshot import Meta, Snapshot
from detrain.store.thinning import Held, thinned

INFO_NAME: Final = "inst.info"
"""The file of a home with the structure that detrain has inferred of the program."""

_CUTS: Final[dict[str, Cut]] = {"e": "epoch", "l": "load", "b": "batch", "z": "end"}
_LETTERS: Final = {cut: letter for letter, cut in _CUTS.items()}
_NUMBER: Final = r"(?:0|[1-9]\d*)"
_NAME: Final = re.compile(
    rf"(?P<program>.+)-r(?P<run>{_NUMBER})-p(?P<phase>{_NUMBER})-e(?P<epoch>\d{{5,}})-(?P<cut>[elbz])(?P<batch>\d{{6,}})\.h5",
    re.ASCII | re.DOTALL,
)
_BESIDE: Final = (".journal", ".manifest", ".changes", ".lock", ".chronicle")
"""Suffixes of a run's other files, which lie beside its checkpoints."""
KEPT: Final = ".kept"
"""Suffix of the folder beside a run's log of changes: it holds files of the program as they were at the run's cuts."""
TAKEN: Final = ".taken"
"""Suffix of an empty file in that folder: it says that the name before the suffix is taken."""
_LEFTOVER: Final = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)\.tmp", re.ASCII | re.DOTALL)


class Entry(msgspec.Struct, frozen=True):
    """A checkpoint file, known by its name alone: its bytes have not been read yet."""

    path: Path
    program: str
    run: int
    cursor: Cursor


def parse_name(path: Path) -> Entry | None:
    """Return the program, run and cursor in a checkpoint's file name, or None if it is no such name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    cursor = Cursor(int(match["phase"]), int(match["epoch"]), int(match["batch"]), _CUTS[match["cut"]])
    entry = Entry(path, match["program"], int(match["run"]), cursor)
    # A name with more zeros than we write (e000001) is not ours, and must not be pruned.
    return entry if _name(entry.program, entry.run, cursor) == path.name else None


def is_ours(path: Path) -> bool:
    """Return True if a file in a checkpoint home has a name by which runs need it."""
    return parse_name(path) is not None or path.name == INFO_NAME or path.suffix in _BESIDE


def _name(program: str, run: int, cursor: Cursor) -> str:
    return f"{program}-r{run}-p{cursor.phase}-e{cursor.epoch:05d}-{_LETTERS[cursor.cut]}{cursor.batch:06d}.h5"


def cursor_of(meta: Meta) -> Cursor:
    """Return the cursor at which a checkpoint was taken. Raises CheckpointDamaged if there is no such cut."""
    for cut in _LETTERS:
        if cut == meta.cut:
            return Cursor(meta.phase, meta.epoch, meta.batch, cut)
    raise CheckpointDamaged(
        f"a checkpoint of {meta.program!r} was taken at a cut {meta.cut!r}, which is none", "start anew with --fresh"
    )


class Choice(msgspec.Struct, frozen=True):
    """The checkpoint to resume from, the `stations` on the way to it (itself last), and why no newer one was chosen.

    Checkpoints in `damaged` are bad. Those in `stranded` are good, but need a damaged one, or lost journal records.
    """

    entry: Entry
    stations: tuple[Entry, ...]
    digest: str
    damaged: tuple[Path, ...] = ()
    stranded: tuple[Path, ...] = ()


class Catalogue:
    """The checkpoints in one folder. Files that detrain did not write are never touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._told: dict[Path, tuple[float | None, int] | None] = {}

    def create(self) -> None:
        """Make the folder, and make sure that it can be written. Raises StoreError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Where the system can do that, the file has no name: a kill leaves nothing behind.
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise StoreError(
                f"checkpoint home {str(self.folder)!r} cannot be written: {error.strerror or error}",
                "give a writable folder with --ckpt DIR or $CKPT_DIR",
            ) from error

    def entries(self) -> list[Entry]:
        """Return all checkpoints, in the order (program, run, cursor)."""
        found = []
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                entry = parse_name(path)
                if entry is not None and path.is_file():  # no folder, and no link to nothing
                    found.append(entry)
        return sorted(found, key=lambda entry: (entry.program, entry.run, entry.cursor.key()))

    def path(self, program: str, run: int, cursor: Cursor) -> Path:
        """Return the file name of a checkpoint, for example `train-r1-p0-e00003-e000000.h5`."""
        return self.folder / _name(program, run, cursor)

    def journal(self, program: str, run: int) -> Path:
        """Return the file name of a run's journal."""
        return self.folder / f"{program}-r{run}.journal"

    def manifest(self, program: str, run: int) -> Manifest:
        """Return the manifest of a run."""
        return Manifest(self.folder / f"{program}-r{run}.manifest")

    def chronicle(self, program: str, run: int) -> Chronicle:
        """Return the chronicle of a run."""
        return Chronicle(self.folder / f"{program}-r{run}.chronicle")

    def save(self, program: str, run: int, cursor: Cursor, snapshot: Snapshot) -> str:
        """Write a checkpoint and commit it; return its digest.

        Raises StoreError; earlier checkpoints then stay as they were.
        """
        from detrain.store.hdf5_writer import write

        path, manifest = self.path(program, run, cursor), self.manifest(program, run)
        manifest.withdraw(path.name)
        self._told.pop(path, None)
        digest = write(path, snapshot)
        manifest.commit(path.name, digest)
        return digest

    def confirm(self, entry: Entry, *, reads_all: bool = True) -> str:
        """Check every digest of a checkpoint, and that its file name and the manifest agree with it; return its digest.
        Without `reads_all`, the arrays of a large file are checked only when they are read.

        Raises CheckpointDamaged, CheckpointTooNew or StoreError.
        """
        digest, meta = look(entry.path, reads_all=reads_all)
        name = _name(meta.program, meta.run, cursor_of(meta))
        listed = self.manifest(entry.program, entry.run).digests().get(entry.path.name, digest)
        if listed != digest or name != entry.path.name:
            why = f"has digest {digest}, the manifest lists {listed}" if listed != digest else f"was written as {name!r}"
            raise CheckpointDamaged(
                f"checkpoint {str(entry.path)!r} is not the one that was written here: it {why}",
                "bring back the file that belongs there; detrain goes back to the newest good one before it",
            )
        return digest

    def good(self, program: str, *, reads_all: bool = True) -> Iterator[Choice]:
        """Yield the checkpoints of a program's newest run from which it can be resumed, the newest first; none if the
        home has no checkpoint of it. `reads_all`: as for `confirm`.

        Raises CheckpointDamaged, before any is yielded, if none is good or all are gone; CheckpointTooNew or StoreError
        where a file is of a newer format or cannot be read.
        """
        mine = [entry for entry in self.entries() if entry.program == program]
        mine = [entry for entry in mine if entry.run == mine[-1].run]
        self._refuse_if_gone(program, mine[-1].run if mine else 0)
        if not mine:
            return
        ends = Ends.of(self.journal(program, mine[-1].run))
        usable = mine
        good: dict[Path, str] = {}
        bad: list[Path] = []
        is_any = False
        cut_off: CheckpointDamaged | None = None
        """The error that says that the journal lacks records which a checkpoint needs."""
        for entry in reversed(mine):
            while entry in usable and not _lacks_start(way := stations(usable, entry)):
                damaged = [station for station in way if station.path not in good and not self._is_good(station, good, reads_all)]
                if not damaged:
                    break
                bad += [station.path for station in damaged]
                usable = [entry for entry in usable if entry not in damaged]  # other stations may lead there
            else:
                continue
            try:
                ends.require(read_meta(entry.path).journal_bytes)
            except CheckpointDamaged as error:
                if not self.journal(program, entry.run).exists():
                    raise  # perhaps the folder was copied without its journal
                if cut_off is None:
                    messages.warn(error.what)
                cut_off = error
                continue
            stranded = [newer.path for newer in usable[usable.index(entry) + 1 :]]
            is_any = True
            yield Choice(entry, tuple(way), good[entry.path], tuple(bad), tuple(stranded))
        if not is_any:
            raise self._nothing_left(program, len(mine), bad, cut_off)

    def ways(self, program: str, run: int) -> list[Entry]:
        """Return, in order, the checkpoints of a run whose stations are all there; they are not checked for damage."""
        return with_ways([entry for entry in self.entries() if (entry.program, entry.run) == (program, run)])

    def _is_good(self, entry: Entry, good: dict[Path, str], reads_all: bool) -> bool:
        """Check a checkpoint. Add its digest to `good` and return True, or warn of the damage and return False."""
        try:
            good[entry.path] = self.confirm(entry, reads_all=reads_all)
        except CheckpointDamaged as error:
            messages.warn(error.what)
            return False
        return True

    def _nothing_left(self, program: str, count: int, bad: Sequence[Path], cut_off: CheckpointDamaged | None) -> CheckpointDamaged:
        what = f"none of the {count} checkpoints of {program!r} in {str(self.folder)!r} can be gone on from"
        if bad:
            others = count - len(bad)
            rest = f", and {others} {'rests' if others == 1 else 'rest'} on {'it' if len(bad) == 1 else 'them'}" if others else ""
            return CheckpointDamaged(
                f"{what}: {len(bad)} {'is' if len(bad) == 1 else 'are'} damaged{rest}",
                "bring back what is damaged, or start anew with --fresh; the files stay where they are",
            )
        if cut_off is not None:
            return CheckpointDamaged(f"{what}: {cut_off.what}", cut_off.todo)
        return CheckpointDamaged(
            f"{what}: they lie inside of an epoch, and that of its start is gone", "bring it back, or start anew with --fresh"
        )

    def _refuse_if_gone(self, program: str, run: int) -> None:
        """Raise CheckpointDamaged if the manifest of a later run than this lists checkpoints: none of them is there."""
        for path in self.folder.glob(f"{glob.escape(program)}-r*.manifest"):
            number = path.name.removeprefix(f"{program}-r").removesuffix(".manifest")
            listed = list(self.manifest(program, int(number)).digests()) if number.isdecimal() and int(number) > run else []
            if listed:
                raise CheckpointDamaged(
                    f"the checkpoints of {program!r} are gone from {str(self.folder)!r}: its manifest lists {listed[-1]!r} last",
                    "bring them back, or start anew with --fresh",
                )

    def adopt(self, choice: Choice) -> None:
        """Go on from a choice: list its checkpoint if it is not listed yet, and put damaged and stranded ones aside.

        Raises StoreError.
        """
        manifest = self.manifest(choice.entry.program, choice.entry.run)
        listed = manifest.digests()
        gone = [name for name in listed if not (self.folder / name).exists()]
        if gone and gone[-1] == list(listed)[-1]:
            messages.warn(f"{gone[-1]!r}, which the manifest lists last, is gone: going on from an earlier checkpoint")
        for path in choice.damaged:
            if self._put_aside(manifest, path, "bad"):
                messages.say(f"kept aside as {path.name}.bad")
        # They would count as the newest, and the checkpoints that this run saves next would be pruned.
        count = sum(self._put_aside(manifest, path, "stranded") for path in choice.stranded)
        if count:
            messages.say(f"{count} newer, good by {'itself' if count == 1 else 'themselves'}, kept aside as NAME.stranded")
        if choice.entry.path.name not in listed:
            manifest.commit(choice.entry.path.name, choice.digest)

    def put_aside_after(self, program: str, run: int, batches_done: int) -> list[str]:
        """Rename the checkpoints of a run that were taken after more than `batches_done`: they may hold a fault.

        Returns their names.
        """
        manifest, names = self.manifest(program, run), []
        for entry in [entry for entry in self.entries() if (entry.program, entry.run) == (program, run)]:
            with contextlib.suppress(OSError, CheckpointDamaged):
                if read_meta(entry.path).batches_done > batches_done and self._put_aside(manifest, entry.path, "suspect"):
                    names.append(entry.path.name)
        return names

    def put_aside(self, entries: Iterable[Entry]) -> None:
        """Rename checkpoints from which no run must go on. Raises StoreError."""
        for entry in entries:
            self._put_aside(self.manifest(entry.program, entry.run), entry.path, "stranded")

    @staticmethod
    def _put_aside(manifest: Manifest, path: Path, kind: str) -> bool:
        """Rename a checkpoint, and return True if the rename worked."""
        manifest.withdraw(path.name)
        try:
            path.replace(path.with_name(f"{path.name}.{kind}"))
        except OSError:
            return False
        return True

    def prune(
        self,
        program: str,
        run: int,
        keep: int,
        keep_every: int = 0,
        keep_best: str = "",
        keep_size: int = 0,
        after_batches: bool = False,
        counts: Callable[[str], bool] = lambda _name: True,
        stays: str = "",
    ) -> None:
        """Delete old checkpoints of a run. The newest `keep` stay, and the stations on the way to each that stays: the
        one at the start of its epoch if it lies inside an epoch, and the newest of each earlier phase.

        A newer one for whose name `counts` returns False stays without being counted: not all ranks of the job have it
        yet. The one named `stays` stays. Where several are kept and all need one checkpoint, the newest before that one
        stays as well, so that no single damaged file costs them all. With `keep_every`, those at the start of every
        `keep_every`th epoch and at the end of a phase stay; with `after_batches`, also the last one inside each such
        epoch. With `keep_best`, the first one with the lowest metric stays, or with the highest if `keep_best` begins
        with `max:`. With `keep_size`, more stay, spread over the run, as long as all together fit into that many bytes.
        """
        mine = [entry for entry in self.entries() if (entry.program, entry.run) == (program, run)]
        kept: list[Entry] = []
        usable = 0
        for entry in reversed(mine):
            if usable < keep:
                kept.insert(0, entry)
                # One from which no run can go on is not counted.
                usable += counts(entry.path.name) and not _lacks_start(stations(mine, entry))
        kept += [entry for entry in mine if entry.path.name == stays]
        if keep > 1:
            kept += _fallbacks(mine, kept)
        if keep_every:
            last = {(each.cursor.phase, each.cursor.epoch): each for each in mine if after_batches and each.cursor.is_inside}
            starts = [each for each in mine if each.cursor.cut == "epoch" or each in last.values()]
            kept += [each for each in mine if each.cursor.cut == "end"]
            kept += [each for each in starts if each.cursor.epoch % keep_every == 0]
        if keep_best:
            told = {entry.path: self._tell(entry.path) for entry in mine}
            known = {path: each[0] for path, each in told.items() if each is not None and each[0] is not None}
            best = max if keep_best.startswith("max:") else min
            kept += [entry for entry in mine if known and entry.path == best(known, key=known.__getitem__)]
        needed = {station.path for entry in kept for station in stations(mine, entry)}
        if keep_size:
            needed |= self._spread(mine, needed, keep_size)
        for entry in mine:
            if entry.path not in needed:
                self._told.pop(entry.path, None)
                with contextlib.suppress(OSError):
                    entry.path.unlink()

    def _spread(self, entries: Sequence[Entry], needed: Collection[Path], most_bytes: int) -> set[Path]:
        """Return the checkpoints of a run that stay within `most_bytes`, all the `needed` ones among them. The caller
        must count those of earlier phases on the way to a needed one as needed.
        """
        starts = {(each.cursor.phase, each.cursor.epoch): each for each in entries if each.cursor.cut == "epoch"}
        found: list[Entry] = []
        held: list[Held] = []
        for entry in entries:
            told, place = self._tell(entry.path), (entry.cursor.phase, entry.cursor.epoch)
            start = starts.get(place) if entry.cursor.is_inside else None
            if told is not None and not (entry.cursor.is_inside and entry.cursor.epoch and start not in found):
                held.append(Held(told[1], entry.path.stat().st_size, found.index(start) if start in found else None))
                found.append(entry)
        stay = thinned(held, {number for number, entry in enumerate(found) if entry.path in needed}, most_bytes)
        return {found[number].path for number in stay}

    def _tell(self, path: Path) -> tuple[float | None, int] | None:
        """Return a checkpoint's metric and number of batches done; None if it is damaged. Each file is read once."""
        if path not in self._told:
            try:
                meta = read_meta(path)
                self._told[path] = meta.metric, meta.batches_done
            except StoreError:
                self._told[path] = None
        return self._told[path]

    def remove_leftovers(self, program: str) -> None:
        """Delete the temporary files that killed saves of this program have left, and those of killed writes of
        inst.info: another program's run may be writing that now.
        """
        for path in self.folder.iterdir():
            match = _LEFTOVER.fullmatch(path.name)
            if match is None:
                continue
            entry = parse_name(path.with_name(match["name"]))
            is_of_info = match["name"] == INFO_NAME and has_ended(int(match["process"]))
            if is_of_info or (entry is not None and entry.program == program):
                with contextlib.suppress(OSError):
                    path.unlink()


def _fallbacks(entries: Sequence[Entry], kept: Sequence[Entry]) -> list[Entry]:
    """Return, for each station common to all kept checkpoints, the newest checkpoint before it that needs no other
    station of its own phase.

    Kept ones without the start of their epoch do not count: no run can go on from them.
    """
    ways = [way for entry in kept if not _lacks_start(way := stations(entries, entry))]
    common = [station for station in ways[0] if all(station in way for way in ways)] if ways else []
    found = []
    for station in common:
        for entry in reversed(entries[: entries.index(station)]):
            way = stations(entries, entry)
            if not _lacks_start(way) and (len(way) < 2 or way[-2].cursor.phase != entry.cursor.phase):
                found.append(entry)
                break
    return found


def with_ways(entries: Sequence[Entry]) -> list[Entry]:
    """Return those of a run's checkpoints whose stations are all among them."""
    return [entry for entry in entries if not _lacks_start(stations(entries, entry))]


def _lacks_start(way: Sequence[Entry]) -> bool:
    """Return True if a station lies inside a later epoch and none is at its start: no run can reach it."""
    return any(
        station.cursor.is_inside and station.cursor.epoch > 0 and (before is None or not _is_start(before, station))
        for before, station in zip((None, *way), way, strict=False)
    )


def _is_start(entry: Entry, of: Entry) -> bool:
    """Return True if `entry` was taken at the start of the epoch of `of`."""
    return (entry.cursor.phase, entry.cursor.epoch, entry.cursor.cut) == (of.cursor.phase, of.cursor.epoch, "epoch")


def stations(entries: Iterable[Entry], target: Entry) -> list[Entry]:
    """Return the checkpoints at which a run that resumes from `target` stops on its way, `target` last.

    A checkpoint inside an epoch needs the one at the start of its epoch (code between the two runs again, from exact
    state). The run finishes each earlier phase from its newest checkpoint, if possible one with the start of its epoch.
    """
    newest: dict[int, Entry] = {}
    starts: dict[tuple[int, int], Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.cursor.key()):
        cursor = entry.cursor
        if cursor.key() <= target.cursor.key():
            is_complete = not cursor.is_inside or cursor.epoch == 0 or (cursor.phase, cursor.epoch) in starts
            if is_complete or entry == target or cursor.phase not in newest:
                newest[cursor.phase] = entry
            if cursor.cut == "epoch":
                starts[cursor.phase, cursor.epoch] = entry
    result: list[Entry] = []
    for phase, last in sorted(newest.items()):
        start = starts.get((phase, last.cursor.epoch))
        if last.cursor.is_inside and start is not None:
            result.append(start)
        result.append(last)
    return result


def link(entries: Sequence[Entry], before: Address, home: Path) -> None:
    """Link or copy a run's newest checkpoint up to a cursor, its stations and the run's journal into another home."""
    chosen = up_to(entries, before)
    if not chosen:
        return
    for entry in stations(chosen, chosen[-1]):
        with contextlib.suppress(FileExistsError):
            try:
                os.link(entry.path, home / entry.path.name)
            except OSError:
                shutil.copyfile(entry.path, home / entry.path.name)
    journal = Catalogue(chosen[-1].path.parent).journal(chosen[-1].program, chosen[-1].run)
    shutil.copyfile(journal, home / journal.name)


def up_to(entries: Sequence[Entry], cursor: Address) -> list[Entry]:
    """Return the checkpoints at or before a cursor, those of earlier phases included."""
    return [entry for entry in entries if entry.cursor.address <= cursor]
