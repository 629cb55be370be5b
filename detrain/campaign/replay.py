"""A recorded fault done again: whatever the record says of it, and of the steps behind it, is to come out the same."""

from __future__ import annotations

from pathlib import Path

from detrain.base.errors import ReplayDiffers
from detrain.campaign.outcomes import outcome_of
from detrain.campaign.subject import Subject
from detrain.campaign.trial import raise_unfired
from detrain.campaign.trial_log import TrialResult
from detrain.campaign.trial_record import check_same, digest_of, elements_of, steps_of
from detrain.faults.experiment import written
from detrain.faults.record import FaultRecord, is_as_written


def replay(known: FaultRecord, subject: Subject, file: Path, *, allow_environment: bool = False) -> None:
    """Do the fault of a record, which was read from `file`, again.

    Raises ReplayDiffers at the first difference, FaultNotFired, AnotherProgram, and EnvironmentChanged unless that is
    allowed.
    """
    check_same(known, subject, allow_environment=allow_environment)
    golden = subject.golden(known.experiment)
    done = subject.trial(known.experiment)
    if done.fired is None and known.fired:
        raise_unfired(done)
    if not known.is_unarmed_equal:
        golden = subject.unarmed(known.experiment)
    compare(known, golden, done)
    if not is_as_written(file):
        what = f"{str(file)!r} was altered since it was written, in what a replay does not show (its model or seed, perhaps)"
        raise ReplayDiffers(what, "take the record as `detrain inject` has written it")


def compare(known: FaultRecord, golden: TrialResult, done: TrialResult) -> None:
    """Raise ReplayDiffers at the first difference between a record and what the fault has done now.

    `golden` is the run without the fault.
    """
    injection, fired = known.experiment.injection, done.fired
    elements = elements_of(injection, fired) if injection is not None and fired is not None else ()
    if digest_of(fired) != known.elements_digest or elements != known.elements:
        raise ReplayDiffers("the values at the fault's positions, or what they became, are not the recorded ones", "")
    if fired is not None and (fired.count, done.missed) != (known.fired, known.missed):
        raise ReplayDiffers(f"the fault was put in {fired.count} times, the record says {known.fired}, or in other steps", "")
    steps = steps_of(done, known.experiment.at)
    for before, now in zip(known.steps, steps, strict=False):
        if before != now:
            names = [name for name in sorted({*before.series, *now.series}) if before.series.get(name) != now.series.get(name)]
            what = ", ".join([*names, *(["the variables"] if before.state != now.state else [])]) or f"the step, {written(now.at)}"
            raise ReplayDiffers(f"step {written(before.at)} differs from the record: {what}", "")
    if len(steps) != len(known.steps):
        raise ReplayDiffers(f"the replay had {len(steps)} steps from the fault on, the record {len(known.steps)}", "")
    end = done.end or f"status {done.status}"
    if end != known.end:
        raise ReplayDiffers(f"the replay ended by {end!r}, the record says {known.end!r}", "")
    if done.alarm != known.alarm:
        raise ReplayDiffers(f"the guard's first alarm is {done.alarm}, the record says {known.alarm}", "")
    outcome = outcome_of(golden, done, known.experiment.at, known.thresholds)
    if outcome != known.outcome:
        raise ReplayDiffers(f"the outcome is {outcome!r}, the record says {known.outcome!r}", "")
