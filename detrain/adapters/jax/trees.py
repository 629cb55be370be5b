"""The leaves of a program's containers, whether or not JAX itself would take these as a tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from detrain.python.inspect.held import walk


def leaves_of(value: object) -> list[Any]:
    """Return the leaves of a JAX tree. Where JAX cannot flatten it (a dictionary whose keys have no order, a list that
    contains itself), return the leaves of the values in its plain containers, each value once; an object whose
    flattening code fails has none.
    """
    found = _flattened(value)
    if found is not None:
        return found
    inside = (each for each in walk([value], _held) if not isinstance(each, dict | list | tuple))
    return [leaf for each in inside for leaf in _flattened(each) or ()]


def _flattened(value: object) -> list[Any] | None:
    try:
        return list(jax.tree.leaves(value))
    except Exception:  # an edge: comparisons and rules of the program
        return None


def _held(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
