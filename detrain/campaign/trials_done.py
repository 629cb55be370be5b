"""Doing trials: many in one process where that is exact, drawing faults anew that did not fire; and the records of
trials in a folder, where records that exist are not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from detrain.base import messages
from detrain.base.errors import FaultInvalid, FaultNotFired
from detrain.campaign.batch_of_trials import Together, run_together
from detrain.campaign.subject import Subject
from detrain.campaign.trial import Trial, run_trial
from detrain.campaign.trial_log import TrialResult, same_from
from detrain.campaign.trial_record import check_same, record_of
from detrain.faults.experiment import Experiment
from detrain.faults.outcome_classes import Thresholds
from detrain.faults.population.facts import CampaignPlan, Facts
from detrain.faults.record import FaultRecord, is_as_written, read_record, write_record

Running = Callable[[int | None], None]
"""Called with the number of the trial that runs, as far as it is known, and with None when it is over."""


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
    """Do trials, many in one process or each in its own; yield each trial once, or the reason why its fault failed.

    `waits` is called when nothing is left to do but to wait for trials that take long. `with_loop`: trials end with
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
    """Return a trial whose modules' outputs are clipped to the golden run's ranges, if the golden run has noted any."""
    return msgspec.structs.replace(plan, ranges=dict(golden.ranges)) if golden.ranges else plan


def to_loop(plan: Experiment) -> Experiment:
    """Return a trial that ends with its training loop if the loop ends before the trial's horizon."""
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
        yield number, found.end if found.is_unfired else _beside_twin(plans[number], golden, found)
    for number, plan in alone.items():
        running(number)
        try:
            done: Trial | str = run_trial(subject, plan)
        except FaultNotFired as error:
            done = error.what
        running(None)
        yield number, done


def _beside_twin(plan: Experiment, golden: TrialResult, done: TrialResult) -> Trial:
    """Return a trial beside the golden run, or beside its twin where the site alone changes bits."""
    twin, done = done.twin, msgspec.structs.replace(done, twin=None)
    if twin is None or same_from(golden, twin, plan.at):
        return Trial(plan, golden, done)
    return Trial(plan, twin, done, is_unarmed_equal=False)


class TrialFolder(msgspec.Struct, frozen=True):
    """Records of the trials that a plan draws with a seed."""

    folder: Path
    subject: Subject
    plan: CampaignPlan
    seed: int
    thresholds: Thresholds

    def path(self, number: int) -> Path:
        """Return the file of a trial's record."""
        return self.folder / f"trial-{number:06d}.json"

    def known(self, number: int) -> FaultRecord | None:
        """Return the record of a trial that has been run already; None if there is none.

        Raises FaultInvalid if the record is of another campaign; AnotherProgram or EnvironmentChanged if it is of
        another program or machine.
        """
        path = self.path(number)
        if not path.is_file():
            return None
        record, first = read_record(path), self.plan.trial(number)[1]
        if not is_as_written(path):
            raise FaultInvalid(f"{str(path)!r} was altered since it was written", "delete it to have it made again")
        check_same(record, self.subject, allow_environment=False)
        is_of_step = record.experiment.at == first.at
        found = msgspec.structs.replace(record.experiment, is_inference=False)  # plans do not say whether it is
        again = self.plan.again(number, first) if is_of_step and found != first else None
        is_as_run = record.experiment.is_inference == self.subject.is_inference
        if not is_as_run or found not in (first, again and again[1]):
            raise FaultInvalid(f"{str(path)!r} is of another campaign: its fault is another", "give another folder with --out")
        if record.thresholds != self.thresholds:
            raise FaultInvalid(f"{str(path)!r} was classified by other thresholds", "give the same --threshold, or another --out")
        return record

    def run(self, numbers: Iterable[int], golden: TrialResult, *, in_one: bool) -> Iterator[tuple[int, FaultRecord]]:
        """Run trials, many in one process or each in its own; yield their records once they are in the folder.

        A fault that did not fire is no outcome and has no record; a warning names it. Raises FaultInvalid.
        """
        for facts, trial in do_trials(self.subject, self.plan, numbers, golden, in_one=in_one):
            if isinstance(trial, str):
                messages.warn(f"trial {facts.number}: {trial}")
                continue
            record = record_of(self.subject, trial, facts.model, self.seed, self.thresholds)
            write_record(self.path(facts.number), record)
            yield facts.number, record
