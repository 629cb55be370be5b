"""Iterators of DataLoaders: the record of each iterator, its place, and the ways to bring it to that place again.

Private parts of `torch.utils.data.dataloader` are replaced; `_check` checks that they take the known parameters.
"""

from __future__ import annotations

import inspect
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch.utils.data import dataloader

from detrain.adapters.torch.data import stateful_loader
from detrain.adapters.torch.data.samplers import SamplerWatch, generators_of, is_known, reason_to_load, takes_turns
from detrain.adapters.torch.data.worker import MARK, Stamp, StampedInit, WorkerExhausted, signature
from detrain.base import messages
from detrain.base.errors import DetrainError, Diverged, FrameworkUnsupported
from detrain.python.loaders.generator_replay import Elements
from detrain.python.process.random_streams import NumpyStream, PythonStream

_Base: Any = dataloader._BaseDataLoaderIter
_Single: Any = dataloader._SingleProcessDataLoaderIter
_Many: Any = dataloader._MultiProcessingDataLoaderIter
_SIGNATURES: Final = (
    (_Base, "__init__", ["self", "loader"]),
    (_Base, "_reset", ["self", "loader", "first_iter"]),
    (_Many, "__init__", ["self", "loader"]),
    (_Many, "_reset", ["self", "loader", "first_iter"]),
    (_Many, "_process_data", ["self", "data", "worker_idx"]),
    (_Many, "_get_data", ["self"]),
    (_Many, "_try_put_index", ["self"]),
    (_Many, "_shutdown_workers", ["self"]),
)
_ITERATION: Final = "_detrain_iteration"


class IteratorPlace(msgspec.Struct, frozen=True):
    """The position of an iterator, as data."""

    number: int
    """The iterator's number: the count of iterators made before it."""
    given: int
    """The number of batches that it has handed out."""
    seed: int
    """The seed from which its workers' seeds are made."""
    workers: int
    streams: dict[int, dict[str, bytes]]
    """The states of each worker's random streams after its last batch that was handed out, by worker and name."""
    birth: list[bytes]
    """The states of the streams before its sampler's first draw: Python's, NumPy's, PyTorch's, and the loader's own
    generators; empty if the sampler has not drawn."""
    is_loaded: bool = False
    """Whether the earlier batches are loaded again, as nothing else brings the iterator to this place."""
    has_ended: bool = False
    reason: str = ""
    """Why only the program itself can bring an iterator to this place; empty if detrain can."""
    drawn: str = ""
    """A digest of the items that a watched sampler has drawn."""
    turns: list[tuple[int, list[bytes]]] = []
    """For a sampler that `takes_turns`: (items handed out before, states of the streams) at the start of each of its
    last turns; the first of these began at or before item `given`."""
    count: int = 0
    """The number of items that the sampler has handed out: workers are ahead."""


class Indices:
    """The counted items of a sampler; the last ones are kept, as workers are ahead of the batches handed out."""

    def __init__(
        self,
        source: Iterator[Any],
        keeps: int,
        read: Callable[[], list[bytes]],
        count: int = 0,
        watch: SamplerWatch | None = None,
        turns: list[tuple[int, list[bytes]]] | None = None,
    ) -> None:
        """`turns`: the turns that have begun, for a sampler that takes turns; else None."""
        self.source, self.count, self.keeps, self._read, self.watch = source, count, keeps, read, watch
        self.ahead: deque[Any] = deque(maxlen=keeps)
        self._drawn: deque[str] = deque([""], maxlen=keeps + 1)
        self.birth: list[bytes] = []
        self.has_ended = False
        self._turns = turns

    def __iter__(self) -> Indices:
        return self

    def __next__(self) -> Any:
        is_first = self.count == 0 and not self.birth
        if is_first:
            self.birth = self._read()
        before = self._read() if self._turns is not None else []
        try:
            index = next(self.source) if self.watch is None else self.watch.draw(self.source, self._read, is_first=is_first)
        except StopIteration:
            self.has_ended = True
            raise
        if self._turns is not None and self._read() != before:
            self._turns.append((self.count, before))
            self._turns = self.turns(self.count - self.keeps)
        self.count += 1
        self.ahead.append(index)
        if self.watch is not None:
            self._drawn.append(self.watch.drawn)
        return index

    def drawn(self, given: int) -> str:
        """Return a digest of a watched sampler's first `given` items; empty if none is kept, or it is not watched."""
        ahead = self.count - given
        return self._drawn[-1 - ahead] if self.watch is not None and 0 <= ahead < len(self._drawn) else ""

    def turns(self, given: int) -> list[tuple[int, list[bytes]]]:
        """Return the last turns, from the one in which the sampler hands out the item number `given`."""
        turns = self._turns or []
        return turns[max(sum(count <= given for count, _streams in turns) - 1, 0) :]

    def is_closed(self, given: int) -> bool:
        """Return whether the sampler is watched, and its items depend on nothing but its state at the start."""
        is_told = given == 0 or bool(self.drawn(given))
        return self.watch is not None and is_told and self.watch.is_closed()

    def behind(self, given: int) -> Indices:
        """Return the items after the first `given` items."""
        for _ in range(given - self.count):
            next(self)
        rest = list(self.ahead)[len(self.ahead) - (self.count - given) :] if self.count > given else []
        watch, turns = None if rest else self.watch, None if self._turns is None else [*self._turns]
        found = Indices(itertools.chain(rest, self.source), self.keeps, self._read, given, watch, turns)
        found.birth, found._drawn = self.birth, self._drawn
        return found


class StatefulIndices(Indices):
    """The items of a torchdata sampler, whose iterator returns and takes its state."""

    def state_dict(self) -> Any:
        """Return the state of the source."""
        return self.source.state_dict()  # type: ignore[attr-defined]

    def load_state_dict(self, state: Any) -> None:
        """Set the state of the source."""
        self.source.load_state_dict(state)  # type: ignore[attr-defined]

    def update_state_dict(self) -> None:
        """Make the source note its state, if it has a method for that."""
        getattr(self.source, "update_state_dict", lambda: None)()


class Iteration(msgspec.Struct):
    """The record of one run of an iterator over its loader."""

    number: int
    moment: object
    loader: Callable[[], Any]
    """Returns the DataLoader, or None if it is gone."""
    indices: Indices
    states: dict[int, dict[str, bytes]]
    is_moved: bool = False
    """Whether a worker's copy of the data set has changed."""
    thread: int = 0
    """The number of the thread that has drawn the last batch; 0 for none."""
    is_pulled: bool = False
    """Whether a generator that is pulled again has begun the run."""
    ended: dict[int, dict[str, bytes]] = {}
    """The stream states of workers after all of their batches, some of which may still wait in this process."""

    copied: str = ""
    """The `signature` of the data set when persistent workers copied it."""

    def behind_all(self) -> dict[int, dict[str, bytes]]:
        """Return the stream states of the workers at the end of the run."""
        return self.states | self.ended


class Rebuild(msgspec.Struct):
    """The plan to make an iterator again at a place, instead of drawing its batches again."""

    place: IteratorPlace
    indices: Indices
    before: list[bytes] = []
    """The stream states before it is made: a sampler that draws after the workers' seed draws from these."""


class Iterations:
    """Watches the iterators of all DataLoaders of the process. `elements` notes the batches that bodies draw from
    iterators of earlier moments; `fail` ends the process with an error from that.
    """

    def __init__(
        self,
        moment: Callable[[], object],
        elements: Elements | None = None,
        fail: Callable[[DetrainError], object] | None = None,
    ) -> None:
        self._moment, self._elements, self._fail = moment, elements, fail
        self.made = 0
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._rebuild: Rebuild | None = None
        self._has_said_order = False
        _check()
        self._watch()

    def alive(self) -> list[tuple[Any, Iteration]]:
        """Return the live iterators with their records, in the order in which their runs began."""
        found = [(each, vars(each)[_ITERATION]) for each in list(self._alive) if _ITERATION in vars(each)]
        return sorted(found, key=lambda pair: pair[1].number)

    def drawn_by_pulls(self) -> set[int]:
        """Return the identities of iterators that reach their places when generators are pulled again."""
        return set() if self._elements is None else self._elements.drawn_by_pulls()

    def workers(self) -> set[int]:
        """Return the process numbers of all workers."""
        return {worker.pid for each in list(self._alive) for worker in getattr(each, "_workers", ())}

    def place(self, iterator: Any) -> IteratorPlace:
        """Return the place of an iterator."""
        known: Iteration = vars(iterator)[_ITERATION]
        return IteratorPlace(
            number=known.number,
            given=iterator._num_yielded,
            seed=iterator._base_seed,
            workers=iterator._num_workers,
            streams={worker: dict(states) for worker, states in sorted(self._streams(iterator).items())},
            birth=known.indices.birth,
            is_loaded=bool(self.reason_to_load(iterator)),
            has_ended=self.has_ended(iterator),
            reason=self.no_position(iterator),
            drawn=known.indices.drawn(iterator._num_yielded),
            turns=known.indices.turns(iterator._num_yielded),
            count=known.indices.count,
        )

    def reason_to_load(self, iterator: Any) -> str:
        """Return why an iterator cannot be brought to a place without loading; empty if it can."""
        known: Iteration = vars(iterator)[_ITERATION]
        if type(iterator) not in (_Single, _Many):
            return f"a loader of the kind {type(iterator).__module__}.{type(iterator).__qualname__} is not known"
        if known.loader() is None:
            return "its DataLoader is gone"
        if self.has_ended(iterator) and not (iterator._persistent_workers and known.is_moved):
            return ""
        if known.thread not in (0, threading.get_ident()):
            return "a thread of the program draws from it"
        if iterator._dataset_kind != dataloader._DatasetKind.Map:
            return "an IterableDataset has no positions"
        if known.is_moved:
            return "workers of a DataLoader change their copy of the data set"
        return self._reason_to_draw(iterator)

    @staticmethod
    def _reason_to_draw(iterator: Any) -> str:
        """Return why the sampler of an iterator cannot be advanced alone; empty if it can."""
        known: Iteration = vars(iterator)[_ITERATION]
        return "" if known.indices.is_closed(iterator._num_yielded) else reason_to_load(iterator._index_sampler)

    def no_position(self, iterator: Any) -> str:
        """Return why an iterator that lives on cannot be brought to its place, not even by loading its batches again;
        empty if it can.

        Workers load the same batches again: these depend on their seed, the data set, and the sampler's items alone.
        """
        known: Iteration = vars(iterator)[_ITERATION]
        reason = self.reason_to_load(iterator)
        if not reason or (iterator._num_yielded == 0 and not known.is_moved and not known.indices.count):
            return ""
        if known.thread not in (0, threading.get_ident()):
            return reason  # it cannot be made anew while the thread draws
        is_alone = type(iterator) is _Many and not iterator._persistent_workers and known.loader() is not None
        is_iterable = is_alone and iterator._dataset_kind != dataloader._DatasetKind.Map
        return "" if is_iterable or (is_alone and not self._reason_to_draw(iterator)) else reason

    def have_old_copies(self) -> bool:
        """Return whether persistent workers hold a copy of a data set that the program has changed since: a resumed
        run's workers copy the present one.
        """
        alive = [(known.copied, known.loader()) for _, known in self.alive()]
        return any(copied and loader is not None and copied != signature(loader.dataset) for copied, loader in alive)

    def _streams(self, iterator: Any) -> dict[int, dict[str, bytes]]:
        """Return the stream states of workers after the batches that were handed out."""
        known: Iteration = vars(iterator)[_ITERATION]
        return known.behind_all() if self.has_ended(iterator) else known.states

    def has_ended(self, iterator: Any) -> bool:
        """Return whether an iterator has no further batch."""
        known: Iteration = vars(iterator)[_ITERATION]
        if iterator._dataset_kind == dataloader._DatasetKind.Map:
            return known.indices.has_ended and iterator._num_yielded >= known.indices.count
        if type(iterator) is _Single:
            return bool(iterator._dataset_fetcher.ended)
        return type(iterator) is _Many and not any(iterator._workers_status)

    def set_place(self, iterator: Any, place: IteratorPlace) -> None:
        """Bring a live iterator to a place."""
        known: Iteration = vars(iterator)[_ITERATION]
        is_same_run = known.indices.birth == place.birth and iterator._base_seed == place.seed
        is_there = iterator._num_yielded == place.given and self._streams(iterator) == place.streams
        if is_there and (is_same_run or place.reason):
            return
        if place.reason:
            raise Diverged(
                f"an iterator over a DataLoader is at batch {iterator._num_yielded}, and was at {place.given} in the first run; "
                f"it cannot be brought there: {place.reason}",
                "draw its batches in the header of the loop, or in the statement that loads; or start anew with --fresh",
            )
        loader, indices = known.loader(), known.indices
        if place.is_loaded:
            self._load(iterator, loader, place)
            return
        # If bodies draw the batches, the sampler of this process has not drawn yet, or not from the same streams.
        ahead = indices.count - place.given
        is_kept = is_same_run and ahead <= len(indices.ahead) and (ahead >= 0 or not place.turns)
        self._build(iterator, loader, Rebuild(place, indices.behind(place.given) if is_kept else self._indices(loader, place)))

    def _load(self, iterator: Any, loader: Any, place: IteratorPlace) -> None:
        """Bring an iterator with workers to a place by loading the earlier batches again."""
        begin = msgspec.structs.replace(place, given=0, streams={}, drawn="")  # the batches themselves are compared
        self._build(iterator, loader, Rebuild(begin, self._indices(loader, begin)))
        for _ in range(place.given):
            next(iterator)

    def make(self, loader: Any, place: IteratorPlace) -> Any:
        """Return a new iterator of a loader, at the place of a run that the loop had begun."""
        kind = _Many if loader.num_workers else _Single
        made = kind.__new__(kind)
        if place.is_loaded:
            self._load(made, loader, place)
        else:
            self._build(made, loader, Rebuild(place, self._indices(loader, place)))
        return made

    def _indices(self, loader: Any, place: IteratorPlace) -> Indices:
        """Return the items of a loader's sampler after a place, drawn again from the streams at its first draw."""
        generators = generators_of(loader)
        if place.has_ended:
            ended = Indices(iter(()), 1, lambda: _read(generators), place.given)
            ended.birth, ended.has_ended = place.birth, True
            return ended
        before = _read(generators)
        if place.birth:
            _write(place.birth, generators)
        indices = _counted(Indices, loader, iter(loader._index_sampler), generators, place.turns[0][0] if place.turns else 0)
        try:
            ends = [*(count for count, _streams in place.turns[1:]), place.count]
            for (_count, streams), end in zip(place.turns, ends, strict=False):
                _write(streams, generators)
                while indices.count < end:
                    next(indices)
            if place.birth and not place.turns:  # it had drawn its seed, even if no batch was handed out yet: workers are ahead
                next(indices, None)
            indices = indices.behind(place.given)
        finally:
            _write(before, generators)
        if place.drawn and indices.drawn(place.given) != place.drawn:
            raise Diverged(
                f"the sampler {type(loader._index_sampler).__qualname__} draws others than in the first run",
                "have it draw by what it holds and a generator of its own alone; or start anew with --fresh",
            )
        indices.birth = place.birth
        return indices

    def _build(self, iterator: Any, loader: Any, rebuild: Rebuild) -> None:
        """Initialise an iterator again, in place, from its seed and after the batches that it had given."""
        if type(iterator) is _Many and vars(iterator):
            iterator._shutdown_workers()
        generators = generators_of(loader)
        before, self._rebuild = _read(generators), rebuild
        rebuild.before = before
        try:
            type(iterator).__init__(iterator, loader)
        finally:
            self._rebuild = None
            _write(before, generators)
        iterator._num_yielded = rebuild.place.given

    def _watch(self) -> None:
        init, reset, many_init, process = _Base.__init__, _Base._reset, _Many.__init__, _Many._process_data
        draw, get = _Base.__next__, _Many._get_data

        def made(iterator: Any, loader: Any) -> None:
            init(iterator, loader)
            self._begin(iterator, loader)

        def begun_again(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            reset(iterator, loader, first_iter)
            known = vars(iterator).get(_ITERATION)
            if self._rebuild is not None:
                self._begin(iterator, loader)
                self._turn(iterator, self._rebuild.place.given)
            elif first_iter and known is not None:  # the constructor has noted the run; its sampler was asked again since
                known.indices.source = iterator._sampler_iter
                iterator._sampler_iter = known.indices
            else:
                self._begin(iterator, loader)
                if known is not None:  # its workers live on
                    vars(iterator)[_ITERATION].states, vars(iterator)[_ITERATION].is_moved = known.behind_all(), known.is_moved

        def workers_made(iterator: Any, loader: Any) -> None:
            own = loader.worker_init_fn
            states = self._rebuild.place.streams if self._rebuild is not None else {}
            loader.worker_init_fn = StampedInit(own, states)
            is_in_order, loader.in_order = loader.in_order, True
            if not is_in_order and not self._has_said_order:
                self._has_said_order = True
                messages.say("a DataLoader with in_order=False hands its batches out in order: else it would do so by chance")
            try:
                many_init(iterator, loader)
            finally:
                loader.worker_init_fn, loader.in_order = own, is_in_order

        def processed(iterator: Any, data: Any, worker: int) -> Any:
            if isinstance(data, tuple | list) and len(data) == 3 and data[0] == MARK:
                stamp = data[2]
                self._stamp(iterator, worker, stamp)
                data = data[1]
            return process(iterator, data, worker)

        def gotten(iterator: Any) -> Any:
            found = get(iterator)
            if isinstance(found[1], WorkerExhausted):
                self._stamp(iterator, found[1].worker_id, found[1].stamp, has_ended=True)
            return found

        def drawn(iterator: Any) -> Any:
            known = vars(iterator).get(_ITERATION)
            if known is not None:
                known.thread = threading.get_ident()
            batch = draw(iterator)
            if self._elements is not None and known is not None and known.moment != self._moment():
                self._note(batch)
            return batch

        _Base.__init__, _Base._reset, _Many.__init__, _Many._process_data = made, begun_again, workers_made, processed
        _Base.__next__, _Many._get_data = drawn, gotten

    @staticmethod
    def _stamp(iterator: Any, worker: int, stamp: Any, *, has_ended: bool = False) -> None:
        """Note the state of a worker; a missing stamp says that it has not changed."""
        known: Iteration = vars(iterator)[_ITERATION]
        if stamp is not None:
            (known.ended if has_ended else known.states)[worker], is_moved = Stamp(*stamp)
            known.is_moved |= is_moved

    def _note(self, batch: Any) -> None:
        assert self._elements is not None
        try:
            self._elements.note(batch)
        except DetrainError as error:
            if self._fail is None:
                raise
            self._fail(error)

    def _begin(self, iterator: Any, loader: Any) -> None:
        """Note that an iterator's run over its loader begins, or is made again."""
        rebuild, generators, moment = self._rebuild, generators_of(loader), self._moment()
        if rebuild is None:
            again, states = vars(iterator).get(_ITERATION), {}  # an iterator with persistent workers keeps its number
            number = self.made if again is None else again.number
            self.made += again is None
            kind = StatefulIndices if stateful_loader.hands_over_state(iterator._sampler_iter) else Indices
            indices = _counted(kind, loader, iterator._sampler_iter, generators)
        else:
            number, states, indices = rebuild.place.number, dict(rebuild.place.streams), rebuild.indices
            iterator._base_seed = rebuild.place.seed
            _write(rebuild.before, generators)
            before = vars(iterator).get(_ITERATION)
            moment = None if before is None else before.moment  # None: it was made before this epoch
        iterator._sampler_iter = indices
        before = vars(iterator).get(_ITERATION) if rebuild is None else None
        is_pulled = self._elements is not None and self._elements.is_again
        known = Iteration(number, moment, _held(loader), indices, states, is_pulled=is_pulled)
        if loader.persistent_workers:
            known.copied = signature(loader.dataset) if before is None else before.copied
        vars(iterator)[_ITERATION] = known
        self._alive.add(iterator)

    def _turn(self, iterator: Any, given: int) -> None:
        """Continue the workers' turns after `given` batches, as soon as the first worker is about to be asked."""

        def first() -> None:
            del vars(iterator)["_try_put_index"]
            iterator._send_idx = iterator._rcvd_idx = given
            for _ in range(given % iterator._num_workers):
                next(iterator._worker_queue_idx_cycle)
            iterator._try_put_index()

        vars(iterator)["_try_put_index"] = first


def _held(loader: Any) -> Callable[[], Any]:
    """Return a function that returns a loader, and keeps it alive for its iterator if no name leads to the loader. A
    loader that holds its iterator is not kept alive: with it, the iterator and its workers must go."""
    return weakref.ref(loader) if loader.persistent_workers else lambda: loader


def _counted(kind: type[Indices], loader: Any, source: Iterator[Any], generators: list[Any], count: int = 0) -> Indices:
    """Return the items of a loader's sampler, drawn from `source`, which has handed out `count` items already."""
    turns: list[tuple[int, list[bytes]]] | None = [] if takes_turns(loader._index_sampler) else None
    return kind(source, _ahead(loader), lambda: _read(generators), count, _watched(loader), turns)


def _watched(loader: Any) -> SamplerWatch | None:
    """Return a watch on the sampler of a loader; None if its class is known, or its generators run ahead."""
    is_ahead = loader.num_workers and generators_of(loader)  # these stand at the workers' place, not at the program's
    return None if is_ahead or is_known(loader._index_sampler) else SamplerWatch(loader._index_sampler)


def _ahead(loader: Any) -> int:
    return int((loader.prefetch_factor or 0) * loader.num_workers + 1)


def _read(generators: list[Any]) -> list[bytes]:
    states = [each.get_state().numpy().tobytes() for each in (torch.default_generator, *generators)]
    return [PythonStream().pack(), NumpyStream().pack(), *states]


def _write(states: list[bytes], generators: list[Any]) -> None:
    PythonStream().unpack(states[0])
    NumpyStream().unpack(states[1])
    for generator, state in zip((torch.default_generator, *generators), states[2:], strict=True):
        generator.set_state(torch.from_numpy(np.frombuffer(state, np.uint8).copy()))


def _check() -> None:
    """Raise FrameworkUnsupported if functions of PyTorch's loaders take other parameters than the known ones."""
    for cls, name, expected in _SIGNATURES:
        found = list(inspect.signature(getattr(cls, name)).parameters)
        if found != expected:
            what = f"{cls.__qualname__}.{name} of PyTorch {torch.__version__}"
            raise FrameworkUnsupported(
                f"{what} takes {', '.join(found)}; expected {', '.join(expected)}",
                "install torch>=2.9,<2.16, without what replaces parts of torch.utils.data",
            )
