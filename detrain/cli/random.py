"""`detrain random`: many faults, drawn by chance; what came of them."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np

from detrain.base import messages
from detrain.base.errors import FaultInvalid, FaultNotFired, SiteUnknown, UsageError
from detrain.campaign.batch_of_trials import run_together
from detrain.campaign.outcomes import threshold_option
from detrain.campaign.subject import Done, Subject
from detrain.campaign.wilson import wilson
from detrain.cli.inject import LEAST_WITH_GUARD, Trial, check_same, record_of, run_trial
from detrain.cli.options import PROGRAM_SETTINGS, SECONDS, home_option, program_arguments
from detrain.cli.printing import console
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Cursor, Experiment, Injection, written
from detrain.faults.model_shares import FIDELITY, draw_model
from detrain.faults.models import PUBLISHED, FaultModel, model_named
from detrain.faults.outcome_classes import Thresholds
from detrain.faults.plan import trial_rng
from detrain.faults.record import FaultRecord, is_as_written, read_record, write_record
from detrain.faults.sites import STAGES, Site, select
from detrain.launcher.program import Program
from detrain.reports.campaign_plot import plot_campaign
from detrain.reports.pictures import check_plot

_SOON = 2
"""Steps, the faulty one counted, within which a fault is to be seen."""
DIGESTS_EVERY = 10
"""Steps of a trial between digests of all variables. Its losses and metrics, to the bit, are those of each step."""
_DRAWS = 100
"""So often a trial is drawn again whose model fits no site (all tensors are too small)."""


@click.command(context_settings=PROGRAM_SETTINGS)
@home_option("Folder of the checkpoints")
@click.option("-n", "trials", type=click.IntRange(1), default=20, show_default=True, help="How many trials.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of what is drawn.")
@click.option("--models", "names", metavar="A,B,…", help="Fault models to draw from [the 18 published ones].")
@click.option("--shares", type=click.Choice(["uniform", "fidelity"]), default="uniform", show_default=True, help="Of the models.")
@click.option(
    "--site",
    "pattern",
    default="*",
    metavar="PATTERN",
    help="Sites to draw from [convolutions, matrix products; all if there are none].",
)
@click.option("--stage", type=click.Choice(STAGES), help="Only sites of this stage.")
@click.option("--epochs", metavar="A:B", help="Only steps of the epochs from A on, before B.")
@click.option("--after", type=click.IntRange(1), metavar="N", help="Steps to run from the fault on [to the program's end].")
@click.option("--guard", is_flag=True, help="Look for the faults, as `detrain run --guard detect` does, and say which are seen.")
@threshold_option()
@click.option(
    "--engine",
    type=click.Choice(["auto", "process"]),
    default="auto",
    show_default=True,
    help="auto: many trials in one process where it can go back exactly; process: each in one of its own.",
)
@click.option("--time-limit", type=SECONDS, default=3600.0, metavar="S", help="A longer trial hangs [3600].")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the outcomes and losses: a .png, .svg or .html.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the records [in the folder of the checkpoints].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@program_arguments
def command(
    home: str,
    trials: int,
    seed: int,
    names: str | None,
    shares: str,
    pattern: str,
    stage: str | None,
    epochs: str | None,
    after: int | None,
    guard: bool,
    thresholds: Thresholds,
    engine: str,
    time_limit: float,
    plot: Path | None,
    out: Path | None,
    as_json: bool,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> int:
    """Put N faults into PROGRAM, one a run, and say what came of them.

    Trial k of a seed is the same fault on every machine. Records that are there already are not made again, so a campaign that was
    killed goes on where it was.

    \b
    Example:
      detrain random -n 50 --seed 1 --after 100 train.py
    """
    check_plot(plot)
    subject = Subject(Program.find(program, is_module=is_module), arguments, Path(home), time_limit, has_guard=guard)
    models = [model_named(name) for name in names.split(",")] if names is not None else list(PUBLISHED.values())
    first, last = _epochs(epochs)
    sites = {0: select(subject.sites(), pattern, stage=stage)}
    golden = subject.golden(Experiment(log="", at=(0, first, 0)), has_step=False)
    steps = [cursor for cursor in golden.by_cursor() if cursor[2] >= 0 and first <= cursor[1] < last]
    if not steps:
        raise UsageError(f"--epochs {epochs!r}: the program has no step in them", "give epochs from 0, for example 2:5")
    for phase in sorted({cursor[0] for cursor in steps} - {0}):  # each may train another model
        begin = min(cursor for cursor in golden.by_cursor() if cursor[0] == phase and cursor[2] >= 0)
        try:
            sites[phase] = select(subject.sites(Experiment(log="", at=begin)), pattern, stage=stage)
        except SiteUnknown:
            messages.say(f"no fault is drawn in phase {phase} of training: no site there fits {pattern!r}")
    steps = [cursor for cursor in steps if cursor[0] in sites]
    draw = Drawing(seed, sites, models, steps, FIDELITY if shares == "fidelity" else None, LEAST_WITH_GUARD if guard else 0)
    folder = out or subject.folder / f"random-{seed}"
    campaign = _Campaign(subject, draw, after, (pattern, stage), thresholds, folder)
    records = {number: record for number in range(trials) if (record := campaign.known(number)) is not None}
    if records and not as_json:
        messages.say(f"{len(records)} trials are in {folder} already")
    missing = [number for number in range(trials) if number not in records]
    for number, record in campaign.run(missing, golden, in_one=engine != "process"):
        write_record(campaign.path(number), record)
        records[number] = record
        if not as_json:
            messages.say(f"trial {number}: {_described(record)}")
    in_order = [record for _, record in sorted(records.items())]
    if plot is not None and in_order:
        plot_campaign(plot, in_order, golden)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(in_order), indent=1).decode())
    else:
        _show(in_order, trials - len(records), folder, has_guard=guard)
    return 0


@dataclass(frozen=True)
class Drawing:
    """What trials are drawn from. A trial is a pure function of this and its number."""

    seed: int
    sites: Mapping[int, Sequence[Site]]
    """By phase."""
    models: Sequence[FaultModel]
    steps: Sequence[Cursor]
    shares: dict[str, float] | None
    least: int = 0
    """Steps that a trial runs on at least, though its loss is not finite."""

    def trial(
        self, number: int, after: int | None, there: tuple[Cursor, Sequence[Site]] | None = None
    ) -> tuple[FaultModel, Experiment]:
        """Return the model and the experiment of a trial: step, site, replica, positions and values. Raises FaultInvalid.

        `there`: a step and its own sites, which are drawn from. Other draws of the trial are as they would be.
        """
        rng = trial_rng(self.seed, number)
        for _ in range(_DRAWS):
            at = self.steps[int(rng.integers(len(self.steps)))]
            model = draw_model(self.models, rng, self.shares)
            at, sites = there or (at, self.sites[at[0]])
            found = _at_one_of([site for site in sites if model.operand.value in site.operands], model, rng)
            if found is None:
                continue
            injection, occurrence = found
            plan = Experiment(
                log="",
                injection=injection,
                at=at,
                occurrence=occurrence,
                count=after,
                stops_on_nonfinite=True,
                least=self.least,
                digests_every=DIGESTS_EVERY,
            )
            return model, plan
        raise FaultInvalid(
            f"no fault of {', '.join(model.name for model in self.models)} fits any site", "choose other --models, or a --site"
        )


def _at_one_of(sites: Sequence[Site], model: FaultModel, rng: np.random.Generator) -> tuple[Injection, int] | None:
    """Return a fault of a model at one of the sites that it fits, each as likely, and the run of the site; None: it fits none.

    So a model that some sites are too small for is drawn as often as the others.
    """
    for index in rng.permutation(len(sites)):
        site = sites[int(index)]
        worker = int(rng.integers(site.replicas))
        occurrence = int(rng.integers(site.executions)) if site.executions > 1 else 0
        with contextlib.suppress(FaultInvalid):
            return draw_injection(site, model, worker, rng), occurrence
    return None


def _epochs(text: str | None) -> tuple[int, float]:
    if text is None:
        return 0, math.inf
    first, colon, last = text.partition(":")
    if not colon or not (first or "0").isdigit() or not (last or "0").isdigit():
        raise UsageError(f"--epochs {text!r} is not a range", "write it as A:B, for example 2:5 for the epochs 2, 3 and 4")
    return int(first or 0), int(last) if last else math.inf


@dataclass(frozen=True)
class _Campaign:
    """The trials of a drawing, and their records in a folder."""

    _subject: Subject
    _drawing: Drawing
    _after: int | None
    _among: tuple[str, str | None]
    """Pattern and stage of the sites."""
    _thresholds: Thresholds
    _folder: Path

    def path(self, number: int) -> Path:
        """Return the file of a trial's record."""
        return self._folder / f"trial-{number:06d}.json"

    def known(self, number: int) -> FaultRecord | None:
        """Return the record of a trial that has been run already.

        Raises FaultInvalid if it is of another campaign, AnotherProgram or EnvironmentChanged if of another program or elsewhere.
        """
        path = self.path(number)
        if not path.is_file():
            return None
        record, (_, plan) = read_record(path), self._drawing.trial(number, self._after)
        if not is_as_written(path):
            raise FaultInvalid(f"{str(path)!r} was altered since it was written", "delete it to have it made again")
        check_same(record, self._subject, allows_environment=False)
        is_first = record.experiment == plan
        is_of_step = not is_first and record.experiment.at == plan.at
        if not is_first and not (is_of_step and any(record.experiment == again for _, again in self._drawn_there(number, plan))):
            raise FaultInvalid(f"{str(path)!r} is of another campaign: its fault is another", "give another folder with --out")
        if record.thresholds != self._thresholds:
            raise FaultInvalid(f"{str(path)!r} was classified by other thresholds", "give the same --threshold, or another --out")
        return record

    def run(self, numbers: Iterable[int], golden: Done, *, in_one: bool) -> Iterator[tuple[int, FaultRecord]]:
        """Run trials; yields the records as they come. A fault that did not fire is no outcome, and has none."""
        subject, seed = self._subject, self._drawing.seed
        drawn = {number: self._drawing.trial(number, self._after) for number in numbers}
        done: set[int] = set()
        if in_one:
            for number, found in run_together(subject, {number: plan for number, (_, plan) in drawn.items()}, golden):
                model, plan = drawn[number]
                done.add(number)
                trial = Trial(model.name, seed, plan, golden, found, is_unarmed_equal=True)
                yield number, record_of(subject, trial, self._thresholds)
        for number, first in drawn.items():
            if number in done:
                continue
            for model, plan in itertools.chain([first], self._drawn_there(number, first[1])):
                try:
                    yield number, record_of(subject, run_trial(subject, model.name, seed, plan), self._thresholds)
                    break
                except FaultNotFired as error:
                    why = error.what
            else:
                messages.warn(f"trial {number}: {why}")

    def _drawn_there(self, number: int, plan: Experiment) -> Iterator[tuple[FaultModel, Experiment]]:
        """Yield a trial once more, drawn among the sites of its own step: that may have a smaller batch, or run other ops."""
        pattern, stage = self._among
        try:
            sites = select(self._subject.sites(Experiment(log="", at=plan.at)), pattern, stage=stage)
            model, again = self._drawing.trial(number, self._after, (plan.at, sites))
        except (SiteUnknown, FaultInvalid):
            return
        if again != plan:
            yield model, again


def _described(record: FaultRecord) -> str:
    injection = record.experiment.injection
    assert injection is not None
    return f"{record.model} in {injection.site} at {written(record.experiment.at)}: {record.outcome}"


def _show(records: Sequence[FaultRecord], unfired: int, folder: Path, *, has_guard: bool) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    seen = ("seen in 2 steps", "later", "95 % interval of seen in 2") if has_guard else ()
    for column in ("outcome", "trials", "share", "95 % interval", *seen):
        table.add_column(column, justify="left" if column == "outcome" else "right")
    for outcome in sorted({record.outcome for record in records}, key=lambda name: -sum(r.outcome == name for r in records)):
        mine = [record for record in records if record.outcome == outcome]
        cells = [str(len(mine)), f"{len(mine) / len(records):.1%}", _interval(len(mine), len(records))]
        if has_guard:
            soon = sum(record.alarm is not None and record.alarm.steps < _SOON for record in mine)
            late = sum(record.alarm is not None for record in mine) - soon
            cells += [f"{soon} ({soon / len(mine):.1%})", str(late), _interval(soon, len(mine))]
        table.add_row(outcome, *cells)
    printer = console()
    printer.print(table)
    if unfired:
        printer.print(f"{unfired} drawn faults did not fire and are not counted")
    printer.print(f"the records are in {folder}; `detrain replay RECORD PROGRAM` runs one again")


def _interval(count: int, total: int) -> str:
    low, high = wilson(count, total)
    return f"{low:.1%} – {high:.1%}"
