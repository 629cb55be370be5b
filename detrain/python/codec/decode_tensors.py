"""Graph -> Python state: tensors that are changed in place, and the memory that they share.

A tensor is put back where the process has it, so that whoever holds it sees it: at the address that it had when the
loop was entered, else at its place. Its memory is filled in place, too, as views of it may be held where nothing leads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from detrain.base.array_memory import address_of, memory_of
from detrain.base.digest import Array, digest_array
from detrain.python.codec.decoding import Decoding
from detrain.python.inspect.graph import Item, Node
from detrain.python.inspect.object_graph import ABSENT


def decode_shared(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Return the tensor of a node, the live one wherever there is one."""
    (owner, form), address, (_memory, base_item, *parts) = node.data, node.there, node.items
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
        if number in decoding.made:  # an attribute of the other one
            return decoding.made[number]
        base = None if base is ABSENT else base
    live = _live(decoding, owner, decoding.baseline.at(address), is_reserved=True)
    if live is ABSENT and (decoding.finds_by_place or (address is not None and decoding.baseline.address(current) is None)):
        live = _live(decoding, owner, current, is_reserved=False)
    memory = _put_memory(decoding, tensors, node, live, path)
    if memory is ABSENT:
        return live
    try:
        if decoding.finds_by_place and _is_as_it_was(decoding, live, form, memory):
            tensor = live  # with the graph that it hangs on, which is there still
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
    """Return the memory of tensors with a number as an array, with the content that it had, or None."""
    node = next((node for node in decoding.nodes if node.kind == "shared" and node.items[0][0] == number), None)
    tensors = None if node is None else decoding.hooks.tensors_of(node.data[0])
    if node is None or tensors is None:
        return None
    memory = _put_memory(decoding, tensors, node, ABSENT, path)
    return None if memory is ABSENT else tensors.array_of(memory)


def _put_memory(decoding: Decoding, tensors: Any, node: Node, live: object, path: str) -> object:
    """Return the memory of a tensor with the content that it had: the live one where that is free and of its size."""
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
        content = decoding.array(memory)
        if there is not None and stop - start < content.nbytes:  # others may look at the rest
            now = np.array(tensors.read(there, holds=False))
            if now.nbytes == content.nbytes:
                now[start:stop] = content[start:stop]
                content = now
        if there is None or not tensors.fill(there, content):
            there = tensors.new_memory(content, node.data[1])
    decoding.filled[id(there)] = decoding.memories[number] = there
    return there


def _memory_inside(decoding: Decoding, tensors: Any, outer: int, place: list[int], there: Any, path: str) -> object:
    """Return a memory that lies in an array or in another memory, which have its content: the live one if it does."""
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
