"""The record of a trial; the check that its program has not changed; and the replay of a recorded fault: its effects,
and the steps behind it, must come out as recorded.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import xxhash

from detrain.base.cursor import Address, written
from detrain.base.errors import AnotherProgram, EnvironmentChanged, ReplayDiffers
from detrain.campaign.outcomes import corruptions_of, outcome_of
from detrain.campaign.subject import Subject
from detrain.campaign.trial import Trial, raise_unfired
from detrain.campaign.trial_log import TrialResult
from detrain.faults.bits import dtype_named
from detrain.faults.experiment import Firing, Injection
from detrain.faults.outcome_classes import Thresholds
from detrain.faults.record import Element, FaultRecord, Step, is_as_written

_SHOWN: Final = 4096
"""The most elements that a record lists; a longer fault has a digest of all."""


def record_of(subject: Subject, trial: Trial, model: str, seed: int | None, thresholds: Thresholds) -> FaultRecord:
    """Return the record of a trial. Raises FaultInvalid where its runs cannot be compared."""
    firing = trial.done.fired
    return FaultRecord(
        program=subject.program.name,
        arguments=subject.arguments,
        sources=subject.sources(),
        environment=subject.environment(),
        model=model,
        seed=seed,
        experiment=msgspec.structs.replace(trial.experiment, log="", is_inference=subject.is_inference),
        elements=elements_of(trial.injection, firing) if firing is not None else (),
        elements_digest=digest_of(firing),
        fired=firing.count if firing is not None else 0,
        missed=trial.done.missed,
        steps=steps_of(trial.done, trial.experiment.at),
        end=trial.done.end or f"status {trial.done.status}",
        is_unarmed_equal=trial.is_unarmed_equal,
        outcome=outcome_of(trial.golden, trial.done, trial.experiment.at, thresholds),
        thresholds=thresholds,
        alarm=trial.done.alarm,
        corruptions=corruptions_of(trial.golden, trial.done, trial.experiment.at),
    ).signed()


def digest_of(firing: Firing | None) -> str:
    """Return the digest of a fault's values before and after it; empty if the process died before it could tell."""
    return "" if firing is None else xxhash.xxh3_128_hexdigest(firing.golden + firing.injected)


def steps_of(done: TrialResult, at: Address) -> tuple[Step, ...]:
    """Return the steps of a run from a cursor on."""
    return tuple(
        Step(cursor, step.state, step.series, step.outputs) for cursor, step in sorted(done.by_cursor().items()) if cursor >= at
    )


def elements_of(injection: Injection, firing: Firing) -> tuple[Element, ...]:
    """Return the changed elements, with their bits before and after; of a long fault only the first."""
    unsigned = dtype_named(injection.dtype).unsigned.newbyteorder("<")
    digits = unsigned.itemsize * 2
    golden, injected = (np.frombuffer(data, unsigned)[:_SHOWN] for data in (firing.golden, firing.injected))
    positions = np.unravel_index(injection.array("positions")[:_SHOWN], injection.shape) if injection.shape else ()
    return tuple(
        Element(tuple(int(axis[index]) for axis in positions), f"{int(old):0{digits}x}", f"{int(new):0{digits}x}")
        for index, (old, new) in enumerate(zip(golden, injected, strict=True))
    )


def file_name(record: FaultRecord) -> str:
    """Return the name of a fault's file; other faults have other names."""
    digest = xxhash.xxh3_64_hexdigest(msgspec.json.encode(record.experiment))[:6]
    seed = () if record.seed is None else (str(record.seed),)  # the artifact's faults have none here
    return re.sub(r"[^\w.+-]", "-", "-".join((record.model, written(record.experiment.at), *seed, f"{digest}.json")))


def environment_difference(recorded: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the differences between two environments, in words."""
    return [
        f"{name} was {recorded.get(name)!r}, is {now.get(name)!r}"
        for name in sorted({*recorded, *now})
        if recorded.get(name) != now.get(name)
    ]


def check_same(known: FaultRecord, subject: Subject, *, allow_environment: bool) -> None:
    """Raise AnotherProgram if a record's program or arguments differ now, EnvironmentChanged for its environment."""
    if known.sources != subject.sources() or known.arguments != subject.arguments:
        now = subject.sources()
        changed = sorted(name for name in {*now, *known.sources} if now.get(name) != known.sources.get(name))
        what = f"source {', '.join(changed)}" if changed else f"arguments {list(known.arguments)}, got {list(subject.arguments)}"
        raise AnotherProgram(f"the record is of another program: {what}", "give the program as it was, with the same arguments")
    known.experiment.check()
    differences = environment_difference(known.environment, subject.environment())
    if differences and not allow_environment:
        raise EnvironmentChanged(
            f"the environment differs from the record's: {'; '.join(differences)}",
            "replay where it is the same, or, perhaps with other bits, with --allow-environment",
        )


def replay(known: FaultRecord, subject: Subject, file: Path, *, allow_environment: bool = False) -> None:
    """Do the fault of a record, which was read from `file`, again.

    Raises ReplayDiffers at the first difference, FaultNotFired, AnotherProgram, and EnvironmentChanged (unless
    `allow_environment`).
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
    """Raise ReplayDiffers at the first difference between a record and that of the fault done now."""
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
