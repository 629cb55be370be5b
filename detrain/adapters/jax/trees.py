"""The leaves of what a program has put into containers, whether or not JAX itself would take it as a tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from detrain.python.inspect.held import walk


def leaves_of(value: object) -> list[Any]:
    """Return the leaves of a tree of JAX's. Where JAX cannot flatten it, as a dictionary whose keys have no order or a
    list in itself, they are those of what its plain containers hold, each once; an object whose class is flattened by
    code that fails has none.
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
