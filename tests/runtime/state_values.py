"""Values that a training program may hold: the kinds, and strategies that draw them.

The tests of the codec use them.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import enum
import functools
import pathlib
import random
import struct
import types
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from detrain.python.codec.baseline import Baseline
from detrain.python.codec.coders import Decoder, Encoder
from detrain.python.codec.graph_files import unpack
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.object_graph import ABSENT, Encoded

World = dict[str, Any]
"""Names of a program and their values."""

NO_FRAMEWORK = Hooks()


def baseline_of(world: World) -> Baseline:
    """Return the baseline of a world in which the loop is entered."""
    found = Baseline()
    encoder = Encoder(NO_FRAMEWORK, found, is_baseline=True)
    for name, value in world.items():
        encoder.encode(value, name)
    encoder.note_told()
    return found


def encode(world: World, baseline: Baseline | None = None, *, are_loads_replayed: bool = False) -> Encoded:
    """Return the state of a world."""
    encoder = Encoder(NO_FRAMEWORK, baseline or Baseline(), are_loads_replayed=are_loads_replayed)
    return encoder.finish({name: encoder.encode(value, name) for name, value in world.items()})


def restore(encoded: Encoded, world: World, baseline: Baseline | None = None) -> list[str]:
    """Put a state into a world, and return the names of the values that could not be put back."""
    decoder = Decoder(unpack(encoded.graph, encoded.arrays), encoded.arrays, NO_FRAMEWORK, baseline or Baseline())
    decoder.hold_cells({})
    for name, item in decoder.roots.items():
        value = decoder.decode(item, world.get(name, ABSENT), name)
        if value is ABSENT:
            decoder.missing.append(name)
        elif not name.startswith("class|"):
            world[name] = value
    return decoder.finish()


def make_functions(count: int) -> World:
    """Return functions that share variables, and one that makes more of them."""
    log: list[int] = []

    def add(step: int) -> int:
        "Add, and tell."
        nonlocal count
        count += step
        log.append(step)
        return count

    def fall(number: int) -> int:
        return number * fall(number - 1) if number else 1

    return {"add": add, "read": lambda: count, "fall": fall, "log": log, "make": lambda by: lambda: by * count}


def add_to(number: int) -> Callable[[int], int]:
    """Return a function that closes over its number."""

    def add(x: int) -> int:
        return number + x

    return add


class Colour(enum.Enum):
    RED = "red"
    DARK_RED = "red"
    BLUE = ("blue", 3)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2
    C = 4


class Point(NamedTuple):
    x: object
    y: object = None


@dataclasses.dataclass
class Batch:
    x: object
    y: object = None


@dataclasses.dataclass(frozen=True)
class Config:
    rate: object
    name: object = "config"


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    one: object
    other: object = None


class Parent:
    __slots__ = ("__hidden", "kept")

    def __init__(self, hidden: object) -> None:
        self.__hidden = hidden


class Child(Parent):
    __slots__ = ("more",)

    @property
    def kept(self) -> object:  # type: ignore[override]
        return "a property that hides the slot of the base"


class Loose(Parent):
    """Has slots, and a dictionary besides."""


def refuse(*_arguments: object, **_keywords: object) -> NoReturn:
    raise AssertionError("the codec ran code of the program")


class Table(dict[Any, Any]):
    """Overrides what a codec must read past."""

    __setitem__ = items = refuse


class Row(list[Any]):
    append = __iter__ = refuse


class Bag(set[Any]):
    add = clear = __iter__ = __len__ = refuse


class Replay(collections.deque[Any]):
    append = refuse


class Tally(collections.Counter[Any]):
    pass


class Order(collections.OrderedDict[Any, Any]):
    pass


class Groups(collections.defaultdict[Any, Any]):
    pass


class AttributeTable(dict[Any, Any]):
    """Its attributes are its items."""

    def __init__(self, **items: object) -> None:
        super().__init__(items)
        self.__dict__ = self


def filled(cls: type, items: Any, **attributes: object) -> Any:
    """Return an object of a container class that forbids its own methods."""
    value = cls()
    base: Any = next(base for base in cls.__mro__ if base in (list, set, dict, collections.deque))
    if base is dict:
        dict.update(value, items)
    else:
        base.__init__(value, items)
    vars(value).update(attributes)
    return value


bit_floats = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
floats = st.one_of(st.floats(), bit_floats, st.sampled_from([-0.0, 0.0, 5e-324, float("nan"), -float("nan")]))
texts = st.text(st.characters(codec=None) | st.characters(categories=["Cs"]), max_size=4)
zones = st.sampled_from([None, datetime.UTC, datetime.timezone(datetime.timedelta(hours=-3, seconds=7), "odd")])
dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    st.sampled_from([np.dtype("longdouble"), np.dtype([("a", "<f4"), ("b", ">i2", (2,))]), np.dtype("M8[25s]")]),
)


def _array(drawn: tuple[Any, str]) -> Any:
    array, form = drawn
    if form == "fortran":
        return np.asfortranarray(array)
    if form == "reversed" and array.ndim:
        return array[::-1]
    return np.array(array.swapaxes(0, -1), order="K") if form == "swapped" and array.ndim else array


arrays = st.tuples(
    hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    st.sampled_from(["plain", "fortran", "reversed", "swapped"]),
).map(_array)
hashable_leaves = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=4),
    st.complex_numbers(allow_nan=False),
    st.dates(),
    st.datetimes(timezones=zones, allow_imaginary=False),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.sampled_from([*Colour, *Level, Flags.A, Flags.A | Flags.C, Flags(0)]),
    st.sampled_from([pathlib.Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("c:\\x"), pathlib.Path("\udc80")]),
)
leaves = st.one_of(
    hashable_leaves,
    st.none(),
    floats,
    st.builds(complex, floats, floats),
    st.binary(max_size=4).map(bytearray),
    st.times(timezones=zones),
    st.datetimes().map(lambda moment: moment.replace(fold=1)),
    st.decimals(),
    st.builds(range, st.integers(), st.integers(), st.integers(1, 2**70)),
    st.slices(9),
    arrays,
    dtypes,
    dtypes.flatmap(lambda dtype: hnp.arrays(dtype, ())).map(lambda array: array[()]),
    st.sampled_from([int, list, np.float32, Batch, Colour, _array]),
)
keys = st.recursive(
    hashable_leaves, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)), max_leaves=3
)


_Pick = Callable[[int], Any]


def _maker(cls: Any, form: str) -> Callable[[_Pick, list[Any]], Any]:
    """Return a function that makes a container from a function for its n-th part, and from keys."""
    forms: dict[str, Callable[[_Pick, list[Any]], Any]] = {
        "items": lambda pick, keys: cls([pick(index) for index in range(min(len(keys), 4))]),
        "keys": lambda pick, keys: cls(keys),
        "pairs": lambda pick, keys: cls({key: pick(index) for index, key in enumerate(keys[:4])}),
        "two": lambda pick, keys: cls(pick(0), pick(1)),
        "one": lambda pick, keys: cls(pick(0)),
        "own items": lambda pick, keys: filled(cls, [pick(1), pick(2)], own=pick(0)),
        "own keys": lambda pick, keys: filled(cls, keys, own=pick(0)),
        "own pairs": lambda pick, keys: filled(cls, {key: pick(index) for index, key in enumerate(keys[:4])}, own=pick(0)),
        "names": lambda pick, keys: cls(**{name: pick(index) for index, name in enumerate("abc"[: len(keys)])}),
    }
    return forms[form]


def _with(value: Any, own: dict[str, object]) -> Any:
    vars(value).update(own)
    return value


def _object_array(items: list[object]) -> Any:
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array


MAKERS = [
    *(_maker(cls, "items") for cls in (list, tuple, collections.deque, lambda items: collections.deque(items, 3))),
    *(_maker(cls, "keys") for cls in (set, frozenset, collections.Counter, Tally)),
    *(_maker(cls, "pairs") for cls in (dict, collections.OrderedDict, Order, collections.UserDict)),
    *(_maker(functools.partial(collections.defaultdict, kind), "pairs") for kind in (None, int, Batch, np.float32)),
    _maker(functools.partial(Groups, list), "pairs"),
    *(_maker(cls, "two") for cls in (Point, Batch, Config, Slotted)),
    _maker(Child, "one"),
    *(_maker(cls, "own items") for cls in (Row, Replay)),
    *(_maker(cls, "own keys") for cls in (Bag,)),
    *(_maker(cls, "own pairs") for cls in (Table,)),
    *(_maker(cls, "names") for cls in (types.SimpleNamespace, lambda **own: _with(Loose(1), own), AttributeTable)),
    _maker(_object_array, "items"),
    _maker(lambda one, other: functools.partial(Batch, one, y=other), "two"),
]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe for a graph with shared parts and cycles: each `build` makes an equal one."""

    leaves: list[Any]
    steps: list[tuple[int, list[int], list[Any]]]
    links: list[tuple[int, int]]

    def build(self) -> list[Any]:
        """Return all objects of a new graph."""
        pool = copy.deepcopy(self.leaves)
        for number, picks, hashables in self.steps:
            parts = [pool[-1 - pick % len(pool)] for pick in picks]
            pool.append(MAKERS[number](lambda index, parts=parts: parts[index % len(parts)], hashables))  # type: ignore[misc]
        for holder, held in self.links:
            _link(pool[-1 - holder % len(pool)], pool[-1 - held % len(pool)])
        return pool


def _link(holder: Any, held: object) -> None:
    if isinstance(holder, list | collections.deque):
        (list if isinstance(holder, list) else collections.deque).append(holder, held)  # type: ignore[arg-type]
    elif isinstance(holder, dict) and not isinstance(holder, collections.Counter | AttributeTable):
        (collections.OrderedDict if isinstance(holder, collections.OrderedDict) else dict).__setitem__(holder, "link", held)
    elif hasattr(holder, "__dict__") and isinstance(holder, Batch | Loose | Bag | types.SimpleNamespace):
        holder.link = held  # type: ignore[union-attr]


recipes = st.builds(
    Recipe,
    st.lists(leaves, min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.integers(0, len(MAKERS) - 1),
            st.lists(st.integers(0, 7), min_size=3, max_size=3),
            st.lists(keys, unique=True, max_size=9),
        ),
        max_size=8,
    ),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=4),
)


def randoms(seed: int) -> World:
    """Return one generator of every kind, each after some draws."""
    kinds = (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
    world: World = {kind.__name__: np.random.Generator(kind(seed)) for kind in kinds}
    world |= {"python": random.Random(seed), "legacy": np.random.RandomState(seed), "seeds": np.random.SeedSequence(seed)}
    world["legacy on PCG64"] = np.random.RandomState(np.random.PCG64(seed))  # type: ignore[arg-type]
    draw(world, seed % 5)
    return world


def draw(world: World, count: int) -> list[object]:
    """Return some draws of every generator, spawned ones too."""
    found: list[object] = []
    for _ in range(count):
        for source in world.values():
            if isinstance(source, random.Random):
                found += [source.gauss(0, 1), source.getrandbits(40)]
            elif isinstance(source, np.random.RandomState):
                found += [source.normal(), source.rand(), source.randint(9)]
            elif isinstance(source, np.random.Generator):
                found += [source.normal(), source.integers(9, dtype=np.int32), source.spawn(1)[0].random()]
            else:
                found += source.spawn(1)[0].generate_state(2).tolist()
    return found
