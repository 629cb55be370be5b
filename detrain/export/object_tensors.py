"""The tensors of a checkpoint that are leaves of Python objects (PyTorch's, JAX's), by the names that lead to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from detrain.base.digest import Array
from detrain.base.dtypes import named_dtype
from detrain.python.inspect.object_graph import CONTAINERS
from detrain.store import Snapshot

_OF_MODULES: Final = frozenset({"_modules", "_parameters", "_buffers", "_raw_value", "_mapping"})
"""Where a module keeps its parts, a variable of flax its value, and its State what is in it: left out of names, as
`state_dict()` does.
"""
_LISTED_AGAIN: Final = frozenset(
    {"_module_parameters", "modules_buffers", "named_module_buffers", "_delay_all_reduce_params", "param_groups"}
)
"""Where DistributedDataParallel and optimizers list what modules have: names that lead through these come last."""
_KEYS: Final = "jax.key"
_SPREAD: Final = "torch.spread"
"""The kind of a tensor that is spread over the processes of a job: its shard, mesh, layout, …, gradient at 4, and at 7
gradients that are still to be reduced.
"""
_LETTERS: Final = {"Shard": "S", "_StridedShard": "SS", "Replicate": "R", "Partial": "P"}
_FORM: Final = 5
"""Where the node of an immutable tensor says what it is besides its value, if it is anything."""
_LISTS: Final = {"list": 1, "tuple": 1, "deque": 1, "namedtuple": 2, "made": 2}


def tensors_of(snapshot: Snapshot) -> dict[str, Array]:
    """Return all tensors of a checkpoint: variables by their keys, then those of objects, as `model.0.weight` and
    `optimizer.state.model.0.weight.exp_avg`.

    Left out are large ones that are as they were when the loop was entered, which a checkpoint does not hold.
    """
    found = dict(snapshot.tensors)
    for name, number, node, nodes in _named(snapshot):
        if is_tensor(node):
            values = values_of(node, nodes, snapshot.arrays)
            if values is not None:
                found[name if name not in found else f"{name} {number}"] = values
    return found


def layouts_of(snapshot: Snapshot) -> dict[str, str]:
    """Return of what the shards of a checkpoint are parts, by their names in `tensors_of`: `[5, 24] by S(0) over 2`."""
    found = {}
    for name, _number, node, nodes in _named(snapshot):
        if node[0] == "made" and node[1] == _SPREAD:
            _shard, (mesh,), layout, *_rest = node[2]
            placements, shape, _strides = _plain(layout, nodes)
            size = np.shape(_plain(nodes[mesh][2][1], nodes))
            how = ", ".join(_LETTERS[kind] + (f"({', '.join(map(str, values))})" if values else "") for kind, *values in placements)
            found[f"{name}.shard"] = f"{shape} by {how} over {'x'.join(map(str, size))}"
    return found


def _plain(item: Any, nodes: list[list[Any]]) -> Any:
    """Return what lists of lists hold."""
    return [_plain(each, nodes) for each in nodes[item[0]][1]] if _is_reference(item) else item


def _named(snapshot: Snapshot) -> Iterator[tuple[str, int, list[Any], list[list[Any]]]]:
    """Yield all that names lead to, in their order: its name, its number, its node, and all nodes."""
    if b"shared" not in snapshot.python and b"tensor" not in snapshot.python:  # the kinds of nodes of tensors
        return
    graph = msgspec.msgpack.decode(snapshot.python)
    nodes: list[list[Any]] = graph["nodes"]
    names: dict[int, str] = {}
    waiting = deque((item, key.rpartition("|")[2]) for key, item in graph["roots"].items())
    keyed: deque[tuple[Any, str, Any]] = deque()
    """What is held under a tensor: named when that has a name."""
    late: deque[tuple[Any, str]] = deque()
    while waiting or keyed or late:
        if waiting:
            item, name = waiting.popleft()
        elif keyed:
            item, name, key = keyed.popleft()
            name = f"{name}.{names.get(key, key)}"
        else:
            item, name = late.popleft()
        if not _is_reference(item) or item[0] in names:
            continue
        names[item[0]] = name
        node = nodes[item[0]]
        yield name, item[0], node, nodes
        if node[0] in CONTAINERS and issubclass(CONTAINERS[node[0]], dict):
            keyed.extend((value, name, key[0]) for key, value in node[1] if _is_reference(key))
        for part, its_name in _parts(node, name):
            (late if its_name.rpartition(".")[2] in _LISTED_AGAIN else waiting).append((part, its_name))


def is_tensor(node: list[Any]) -> bool:
    """Return whether a node is a tensor of a program's own names; not one of TensorFlow's constants, which are values
    among others.
    """
    return node[0] == "shared" or (node[0] == "tensor" and len(node) > _FORM)


def values_of(node: list[Any], nodes: list[list[Any]], arrays: Mapping[str, Array]) -> Array | None:
    """Return the values of a tensor's node; None where its memory is not stored, or of a dtype that NumPy has not."""
    if node[0] == "tensor":
        return arrays[node[1]] if node[2] is None else arrays[node[1]].transpose(np.argsort(node[2]))
    _kind, stored, *_rest = nodes[node[3][0]]
    _class, dtype, _device, offset, shape, strides = node[4][:6]
    try:
        plain = named_dtype(dtype) if dtype.startswith(("bfloat", "float8")) else np.dtype(dtype)
    except (TypeError, ValueError):
        return None
    if stored is None or (arrays[stored].nbytes == 0 and np.prod(shape) > 0):
        return None
    flat = arrays[stored][: arrays[stored].nbytes // plain.itemsize * plain.itemsize].view(plain)[offset:]
    return np.lib.stride_tricks.as_strided(flat, shape, [each * plain.itemsize for each in strides], writeable=False)


def _parts(node: list[Any], name: str) -> Iterator[tuple[Any, str]]:
    kind = node[0]
    if kind in ("object", "derived"):
        pairs = [*(node[2] or ()), *node[3]] if kind == "object" else node[3]  # attributes, and those in slots
        for key, item in pairs:
            yield item, name if key in _OF_MODULES else f"{name}.{key}"
        if kind == "object" and node[4] is not None:
            yield from _parts(node[4], name)
    elif kind == "shared":
        for item in node[5]:
            yield item, f"{name}.grad"
    elif kind == "made" and node[1] == _SPREAD:
        yield from ((node[2][place], f"{name}.{part}") for place, part in ((0, "shard"), (4, "grad"), (7, "unreduced")))
    elif kind == "made" and node[1] == _KEYS:
        yield node[2][1], name
    elif kind == "inside" and node[3] is not None:
        yield node[3], name
    elif kind in _LISTS:
        for index, item in enumerate(node[_LISTS[kind]]):
            yield item, f"{name}.{index}"
    elif kind in CONTAINERS and issubclass(CONTAINERS[kind], dict):
        yield from ((item, f"{name}.{key}") for key, item in node[1] if not _is_reference(key))


def _is_reference(item: Any) -> bool:
    return type(item) is list and len(item) == 1 and type(item[0]) is int
