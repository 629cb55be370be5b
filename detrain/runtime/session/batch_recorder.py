"""The journal's records of each batch: the digest of the loaded data, and the random streams that bodies have moved.

Only a run that loads the batches of an epoch again needs these streams. A job holds its state inside of epochs without
being asked to, so it writes no streams until the first state of a loop is taken: if loaders are then set to their
positions, streams are neither written nor looked at from there on. If a later cut of the epoch needs them after all,
no state is taken there, and from the next epoch on the streams are on record.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np

from detrain.adapters.group import Adapters
from detrain.base.config import SELDOM, Config
from detrain.base.cursor import FETCHED_IN_BODY, Address, Cursor
from detrain.base.digest import Array, digest_value
from detrain.base.options import Every
from detrain.python.loaders.batch_digests import Batches
from detrain.python.loaders.generator_replay import Elements, LoopGenerators
from detrain.python.process.random_streams import Stream, Streams
from detrain.runtime.state.position import Position
from detrain.store.journal import Journal


class _Keeping(enum.Enum):
    """How the recorder keeps the streams that bodies have moved."""

    WRITTEN = enum.auto()
    WAITING = enum.auto()
    """In memory, until it is known whether they are needed."""
    LEFT_OUT = enum.auto()


class BatchRecorder:
    """Records batches as they first run; on the way to a station it compares them, and sets the recorded streams."""

    def __init__(self, config: Config, journal: Journal, adapters: Adapters, streams: Streams, position: Position) -> None:
        self._journal, self._adapters, self._streams, self._position = journal, adapters, streams, position
        self._is_each_cut = config.every.unit != "epochs"
        """Whether checkpoints may lie inside of epochs; streams are recorded batch by batch then."""
        self._is_of_job = config.ranks is not None
        self._may_leave_out = config.jit is not False
        self._is_asked_for = config.every.count < SELDOM
        """Whether the user asked for checkpoints inside of epochs, which need no states held just in time."""
        self._keeping = _Keeping.WRITTEN
        self._set_at: Address | None = None
        """The batch at which the streams were last set."""
        self._waiting: dict[Address, dict[str, bytes]] = {}
        self.lacks_streams = False
        """Whether the streams at some batches of this epoch are not on record."""
        self.is_spoilt = False
        """Whether a cut of this epoch needed one of these: no state is taken before the epoch's end then."""
        self.batches = Batches(journal, adapters.to_array, may_differ=config.allow_environment)
        self.elements = Elements(streams, journal, self._note_element)
        self.pulls = LoopGenerators(
            position.address, lambda value: digest_value(value, adapters.to_array), self._repeat_streams, self.elements
        )
        self.elements.pulled_again = self.pulls.alive
        self._at_batch: dict[str, bytes] | None = None
        """The streams at the head of the running body; None if they are not recorded."""
        self.notes_all = False
        """Whether the streams at all batches of the phase are recorded."""
        self.holds = False
        """Whether the program's own generators of random numbers count as streams."""
        self._lacks: Cursor | None = None
        """The cursor at which a batch loop has ended: too early if the first run had a batch there, unless another loop
        goes on there."""

    def choose(self, every: Every) -> None:
        """Take the distance between checkpoints, if it becomes known only now."""
        self._is_each_cut = every.unit != "epochs"

    @property
    def is_quiet(self) -> bool:
        """Whether no streams are recorded now, and none will be in this loop."""
        return self._at_batch is None and (not self._is_each_cut or self._is_left_out)

    @property
    def _is_left_out(self) -> bool:
        return self._keeping is _Keeping.LEFT_OUT or self.is_spoilt

    # Digests.

    def begin_batch(self, address: Address, loaded: object) -> None:
        """Record a batch as its body is about to run."""
        position = self._position
        if loaded is FETCHED_IN_BODY:
            self.batches.begin_fetch(address)
        else:
            self.pulls.behind_load()
            position.is_in_body, position.is_loading = True, False
            self.batches.add(address, loaded)
        position.batches_done += 1
        if self._is_each_cut and not self.notes_all and not self._is_left_out:
            self._at_batch = self._streams.read()  # after loading: its draws are made again by a resumed run

    def pass_batch(self, batch: int, loaded: object, *, is_by_body: bool) -> None:
        """Compare the digest of a batch before the next station: it was loaded, or is about to be; its body is skipped.

        `is_by_body`: a statement of the body has loaded it.
        """
        address = (self._position.phase, self._position.epoch, batch)
        if loaded is FETCHED_IN_BODY:
            self.batches.begin_fetch(address, is_again=True)
        else:
            # A forward pass that was taken for a load ran on other weights here.
            is_computed = is_by_body and self._adapters.is_computed(loaded)
            self.batches.compare(address, None if is_computed else loaded, is_by_body=is_by_body)

    def load_again(self, address: Address, load: Callable[[], None]) -> None:
        """Load a batch with the random streams that were at its head, if they are on record; compare its digest."""
        self.pulls.be_at(address)
        self.batches.begin_fetch(address, is_again=True)
        load()
        self.batches.end_fetch()

    def note_fetch(self, value: object) -> None:
        """Note a value that an update's line has loaded: a batch, if it holds arrays."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        if any(isinstance(part, (np.ndarray, *self._adapters.constant_types)) for part in parts):
            self._note_element(value)

    def note_fetched(self, parts: list[Array], *, is_whole: bool) -> bool:
        """Take the digest of arrays that the batch's body has loaded: all of its data (`is_whole`), or a part.

        Returns whether a body is running, for the first time.
        """
        return self.batches.note_fetched(parts, is_whole=is_whole)

    def _note_element(self, element: object) -> None:
        """Note an element from an iterator that lives on from body to body."""
        if not self._position.is_loading and self._position.is_here():
            self.batches.add_fetched(self._position.address(), element)

    # Ends of loops.

    def begin_load(self) -> None:
        """Note that a batch is about to be loaded: the loop before it has not ended the epoch."""
        self._lacks = None
        self.pulls.at_head()

    def end_loop(self) -> None:
        """Note that the loader has run out."""
        self._lacks = Cursor(self._position.phase, self._position.epoch, self._position.batch)

    def require_whole(self, *, is_over: bool) -> None:
        """Raise Diverged if the last loop of an epoch has ended where the first run had a batch. An earlier loop may:
        the later one's batch is compared there.

        `is_over`: the epoch has ended as it should, however the program left its last loop.
        """
        if self._journal.batches and (self._lacks is not None or is_over):
            self.batches.end_fetch()
            self.batches.require_end(self._lacks or self.batches.behind(self._position.phase, self._position.epoch))

    # Streams.

    def begin_phase(self, *, is_held: bool) -> None:
        """Begin a loop, of which nothing is known yet. `is_held`: states are held just in time."""
        self._waiting.clear()
        self.lacks_streams = self.is_spoilt = False
        if not self._may_leave_out:
            self._keeping = _Keeping.WRITTEN
        else:
            self._keeping = _Keeping.WAITING if is_held or self._is_asked_for else _Keeping.LEFT_OUT

    def begin_epoch(self) -> None:
        """Begin an epoch: no streams of an earlier batch are known."""
        self._waiting.clear()
        self.pulls.forget_load()
        self._set_at, self.lacks_streams, self.is_spoilt = None, False, False
        if not self.notes_all:
            self._at_batch = None
            if self._is_of_job:  # a job may have records of each batch without being asked for them
                self._journal.forget_streams((self._position.phase, self._position.epoch, 0))

    def hold(self, generators: Callable[[], dict[str, Stream]]) -> None:
        """Count the program's own generators of random numbers as streams, if loads may share them with the bodies."""
        self.holds = bool(self.pulls) or self.elements.is_python
        self._streams.hold(generators() if self.holds else {})

    def note_all_streams(self) -> None:
        """Record the random streams at all batches of the phase that is about to begin, whatever the checkpoints'
        distance.
        """
        self.notes_all = True
        self._at_batch = {}  # record all streams at the first batch: repeated loads begin with them

    def note_streams(self, address: Address, *, is_again: bool = False) -> None:
        """Record the streams moved by the body that just ended, or, before it loads, by the running one."""
        if self._at_batch is None:
            return
        states = self._streams.read()
        changed = {name: state for name, state in states.items() if self._at_batch.get(name) != state}
        self._at_batch = states if self.notes_all or is_again else None
        if changed:
            if self._keeping is _Keeping.WAITING and not self.notes_all:
                self._waiting[address] = {**self._waiting.get(address, {}), **changed}
                return
            noted = self._journal.streams.get(address, {}) if is_again else {}
            self._journal.add_streams(address, {**noted, **changed})

    def settle(self, *, is_loaded_again: bool) -> bool:
        """Settle whether streams are kept, as a state is about to be taken inside of an epoch. `is_loaded_again`: a run
        that resumes there loads the batches before it again. Return False if it could not, for lack of streams on
        record.
        """
        if self.notes_all or self.elements.is_python:
            return True
        self.lacks_streams |= self._keeping is _Keeping.LEFT_OUT
        if is_loaded_again:
            if self._keeping is _Keeping.WAITING:
                for address, states in self._waiting.items():
                    self._journal.add_streams(address, states)
            self._keeping = _Keeping.WRITTEN
            self._waiting.clear()
            self.is_spoilt = self.lacks_streams
            return not self.is_spoilt
        if self._keeping is _Keeping.WAITING:
            self._keeping, self._at_batch, self.lacks_streams = _Keeping.LEFT_OUT, None, True
            self._waiting.clear()
        return True

    def set_streams(self, address: Address) -> None:
        """Set the random streams to the states in which the skipped body before this batch had left them.

        Do so once: if a loop has run out and another one goes on with this number, the code between them has run.
        """
        states = self._journal.streams.get(address) if address != self._set_at else None
        self._set_at = address
        if states is not None:
            self._streams.write(states)

    def be_at_station(self, *, lacks_streams: bool) -> None:
        """Note that the streams have been set to those of a checkpoint. `lacks_streams`: see `Meta`."""
        self.lacks_streams = lacks_streams
        if self.notes_all:
            self._at_batch = {}  # record all streams at the next batch: the journal was cut before them

    def begin_fetch(self) -> None:
        """Record the streams that have changed since the body's head, as Python is about to fetch a batch."""
        self.note_streams(self._position.address(), is_again=True)

    def end_fetch(self) -> None:
        """Record the batch that the running body has fetched; streams that the fetch moved wait for the next head."""
        self.batches.end_fetch()
        if self._at_batch is not None:
            states = self._streams.read()
            self._at_batch = {name: old for name, old in self._at_batch.items() if states.get(name) == old}

    def _repeat_streams(self, after: Address | None, address: Address) -> None:
        """Set the streams to their states at the head of `address`, by the records since the batch `after`."""
        self._streams.write(self._journal.streams_between(after, address))
