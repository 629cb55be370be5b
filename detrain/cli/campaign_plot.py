"""Draws what came of the trials of a campaign: the shares of the outcomes, by fault model, and the losses from the fault on."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from detrain.cli.pictures import GREY, write_picture
from detrain.cli.shares import wilson
from detrain.faults.experiment import written
from detrain.faults.record import FaultRecord

_COLORS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")
"""Paul Tol's bright scheme, and black. The most frequent outcomes get the first ones."""
_MOST_CURVES: Final = 200


def plot_campaign(path: Path, records: Sequence[FaultRecord]) -> None:
    """Write the picture of a campaign."""
    from matplotlib.figure import Figure

    counts = collections.Counter(record.outcome for record in records)
    outcomes = [outcome for outcome, _ in counts.most_common()]
    colors = {outcome: _COLORS[min(index, len(_COLORS) - 1)] for index, outcome in enumerate(outcomes)}
    models = sorted({record.model for record in records})
    height = 2.4 + 0.28 * (len(outcomes) + len(models))
    figure = Figure(figsize=(9, height + 3), layout="constrained")
    heights = [len(outcomes) + 1, len(models) + 1, 8]
    shares, by_model, losses = figure.subplots(3, 1, height_ratios=heights)
    _draw_shares(shares, counts, len(records), colors)
    _draw_models(by_model, records, models, colors)
    _draw_losses(losses, records, colors)
    for axis in (shares, by_model, losses):
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


def _draw_losses(axis: Any, records: Sequence[FaultRecord], colors: dict[str, str]) -> None:
    """The step of the fault is step 0. A curve has no points where its loss is not finite; the few largest ones leave the axis."""
    curves = [
        (colors[record.outcome], np.array([step.series.get("loss", math.nan) for step in record.steps if step.at[2] >= 0], float))
        for record in records[:_MOST_CURVES]
    ]
    for color, points in curves:
        is_finite = np.isfinite(points)
        axis.plot(np.where(is_finite, points, np.nan), color=color, lw=0.8, alpha=0.7)
        if not is_finite.all():
            axis.plot(is_finite.argmin(), 0.97, "x", color=color, ms=4, transform=axis.get_xaxis_transform())
    known = np.concatenate([points[np.isfinite(points)] for _, points in curves])
    if known.size:
        low, high = float(known.min()), max(float(np.percentile(known, 98)), 1e-3)
        if low > 0:
            axis.set_yscale("log")
        else:
            axis.set_yscale("symlog", linthresh=1e-3)
        axis.set_ylim(low / 2 if low > 0 else 2 * low, 10 * high)
    axis.set_ylabel("loss")
    axis.set_xlabel("steps from the fault on (crosses: the first INF or NaN)")


def _place(record: FaultRecord) -> tuple[str, str, str]:
    injection = record.experiment.injection
    site, operand = (injection.site, injection.operand) if injection is not None else ("", "")
    return site, operand, written(record.experiment.at)


def _seen(record: FaultRecord) -> str:
    return "" if record.alarm is None else f"after {record.alarm.steps} steps: {record.alarm.variable}"
