"""`detrain inject`: put one fault into a program's training step, and see its outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import msgspec
import numpy as np

from detrain.base import messages
from detrain.base.cursor import Address, parse_cursor, written
from detrain.base.errors import UsageError
from detrain.base.options import Home, Option
from detrain.campaign.outcomes import read_thresholds
from detrain.campaign.subject import Subject
from detrain.campaign.trial import LEAST_WITH_GUARD, Trial, Wanted, drawn_fault, read_wanted, try_fault
from detrain.campaign.trial_record import check_same, file_name, record_of
from detrain.cli.shared.fault_options import Guarded, OfInference, OfStage, Thresholds, TrialLimit, steps_hit
from detrain.cli.shared.options import PROGRAM_SETTINGS, FileThenProgram, Given, takes_options
from detrain.cli.shared.printing import console, print_json, replay_command, table
from detrain.faults.bits import dtype_named
from detrain.faults.experiment import Experiment
from detrain.faults.predictions import Corruptions
from detrain.faults.record import FaultRecord, write_record
from detrain.reports.pictures import check_plot, check_writable
from detrain.reports.trial_text import plot_trial, write_text


class Fault(msgspec.Struct, kw_only=True):
    """Options that describe the fault, if it is not in a file."""

    model: Annotated[str | None, Option("Fault model: RD, N16_RD, WT, FLIP:2, BIT:30, SET:1e18 …; instead of FAULT.", "MODEL")] = (
        None
    )
    site: Annotated[str | None, Option("Where: name, layer or label of a site; one of those that fit is drawn.", "PATTERN")] = None
    stage: OfStage = None
    element: Annotated[
        str | None, Option("The element that is hit, by its index on each axis; * is all along one [drawn].", "0,3,1,1")
    ] = None
    at: Annotated[str | None, Option("The step that is hit, both from 0.", "EPOCH:BATCH")] = None
    seed: Annotated[int | None, Option("Seed of what is drawn [0].", least=0)] = None
    worker: Annotated[int | None, Option("The replica that is hit [0].", least=0)] = None
    occurrence: Annotated[int | None, Option("Which run of the site in the step is hit [0, or as in the record].", least=0)] = None
    nearest: Annotated[bool, Option("A position of the artifact that falls on padding: hit the nearest element.")] = False

    @property
    def cursor(self) -> Address | None:
        """The step that is hit, if it is given. Raises UsageError."""
        return parse_cursor(self.at) if self.at is not None else None

    def wanted(self, given: Given) -> tuple[Wanted, Given]:
        """Return the fault, and the program without the fault's file before it. Raises UsageError, FaultInvalid."""
        if self.model is not None:
            if Path(given.program).suffix in (".json", ".csv"):
                raise UsageError(f"--model {self.model} and a file of a fault, {given.program!r}", "give one of them")
            at, seed, place = self.cursor, self.seed or 0, self.worker or 0
            return drawn_fault(self.model, self.site, self.stage, place, seed, at, self.occurrence or 0, self.element), given
        if not given.arguments or Path(given.program).suffix == ".py":
            raise UsageError("there is no fault", "give --model and --site, or FAULT (a CSV or record) before PROGRAM")
        wanted = read_wanted(Path(given.program), self.site, takes_nearest=self.nearest)
        said = {"--site": self.site if wanted.record is not None else None, "--stage": self.stage, "--element": self.element}
        for option, value in {**said, "--seed": self.seed, "--worker": self.worker}.items():
            if value is not None:
                raise UsageError(
                    f"{option} {value} with a file of a fault, which says that itself", "leave it out, or give --model"
                )
        return wanted, msgspec.structs.replace(given, program=given.arguments[0], arguments=given.arguments[1:])


class Steps(msgspec.Struct, kw_only=True):
    """Options for the number of steps that are hit, and that are run."""

    steps: Annotated[int | None, Option("How many steps in a row are hit [1, or as in the record].", least=1)] = None
    permanent: Annotated[bool, Option("All steps from there on are hit.")] = False
    until: Annotated[str | None, Option("The last step, or how many from the fault on [the program's end].", "EPOCH:BATCH|+N")] = (
        None
    )

    def experiment(self, fault: Fault, when: Experiment, *, has_guard: bool, is_inference: bool) -> Experiment:
        """Return the experiment for a fault; `when` holds the fault's own step and times. Raises UsageError."""
        at, steps = fault.cursor or when.at, steps_hit(self.steps, is_permanent=self.permanent)
        until = f"+{self.steps or 1}" if self.until is None and is_inference else self.until
        last = parse_cursor(until) if until is not None and not until.startswith("+") else None
        count = int(until[1:]) if until is not None and until.startswith("+") and until[1:].isdigit() else 0
        if until is not None and last is None and count == 0:
            raise UsageError(f"--until {until!r} is no number of steps", "write it as +N, from +1, or EPOCH:BATCH")
        if last is not None and last < at:
            raise UsageError(f"--until {self.until} is before the fault, which is at {written(at)}", "give a later step, or +N")
        return Experiment(
            log="",
            at=at,
            steps=when.steps if steps is None else steps,
            occurrence=when.occurrence if fault.occurrence is None else fault.occurrence,
            until=last,
            count=count or None,
            least=LEAST_WITH_GUARD if has_guard else 0,
        )


@click.command(cls=FileThenProgram, context_settings=PROGRAM_SETTINGS)
@takes_options
def command(
    *,
    home: Home = "ckpt",
    fault: Fault,
    steps: Steps,
    guard: Guarded = False,
    is_inference: OfInference = False,
    thresholds: Thresholds = (),
    out: Annotated[Path | None, Option("The fault record to write [in the folder of the checkpoints].")] = None,
    plot: Annotated[Path | None, Option("Draw loss and accuracy: a .png, .svg or .html.")] = None,
    text: Annotated[Path | None, Option("Write the artifact's replay_*.txt, too.")] = None,
    time_limit: TrialLimit = None,
    as_json: Annotated[bool, Option("Print the record.", flag="--json")] = False,
    given: Given,
) -> int:
    """Put one fault into the training step of PROGRAM and compare with the run without it.

    The fault is FAULT, a CSV of the ISCA 2023 artifact or a record of this command's, given before PROGRAM; or --model,
    --site and --at say it. The run starts at the checkpoint nearest before the fault, which is made where there is
    none.

    \b
    Examples:
      detrain inject --model RD --site 'conv2d*' --stage backward --at 3:17 --seed 7 train.py
      detrain inject resnet18.csv --at 0:5 examples/workloads/train.py --model resnet18
    """
    limits = read_thresholds(thresholds)
    check_plot(plot)
    check_writable(text)
    check_writable(out)
    wanted, given = fault.wanted(given)
    is_inference = is_inference or (wanted.record is not None and wanted.when.is_inference)
    if is_inference and guard:
        raise UsageError("--guard looks at what training changes, and --inference trains nothing", "give one of them")
    subject = Subject(
        given.found(), given.arguments, Path(home), time_limit, is_quiet=as_json, has_guard=guard, is_inference=is_inference
    )
    if wanted.record is not None:
        check_same(wanted.record, subject, allow_environment=False)
    experiment = steps.experiment(fault, wanted.when, has_guard=guard, is_inference=is_inference)
    trial = try_fault(subject, wanted, experiment)
    record = record_of(subject, trial, wanted.model, wanted.seed, limits)
    path = out or subject.folder / file_name(record)
    write_record(path, record)
    if plot is not None:
        plot_trial(plot, record, trial.golden, trial.done)
    if text is not None:
        write_text(text, subject, trial)
    if as_json:
        print_json(record)
    else:
        _show(record, trial)
        command = replay_command(path, given.program, given.arguments, home=home, is_module=given.is_module)
        messages.say(f"the record is {path}; `{command}` runs it again")
    return 0


def _show(record: FaultRecord, trial: Trial) -> None:
    """Print the trial for people."""
    from rich.text import Text

    printer = console()
    injection, dtype = trial.injection, dtype_named(trial.injection.dtype)
    where = f"replica {injection.worker}, " if injection.worker else ""
    count = record.experiment.steps
    following = "" if count == 1 else " and all behind it" if count == 0 else f" and {count - 1} more"
    operand = "" if injection.is_in_memory else f"the {injection.operand} of "
    what = f" in {operand}{injection.site} ({where}step {written(record.experiment.at)}{following})"
    printer.print(Text.assemble((record.model, "bold"), what))
    for element in record.elements[:4]:
        old, new = (dtype.numbers(np.array([int(bits, 16)], dtype.unsigned))[0] for bits in (element.golden, element.injected))
        form = ".8g" if np.issubdtype(old.dtype, np.inexact) else "d"
        printer.print(f"  {list(element.position)}: {old:{form}} ({element.golden}) became {new:{form}} ({element.injected})")
    rest = len(injection.array("positions")) - 4
    if rest > 0:
        printer.print(f"  and {rest:,} more elements")
    if record.missed:
        steps = ", ".join(written(at) for at in record.missed[:8]) + (" …" if len(record.missed) > 8 else "")
        printer.print(f"  not in {len(record.missed)} of these steps, where the site did not run, or had another shape: {steps}")
    if not trial.is_unarmed_equal:
        printer.print("  with the site in place the program's bits are others: the golden run has it in place, too")
    names = ["loss", *sorted({name for step in record.steps for name in step.series} - {"loss"})]
    shown = table(("step", *(f"{name} {which}" for name in names for which in ("golden", "faulty")), "state"), left=())
    known = trial.golden.by_cursor()
    for step in record.steps[:8]:
        golden = known.get(step.at)
        cells = [_number(run.series.get(name)) if run is not None else "" for name in names for run in (golden, step)]
        is_same = golden is not None and (golden.state, golden.outputs) == (step.state, step.outputs)
        same = "" if golden is None or not step.state else "equal" if is_same else "differs"
        shown.add_row(written(step.at) if step.at[2] >= 0 else f"after {step.at[1]}", *cells, same)
    printer.print(shown)
    if len(record.steps) > 8:
        printer.print(f"  … {len(record.steps) - 8} more steps")
    if record.corruptions is not None:
        printer.print(_of_inputs(record.corruptions))
    if record.alarm is not None:
        alarm = record.alarm
        printer.print(f"the guard saw it {_when(alarm.steps)}: {alarm.variable} has norm {_number(alarm.norm)} ({alarm.kind})")
    printer.print(Text.assemble("outcome: ", (record.outcome, "bold"), f" (ended: {record.end})"))


def _of_inputs(found: Corruptions) -> str:
    counts = {"SDC-1": found.sdc_1, "SDC-5": found.sdc_5, "SDC-10%": found.sdc_10, "SDC-20%": found.sdc_20}
    counts |= {"not finite": found.nonfinite} if found.nonfinite else {}
    return f"of {found.inputs} inputs: " + ", ".join(f"{name} {count}" for name, count in counts.items())


def _when(steps: int) -> str:
    return "at the end of the faulty step" if steps == 0 else f"{steps} step{'s' if steps > 1 else ''} later"


def _number(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.6g}"
