"""A recorded fault done again: whatever the record says of it, and of the steps behind it, is to come out the same."""

from __future__ import annotations

from pathlib import Path

from detrain.base.cursor import written
from detrain.base.errors import ReplayDiffers
from detrain.campaign.subject import Subject
from detrain.campaign.trial import Trial, raise_unfired
from detrain.campaign.trial_record import check_same, record_of
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
    trial = Trial(known.experiment, golden, done, known.is_unarmed_equal)
    compare(known, record_of(subject, trial, known.model, known.seed, known.thresholds))
    if not is_as_written(file):
        what = f"{str(file)!r} was altered since it was written, in what a replay does not show (its model or seed, perhaps)"
        raise ReplayDiffers(what, "take the record as `detrain inject` has written it")


def compare(known: FaultRecord, now: FaultRecord) -> None:
    """Raise ReplayDiffers at the first difference between a record and what the fault has done now."""
    if (now.elements_digest, now.elements) != (known.elements_digest, known.elements):
        raise ReplayDiffers("the values at the fault's positions, or what they became, are not the recorded ones", "")
    if (now.fired, now.missed) != (known.fired, known.missed):
        raise ReplayDiffers(f"the fault was put in {now.fired} times, the record says {known.fired}, or in other steps", "")
    for before, after in zip(known.steps, now.steps, strict=False):
        if before != after:
            names = [name for name in sorted({*before.series, *after.series}) if before.series.get(name) != after.series.get(name)]
            parts = [*names, *(["the variables"] if before.state != after.state else [])]
            parts += ["what the forward pass gives"] if before.outputs != after.outputs else []
            what = ", ".join(parts) or f"the step, {written(after.at)}"
            raise ReplayDiffers(f"step {written(before.at)} differs from the record: {what}", "")
    if len(now.steps) != len(known.steps):
        raise ReplayDiffers(f"the replay had {len(now.steps)} steps from the fault on, the record {len(known.steps)}", "")
    if now.end != known.end:
        raise ReplayDiffers(f"the replay ended by {now.end!r}, the record says {known.end!r}", "")
    if now.alarm != known.alarm:
        raise ReplayDiffers(f"the guard's first alarm is {now.alarm}, the record says {known.alarm}", "")
    if now.outcome != known.outcome:
        raise ReplayDiffers(f"the outcome is {now.outcome!r}, the record says {known.outcome!r}", "")
