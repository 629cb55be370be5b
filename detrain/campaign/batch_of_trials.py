"""Several trials in one process, and trials that end early.

A trial's result is trusted only if the run was the golden run again behind that trial.

A trial that has come to the golden run's whole state goes on as the golden run does, so it is over. Before the trials
of a step their process does that step once without a fault, and keeps a digest of the whole state behind it; trials
are compared with that digest. A trial's row takes the steps that it left out from the golden run.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid
from detrain.campaign.full_disk import require_room
from detrain.campaign.subject import Subject, errors_of
from detrain.campaign.time_limit import LeftTrials, Watch, limit_of, usual_s
from detrain.campaign.trial_log import HANG, TrialResult, is_as, read_log
from detrain.campaign.twins import Pairs, number_of_trial
from detrain.faults.experiment import Experiment
from detrain.runtime.observers.experiment_run import StepLine
from detrain.runtime.observers.trials_in_process import ALONE, EQUAL

MOST_TRIALS: Final = 1024
_LEAST_PLACES: Final = 32
_START_S: Final = 13.0
_PLACE_S: Final = 45e-6
"""Processor seconds that a process needs to start and to trace its step; and those that each point for faults adds to
each step of a compiled function. Measured with ResNet-18 at a quarter width; they decide about time alone."""
_POLL_S: Final = 0.05
_ENDED: Final = "program"
"""The end of a trial that ends its program, for instance because a loss is NaN. Its process does not go on."""

_SHARE: Final = 0.15
"""The share of trials that end early: a tenth to a third. It decides about time alone."""
_COST: Final = 1.5
"""The time to do a step without a fault and to go back, in steps."""


class Together(msgspec.Struct):
    """Facts about a program's trials that share a process, learned as they run."""

    obstacle: str = ""
    """Why the program's trials cannot share a process; empty if they can."""
    waits: Callable[[], None] = lambda: None
    """Called when a process only waits for trials that take long: another process can begin."""
    alone_at: set[Address] = set()
    """First steps of epochs whose trials cannot share a process: slots and traces that the run's first step makes stay,
    and a generator that shuffles as it begins would not do so again."""
    changing: set[tuple[object, ...]] = set()
    """Points of a compiled step whose instruments alone have changed bits: a trial there has a twin, in which no fault
    is armed."""

    def takes(self, plan: Experiment) -> bool:
        """Return whether a trial can share a process."""
        return not self.obstacle and plan.at not in self.alone_at and (plan.until or plan.count) is not None


def run_together(
    subject: Subject,
    plans: Mapping[int, Experiment],
    golden: TrialResult,
    known: Together | None = None,
    running: Callable[[int | None], None] = lambda _number: None,
    *,
    ends_early: bool = False,
) -> Iterator[tuple[int, TrialResult]]:
    """Run trials, several in a process; yield (number, result) of each as soon as it is known to be sound.

    `ends_early`: trials that come to the golden run's whole state end there; the golden run's steps stand for those
    that they leave out (`EarlyEnds`).

    Trials that are not yielded need a process of their own: those that go to the program's end, those of the first step
    of an epoch that cannot be begun again, and all trials of a program that cannot be set back exactly.
    """
    known = known or Together()
    waiting, pairs = dict(plans), Pairs(golden)
    while waiting := {number: plan for number, plan in waiting.items() if known.takes(plan)}:
        if len(plans) == 1:
            return
        chunk = pairs.with_twins(_chunk(waiting, are_watched=subject.is_watched), known.changing)
        with subject.scratch() as home:
            alone_before = len(known.alone_at)
            process = _TrialProcess(subject, chunk, golden, home, running, known, ends_early=ends_early and not subject.has_guard)
            for number, done in process.run():
                yield from pairs.take(number, done, chunk[number])
        if not (process.sound or process.alone or process.changing or len(known.alone_at) > alone_before):
            process.alone.add(next(iter(chunk)))  # else the same chunk would come to nothing again
        known.changing |= {each.place for number in process.changing if (each := chunk[number].injection) is not None}
        for number in (*process.sound, *(number_of_trial(number) for number in process.alone)):
            waiting.pop(number, None)
        if known.obstacle:
            messages.say(f"each further trial runs in a process of its own: {known.obstacle}")


def in_order(plans: Mapping[int, Experiment], *, are_watched: bool) -> list[int]:
    """Return the numbers of trials in the order in which processes take them: by place, then by cursor.

    In a compiled step, as many places share a process as take the least time. If ops are watched as they run, places
    cost other steps nothing, and trials of one step come together, as they share the moment kept in memory.
    """
    where = {number: () if are_watched else _place(plan) for number, plan in plans.items()}
    places = sorted(set(where.values()) - {()}, key=_beside)
    most = _most_places(len(places), plans)
    group = {place: index // most for index, place in enumerate(places)}
    return sorted(plans, key=lambda number: (group.get(where[number], 0), plans[number].at, number))


def _most_places(count: int, plans: Mapping[int, Experiment]) -> int:
    """Return how many of `count` points go into one process: more points mean fewer starts, but slower steps."""
    steps = sum(plan.count or 1 for plan in plans.values())
    return max(_LEAST_PLACES, round(math.sqrt(count * _START_S / (steps * _PLACE_S)))) if steps else _LEAST_PLACES


def _place(plan: Experiment) -> tuple[object, ...]:
    """Return the point of a compiled step where a trial puts its fault; an empty tuple for an op outside of one."""
    assert plan.injection is not None
    return plan.injection.place if plan.injection.signature else ()


def _beside(place: tuple[object, ...]) -> tuple[list[int], str]:
    """Return the sort key of a place: places of one compiled function come together, and share a copy of it."""
    address = str(place[0]).rpartition("@")[2] if "@" in str(place[0]) else ""
    return list(map(int, re.findall(r"\d+", address))), repr(place)


def _chunk(waiting: Mapping[int, Experiment], *, are_watched: bool) -> dict[int, Experiment]:
    """Return the first trials that one process takes, in the order of their cursors."""
    places: set[object] = set()
    most = _most_places(len({_place(plan) for plan in waiting.values()}), waiting)
    chunk: dict[int, Experiment] = {}
    for number in in_order(waiting, are_watched=are_watched):
        places.add(() if are_watched else _place(waiting[number]))
        if len(places - {()}) > most or len(chunk) == MOST_TRIALS:
            break
        chunk[number] = waiting[number]
    return dict(sorted(chunk.items(), key=lambda pair: (pair[1].at, pair[0])))


@dataclass
class _TrialProcess:
    """One process with several trials, and behind the last of them steps without a fault.

    A trial is sound if all variables were the golden run's where it began, and the steps before it and behind it are
    the golden run's, also those of the epoch that it ran into: only they show the order of that epoch's data. No steps
    follow a trial that ended the program, or from which the process could not go back; then the trials so far are
    judged by the state in which they began.
    """

    subject: Subject
    plans: Mapping[int, Experiment]
    golden: TrialResult
    home: Path
    running: Callable[[int | None], None]
    """Called with the number of a trial whose fault is armed, and with None when it is over; not for quick trials."""
    together: Together
    """Takes the obstacle that this process finds."""
    ends_early: bool = False
    sound: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    """Trials that ended the process: by a crash, a hang, or a fault that was not done."""
    changing: set[int] = field(default_factory=set)
    """Trials that need a twin."""
    _left: LeftTrials = field(init=False)
    _pending: dict[int, TrialResult] = field(default_factory=dict)
    _known: Mapping[Address, StepLine] = field(default_factory=dict)
    _has_ended: bool = False
    _pace: float | None = None
    """The time that the steps of the trial before took, in multiples of the golden run's time."""
    _queue: list[tuple[int | None, Experiment]] = field(default_factory=list)
    """The trials of the process, in order; steps without a fault have no number."""

    def run(self) -> Iterator[tuple[int, TrialResult]]:
        """Run the process; yield the trials that prove sound, with their results."""
        self._known, self._left = self.golden.by_cursor(), LeftTrials(self.golden)
        self.subject.link_golden((*next(iter(self.plans.values())).at[:2], 0), self.home)
        self._queue = self._queued()
        numbers = [number for number, _plan in self._queue]
        logs = [self.home / f"log-{index}" for index in range(len(numbers))]
        experiments = [msgspec.structs.replace(plan, log=str(log)) for (_, plan), log in zip(self._queue, logs, strict=True)]
        index, ended_at = 0, time.time()
        is_told = has_hung = False
        with self.subject.process(experiments, self.home) as process:
            watch = self._watch(logs[index], experiments[index], self._pace)
            while index < len(logs):
                yield from self._take_left()
                is_late = watch.is_late()
                is_done = watch.is_over and index + 1 == len(logs)  # the process may still wait for copies
                is_over = is_done or process.poll() is not None
                if watch.is_armed and not is_told:
                    self.running(numbers[index])
                    is_told = True
                if not is_over and not (index + 1 < len(logs) and logs[index + 1].exists()):
                    is_left = self._left.ask(logs, index, experiments[index], watch, self._pace or 1.0, is_late=is_late)
                    if is_late and not is_left:
                        has_hung = watch.is_armed and self._pace is not None
                        process.kill()
                        process.wait()
                    time.sleep(_POLL_S)
                    continue
                if is_told:
                    self.running(None)
                    is_told = False
                before, ended_at = ended_at, _written_at(logs[index], ended_at)
                done = msgspec.structs.replace(read_log(logs[index]), seconds=round(ended_at - before, 4))
                if done.end == _ENDED and (process.poll() or done.ended):  # the log does not have the process's status
                    done = msgspec.structs.replace(done, end="")
                if has_hung:
                    yield from self._hung(index, done, experiments[index])
                    break
                if is_over or done.is_over:
                    self._pace = self._pace_of(watch, experiments[index]) or self._pace
                    yield from self._take(index, done, experiments[index])
                else:
                    yield from self._leave(index, done, experiments[index], watch)
                if self.together.obstacle or self._has_ended:
                    break
                index += 1
                if index < len(logs):
                    watch = self._watch(logs[index], experiments[index], self._pace)
            if self._left:
                self.together.waits()
            while self._left and process.poll() is None and not self.together.obstacle:
                yield from self._take_left()
                time.sleep(_POLL_S)
            if status := process.poll():
                require_room(self.home, status, errors_of(self.home))
                ended = experiments[min(index, len(logs) - 1)].injection
                if status == FaultInvalid.exit_code and ended is not None:  # its other trials there would end processes, too
                    sites = {number: plan.injection.site for number, plan in self.plans.items() if plan.injection is not None}
                    self.alone.update(number for number, site in sites.items() if site == ended.site)
            process.kill()
            process.wait()

    def _watch(self, log: Path, plan: Experiment, pace: float | None) -> Watch:
        return Watch(log, limit_of(plan, self.golden, self.subject.limit_s, pace or 1.0))

    def _pace_of(self, watch: Watch, plan: Experiment) -> float | None:
        """Return the time of a trial's steps in multiples of the golden run's; None if not armed, or without steps."""
        usual = usual_s(plan, self.golden)
        return (time.monotonic() - watch.armed_at) / usual if watch.armed_at is not None and usual > 0 else None

    def _leave(self, index: int, done: TrialResult, plan: Experiment, watch: Watch) -> Iterator[tuple[int, TrialResult]]:
        """Handle a trial that is not over and that its process has left behind: yield the sound trials before it."""
        number = self._queue[index][0]
        assert number is not None
        if self._is_as_golden(done, plan):
            yield from self._confirm(done, plan)
            is_sound = plan.at[2] > 0 and self._first_away() is None
            self._left.add(number, plan, watch, done.process, is_sound=is_sound)
            yield from self._confirm_ended()
            self._pending.clear()

    def _take_left(self) -> Iterator[tuple[int, TrialResult]]:
        """Yield the trials that were left and are over; those with an unknown result are to run alone."""
        limit = lambda plan: limit_of(plan, self.golden, self.subject.limit_s, self._pace or 1.0)  # noqa: E731
        for number, done in self._left.over(limit, is_paced=self._pace is not None):
            if done is None:
                self.alone.add(number)
            else:
                self._pending[number] = done
                yield from self._sound([number])

    def _hung(self, index: int, done: TrialResult, plan: Experiment) -> Iterator[tuple[int, TrialResult]]:
        """Handle a trial that took too long, where the trial before showed the machine's pace: yield it if it began in
        the golden run's state.
        """
        number = self._queue[index][0]
        assert number is not None
        self._has_ended = True
        if self._is_as_golden(done, plan):
            yield from self._confirm(done, plan)
            self.sound.add(number)
            yield number, msgspec.structs.replace(done, status=HANG, end="")

    def _is_as_golden(self, done: TrialResult, plan: Experiment) -> bool:
        """Return whether the run was the golden run again before a trial; if not, no further trials share a process."""
        if self._is_golden(done, plan):
            return True
        self.together.obstacle = "the run is not the golden run again behind a trial, or with the sites in place"
        return False

    @cached_property
    def _early(self) -> EarlyEnds:
        return EarlyEnds(self.golden)

    def _queued(self) -> list[tuple[int | None, Experiment]]:
        """Return the queue: a step without a fault may come before the trials of a cursor, and such steps end it."""
        found: list[tuple[int | None, Experiment]] = []
        for at, group in itertools.groupby(self.plans.items(), key=lambda pair: pair[1].at):
            trials = list(group)
            if self.ends_early and self._early.pay([plan for _, plan in trials]):
                found.append((None, Experiment(log="", at=at, count=1)))
            found += trials
        return [*found, (None, self._closing())]

    def _closing(self) -> Experiment:
        """Return the steps without a fault behind the last trial: into the last epoch that one of them runs into."""
        last = list(self.plans.values())[-1]
        steps = sorted(cursor for cursor in self._known if cursor[2] >= 0)
        ends = [self._end_of(plan, steps) for plan in self.plans.values()]
        reach = max((end for end in ends if end is not None), default=last.at)
        if reach[:2] == last.at[:2]:
            return Experiment(log="", at=last.at, count=1)
        return Experiment(log="", at=last.at, until=(*reach[:2], 0))

    @staticmethod
    def _end_of(plan: Experiment, steps: list[Address]) -> Address | None:
        """Return the last step of a trial; None if the program ends before it."""
        behind = steps[bisect.bisect_left(steps, plan.at) :]
        if plan.count is not None:
            behind = [cursor for cursor in behind[: plan.count] if cursor[0] == plan.at[0] or not plan.ends_with_loop]
            return behind[-1] if len(behind) == plan.count or (behind and plan.ends_with_loop) else None
        return plan.until if plan.until in behind else None

    def _take(self, index: int, done: TrialResult, plan: Experiment) -> Iterator[tuple[int, TrialResult]]:
        """Read the log of a trial; yield the trials that it proves sound."""
        number = self._queue[index][0]
        is_last = index == len(self._queue) - 1
        if not self._is_as_golden(done, plan):
            return
        yield from self._confirm(done, plan)
        if done.obstacle or done.left:
            self._has_ended = True
            self.together.obstacle = done.obstacle
            before = self._queue[index - 1][1]
            if not before.at[2] and not done.obstacle:
                self.together.alone_at.add(before.at)
            if done.left:
                yield from self._confirm_ended()
            return
        is_whole = done.crash != "" or (done.end != "" and not done.end.startswith("crash"))
        if not is_whole or (number is None and done.end != "until"):
            self._has_ended = not done.ended
            if number is not None:
                self.alone.add(number)
                if done.ended:  # another copy does the trials behind it
                    yield from self._confirm_ended()
                    self._pending.clear()
            elif not self._pending or not is_last:
                self.together.obstacle = "a process ended before its last step without a fault"
            return
        if done.end == ALONE and number is not None:
            self.changing.add(number)
        elif number is not None:
            self._pending[number] = done
        if done.end == _ENDED:
            self._has_ended = True
            yield from self._confirm_ended()

    def _confirm(self, done: TrialResult, plan: Experiment) -> Iterator[tuple[int, TrialResult]]:
        """Yield the pending trials that this log proves sound: its fault-free steps reach the epoch of their end."""
        clean = [step.address for step in done.steps if step.batch >= 0]
        clean = [cursor for cursor in clean if plan.injection is None or cursor < plan.at]
        if clean:
            yield from self._sound([number for number, each in self._pending.items() if max(clean) >= _reached(each)])

    def _confirm_ended(self) -> Iterator[tuple[int, TrialResult]]:
        """The process has ended: yield the trials that began in a known state, up to the first that ran into another
        epoch: it may have left changes there.
        """
        first = self._first_away()
        chosen = []
        for number in self._pending:
            if self.plans[number].at[2] > 0:
                chosen.append(number)
            if number == first:
                break
        yield from self._sound(chosen)

    def _first_away(self) -> int | None:
        """Return the first pending trial that has run over the end of its epoch."""
        return next((n for n, each in self._pending.items() if _reached(each)[:2] != self.plans[n].at[:2]), None)

    def _sound(self, numbers: list[int]) -> Iterator[tuple[int, TrialResult]]:
        self.sound.update(numbers)
        for number in numbers:
            done = self._pending.pop(number)
            yield number, self._early.run_on(done, self.plans[number]) if done.end == EQUAL else done

    def _is_golden(self, done: TrialResult, plan: Experiment) -> bool:
        """Return whether a log's fault-free steps, and the state in which it begins, are the golden run's.

        Before an epoch's first batch other things than steps may have changed variables.
        """
        before = self._known.get((*plan.at[:2], plan.at[2] - 1)) if plan.at[2] else None
        if done.start and plan.at[2] and (before is None or done.start != before.state):
            return False
        steps = [step for step in done.steps if step.batch >= 0 and (plan.injection is None or step.address < plan.at)]
        return all((known := self._known.get(step.address)) is not None and is_as(known, step) for step in steps)


def left_running(home: Path) -> Experiment | None:
    """Return the trial during which a worker and its process died: its fault was armed, and its log has no end."""
    logs = sorted(home.glob("log-*"), key=lambda log: int(log.name.rpartition("-")[2]))
    if not logs or not _is_armed(logs[-1]) or b'"end":' in logs[-1].read_bytes():
        return None
    plans = msgspec.json.decode((home / "experiment.json").read_bytes(), type=list[Experiment])
    return msgspec.structs.replace(plans[len(logs) - 1], log="")


def _is_armed(log: Path) -> bool:
    return log.is_file() and b'"is_armed":true' in log.read_bytes()


def _written_at(log: Path, otherwise: float) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return otherwise


def _reached(done: TrialResult) -> Address:
    """Return the first cursor of the last epoch that a trial has run into."""
    last = max((step.address for step in done.steps if step.batch >= 0), default=(0, 0, 0))
    return (*last[:2], 0)


class EarlyEnds(msgspec.Struct, dict=True):
    """Completes trials that have come to the golden run's state, with the steps of the golden run."""

    golden: TrialResult

    @cached_property
    def known(self) -> dict[Address, StepLine]:
        """The golden run's lines by their cursors."""
        return self.golden.by_cursor()

    @cached_property
    def _steps(self) -> list[Address]:
        return sorted(cursor for cursor in self.known if cursor[2] >= 0)

    def pay(self, trials: Sequence[Experiment]) -> bool:
        """Return whether trials of one step end early often enough to pay for a step without a fault before them.

        False if a trial's further course is unknown: it goes to the program's end, or over a step whose loss is NaN or
        infinite. A process cannot go back to a step that leaves traces or new objects behind: the first of all, and the
        last of an epoch, whose batch may be the first short one.
        """
        phase, epoch, batch = trials[0].at
        is_between = (epoch, batch) != (0, 0) and (phase, epoch, batch + 1) in self.known
        windows = [self.window(plan) for plan in trials] if is_between else [None]
        saved = sum(sum(cursor[2] >= 0 for cursor in window) - 1 for window in windows if window is not None)
        return None not in windows and saved * _SHARE > _COST

    def window(self, plan: Experiment) -> list[Address] | None:
        """Return the cursors of the log lines that a trial has from its fault on; None if they are unknown.

        They are the steps, and the lines behind the steps of each epoch that the trial completes.
        """
        if plan.count is None or plan.steps != 1 or not plan.ends_with_loop or not plan.has_digests:
            return None
        first = bisect.bisect_left(self._steps, plan.at)
        steps = [cursor for cursor in self._steps[first : first + plan.count] if cursor[0] == plan.at[0]]
        if not steps or steps[0] != plan.at:
            return None
        epochs = range(plan.at[1], steps[-1][1] + (len(steps) < plan.count))
        lines = [*steps, *(cursor for epoch in epochs if (cursor := (plan.at[0], epoch, -1)) in self.known)]
        is_finite = all(math.isfinite(float(value)) for cursor in lines for value in self.known[cursor].series.values())
        return lines if is_finite else None

    def run_on(self, done: TrialResult, plan: Experiment) -> TrialResult:
        """Return a trial that ended early, with the steps and the end that it would have had."""
        window, mine = self.window(plan), done.by_cursor()
        assert window is not None
        last, steps = max(mine), sum(cursor[2] >= 0 for cursor in window)
        return msgspec.structs.replace(
            done,
            steps=(*done.steps, *(self.known[cursor] for cursor in window if cursor not in mine)),
            end="until" if steps == plan.count else "loop",
            said=(*done.said, *(each for each in self.golden.said if each.place > (*last, True))),
            early_after=sum(cursor >= plan.at for cursor in mine),
        )
