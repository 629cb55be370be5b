"""Tensors that are changed in place, and the memory that they share.

A tensor is put back into the tensor that the process has, so that all its holders see the values: the one at the
address from when the loop was entered, else the one at its place. Its memory is filled in place, too: unknown views may
exist.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from detrain.base.array_memory import address_of, memory_of, writing
from detrain.base.digest import Array, digest_array
from detrain.base.dtypes import dtype_name
from detrain.base.losses import OF_GRAPH
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding
from detrain.python.codec.kind import Form, define
from detrain.python.inspect.names import type_name
from detrain.python.inspect.object_graph import ABSENT, LARGE_BYTES, Item, MemorySpan, Node, SharedTensor, is_array, shown


def encode_shared(encoding: Encoding, value: Any, shared: SharedTensor, path: str) -> Node:
    """Encode a tensor that is changed in place: its memory, which others may share, and its view of that memory."""
    if encoding.collects:
        encoding.baseline.add(value, "" if encoding.is_unordered else path)
        encoding.baseline.add_graph(value, shared.graph)
    elif shared.is_parameter and not encoding.baseline.has(value):
        encoding.made_parameters.append(value)
    number = encoding.memories.get(id(shared.memory))
    if number is None:
        number = encoding.add_node(shared.memory, None)[0]
        encoding.memories[id(shared.memory)] = number
        encoding.nodes[number] = encoding.encode_memory(shared, path)
        if not encoding.collects:
            start, size = encoding.hooks.tensors_of(shared.owner).span(shared.memory)
            encoding.spans.append(MemorySpan(start, start + size, number, path, memory=shared))
    elif not encoding.collects:
        _widen(encoding, number, shared, *shared.extent)
    keeps_graph = not encoding.collects and encoding.baseline.has_graph(value, shared.graph)
    if shared.loss and not encoding.collects and not (keeps_graph and shared.loss == OF_GRAPH):
        encoding.lost.append(f"{shown(path)} ({type_name(value)}: {shared.loss})")
    parts = [encoding.encode(part, f"{path}.grad") for part in shared.parts]
    own = encoding.encode_pairs(getattr(value, "__dict__", None) or {}, path)
    base = None if shared.base is None else encoding.encode(shared.base, f"{path}._base")
    data = [shared.owner, shared.form, *([True] if keeps_graph else [])]
    return Node("shared", data, [[number], base, *parts], own, encoding.address_of(value))


def encode_memory(encoding: Encoding, shared: SharedTensor, path: str) -> Node:
    """Encode a memory. If the part that tensors viewed as the loop was entered is large and unchanged, it is only
    compared on resume, at its address: `x` may be a batch by now, and the data lie in a set.
    """
    tensors = encoding.hooks.tensors_of(shared.owner)
    start, stop = shared.extent
    if encoding.collects:
        encoding.baseline.add(shared.memory, "" if encoding.is_unordered else f"{path}.memory")
        if (address := encoding.address_of(shared.memory)) is not None:
            digest = digest_array(tensors.read(shared.memory, holds=False)[start:stop])
            encoding.baseline.memories[address] = digest, (start, stop)
        return Node("memory")
    kept = _as_it_was(encoding, shared, start, stop, LARGE_BYTES)
    return kept or Node("memory", [start, stop, ""], [hold(encoding, shared), None], there=encoding.address_of(shared.memory))


def _as_it_was(encoding: Encoding, shared: SharedTensor, start: int, stop: int, more_than: int = 0) -> Node | None:
    """Return the node of a memory that is only compared on resume, if it is unchanged from `start` to `stop`."""
    address = encoding.address_of(shared.memory)
    before, (first, last) = encoding.baseline.memories.get(address or "", ("", (0, 0)))
    if last - first <= more_than or start < first or last < stop:
        return None
    now = encoding.hooks.tensors_of(shared.owner).read(shared.memory, holds=False)[first:last]
    return Node("memory", [first, last, before], [None, None], there=address) if digest_array(now) == before else None


def hold(encoding: Encoding, shared: SharedTensor) -> Item:
    name = f"{len(encoding.arrays):05d}"
    encoding.arrays[name] = encoding.hooks.tensors_of(shared.owner).read(shared.memory, holds=True)
    return [name]


def _widen(encoding: Encoding, number: int, shared: SharedTensor, start: int, stop: int) -> None:
    """Extend the viewed part of a memory, so that it includes `start` to `stop`."""
    node: Any = encoding.nodes[number]
    wide = [min(node.data[0], start), max(node.data[1], stop)]
    if wide != node.data[:2] and node.items[0] is None:  # a part of it is as it was
        node.items[0], node.data[2] = hold(encoding, shared), ""
    node.data[:2] = wide


def join_memories(encoding: Encoding) -> None:
    """Describe arrays and memories of tensors that lie in one another as parts of each other: a write into one changes
    the other.
    """
    spans = sorted(
        (each for each in encoding.spans if each.end > each.start), key=lambda each: (each.start, -each.end, _rank(each))
    )
    outer = MemorySpan(0, 0, 0, "")
    inner: dict[int, Node] = {}
    for span in spans:
        if span.start >= outer.end:
            outer = span
        elif span.end > outer.end or span.is_foreign or outer.is_foreign:
            if not (_stays(encoding, span) and _stays(encoding, outer)):
                encoding.lose(span.number, span.path, f"memory: a part of it is also that of {outer.path}")
            outer = max(outer, span, key=lambda each: each.end)
        elif outer.array is not None and memory_of(outer.array) is None:
            encoding.lose(span.number, span.path, f"memory: it lies in that of {outer.path}, which has gaps")
        elif span.array is not None and outer.array is not None:
            continue  # both are NumPy's: a view of an owner too large to be stored for its sake
        elif span.array is not None:
            assert outer.memory is not None
            _widen(encoding, outer.number, outer.memory, span.start - outer.start, span.end - outer.start)
            form = [address_of(span.array) - outer.start, list(span.array.shape), list(span.array.strides)]
            form += [dtype_name(span.array.dtype), span.array.flags.writeable]
            inner[span.number] = Node("view", form, [[outer.number]])
        else:
            before: Any = encoding.nodes[span.number]
            at, size = span.start - outer.start, span.end - span.start
            first, last = before.data[:2]
            if outer.memory is not None:
                _widen(encoding, outer.number, outer.memory, at + first, at + last)
            inner[span.number] = Node("memory", [first, last, "", at, size], [None, [outer.number]], there=before.there)
    for number, node in inner.items():  # at the end: names of arrays are their numbers
        _drop(encoding, number, node)
    _clear_unseen(encoding)


def _stays(encoding: Encoding, span: MemorySpan) -> bool:
    """Return whether a memory is as it was when the loop was entered: it stays then as the process has it."""
    node: Any = encoding.nodes[span.number]
    kept = None if span.memory is None else _as_it_was(encoding, span.memory, *node.data[:2])
    if kept is not None:
        _drop(encoding, span.number, kept)
    return kept is not None


def _clear_unseen(encoding: Encoding) -> None:
    """Set the bytes of memories that no tensor views to zero: they are no state, and differ in each process."""
    for number in encoding.memories.values():
        node: Any = encoding.nodes[number]
        if not is_array(node.items[0]):
            continue
        (start, stop), (name,) = node.data[:2], node.items[0]
        if start > 0 or stop < encoding.arrays[name].nbytes:
            seen = np.zeros_like(encoding.arrays[name])
            seen[start:stop] = encoding.arrays[name][start:stop]
            encoding.arrays[name] = seen


def _drop(encoding: Encoding, number: int, node: Node) -> None:
    """Replace a node by another one, and drop the stored array that only the old node has."""
    before = encoding.nodes[number]
    if before is not None and before.kind in ("memory", "ndarray") and is_array(before.items[0]):
        del encoding.arrays[before.items[0][0]]
    encoding.nodes[number] = node


def _rank(span: MemorySpan) -> int:
    """Return a sort key: of a memory and an array that lie in one place, the memory is the outer one."""
    return 0 if span.array is None else 1


def decode_shared(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Return the tensor of a node, the live one wherever there is one."""
    (owner, form, *keeps_graph), address, (_memory, base_item, *parts) = node.data, node.there, node.items
    tensors = decoding.hooks.tensors_of(owner)
    if tensors is None:
        decoding.miss(path, f"it is a tensor of {owner}, which has not been imported")
        return ABSENT
    base = None
    if base_item is not None:
        live = decoding.baseline.at(address)
        shared = decoding.hooks.shared(current if live is ABSENT else live)
        old = ABSENT if shared is None or shared.base is None else shared.base
        base = decoding.decode(base_item, old, f"{path}._base")
        if number in decoding.made:  # as an attribute of its base
            return decoding.made[number]
        base = None if base is ABSENT else base
    live = _live(decoding, owner, decoding.baseline.at(address), is_reserved=True)
    if live is ABSENT and (decoding.finds_by_place or (address is not None and decoding.baseline.address(current) is None)):
        live = _live(decoding, owner, current, is_reserved=False)
    memory = _put_memory(decoding, tensors, node, live, path)
    if memory is ABSENT:
        return live
    try:
        if (decoding.finds_by_place or keeps_graph) and _is_as_it_was(decoding, live, form, memory):
            tensor = live  # with its graph of gradients, which is still there, or which code before the loop has made again
        else:
            tensor = tensors.put(form, memory, None if live is ABSENT else live, base)
    except ValueError as error:
        decoding.miss(path, str(error))
        return ABSENT
    decoding.made[number] = tensor
    now = decoding.hooks.shared(tensor)
    old = [] if now is None else now.parts
    values = [
        decoding.required(item, old[index] if index < len(old) and old[index] is not None else ABSENT, f"{path}.grad")
        for index, item in enumerate(parts)
    ]
    tensors.set_parts(tensor, values)
    own = getattr(tensor, "__dict__", None)
    if own is not None:
        decoding.fill_attributes(own, node.named, path)
    return tensor


def _is_as_it_was(decoding: Decoding, live: object, form: list[Item], memory: object) -> bool:
    now = None if live is ABSENT else decoding.hooks.shared(live)
    return now is not None and now.memory is memory and now.form == form


def _live(decoding: Decoding, owner: str, value: object, *, is_reserved: bool) -> object:
    """Return a live object if it is a tensor that may be filled, and take it; else ABSENT."""
    if value is ABSENT or id(value) in decoding.claimed or (not is_reserved and id(value) in decoding.reserved):
        return ABSENT
    shared = decoding.hooks.shared(value)
    if shared is None or shared.owner != owner:
        return ABSENT
    decoding.claimed[id(value)] = value
    return value


def array_in_memory(decoding: Decoding, number: int, path: str) -> Array | None:
    """Return the memory of tensors with a node's number as an array, with its content put back, or None."""
    node = next((node for node in decoding.nodes if node.kind == "shared" and node.items[0][0] == number), None)
    tensors = None if node is None else decoding.hooks.tensors_of(node.data[0])
    if node is None or tensors is None:
        return None
    memory = _put_memory(decoding, tensors, node, ABSENT, path)
    return None if memory is ABSENT else tensors.array_of(memory)


def _put_memory(decoding: Decoding, tensors: Any, node: Node, live: object, path: str) -> object:
    """Return the memory of a tensor with its content put back: the live one if it is free and of the same size."""
    number = node.items[0][0]
    if number in decoding.memories:
        return decoding.memories[number]
    memory = decoding.nodes[number]
    (start, stop, digest, *place), (content_item, outer) = memory.data, memory.items
    there = decoding.live_memories.get(number)
    if there is None and decoding.finds_by_place:
        shared = decoding.hooks.shared(live)
        there = None if shared is None else shared.memory
    if there is not None and id(there) in decoding.filled:
        there = None
    if outer is not None:
        there = _memory_inside(decoding, tensors, outer[0], place, there, path)
        if there is ABSENT:
            return ABSENT
    elif content_item is None:
        if there is None or digest_array(tensors.read(there, holds=False)[start:stop]) != digest:
            decoding.miss(path, f"the large tensor is not the one that the first run had (digest {digest})")
            return ABSENT
    else:
        size, write = decoding.content(memory)
        if there is not None and stop - start < size:  # other tensors may view the rest
            now = np.array(tensors.read(there, holds=False))
            if now.nbytes == size:
                now[start:stop] = decoding.array(memory)[start:stop]
                size, write = writing(now)
        if there is None or not tensors.fill(there, size, write):
            there = tensors.new_memory(size, write, node.data[1])
    decoding.filled[id(there)] = decoding.memories[number] = there
    return there


def _memory_inside(decoding: Decoding, tensors: Any, outer: int, place: list[int], there: Any, path: str) -> object:
    """Return a memory inside of an array or another memory, which has its content: the live one if it lies there."""
    offset, size = place
    if decoding.nodes[outer].kind == "memory":
        around = array_in_memory(decoding, outer, path)
    else:
        held = decoding.decode([outer], ABSENT, path)
        around = memory_of(held) if isinstance(held, np.ndarray) else None
    if around is None:
        decoding.miss(path, "what its memory lies in is not there")
        return ABSENT
    around = around.view(np.uint8)[offset : offset + size]
    return there if there is not None and tensors.span(there) == (address_of(around), size) else tensors.memory_in(around)


def _decode_variable(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    described = node.data[0]
    found = decoding.hooks.find_variable(described, True)
    if found is None:
        decoding.miss(path, f"the variable {described[1]!r} is not there")
    return current if found is None else found


define("shared", decode=decode_shared, form=Form([str, list], 2, first="node"))
define("memory", decode=lambda *_: ABSENT, form=Form([int, int, str], 2, 2))
define("variable", decode=_decode_variable, form=Form([list, bool], 0, 0), holds="nothing")
