"""What counts as an accuracy, by its name and by what it holds."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from detrain.python.inspect.program_metrics import accuracies, is_accuracy


@pytest.mark.parametrize(
    "name", ["accuracy", "acc", "val_accuracy", "sparse_categorical_accuracy", "top5_acc", "acc_1", "trainAcc"]
)
def test_accuracies(name: str) -> None:
    assert is_accuracy(name)


@pytest.mark.parametrize("name", ["accumulated_loss", "account", "loss", "accelerator", "access"])
def test_what_is_none(name: str) -> None:
    assert not is_accuracy(name)


def test_numbers_that_the_loop_keeps_are_told_from_those_of_validation() -> None:
    accuracy, accumulated, valid_accuracy, valid_loss = 0.5, 7.0, np.float32("nan"), 0.25
    acc_history = [accuracy, accumulated]
    kept = accuracies(sys._getframe(), lambda _: None)
    after = accuracies(sys._getframe(), lambda _: None, is_after_epoch=True)

    assert (kept, list(after)) == ({"accuracy": 0.5}, ["valid_accuracy", "valid_loss"])
    assert np.isnan(after["valid_accuracy"])
    assert (after["valid_loss"], len(acc_history)) == (valid_loss, 2)
    assert valid_accuracy != valid_accuracy  # noqa: PLR0124
