"""Reducers: how a package teaches detrain to save objects of a class that no other code can look into.

A reducer is found by its entry point, which has the name of the class. It gives an object's state as plain data, and
hands the data to the object of a resumed process. The result is checked: the object must give the same data again.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import numpy as np

from detrain.base.digest import digest_value
from detrain.base.dtypes import dtype_name
from detrain.base.errors import ReducerInvalid
from detrain.base.installed import entry_points
from detrain.base.plain_types import ARRAYS
from detrain.python.inspect.names import module_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS: Final = "detrain.reducers"
_MAX_DEPTH: Final = 6
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)


@runtime_checkable
class Reducer(Protocol):
    """A package's code for the objects of one class. It is made without arguments, in the process that trains.

    It may also have `make(data)`, which returns a new object, for objects that the loop itself makes.
    """

    def save(self, value: Any) -> Any:
        """Return the whole state of an object, as data.

        Numbers, texts, bytes, None, NumPy's arrays, and lists, tuples and dicts of these. It must change nothing, and
        return the same for the same state.
        """

    def load(self, value: Any, data: Any) -> None:
        """Give an object the data that `save` returned for it, or for its like in an earlier process."""


class Reduction:
    """A reducer of a class, with checks of its results."""

    def __init__(self, point: EntryPoint, reducer: Reducer) -> None:
        self._class, self._name = point.name, f"the reducer of {point.name} ({point.value})"
        self._reducer = reducer

    @property
    def makes(self) -> bool:
        """Whether it can make new objects."""
        return hasattr(self._reducer, "make")

    def save(self, value: object) -> Any:
        """Return a copy of the data of an object. Raises ReducerInvalid if the reducer returns no data."""
        return self._copy(self._call("save", value), "")

    def make(self, data: object) -> object:
        """Return a new object with this data. Raises ReducerInvalid if it has other data then."""
        made = self._call("make", self._copy(data, ""))
        if _name_of(type(made)) != self._class:
            raise ReducerInvalid(f"{self._name} made an object of {_name_of(type(made))}")
        self._check(made, data)
        return made

    def load(self, value: object, data: object) -> None:
        """Give an object its data. Raises ReducerInvalid if it has other data then."""
        self._call("load", value, self._copy(data, ""))
        self._check(value, data)

    def _check(self, value: object, data: object) -> None:
        if digest_value(self.save(value), lambda _: None) != digest_value(data, lambda _: None):
            raise ReducerInvalid(
                f"{self._name} did not bring an object back: `save` returns something else than what was loaded",
                "`load` has to set all that `save` returns, and `save` to return the same for the same state",
            )

    def _call(self, method: str, *arguments: object) -> Any:
        try:
            return getattr(self._reducer, method)(*arguments)
        except Exception as error:  # a stranger's code: its errors are reported with its name
            raise ReducerInvalid(f"{self._name} failed in `{method}`: {error!r}") from error

    def _copy(self, data: Any, path: str, depth: int = 0) -> Any:
        """Return a copy that shares nothing with the object, so that nothing changes it afterwards."""
        if depth > _MAX_DEPTH:
            raise ReducerInvalid(f"{self._name} returned data that is nested deeper than {_MAX_DEPTH}", "return flatter data")
        cls = type(data)
        if cls in _PLAIN:
            return data
        if cls in (list, tuple):
            return cls(self._copy(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(data))
        if cls is dict and {type(key) for key in data} <= {str, int}:
            return {key: self._copy(item, f"{path}[{key!r}]", depth + 1) for key, item in data.items()}
        if cls is np.ndarray and dtype_name(data.dtype) is not None:
            return np.array(data, copy=True, order="C")
        if isinstance(data, ARRAYS) and dtype_name(data.dtype) is not None:
            return data
        raise ReducerInvalid(
            f"{self._name} returned {'at ' + path if path else 'from `save`'} an object of {cls.__qualname__}, which is no data",
            "return numbers, texts, bytes, None, arrays of NumPy, and lists, tuples and dicts of these",
        )


def reduction_of(cls: type) -> Reduction | None:
    """Return the reduction of just this class, or None. Raises ReducerInvalid where its reducer cannot be made."""
    return reduction_named(_name_of(cls)) if installed() else None


def _name_of(cls: type) -> str:
    return f"{module_of(cls)}.{cls.__qualname__}"


@functools.cache
def reduction_named(name: str) -> Reduction | None:
    """Return the reduction of the class of this name (`module.Class`), as `reduction_of` does."""
    point = installed().get(name)
    if point is None:
        return None
    try:
        reducer = point.load()()
    except Exception as error:  # a stranger's code, as above
        raise ReducerInvalid(f"the reducer of {point.name} ({point.value}) cannot be made: {error!r}") from error
    if not isinstance(reducer, Reducer):
        raise ReducerInvalid(
            f"the reducer of {point.name} ({point.value}) is a {type(reducer).__qualname__} without `save` and `load`"
        )
    return Reduction(point, reducer)


@functools.cache
def installed() -> dict[str, EntryPoint]:
    """Return the entry points of reducers, by the names of their classes. Reads the metadata of all packages, once."""
    return {point.name: point for point in entry_points(ENTRY_POINTS)}
