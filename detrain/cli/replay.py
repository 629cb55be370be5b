"""`detrain replay`: do a recorded fault again, and prove that it comes out the same, bit for bit."""

from __future__ import annotations

from pathlib import Path

import click

from detrain.base.errors import ReplayDiffers
from detrain.campaign.outcomes import outcome_of
from detrain.campaign.subject import Done, Subject
from detrain.cli.inject import check_same, digest_of, elements_of, raise_unfired, steps_of
from detrain.cli.options import PROGRAM_SETTINGS, SECONDS, FileThenProgram, home_option, program_arguments
from detrain.faults.experiment import written
from detrain.faults.record import FaultRecord, is_as_written, read_record
from detrain.launcher.program import Program


@click.command(cls=FileThenProgram, context_settings=PROGRAM_SETTINGS)
@home_option("Folder of the checkpoints")
@click.option("--allow-environment", is_flag=True, help="Replay although versions or the machine differ.")
@click.option("--time-limit", type=SECONDS, default=3600.0, metavar="SECONDS", help="After that the run hangs [3600].")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@click.argument("record", type=click.Path(path_type=Path))
@program_arguments
def command(
    home: str, allow_environment: bool, time_limit: float, is_module: bool, record: Path, program: str, arguments: tuple[str, ...]
) -> int:
    """Do the fault of RECORD again in PROGRAM: every digest must be the recorded one, or the first difference is named.

    \b
    Example:
      detrain replay fault.json train.py
    """
    known = read_record(record)
    found = Program.find(program, is_module=is_module)
    subject = Subject(found, arguments, Path(home), time_limit, has_guard=known.alarm is not None)
    check_same(known, subject, allows_environment=allow_environment)
    golden = subject.golden(known.experiment)
    done = subject.trial(known.experiment)
    if done.fired is None and known.fired:
        raise_unfired(done)
    if not known.is_unarmed_equal:
        golden = subject.unarmed(known.experiment)
    compare(known, golden, done)
    if not is_as_written(record):
        what = f"{str(record)!r} was altered since it was written, in what a replay does not show (its model or seed, perhaps)"
        raise ReplayDiffers(what, "take the record as `detrain inject` has written it")
    digests = sum(1 for step in known.steps if step.state)
    steps = sum(step.at[2] >= 0 for step in known.steps)
    ends = len(known.steps) - steps
    click.echo(
        f"IDENTICAL: the fault, {steps} step{'s' * (steps != 1)} from it on"
        f"{f', what followed {ends} epoch' + 's' * (ends != 1) if ends else ''}, {digests} digests of all variables and the outcome"
        f" ({known.outcome}) are the recorded ones"
    )
    return 0


def compare(known: FaultRecord, golden: Done, done: Done) -> None:
    """Raise ReplayDiffers at the first difference between a record and what the fault has done now, beside the golden run."""
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
