"""A trial beside its golden run: as a picture (loss and accuracy by step, with the fault marked; PNG, SVG or a page of
HTML), and as the artifact's text output, for tools that read it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from detrain.base.cursor import Address, written
from detrain.campaign.outcomes import HasSeries, accuracies, accuracy_of, loss_of
from detrain.campaign.subject import Subject
from detrain.campaign.trial import Trial
from detrain.campaign.trial_log import TrialResult
from detrain.faults.bits import dtype_named
from detrain.faults.isca2023_csv import TextLog
from detrain.faults.record import FaultRecord
from detrain.reports.pictures import BLUE, GREY, RED, drawn_values, label_epochs, mark_not_finite, scale_losses, write_picture
from detrain.runtime.observers.experiment_run import StepLine

_MOST_ELEMENTS: Final = 64
_FAR: Final = 20


def write_text(path: Path, subject: Subject, trial: Trial) -> None:
    """Write the trial's steps from the start of the fault's epoch on. Raises OSError."""
    at, done, golden = trial.experiment.at, trial.done, trial.golden
    addresses = [cursor for cursor in {**golden.by_cursor(), **done.by_cursor()} if cursor[0] == at[0]]
    epochs, steps = (max(cursor[axis] for cursor in addresses) + 1 for axis in (1, 2))
    with path.open("w", encoding="utf-8") as stream:
        log = TextLog(stream, epochs=epochs, steps=steps)
        log.starts(epoch=at[1], step=at[2], weights=str(subject.start_of(at) or "none: the run starts anew"))
        known = done.by_cursor()
        of_epoch: list[StepLine] = []
        for cursor in sorted((key for key in known if key[0] == at[0]), key=_after_its_batches):
            if cursor[2] < 0:
                goes_on = _end_epoch(log, cursor, of_epoch, known[cursor])
                of_epoch = []
            else:
                if cursor == at:
                    _hit(log, trial, subject.label_of(trial.injection.site))
                of_epoch.append(known[cursor])
                goes_on = log.step(
                    epoch=cursor[1], step=cursor[2], loss=loss_of(known[cursor]), accuracy=accuracy_of(known[cursor])
                )
            if not goes_on:
                return


def _hit(log: TextLog, trial: Trial, label: str) -> None:
    injection, firing = trial.injection, trial.done.fired
    if firing is None:
        return
    dtype = dtype_named(injection.dtype)
    patterns = dtype.unsigned.newbyteorder("<")
    positions = np.unravel_index(injection.array("positions"), injection.shape) if injection.shape else ([0],)
    log.hits(
        worker=injection.worker,
        layer=label,
        shape=injection.shape,
        positions=[tuple(int(axis[index]) for axis in positions) for index in range(len(positions[0]))],
        golden=np.frombuffer(firing.golden, patterns).astype(dtype.unsigned),
        injected=np.frombuffer(firing.injected, patterns).astype(dtype.unsigned),
        dtype=dtype,
    )


def _end_epoch(log: TextLog, cursor: Address, steps: list[StepLine], after: StepLine) -> bool:
    losses = [loss_of(step) for step in steps]
    accuracies = [accuracy_of(step) for step in steps]
    return log.ends_epoch(
        epoch=cursor[1],
        train_loss=float(np.mean(losses)) if losses else math.nan,
        train_accuracy=float(np.mean(accuracies)) if accuracies else math.nan,
        valid_loss=next((float(value) for name, value in sorted(after.series.items()) if "loss" in name), math.nan),
        valid_accuracy=accuracy_of(after),
    )


def _after_its_batches(cursor: Address) -> tuple[int, int, float]:
    """Return a sort key by which the line behind an epoch (batch -1) comes after the epoch's batches."""
    return (cursor[0], cursor[1], math.inf if cursor[2] < 0 else cursor[2])


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
    """Return whether the lines' values are so far apart that one line would look flat."""
    known = [abs(value) for value in drawn_values(axis) if value]
    return bool(known) and max(known) > _FAR * statistics.median(known)


def _where(record: FaultRecord) -> str:
    injection = record.experiment.injection
    return "" if injection is None else f"the {injection.operand} of {injection.site}"
