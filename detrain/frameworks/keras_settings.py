"""What losses, schedules, regularizers and constraints of Keras's own classes hold.

They have no variables, and anything that a loop sets on them is state, however it is set: `setattr(loss, name, value)`, or
`loss._fn_kwargs["delta"] = 0.5`, which no look at the program's source shows. Numbers, texts and functions are captured as on
layers; lists, dicts and arrays by what they hold. In objects of the program's classes the walk over Python's state finds these.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from detrain.frameworks.births import Births
from detrain.runtime.naming import is_own_class

SCALARS: Final = (bool, int, float, str, type(None))
_HOLDERS: Final = (list, tuple, dict)
_ARRAYS: Final = (np.ndarray, np.generic, EagerTensor)
_MOST_ITEMS: Final = 1 << 10
"""A larger list or array is no setting."""


def classes_of(keras: Any) -> tuple[Any, ...]:
    """Return the classes in a module `keras` of whose objects this is true."""
    return (
        keras.losses.Loss,
        keras.optimizers.schedules.LearningRateSchedule,
        keras.regularizers.Regularizer,
        keras.constraints.Constraint,
    )


def watch_births(births: Births, classes: tuple[Any, ...]) -> None:
    """Name each object of these classes as it is made; not all of them call the `__init__` of their base."""

    def named(original: Any) -> Any:
        @functools.wraps(original)
        def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
            value = original(cls) if original is object.__new__ else original(cls, *args, **kwargs)
            births.register(value, cls.__name__, sys._getframe(1))
            return value

        return made

    for cls in classes:
        cls.__new__ = staticmethod(named(cls.__new__))


def contents(value: object) -> dict[str, Any]:
    """Return what the lists, dicts and arrays in an object's attributes hold, as JSON can have it."""
    if is_own_class(type(value)):
        return {}
    own = {name: item for name, item in list(vars(value).items()) if isinstance(item, (*_HOLDERS, *_ARRAYS))}
    found = {name: contents_of(item) for name, item in own.items()}
    return {name: described for name, described in found.items() if described is not None}


def set_contents(value: object, state: Mapping[str, Any]) -> None:
    """Set those of these attributes that are others than they were; a list or dict stays the same object."""
    own, now = vars(value), contents(value)
    for name in state.keys() & now.keys():
        if now[name] == state[name]:
            continue
        held, made = own[name], made_of(state[name])
        if type(held) is type(made) is dict:
            held.clear()
            held.update(made)
        elif type(held) is type(made) is list:
            held[:] = made
        else:
            own[name] = made


def contents_of(value: Any) -> list[Any] | None:
    """Return data from which `made_of` makes an equal value; None if there are none."""
    if type(value) in SCALARS:
        is_json = _is_text(value) if isinstance(value, str) else not isinstance(value, int) or abs(value) < 1 << 63
        return ["", value] if is_json else None
    if type(value) in _HOLDERS:
        if len(value) > _MOST_ITEMS:
            return None
        items = [contents_of(item) for item in (value.items() if type(value) is dict else value)]
        return None if None in items else [type(value).__name__, *items]
    if not isinstance(value, _ARRAYS) or not _is_number(value.dtype) or math.prod(value.shape) > _MOST_ITEMS:
        return None
    array = np.asarray(value)
    kind = "tensor" if isinstance(value, EagerTensor) else "array" if isinstance(value, np.ndarray) else "scalar"
    return [kind, tf.as_dtype(array.dtype).name, list(array.shape), array.tobytes().hex()]


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(dtype: Any) -> bool:
    try:
        found = tf.as_dtype(dtype)
    except TypeError:
        return False
    return bool(found.is_floating or found.is_integer or found.is_bool or found.is_complex)


def made_of(described: list[Any]) -> Any:
    """Return the value that was described."""
    kind, *rest = described
    match kind:
        case "":
            return rest[0]
        case "list":
            return [made_of(item) for item in rest]
        case "tuple":
            return tuple(made_of(item) for item in rest)
        case "dict":
            return dict(made_of(item) for item in rest)
    dtype, shape, content = rest
    array = np.frombuffer(bytes.fromhex(content), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape).copy()
    return tf.constant(array) if kind == "tensor" else array if kind == "array" else array[()]


Constants = dict[str, dict[str, dict[str, Any]]]
"""Of objects: parts of their state (`attributes`, `functions`, `settings`), each by name."""


def changed(now: Constants, before: Constants) -> Constants:
    """Return what is other than it was, of objects that were there."""
    found: Constants = {}
    for key in now.keys() & before.keys():
        for part, values in now[key].items():
            was = before[key][part]
            other = {name: value for name, value in values.items() if name in was and was[name] != value}
            if other:
                found.setdefault(key, {})[part] = other
    return found
