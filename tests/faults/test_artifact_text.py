"""The artifact's text output, against the lines of the definitions."""

from __future__ import annotations

import io

import numpy as np

from detrain.faults.bits import DTYPES
from detrain.faults.isca2023_csv import TextLog


def test_a_run_that_ends_in_nan_is_written_line_for_line() -> None:
    stream = io.StringIO()
    log = TextLog(stream, epochs=80, steps=49)
    golden = np.array([0.1, -1.5], np.float32).view(np.uint32)

    log.starts(epoch=19, step=38, weights="ckpt/epoch_18")
    assert log.step(epoch=19, step=37, loss=0.123456789, accuracy=0.95)
    log.hits(
        worker=1,
        layer="conv1",
        shape=(128, 16, 16, 64),
        positions=[(107, 3, 3, 5), (107, 3, 3, 6)],
        golden=golden,
        injected=np.array([2.86871514043344e24, np.nan], np.float32).view(np.uint32),
        dtype=DTYPES["float32"],
    )
    assert log.ends_epoch(epoch=19, train_loss=1, train_accuracy=0.5, valid_loss=2.000004, valid_accuracy=0.25)
    assert not log.step(epoch=19, step=38, loss=float("nan"), accuracy=0.125)

    assert stream.getvalue() == (
        "Inject to epoch: 19\n"
        "Inject to step: 38\n"
        "Load weights from ckpt/epoch_18\n"
        "Epoch: 19/80, step: 37/49, loss: 0.12346, accuracy: 0.95000\n"
        "Inject worker: 1\n"
        "Inject layer: conv1\n"
        "Shape for target layer is (128, 16, 16, 64)\n"
        "Position is (107, 3, 3, 5), Golden data is 0.1, inject data is 2.868715e+24\n"
        "Position is (107, 3, 3, 6), Golden data is -1.5, inject data is nan\n"
        "End of epoch: 19/80, train loss: 1.00000, train accuracy: 0.50000, valid loss: 2.00000, valid accuracy: 0.25000\n"
        "Epoch: 19/80, step: 38/49, loss: nan, accuracy: 0.12500\n"
        "Encounter NaN! Terminate training!\n"
    )


def test_a_validation_loss_that_is_not_finite_ends_the_run() -> None:
    stream = io.StringIO()

    log = TextLog(stream, epochs=2, steps=3)

    assert not log.ends_epoch(epoch=0, train_loss=1, train_accuracy=0.5, valid_loss=float("inf"), valid_accuracy=0.25)
    assert stream.getvalue().endswith("valid loss: inf, valid accuracy: 0.25000\nEncounter NaN! Terminate training!\n")


def test_numbers_of_every_dtype_are_written_so_that_they_can_be_told_apart() -> None:
    for dtype in DTYPES.values():
        patterns = np.random.Generator(np.random.PCG64(3)).integers(1 << dtype.width, size=500, dtype=dtype.unsigned)
        patterns = patterns[dtype.is_finite(patterns)]
        stream = io.StringIO()

        TextLog(stream, epochs=1, steps=1).hits(
            worker=0, layer="l", shape=(9,), positions=[(0,)] * len(patterns), golden=patterns, injected=patterns, dtype=dtype
        )

        written = [line.rsplit(" ", 1)[1] for line in stream.getvalue().splitlines()[3:]]
        assert len(written) == len(patterns)
        if dtype.exponent:
            assert (dtype.patterns([float(number) for number in written]) == patterns).all()
        else:
            numbers = np.array([int(number) for number in written], dtype.name)
            assert (numbers.view(dtype.unsigned) == patterns).all()
