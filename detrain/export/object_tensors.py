"""The tensors of a checkpoint that are leaves of Python objects (PyTorch's, JAX's), by their paths from names."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from detrain.base.digest import Array
from detrain.base.dtypes import named_dtype
from detrain.base.plain_types import CONTAINERS
from detrain.python.codec.graph_files import unpack
from detrain.python.codec.table import kind_named
from detrain.python.inspect.object_graph import Item, Node, is_array, is_reference
from detrain.store import Snapshot

_OF_MODULES: Final = frozenset({"_modules", "_parameters", "_buffers", "_raw_value", "_mapping"})
"""Attributes in which a module keeps its parts, a variable of flax its value, and flax's State its mapping: names leave
them out, as `state_dict()` does.
"""
_LISTED_AGAIN: Final = frozenset(
    {"_module_parameters", "modules_buffers", "named_module_buffers", "_delay_all_reduce_params", "param_groups"}
)
"""Attributes in which DistributedDataParallel and optimizers list the modules' tensors again: they are walked last."""
_UNORDERED: Final = ("set", "frozenset")
_KEYS: Final = "jax.key"
_SPREAD: Final = "torch.spread"
"""The kind of a tensor's node that is spread over the processes of a job. Its items: shard, mesh, layout, …, at 4 the
gradient, and at 7 gradients that are still to be reduced.
"""
_SPREAD_OF_JAX: Final = "jax.spread"
"""The kind of an array's node over several devices. Items: layout, shape, dtype, two flags, shards, their starts, …"""
_LETTERS: Final = {"Shard": "S", "_StridedShard": "SS", "Replicate": "R", "Partial": "P"}


def tensors_of(snapshot: Snapshot) -> dict[str, Array]:
    """Return all tensors of a checkpoint: variables by their keys, then those of objects, by names such as
    `model.0.weight` and `optimizer.state.model.0.weight.exp_avg`.

    Large ones that have not changed since the loop was entered are left out: a checkpoint does not hold them.
    """
    found = dict(snapshot.tensors)
    joined: set[int] = set()
    """The nodes of shards whose arrays were joined."""
    for name, number, node, nodes in _named(snapshot):
        if node.kind == _SPREAD_OF_JAX and (whole := _joined(node, nodes, snapshot.arrays)) is not None:
            found[name] = whole
            joined.update(item[0] for item in nodes[node.items[5][0]].items)
        elif is_tensor(node) and number not in joined:
            values = values_of(node, nodes, snapshot.arrays)
            if values is not None:
                found[name if name not in found else f"{name} {number}"] = values
    return found


def layouts_of(snapshot: Snapshot) -> dict[str, str]:
    """Return each shard's place in the whole, in words, by its name in `tensors_of`: `[5, 24] by S(0) over 2`."""
    found = {}
    for name, _number, node, nodes in _named(snapshot):
        if node.kind == _SPREAD:
            _shard, (mesh,), layout, *_rest = node.items
            placements, shape, _strides = _plain(layout, nodes)
            size = np.shape(_plain(nodes[mesh].items[1], nodes))
            how = ", ".join(_LETTERS[kind] + (f"({', '.join(map(str, values))})" if values else "") for kind, *values in placements)
            found[f"{name}.shard"] = f"{shape} by {how} over {'x'.join(map(str, size))}"
        elif node.kind == _SPREAD_OF_JAX:
            shape, starts = _plain(node.items[1], nodes), _starts(node, nodes)
            found |= {f"{name}.shard.{number}": f"{shape} from {start}" for number, start in enumerate(starts)}
    return found


def _starts(node: Node, nodes: list[Node]) -> list[list[int]]:
    """Return the start of each shard in an array over several devices; no starts if its shards are to be summed."""
    shape, shards, starts = (_plain(node.items[place], nodes) for place in (1, 5, 6))
    axes = len(shape)
    return [] if starts is None else [starts[axes * number : axes * (number + 1)] for number in range(len(shards))]


def _joined(node: Node, nodes: list[Node], arrays: Mapping[str, Array]) -> Array | None:
    """Return a whole array, joined from its shards (of several at one place, the first); None if some shards belong to
    other processes, are not stored, or are to be summed.
    """
    shape, shards, starts = _plain(node.items[1], nodes), _plain(node.items[5], nodes), _starts(node, nodes)
    parts = [values_of(each, nodes, arrays) if isinstance(each, Node) else None for each in shards]
    if len(starts) != len(parts):  # they are still to be summed
        return None
    whole: Array | None = None
    missing = int(np.prod(shape))
    done: set[tuple[int, ...]] = set()
    for start, part in zip(starts, parts, strict=True):
        if part is None:
            return None
        if tuple(start) not in done:
            done.add(tuple(start))
            whole = np.empty(shape, part.dtype) if whole is None else whole
            whole[tuple(slice(at, at + size) for at, size in zip(start, part.shape, strict=True))] = part
            missing -= part.size
    return whole if missing == 0 else None


def _plain(item: Item, nodes: list[Node]) -> Any:
    """Return an item with its lists of lists as Python lists, and tensors as their nodes."""
    if not is_reference(item):
        return item
    node = nodes[item[0]]
    return node if is_tensor(node) else [_plain(each, nodes) for each in node.items]


def _named(snapshot: Snapshot) -> Iterator[tuple[str, int, Node, list[Node]]]:
    """Yield each object that names lead to, in their order: its name, its node's number, its node, and all nodes."""
    if b"shared" not in snapshot.python and b"tensor" not in snapshot.python:  # the kinds of nodes of tensors
        return
    graph = unpack(snapshot.python, snapshot.arrays)
    nodes = graph.nodes
    names: dict[int, str] = {}
    waiting = deque((item, key.rpartition("|")[2]) for key, item in graph.roots.items())
    keyed: deque[tuple[Any, str, Any]] = deque()
    """Values that dicts hold under a tensor as key: they are named once the tensor has its name."""
    late: deque[tuple[Any, str]] = deque()
    while waiting or keyed or late:
        if waiting:
            item, name = waiting.popleft()
        elif keyed:
            item, name, key = keyed.popleft()
            name = f"{name}.{names.get(key, key)}"
        else:
            item, name = late.popleft()
        if not is_reference(item) or item[0] in names:
            continue
        names[item[0]] = name
        node = nodes[item[0]]
        yield name, item[0], node, nodes
        if issubclass(CONTAINERS.get(node.kind, object), dict):
            keyed.extend((value, name, key[0]) for key, value in node.named if is_reference(key))
        for part, its_name in _parts(node, name):
            (late if its_name.rpartition(".")[2] in _LISTED_AGAIN else waiting).append((part, its_name))


def is_tensor(node: Node) -> bool:
    """Return True if a node is a tensor that gets a name of its own; TensorFlow's constants are plain values and do
    not.
    """
    return node.kind == "shared" or (node.kind == "tensor" and len(node.data) > 2)


def values_of(node: Node, nodes: list[Node], arrays: Mapping[str, Array]) -> Array | None:
    """Return the values of a tensor's node; None if its memory is not stored, or NumPy lacks its dtype."""
    if node.kind == "tensor":
        array, axes = arrays[node.items[0][0]], node.data[0]
        return array if axes is None else array.transpose(np.argsort(axes))
    content, *_rest = nodes[node.items[0][0]].items
    _class, dtype, _device, offset, shape, strides = node.data[1][:6]
    try:
        plain = named_dtype(dtype) if dtype.startswith(("bfloat", "float8")) else np.dtype(dtype)
    except (TypeError, ValueError):
        return None
    stored = arrays[content[0]] if is_array(content) else None
    if stored is None or (stored.nbytes == 0 and np.prod(shape) > 0):
        return None
    flat = stored[: stored.nbytes // plain.itemsize * plain.itemsize].view(plain)[offset:]
    return np.lib.stride_tricks.as_strided(flat, shape, [each * plain.itemsize for each in strides], writeable=False)


def _parts(node: Node, name: str) -> Iterator[tuple[Item, str]]:
    kind = node.kind
    if kind in ("object", "derived"):
        for key, item in node.named:
            yield item, name if key in _OF_MODULES else f"{name}.{key}"
        if kind == "object":  # the items of a class that derives from a container
            yield from ((item, name) for item in node.items)
    elif kind == "shared":
        yield from ((item, f"{name}.grad") for item in node.items[2:])
    elif kind == _SPREAD:
        yield from ((node.items[place], f"{name}.{part}") for place, part in ((0, "shard"), (4, "grad"), (7, "unreduced")))
    elif kind == _SPREAD_OF_JAX:
        yield node.items[5], f"{name}.shard"
    elif kind == _KEYS:
        yield node.items[1], name
    elif kind in ("inside", "annotated"):
        yield from ((item, name) for item in node.items)
    elif "." in kind or (kind_named(kind).lists and kind not in _UNORDERED):
        yield from ((item, f"{name}.{index}") for index, item in enumerate(node.items))
    elif issubclass(CONTAINERS.get(kind, object), dict):
        yield from ((item, f"{name}.{key}") for key, item in node.named if not is_reference(key))
