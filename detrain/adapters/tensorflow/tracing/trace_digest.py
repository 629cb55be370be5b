"""The form of a traced function: what two traces have in common if they compute the same."""

from __future__ import annotations

import base64
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from detrain.base.byte_digests import digest_bytes
from detrain.base.digest import digest_array
from detrain.python.inspect.frames import is_user_file

_WIDTH: Final = 3
"""Bytes of each operation's digest that an outline has: they decide nothing but the words of a refusal."""
_MOST_SHOWN: Final = 8
"""Elements of a constant that are shown."""
_MOST_OPERATIONS: Final = 1 << 12
"""Of a larger graph no outline is kept: a checkpoint has it for each function."""


class GraphForm(NamedTuple):
    """The form of a graph: its digest, what it takes to tell where another one differs, its operations with their
    digests.
    """

    digest: str
    outline: str
    operations: list[tuple[Any, bytes]]

    def difference(self, outline: str) -> str:
        """Return, in words, the first operation that a graph with another outline did not have; empty if that is not
        known.
        """
        known = base64.b64decode(outline)
        before = {known[start : start + _WIDTH] for start in range(0, len(known), _WIDTH)}
        new = [operation for operation, digest in self.operations if _brief(digest) not in before]
        if new and before:
            return f"then there was not {_described(new[0])}"
        return f"then there were {len(known) // _WIDTH} operations, now there are {len(self.operations)}" if before else ""


def form(graph: Any, keys: Mapping[int, str]) -> GraphForm:
    """Return the form of a graph: kinds of operations, their numbers and types, constants, and what is wired to what.

    It is what tracing takes from Python. `keys`: those of variables, by the identity of their handles; which one is
    read counts. Names and texts are left out (the handle of an iterator is of one process), and in which order what is
    independent was made.
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
    brief = [_brief(each) for each in found.values()] if len(found) <= _MOST_OPERATIONS else []
    outline = base64.b64encode(b"".join(brief)).decode()
    return GraphForm(
        digest_bytes(b"".join(sorted(found.values()))), outline, [(each, found[id(each)]) for each in graph.get_operations()]
    )


def _brief(digest: bytes) -> bytes:
    return bytes.fromhex(digest[: 2 * _WIDTH].decode())


def _described(operation: Any) -> str:
    """Return an operation in words: what it is, constants in it, and the line of the program that made it."""
    inputs = [value for value in map(_value, operation.inputs) if value is not None]
    what = f"{operation.type} of {', '.join(inputs)}" if inputs else _value(operation.outputs[0]) if operation.outputs else None
    frames = [frame for frame in operation.traceback or () if is_user_file(frame.filename)]
    at = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{what or operation.type}{at} ({operation.name})"


def _value(tensor: Any) -> str | None:
    """Return the value of a small constant, in words; None for anything else."""
    value = tf.get_static_value(tensor) if tensor.op.type == "Const" else None
    return None if value is None or value.size > _MOST_SHOWN else f"the constant {value.tolist()!r}"


def _numbers(operation: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the attributes of an operation that decide what it computes, as bytes: no names of functions, no texts, no
    shapes.
    """
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
