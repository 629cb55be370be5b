"""Generators of the program that live on from epoch to epoch, and Python in pipelines: they draw the same values again.

A resumed process has such a generator at its start. It pulls the generator as often as the first run did, each time
with the first run's random streams: those at the head of the batch or, if other code had drawn since, those that the
generator found. The values that it then yields must have the digests of the first run's.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, GeneratorType
from typing import Any

import xxhash

from detrain.base.cursor import Address
from detrain.instrument.value_probes import PASS_ON, YIELD
from detrain.python.inspect.frames import names_of
from detrain.python.inspect.held import walk
from detrain.python.inspect.progress import iterators_in
from detrain.python.process.random_streams import Streams
from detrain.store.journal import Journal


class Elements:
    """Elements that Python makes for a framework's iterators, or that generators yield, and the random streams that
    each found.

    Other code may have drawn from these since the last element. Where elements are made again, the streams are set.
    """

    def __init__(self, streams: Streams, journal: Journal, note: Callable[[object], None]) -> None:
        """`note` takes each element that is given, unless it is made again."""
        self._streams, self._journal, self._note = streams, journal, note
        self._left: dict[str, dict[str, bytes]] = {}
        """The streams as each iterator's last element has left them."""
        self.is_again = False
        """Whether elements are made again."""
        self.is_python = False
        """Whether pipelines of the program call Python at all."""
        self.pulled_again: Callable[[], list[Any]] = list
        """Returns the generators that a resumed run pulls again, as often as the first run did."""

    def begin(self, name: str, number: int) -> None:
        """Record the streams before an iterator's next element is made, or set them if it is made again."""
        if self.is_again:
            self._streams.write(self._journal.elements.get(name, {}).get(number, {}))
            return
        left = self._left.get(name, {}) if number else {}
        moved = {each: state for each, state in self._streams.read().items() if left.get(each) != state}
        if moved:
            self._journal.add_element(name, number, moved)

    def end(self, name: str) -> None:
        """Note the streams after the element was made."""
        self._left[name] = self._streams.read()

    def drawn_by_pulls(self) -> set[int]:
        """Return the identities of the iterators that generators go over which are pulled again.

        Pulls bring these iterators to their positions, whether they began before the loop or in it.
        """
        pulled = self.pulled_again()
        found = walk(pulled, lambda each: iterators_in(gc.get_referents(each)))
        return {id(each) for each in found} - set(map(id, pulled))

    def note(self, element: object) -> None:
        """Take an element that an iterator that lives on has given."""
        if not self.is_again:
            self._note(element)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Count elements as made again inside of the `with` block."""
        self.is_again = True
        try:
            yield
        finally:
            self.is_again = False


class _Pulled:
    """A generator: the count and digest of the values it has yielded since the run knows it. `name` is unique."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_asked = False
        """Whether it was asked for a value that it has not yielded yet."""
        self.count = 0
        self.digest = b""
        self.runs: list[list[int]] = []
        """[phase, epoch, batch, n]: one value in each of n batches from this one on."""

    def note(self, address: Address, digest: bytes) -> None:
        """Add a value that was yielded in the batch at an address."""
        self.count += 1
        self.digest = xxhash.xxh3_128_digest(self.digest + digest)
        phase, epoch, batch = address
        last = self.runs[-1] if self.runs else None
        if last is not None and last[:2] == [phase, epoch] and batch == last[2] + last[3]:
            last[3] += 1
        else:
            self.runs.append([phase, epoch, batch, 1])


class LoopGenerators:
    """The generators that were there when a loop was entered."""

    def __init__(
        self,
        address: Callable[[], Address],
        digest: Callable[[object], str],
        repeat_streams: Callable[[Address | None, Address], None],
        elements: Elements,
    ) -> None:
        self._address, self._digest, self._repeat_streams = address, digest, repeat_streams
        self._elements = elements
        self._followed: dict[Address, int] = {}
        """How many generators were met in each epoch: their names are the same in a run that begins there."""
        self._by_frame: dict[int, _Pulled] = {}
        self._known: weakref.WeakKeyDictionary[Any, _Pulled] = weakref.WeakKeyDictionary()
        self._replayed: Address | None = None
        self._unseen: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()
        """Generators that are not followed, with the place of each after a load, until the body ends."""
        self._drawn: weakref.WeakSet[Any] = weakref.WeakSet()

    def __bool__(self) -> bool:
        """Whether any generator is followed that has not ended."""
        return any(generator.gi_frame is not None for generator in list(self._known))

    def alive(self) -> list[Any]:
        """Return the generators that are followed and have not ended."""
        return [each for each in list(self._known) if each.gi_frame is not None]

    def follow(self, value: object) -> None:
        """Follow a generator from here on, if its yields are seen."""
        if not isinstance(value, GeneratorType) or value.gi_frame is None or value in self._known:
            return
        if not _is_seen(value.gi_code):
            self._unseen.setdefault(value, None)
        else:
            phase, epoch, _ = self._address()
            number = self._followed[phase, epoch, 0] = self._followed.get((phase, epoch, 0), 0) + 1
            frame, pulled = value.gi_frame, _Pulled(f"generator {phase} {epoch} {number}")
            self._known[value] = self._by_frame[id(frame)] = pulled
            weakref.finalize(value, self._by_frame.pop, id(frame), None).atexit = False

    def behind_load(self) -> None:
        """Note where the generators are that are not followed, after a batch was loaded."""
        for each in list(self._unseen):
            self._unseen[each] = _where(each)

    def at_head(self) -> None:
        """Note the generators that have moved since the load: the body, which has ended, has moved them."""
        self._drawn.update(each for each, place in list(self._unseen.items()) if place not in (None, _where(each)))
        self.forget_load()

    def forget_load(self) -> None:
        """Forget these places: before the next load, code outside of bodies may run, too."""
        self._unseen.update(dict.fromkeys(list(self._unseen)))

    def is_drawn_by_bodies(self, value: object) -> bool:
        """Return whether a body has moved a generator that is not followed: loading its batch again does not."""
        return isinstance(value, GeneratorType) and value in self._drawn

    def be_at(self, address: Address | None) -> None:
        """Repeat pulls of this batch from here on, from the random streams that it had, until None is given."""
        if address is not None and address != self._replayed:
            self._repeat_streams(self._replayed, address)
        self._replayed = address

    def begin(self, frame: int) -> None:
        """Note that the generator of the frame with this identity is asked for its next value."""
        pulled = self._by_frame.get(frame)
        if pulled is not None and not pulled.is_asked:
            pulled.is_asked = True
            self._elements.begin(pulled.name, pulled.count)

    def note(self, frame: int, value: object) -> None:
        """Note that the generator of this frame is about to yield a value."""
        pulled = self._by_frame.get(frame)
        if pulled is not None:
            pulled.is_asked = False
            self._elements.end(pulled.name)
            pulled.note(self._replayed or self._address(), bytes.fromhex(self._digest(value)))

    def forget(self, frame: int) -> None:
        """Follow the generator of this frame no more: a value was sent through it, which cannot be sent again."""
        pulled = self._by_frame.pop(frame, None)
        for each in [generator for generator, known in self._known.items() if known is pulled]:
            del self._known[each]
            self._unseen[each] = None

    def state(self, value: object) -> list[Any] | None:
        """Return [count, digest, runs, whether it has ended] of a generator that is followed; None for any other."""
        pulled = self._known.get(value) if isinstance(value, GeneratorType) else None
        if pulled is None or not isinstance(value, GeneratorType):
            return None
        return [pulled.count, pulled.digest, pulled.runs, value.gi_frame is None]

    def replay(self, value: object, state: list[Any]) -> bool:
        """Bring a generator to where the first run had it; return whether it has yielded the same."""
        count, digest, runs, has_ended = state
        pulled = self._known.get(value) if isinstance(value, GeneratorType) else None
        if pulled is None or not isinstance(value, GeneratorType):
            return False
        addresses = [(phase, epoch, batch + turn) for phase, epoch, batch, n in runs for turn in range(n)]
        try:
            with self._elements.again():
                while pulled.count < count:
                    self.be_at(addresses[pulled.count])
                    next(value)
                if has_ended:
                    next(value, None)
        except StopIteration:
            return False
        finally:
            self.be_at(None)
        return bool(pulled.digest == digest) and (value.gi_frame is None) == has_ended


def _where(generator: Any) -> object:
    """Return a generator's instruction and local values, which show its moves; others may set its outer variables."""
    frame, around = generator.gi_frame, generator.gi_code.co_freevars
    if frame is None:
        return "ended"
    return frame.f_lasti, [(name, id(value)) for name, value in names_of(frame).items() if name not in around]


def _is_seen(code: CodeType) -> bool:
    return not {YIELD, PASS_ON}.isdisjoint(code.co_names)
