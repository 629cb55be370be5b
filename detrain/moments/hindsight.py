"""`detrain hindsight`: the output that a run would have had with statements that were added since, proved to be of that
run.

Stretches of the run are run again from its checkpoints, several at a time. detrain proves that the added statements
have not changed the training: each batch is the run's, and so are the tensors and random streams at each of its
checkpoints. It proves that stretches may be joined: each begins with the state in which the one before ended, the
Python values of the added statements included. If it does not, or a stretch cannot go on from its checkpoint with these
statements, the program runs from its start in one process, which needs no such proof.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from detrain.base import messages
from detrain.base.cursor import Address, Cursor
from detrain.base.errors import AdditionChanges, DetrainError, Diverged, UsageError, last_printed
from detrain.campaign.engine.api import Engine
from detrain.moments.additions_since import Added, added_since
from detrain.moments.culprit import find_culprit, of_training
from detrain.moments.outside_of_bodies import require_outside, stretch_over, unproved
from detrain.moments.past_run import PastRun
from detrain.moments.replays import Replay, Replays, Stretch, before, key_of, starts_at
from detrain.python.codec.graph_files import unpack
from detrain.python.inspect.object_graph import is_array, is_reference
from detrain.store import Catalogue, Entry, Snapshot, read
from detrain.verify.state_diff import Difference, compare


@dataclass(frozen=True)
class Span:
    """The epochs asked for, between two starts of epochs; None stands for the start and the end of the program."""

    first: Cursor | None
    last: Cursor | None

    @classmethod
    def parse(cls, text: str, run: PastRun) -> Span:
        """Return the epochs A to B-1 of a text `A:B`. A and B may each be left out, or begin with a phase (`1/0:1/3`).

        Raises UsageError for text of another form, and for epochs that are not in the run.
        """
        match = re.fullmatch(r"((?:\d+/)?\d+)?:((?:\d+/)?\d+)?", text)
        if match is None:
            raise UsageError(f"--epochs {text!r} is not a range of epochs", "write it as A:B, from 0 and without B: 2:5, 2: or :5")
        ends = [_epoch(each) if each else None for each in match.groups()]
        known = sorted({at[:2] for at in run.batches})
        has = f"it has {', '.join(_range(phase, [e for p, e in known if p == phase]) for phase in sorted({p for p, _e in known}))}"
        for number, at in enumerate(ends):
            if at is not None and at not in known and not (number and (at[0], at[1] - 1) in known):
                raise UsageError(f"--epochs {text}: the run has no epoch {match[number + 1]}; {has}", "give epochs that it has")
        first, last = (Cursor(at[0], at[1], 0) if at is not None else None for at in ends)
        if first is not None and last is not None and first.key() >= last.key():
            raise UsageError(f"--epochs {text} holds no epoch", "the first comes before the last, which is left out: 2:5")
        if last is not None and (last.phase, last.epoch) not in known:  # the span goes to the end of this phase
            ended = Cursor(last.phase, last.epoch, 0, "end")
            following = [Cursor(phase, epoch, 0) for phase, epoch in known if (phase, epoch) > (last.phase, last.epoch)]
            is_kept = any(entry.cursor == ended for entry in run.entries)
            last = ended if is_kept else next(iter(following), None)
        return cls(first, last)


def _epoch(text: str) -> tuple[int, int]:
    phase, _, epoch = text.rpartition("/")
    return int(phase or 0), int(epoch)


def _range(phase: int, epochs: list[int]) -> str:
    return (f"{phase}/" if phase else "") + f"{epochs[0]} to {epochs[-1]}"


@dataclass(frozen=True)
class Hindsight:
    """The program's output in the epochs asked for, as if it had had the added statements from its start."""

    out: bytes
    """The bytes that it wrote to stdout."""
    err: bytes
    """The bytes that it wrote to stderr, without the lines of detrain."""
    status: int
    """Its exit status, if it ended; else 0."""
    batches: int
    """The number of batches that were compared with the run's, and are equal."""
    checkpoints: int
    not_compared: tuple[str, ...] = ()
    """Checkpoints of the run at which the replay could take none, and `the end` if the run's end is not on record."""
    error: DetrainError | None = None
    """Why the output ends early: an addition changes the training."""


def hindsight(run: PastRun, span: Span, engine: Callable[[Path], Engine], *, runs_bodies: bool = True) -> Hindsight:
    """Run the epochs asked for with the statements added since, in copies of the current folder. `engine` makes the
    engine for it, given a folder for its files. Without `runs_bodies`, the bodies of batches are not run, and their
    output is missing.

    Raises the errors of `added_since`; Diverged if the program differs from the run even without any addition;
    UsageError if bodies cannot be left out.
    """
    added = added_since(run)
    stretch = None
    if not runs_bodies:
        stretch = stretch_over(run, span.last)
        require_outside(added, stretch)
    with tempfile.TemporaryDirectory(prefix="detrain-hindsight-") as folder:
        workers = engine(Path(folder, "engine"))
        try:
            proof = _Proof(run, added, Replays(added, Path(folder), workers), span)
            return (proof.told_outside(stretch) if stretch is not None else None) or proof.told(workers.slots)
        finally:
            workers.stop()


class _Proof:
    def __init__(self, run: PastRun, added: Added, replays: Replays, span: Span) -> None:
        self._run, self._added, self._replays, self._span = run, added, replays, span
        self._usable = Catalogue(run.home).ways(run.program.name, run.number)
        behind = [entry for entry in run.entries if span.last is not None and entry.cursor.key() >= span.last.key()]
        self._end = behind[0] if behind else None
        """The checkpoint at which the last stretch ends; None for the program's end."""
        phase, epoch, batch = list(run.batches)[-1]
        is_behind = self._end is None and run.entries[-1].cursor.key() <= Cursor(phase, epoch, batch, "load").key()
        self._tail = [Cursor(phase, epoch, batch + 1, "load"), Cursor(phase, epoch + 1, 0)] if is_behind else []
        """The cuts that may follow the run's last batch, if that comes after its last checkpoint."""
        replays.is_inside |= is_behind

    def told(self, jobs: int) -> Hindsight:
        """Run the stretches with `jobs` processes, and return the program's output with the proof."""
        stretches, trials = self._stretches(jobs)
        count = f", {len(stretches)} stretches" if len(stretches) > 1 else ""
        messages.say(f"{_counted(self._added)}; running the program again{count}")
        last = [self._without()] if self._tail else []
        done = self._replays.run([*stretches, *trials, *last])
        whole, tried, twin = done[: len(stretches)], done[len(stretches) :][: len(trials)], done[len(stretches) + len(trials) :]
        why = self._why_not_together(whole, tried)
        if why:
            messages.say(f"{why}: running it from its start, in one process")
            whole, tried = self._replays.run([self._stretch(None, self._end)]), []
        return self._judged([*tried[:1], *whole], twin)

    def told_outside(self, stretch: Stretch) -> Hindsight | None:
        """Return the output outside the bodies, from a stretch that jumps over these; None if it is not proved to be of
        the run.
        """
        messages.say(f"{_counted(self._added)}; running the program again, without the bodies of {len(stretch.jumps)} epochs")
        whole, without = self._replays.run([stretch, replace(stretch, kept=0)])
        why = unproved(self._run, whole, without)
        if not why and (refusal := _refusal(whole) or _refusal(without)):
            why = refusal[0]
        if why:
            messages.say(f"{why}: running the bodies, too")
            return None
        out, err = bytearray(), bytearray()
        self._take(whole, None, out, err)
        checkpoints = sum(key_of(entry.cursor) in whole.states for entry in self._run.entries)
        return Hindsight(bytes(out), bytes(err), whole.status, 0, checkpoints)

    def _stretch(self, since: Entry | None, end: Entry | None) -> Stretch:
        low, high = (each.cursor.key() if each is not None else None for each in (since, end))
        cursors = [each.cursor for each in self._run.entries]
        inside = [each for each in cursors if (low is None or low <= each.key()) and (high is None or each.key() <= high)]
        return Stretch(since, end.cursor if end is not None else None, (*inside, *(self._tail if end is None else ())))

    def _without(self) -> Stretch:
        """Return the stretch after the run's last usable checkpoint, without any addition. The end of the replay is
        compared with this one's, as the run has no checkpoint there.
        """
        return Stretch(self._usable[-1] if self._usable else None, None, tuple(self._tail), kept=0)

    def _stretches(self, jobs: int) -> tuple[list[Stretch], list[Stretch]]:
        """Return the stretches of the span and, if the first does not begin at the start, trial stretches: these show
        whether a run with the additions can go on from a checkpoint.
        """
        first = self._span.first
        high = self._end.cursor.key() if self._end is not None else (1 << 60,)
        has_start = any(of.is_store for _file, of in self._added.statements)
        before_first = [each for each in self._usable if first is not None and each.cursor.key() <= first.key()]
        since = before_first[-1] if before_first and not has_start else None
        low = since.cursor.key() if since is not None else (-1,)
        borders = [each for each in self._usable if low < each.cursor.key() < high]
        places: list[Entry | None] = [since, *_spread(borders, list(self._run.batches), jobs, since, self._end), self._end]
        stretches = [self._stretch(one, other) for one, other in itertools.pairwise(places)]
        if since is None:
            return stretches, []
        early = self._usable[0]
        trials = [self._stretch(None, early)]
        return stretches, trials if early == since else [*trials, self._stretch(early, early)]

    def _why_not_together(self, done: Sequence[Replay], trials: Sequence[Replay]) -> str:
        """Return why the outputs of the stretches may not be joined as the output of one run; empty if they may."""
        pairs = [(trials[0], trials[1] if len(trials) > 1 else done[0])] if trials else []
        for one, other in [*pairs, *itertools.pairwise(done)]:
            at = one.stretch.end
            if at is None or self._changed(one, one.stretch.cuts) or one.status:
                return ""  # the output after this stretch is not reported
            if key_of(at) not in one.states or key_of(at) not in other.states:
                return f"with what was added no run goes on from {at} ({(_refusal(other) or ('it cannot be taken there',))[0]})"
            ended, begun, run = (read(path) for path in (one.states[key_of(at)], other.states[key_of(at)], self._path(at)))
            # Only values that differ from the run's matter: a stretch has the others from the checkpoint.
            places = tuple(each.name for each in compare(ended, run))
            parted = [each.name for each in compare(ended, begun) if each.name.startswith(places) and not each.is_unused]
            if parted:
                return f"what was added keeps something from before {at} ({parted[0]})"
        since = done[0].stretch.since
        if since is not None:
            if key_of(since.cursor) not in done[0].states:
                return f"with what was added no run goes on from {since.cursor} ({(_refusal(done[0]) or ('',))[0]})"
            held = self._may_hold(read(done[0].states[key_of(since.cursor)]), read(since.path))
            if held:
                return f"what was added may keep something from before {since.cursor} ({held})"
        return ""

    def _may_hold(self, begun: Snapshot, run: Snapshot) -> str:
        """Return an added name that may hold data from earlier epochs, which a run from a checkpoint lacks; empty if
        there is none. Functions hold no data, and objects that no checkpoint can hold (loggers, writers) only take it.
        """
        rebound = {name for _file, of in self._added.statements for name in of.rebinds}
        graph, known = (unpack(each.python, each.arrays) for each in (begun, run))
        for key, item in graph.roots.items():
            name = key.rpartition("|")[2]
            is_data = graph.nodes[item[0]].kind not in ("opaque", "function", "class") if is_reference(item) else name in rebound
            if key not in known.roots and (is_data or is_array(item)):
                return name
        return ""

    def _judged(self, done: Sequence[Replay], twin: Sequence[Replay]) -> Hindsight:
        """Return the output that is proved of the stretches, in order. `twin`: the last one without the additions."""
        out, err, batches, checkpoints, unknown = bytearray(), bytearray(), 0, 0, list[str]()
        for replay in done:
            stretch = replay.stretch
            since, ahead = stretch.since, [each for each in self._run.entries if each.cursor in stretch.cuts]
            for entry in [each for each in ahead if since is None or each.cursor.key() > since.cursor.key()]:
                if key_of(entry.cursor) not in replay.states:
                    unknown += [str(entry.cursor)] if not replay.status else []
                    continue
                if self._changed(replay, [entry.cursor]):
                    return self._refused(replay, since, entry, out, err)
                checkpoints, since = checkpoints + 1, entry
            missing = self._first_other(replay, None)
            has_died = replay.status and _refusal(replay) is None and missing not in replay.batches
            parted = _parted(replay, twin[0]) if twin and replay is done[-1] and not replay.status else ""
            if (missing is not None and not has_died) or parted:
                return self._refused(replay, since, None, out, err)
            unknown += ["the end"] if parted is None else []
            batches += sum(at in replay.batches for at in self._batches_of(replay))
            self._take(replay, None, out, err)
            if replay.status:
                return Hindsight(bytes(out), bytes(err), replay.status, batches, checkpoints)
        return Hindsight(bytes(out), bytes(err), 0, batches, checkpoints, tuple(unknown))

    def _changed(self, replay: Replay, cuts: Sequence[Cursor]) -> list[Difference] | Address | None:
        """Return the first difference of the training up to those of `cuts` that the replay has reached, or None."""
        for entry in self._run.entries:
            if entry.cursor not in cuts or key_of(entry.cursor) not in replay.states:
                continue
            other = self._first_other(replay, entry.cursor.address)
            if other is not None:
                return other
            found = of_training(compare(read(entry.path), read(replay.states[key_of(entry.cursor)])))
            if found:
                return found
        return None

    def _first_other(self, replay: Replay, upto: Address | None) -> Address | None:
        """Return the first batch of the run, before `upto`, that differs in a replay or is missing there."""
        wanted = (at for at in self._batches_of(replay) if upto is None or at < upto)
        return next((at for at in wanted if replay.batches.get(at) != self._run.batches[at]), None)

    def _path(self, at: Cursor) -> Path:
        return next(entry.path for entry in self._run.entries if entry.cursor == at)

    def _batches_of(self, replay: Replay) -> Iterator[Address]:
        """Yield the batches of the run that belong to a replay's stretch."""
        return (at for at in self._run.batches if starts_at(replay.stretch) <= at and before(replay.stretch, at))

    def _refused(self, replay: Replay, since: Entry | None, entry: Entry | None, out: bytearray, err: bytearray) -> Hindsight:
        """Return the output up to the last checkpoint equal to the run's, and the error that explains the rest."""
        self._take(replay, since.cursor if since is not None else None, out, err, is_cut=True)
        usable = [each for each in self._usable if since is not None and each.cursor.key() <= since.cursor.key()]
        for start in (*usable[-1:], None):  # from the start, if the change does not show from the checkpoint
            stretch = Stretch(start, entry.cursor if entry else None, ())
            found = find_culprit(self._run, self._added, self._replays, stretch)
            if found.what:
                break
        error: DetrainError
        if found.is_without:
            error = Diverged(
                f"without what was added, too, the program does other things than the run ({found.what}): what it loads, or "
                "its environment, has changed since",
                "give it the data, arguments and variables of the environment that it had",
            )
        else:
            what = f"`{found.statement}`" if found.statement else "a statement that was added"
            error = AdditionChanges(
                f"{what} changes the training, first {found.where}: {found.what}",
                "what was said from there on is not of this run; only look at what is there: do not draw, load, write or leave",
            )
        return Hindsight(bytes(out), bytes(err), 0, 0, 0, error=error)

    def _take(self, replay: Replay, upto: Cursor | None, out: bytearray, err: bytearray, *, is_cut: bool = False) -> None:
        """Add a replay's output in the span to `out` and `err`; with `is_cut`, only up to `upto` (if None, nothing)."""
        first, last, stretch = self._span.first, self._span.last, replay.stretch
        start: tuple[int, int] | None = (0, 0)
        if stretch.since is not None:
            start = replay.place(stretch.since.cursor)
        if first is not None and (stretch.since is None or first.key() > stretch.since.cursor.key()):
            start = replay.place(first)
        end: tuple[int, int] | None = (len(replay.out), len(replay.err))
        if last is not None and before_or_at(last, stretch.end):
            end = replay.place(last) or end
        if is_cut:
            end = replay.place(upto) if upto is not None and upto != (stretch.since.cursor if stretch.since else None) else start
        if start is None or end is None:
            return
        out += self._replays.shown(replay, replay.out[start[0] : end[0]])
        err += without_ours(self._replays.shown(replay, replay.err[start[1] : end[1]]))


def _parted(replay: Replay, twin: Replay) -> str | None:
    """Return the names of the values that differ at the end of a replay from those of its twin without the additions;
    None if they cannot be compared.
    """
    found, begun = "", "" if twin.stretch.since is None else key_of(twin.stretch.since.cursor)
    cuts = [key for key in replay.states if key in twin.states and key != begun]
    ends = replay.digests.keys() & twin.digests.keys()
    for key in cuts:
        found = found or ", ".join(each.name for each in of_training(compare(read(twin.states[key]), read(replay.states[key]))))
    for key in ends:
        one, other = twin.digests[key], replay.digests[key]
        found = found or ", ".join(name for name in one if other.get(name, one[name]) != one[name])
    return found if cuts or ends else None


def _refusal(replay: Replay) -> tuple[str, str] | None:
    """Return the error with which detrain ended a replay, as text and advice; None if it did not."""
    return last_printed(replay.err.decode(errors="replace")) if replay.status else None


def before_or_at(cursor: Cursor, end: Cursor | None) -> bool:
    """Return True if a cut is at or before the end of a stretch."""
    return end is None or cursor.key() <= end.key()


def without_ours(text: bytes) -> bytes:
    """Return text of stderr without the lines of detrain."""
    kept, is_ours = [], False
    for line in text.splitlines(keepends=True):
        is_ours = line.startswith(b"detrain: ") or (is_ours and line.startswith(b"  "))
        if not is_ours:
            kept.append(line)
    return b"".join(kept)


def _spread(borders: Sequence[Entry], batches: Sequence[Address], jobs: int, since: Entry | None, end: Entry | None) -> list[Entry]:
    """Return checkpoints that part a span into at most `jobs` stretches of about the same number of batches."""
    low = since.cursor.address if since is not None else (-1, 0, 0)
    inside = [at for at in batches if low <= at and (end is None or at < end.cursor.address)]
    done = {entry: sum(at < entry.cursor.address for at in inside) for entry in borders}
    wanted = [len(inside) * number / jobs for number in range(1, jobs)]
    chosen = {min(borders, key=lambda entry: abs(done[entry] - at)).cursor for at in wanted} if borders else set()
    return [entry for entry in borders if entry.cursor in chosen and 0 < done[entry] < len(inside)]


def _counted(added: Added) -> str:
    count = len(added.statements)
    if not count:
        return "nothing was added since the run"
    lines = ", ".join(f"{file.name}:{each.line}" for file, each in added.statements[:4])
    return f"{count} statement{'s' * (count != 1)} added since the run ({lines}{', …' * (count > 4)})"
