"""Several trials in one process.

What of it can be trusted: only that behind which the run was the golden run again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from detrain.base import messages
from detrain.campaign.subject import Subject
from detrain.campaign.trial_log import TrialResult, is_as, read_log
from detrain.faults.experiment import Experiment

_MOST_TRIALS: Final = 256
_MOST_PLACES: Final = 32
"""Points of the step at which faults are put in one process: each costs a little where none is armed."""
_POLL_S: Final = 0.05
_ENDED: Final = "program"
"""How a trial ends that makes its program end: where a loss that is no number does, say. Its process does not go on."""


def run_together(subject: Subject, plans: Mapping[int, Experiment], golden: TrialResult) -> Iterator[tuple[int, TrialResult]]:
    """Run trials, several in a process; yields (number, what came of it) as they are known to be sound.

    What is not yielded is to be run in a process of its own: trials that go beyond their epoch (it cannot be entered
    again) or start with its first batch (the step is traced then), and all of a program that cannot be set back
    exactly.
    """
    waiting = {number: plan for number, plan in plans.items() if _fits(plan, golden)}
    while len(waiting) > 1:
        chunk = _chunk(waiting)
        with subject.scratch() as home:
            process = _Process(subject, chunk, golden, home)
            yield from process.run()
        for number in (*process.sound, *process.alone):
            waiting.pop(number, None)
        if process.obstacle:
            messages.say(f"each further trial runs in a process of its own: {process.obstacle}")
            return


def _fits(plan: Experiment, golden: TrialResult) -> bool:
    """Return whether a trial begins behind the first batch of an epoch, and ends in it."""
    phase, epoch, batch = plan.at
    batches = sum(key[:2] == (phase, epoch) and key[2] >= 0 for key in golden.by_cursor())
    last = plan.until[2] if plan.until is not None and plan.until[:2] == (phase, epoch) else None
    if plan.until is None and plan.count is not None:
        last = batch + plan.count - 1
    return plan.steps == 1 and batch > 0 and last is not None and last < batches


def _chunk(waiting: Mapping[int, Experiment]) -> dict[int, Experiment]:
    """Return the first trials, in the order of their cursors, that one process takes."""
    places: set[object] = set()
    chunk: dict[int, Experiment] = {}
    for number, plan in sorted(waiting.items(), key=lambda pair: (pair[1].at, pair[0])):
        assert plan.injection is not None
        places.add(plan.injection.place)
        if len(places) > _MOST_PLACES or len(chunk) == _MOST_TRIALS:
            break
        chunk[number] = plan
    return chunk


@dataclass
class _Process:
    """One process with several trials, and behind the last of them one step without a fault.

    A trial is sound if all variables were the golden run's where it began, and the steps before it and behind it are
    the golden run's. Behind one with which the program ended there are none: the process was one, and what it began
    with is known.
    """

    subject: Subject
    plans: Mapping[int, Experiment]
    golden: TrialResult
    home: Path
    sound: set[int] = field(default_factory=set)
    alone: set[int] = field(default_factory=set)
    """Trials with which the process has ended: a crash, a hang, or a fault that was not done."""
    obstacle: str = ""
    """Why no trials of this program can be done in one process."""

    def run(self) -> Iterator[tuple[int, TrialResult]]:
        """Run it; yields what is sound."""
        self.subject.link_golden((next(iter(self.plans.values())).at[0], next(iter(self.plans.values())).at[1], 0), self.home)
        last = list(self.plans.values())[-1]
        closing = Experiment(log="", at=last.at, count=1)
        logs = [self.home / f"log-{index}" for index in range(len(self.plans) + 1)]
        experiments = [
            msgspec.structs.replace(plan, log=str(log)) for plan, log in zip((*self.plans.values(), closing), logs, strict=True)
        ]
        numbers = [*self.plans, None]
        pending: dict[int, TrialResult] = {}
        index, changed = 0, time.monotonic()
        with self.subject.process(experiments, self.home) as process:
            while index < len(logs):
                is_over = process.poll() is not None
                if not is_over and not (index + 1 < len(logs) and logs[index + 1].exists()):
                    if time.monotonic() - changed > self.subject.limit_s:
                        process.kill()
                    time.sleep(_POLL_S)
                    continue
                done, number = read_log(logs[index]), numbers[index]
                if not self._is_golden(done, experiments[index]):
                    self.obstacle = "the run is not the golden run again behind a trial, or with the sites in place"
                    break
                has_ended = done.end == _ENDED
                is_whole = done.end != "" and not done.obstacle and not done.end.startswith("crash")
                if number is not None and is_whole and has_ended:
                    pending[number] = done
                if has_ended or (done.steps and (number is None or min(map(_cursor, done.steps)) < experiments[index].at)):
                    self.sound.update(pending)
                    yield from pending.items()
                    pending = {}
                if number is not None and is_whole and not has_ended:
                    pending[number] = done
                if not is_whole or has_ended:
                    if number is None or done.obstacle:
                        self.obstacle = done.obstacle or "a process ended before its last step without a fault"
                    elif not has_ended:
                        self.alone.add(number)
                    break
                index, changed = index + 1, time.monotonic()
            process.kill()
            process.wait()

    def _is_golden(self, done: TrialResult, plan: Experiment) -> bool:
        """Return whether the steps without a fault are the golden run's, and the state where it begins is, too."""
        known = self.golden.by_cursor()
        before = known.get((*plan.at[:2], plan.at[2] - 1))
        if done.start and (before is None or done.start != before.state):
            return False
        steps = [step for step in done.steps if step.batch >= 0 and (plan.injection is None or _cursor(step) < plan.at)]
        return all(_cursor(step) in known and is_as(known[_cursor(step)], step) for step in steps)


def _cursor(step: object) -> tuple[int, int, int]:
    return step.phase, step.epoch, step.batch  # type: ignore[attr-defined]
