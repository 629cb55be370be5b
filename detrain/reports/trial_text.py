"""Writes a trial as the artifact's text output, for tools that read it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from detrain.base.cursor import Address
from detrain.campaign.outcomes import accuracy_of, loss_of
from detrain.campaign.subject import Subject
from detrain.campaign.trial import Trial
from detrain.faults.bits import dtype_named
from detrain.faults.isca2023_text import TextLog
from detrain.runtime.observers.experiment_run import StepLine


def write_text(path: Path, subject: Subject, trial: Trial) -> None:
    """Write the steps from the start of the fault's epoch on. Raises OSError."""
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
    """Sort key that puts what follows an epoch's batches behind them."""
    return (cursor[0], cursor[1], math.inf if cursor[2] < 0 else cursor[2])
