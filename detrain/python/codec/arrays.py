"""Arrays of NumPy, and the constant tensors of frameworks, which are described like these."""

from __future__ import annotations

from typing import Any

import numpy as np

from detrain.base.array_memory import address_of, axes_of, bounds_of, lies_in_other_class, memory_of, owner_of
from detrain.base.digest import Array, digest_array
from detrain.base.dtypes import dtype_name, named_dtype
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding
from detrain.python.codec.kind import NONE, Form, define
from detrain.python.codec.tensors import array_in_memory
from detrain.python.inspect.object_graph import ABSENT, LARGE_BYTES, Item, MemorySpan, Node, shown


def encode_ndarray(encoding: Encoding, number: int, value: Array, path: str) -> Node:
    owner = owner_of(value)
    is_view = owner is not value and value.nbytes > 0 and memory_of(owner) is not None
    if value.dtype == object and owner.dtype == object:
        if is_view:
            return encode_view(encoding, value, path)
        return Node("objects", list(value.shape), encoding.encode_all(value.reshape(-1).tolist(), path))
    if dtype_name(value.dtype) is None:
        return encoding.encode_opaque(number, value, path)
    if not is_view or dtype_name(owner.dtype) is None:
        if not encoding.collects:
            encoding.spans.append(MemorySpan(*bounds_of(value), number, path, value, is_foreign=lies_in_other_class(value)))
        return encoding.encode_array("ndarray", value, value, path)
    if id(owner) in encoding.numbers or owner.nbytes <= max(16 * value.nbytes, LARGE_BYTES):
        return encode_view(encoding, value, path)
    if encoding.collects:
        return encoding.encode_array("ndarray", value, value, path)
    # A large owner is captured only if the program holds it elsewhere.
    encoding.far_views.append((number, value, path))
    return Node("view")


def encode_view(encoding: Encoding, value: Array, path: str) -> Node:
    owner = owner_of(value)
    offset = address_of(value) - address_of(owner)
    form = [offset, list(value.shape), list(value.strides), dtype_name(value.dtype), value.flags.writeable]
    return Node("view", form, [encoding.encode(owner, f"{path}.base")])


def encode_array(encoding: Encoding, kind: str, value: object, array: Array, path: str) -> Node:
    """Encode an array; one that the loop has not changed is marked, so that a resumed run finds out if its data
    differ.
    """
    before, is_large = encoding.baseline.paths.get(path), array.nbytes > LARGE_BYTES
    digest = digest_array(array) if encoding.collects or before is not None or is_large else ""
    form = encoding.hooks.tensor_form(value) if kind == "tensor" else None
    if encoding.collects:
        encoding.baseline.add_array(digest, value, is_held=form is None)
        if not encoding.is_unordered:
            encoding.baseline.paths[path] = digest
        return Node(kind)
    there = encoding.baseline.arrays.get(digest, ()) if is_large else ()
    if any(known() is value for known in there) or (there and kind == "tensor"):
        return Node("same", [digest, kind, *([] if form is None else [form])])
    if array.dtype == object:
        return Node("texts", [list(array.shape), array.reshape(-1).tolist()])
    axes = axes_of(array)
    stored = array if axes is None else array.transpose(axes)
    data = [axes, array.flags.writeable, *([] if form is None else [form])]
    return Node(kind, data, [encoding.store(stored)], there=before is not None and before == digest)


def encode_tensor(encoding: Encoding, value: Any, array: Array, path: str) -> Node:
    return annotated(encoding, encoding.encode_array("tensor", value, array, path), value, path)


def annotated(encoding: Encoding, node: Node, value: Any, path: str) -> Node:
    """Return a node with the attributes that were set on a tensor or a partial call."""
    attributes = getattr(value, "__dict__", None)
    return Node("annotated", None, [encoding.add_node(None, node)], encoding.encode_pairs(attributes, path)) if attributes else node


def decode_annotated(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    """Decode a tensor or partial call with attributes, which may lead to it again."""
    before = dict(getattr(current, "__dict__", {}))
    found = current if decoding.finds_by_place else decoding.decode_node(number, decoding.nodes[node.items[0][0]], current, path)
    own = getattr(found, "__dict__", None)
    if own is None:
        return found
    decoding.made[number] = found
    own.update(before)  # objects are put back in place
    decoding.fill_attributes(own, node.named, path)
    return found


def _decode_stored(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    """Return the array or tensor of a node: the live one where it can be filled or is the same, else a new one."""
    axes, is_writeable, *more = node.data
    form = more[0] if more else None
    array = decoding.array(node)
    if axes is not None:
        array = array.transpose(np.argsort(axes))
    if node.there:
        now = current if isinstance(current, np.ndarray) else decoding.hooks.tensor(current)
        if now is not None and digest_array(now) != digest_array(array):
            decoding.others.append(f"{shown(path)}: the array is not the one that the first run had (digest {digest_array(array)})")
    if node.kind == "tensor":
        return current if _take_live(decoding, current, array, form) else decoding.hooks.make_tensor(array, form)
    is_alike = type(current) is np.ndarray and (current.shape, current.dtype) == (array.shape, array.dtype)
    is_alike = is_alike and current.flags.writeable == is_writeable and axes_of(current) == axes
    if is_alike and not is_writeable and digest_array(current) == digest_array(array):
        return current
    # An array that is a view only here would write into an owner that has a state of its own.
    is_free = is_alike and is_writeable and owner_of(current) is current and not decoding.lies_in_tensor(current)
    if is_free and decoding.claim(current, np.ndarray):
        current[...] = array
        return current
    made = np.array(array, copy=True, order="K")
    made.flags.writeable = is_writeable
    return made


def _decode_same(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    digest, kind, *form = node.data
    found = decoding.sources[digest]
    if form and found:
        return _decode_same_form(decoding, found, form[0], current)
    if kind == "tensor" and found:  # the live one, which has its attributes
        return next((tensor for tensor in found if tensor is current), found[0])
    if not found and isinstance(current, np.ndarray) and digest_array(current) == digest:
        return current
    if not found:
        decoding.miss(path, f"the large array is not the one that the first run had (digest {digest})")
        return current
    chosen = next((array for array in found if array is current), found[0])
    if id(chosen) in decoding.claimed:
        chosen = next((array for array in found if id(array) not in decoding.claimed), ABSENT)
    if chosen is ABSENT:  # two equal arrays of the first run are one here
        return np.array(found[0], copy=True)
    decoding.claimed[id(chosen)] = chosen
    return chosen


def _decode_same_form(decoding: Decoding, found: list[Any], form: list[Item], current: Any) -> Any:
    """Return the live tensor of a value and a form, or another equal one: two tensors of the first run do not become
    one, as a computation may take the memory of each.
    """
    alike = [tensor for tensor in found if decoding.hooks.tensor_form(tensor) == form]
    alike.sort(key=lambda tensor: tensor is not current)
    chosen = next((tensor for tensor in alike if id(tensor) not in decoding.claimed), None)
    if chosen is None:
        values = [value for tensor in found if (value := decoding.hooks.tensor(tensor)) is not None]
        return decoding.hooks.make_tensor(values[0], form) if values else ABSENT
    decoding.claimed[id(chosen)] = chosen
    return chosen


class _InTensors:
    """Keeps the memory of tensors alive for an array that has no array as its base, like one that `numpy()` returns. So
    the array is encoded in the same way when its tensor is gone.
    """

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


def _decode_view(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    (offset, shape, strides, name, is_writeable), (owner_item,) = node.data, node.items
    is_live = type(current) is np.ndarray
    is_of_tensors = decoding.nodes[owner_item[0]].kind == "memory"
    if is_of_tensors:
        owner: Any = array_in_memory(decoding, owner_item[0], path)
    else:
        owner = decoding.decode(owner_item, owner_of(current) if is_live else ABSENT, f"{path}.base")
    flat = memory_of(owner) if isinstance(owner, np.ndarray) else None
    if flat is None:
        return ABSENT
    if flat.dtype != object:
        made: Array = np.ndarray(tuple(shape), named_dtype(name), flat.view(np.uint8), offset, tuple(strides))
        if is_of_tensors and made.dtype.isnative and made.dtype.isbuiltin == 1:
            alone = np.asarray(_InTensors(made))
            made = alone if alone.strides == made.strides else made  # NumPy changes the stride of an axis of length one
    elif any(number % flat.itemsize for number in (offset, *strides)):
        raise ValueError(
            f"{shown(path)} is a view from {offset} by {strides}; expected multiples of {flat.itemsize}, whole objects"
        )
    else:
        made = np.ndarray(tuple(shape), flat.dtype, flat, offset, tuple(strides))
    if not is_writeable:
        made.flags.writeable = False
    is_at = is_live and (owner_of(current) is owner or is_of_tensors)
    if is_at and _place(current) == _place(made) and decoding.claim(current, np.ndarray):  # two views stay two
        return current
    return made


def _decode_objects(decoding: Decoding, number: int, node: Node, current: Any, path: str) -> Any:
    shape, items = node.data, node.items
    is_live = isinstance(current, np.ndarray) and current.dtype == object and list(current.shape) == shape
    is_live = is_live and owner_of(current) is current and current.flags.writeable and decoding.claim(current, np.ndarray)
    target: Any = current if is_live else np.empty(shape, object)
    decoding.made[number] = target
    values = decoding.items(items, target.reshape(-1).tolist() if is_live else [], path)
    for place, value in zip(np.ndindex(*shape), values, strict=True):
        target[place] = value
    return target


def _take_live(decoding: Decoding, current: Any, array: Array, form: list[Item] | None) -> bool:
    """Take the live tensor if it has an array's values, and clear its attributes; return whether it was taken."""
    now = decoding.hooks.tensor(current)
    if now is None or (now.shape, now.dtype) != (array.shape, array.dtype) or digest_array(now) != digest_array(array):
        return False
    if decoding.hooks.tensor_form(current) != form or not decoding.claim(current, type(current)):
        return False
    getattr(current, "__dict__", {}).clear()
    return True


def _place(array: Array) -> tuple[object, ...]:
    return array.__array_interface__["data"], array.shape, array.strides, array.dtype


def _decode_texts(decoding: Decoding, _number: int, node: Node, _current: Any, _path: str) -> Any:
    shape, content = node.data
    texts = np.empty(len(content), object)
    texts[:] = content
    return decoding.hooks.make_tensor(texts.reshape(shape))


def _decode_scalar(decoding: Decoding, _number: int, node: Node, _current: Any, _path: str) -> Any:
    """Decode a NumPy scalar of format 3."""
    return decoding.array(node)[()]


define("ndarray", "tensor", decode=_decode_stored, form=Form([(list, NONE), bool], 1, 1, "array"))
define("large", decode=lambda *_: ABSENT, form=None, holds="nothing")
define("same", decode=_decode_same, form=Form([str, str], 0, 0))
define("view", decode=_decode_view, form=Form([int, list, list, (str, NONE), bool], 1, 1, "node"), holds="others")
define("objects", decode=_decode_objects, form=Form(list), lists=True)
define("texts", decode=_decode_texts, form=Form([list, list], 0, 0))
define("npscalar", decode=_decode_scalar, form=Form(object, 1, 1, "array"))
define("annotated", decode=decode_annotated, form=Form(least=1, most=1, first="node"))
