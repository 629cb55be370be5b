"""A classifier's predictions for each input, and their corruptions by a fault: SDC-1, SDC-5, SDC-10 %, SDC-20 %.

The classes are those of Li et al., *Understanding Error Propagation in Deep Learning Neural Network (DNN) Accelerators
and Applications*, SC 2017, section 4.6; SASSIFI's and PyTorchFI's users count by them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.faults.outcome_classes import Outcome

_TOP: Final = 5
_LARGE, _SMALL = 0.2, 0.1


class Prediction(msgspec.Struct, frozen=True, array_like=True):
    """A model's prediction for one input."""

    top: tuple[int, ...]
    """The classes with the highest scores, at most five, the highest first; of equal scores the lower class first."""
    confidence: float | str
    """The first class's share of the softmax over all classes; text if it is not finite."""


class Corruptions(msgspec.Struct, frozen=True):
    """Numbers of inputs whose prediction a fault has changed, by the kind of change."""

    inputs: int = 0
    sdc_1: int = 0
    """The class with the highest score is another."""
    sdc_5: int = 0
    """That class is none of the golden run's five highest."""
    sdc_10: int = 0
    """The confidence differs from the golden run's by more than 10 % of it."""
    sdc_20: int = 0
    nonfinite: int = 0
    """A score is infinite or NaN; these inputs count in all of the four."""


def predictions_of(scores: NDArray[Any]) -> list[Prediction]:
    """Return the prediction for each input, from a model's scores before the softmax, of shape [..., class].

    All axes but the last are inputs: in a language model each token is one.
    """
    rows = scores.reshape(-1, scores.shape[-1]).astype(np.float64)
    found = []
    for row in rows:
        order = np.argsort(-row, kind="stable")[:_TOP]
        with np.errstate(all="ignore"):
            share = float(1 / np.exp(row - row[order[0]]).sum())
        is_finite = bool(np.isfinite(row).all())
        found.append(Prediction(tuple(map(int, order)), share if is_finite else "nan"))
    return found


def outcome(found: Corruptions) -> Outcome:
    """Return the class of a trial: the class of the input that suffers most."""
    worst = (
        (found.nonfinite, Outcome.IMMEDIATE_NAN),
        (found.sdc_5, Outcome.SDC_5),
        (found.sdc_1, Outcome.SDC_1),
        (found.sdc_20, Outcome.SDC_20),
        (found.sdc_10, Outcome.SDC_10),
    )
    return next((each for count, each in worst if count), Outcome.MASKED)


def corruptions(golden: Sequence[Prediction], faulty: Sequence[Prediction]) -> Corruptions:
    """Count the changes that a fault made to predictions of the same inputs, in the same order."""
    counts = dict.fromkeys(("sdc_1", "sdc_5", "sdc_10", "sdc_20", "nonfinite"), 0)
    for mine, its in zip(golden, faulty, strict=True):
        was, now = float(mine.confidence), float(its.confidence)
        is_broken = not math.isfinite(now)
        change = abs(now - was) / was if was else math.inf
        counts["nonfinite"] += is_broken
        counts["sdc_1"] += is_broken or its.top[0] != mine.top[0]
        counts["sdc_5"] += is_broken or its.top[0] not in mine.top
        counts["sdc_10"] += is_broken or change > _SMALL
        counts["sdc_20"] += is_broken or change > _LARGE
    return Corruptions(len(golden), **counts)
