"""Which model a trial is of, drawn uniformly or by FIdelity's shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from detrain.base.errors import FaultInvalid
from detrain.faults.models import PUBLISHED, FaultModel

FIDELITY: Final = {
    "input": 0.018,
    "weight": 0.035,
    "input16": 0.117,
    "weight16": 0.156,
    "neuron": 0.272,
    "local control": 0.041,
    "global control": 0.081,
}
"""FIdelity's shares, by where in the accelerator a fault is. They come to .72 and are used as ratios."""

GROUPS: Final = {
    "INPUT": "input",
    "WT": "weight",
    "INPUT_16": "input16",
    "WT_16": "weight16",
    "RBFLIP": "neuron",
    **{name: "global control" for name in PUBLISHED if name.endswith("_GLB")},
}
"""The groups that we put the published models in; all that are not here are local control."""


def draw_model(models: Iterable[FaultModel], rng: np.random.Generator, shares: Mapping[str, float] | None = None) -> FaultModel:
    """Draw one of the models: uniformly, or by the shares of groups, evenly within a group.

    Groups of which there is no model are left out, the other shares keep their ratios. Raises FaultInvalid where none
    is left.
    """
    listed = list(models)
    groups = [GROUPS.get(model.name.split(":")[0], "local control") for model in listed]
    weights = np.array([(shares.get(group, 0.0) / groups.count(group) if shares else 1.0) for group in groups])
    if not weights.sum() > 0 or weights.min() < 0:
        raise FaultInvalid("there is no fault model to draw from", "give more models, or shares above 0")
    chosen = np.searchsorted(np.cumsum(weights), rng.random() * weights.sum(), side="right")
    return listed[min(int(chosen), len(listed) - 1)]
