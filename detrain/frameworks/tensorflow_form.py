"""The form of a traced function: what two traces have in common if they compute the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from detrain.runtime.digest import digest_array, digest_bytes


def form(graph: Any, keys: Mapping[int, str]) -> str:
    """Return a digest of a graph: kinds of operations, their numbers and types, constants, and what is wired to what.

    It is what tracing takes from Python. `keys`: those of variables, by the identity of their handles; which one is read counts.
    Names and texts are left out (the handle of an iterator is of one process), and in which order what is independent was made.
    """
    found: dict[int, bytes] = {}
    captured = {id(inner.op): outer for outer, inner in graph.captures}
    others = itertools.count()
    for each in graph.get_operations():
        parts = [each.type.encode()]
        if id(each) in captured:
            outer = captured[id(each)]
            known = keys.get(id(outer)) if outer.dtype is tf.resource else None
            parts.append((digest_array(outer.numpy()) if _is_constant(outer) else known or f"capture {outer.dtype.name}").encode())
        elif each.type == "Placeholder":
            parts.append(str(next(others)).encode())
        else:
            parts += [name.encode() + value for name, value in _numbers(each)]
            parts += [found.get(id(tensor.op), b"") + str(tensor.value_index).encode() for tensor in each.inputs]
            parts += sorted(found.get(id(before), b"") for before in each.control_inputs)
        found[id(each)] = digest_bytes(b"|".join(parts)).encode()
    return digest_bytes(b"".join(sorted(found.values())))


def _numbers(operation: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the attributes of an operation that decide what it computes, as bytes: no names of functions, no texts, no shapes."""
    for name, value in sorted(operation.node_def.attr.items()):
        kind = value.WhichOneof("value")
        is_text = kind == "tensor" and value.tensor.dtype == tf.string.as_datatype_enum
        if name.startswith("_") or is_text or kind in (None, "s", "func", "shape", "placeholder"):
            continue
        if kind == "list" and (value.list.s or value.list.func or value.list.shape):
            continue
        yield name, value.SerializeToString(deterministic=True)


def _is_constant(tensor: Any) -> bool:
    return isinstance(tensor, EagerTensor) and tensor.dtype not in (tf.string, tf.resource, tf.variant)
