"""Random numbers that libraries draw from generators of their own.

Generators that a library holds in a module or a class (`_rng = random.Random()`) are streams of the process, as
Python's own is: no name of the program need lead there. Other generators are out of Python's sight.

The generators of numba's compiled functions (one behind `random`, one behind `numpy.random`, in each thread) are read
and set in the thread of the training loop: layout of `numba/_random.c`, compared with the values that numba itself
reads. OpenCV's cannot be read: calls that draw from it are counted (`Streams.drawn`), and it is named if a loop has
drawn. webdataset seeds shuffles without a seed by the clock and the process's number: here Python's generator seeds
them.

Seeds that the program sets itself can be shifted by one number, as if the program had been written with other seeds.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import numbers
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from detrain.base.errors import FrameworkUnsupported
from detrain.base.framework_names import MODULES
from detrain.base.in_place import in_place_of
from detrain.base.libraries import entry, said, saying
from detrain.python.inspect.library_globals import namespaces
from detrain.python.inspect.names import module_of, own_attributes
from detrain.python.inspect.random_state import STREAMS
from detrain.python.process.random_streams import HeldGenerator, NumpyStream, PythonStream, RngState, Stream, Streams, WordStream

_WORDS: Final = 624
_WITH_CHANCE: Final = 6
"""The number of parts of which webdataset makes a seed that shall differ in each run."""
_STREAM_OF: Final[dict[type, Callable[[Any], Stream]]] = dict(zip(STREAMS, (PythonStream, NumpyStream, HeldGenerator), strict=True))
_WITH_STREAMS: Final = sys.stdlib_module_names | MODULES | {"numpy", "detrain"}
"""Packages whose generators are streams by other names."""
FOLLOWED: Final = ("numba", "webdataset", *saying("unseen"))
"""Top-level modules whose import must be reported to `LibraryStreams`."""

SEEDS_OF_PYTHON: Final = (("random", "seed"), ("numpy.random", "seed"))
_NAMES: Final = ("seed", "a")
"""The names of the seed among their parameters."""
_WIDTH: Final = 1 << 32
"""Seeds from 0 to below this stay in that range, which is NumPy's."""


class _Twister(ctypes.Structure):
    _fields_ = (
        ("position", ctypes.c_int),
        ("words", ctypes.c_uint32 * _WORDS),
        ("has_gauss", ctypes.c_int),
        ("gauss", ctypes.c_double),
        ("is_seeded", ctypes.c_int),
    )


class NumbaStream(WordStream):
    """One of numba's generators, a Mersenne Twister, of the calling thread."""

    def __init__(self, pointer: Callable[[], int]) -> None:
        """`pointer` returns the address of the generator."""
        self._pointer = pointer

    def get(self) -> RngState:
        """Return the state, the spare Gaussian included."""
        state = self._state()
        words = np.empty(_WORDS + 1, np.uint32)
        words[:_WORDS] = state.words
        words[_WORDS] = state.position
        return RngState(words, state.gauss if state.has_gauss else None)

    def set(self, state: RngState) -> None:
        """Set the state."""
        own = self._state()
        own.words[:] = state.words[:_WORDS].tolist()
        own.position, own.has_gauss = int(state.words[_WORDS]), int(state.gauss is not None)
        own.gauss, own.is_seeded = state.gauss or 0.0, 1

    def _state(self) -> _Twister:
        return _Twister.from_address(self._pointer())


class HeldStreams:
    """The generators that modules and classes of libraries hold, also in objects there.

    Generators of Python, NumPy and the frameworks themselves are not among them: they are streams by other names.
    """

    def __init__(self, of_framework: Callable[[object], Sequence[Stream]]) -> None:
        """`of_framework` returns a framework's generator as a stream."""
        self._of_framework = of_framework
        self._modules: set[str] = set()
        self._unset: list[tuple[str, Mapping[str, object], str]] = []
        """Names that led to None when all was looked through: a library may make a generator at its first use."""
        self._known: set[int] = set()
        self._made: list[str] = []
        """The names of generators in modules that have been imported since."""

    def look(self) -> dict[str, Stream]:
        """Return the generators that are there as a loop is entered, by name."""
        self._modules.clear()
        self._unset.clear()
        self._made.clear()
        self._known = {id(random._inst), id(np.random.mtrand._rand)}  # libraries hold these, too
        return dict(self._new())

    def since(self) -> list[str]:
        """Return the names of the generators that libraries have made since."""
        self._made += [name for name, _ in self._new()]
        return [*self._made, *(name for name, held, key in self._unset if self._stream(held.get(key)))]

    def _new(self) -> Iterator[tuple[str, Stream]]:
        for module_name in [name for name in sys.modules if name not in self._modules]:
            self._modules.add(module_name)
            if module_name.partition(".")[0] in _WITH_STREAMS or said(module_name, "names"):
                continue
            for owner, held in _held_by(module_name):
                for key, value in list(held.items()):
                    if value is None:
                        self._unset.append((f"{owner}.{key}", held, key))
                    elif id(value) not in self._known and (streams := self._stream(value)):
                        self._known.add(id(value))
                        yield f"{owner}.{key}", streams[0]

    def _stream(self, value: Any) -> Sequence[Stream]:
        if type(value) in _STREAM_OF:
            return [_STREAM_OF[type(value)](value)]
        return self._of_framework(value) if type(value).__name__ == "Generator" else ()


def _held_by(module_name: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the values in a module and its classes, and in objects there of the package's own classes, by owner."""
    for _, before, held in namespaces([module_name]):
        yield f"{module_name}.{before}".removesuffix("."), held
        for name, value in list(held.items()):
            if module_of(type(value)).partition(".")[0] == module_name.partition(".")[0] and (own := own_attributes(value)):
                yield f"{module_name}.{before}{name}", own


class LibraryStreams:
    """Adds generators that can be read to the streams of the process, and counts calls that draw from other ones."""

    def __init__(self, seed: int, streams: Streams) -> None:
        self._seed, self._streams = seed, streams

    def on_import(self, name: str) -> None:
        """Add, seed or count the generators of a module of `FOLLOWED` that has been imported.

        Raises FrameworkUnsupported for a numba with another layout.
        """
        module = sys.modules[name]
        if name == "numba":
            self._seed_numba()
        if name == "webdataset":
            _seed_webdataset()
        for function in entry(name).unseen:
            setattr(module, function, self._counted(f"{name}.{function}", getattr(module, function)))

    def _seed_numba(self) -> None:
        from numba import _helperlib

        helpers: Any = _helperlib
        pointers = {"numba python": helpers.rnd_get_py_state_ptr, "numba numpy": helpers.rnd_get_np_state_ptr}
        for name, pointer in pointers.items():
            stream = NumbaStream(pointer)
            helpers.rnd_seed(pointer(), self._seed)
            position, words = helpers.rnd_get_state(pointer())
            if stream.get().words.tolist() != [*words, position] or stream.get().gauss is not None:
                raise FrameworkUnsupported(
                    "the generators of this version of numba lie in memory in another way than detrain knows",
                    "install another version of numba, or run the program with --bare: no checkpoints",
                )
            self._streams.add(name, stream)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._streams.drawn[name] += 1
            return function(*args, **kwargs)

        return counted


def _seed_webdataset() -> None:
    """Have shuffles without a seed take one from Python's generator, in any process.

    The source: webdataset/filters.py (`_shuffle`), shardlists.py (`ResampledShards`), utils.py (`make_seed`).
    """
    filters: Any = sys.modules["webdataset.filters"]
    utils: Any = sys.modules["webdataset.utils"]
    shuffle, make_seed = filters.shuffle.f, utils.make_seed

    @in_place_of(filters.shuffle, "f")
    def seeded(data: Any, bufsize: int = 1000, initial: int = 100, rng: Any = None, seed: Any = None, **others: Any) -> Any:
        if rng is None and seed is None:
            seed = random.getrandbits(64)
        return shuffle(data, bufsize, initial, rng, seed, **others)

    @in_place_of(utils, "make_seed")
    def repeated(*parts: Any) -> Any:
        is_by_chance = len(parts) == _WITH_CHANCE  # the last three are the process, the time and the system's entropy
        return make_seed(*parts[:3], random.getrandbits(64)) if is_by_chance else make_seed(*parts)


def shift_seeds(functions: Iterable[tuple[str, str]], by: int) -> None:
    """Have functions, by module and name, add a number to the seeds that they are given.

    A seed that is no number stays.
    """
    for module, name in functions:
        owner = importlib.import_module(module)
        setattr(owner, name, _shifted(getattr(owner, name), by))


def _shifted(seeding: Any, by: int) -> Any:
    def shifted(seed: Any) -> Any:
        if not isinstance(seed, numbers.Integral):
            return seed
        number = int(seed)
        return (number + by) % _WIDTH if 0 <= number < _WIDTH else number + by

    @functools.wraps(seeding)
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {name: shifted(value) if name in _NAMES else value for name, value in kwargs.items()}
        return seeding(*map(shifted, args[:1]), *args[1:], **named)

    return call
