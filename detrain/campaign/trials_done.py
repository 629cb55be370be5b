"""Trials that are done, many in one process where that is exact, and those whose fault did not fire drawn again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from detrain.base.errors import FaultNotFired
from detrain.campaign.batch_of_trials import Together, run_together
from detrain.campaign.subject import Subject
from detrain.campaign.trial import Trial, run_trial
from detrain.campaign.trial_log import TrialResult
from detrain.faults.experiment import Experiment
from detrain.faults.population.facts import CampaignPlan, Facts

Running = Callable[[int | None], None]
"""Is told which trial runs, as far as that is known; None: it is over."""


def do_trials(
    subject: Subject,
    plan: CampaignPlan,
    numbers: Iterable[int],
    golden: TrialResult,
    *,
    in_one: bool = True,
    with_loop: bool = False,
    ends_early: bool = False,
    running: Running = lambda _number: None,
    waits: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Facts, Trial | str]]:
    """Do trials, many in one process or each in one of its own; yields each once, or why its fault did not fire.

    `waits` is told where all that is left to do is to wait for trials that take long. `with_loop`: trials end with
    their training loop, as `to_loop` says; `ends_early`: see `run_together`. Raises FaultInvalid.
    """
    shared = Together("" if in_one else "each is to have a process of its own", waits)
    left, redrawn = {number: plan.trial(number) for number in numbers}, {}
    for is_again in (False, True):
        experiments = {number: _beside(golden, to_loop(drawn) if with_loop else drawn) for number, (_, drawn) in left.items()}
        for number, done in _done(subject, experiments, golden, shared, running, ends_early=ends_early):
            facts, first = left[number]
            again = plan.again(number, first) if isinstance(done, str) and not is_again else None
            if again is None:
                yield facts, done
            else:
                redrawn[number] = again
        left = redrawn


def _beside(golden: TrialResult, plan: Experiment) -> Experiment:
    """Return a trial whose modules' outputs are clipped to the golden run's ranges, if that has noted them."""
    return msgspec.structs.replace(plan, ranges=dict(golden.ranges)) if golden.ranges else plan


def to_loop(plan: Experiment) -> Experiment:
    """Return a trial that ends with its training loop, if it has a horizon and the loop ends before."""
    return msgspec.structs.replace(plan, ends_with_loop=plan.count is not None)


def _done(
    subject: Subject,
    plans: Mapping[int, Experiment],
    golden: TrialResult,
    shared: Together,
    running: Running,
    *,
    ends_early: bool,
) -> Iterator[tuple[int, Trial | str]]:
    alone = dict(plans)
    for number, found in run_together(subject, plans, golden, shared, running, ends_early=ends_early):
        del alone[number]
        yield number, found.end if found.is_unfired else Trial(plans[number], golden, found)
    for number, plan in alone.items():
        running(number)
        try:
            done: Trial | str = run_trial(subject, plan)
        except FaultNotFired as error:
            done = error.what
        running(None)
        yield number, done
