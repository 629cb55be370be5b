"""Writes the text output of the ISCA 2023 artifact (`replay_*.txt`), line for line, so that tools made for it can read
ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TextIO

import numpy as np

from detrain.faults.bits import DType, Patterns
from detrain.faults.limits import Shape


class TextLog:
    """The output of one run to a stream, each line flushed. Epochs and steps are written as they are given."""

    def __init__(self, stream: TextIO, *, epochs: int, steps: int) -> None:
        self._stream = stream
        self._epochs = epochs
        self._steps = steps

    def starts(self, *, epoch: int, step: int, weights: str) -> None:
        """Write where the fault will be, and what the run starts from."""
        self._write(f"Inject to epoch: {epoch}", f"Inject to step: {step}", f"Load weights from {weights}")

    def hits(
        self,
        *,
        worker: int,
        layer: str,
        shape: Shape,
        positions: Sequence[Shape],
        golden: Patterns,
        injected: Patterns,
        dtype: DType,
    ) -> None:
        """Write the fault, before the line of the step that it hits: a line an element."""
        self._write(f"Inject worker: {worker}", f"Inject layer: {layer}", f"Shape for target layer is {shape}")
        for position, old, new in zip(positions, _shown(golden, dtype), _shown(injected, dtype), strict=True):
            self._write(f"Position is {position}, Golden data is {old}, inject data is {new}")

    def step(self, *, epoch: int, step: int, loss: float, accuracy: float) -> bool:
        """Write a step; return whether the run goes on, which it does not after a loss that is not finite."""
        self._write(f"Epoch: {epoch}/{self._epochs}, step: {step}/{self._steps}, loss: {loss:.5f}, accuracy: {accuracy:.5f}")
        return self._goes_on(loss)

    def ends_epoch(self, *, epoch: int, train_loss: float, train_accuracy: float, valid_loss: float, valid_accuracy: float) -> bool:
        """Write the end of an epoch; return whether the run goes on."""
        self._write(
            f"End of epoch: {epoch}/{self._epochs}, train loss: {train_loss:.5f}, train accuracy: {train_accuracy:.5f},"
            f" valid loss: {valid_loss:.5f}, valid accuracy: {valid_accuracy:.5f}"
        )
        return self._goes_on(train_loss, valid_loss)

    def _goes_on(self, *losses: float) -> bool:
        if all(math.isfinite(loss) for loss in losses):
            return True
        self._write("Encounter NaN! Terminate training!")
        return False

    def _write(self, *lines: str) -> None:
        self._stream.writelines(f"{line}\n" for line in lines)
        self._stream.flush()


def _shown(patterns: Patterns, dtype: DType) -> list[str]:
    """The numbers of patterns, in as many digits as tell them from all others of their dtype."""
    if not dtype.exponent:
        return [str(int(number)) for number in patterns.view(dtype.name)]
    numbers = dtype.numbers(patterns)
    return [str(number) for number in numbers.astype(np.float32 if dtype.name == "bfloat16" else dtype.name)]
