"""The digests of batches: recorded in the journal, and compared with those of the first run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from detrain.base.cursor import Address, Cursor
from detrain.base.digest import Array, ToArray, digest_value, raw_digest, size_bytes
from detrain.base.errors import Diverged
from detrain.store.journal import Journal

_NOT_BROUGHT_BACK: Final = "detrain could not bring the loader back to where it was, or the data are others"
_OTHER_DATA: Final = "the data, or what the program draws it with, is not what it was"
_MOST_UNDIGESTED: Final = 64
_WAITING_BYTES: Final = 4 << 20
_SMALL_BATCH_BYTES: Final = 1 << 20
"""Batches up to this size may wait for their digest: `_MOST_UNDIGESTED`, of `_WAITING_BYTES` in all, but 16 always."""


class Batches:
    """The batches of a run. Some wait for their digest.

    Right after a training step the processor's caches hold none of this code: doing several batches at once costs half.
    """

    def __init__(self, journal: Journal, to_array: ToArray, *, may_differ: bool) -> None:
        """`may_differ`: a batch that is not the first run's is no error."""
        self._journal, self._to_array, self.may_differ = journal, to_array, may_differ
        self._waiting: list[tuple[Address, int | None, object]] = []
        """Batches and elements, with an element's number among those that its body has fetched; None: a batch."""
        self._number = 0
        """The number of the element that the running body fetches next."""
        self._most, self._largest = 1, 0
        self._at_once = 0
        """How many more batches do not wait for their digests, and neither do the elements that they fetch."""
        self._lasting: set[type] = {type(None), bool, int, float, str, bytes}
        self._fetching: Address | None = None
        self._fetched: list[str] = []
        self._is_again = False
        """Whether the batch that is being fetched is fetched again, and not trained on."""
        self._doubt: Diverged | None = None
        """The error for a batch that differed on the way to a checkpoint, until the batch behind the cut decides."""
        self._recorded: Address | None = None
        self._equal = 0
        """The number of batches that were equal to the first run's."""
        self._next: Address = (0, 0, 0)
        """The address behind the last batch that was taken, or taken again, if its epoch goes on."""
        self.suspects: Collection[str] = ()
        """The objects that were not captured, in words."""
        self.has_sought = False
        """Whether a library's loader was set to a position, instead of being loaded from again."""
        self.is_recording = True
        """Whether digests are recorded: not on the way to a checkpoint."""

    def register_immutable(self, kind: type) -> None:
        """Note that no body can change objects of this class."""
        self._lasting.add(kind)

    def be_at(self, address: Address) -> None:
        """Note that the run is back where this batch is about to be loaded.

        Raises Diverged if a batch on the way differed, and this one is not on record to decide.
        """
        self._next = address
        doubt, self._doubt = self._doubt, None
        if doubt is not None and address not in self._journal.batches:
            raise doubt

    def behind(self, phase: int, epoch: int) -> Cursor:
        """Return the cursor behind the last batch of an epoch."""
        return Cursor(phase, epoch, self._next[2] if self._next[:2] == (phase, epoch) else 0)

    def require_end(self, end: Cursor) -> None:
        """Raise Diverged if an epoch, which has ended here, had a batch here in the first run."""
        self.record_waiting()
        if end.address in self._journal.batches and not self.may_differ:
            raise Diverged(
                f"epoch {end.epoch} has ended before {end}; the first run had a batch there",
                self._what_to_do(_NOT_BROUGHT_BACK),
                at=end.address,
            )

    def require_phase_end(self, phase: int) -> None:
        """Raise Diverged if a training loop that has been left had further batches in the first run."""
        last = self._journal.ends.get(phase)
        here = self._next if self._next[0] == phase else (phase, 0, 0)
        if last is not None and last >= here and not self.may_differ:
            raise Diverged(
                f"the training loop of phase {phase} was left before {Cursor(*here)}; the first run went on to {Cursor(*last)}",
                self._what_to_do("what decides when it ends is not what it was"),
            )

    def add(self, address: Address, loaded: object) -> None:
        """Take a batch as its body is about to run."""
        self._next = (address[0], address[1], address[2] + 1)
        self._number, self._at_once = 0, max(self._at_once - 1, 0)
        self._take(address, None, loaded)

    def add_fetched(self, address: Address, element: object) -> None:
        """Take an element that the body of a batch has fetched from an iterator that lives on."""
        self._number += 1
        self._take(address, self._number - 1, element)

    def _take(self, address: Address, number: int | None, loaded: object) -> None:
        may_wait = self._is_lasting(loaded)
        if not (may_wait or self._waiting):  # a batch that a body can change never waits, however small
            self._record(address, number, loaded)
            return
        self._waiting.append((address, number, loaded))
        if len(self._waiting) >= self._most or not may_wait:
            self.record_waiting(may_wait=may_wait)

    def begin_fetch(self, address: Address, *, is_again: bool = False) -> None:
        """Begin a body that loads its batch by itself.

        `is_again`: only the load is done, on the way to a checkpoint.
        """
        self._fetching, self._is_again = address, is_again

    def note_fetched(self, parts: list[Array], *, is_whole: bool) -> bool:
        """Take the batch, or a part of it, that such a body has loaded; return whether one runs that trains on it."""
        if self._fetching is not None:
            self._fetched.append(digest_value(parts, self._to_array))
            # The body goes on to train, and may not live to its end. Another thread than its own must raise nothing
            # here.
            is_new = self.is_recording and not self._is_again and self._fetching not in self._journal.batches
            if is_whole and self._most == 1 and is_new:
                self._journal.add_batch(self._fetching, raw_digest(self._fetched[0], self._to_array))
                self._recorded = self._fetching
        return self._fetching is not None and not self._is_again

    def end_fetch(self) -> None:
        """End the body, if there was one: compare its batch, or take it."""
        fetched, self._fetched = self._fetched, []
        address, self._fetching = self._fetching, None
        if address is not None and fetched:
            self._next = (address[0], address[1], address[2] + 1)
            loaded = fetched[0] if len(fetched) == 1 else tuple(fetched)
            if self._is_again:
                self.compare(address, loaded)
                return
            self._waiting.append((address, None, loaded))
            self._at_once = max(self._at_once - 1, 0)
            if len(self._waiting) >= self._most:
                self.record_waiting()

    def record_next_at_once(self) -> None:
        """Have the next batch not wait: a run that resumes here compares it, so it must be on record at once."""
        self._most, self._at_once = 1, 2

    def record_waiting(self, *, may_wait: bool = True) -> None:
        """Record the digests of the batches that wait. Later ones may wait then, unless bodies can change the last one
        (`may_wait` is false). Raises Diverged for the first batch that is not the first run's.
        """
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._record(*each)
        if not may_wait:
            return
        size = max((size_bytes(each, self._to_array) for *_, each in waiting), default=_SMALL_BATCH_BYTES + 1)
        if all(number is not None for _, number, _ in waiting):  # fetched elements tell nothing of the batches between
            size = max(size, self._largest)
        self._largest = size
        most = max(min(_MOST_UNDIGESTED, _WAITING_BYTES // max(size, 1)), 16)
        self._most = most if size <= _SMALL_BATCH_BYTES and not self._journal.batches and not self._at_once else 1

    def _record(self, address: Address, number: int | None, loaded: object) -> None:
        digest, journal = raw_digest(loaded, self._to_array), self._journal
        if number is None:
            if journal.batches:
                self._check(address, loaded, digest, journal.batches.get(address))
        elif (*address, number) in journal.fetched:
            self._check(address, loaded, digest, journal.fetched[*address, number])
        if self.is_recording and number is not None:
            journal.add_fetched((*address, number), digest)
        elif self.is_recording and address != self._recorded:
            journal.add_batch(address, digest)

    def compare(self, address: Address, loaded: object, *, is_by_body: bool = False) -> None:
        """Raise Diverged if a batch that is loaded again is not the one that was loaded here before.

        `is_by_body`: a statement of the body loads, by names that the rest of the body may change (`i += 1`). Then a
        different batch is no error if the batch behind the cut, where these names are put back, is on record to decide.
        """
        self._next = (address[0], address[1], address[2] + 1)
        if address not in self._journal.batches:
            return
        try:
            self._check(address, loaded, raw_digest(loaded, self._to_array), self._journal.batches[address])
        except Diverged as doubt:
            if not is_by_body:
                raise
            self._doubt = self._doubt or doubt

    def _check(self, address: Address, loaded: object, digest: bytes, expected: bytes | None) -> None:
        self._equal += expected == digest
        if self.may_differ or expected == digest or (expected is not None and loaded is None):
            return
        if expected is not None:
            raise Diverged(
                f"batch {Cursor(*address)} has digest {digest.hex()}; the first run had {expected.hex()}",
                self._what_to_do(_OTHER_DATA if self._equal == 0 else f"{self._equal} before it were equal; {_NOT_BROUGHT_BACK}"),
                at=address,
            )
        if address < self._journal.last:
            raise Diverged(
                f"epoch {address[1]} goes on with batch {Cursor(*address)}; in the first run it had ended before it",
                self._what_to_do(_NOT_BROUGHT_BACK),
                at=address,
            )

    def _what_to_do(self, cause: str) -> str:
        named = f" (not captured: {', '.join(sorted(self.suspects)[:2])})" if self.suspects else ""
        instead = ", load the batches again with --loader forward," if self.has_sought else ""
        restore = "restore it" if cause == _OTHER_DATA else "restore data that were changed"
        return f"{cause}{named}; {restore}{instead} or use --fresh"

    def _is_lasting(self, value: object) -> bool:
        """Return whether a batch cannot be changed by the body, so that its digest may be taken later."""
        kind = type(value)
        return kind in self._lasting or (kind is tuple and all(map(self._is_lasting, value)))  # type: ignore[call-overload]
