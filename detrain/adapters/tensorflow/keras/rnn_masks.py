"""The masks of dropout that recurrent cells keep from call to call, where a program calls the cells itself.

Drawn at the first call, they stay until the cell is told to drop them. They are captured; those that building ahead has
left are no tensors that anything could use.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from detrain.adapters.stable_names import Births
from detrain.base.errors import Diverged

MASKS: Final = ("_dropout_mask", "_recurrent_dropout_mask")
_CACHES: Final = ("_dropout_mask_cache", "_recurrent_dropout_mask_cache")
"""Where cells of Keras 2 keep them, by the graph; those of no graph under an object that is none."""


def masks(value: Any) -> dict[str, Any]:
    """Return the masks that a cell keeps: type, shape and bytes of each, lists of them where it keeps one for each
    gate.
    """
    own = vars(value)
    held = {name: own.get(name) for name in MASKS}
    for name in own.keys() & set(_CACHES):
        held[name] = next((kept for graph, kept in own[name].items() if not isinstance(graph, tf.Graph)), None)
    return {name: found for name, kept in held.items() if (found := _described(kept)) is not None}


def kept_masks(births: Births, cell_type: type) -> list[str]:
    """Return, in words, the masks that cells of this type keep."""
    return [f"the dropout masks that {key} keeps" for key, cell in births.living(cell_type) if masks(cell)]


def restore_masks(state: dict[str, Any], objects: dict[str, Any]) -> None:
    """Set them, by the keys of their cells. Raises Diverged where a cell is not there."""
    lost = sorted(state.keys() - objects.keys())
    if lost:
        raise Diverged(
            f"the dropout masks that {lost[0]!r} keeps from call to call cannot be put back: the loop makes it",
            "make and build it before the loop, or call its reset_dropout_mask() in each step, and start anew with --fresh",
        )
    for key, value in objects.items():
        own, kept = vars(value), state.get(key, {})
        own.update(dict.fromkeys(own.keys() & set(MASKS)))
        for name in own.keys() & set(_CACHES):
            own[name].clear()
        for name, described in kept.items():
            if name in _CACHES:
                own[name].setdefault(default=_tensors(described))
            else:
                own[name] = _tensors(described)


def _described(mask: Any) -> list[Any] | None:
    if isinstance(mask, list):
        return [_described(item) for item in mask]
    if not isinstance(mask, EagerTensor):  # of a function's graph, which no other can use
        return None
    return [mask.dtype.name, mask.shape.as_list(), mask.numpy().tobytes().hex()]


def _tensors(described: list[Any]) -> Any:
    if not isinstance(described[0], str):
        return [_tensors(item) for item in described]
    dtype, shape, content = described
    return tf.constant(np.frombuffer(bytes.fromhex(content), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape))
