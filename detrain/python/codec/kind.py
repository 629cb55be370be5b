"""The table of kinds of nodes. One entry has all facts about a kind, by its name, so that code that goes over a graph
need not know kinds itself.

The families (`containers`, `arrays`, `functions`, …) have two functions for each kind, side by side: one makes a node
of an object, one makes the object again. They enter their kinds here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from detrain.python.codec.decoding import Decoding
from detrain.python.inspect.object_graph import Node

_MANY: Final = 1 << 62
NONE: Final = type(None)

Decode = Callable[[Decoding, int, Node, Any, str], Any]
"""Returns the object of a node. Takes the decoding, the node's number, the node, the live object at its place (or
`ABSENT`), and the path."""


class Form(NamedTuple):
    """The form that a node of a kind has in a file."""

    data: Any = NONE
    """Classes that the data may have; a list: the classes of the first items of the data, which is a list."""
    least: int = 0
    """How many items there are, at least; `most`: at most."""
    most: int = _MANY
    first: str = ""
    """The sort of the first item, if there is one: "node" or "array"."""


Holds = Literal["state", "others", "nothing"]
"""The part of an object that can change while its identity stays: its state, only the objects it leads to, or none."""


class NodeKind(msgspec.Struct, frozen=True):
    """A kind of nodes."""

    decode: Decode
    form: Form | None
    """None: a kind whose objects are made again from their parts checks the parts itself."""
    holds: Holds
    lists: bool
    """Whether a program finds an object's items by their number."""


KINDS: Final[dict[str, NodeKind]] = {}


def define(*names: str, decode: Decode, form: Form | None, holds: Holds = "state", lists: bool = False) -> None:
    """Enter kinds of nodes."""
    for name in names:
        assert name not in KINDS, name
        KINDS[name] = NodeKind(decode, form, holds, lists)
