"""What of a trial goes into its record, and whether a record is of a program that is here now."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
import xxhash

from detrain.base.cursor import Address, written
from detrain.base.errors import AnotherProgram, EnvironmentChanged
from detrain.campaign.outcomes import corruptions_of, outcome_of
from detrain.campaign.subject import Subject
from detrain.campaign.trial import Trial
from detrain.campaign.trial_log import TrialResult
from detrain.faults.bits import dtype_named
from detrain.faults.experiment import Firing, Injection
from detrain.faults.outcome_classes import Thresholds
from detrain.faults.record import Element, FaultRecord, Step

_SHOWN: Final = 4096
"""So many elements are written into the record; of longer faults a digest."""


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
    """Return the digest of what a fault has met and made; empty if the process did not live to say."""
    return "" if firing is None else xxhash.xxh3_128_hexdigest(firing.golden + firing.injected)


def steps_of(done: TrialResult, at: Address) -> tuple[Step, ...]:
    """Return the steps of a run from a cursor on."""
    return tuple(
        Step(cursor, step.state, step.series, step.outputs) for cursor, step in sorted(done.by_cursor().items()) if cursor >= at
    )


def elements_of(injection: Injection, firing: Firing) -> tuple[Element, ...]:
    """Return what was changed, the first elements of a long fault."""
    unsigned = dtype_named(injection.dtype).unsigned.newbyteorder("<")
    digits = unsigned.itemsize * 2
    golden, injected = (np.frombuffer(data, unsigned)[:_SHOWN] for data in (firing.golden, firing.injected))
    positions = np.unravel_index(injection.array("positions")[:_SHOWN], injection.shape) if injection.shape else ()
    return tuple(
        Element(tuple(int(axis[index]) for axis in positions), f"{int(old):0{digits}x}", f"{int(new):0{digits}x}")
        for index, (old, new) in enumerate(zip(golden, injected, strict=True))
    )


def file_name(record: FaultRecord) -> str:
    """Return the name of a fault's file: another fault has another one."""
    digest = xxhash.xxh3_64_hexdigest(msgspec.json.encode(record.experiment))[:6]
    seed = () if record.seed is None else (str(record.seed),)  # what the artifact has drawn has none here
    return re.sub(r"[^\w.+-]", "-", "-".join((record.model, written(record.experiment.at), *seed, f"{digest}.json")))


def environment_difference(recorded: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return what differs between two environments, in words."""
    return [
        f"{name} was {recorded.get(name)!r}, is {now.get(name)!r}"
        for name in sorted({*recorded, *now})
        if recorded.get(name) != now.get(name)
    ]


def check_same(known: FaultRecord, subject: Subject, *, allow_environment: bool) -> None:
    """Raise AnotherProgram, or EnvironmentChanged, unless a record is of this program with these arguments, here."""
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
