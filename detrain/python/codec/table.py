"""All kinds of nodes that the families enter, by their names."""

from __future__ import annotations

from typing import Final

from detrain.python.codec import arrays, containers, functions, made_again, objects, scalars, strangers, streams, tensors
from detrain.python.codec.kind import KINDS, NodeKind

FAMILIES: Final = (arrays, containers, functions, made_again, objects, scalars, streams, strangers, tensors)


def find_kind(name: str) -> NodeKind | None:
    """Return the kind of nodes with a name, or None. A framework's has a dot in its name, and is made from parts."""
    return KINDS.get(name) or (KINDS["made"] if "." in name else None)


def kind_named(name: str) -> NodeKind:
    """Return the kind of nodes with a name. Raises ValueError for a name that is none."""
    found = find_kind(name)
    if found is None:
        raise ValueError(f"unknown kind of node {name!r}")
    return found
