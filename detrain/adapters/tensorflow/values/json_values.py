"""Values in a form that JSON can hold: plain data by value, other objects by their names in the run.

Objects with names are variables, models, optimizers and all others registered with `Births`; functions and classes of
modules; members of enumerations. A description is a dict of one entry: the kind, and the data to make an equal value.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from detrain.adapters.stable_names import Births
from detrain.base import plain_types
from detrain.base.plain_types import CONTAINERS, IN_ORDER
from detrain.python.inspect.enums import is_enum
from detrain.python.inspect.names import class_name, find_enum, find_namedtuple, find_static, is_findable, static_name
from detrain.python.inspect.object_graph import ABSENT

Description = dict[str, Any]

SCALARS: Final = (bool, int, float, str, type(None))
ARRAYS: Final = (EagerTensor, *plain_types.ARRAYS)
_CONTAINERS: Final[dict[str, Any]] = {f"{kind} of": CONTAINERS[kind] for kind in ("set", "frozenset", "deque")}
_MOST_DEPTH: Final = 16
_MOST_PARTS: Final = 1 << 14
_MOST_ELEMENTS: Final = 1 << 10
"""The most elements of an array: a larger one is no setting."""


class NoDataError(Exception):
    """A value is not data and has no name, or is too large."""


class NotThereError(Exception):
    """The object that a description names has not been made yet."""


class ValueDescriptions:
    """Descriptions of values, and equal values made from them. `births` has the names of registered objects."""

    def __init__(self, births: Births) -> None:
        self._births = births

    def describe(self, value: Any) -> Description:
        """Return the description of a value. Raises NoDataError."""
        return self._described(value, 0, itertools.count())

    def _described(self, value: Any, depth: int, count: Iterator[int]) -> Description:
        if next(count) > _MOST_PARTS or depth > _MOST_DEPTH:
            raise NoDataError
        if type(value) in SCALARS and _is_json(value):
            return {"value": value}
        key = self._births.key(value)
        if key is not None:
            return {"key": key}
        if is_enum(type(value)) and find_enum(class_name(type(value)), None) is type(value):
            return {"enum": [class_name(type(value)), value.name]}
        if isinstance(value, type | types.FunctionType) and is_findable(value):
            return {"static": static_name(value)}
        if isinstance(value, ARRAYS):
            return {"array": _described_array(value)}
        return self._described_items(value, lambda item: self._described(item, depth + 1, count))

    def _described_items(self, value: Any, describe: Callable[[Any], Description]) -> Description:
        """Return the description of a list, tuple, dict or set, with its items described by the given function."""
        if isinstance(value, list):
            return {"list": [describe(item) for item in value]}
        if type(value) is tuple:
            return {"tuple": [describe(item) for item in value]}
        if isinstance(value, dict):
            if all(type(key) is str for key in value):
                return {"dict": {key: describe(item) for key, item in value.items()}}
            return {"pairs": [[describe(key), describe(item)] for key, item in value.items()]}
        if isinstance(value, tuple) and find_namedtuple(class_name(type(value))) is type(value):
            return {"namedtuple": [class_name(type(value)), [describe(item) for item in value]]}
        for kind, cls in _CONTAINERS.items():
            if type(value) is cls:
                return {kind: [describe(item) for item in (value if issubclass(cls, IN_ORDER) else sorted(value, key=repr))]}
        raise NoDataError

    def recall(self, description: Description) -> Any:
        """Return a value equal to the described one; lists and dicts are plain ones. Raises NotThereError."""
        [(kind, content)] = description.items()
        match kind:
            case "value":
                return content
            case "key":
                return self._recall_key(content)
            case "static" | "enum":
                found = find_static(content) if kind == "static" else _member(*content)
                if found is ABSENT:
                    raise NotThereError
                return found
            case "array":
                return _array(*content)
            case "dict":
                return {key: self.recall(item) for key, item in content.items()}
            case "pairs":
                return {self.recall(key): self.recall(item) for key, item in content}
            case "namedtuple":
                cls = find_namedtuple(content[0])
                if cls is None:
                    raise NotThereError
                return tuple.__new__(cls, [self.recall(item) for item in content[1]])
        return {**_CONTAINERS, "list": list, "tuple": tuple}[kind]([self.recall(item) for item in content])

    def _recall_key(self, key: str) -> Any:
        found = self._births.find(key)
        if found is None:
            raise NotThereError
        return found


def _member(name: str, member: str) -> Any:
    return getattr(find_enum(name, None), "__members__", {}).get(member, ABSENT)


def _is_json(value: Any) -> bool:
    if not isinstance(value, str):
        return not isinstance(value, int) or abs(value) < 1 << 63
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _described_array(value: Any) -> list[Any]:
    try:
        dtype = tf.as_dtype(value.dtype)
    except TypeError:
        raise NoDataError from None
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
    if not is_number or math.prod(value.shape) > _MOST_ELEMENTS:
        raise NoDataError
    array = np.asarray(value)
    kind = "tensor" if isinstance(value, EagerTensor) else "array" if isinstance(value, np.ndarray) else "scalar"
    return [kind, dtype.name, list(array.shape), array.tobytes().hex()]


def _array(kind: str, dtype: str, shape: list[int], content: str) -> Any:
    array = np.frombuffer(bytes.fromhex(content), tf.as_dtype(dtype).as_numpy_dtype).reshape(shape).copy()
    return tf.constant(array) if kind == "tensor" else array if kind == "array" else array[()]
