"""The table of kinds of nodes: one entry says all that is known of a kind by its name, so that whoever goes over a
graph need not know kinds itself.

The families (`containers`, `arrays`, `functions`, …) have for each kind how an object becomes a node and how a node
becomes the object again, side by side, and enter their kinds here.
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
"""Returns the object of a node: of the decoding, the node's number, itself, the live object at its place (or `ABSENT`),
and the path."""


class Form(NamedTuple):
    """The form that a node of a kind has in a file."""

    data: Any = NONE
    """Classes that the data may be of; a list of such: of each of a list's first items."""
    least: int = 0
    """How many items there are."""
    most: int = _MANY
    first: str = ""
    """What the first item is, if there is one: "node" or "array"."""


Holds = Literal["state", "others", "nothing"]
"""What can change while an object stays the object that it is: its own state, what it leads to alone, or nothing."""


class NodeKind(msgspec.Struct, frozen=True):
    """A kind of nodes."""

    decode: Decode
    form: Form | None
    """None: each kind that is made again from its parts checks these itself."""
    holds: Holds
    lists: bool
    """Whether a program finds its items by their number."""


KINDS: Final[dict[str, NodeKind]] = {}


def define(*names: str, decode: Decode, form: Form | None, holds: Holds = "state", lists: bool = False) -> None:
    """Enter kinds of nodes."""
    for name in names:
        assert name not in KINDS, name
        KINDS[name] = NodeKind(decode, form, holds, lists)
