"""Random generators of Python and NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding
from detrain.python.codec.kind import NONE, Form, define
from detrain.python.inspect.object_graph import ABSENT, Item, Node
from detrain.python.inspect.random_state import BIT_GENERATORS, STREAMS, bits_of


def encode_random(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode NumPy's generators, and Python's."""
    cls = type(value)
    if cls in STREAMS:
        return encode_stream(encoding, cls, value, path)
    if cls is np.random.SeedSequence:
        parts = (value.entropy, value.spawn_key, value.pool_size, value.n_children_spawned)
        return Node("seeds", None, [encoding.encode(part, path) for part in parts])
    if cls.__name__ in BIT_GENERATORS and cls is getattr(np.random, cls.__name__):
        return _describe_bits(encoding, value, path, has_seeds=True)
    return encoding.encode_opaque(number, value, path)


def encode_stream(encoding: Encoding, base: Any, value: Any, path: str) -> Node:
    """Encode the state of a generator, read past the methods of a class that derives from `base`."""
    if base is random.Random:
        _version, words, gauss = base.getstate(value)
        return Node("random", gauss, [encoding.store(np.array(words, np.uint32))])
    if base is np.random.RandomState:
        state = base.get_state(value, legacy=False)
        bits = _encode_bits(encoding, bits_of(value), path, has_seeds=state["bit_generator"] != "MT19937")
        return Node("RandomState", [state["has_gauss"], state["gauss"]], [bits])
    return Node("Generator", None, [encoding.encode(bits_of(value), f"{path}.bit_generator")])


def _encode_bits(encoding: Encoding, bits: Any, path: str, *, has_seeds: bool) -> Item:
    known = encoding.numbers.get(id(bits))
    if known is not None:
        return [known]
    item = encoding.add_node(bits, None)
    encoding.numbers[id(bits)] = item[0]
    encoding.nodes[item[0]] = _describe_bits(encoding, bits, path, has_seeds=has_seeds)
    return item


def _describe_bits(encoding: Encoding, bits: Any, path: str, *, has_seeds: bool) -> Node:
    """Describe a bit generator.

    A legacy one has its seeds from the system, and no other can be spawned from it.
    """
    seeds = getattr(bits, "seed_seq", None) if has_seeds else None
    return Node("bits", type(bits).__name__, [encoding.encode(bits.state, path), encoding.encode(seeds, f"{path}.seed_seq")])


def _decode_twister(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    twister = current if decoding.claim(current, random.Random) else random.Random()
    set_stream(decoding, node, twister, path)
    return twister


def _decode_stream(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    """Return a generator of NumPy's at the place where it was, the live one if there is one."""
    cls: Any = np.random.RandomState if node.kind == "RandomState" else np.random.Generator
    is_live = decoding.claim(current, cls)
    inner = bits_of(current) if is_live else ABSENT
    bits = decoding.decode(node.items[0], inner, f"{path}.bit_generator")
    target = current if is_live and bits is inner else cls(bits)
    _set_gauss(node, target)
    return target


def set_stream(decoding: Decoding, node: Node, stream: Any, path: str) -> None:
    """Put back the state of a generator, past the methods of a class that derives from a generator's."""
    if node.kind == "random":
        random.Random.setstate(stream, (3, tuple(decoding.array(node).tolist()), node.data))
    elif decoding.decode(node.items[0], bits_of(stream), f"{path}.bit_generator") is not bits_of(stream):
        decoding.miss(path, "it draws from another bit generator")
    else:
        _set_gauss(node, stream)


def _set_gauss(node: Node, stream: Any) -> None:
    if node.kind == "RandomState":
        state = np.random.RandomState.get_state(stream, legacy=False)
        np.random.RandomState.set_state(stream, {**state, "has_gauss": node.data[0], "gauss": node.data[1]})


def _decode_bits(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    name, (state_item, seeds_item) = node.data, node.items
    cls = getattr(np.random, name if name in BIT_GENERATORS else "PCG64")
    is_live = decoding.claim(current, cls)
    seeds: Any = decoding.decode(seeds_item, getattr(current, "seed_seq", ABSENT) if is_live else ABSENT, f"{path}.seed_seq")
    bits = current if is_live else cls(seeds if isinstance(seeds, np.random.SeedSequence) else None)
    state = decoding.decode(state_item, ABSENT, path)
    if isinstance(seeds, np.random.SeedSequence) and bits.seed_seq is not seeds:
        bits.__setstate__((state, seeds))  # there is no other way to give a live generator other seeds
    bits.state = state
    return bits


def _decode_seeds(decoding: Decoding, _number: int, node: Node, current: Any, path: str) -> Any:
    entropy, spawn_key, pool_size, spawned = (decoding.decode(item, ABSENT, path) for item in node.items)
    made = np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)  # type: ignore[arg-type]
    if decoding.claim(current, np.random.SeedSequence) and current.n_children_spawned <= made.n_children_spawned:
        one, other = ({**seeds.state, "n_children_spawned": 0} for seeds in (current, made))
        if repr(one) == repr(other):
            current.spawn(made.n_children_spawned - current.n_children_spawned)
            return current
    return made


define("random", decode=_decode_twister, form=Form((float, NONE), 1, 1, "array"))
define("RandomState", decode=_decode_stream, form=Form([int, float], 1, 1))
define("Generator", decode=_decode_stream, form=Form(least=1, most=1))
define("bits", decode=_decode_bits, form=Form(str, 2, 2))
define("seeds", decode=_decode_seeds, form=Form())
