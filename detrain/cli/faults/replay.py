"""`detrain replay`: do a recorded fault again, and prove that its effects are the same, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from detrain.base.options import Home, Option
from detrain.campaign.subject import Subject
from detrain.campaign.trial_record import replay
from detrain.cli.shared.fault_options import TrialLimit
from detrain.cli.shared.options import PROGRAM_SETTINGS, FileThenProgram, Given, takes_options
from detrain.faults.record import read_record
from detrain.python.process.environment import asked_for, set_threads


@click.command(cls=FileThenProgram, context_settings=PROGRAM_SETTINGS)
@takes_options
def command(
    *,
    home: Home = "ckpt",
    allow_environment: Annotated[bool, Option("Replay although versions or the machine differ.")] = False,
    time_limit: TrialLimit = None,
    record: Path,
    given: Given,
) -> int:
    """Do the fault of RECORD again in PROGRAM: every digest must be the recorded one, or the first difference is named.

    \b
    Example:
      detrain replay fault.json train.py
    """
    known = read_record(record)
    threads = asked_for(known.environment)
    if threads is not None:
        set_threads(threads)  # the record of a campaign's trial names its number of threads
    subject = Subject(
        given.found(),
        given.arguments,
        Path(home),
        time_limit,
        has_guard=known.alarm is not None,
        is_inference=known.experiment.is_inference,
    )
    replay(known, subject, record, allow_environment=allow_environment)
    digests = sum(1 for step in known.steps if step.state)
    steps = sum(step.at[2] >= 0 for step in known.steps)
    ends = len(known.steps) - steps
    click.echo(
        f"IDENTICAL: the fault, {steps} step{'s' * (steps != 1)} from it on"
        f"{f', what followed {ends} epoch' + 's' * (ends != 1) if ends else ''}, {digests} digest{'s' * (digests != 1)}"
        f" of all variables and the outcome ({known.outcome}) are the recorded ones"
    )
    return 0
