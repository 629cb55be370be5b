"""The global random streams of the process: read, set, compare, pack into words.

Streams: `python` (the module `random`), `numpy` (the legacy global state of `numpy.random`), and those that a framework
adds (`tensorflow` is the eager context's generator of op seeds). Generators that a program holds itself are objects
like any other and go through the codec (detrain.python.codec). If a generator function of the program lives on from
epoch to epoch, the generators that names lead to are streams, too: it may draw from one of them, and so may bodies that
are skipped as it is pulled again.

The bytes of its memory show whether a generator has moved: that takes a microsecond, while reading its state takes 15
(Python's) or 35 (NumPy's). The place of the state in Python's and NumPy's objects is found once, with generators of
known state. If it is not as expected, there is no mark, and states are read each time.
"""

from __future__ import annotations

import ctypes
import json
import random
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from detrain.base.errors import Diverged, NotCapturable
from detrain.python.inspect.random_state import STREAMS, set_state, state_of

_HEADER: Final = struct.Struct("<HBd")  # number of words, has a spare Gaussian, the spare Gaussian
_TWISTER: Final = "MT19937"
_KINDS: Final = (_TWISTER, "PCG64", "PCG64DXSM", "Philox", "SFC64")

_BYTES: Final = 4 * 625
"""624 words and the position."""
_NORMAL: Final = struct.Struct("<i4xd")
"""The spare Gaussian in NumPy's generator: whether there is one, and its value."""


def mark_of_python(generator: object) -> tuple[bytes, object] | None:
    """Return a mark that changes when a `random.Random` moves: its position and words, and the object that is its spare
    Gaussian. None if the layout of its memory is not known.
    """
    if type(generator) is not random.Random or not _knows_python():
        return None
    return ctypes.string_at(id(generator) + object.__basicsize__, _BYTES), generator.gauss_next  # type: ignore[attr-defined]


def mark_of_numpy(generator: Any) -> tuple[bytes, bytes] | None:
    """Return such a mark of a `RandomState` over a Mersenne Twister."""
    at = _place_of_gauss()
    if at is None or type(generator) is not np.random.RandomState or type(generator._bit_generator) is not np.random.MT19937:
        return None
    words = ctypes.string_at(generator._bit_generator.ctypes.state_address, _BYTES)
    return words, ctypes.string_at(id(generator) + at, _NORMAL.size)


@cache
def _knows_python() -> bool:
    known = random.Random(1)
    for _ in range(3):
        known.random()
    _version, state, _gauss = known.getstate()
    has_room = random.Random.__basicsize__ >= object.__basicsize__ + _BYTES
    return has_room and ctypes.string_at(id(known) + object.__basicsize__, _BYTES) == struct.pack("=625I", state[-1], *state[:-1])


@cache
def _place_of_gauss() -> int | None:
    """Return the offset of the spare Gaussian in a `RandomState`, in bytes; None if its memory is not as expected."""
    known = np.random.RandomState(1)
    places = set(range(0, np.random.RandomState.__basicsize__ - _NORMAL.size + 1, 8))
    for _ in range(4):
        known.standard_normal()
        state: Any = known.get_state(legacy=False)
        spare = bool(state["has_gauss"]), state["gauss"]
        places = {at for at in places if _spare_at(id(known) + at) == spare}
    words: Any = known._bit_generator
    expected = state["state"]["key"].tobytes() + struct.pack("=i", state["state"]["pos"])
    is_known = len(places) == 1 and ctypes.string_at(words.ctypes.state_address, _BYTES) == expected
    return places.pop() if is_known else None


def _spare_at(address: int) -> tuple[bool, float]:
    has, spare = _NORMAL.unpack(ctypes.string_at(address, _NORMAL.size))
    return bool(has), spare


class RngState(msgspec.Struct, frozen=True, eq=False):
    """State of a Mersenne Twister: `words` [625] uint32 (624 of state, then the position), and a spare Gaussian or
    None.

    For another bit generator of NumPy's, `words` is empty, and `other` its state with the Gaussian in it, as JSON.
    """

    words: npt.NDArray[np.uint32]
    gauss: float | None
    other: bytes = b""

    def pack(self) -> bytes:
        """Return the state as bytes, bit for bit."""
        spare = 0.0 if self.gauss is None else self.gauss
        return _HEADER.pack(len(self.words), self.gauss is not None, spare) + self.words.astype("<u4").tobytes() + self.other

    @classmethod
    def unpack(cls, data: bytes) -> RngState:
        """Return the state that `pack` returned as bytes."""
        count, has_gauss, spare = _HEADER.unpack_from(data)
        words = np.frombuffer(data, "<u4", count, _HEADER.size).astype(np.uint32)
        return cls(words, spare if has_gauss else None, data[_HEADER.size + words.nbytes :])


class Stream(Protocol):
    """A source of random numbers whose state can be read and set."""

    def pack(self) -> bytes:
        """Return its state."""

    def unpack(self, packed: bytes) -> None:
        """Set its state."""


class WordStream(ABC):
    """A stream whose state is that of a generator of Python's or NumPy's kinds."""

    @abstractmethod
    def get(self) -> RngState:
        """Return the state."""

    @abstractmethod
    def set(self, state: RngState) -> None:
        """Set the state."""

    def pack(self) -> bytes:
        """Return the state as bytes."""
        return self.get().pack()

    def unpack(self, packed: bytes) -> None:
        """Restore the state that `pack` returned."""
        self.set(RngState.unpack(packed))


class PythonStream(WordStream):
    """A `random.Random`; by default the hidden one behind the functions of the module `random`."""

    def __init__(self, source: Any = random) -> None:
        self._source = source
        self._seen: tuple[object, RngState] | None = None
        self._marked: tuple[tuple[bytes, object], bytes] | None = None

    def pack(self) -> bytes:
        """Return the state as bytes; one that has not moved is not read again."""
        mark = mark_of_python(getattr(self._source.getstate, "__self__", None))  # first: a thread may draw meanwhile
        last = self._marked
        if mark is not None and last is not None and last[0][0] == mark[0] and last[0][1] is mark[1]:
            return last[1]
        packed = super().pack()
        self._marked = None if mark is None else (mark, packed)
        return packed

    def get(self) -> RngState:
        """Return the state (`random.Random.getstate`, version 3). One that has not moved is not converted again."""
        raw = self._source.getstate()
        if self._seen is None or self._seen[0] != raw:
            _version, words, gauss = raw
            self._seen = raw, RngState(np.array(words, np.uint32), gauss)
        return self._seen[1]

    def set(self, state: RngState) -> None:
        """Set the state."""
        self._source.setstate((3, tuple(state.words.tolist()), state.gauss))


class NumpyStream(WordStream):
    """The legacy global generator of `numpy.random`, or any `RandomState`, over any of NumPy's bit generators."""

    def __init__(self, source: Any = np.random) -> None:
        self._source = source
        self._marked: tuple[tuple[bytes, bytes], bytes] | None = None

    def pack(self) -> bytes:
        """Return the state as bytes; one that has not moved is not read again."""
        mark = mark_of_numpy(getattr(self._source.get_state, "__self__", None))
        last = self._marked
        if mark is not None and last is not None and last[0] == mark:
            return last[1]
        packed = super().pack()
        self._marked = None if mark is None else (mark, packed)
        return packed

    def get(self) -> RngState:
        """Return the state (`numpy.random.get_state`)."""
        state = self._source.get_state(legacy=False)
        kind = state["bit_generator"]
        if kind != _TWISTER:
            if kind not in _KINDS:
                raise NotCapturable(
                    f"numpy.random draws from a {kind}, which detrain does not know",
                    f"give `np.random.set_bit_generator` one of NumPy's own: {', '.join(_KINDS)}",
                )
            return RngState(np.empty(0, np.uint32), None, _to_json(state))
        words = np.empty(625, np.uint32)
        words[:624] = state["state"]["key"]
        words[624] = state["state"]["pos"]
        return RngState(words, float(state["gauss"]) if state["has_gauss"] else None)

    def set(self, state: RngState) -> None:
        """Set the state. Raises Diverged if it is of another bit generator: other code may hold the current one."""
        other = json.loads(state.other) if state.other else {"bit_generator": _TWISTER}
        now, was = self._source.get_state(legacy=False)["bit_generator"], other["bit_generator"]
        if now != was:
            raise Diverged(
                f"numpy.random draws from {now}; it drew from {was} in the first run",
                "call `np.random.set_bit_generator` before the training loop, and start anew with --fresh",
            )
        if state.other:
            self._source.set_state(other)
            return
        spare = 0.0 if state.gauss is None else state.gauss
        self._source.set_state((_TWISTER, state.words[:624], int(state.words[624]), int(state.gauss is not None), spare))


class HeldGenerator:
    """A `random.Random`, or one of NumPy's generators over any of its bit generators: its state as JSON."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def pack(self) -> bytes:
        """Return its state."""
        return _to_json(state_of(self._source))

    def unpack(self, packed: bytes) -> None:
        """Set its state."""
        set_state(self._source, json.loads(packed))


def _to_json(state: object) -> bytes:
    return json.dumps(state, default=lambda array: array.tolist()).encode()


def held_generator(value: object) -> Stream | None:
    """Return a generator of random numbers as a stream, also one of a derived class, whose attributes are not part of
    the stream; None for other objects."""
    return HeldGenerator(value) if issubclass(type(value), STREAMS) else None


class Streams:
    """All global streams of the process, by name, and generators that the program holds, as long as they count as
    streams.
    """

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {"python": PythonStream(), "numpy": NumpyStream()}
        self._held: dict[str, Stream] = {}
        self.drawn: Counter[str] = Counter()
        """How often functions were called that draw from generators which cannot be read."""

    def add(self, name: str, stream: Stream) -> None:
        """Add the stream of a framework or library."""
        self._streams[name] = stream

    def hold(self, held: Mapping[str, Stream]) -> None:
        """Take these generators for streams, and no others that the program holds."""
        self._held = dict(held)

    def read(self) -> dict[str, bytes]:
        """Return the packed state of every stream."""
        return {name: stream.pack() for name, stream in (*self._streams.items(), *self._held.items())}

    def read_global(self) -> dict[str, bytes]:
        """Return the packed states of the process's streams, without generators that the program holds."""
        return {name: stream.pack() for name, stream in self._streams.items()}

    def write(self, states: Mapping[str, bytes]) -> None:
        """Set the named streams; names that this process does not have (yet) are left alone."""
        for name, packed in states.items():
            stream = self._streams.get(name) or self._held.get(name)
            if stream is not None:
                stream.unpack(packed)
