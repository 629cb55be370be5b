"""The leaves of what a program has put into containers, whether or not JAX itself would take it as a tree."""

from __future__ import annotations

from typing import Any

import jax


def leaves_of(value: object, around: tuple[int, ...] = ()) -> list[Any]:
    """Return the leaves of a tree of JAX's. Where JAX cannot flatten it, as a dictionary whose keys have no order or a
    list in itself, they are those of what its plain containers hold; an object whose class is flattened by code that
    fails has none. `around` are the identities of the containers that lead to it.
    """
    try:
        return list(jax.tree.leaves(value))
    except Exception:  # an edge: comparisons and rules of the program
        held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        inside = (*around, id(value))
        return [leaf for each in held if id(each) not in inside for leaf in leaves_of(each, inside)]
