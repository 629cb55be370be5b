"""Trials that are done, many in one process where that is exact, and those whose fault did not fire drawn again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from detrain.base.errors import FaultNotFired
from detrain.campaign.batch_of_trials import Together, run_together
from detrain.campaign.subject import Subject
from detrain.campaign.trial import run_trial
from detrain.campaign.trial_log import TrialResult
from detrain.faults.experiment import Experiment

T = TypeVar("T")


@dataclass(frozen=True)
class Done(Generic[T]):
    """One trial that has been done, or whose fault did not fire."""

    number: int
    what: T
    """What its plan says of it beside the experiment."""
    experiment: Experiment
    golden: TrialResult
    """The run it is compared with."""
    found: TrialResult | None
    """None: the fault did not fire."""
    is_unarmed_equal: bool = True
    unfired: str = ""
    """Why it did not."""


def do_trials(
    subject: Subject,
    drawn: Mapping[int, tuple[T, Experiment]],
    golden: TrialResult,
    again: Callable[[int, Experiment], tuple[T, Experiment] | None],
    *,
    in_one: bool = True,
    known: Together | None = None,
    running: Callable[[int | None], None] = lambda _number: None,
    ends_early: bool = False,
) -> Iterator[Done[T]]:
    """Do trials, many in one process or each in one of its own; yields each once.

    `again` draws one whose fault did not fire once more, if that can be; `running` is told which trial runs, as far as
    that is known; `ends_early`: see `run_together`. Raises FaultInvalid.
    """
    left = dict(drawn)
    unfired: dict[int, str] = {}
    redrawn: dict[int, tuple[T, Experiment]] = {}
    known = Together() if known is None else known
    for of_round in (drawn, redrawn) if in_one else ():
        plans = {number: plan for number, (_, plan) in of_round.items()}
        for number, found in run_together(subject, plans, golden, known, running, ends_early=ends_early):
            what, plan = of_round[number]
            if not found.is_unfired:
                del left[number]
                yield Done(number, what, plan, golden, found)
                continue
            unfired[number] = found.end
            other = again(number, plan) if of_round is drawn else None
            if other is not None:
                redrawn[number] = other
            else:
                del left[number]
                yield Done(number, what, plan, golden, None, unfired=found.end)
    for number, first in left.items():
        running(number)
        done = _alone(subject, number, first, golden, again, unfired.get(number, ""))
        running(None)
        yield done


def _alone(
    subject: Subject,
    number: int,
    first: tuple[T, Experiment],
    golden: TrialResult,
    again: Callable[[int, Experiment], tuple[T, Experiment] | None],
    why: str,
) -> Done[T]:
    """Do a trial in a process of its own; `why`: it has been tried, and did not fire."""
    for way in _ways(number, first, again, is_tried=bool(why)):
        try:
            trial = run_trial(subject, "", None, way[1])
        except FaultNotFired as error:
            why = error.what
        else:
            return Done(number, *way, trial.golden, trial.done, trial.is_unarmed_equal)
    return Done(number, *first, golden, None, unfired=why)


def _ways(
    number: int,
    first: tuple[T, Experiment],
    again: Callable[[int, Experiment], tuple[T, Experiment] | None],
    *,
    is_tried: bool,
) -> Iterator[tuple[T, Experiment]]:
    if not is_tried:
        yield first
    other = again(number, first[1])
    if other is not None:
        yield other
