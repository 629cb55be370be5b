"""Compare two states, bit for bit: which tensors, random streams and Python values differ, in how many elements, and how far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from detrain.runtime.digest import Array, digest_array, raw_bytes
from detrain.store.layout import Snapshot

_ARRAYS: Final = ("ndarray", "tensor", "same")
_WITH_SHAPES: Final = {"view": (3, 4), "objects": (1,)}
"""Places of shapes and strides in nodes."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value that differs. `elements` of `size` elements have other bits; `ulp` is the largest distance between two of them."""

    name: str
    what: str
    """`tensor`, `array`, `stream` or `value`."""
    why: str = ""
    """Set where elements cannot be compared: another shape or dtype, or there in one state only."""
    elements: int = 0
    size: int = 0
    ulp: int | None = None
    """In units in the last place of the values' own dtype; None for what is no number of floating point."""
    largest: float | None = None
    """The largest absolute difference, in the values' own unit."""

    def __str__(self) -> str:
        if self.why:
            return f"{self.name}: {self.why}"
        if not self.size:
            return f"{self.name}: differs"
        far = "" if self.ulp is None else f", at most {self.ulp} ULP ({self.largest:.3g}) apart"
        return f"{self.name}: {self.elements} of {self.size} elements differ{far}"


def compare(one: Snapshot, other: Snapshot) -> list[Difference]:
    """Return what differs between two checkpoints: tensors first, then random streams, then Python values."""
    found = list(_compare_arrays(one.tensors, other.tensors, "tensor"))
    for name in sorted({*one.rng, *other.rng}):
        if one.rng.get(name) != other.rng.get(name):
            found.append(Difference(name, "stream"))
    return [*found, *_compare_python(one, other)]


def compare_arrays(name: str, one: Array, other: Array, what: str = "tensor") -> Difference | None:
    """Return how two arrays differ, or None if they have the same bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return Difference(name, what, f"{one.dtype}{list(one.shape)} against {other.dtype}{list(other.shape)}")
    if digest_array(one) == digest_array(other):
        return None
    size = max(one.itemsize, 1)
    bits = [np.frombuffer(bytes(raw_bytes(array)), np.uint8).reshape(-1, size) for array in (one, other)]
    differs = (bits[0] != bits[1]).any(axis=1)
    ulp = largest = None
    if one.dtype.kind == "f" or one.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        integers = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}[size]
        ordered = [_ordered(part.copy().view(integers).reshape(-1)[differs]) for part in bits]
        ulp = int((np.maximum(*ordered).view(np.uint64) - np.minimum(*ordered).view(np.uint64)).max())
        with np.errstate(all="ignore"):
            values = [array.reshape(-1)[differs].astype(np.float64) for array in (one, other)]
            largest = float(np.nanmax(np.abs(values[0] - values[1]), initial=0.0))
    return Difference(name, what, "", int(differs.sum()), int(one.size), ulp, largest)


def _ordered(integers: Array) -> Array:
    """Return the place of floating-point numbers, given as their bits, in their order."""
    wide = integers.astype(np.int64)
    lowest = np.int64(np.iinfo(integers.dtype).min)
    with np.errstate(over="ignore"):
        return np.where(wide < 0, lowest - wide, wide)


def _compare_arrays(one: Mapping[str, Array], other: Mapping[str, Array], what: str) -> Iterator[Difference]:
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            yield Difference(name, what, f"only in the {'first' if name in one else 'second'}")
        elif (difference := compare_arrays(name, one[name], other[name], what)) is not None:
            yield difference


def _compare_python(one: Snapshot, other: Snapshot) -> Iterator[Difference]:
    graphs = [msgspec.msgpack.decode(snapshot.python) for snapshot in (one, other)]
    walk = _Walk(one, other, graphs[0]["nodes"], graphs[1]["nodes"])
    roots = [graph["roots"] for graph in graphs]
    for key in [*roots[0], *(key for key in roots[1] if key not in roots[0])]:
        name = key.rpartition("|")[2]
        if key not in roots[0] or key not in roots[1]:
            yield Difference(name, "value", f"only in the {'first' if key in roots[0] else 'second'}")
        elif not walk.is_equal(roots[0][key], roots[1][key]):
            yield Difference(name, "value")


class _Walk:
    """Walks two graphs of Python objects at once. Numbers of nodes say nothing; which places share one does."""

    def __init__(self, one: Snapshot, other: Snapshot, nodes: list[Any], other_nodes: list[Any]) -> None:
        self._arrays = one.arrays, other.arrays
        self._nodes = nodes, other_nodes
        self._pairs: dict[int, int] = {}

    def is_equal(self, item: Any, other: Any) -> bool:
        waiting = [(item, other)]
        while waiting:
            one, two = waiting.pop()
            is_reference = [type(each) is list and len(each) == 1 and type(each[0]) is int for each in (one, two)]
            if all(is_reference):
                known = self._pairs.get(one[0])
                if known is not None:
                    if known != two[0]:
                        return False
                    continue
                self._pairs[one[0]] = two[0]
                nodes = self._nodes[0][one[0]], self._nodes[1][two[0]]
                if any(node[0] in _ARRAYS for node in nodes):
                    if self._array(0, nodes[0]) != self._array(1, nodes[1]):
                        return False
                    continue
                if nodes[0][0] != nodes[1][0] or len(nodes[0]) != len(nodes[1]):
                    return False
                if nodes[0][0] in ("npscalar", "random"):
                    arrays = self._arrays[0][nodes[0][1]], self._arrays[1][nodes[1][1]]
                    if digest_array(arrays[0]) != digest_array(arrays[1]):
                        return False
                    nodes = nodes[0][2:], nodes[1][2:]
                elif nodes[0][0] in _WITH_SHAPES:  # lists of numbers that are no references
                    if any(nodes[0][place] != nodes[1][place] for place in _WITH_SHAPES[nodes[0][0]]):
                        return False
                    nodes = _without_shapes(nodes[0]), _without_shapes(nodes[1])
                waiting += zip(*nodes, strict=True)
            elif type(one) is list and type(two) is list and not any(is_reference):
                if len(one) != len(two):
                    return False
                waiting += zip(one, two, strict=True)
            elif type(one) is not type(two) or one != two:
                return False
        return True

    def _array(self, side: int, node: list[Any]) -> object:
        """Return what an array's node says of its value; whether it is as it was when the loop was entered is no part of that."""
        kind, content = node[0], node[1]
        if kind == "same":
            return node[2], content
        if kind not in _ARRAYS:
            return node
        stored, axes = self._arrays[side][content], node[2]
        return kind, digest_array(stored if axes is None else stored.transpose(np.argsort(axes)))


def _without_shapes(node: list[Any]) -> list[Any]:
    return [part for place, part in enumerate(node) if place not in _WITH_SHAPES[node[0]]]
