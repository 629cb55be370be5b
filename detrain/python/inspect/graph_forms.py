"""The form that a node of each kind has in a file. Whoever reads a graph has it checked first, so that one of another
form is one clear error, before anything is put back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

MANY: Final = 1 << 62


class Form(NamedTuple):
    """The form of the nodes of a kind."""

    data: Any = None
    """Classes that the data may be of; a list of such: of each of a list's first items."""
    least: int = 0
    """How many items there are."""
    most: int = MANY
    first: str = ""
    """What the first item is, if there is one: "node" or "array"."""


_NONE: Final = type(None)
_FORMS: Final[dict[str, Form]] = {
    **dict.fromkeys(("list", "tuple", "dict", "Counter", "cell", "seeds"), Form(_NONE)),
    **dict.fromkeys(("OrderedDict", "defaultdict"), Form(_NONE, 0, 1)),
    **dict.fromkeys(("absent", "constant"), Form(_NONE, 0, 0)),
    **dict.fromkeys(("address", "annotated"), Form(_NONE, 1, 1, "node")),
    **dict.fromkeys(("set", "frozenset"), Form((str, list, _NONE))),
    **dict.fromkeys(("int", "type", "static"), Form(str, 0, 0)),
    **dict.fromkeys(("namedtuple", "wrapped"), Form(str)),
    **dict.fromkeys(("held", "reduced"), Form(str, 1, 1)),
    **dict.fromkeys(("opaque", "function"), Form([str])),
    **dict.fromkeys(("ndarray", "tensor"), Form([(list, _NONE), bool], 1, 1, "array")),
    "Generator": Form(_NONE, 1, 1),
    "library": Form(str, 1, 1, "node"),
    "deque": Form((int, _NONE)),
    "str": Form(bytes, 0, 0),
    "nan": Form([float, (str, _NONE)], 0, 0),
    "enum": Form([str, (str, _NONE)], 1, 1),
    "class": Form(str, first="node"),
    "object": Form([str, int, bool], 0, 1, "node"),
    "derived": Form([str], 0, 1, "node"),
    "generator": Form([str, list], 0, 0),
    "loader": Form([str, int], 1, 1),
    "method": Form(str, 2, 2),
    "partial": Form((str, _NONE), 3, 3),
    "defined": Form([str, str, str], 4),
    "inside": Form([list], 1, 1),
    "variable": Form([list, bool], 0, 0),
    "shared": Form([str, list], 2, first="node"),
    "memory": Form([int, int, str], 2, 2),
    "npscalar": Form(object, 1, 1, "array"),
    "same": Form([str, str], 0, 0),
    "view": Form([int, list, list, (str, _NONE), bool], 1, 1, "node"),
    "objects": Form(list),
    "texts": Form([list, list], 0, 0),
    "random": Form((float, _NONE), 1, 1, "array"),
    "RandomState": Form([int, float], 1, 1),
    "bits": Form(str, 2, 2),
}


def check(nodes: Sequence[Any], arrays: Collection[str]) -> None:
    """Check nodes, and that all that they lead to is there. `arrays`: the names of the arrays beside the graph.

    Raises ValueError, with the number of the first node that is of no form.
    """
    for number, node in enumerate(nodes):
        reason = _reason(node, len(nodes), arrays)
        if reason:
            raise ValueError(f"node {number} ({node.kind!r:.40}) {reason}")


def check_items(items: Iterable[Any], count: int, arrays: Collection[str]) -> None:
    """Check that each of some items leads somewhere. Raises ValueError."""
    for item in items:
        if type(item) is list and not _leads_somewhere(item, count, arrays):
            raise ValueError(f"{item!s:.40} leads to what is not there")


def _reason(node: Any, count: int, arrays: Collection[str]) -> str:
    """Return why a node is of no form; empty where it is of one."""
    form = _FORMS.get(node.kind)
    if form is None and "." not in node.kind:
        return "is of an unknown kind"
    items = node.items
    for item in (*items, *(each for pair in node.named for each in pair)):
        if type(item) is list and not _leads_somewhere(item, count, arrays):
            return f"leads to {item!s:.40}, which is not there"
    if any(len(pair) != 2 for pair in node.named):
        return "names what is no pair"
    if form is None:
        return ""
    if not _fits(node.data, form.data):
        return f"has data of another form: {node.data!s:.60}"
    if not form.least <= len(items) <= form.most:
        return f"has {len(items)} items, expected {form.least} to {form.most}"
    wanted = {"node": int, "array": str}.get(form.first)
    if wanted is not None and items and not (type(items[0]) is list and type(items[0][0]) is wanted):
        return f"has as its first item {items[0]!s:.40}, expected one that leads to {form.first}"
    return ""


def _leads_somewhere(item: list[Any], count: int, arrays: Collection[str]) -> bool:
    if len(item) != 1 or type(item[0]) not in (int, str):
        return False
    return 0 <= item[0] < count if type(item[0]) is int else item[0] in arrays


def _fits(data: Any, wanted: Any) -> bool:
    if not isinstance(wanted, list):
        return isinstance(data, wanted)
    return isinstance(data, list) and len(data) >= len(wanted) and all(map(isinstance, data, wanted))
