"""Lazy building (tracing a function, building a layer) happens once in a process, wherever it is first needed.

A resumed process would build later than the first run did: after code that works on what is already there (resets a
metric, lists the trainable variables), with other random numbers, and with Python state of another moment. So what the
first run had built is built ahead, in the same order, before state is restored: functions are traced with the shapes
they were called with, and nothing is executed. The random streams, and Keras's counts of names, are set to where they
were when the first run built the same thing, and are put back afterwards.

What cannot be built ahead (an argument that is no data) is built when it is needed, in the same way. What that changes
in Python (a count of calls), as the first run's building did long before the cut, is put back.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

import msgspec

from detrain.base.errors import DetrainError, Diverged
from detrain.python.process.random_streams import Streams


class TraceForm(Protocol):
    """The form of what was traced; TensorFlow's is in `detrain.adapters.tensorflow.tracing.traced_functions`."""

    @property
    def digest(self) -> str:
        """Tells it from others."""

    @property
    def outline(self) -> str:
        """What it takes to say where another one differs."""

    def difference(self, outline: str) -> str:
        """Return, in words, what that with another outline did not have."""


class BuiltUnit(msgspec.Struct, frozen=True):
    """One piece of building: by which owner, called with what (None if that is no data), drawing from which streams."""

    owner: str
    turn: int
    call: str | None = None
    streams: dict[str, str] = {}
    """Packed states, in base64, of the streams that building drew from, as they were before."""
    names: dict[str, int] = {}
    """How often Keras had given the names that building takes numbered (`variable_2`), before it."""
    forms: tuple[str, ...] = ()
    """Digests of what was traced, in order: the kinds of operations, and the constants."""
    outlines: tuple[str, ...] = ()
    """Of these forms, what it takes to say where others differ."""
    seed: int | None = None
    """TensorFlow's global seed, which is a constant in what is traced."""
    has_failed: bool = False
    """Whether it ended in an error, as it will again."""
    held: dict[str, str] = {}
    """Of a method that is compiled for each object: the keys of what the object holds, by where."""
    reads: dict[str, Any] = {}
    """Values of Python that a function may have read as it was traced, in the loop; TensorFlow's adapter finds them in
    `detrain.adapters.tensorflow.tracing.captured_python`.
    """

    @property
    def key(self) -> tuple[str, int]:
        """What tells one unit from another."""
        return (self.owner, self.turn)


class Building:
    """Keeps what has been built, in order."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._built: dict[tuple[str, int], BuiltUnit] = {}
        self._earlier: dict[tuple[str, int], BuiltUnit] = {}
        self._turns: dict[str, int] = {}
        self._is_inside = False
        self._forms: list[TraceForm] = []
        self.names: Callable[[], dict[str, int]] = dict
        """Returns Keras's own counts of the names that it has given."""
        self.seed: tuple[Callable[[], Any], Callable[[Any], object]] = (lambda: None), (lambda _seed: None)
        """Return and set TensorFlow's global seed."""
        self.has_company: Callable[[], bool] = lambda: False
        """Says whether other replicas take turns with what is built: they draw, too."""
        self.is_ahead = False
        """Whether what is built now is built ahead."""
        self.unchanged: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Puts back what the code inside changes of the program's Python state."""
        self.refuse: Callable[[DetrainError], NoReturn] = _raise
        """Ends the run with an error. The program, which is building, must not catch it."""
        self.reads: Callable[[str], dict[str, Any]] = lambda _owner: {}
        """Returns what an owner may read of Python as it is built."""
        self.as_read: Callable[[str, dict[str, Any]], AbstractContextManager[None]] = lambda _owner, _reads: (
            contextlib.nullcontext()
        )
        """Puts that in place for as long as it is built."""
        self.noting: Callable[[dict[str, Any]], AbstractContextManager[None]] = lambda _reads: contextlib.nullcontext()
        """Completes what has been read, for as long as it is built for the first time."""
        self.is_again = False
        """Whether something is being built that an earlier process had built before the cut: it must find all its
        values."""

    @property
    def is_inside(self) -> bool:
        """Whether something is being built, or made that is not the program's."""
        return self._is_inside

    def units(self) -> list[BuiltUnit]:
        """Return what the run has built so far, in this process or before it."""
        return [*self._built.values(), *self._earlier.values()]

    def begin_restore(self, units: list[BuiltUnit]) -> list[BuiltUnit]:
        """Take over what the run had built at the cut to be restored; return what this process has not built yet."""
        self._earlier = {unit.key: unit for unit in units if unit.key not in self._built}
        return list(self._earlier.values())

    def is_built(self, unit: BuiltUnit) -> bool:
        """Return whether this process has built a unit."""
        return unit.key in self._built

    def take_as_built(self, owner: str) -> None:
        """Note that this process has made by itself what had been built by an owner."""
        for key in [key for key in self._earlier if key[0] == owner]:
            self._built[key] = self._earlier.pop(key)
            self._turns[owner] = max(self._turns.get(owner, 0), key[1] + 1)

    def note_form(self, form: TraceForm) -> None:
        """Note what has been traced, as a part of what is being built."""
        self._forms.append(form)

    @contextlib.contextmanager
    def not_noted(self) -> Iterator[None]:
        """Build something that is not the program's."""
        before, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = before

    @contextlib.contextmanager
    def unit(self, owner: str, describe: Callable[[], str | None], held: dict[str, str] | None = None) -> Iterator[None]:
        """Run one outermost piece of building for an owner (its key). `describe` returns its call as JSON; `held`: see
        `BuiltUnit`.

        Refuses where an earlier process had built something else: Python values that it read there are constants in it.
        """
        if self._is_inside or not owner:
            yield
            return
        turn = self._turns.get(owner, 0)
        self._turns[owner] = turn + 1
        earlier = self._earlier.get((owner, turn))
        before, names = self._streams.read(), dict(self.names())
        get_seed, set_seed = self.seed
        seed = get_seed()
        call = describe() if earlier is None else None
        reads = self.reads(owner) if earlier is None else earlier.reads
        if earlier is not None:
            self._set_names(earlier.names)
            set_seed(earlier.seed)
            self._streams.write({name: base64.b64decode(text) for name, text in earlier.streams.items()})
        self._is_inside, self.is_again = True, earlier is not None
        self._forms = []
        is_late = earlier is not None and not self.is_ahead
        has_company = is_late and self.has_company()
        if has_company and earlier is not None and earlier.streams:
            what = f"{owner!r} is built late, by one of several replicas: what the others draw meanwhile would be lost"
            self.refuse(Diverged(what, "build it before the loop (call it once), and start anew with --fresh"))
        has_failed = True
        try:
            unchanged = self.unchanged() if is_late else contextlib.nullcontext()
            with unchanged, self.noting(reads) if earlier is None else self.as_read(owner, reads):
                yield
            has_failed = False
        finally:
            self._is_inside = self.is_again = False
            if earlier is not None:
                if has_failed and not earlier.has_failed:
                    self._turns[owner] = turn  # it is still to be built
                else:
                    self._built[earlier.key] = self._earlier.pop(earlier.key)
                if not has_company:  # others have drawn
                    self._streams.write(before)
                set_seed(seed)
                self._set_names({name: names.get(name, 0) for name in earlier.names})
            else:
                after = self._streams.read()
                drawn = {n: base64.b64encode(state).decode() for n, state in before.items() if after.get(n) != state}
                given = {name: names.get(name, 0) for name, count in self.names().items() if names.get(name, 0) != count}
                forms, outlines = tuple(each.digest for each in self._forms), tuple(each.outline for each in self._forms)
                unit = BuiltUnit(owner, turn, call, drawn, given, forms, outlines, seed, has_failed, held or {}, reads)
                self._built[unit.key] = unit
        # Where values are drawn ahead, TensorFlow wraps no more functions around the program's than it needs.
        traced, self._forms = self._forms, []
        if earlier is not None and (differs := _difference(earlier, traced)) is not None:
            what = f"{owner!r} was traced with other Python values than it finds now, which are constants in it"
            do = "does it read what the loop sets? Call it once before the loop, or hand it tensors; and start anew with --fresh"
            self.refuse(Diverged(what + (f": {differs}" if differs else ""), do))

    def _set_names(self, counts: dict[str, int]) -> None:
        """Set how often Keras has given names; to one that it never has, it will add no number."""
        for name, count in counts.items():
            if count:
                self.names()[name] = count
            else:
                self.names().pop(name, None)


def _difference(earlier: BuiltUnit, forms: list[TraceForm]) -> str | None:
    """Return, in words, how the first form that is another one differs; None if none does."""
    for number, (was, now) in enumerate(zip(earlier.forms, forms, strict=False)):
        if was != now.digest:
            return now.difference(earlier.outlines[number]) if number < len(earlier.outlines) else ""
    return None


def _raise(error: DetrainError) -> NoReturn:
    raise error
