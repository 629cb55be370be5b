"""One trial: a fault in a program's training step, beside the golden run that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from detrain.base import messages
from detrain.base.cursor import written
from detrain.base.errors import FaultInvalid, FaultNotFired, SiteUnknown, last_printed
from detrain.campaign.requested_fault import Wanted
from detrain.campaign.subject import Subject
from detrain.campaign.time_limit import limit_of
from detrain.campaign.trial_log import HANG, TrialResult, same_before, same_from
from detrain.faults.experiment import Experiment, Injection

LEAST_WITH_GUARD: Final = 3
"""Steps that a trial runs on at least, though its loss is not finite, so that the guard can see it."""


@dataclass(frozen=True)
class Trial:
    """One fault that has been done, and the golden run it is compared with."""

    experiment: Experiment
    golden: TrialResult
    done: TrialResult
    is_unarmed_equal: bool = True
    """Whether the run with the site in place, before the fault, was bit for bit the run without it."""

    @property
    def injection(self) -> Injection:
        """What was put in."""
        assert self.experiment.injection is not None
        return self.experiment.injection


def try_fault(subject: Subject, wanted: Wanted, experiment: Experiment) -> Trial:
    """Run a fault among the sites of the first step; of the step that is hit, where that is another one.

    It may be of another phase, run other functions, or have a smaller batch: then the fault is not found, or not done.
    `experiment` says when, and for how long; what is put in is `wanted` at one of the sites. Raises SiteUnknown,
    FaultNotFired, FaultInvalid.
    """
    listed = None
    try:
        if not experiment.at[0]:
            listed = wanted.among(subject.sites())
    except SiteUnknown as error:
        messages.say(f"the first step has no such site: {error.what}")
    if listed is not None:
        try:
            return run_trial(subject, msgspec.structs.replace(experiment, injection=listed))
        except FaultNotFired as error:
            reason = error
    found = wanted.among(subject.sites(experiment.at))
    if found == listed:
        raise reason
    return run_trial(subject, msgspec.structs.replace(experiment, injection=found))


def run_trial(subject: Subject, experiment: Experiment) -> Trial:
    """Run one fault, in a process of its own, beside its golden run. Raises FaultNotFired, FaultInvalid."""
    golden = subject.golden(experiment)
    _require_steps(golden, experiment)
    # No step before the fault could tell whether the site changes bits.
    # First, as the files that are left shall be the trial's.
    in_place = subject.unarmed(experiment) if experiment.at[2] == 0 else None
    subject.say("the run with the fault")
    done = with_time(subject, experiment, golden)
    is_equal = same_before(golden, done, experiment.at)
    if done.is_unarmed_equal is not None and is_equal is not False:
        is_equal = done.is_unarmed_equal or None  # what the framework has seen in the step itself
    if not is_equal:  # the site in place has changed bits (a fusion that is not made), or no step could tell
        in_place = in_place or subject.unarmed(experiment)
        is_equal = is_equal is None and same_from(golden, in_place, experiment.at)
        golden = golden if is_equal else in_place
    if last_printed(done.error) is not None or (done.fired is None and (done.is_whole or not done.is_armed)):
        raise_unfired(done)  # else the faulty step has ended the process: an outcome
    return Trial(experiment, golden, done, is_equal)


def with_time(subject: Subject, experiment: Experiment, golden: TrialResult) -> TrialResult:
    """Run a trial. One that has taken too long gets a longer limit if the machine is slower now than it was."""
    done = subject.trial(experiment)
    if done.status != HANG or subject.limit_s is not None or not done.is_armed:
        return done
    limit = limit_of(experiment, subject.unarmed(experiment), None)
    return subject.trial(experiment, limit=limit) if limit.is_longer(limit_of(experiment, golden, None)) else done


def _require_steps(golden: TrialResult, experiment: Experiment) -> None:
    """Raise FaultInvalid unless a run goes on for as long as its fault shall; a trial of a campaign may end before."""
    if experiment.ends_with_loop:
        return
    phase, until = experiment.at[0], experiment.until
    steps = [at for at in golden.by_cursor() if at[2] >= 0 and at[0] == phase and at >= experiment.at]
    count = len([at for at in steps if until is None or at <= until][: experiment.count])
    if 0 < count < experiment.steps:
        raise FaultInvalid(
            f"a fault in {experiment.steps} steps from {written(experiment.at)} on, and the run has {count} of them",
            "choose an earlier step, fewer --steps, or a later --until",
        )


def raise_unfired(done: TrialResult) -> NoReturn:
    """Say why a trial's fault was not done: an error, never an outcome."""
    said = last_printed(done.error)
    if said is not None:
        raise FaultNotFired(*said)
    raise FaultNotFired(
        f"the run ended (status {done.status}) before its fault: {(done.error.splitlines() or ['no message'])[-1]}",
        "run the program with `detrain run` to see what it says",
    )
