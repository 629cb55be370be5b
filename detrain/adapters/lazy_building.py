"""Lazy building (tracing a function, building a layer) happens once in a process, wherever it is first needed.

A resumed process would build later than the first run did: after code that works on objects already built (resets a
metric, lists the trainable variables), with other random numbers, and with Python state of another moment. So a resumed
process builds the first run's parts ahead, in the same order, before state is restored: functions are traced with the
shapes they were called with, and nothing is executed. For each part, the random streams and Keras's counts of names are
set to their values in the first run at the time of building, and are put back afterwards.

A part that cannot be built ahead (an argument is no data) is built when it is needed, in the same way. Its changes to
Python state (a count of calls) are undone, since the first run's building made them long before the cut.
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
    """The form of a traced graph; TensorFlow's is in `detrain.adapters.tensorflow.tracing.traced_functions`."""

    @property
    def digest(self) -> str:
        """A text that tells this form from others."""

    @property
    def outline(self) -> str:
        """A text from which the `difference` of another form can tell where the two differ."""

    def difference(self, outline: str) -> str:
        """Return, in words, a part of this form that the form with another outline did not have."""


class BuiltUnit(msgspec.Struct, frozen=True):
    """One piece of building: its owner, the call's arguments (None if they are no data), the streams it drew from."""

    owner: str
    turn: int
    call: str | None = None
    streams: dict[str, str] = {}
    """Packed states, in base64, of the streams that building drew from, as they were before."""
    names: dict[str, int] = {}
    """For each name that building numbers (`variable_2`), how often Keras had given it before."""
    forms: tuple[str, ...] = ()
    """Digests of the traced graphs, in order: the kinds of operations, and the constants."""
    outlines: tuple[str, ...] = ()
    """The outlines of these forms (`TraceForm.outline`)."""
    seed: int | None = None
    """TensorFlow's global seed, which is a constant in traced graphs."""
    has_failed: bool = False
    """Whether building ended in an error, as it will again."""
    held: dict[str, str] = {}
    """For a method that is compiled for each object: the keys of named objects that this object holds, by path."""
    reads: dict[str, Any] = {}
    """Python values that a function traced in the loop may have read during tracing; TensorFlow's adapter finds them in
    `detrain.adapters.tensorflow.tracing.captured_python`.
    """

    @property
    def key(self) -> tuple[str, int]:
        """The owner and the turn, which tell one unit from another."""
        return (self.owner, self.turn)


class Building:
    """Keeps the units that have been built, in order."""

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
        """The functions that return and set TensorFlow's global seed."""
        self.has_company: Callable[[], bool] = lambda: False
        """Returns whether other replicas take turns with the code that builds: they draw random numbers, too."""
        self.is_ahead = False
        """Whether the present unit is built ahead."""
        self.unchanged: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Undoes the changes that code inside makes to the program's Python state."""
        self.refuse: Callable[[DetrainError], NoReturn] = _raise
        """Ends the run with an error. The program, which is building, must not catch it."""
        self.reads: Callable[[str], dict[str, Any]] = lambda _owner: {}
        """Returns the Python values that an owner may read as it is built."""
        self.as_read: Callable[[str, dict[str, Any]], AbstractContextManager[None]] = lambda _owner, _reads: (
            contextlib.nullcontext()
        )
        """Puts these values in place while the owner is built again."""
        self.noting: Callable[[dict[str, Any]], AbstractContextManager[None]] = lambda _reads: contextlib.nullcontext()
        """Completes the values of `reads` while the owner is built for the first time."""
        self.is_again = False
        """Whether the present unit is one that an earlier process had built before the cut: it must find all its
        values."""

    @property
    def is_inside(self) -> bool:
        """Whether a unit, or an object that is not the program's, is being built."""
        return self._is_inside

    def units(self) -> list[BuiltUnit]:
        """Return the units that the run has built so far, in this process or an earlier one."""
        return [*self._built.values(), *self._earlier.values()]

    def begin_restore(self, units: list[BuiltUnit]) -> list[BuiltUnit]:
        """Take over the units that the run had built at the restored cut; return those that this process lacks."""
        self._earlier = {unit.key: unit for unit in units if unit.key not in self._built}
        return list(self._earlier.values())

    def is_built(self, unit: BuiltUnit) -> bool:
        """Return whether this process has built a unit."""
        return unit.key in self._built

    def take_as_built(self, owner: str) -> None:
        """Note that this process has built an owner's earlier units by itself."""
        for key in [key for key in self._earlier if key[0] == owner]:
            self._built[key] = self._earlier.pop(key)
            self._turns[owner] = max(self._turns.get(owner, 0), key[1] + 1)

    def note_form(self, form: TraceForm) -> None:
        """Note the form of a traced graph, as a part of the unit that is being built."""
        self._forms.append(form)

    @contextlib.contextmanager
    def not_noted(self) -> Iterator[None]:
        """Inside, an object is built that is not the program's: note no units."""
        before, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = before

    @contextlib.contextmanager
    def unit(self, owner: str, describe: Callable[[], str | None], held: dict[str, str] | None = None) -> Iterator[None]:
        """Inside, run one outermost piece of building for an owner (a key). `describe` returns its call as JSON;
        `held`: see `BuiltUnit`.

        Refuses if an earlier process traced another graph: Python values that were read in tracing are constants there.
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
        # When values are drawn ahead, TensorFlow wraps no more functions around the program's function than it needs.
        traced, self._forms = self._forms, []
        if earlier is not None and (differs := _difference(earlier, traced)) is not None:
            what = f"{owner!r} was traced with other Python values than it finds now, which are constants in it"
            do = "does it read what the loop sets? Call it once before the loop, or hand it tensors; and start anew with --fresh"
            self.refuse(Diverged(what + (f": {differs}" if differs else ""), do))

    def _set_names(self, counts: dict[str, int]) -> None:
        """Set how often Keras has given each name; a name with a count of 0 will get no number."""
        for name, count in counts.items():
            if count:
                self.names()[name] = count
            else:
                self.names().pop(name, None)


def _difference(earlier: BuiltUnit, forms: list[TraceForm]) -> str | None:
    """Return, in words, the difference of the first form that has changed; None if none has."""
    for number, (was, now) in enumerate(zip(earlier.forms, forms, strict=False)):
        if was != now.digest:
            return now.difference(earlier.outlines[number]) if number < len(earlier.outlines) else ""
    return None


def _raise(error: DetrainError) -> NoReturn:
    raise error
