"""`detrain random`: many faults, drawn at random, and their outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from detrain.base import messages
from detrain.base.cursor import written
from detrain.base.options import Home, Option
from detrain.campaign.outcomes import read_thresholds
from detrain.campaign.planning.drawn_plan import Drawn, drawn_plan
from detrain.campaign.subject import Subject
from detrain.campaign.trials_done import TrialFolder
from detrain.cli.shared.fault_options import (
    After,
    Among,
    AtOnce,
    DrawnBy,
    OfInference,
    OfStage,
    Shares,
    Thresholds,
    TrialLimit,
    require_several,
)
from detrain.cli.shared.options import AsJson, Given, program_command
from detrain.cli.shared.printing import console, print_json, table
from detrain.faults.population.facts import Coming
from detrain.faults.record import FaultRecord
from detrain.faults.statistics.intervals import wilson
from detrain.reports.campaign_plot import plot_campaign
from detrain.reports.pictures import check_plot

_SOON: Final = 2
"""Steps, including the faulty one, within which a fault should be seen."""


@program_command
def command(
    *,
    home: Home = "ckpt",
    trials: Annotated[int, Option("How many trials.", flag="-n", least=1)] = 20,
    seed: DrawnBy = 0,
    names: Annotated[str | None, Option("Fault models to draw from [the 18 published ones].", "A,B,…", flag="--models")] = None,
    shares: Annotated[Shares, Option("Of the models.")] = "uniform",
    pattern: Annotated[
        str,
        Option(
            "Sites to draw from [convolutions, matrix products; all if there are none].",
            "PATTERN",
            flag="--site",
            shows_default=False,
        ),
    ] = "*",
    stage: OfStage = None,
    epochs: Annotated[str | None, Option("Only steps of the epochs from A on, before B.", "A:B")] = None,
    after: After = None,
    at_once: AtOnce = 1,
    among: Among = "tensor",
    guard: Annotated[bool, Option("Look for the faults, as `detrain run --guard detect` does, and say which are seen.")] = False,
    thresholds: Thresholds = (),
    engine: Annotated[
        Literal["auto", "process"],
        Option("auto: many trials in one process where it can go back exactly; process: each in one of its own."),
    ] = "auto",
    is_inference: OfInference = False,
    time_limit: TrialLimit = None,
    plot: Annotated[Path | None, Option("Draw the outcomes and losses: a .png, .svg or .html.")] = None,
    out: Annotated[Path | None, Option("Folder of the records [in the folder of the checkpoints].")] = None,
    as_json: AsJson = False,
    given: Given,
) -> int:
    """Put N faults into PROGRAM, one a run, and say what came of them.

    Trial k of a seed is the same fault on every machine. Records that are there already are not made again, so a
    campaign that was killed goes on where it was.

    \b
    Example:
      detrain random -n 50 --seed 1 --after 100 train.py
    """
    check_plot(plot)
    require_several(at_once, among)
    subject = Subject(given.found(), given.arguments, Path(home), time_limit, has_guard=guard, is_inference=is_inference)
    after = 1 if is_inference and after is None else after
    models = tuple(names.split(",")) if names is not None else ()
    drawn = Drawn(models=models, shares=shares, pattern=pattern, stage=stage, epochs=epochs)
    plan, golden = drawn_plan(subject, drawn, seed=seed, count=trials, after=after, coming=Coming(at_once=at_once, among=among))
    folder = out or subject.folder / f"random-{seed}"
    done = TrialFolder(folder, subject, plan, seed, read_thresholds(thresholds))
    records = {number: record for number in range(trials) if (record := done.known(number)) is not None}
    if records and not as_json:
        messages.say(f"{len(records)} trials are in {folder} already")
    missing = [number for number in range(trials) if number not in records]
    for number, record in done.run(missing, golden, in_one=engine != "process"):
        records[number] = record
        if not as_json:
            messages.say(f"trial {number}: {_described(record)}")
    in_order = [record for _, record in sorted(records.items())]
    if plot is not None and in_order:
        plot_campaign(plot, in_order, golden)
    if as_json:
        print_json(in_order)
    else:
        _show(in_order, trials - len(records), folder, has_guard=guard)
    return 0


def _described(record: FaultRecord) -> str:
    injection = record.experiment.injection
    assert injection is not None
    return f"{record.model} in {injection.site} at {written(record.experiment.at)}: {record.outcome}"


def _show(records: Sequence[FaultRecord], unfired: int, folder: Path, *, has_guard: bool) -> None:
    of_guard = ("seen in 2 steps", "later", "95 % interval of seen in 2") if has_guard else ()
    counts = table(("outcome", "trials", "share", "95 % interval", *of_guard), left=("outcome",))
    for row in rows_of(records):
        counts.add_row(*row[: len(counts.columns)])
    printer = console()
    printer.print(counts)
    if unfired:
        printer.print(f"{unfired} drawn faults did not fire and are not counted")
    printer.print(f"the records are in {folder}; `detrain replay RECORD PROGRAM` runs one again")


def rows_of(records: Sequence[FaultRecord]) -> list[tuple[str, ...]]:
    """Return each outcome with its count and share, and how often the guard saw it, the most frequent outcome first."""
    rows: list[tuple[str, ...]] = []
    for outcome, count in Counter(record.outcome for record in records).most_common():
        alarms = [record.alarm for record in records if record.outcome == outcome and record.alarm is not None]
        soon = sum(alarm.steps < _SOON for alarm in alarms)
        seen = f"{soon} ({soon / count:.1%})", str(len(alarms) - soon), _interval(soon, count)
        rows.append((outcome, str(count), f"{count / len(records):.1%}", _interval(count, len(records)), *seen))
    return rows


def _interval(count: int, total: int) -> str:
    low, high = wilson(count, total)
    return f"{low:.1%} – {high:.1%}"
