"""Lazy building (tracing a function, building a layer) happens once in a process, wherever it is first needed.

A resumed process builds later than the first run did, and building may draw random numbers: a layer that is built draws seeds for
its initialisers. So the streams are set to where they were when the first run built the same thing, and are put back afterwards:
then what is built is the same, and what the program draws next is too.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator

from detrain.runtime.rng import Streams

States = dict[str, str]
"""Packed random streams in base64, by name."""


class Building:
    """Keeps what has been built, and what the streams were before if building drew from them."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._built: dict[str, States] = {}
        self._earlier: dict[str, States] = {}
        self._turns: dict[str, int] = {}
        self._is_inside = False

    def state(self) -> dict[str, States]:
        """Return what has been built so far in the run, in this process or before it."""
        return {**self._earlier, **self._built}

    def set_state(self, state: dict[str, States]) -> None:
        """Set what the run had built at the cut that has been restored."""
        self._earlier = {key: before for key, before in state.items() if key not in self._built}

    @contextlib.contextmanager
    def unit(self, owner: str) -> Iterator[None]:
        """Run one outermost piece of building for an owner (its key)."""
        if self._is_inside:
            yield
            return
        turn = self._turns.get(owner, 0)
        self._turns[owner] = turn + 1
        key = f"{owner} {turn}"
        is_late = key in self._earlier
        before = self._streams.read()
        if is_late:
            self._streams.write({name: base64.b64decode(text) for name, text in self._earlier[key].items()})
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False
            if is_late:
                self._built[key] = self._earlier.pop(key)
                self._streams.write(before)
            else:
                after = self._streams.read()
                self._built[key] = {
                    name: base64.b64encode(state).decode() for name, state in before.items() if after.get(name) != state
                }
