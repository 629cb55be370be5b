"""The arrays that the program's names lead to: `params.conv1.w`, `opt_state.1.0.mu.conv1.w`, the same in every run.

Arrays are replaced and never changed, so each look finds other ones. Names of the outermost frame come first, in the
order in which its code has them, functions last; the first name that leads to an array is its name.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax._src.random.prng import PRNGKeyArray

from detrain.adapters import keras_objects
from detrain.adapters.jax import spread_arrays
from detrain.adapters.jax.jitted import Jitted
from detrain.base.digest import Array
from detrain.python.inspect.frames import user_frames
from detrain.python.inspect.held import walk
from detrain.python.inspect.named import inside, namespaces

_DEEPEST: Final = 16
_BEHIND_PYTHON: Final = 4
"""The most steps from a name to an array, and the most of these steps that may lead through objects and functions,
which are no JAX trees."""
_MOST_INSIDE: Final = 1024
"""The most values of a collection in which arrays are looked for. Longer ones (losses, a buffer of samples) are no part
of a model, and each look would take too long."""
_WHOLE: Final = (bool, bytes, complex, float, int, str, type(None), np.ndarray, np.generic, np.dtype, type, ModuleType)
"""Types of values inside of which no array is looked for."""
_OPTIMIZERS: Final = ("optax",)
"""Modules whose named tuples hold the state of optimizers."""


class _Met(NamedTuple):
    """A value that a name, or steps from a name, lead to."""

    name: str
    value: Any
    depth: int
    behind: int
    of: str
    """The class of the optimizer's state around the value; empty: there is none."""


class NamedArrays:
    """See `detrain.adapters.api.NamedTensors`."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Any, str]] = {}
        """The arrays that the last look found, also those donated since; each with the class of the optimizer's state
        around it (empty: none)."""

    def look(self) -> None:
        """Find arrays from the program's frames that call this; if no such frame is left, keep those found before."""
        frames = user_frames(sys._getframe())[::-1]
        if not frames:
            return
        values = [sorted(each.items(), key=lambda item: isinstance(item[1], FunctionType | Jitted)) for each in namespaces(frames)]
        first = [_Met(name, value, 0, 0, "") for each in values for name, value in each]
        self.found = {}
        for met in walk(first, _below, lambda met: None if isinstance(met.value, _WHOLE) else id(met.value)):
            if isinstance(met.value, jax.Array) and not isinstance(met.value, jax.core.Tracer):
                self.found.setdefault(met.name, (met.value, met.of))

    def arrays(self) -> dict[str, tuple[Any, str]]:
        """Return the arrays of the last look that were not donated since."""
        return {name: found for name, found in self.found.items() if not found[0].is_deleted()}

    def tensors(self) -> dict[str, Array]:
        """Return the values of these arrays; of keys, their numbers."""
        return {name: value_of(array) for name, (array, _of) in self.arrays().items()}


def value_of(array: Any) -> Array:
    """Return the values of an array, which may share its memory; of keys, their numbers. An array over several
    processes gives the values of this process's shards.
    """
    plain = array._base_array if isinstance(array, PRNGKeyArray) else array
    return spread_arrays.content(plain) if spread_arrays.is_spread(plain) else spread_arrays.read(plain)


def _below(met: _Met) -> list[_Met]:
    value = met.value
    if isinstance(value, (*_WHOLE, jax.Array)) or met.depth == _DEEPEST or met.behind == _BEHIND_PYTHON:
        return []
    steps, is_tree = _steps(value)
    is_state = is_tree and type(value).__module__.startswith(_OPTIMIZERS) and hasattr(value, "_fields")
    of = type(value).__name__ if is_state else met.of
    depth, behind = met.depth + 1, met.behind + (not is_tree)
    return [_Met(f"{met.name}.{step}" if step else met.name, each, depth, behind, of) for step, each in steps]


def _steps(value: Any) -> tuple[list[tuple[str, Any]], bool]:
    """Return the values one step inside of a value, by name, and whether the value is a node of a JAX tree."""
    if isinstance(value, Jitted):
        return [("", value.function)], False
    if keras_objects.is_layer(value) or keras_objects.is_optimizer(value):
        return keras_objects.values_on_jax(value), False
    if type(value).__module__.startswith("detrain.") or (isinstance(value, list | tuple | dict) and len(value) > _MOST_INSIDE):
        return [], False
    try:
        found, _tree = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda each: each is not value)
    except Exception:  # an edge: code of the program
        found = []
    if found and found[0][0]:
        return [(_step(path), each) for path, each in found if not isinstance(each, _WHOLE)], True
    return [(str(step), each) for (_kind, step), each in inside(value)], False


def _step(path: tuple[Any, ...]) -> str:
    key = path[-1]
    return str(next((getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)), key))
