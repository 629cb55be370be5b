"""Draws a trial beside its golden run: loss and accuracy by step, the fault marked. PNG, SVG or a page of HTML."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from detrain.base.cursor import written
from detrain.campaign.outcomes import HasSeries, accuracies, accuracy_of, loss_of
from detrain.campaign.trial_log import TrialResult
from detrain.faults.record import FaultRecord
from detrain.reports.pictures import BLUE, GREY, RED, drawn_values, label_epochs, mark_not_finite, scale_losses, write_picture

_MOST_ELEMENTS: Final = 64
_FAR: Final = 20


def plot_trial(path: Path, record: FaultRecord, golden: TrialResult, faulty: TrialResult) -> None:
    """Write the picture of a trial."""
    from matplotlib.figure import Figure

    at, begin = record.experiment.at, min(faulty.by_cursor())
    cursors = sorted(key for key in golden.by_cursor() if key[0] == at[0] and key[2] >= 0 and key >= begin)
    has_accuracy = any(not math.isnan(accuracy_of(step)) for step in golden.steps)
    shown: dict[str, Callable[[HasSeries], float]] = {"loss": loss_of}
    shown |= {name or "accuracy": partial(accuracy_of, name=name) for name in (accuracies(golden) if has_accuracy else ())}
    figure = Figure(figsize=(9, 1.3 + 2.1 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, value) in zip(axes, shown.items(), strict=True):
        for done, color, label, width in ((golden, BLUE, "golden", 2.4), (faulty, RED, "with the fault", 1.2)):
            known = done.by_cursor()
            points = [value(known[cursor]) if cursor in known else math.nan for cursor in cursors]
            axis.plot(range(len(points)), [p if math.isfinite(p) else math.nan for p in points], color=color, lw=width, label=label)
            bad = [index for index, point in enumerate(points) if cursors[index] in known and not math.isfinite(point)]
            mark_not_finite(axis, bad if len(bad) < len(points) else [], color)
        if name == "loss" and _is_far(axis):
            scale_losses(axis)
        axis.axvline(cursors.index(at), color=GREY, ls="--", lw=1, label=f"fault at {written(at)}")
        axis.set_ylabel(name)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=9)
    label_epochs(axes[-1], cursors, "crosses: INF or NaN")
    figure.suptitle(f"{record.model} in {_where(record)}: {record.outcome}", fontsize=11)
    rest = (
        f"; {len(record.elements)} elements, of which {_MOST_ELEMENTS} are below" if len(record.elements) > _MOST_ELEMENTS else ""
    )
    write_picture(
        path,
        figure,
        f"{record.model} in {_where(record)} at {written(at)}",
        f"Outcome: {record.outcome}; program {' '.join((record.program, *record.arguments))}{rest}",
        ("position", "golden", "injected"),
        ((str(list(each.position)), each.golden, each.injected) for each in record.elements[:_MOST_ELEMENTS]),
    )


def _is_far(axis: Any) -> bool:
    """Return whether the lines' values are so far apart that one of them would be flat."""
    known = [abs(value) for value in drawn_values(axis) if value]
    return bool(known) and max(known) > _FAR * statistics.median(known)


def _where(record: FaultRecord) -> str:
    injection = record.experiment.injection
    return "" if injection is None else f"the {injection.operand} of {injection.site}"
