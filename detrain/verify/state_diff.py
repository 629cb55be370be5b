"""The comparison of two states bit for bit: which tensors, random streams and Python values differ, and how far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from detrain.base.digest import Array, digest_array, raw_bytes
from detrain.base.plain_types import CONTAINERS
from detrain.export.object_tensors import is_tensor, values_of
from detrain.python.codec.graph_files import unpack
from detrain.python.codec.table import kind_named
from detrain.python.inspect.object_graph import SPENT_NAMES, Graph, Node, is_array, is_reference
from detrain.store.snapshot import Snapshot

_ARRAYS: Final = ("ndarray", "tensor", "same", "memory")
_BARS: Final = ("tqdm.", "keras.src.utils.progbar.", "tf_keras.src.utils.generic_utils.")
"""Beginnings of the names of classes of progress bars."""
_OF_TIME: Final = frozenset(
    {
        *("start_t", "last_print_t", "last_print_n", "miniters", "_ema_dn", "_ema_dt", "_ema_miniters"),
        *("_start", "_last_update", "_time_after_first_step", "_time_at_epoch_start", "_time_at_epoch_end", "_prev_total_width"),
    }
)
"""Attributes of progress bars that depend on the time of drawing: they always or sometimes differ between runs."""
_ONLY_VALUES: Final = ("torch.device", "torch.Size", "jax.sharding", "jax.placed")
"""Kinds of objects for which it does not matter which places share one object."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value that differs.

    `elements` of `size` elements have other bits; `ulp` is the largest distance between two of them.
    """

    name: str
    what: str
    """The kind of value: `tensor`, `stream` or `value` (a Python value)."""
    why: str = ""
    """Set if elements cannot be compared: shapes or dtypes differ, or only one state has the value."""
    elements: int = 0
    size: int = 0
    ulp: int | None = None
    """In units in the last place of the values' own dtype; None for dtypes without floating point."""
    largest: float | None = None
    """The largest absolute difference, in the values' own unit; None if only one of two compared values is NaN."""

    @property
    def is_unused(self) -> bool:
        """True for a variable that only one state has: the program has dropped it, but Python has not freed it yet."""
        return self.what == "tensor" and self.why.startswith("only in")

    def __str__(self) -> str:
        if self.why:
            return f"{self.name}: {self.why}"
        if not self.size:
            return f"{self.name}: differs"
        unit = "no number in one of them" if self.largest is None else f"{self.largest:.3g}"
        far = "" if self.ulp is None else f", at most {self.ulp} ULP ({unit}) apart"
        return f"{self.name}: {self.elements} of {self.size} elements differ{far}"


def compare(one: Snapshot, other: Snapshot) -> list[Difference]:
    """Return the differences between two checkpoints: tensors first, then random streams, then Python values."""
    found = list(_compare_tensors(one.tensors, other.tensors))
    for name in sorted({*one.rng, *other.rng}):
        if one.rng.get(name) != other.rng.get(name):
            found.append(Difference(name, "stream"))
    return [*found, *_compare_python(one, other)]


def compare_arrays(name: str, one: Array, other: Array) -> Difference | None:
    """Return the difference of two arrays, or None if they have the same bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return Difference(name, "tensor", f"{one.dtype}{list(one.shape)} against {other.dtype}{list(other.shape)}")
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
            if not (np.isnan(values[0]) ^ np.isnan(values[1])).any():
                largest = float(np.nanmax(np.abs(values[0] - values[1]), initial=0.0))
    return Difference(name, "tensor", "", int(differs.sum()), int(one.size), ulp, largest)


def _ordered(integers: Array) -> Array:
    """Return, for floating-point numbers given as their bits, integers in the same order and one apart per ULP."""
    wide = integers.astype(np.int64)
    lowest = np.int64(np.iinfo(integers.dtype).min)
    with np.errstate(over="ignore"):
        return np.where(wide < 0, lowest - wide, wide)


def _compare_tensors(one: Mapping[str, Array], other: Mapping[str, Array]) -> Iterator[Difference]:
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            yield Difference(name, "tensor", f"only in the {'first' if name in one else 'second'}")
        elif (difference := compare_arrays(name, one[name], other[name])) is not None:
            yield difference


def _compare_python(one: Snapshot, other: Snapshot) -> Iterator[Difference]:
    graphs = [unpack(snapshot.python, snapshot.arrays) for snapshot in (one, other)]
    walk = _PairWalk(one, other, graphs[0].nodes, graphs[1].nodes)
    roots = [graph.roots for graph in graphs]
    spent = [_spent(graph) for graph in graphs]
    for key in [*roots[0], *(key for key in roots[1] if key not in roots[0])]:
        name = key.rpartition("|")[2]
        if key == SPENT_NAMES:
            parted = (spent[0] ^ spent[1]) & roots[0].keys() & roots[1].keys()
            yield from (Difference(f"whether {each.rpartition('|')[2]} is read", "value") for each in sorted(parted))
        elif key not in roots[0] or key not in roots[1]:
            # A name bound in an earlier phase is not bound in a resumed run, which does not enter that phase.
            if key in spent[0] | spent[1]:
                continue
            yield Difference(name, "value", f"only in the {'first' if key in roots[0] else 'second'}")
        else:
            for path in dict.fromkeys(walk.differences(roots[0][key], roots[1][key], name)):
                yield walk.tensors.get(path) or Difference(path, "value")


def _count_as_drawn(*bars: Node) -> bool:
    """Return whether both bars of tqdm go over something and have just been drawn: while a loop goes over a bar, tqdm
    sets its count as it draws it, by the clock.
    """
    states = [{key: value for key, value in bar.named if type(key) is str} for bar in bars]
    return all(each.get("iterable") is not None and each.get("n") == each.get("last_print_n") for each in states)


def _spent(graph: Graph) -> set[str]:
    """Return the names of a state that no code reads again."""
    item = graph.roots.get(SPENT_NAMES)
    return set() if item is None else {name for name in graph.nodes[item[0]].items if isinstance(name, str)}


class _PairWalk:
    """A walk over two graphs of Python objects at once. Node numbers may differ; places that share a node may not."""

    def __init__(self, one: Snapshot, other: Snapshot, nodes: list[Node], other_nodes: list[Node]) -> None:
        self._states = one, other
        self._arrays = one.arrays, other.arrays
        self._nodes = nodes, other_nodes
        self._pairs: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        """The path by which each node of the first graph was reached."""
        self.tensors: dict[str, Difference] = {}
        """Differences of tensors, by path."""

    def differences(self, item: Any, other: Any, path: str) -> Iterator[str]:
        """Yield the paths at and below `path` at which two items, and the objects reached from them, are not equal."""
        waiting = [(item, other, path)]
        while waiting:
            one, two, path = waiting.pop()
            if is_reference(one) and is_reference(two):
                nodes = self._nodes[0][one[0]], self._nodes[1][two[0]]
                if nodes[0].kind in _ONLY_VALUES and nodes[0].kind == nodes[1].kind:
                    yield from self._values(*nodes, path)
                elif self._pairs.setdefault(one[0], two[0]) != two[0]:
                    yield path
                elif one[0] not in self._paths:
                    self._paths[one[0]] = path
                    if nodes[0].kind == nodes[1].kind and all(map(is_tensor, nodes)):
                        self._note_tensor(*nodes, path)
                    parts = self._parts(*nodes)
                    if parts is None:
                        yield path
                    else:
                        waiting += [(a, b, f"{path}{step}") for a, b, step in reversed(parts)]
            elif is_array(one) and is_array(two):
                if digest_array(self._arrays[0][one[0]]) != digest_array(self._arrays[1][two[0]]):
                    yield path
            elif _bits(one) != _bits(two):
                yield path

    def _values(self, one: Node, two: Node, path: str) -> Iterator[str]:
        """Yield the paths at which two values differ; it does not matter which places share their parts."""
        alone = _PairWalk(*self._states, *self._nodes)
        parts = alone._parts(one, two)
        for item, other, step in [] if parts is None else parts:
            yield from alone.differences(item, other, f"{path}{step}")
        if parts is None:
            yield path

    def _parts(self, one: Node, two: Node) -> list[tuple[Any, Any, str]] | None:
        """Return the pairs of items that must be equal for two nodes to be equal, each with its step of the path; None
        if the nodes themselves differ.
        """
        if any(node.kind in _ARRAYS for node in (one, two)):
            return [] if self._array(0, one) == self._array(1, two) else None
        if one.kind != two.kind or _bits(one.data) != _bits(two.data):
            return None
        if len(one.items) != len(two.items) or len(one.named) != len(two.named):
            return None
        has_numbers = kind_named(one.kind).lists or len(one.items) > 1
        numbered = range(is_tensor(one), len(one.items)) if has_numbers else ()  # a tensor's memory has the tensor's path
        steps = {n: f"[{n}]" for n in numbered} | ({2: ".grad"} if is_tensor(one) else {})
        found = [(a, b, steps.get(n, "")) for n, (a, b) in enumerate(zip(one.items, two.items, strict=True))]
        is_bar = isinstance(one.data, list) and "".join(map(str, one.data[:1])).replace(":", ".").startswith(_BARS)
        for number, ((key, value), (other_key, other_value)) in enumerate(zip(one.named, two.named, strict=True)):
            if is_bar and type(key) is str and key == other_key and (key in _OF_TIME or (key == "n" and _count_as_drawn(one, two))):
                continue
            is_key = one.kind in CONTAINERS
            step = self._step_by_object(key, number) if is_key and is_reference(key) else _step(key, is_key=is_key)
            found += [(key, other_key, step), (value, other_value, step)]
        return found

    def _step_by_object(self, key: Any, number: int) -> str:
        """Return the step of a path to the value under an object: by its path, or else by the entry's number."""
        return f"[{self._paths.get(key[0], f'… {number}')}]"

    def _note_tensor(self, one: Node, two: Node, path: str) -> None:
        """Keep the difference of two tensors that view the same places in memories with different bytes."""
        arrays = [values_of(node, self._nodes[side], self._arrays[side]) for side, node in enumerate((one, two))]
        is_alike = one.kind != "shared" or one.data[1] == two.data[1]
        if is_alike and arrays[0] is not None and arrays[1] is not None:
            difference = compare_arrays(path, arrays[0], arrays[1])
            if difference is not None:
                self.tensors[path] = difference

    def _array(self, side: int, node: Node) -> object:
        """Return the value of an array's node for comparison, also if the array is unchanged since the loop's start."""
        if node.kind == "same":
            digest, kind, *form = node.data
            return kind, digest, form
        if node.kind not in _ARRAYS:
            return node
        if not is_array(node.items[0]):  # a memory that is unchanged since the loop's start
            return node.data[2]
        stored = self._arrays[side][node.items[0][0]]
        if node.kind == "memory":
            return digest_array(stored)
        axes, _is_writeable, *form = node.data
        return node.kind, digest_array(stored if axes is None else stored.transpose(np.argsort(axes))), form


def _bits(data: Any) -> bytes:
    """Return a value as bytes, which differ also for equal values with different bits."""
    return msgspec.msgpack.encode(data)


def _step(key: Any, *, is_key: bool) -> str:
    """Return a step of a path as a program writes it: to an attribute, or to the value under a mapping's key."""
    is_plain = key is None or type(key) in (bool, int, float, str, bytes)
    return (f"[{key!r}]" if is_plain else "[…]") if is_key else f".{key}"
