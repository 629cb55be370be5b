"""The global random streams of the process: read, set, compare, pack into words.

Streams: `python` (the module `random`), `numpy` (the legacy global state of `numpy.random`), and those that a framework
adds (`tensorflow` is the eager context's generator of op seeds). Generators that a program holds itself are objects like
any other and go through the codec (detrain.runtime.codec).
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

_HEADER: Final = struct.Struct("<HBd")  # number of words, has a spare Gaussian, the spare Gaussian


@dataclass(frozen=True, slots=True, eq=False)
class RngState:
    """State of a Mersenne Twister: `words` [625] uint32 (624 of state, then the position), and a spare Gaussian or None."""

    words: npt.NDArray[np.uint32]
    gauss: float | None

    def pack(self) -> bytes:
        """Return the state as bytes, bit for bit."""
        spare = 0.0 if self.gauss is None else self.gauss
        return _HEADER.pack(len(self.words), self.gauss is not None, spare) + self.words.astype("<u4").tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> RngState:
        """Inverse of `pack`."""
        count, has_gauss, spare = _HEADER.unpack_from(data)
        words = np.frombuffer(data, "<u4", count, _HEADER.size).astype(np.uint32)
        return cls(words, spare if has_gauss else None)


class Stream(Protocol):
    """One random stream of the process."""

    def get(self) -> RngState:
        """Return the state."""

    def set(self, state: RngState) -> None:
        """Set the state."""


class PythonStream:
    """A `random.Random`; by default the hidden one behind the functions of the module `random`."""

    def __init__(self, source: Any = random) -> None:
        self._source = source
        self._seen: tuple[object, RngState] | None = None

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


class NumpyStream:
    """The legacy global generator of `numpy.random`, or any `RandomState` over MT19937."""

    def __init__(self, source: Any = np.random) -> None:
        self._source = source

    def get(self) -> RngState:
        """Return the state (`numpy.random.get_state`)."""
        _name, key, position, has_gauss, gauss = self._source.get_state()
        words = np.empty(625, np.uint32)
        words[:624] = key
        words[624] = position
        return RngState(words, float(gauss) if has_gauss else None)

    def set(self, state: RngState) -> None:
        """Set the state."""
        spare = 0.0 if state.gauss is None else state.gauss
        self._source.set_state(("MT19937", state.words[:624], int(state.words[624]), int(state.gauss is not None), spare))


class Streams:
    """All global streams of the process, by name."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {"python": PythonStream(), "numpy": NumpyStream()}
        self.drawn: Counter[str] = Counter()
        """How often functions were called that draw from generators which cannot be read."""

    def add(self, name: str, stream: Stream) -> None:
        """Add the stream of a framework or library."""
        self._streams[name] = stream

    def read(self) -> dict[str, bytes]:
        """Return the packed state of every stream."""
        return {name: stream.get().pack() for name, stream in self._streams.items()}

    def write(self, states: Mapping[str, bytes]) -> None:
        """Set the named streams; names that this process does not have (yet) are left alone."""
        for name, packed in states.items():
            if name in self._streams:
                self._streams[name].set(RngState.unpack(packed))
