"""What the program's code can read of Python while a framework traces it: a constant in the trace.

A function that reads what the loop sets (`min(1.0, epoch / 10)`, `self.beta`) is traced in the first batch of a run,
with the values of that moment. They are kept, and put in place for as long as a resumed run traces the function again.
Large arrays are left out, and so is what hands out one thing after another. What all of this misses shows in the digest
of the trace, and is refused.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec
import numpy as np

from detrain.base.digest import Array
from detrain.base.dtypes import dtype_name, named_dtype
from detrain.python.codec.api import Baseline, Decoder, Encoder, Hooks, Item
from detrain.python.codec.encoding import Encoding, Rule
from detrain.python.codec.graph_files import unpack, unreadable
from detrain.python.codec.recipes import recipe_of
from detrain.python.inspect.graph import Node
from detrain.python.inspect.names import type_name
from detrain.python.process.reducers import reduction_of

_MOST_ELEMENTS: Final = 1 << 10
"""A larger array is no setting."""
_MOST_BYTES: Final = 1 << 20
"""More is not kept: a checkpoint has it for each trace."""


class ReadEncoder(Encoder):
    """Encodes what code can read; what is no data stays as the process has it."""

    def pack(self, roots: dict[str, Item]) -> str:
        """Return the graph with its named roots as text; nothing if it is large."""
        encoded = self.finish(roots)
        arrays = {name: (dtype_name(each.dtype), each.shape, each.tobytes()) for name, each in encoded.arrays.items()}
        packed = msgspec.msgpack.encode((encoded.graph, arrays))
        return base64.b64encode(packed).decode() if len(packed) <= _MOST_BYTES else ""

    def note_told(self) -> None:
        """What the classes of libraries say besides, no code of the program's reads."""

    def rule_of(self, value: Any) -> Rule:
        recipe = recipe_of(value)
        is_open = recipe is not None and recipe.holds == "state"
        if is_open or self.hooks.is_shared(value) or reduction_of(type(value)) is not None:
            return ReadEncoder.encode_opaque
        return _encode_small if type(value) is np.ndarray else super().rule_of(value)

    def encode_array(self, kind: str, value: object, array: Array, path: str) -> Node:
        is_small = array.size <= _MOST_ELEMENTS
        return super().encode_array(kind, value, array, path) if is_small else Node("opaque", [type_name(value)])

    def encode_opaque(self, _number: int, value: object, _path: str, *, is_captured: bool = False) -> Node:
        return Node("opaque", [type_name(value)], there=self.baseline.address(value))

    def is_of_loop(self, _value: object) -> bool:
        return False  # what is traced again is a function that is there


def _encode_small(encoding: Encoding, number: int, value: Array, path: str) -> Node:
    is_data = value.size <= _MOST_ELEMENTS and dtype_name(value.dtype) is not None
    return encoding.encode_array("ndarray", value, value, path) if is_data else encoding.encode_opaque(number, value, path)


class ReadDecoder(Decoder):
    """Puts it in place. Variables are those that are there: none is made, for building makes them."""

    def __init__(self, text: str, hooks: Hooks, baseline: Baseline) -> None:
        try:
            graph, packed = msgspec.msgpack.decode(base64.b64decode(text))
            arrays = {
                name: np.frombuffer(content, named_dtype(dtype)).reshape(shape).copy()
                for name, (dtype, shape, content) in packed.items()
            }
        except (ValueError, TypeError, AttributeError) as error:  # those of msgspec are ValueErrors
            raise unreadable(str(error)) from error
        super().__init__(unpack(graph, arrays), arrays, hooks, baseline)

    def decode_node(self, number: int, node: Node, current: Any, path: str) -> Any:
        if node.kind != "variable":
            return super().decode_node(number, node, current, path)
        found = self.hooks.find_variable(node.data[0], False)
        return current if found is None else found
