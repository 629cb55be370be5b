"""The last states of a loop in memory, and the way back to the oldest of them: the steps since then run again, exactly.

A moment is held at a cut before a load: the variables of frameworks (by reference, copied on write), random streams,
the Python state, the lengths of files; then the batch that the load returned. To go back is to put the state into the
same objects again; the loop's wrapper then hands the kept batches out again before it loads on.

The subclasses decide when to go back, and what to do if that is impossible: a run with a guard
(detrain.runtime.rollback.recovery), and one that does trial after trial (detrain.runtime.observers.rewind).

If part of a state cannot be put back exactly, the ring names it and does not go back: a checkpoint is the way then.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, ClassVar, Final, NoReturn

import msgspec
import numpy as np

from detrain.adapters.api import Again, CannotGoBackError, PutBack
from detrain.base.cursor import NOTHING, Address, Cursor, FileState
from detrain.base.digest import Array, raw_bytes
from detrain.base.plain_types import is_iterator
from detrain.guard.bounds import Mark
from detrain.guard.detector import Guard
from detrain.python.codec.in_process import Live
from detrain.python.codec.recipes import describe, make_again
from detrain.python.inspect.frames import can_unbind, is_module_frame, live_among, names_of, unbind_local, user_frames
from detrain.python.inspect.named import user_modules
from detrain.python.inspect.object_graph import shown
from detrain.python.inspect.progress import is_plain_iterator, is_progress_bar, iterators_in, position
from detrain.python.process import children, pool_jobs
from detrain.runtime.state.whole_state import WholeState

_NO_BOUNDS: Final[Mark] = ({}, ())
_SUSPENDS: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class StateAtCut(msgspec.Struct, eq=False):
    """The program at a cut: its Python state, its random streams, and the positions of objects that hold only these."""

    python: Live
    streams: dict[str, bytes]
    places: list[tuple[object, str, object]]
    drawn: Mapping[str, int]
    """See `Streams`."""


class _Load(msgspec.Struct, eq=False):
    """The batch that a load returned. `after`: the state behind a load that runs Python and may have changed it."""

    item: object
    content: Live
    after: StateAtCut | None
    again: list[Again]
    """For each framework, the function that hands the batch out again."""
    fetched: list[list[Array]] = []


class HeldMoment(msgspec.Struct, eq=False):
    """One cut before a load."""

    address: Address
    batches_done: int
    source: weakref.ref[Any]
    frame: int
    state: StateAtCut
    held: list[PutBack] = []
    files: Mapping[str, FileState] = {}
    databases: Mapping[str, bytes] = {}
    names: dict[str, set[str]] = {}
    """The names in each of the user's modules."""
    bound: list[set[str]] = []
    """The names that are bound in each of the user's frames, the innermost first."""
    bounds: Mark = _NO_BOUNDS
    way: Callable[[], Iterator[Any]] | None = None
    """Makes the loop's iterator as it was, if frameworks can set their loaders back: batches are loaded again then, and
    none is kept."""
    load: _Load | None = None
    is_as_before: bool = True
    """In a step that is run again: whether the state before the load equals the first one."""

    def is_here(self, source: object, frame: FrameType) -> bool:
        """Return whether the moment belongs to this loop in this frame."""
        return self.source() is source and self.frame == id(frame)


class Ring(ABC):
    """The last `depth` moments of the running batch loop; without any, there is no way back."""

    puts_files_back: ClassVar = False
    """Whether files that were written as a whole since the newest checkpoint are put back as they were there. Else they
    stay, as steps before the oldest moment may have written them."""

    def __init__(self, depth: int, whole: WholeState, guard: Guard | None, *, on_host: bool = False) -> None:
        self._depth, self._on_host = depth, on_host
        self.guard = guard
        self._whole, self._capture, self._adapters, self._streams = whole, whole.capture, whole.adapters, whole.streams
        self._moments: list[HeldMoment] = []
        self._next = 0
        """Number of the moment of the next load; below the count of moments while steps are run again."""
        self._loading: list[Callable[[], Again]] = []
        """For each framework, the function to call at the end of the running load."""
        self._collected: tuple[int, int] | None = None
        """The phase and epoch of the last garbage collection here."""
        self.obstacles: list[str] = []
        """The obstacles to going back, since the loop was entered."""

    @abstractmethod
    def at_cut(self, cursor: Cursor, batches_done: int, source: object = None, frame: FrameType | None = None) -> HeldMoment | None:
        """Go back if it is time, and return the moment to go on from; else return None. May end the process."""

    @abstractmethod
    def fail(self, why: str) -> NoReturn:
        """End the process, which must not go on, as a batch cannot be handed out again."""

    def leave(self) -> None:
        """Drop all moments, as the batch loop has been left: there is no way back into it."""
        self.clear()

    def clear(self) -> None:
        """Drop all moments and obstacles."""
        self._moments, self._next, self.obstacles = [], 0, []

    @property
    def is_again(self) -> bool:
        """Whether the next load has been done before."""
        return self._next < len(self._moments) and self._moments[self._next].load is not None

    # Going forward.

    def hold(self, address: Address, batches_done: int, source: object, frame: FrameType) -> None:
        """Hold this moment, the cut before a load. `source` is the loop, None if it has no wrapper."""
        if source is None or not self._depth:
            return
        if self._moments and not self._moments[-1].is_here(source, frame):
            self.clear()
        pool_jobs.wait()
        if not self._moments:
            self._sweep(address)
        state = self._state(frame)
        if self._moments and not self.is_again:
            self._note_moves(self._moments[-1])
        moment = HeldMoment(
            address,
            batches_done,
            weakref.ref(source),
            id(frame),
            state,
            [part.hold(on_host=self._on_host) for part in self._adapters.rollback],
            self._whole.files.state(),
            self._whole.contents.changed_databases,
            {name: set(vars(module)) for name, module in user_modules().items()},
            [set() if is_module_frame(each) else set(names_of(each)) for each in user_frames(frame)],
            _NO_BOUNDS if self.guard is None else self.guard.bounds.mark(),
            self._way_back(source, state),
        )
        if self.is_again:
            earlier = self._moments[self._next]
            moment.load, moment.is_as_before = earlier.load, is_same(earlier.state, state)
            self._moments[self._next] = moment
            return
        if any(each.f_code.co_flags & _SUSPENDS for each in user_frames(frame)):
            self._note("the loop runs inside a generator or coroutine")
        self._note(*state.python.lost)
        if not self._moments:
            self._note(*(f"what {each.name} holds" for each in self._adapters if each.rollback is None))
            self._note(*self._adapters.uncaptured(), *children.living())
        self._moments.append(moment)
        del self._moments[: -self._depth]
        self._next = len(self._moments) - 1

    def _sweep(self, address: Address) -> None:
        """Collect garbage, so that no model of an earlier training is dropped behind the moment. Do it once an epoch:
        it takes half a second if TensorFlow has traced much, and each trial begins with a moment.
        """
        if self._collected != address[:2]:
            gc.collect()
            self._collected = address[:2]

    def load(self, frame: FrameType) -> object:
        """Return the batch of a step that is run again; NOTHING if the loader must be asked."""
        if self.is_again:
            try:
                return self._served(frame)
            except CannotGoBackError as error:
                self.fail(str(error))
        if self._depth:
            self._loading = [part.begin_load() for part in self._adapters.rollback]
        return NOTHING

    def end_load(self) -> list[Again]:
        """End a load, which returned a batch or ran out; return the functions that hand the batch out again."""
        ends, self._loading = self._loading, []
        return [end() for end in ends]

    def keep(self, item: object, loader: object, frame: FrameType) -> None:
        """Keep the batch that a load has returned."""
        again = self.end_load()
        if self._next >= len(self._moments):
            return
        moment = self._moments[self._next]
        self._next += 1
        if moment.way is not None:
            return
        opaque = {id(value) for value, _path, _place in moment.state.places}
        after = None if self._is_pure(loader, opaque) else self._state(frame)
        moment.load = _Load(item, self._capture.encode_value(item), after, again)
        self._note(*moment.load.content.lost)

    def note_fetched(self, fetched: list[Array]) -> None:
        """Keep a batch that the body has fetched itself."""
        if self._moments and self._next == len(self._moments):
            load = self._moments[-1].load
            if load is not None:
                load.fetched.append([part.copy() for part in fetched])

    # Going back.

    def go_back(self, source: Any, frame: FrameType) -> HeldMoment:
        """Put the oldest moment's state back. Raises CannotGoBackError; then the process must not go on."""
        if not self._moments:
            raise CannotGoBackError("no step of this loop is behind it")
        oldest = self._moments[0]
        if not oldest.is_here(source, frame):
            raise CannotGoBackError("the loop has been left since")
        if self.is_again:
            raise CannotGoBackError("these steps are being run again")
        if oldest.way is None and any(each.way is not None for each in self._moments):
            raise CannotGoBackError("what the loop goes over was not yet begun")
        self._note_moves(self._moments[-1])
        if self.obstacles:
            raise CannotGoBackError("; ".join(self.obstacles[:4]))
        contents = self._whole.contents
        once = contents.not_again(oldest.address)
        once += [path for path, now in contents.changed_databases.items() if oldest.databases.get(path) != now]
        if once:
            raise CannotGoBackError(f"steps have made, removed or changed {', '.join(once[:4])}, and would not do so again")
        for put_back in oldest.held:
            put_back()
        self._put_back(oldest.state, frame)
        for name, module in user_modules().items():
            for new in set(vars(module)) - oldest.names.get(name, set(vars(module))):
                del vars(module)[new]
        _unbind_new(frame, oldest.bound)
        files = self._whole.files
        files.restore({**files.untouched(), **oldest.files}, self._whole.kept_in, has_contents=self.puts_files_back)
        if oldest.way is not None:
            source.iterator = oldest.way()
            self._moments = [oldest]
        self._next = 0
        if self.guard is not None:
            self.guard.go_back(oldest.bounds)
        return oldest

    def _served(self, frame: FrameType) -> object:
        """Return the batch of a load that was done before, with the state behind that load."""
        moment = self._moments[self._next]
        self._next += 1
        load = moment.load
        assert load is not None
        if load.after is not None:
            if not moment.is_as_before:
                raise CannotGoBackError(
                    "the loader is Python, and the step before its load left another state than in the first run"
                )
            self._put_back(load.after, frame)
        self._require_all(self._capture.restore_value(load.content))
        refetched = [step for again in load.again if (step := again(load.item, load.fetched)) is not None]
        if load.fetched and not refetched:
            raise CannotGoBackError("the batch cannot be fetched again")
        return refetched[0] if load.fetched else load.item

    def _put_back(self, state: StateAtCut, frame: FrameType) -> None:
        self._require_all(self._capture.restore_live(frame, state.python, self._whole.baseline()))
        self._streams.write(state.streams)

    @staticmethod
    def _require_all(missing: list[str]) -> None:
        if missing:
            raise CannotGoBackError("; ".join(missing[:4]))

    # The present state.

    def _state(self, frame: FrameType) -> StateAtCut:
        python = self._capture.encode_live(frame, self._whole.baseline())
        places = [(value, path, _place(value)) for value, path in python.opaque]
        return StateAtCut(python, self._streams.read(), places, dict(self._streams.drawn))

    def _note(self, *obstacles: str) -> None:
        self.obstacles += [each for each in dict.fromkeys(obstacles) if each not in self.obstacles]

    def _note_moves(self, moment: HeldMoment) -> None:
        """Note, as obstacles, the objects that the body has moved on: their positions cannot be set back."""
        self._note(*(reason for part in self._adapters.rollback for reason in part.irreversible()))
        for name, count in self._streams.drawn.items():
            if count != moment.state.drawn.get(name, 0):
                self._note(f"the generator of {name}, which cannot be read")
        load = moment.load
        before = load.after if load is not None and load.after is not None else moment.state
        for value, path, place in before.places:
            if place is not None and _place(value) != place and not self._is_way(value, "put back"):
                self._note(f"{shown(path)} ({type(value).__name__}: the body moves it on)")

    def _way_back(self, loop: Any, state: StateAtCut) -> Callable[[], Iterator[Any]] | None:
        """Return a function that makes a loop's iterator as it is now; None if its batches must be kept."""
        remade: list[object] = []
        loaders: list[object] = []
        way = self._way_of(loop.iterator, remade, loaders)
        held = {id(value) for value, _path, _place in state.places}
        return way if loaders and not any(id(each) in held for each in remade) else None

    def _way_of(self, value: Any, remade: list[object], loaders: list[object]) -> Callable[[], Any] | None:
        """Return a function that makes an iterator, or a value in one, as it is now; None if there is no such way. Note
        the iterators that it makes again (`remade`) and the loaders.
        """
        if self._is_way(value, "put back"):
            loaders.append(value)
            return lambda: value
        if not isinstance(value, Iterator | tuple):
            return lambda: value
        if is_progress_bar(value):
            loaders.append(value)  # it wraps a loader, or it has no way
            return self._way_of_bar(value)
        described = ("", list(value)) if type(value) is tuple else describe(value)
        if described is None:
            return None
        kind, content = described
        if kind:
            remade.append(value)
        ways = [self._way_of(each, remade, loaders) for each in content]
        if None in ways:
            return None
        if not kind:
            return lambda: tuple(way() for way in ways)  # type: ignore[misc]
        return lambda: make_again(kind, [way() for way in ways])  # type: ignore[misc]

    def _way_of_bar(self, value: Any) -> Callable[[], Any] | None:
        """Return the way of a progress bar over a loader. The bar counts the items that it hands on, only for display;
        otherwise its position is that of its loader.
        """
        bar = value.gi_frame.f_locals.get("self")
        if inspect.getgeneratorstate(value) == inspect.GEN_CREATED:
            is_over_loader = self._is_way(bar.iterable, "put back") and not is_iterator(bar.iterable)
            return (lambda: iter(bar)) if is_over_loader else None
        inner = list(iterators_in(gc.get_referents(value)))
        return (lambda: value) if inner and all(self._is_way(each, "put back") for each in inner) else None

    def _is_way(self, loader: object, way: str) -> bool:
        return any(part.way_of(loader) == way for part in self._adapters.rollback)

    def _is_pure(self, loader: object, opaque: set[int]) -> bool:
        """Return whether a load runs no Python of the program and moves on no object that the program holds."""

        def known(each: object) -> bool | None:
            return True if self._is_way(each, "handed out") else False if id(each) in opaque else None

        return is_plain_iterator(loader, known)


def _unbind_new(frame: FrameType, bound: list[set[str]]) -> None:
    """Unbind the names that the running functions have bound since a moment; `bound`: those that were bound there."""
    for each, before in zip(user_frames(frame), bound, strict=False):
        for name in names_of(each).keys() - before if not is_module_frame(each) else ():
            if can_unbind(each):
                unbind_local(each, name)
            elif live_among(each, [name]):
                raise CannotGoBackError(f"{name} in {each.f_code.co_qualname}(), which a step has bound, cannot be unbound here")


def _place(value: Any) -> object:
    """Return an object's position as a value to be compared for equality; None if it has no position."""
    described = describe(value) if is_iterator(value) else None
    if described is None:
        return position(value)
    kind, content = described
    return kind, tuple(_place(part) if is_iterator(part) else _identity(part) for part in content)


def _identity(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_place(part) if is_iterator(part) else _identity(part) for part in value)
    return value if isinstance(value, bool | int | float | str | bytes | None) else id(value)


def is_same(one: StateAtCut, other: StateAtCut) -> bool:
    """Return whether two states are equal; constant tensors by their values."""
    if one.streams != other.streams or one.python.graph != other.python.graph:
        return False
    arrays, others = one.python.arrays, other.python.arrays
    if any(bytes(raw_bytes(arrays[name])) != bytes(raw_bytes(others[name])) for name in arrays):
        return False
    opaque = {id(value) for value, _path in one.python.opaque}
    return all(
        a is b or (id(a) not in opaque and _is_equal(a, b)) for a, b in zip(one.python.objects, other.python.objects, strict=True)
    )


def _is_equal(one: object, other: object) -> bool:
    """Return whether two objects with equal nodes are equal: compare bytes of constant tensors, which nodes lack."""
    if type(one) is not type(other):
        return False
    return not hasattr(one, "_numpy") or np.asarray(one).tobytes() == np.asarray(other).tobytes()
