"""Draws the results of a campaign: shares of the outcomes, by fault model, and series beside the golden run's."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from detrain.base.cursor import Address, written
from detrain.campaign.outcomes import HasSeries, accuracies, accuracy_of, loss_of
from detrain.campaign.trial_log import TrialResult
from detrain.faults.record import FaultRecord
from detrain.faults.statistics.intervals import wilson
from detrain.reports.pictures import GREY, label_epochs, mark_not_finite, scale_losses, write_picture

_COLORS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")
"""Paul Tol's bright scheme, and black. The most frequent outcomes get the first ones."""
_GOLDEN: Final = "#000000"
_MOST_CURVES: Final = 200


def plot_campaign(path: Path, records: Sequence[FaultRecord], golden: TrialResult) -> None:
    """Write the picture of a campaign, beside the golden run of its program."""
    from matplotlib.figure import Figure

    counts = collections.Counter(record.outcome for record in records)
    outcomes = [outcome for outcome, _ in counts.most_common()]
    colors = {outcome: _COLORS[min(index, len(_COLORS) - 1)] for index, outcome in enumerate(outcomes)}
    models = sorted({record.model for record in records})
    series: dict[str, Callable[[HasSeries], float]] = {"loss": loss_of}
    if any(not math.isnan(accuracy_of(step)) for step in golden.steps):
        series |= {name or "accuracy": partial(accuracy_of, name=name) for name in accuracies(golden)}
    heights = [len(outcomes) + 1, len(models) + 1, *[8] * len(series)]
    figure = Figure(figsize=(9, 2.4 + 0.28 * (len(outcomes) + len(models)) + 3 * len(series)), layout="constrained")
    shares, by_model, *axes = figure.subplots(len(heights), 1, height_ratios=heights)
    _draw_shares(shares, counts, len(records), colors)
    _draw_models(by_model, records, models, colors)
    cursors = sorted(cursor for cursor in golden.by_cursor() if cursor[2] >= 0)
    for axis, (name, value) in zip(axes, series.items(), strict=True):
        _draw_series(axis, cursors, golden, records, colors, value)
        axis.set_ylabel(name)
        if axis is not axes[-1]:
            axis.sharex(axes[-1])
            axis.tick_params(labelbottom=False)
    scale_losses(axes[0])
    axes[0].legend(frameon=False, fontsize=8, ncols=3, loc="upper right")
    label_epochs(axes[-1], cursors, "dots: the step of the fault, crosses: INF or NaN")
    for axis in (shares, by_model, *axes):
        axis.spines[["top", "right"]].set_visible(False)
    program = " ".join((records[0].program, *records[0].arguments))
    title = f"{len(records)} faults in {program}"
    figure.suptitle(title, fontsize=11)
    rows = ([str(number), record.model, *_place(record), record.outcome, _seen(record)] for number, record in enumerate(records))
    said = ", ".join(f"{outcome}: {count}" for outcome, count in counts.most_common())
    write_picture(path, figure, title, said, ("trial", "model", "site", "operand", "at", "outcome", "seen by the guard"), rows)


def _draw_shares(axis: Any, counts: collections.Counter[str], total: int, colors: dict[str, str]) -> None:
    names = list(colors)[::-1]
    shares = [counts[name] / total for name in names]
    bounds = [wilson(counts[name], total) for name in names]
    reach = [
        [share - low for share, (low, _) in zip(shares, bounds, strict=True)],
        [high - share for share, (_, high) in zip(shares, bounds, strict=True)],
    ]
    axis.barh(names, shares, color=[colors[name] for name in names], xerr=reach, ecolor=GREY, capsize=3)
    axis.set_xlim(0, 1)
    axis.xaxis.set_major_formatter("{x:.0%}")
    axis.set_xlabel("share of the trials, with 95 % intervals (Wilson)")


def _draw_models(axis: Any, records: Sequence[FaultRecord], models: list[str], colors: dict[str, str]) -> None:
    counts = collections.Counter((record.model, record.outcome) for record in records)
    left = [0] * len(models)
    for outcome, color in colors.items():
        widths = [counts[model, outcome] for model in models]
        axis.barh(models, widths, left=left, color=color)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("trials, by fault model")


def _draw_series(
    axis: Any,
    cursors: Sequence[Address],
    golden: TrialResult,
    records: Sequence[FaultRecord],
    colors: dict[str, str],
    value: Callable[[HasSeries], float],
) -> None:
    """Draw one series of the golden run, and above it those of the trials from the step of the fault on."""
    known = golden.by_cursor()
    axis.plot([_finite(value(known[cursor])) for cursor in cursors], color=_GOLDEN, lw=2, label="golden", zorder=1)
    order = {cursor: number for number, cursor in enumerate(cursors)}
    named = set()
    for record in records[:_MOST_CURVES]:
        color, outcome = colors[record.outcome], record.outcome
        steps = {order[step.at]: value(step) for step in record.steps if step.at in order}
        places, points = list(steps), list(steps.values())
        label = outcome if outcome not in named else None
        named.add(outcome)
        axis.plot(places, list(map(_finite, points)), color=color, lw=0.8, alpha=0.7, label=label)
        axis.plot(places[:1], list(map(_finite, points[:1])), ".", color=color, ms=5)
        mark_not_finite(axis, [place for place, point in steps.items() if not math.isfinite(point)][:1], color)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _place(record: FaultRecord) -> tuple[str, str, str]:
    injection = record.experiment.injection
    site, operand = (injection.site, injection.operand) if injection is not None else ("", "")
    return site, operand, written(record.experiment.at)


def _seen(record: FaultRecord) -> str:
    return "" if record.alarm is None else f"after {record.alarm.steps} steps: {record.alarm.variable}"
