"""Which variables of TensorFlow and Keras hold the history of a training, and what theory says of their size
(docs/explanation/guard.md).

Watched are weights, the slots of optimizers, and the moving statistics of layers. They are told by who holds them, so
that no names need to be known but those of the moving statistics; slots that a program makes by hand are told by their
shapes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from detrain.adapters.api import ROUNDING, Watched, adam_constant, bounded
from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.values.tensors import components_of

_MOVING: Final = {"moving_mean": 1, "moving_variance": 2}
_SQUARES: Final = ("velocit", "accumul", "_r", "_c", "_v", "rms")
"""Parts of the names of slots that hold squares of gradients."""
_NO_SQUARES: Final = ("_accumulated_gradients", "_model_variables_moving_average")
"""Slots that any of Keras's optimizers may have: sums of gradients, averages of weights."""
_ADAM_LIKE: Final = ("Adam", "AdamW", "Nadam", "Lamb")
"""Keras's optimizers whose `_momentums` and `_velocities` are means of the gradient and of its square."""


def find_watched(
    variables: Mapping[str, Any],
    births: Births,
    is_mask: Callable[[str, Any], bool],
    has_sign: Callable[[str, Any], bool] = lambda _key, _variable: False,
) -> list[Watched]:
    """Return what is to be watched among the variables alive, by their keys.

    `is_mask` tells of a weight, or of what may be a slot, whether it is infinite by intent, `has_sign` whether one has
    had values below zero, so that it holds no squares.
    """
    keys = {id(variable.handle): key for key, variable in variables.items()}
    found: dict[str, Watched] = {}
    scalars: set[str] = set()
    """Weights without axes, which an optimizer trains: other variables without axes are rates and counts."""
    for owner, optimizer in _optimizers(births):
        for attribute, slots in _slots(optimizer):
            group, power = f"{owner} {attribute}", _power(optimizer, attribute)
            for component in (part for slot in slots for part in components_of(slot)):
                key = keys.get(id(component.handle))
                if key is not None:
                    found[key] = Watched(key, group, power, _limit(optimizer, attribute, power, component))
        _pair(optimizer, keys, found)
        trained = (part for weight in getattr(optimizer, "_trainable_variables", ()) for part in components_of(weight))
        scalars |= {key for part in trained if not part.shape.rank and (key := keys.get(id(part.handle))) is not None}
    shapes = {tuple(variable.shape) for variable in variables.values() if variable.trainable}
    for key, variable in variables.items():
        label = key.rpartition("/")[2].partition(".")[0]
        if key in found or not variable.dtype.is_floating or not (variable.shape.rank or key in scalars):
            continue
        if label in _MOVING:
            found[key] = Watched(key, label, _MOVING[label])
        elif not variable.trainable and (tuple(variable.shape) not in shapes or _is_of_metric(key, births)):
            continue
        elif not is_mask(key, variable) and variable.trainable:
            found[key] = Watched(key, "weights", 1)
        elif not is_mask(key, variable):
            found[key] = Watched(key, "sums made by hand", 1) if has_sign(key, variable) else Watched(key, "slots made by hand", 2)
    return list(found.values())


def _optimizers(births: Births) -> Iterator[tuple[str, Any]]:
    keras: Any = sys.modules.get("keras")  # a program without it shall not import it for us
    if keras is not None:
        yield from births.living(keras.optimizers.Optimizer)


def _is_of_metric(key: str, births: Births) -> bool:
    keras: Any = sys.modules.get("keras")
    return keras is not None and isinstance(births.find(key.rpartition("/")[0]), keras.metrics.Metric)


def _slots(optimizer: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of slots of an optimizer of Keras, by attribute."""
    keras: Any = sys.modules["keras"]
    for name, value in vars(optimizer).items():
        if not isinstance(value, list) or name in ("_variables", "_trainable_variables"):
            continue
        slots = [item for item in value if isinstance(item, keras.Variable)]
        if slots:
            yield name, slots


def _power(optimizer: Any, attribute: str) -> int:
    if attribute in _NO_SQUARES or type(optimizer).__name__ in ("SGD", "Lion"):
        return 1
    return 2 if any(part in attribute for part in _SQUARES) else 1


def _is_of_keras(optimizer: Any, *names: str) -> bool:
    """Return whether an optimizer is one of these of Keras's: a class of the program may have the name, and other
    moments.
    """
    keras: Any = sys.modules["keras"]
    return type(optimizer) in [getattr(keras.optimizers, name) for name in names]


def _clip(optimizer: Any, size: int) -> float:
    """Return the largest Euclidean norm of a gradient of so many elements that the optimizer lets pass."""
    clips = [getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm")]
    value = getattr(optimizer, "clipvalue", None)
    norms = [float(clip) for clip in clips if clip is not None] + ([math.sqrt(size) * float(value)] if value is not None else [])
    return min(norms, default=math.inf)


def _limit(optimizer: Any, attribute: str, power: int, variable: Any) -> float:
    """Return the bound on the norm of a mean of gradients, or of their squares, that follows from clipping."""
    if not _is_of_keras(optimizer, *_ADAM_LIKE, "RMSprop") or attribute not in ("_momentums", "_velocities"):
        return math.inf
    if _is_of_keras(optimizer, "RMSprop") and attribute == "_momentums":
        return math.inf
    # The norm of the squares is at most the square of the norm.
    return ROUNDING * float(_clip(optimizer, int(variable.shape.num_elements() or 1)) ** power)


def _pair(optimizer: Any, keys: Mapping[int, str], found: dict[str, Watched]) -> None:
    """Bound each first moment of Adam by its second one: |m| <= C sqrt(v), by element (docs/explanation/guard.md)."""
    if not _is_of_keras(optimizer, *_ADAM_LIKE):
        return
    constant = adam_constant(float(optimizer.beta_1), float(optimizer.beta_2))
    if not math.isfinite(constant):
        return
    for m, v in zip(getattr(optimizer, "_momentums", ()), getattr(optimizer, "_velocities", ()), strict=False):
        for one, other in zip(components_of(m), components_of(v), strict=False):
            key, partner = keys.get(id(one.handle)), keys.get(id(other.handle))
            if key in found and partner in found:
                found[key] = bounded(found[key], partner, constant, int(one.shape.num_elements() or 1))
