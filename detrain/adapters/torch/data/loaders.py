"""The positions of the program's DataLoaders."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
from torch.utils.data import dataloader

from detrain.adapters.keras_epochs import loader_of, maker_of
from detrain.adapters.torch.data import stateful_loader
from detrain.adapters.torch.data.iterations import Iterations, IteratorPlace
from detrain.base.digest import Array
from detrain.base.errors import DetrainError
from detrain.base.options import Mode
from detrain.python.inspect.hooks import LoaderPositions
from detrain.python.loaders.generator_replay import Elements
from detrain.python.process import children

_KEY: Final = "torch loader"
KIND: Final = "torch.loader"
_OLD_COPIES: Final = "the data set of persistent workers (a copy: the program has changed its own since they were started)"
KINDS: Final = (KIND, stateful_loader.KIND)


class TorchLoaders(LoaderPositions):
    """See `detrain.python.inspect.hooks.LoaderPositions`."""

    def __init__(
        self,
        moment: Callable[[], Any],
        elements: Elements | None = None,
        fail: Callable[[DetrainError], object] | None = None,
    ) -> None:
        self._moment = moment
        self._iterations = iterations = Iterations(moment, elements, fail)
        children.exempt(iterations.workers)

    def positions(self, mode: Mode) -> tuple[dict[str, Array], list[str]]:
        """Return the positions of live iterators, and the reasons why iterators made in this epoch must load again.

        The mode `forward` needs these positions, too: it does not repeat the draws of bodies.
        """
        found: dict[str, Array] = {}
        reasons: list[str] = []
        for iterator, known in self._iterations.alive():
            reason = self._iterations.reason_to_load(iterator)
            if reason and _epoch(known.moment) == _epoch(self._moment()):
                reasons.append(reason)
            packed = msgspec.msgpack.encode(self._iterations.place(iterator))
            found[f"{_KEY} {known.number}"] = np.frombuffer(packed, np.uint8)
        return found, reasons

    def is_loader(self, value: object) -> bool:
        """Return whether a value is an iterator of a DataLoader."""
        return isinstance(value, dataloader._BaseDataLoaderIter)

    def no_position(self, value: Any) -> str:
        """Return why an iterator over a DataLoader that lives on cannot be brought to its place; empty if it can."""
        for iterator, _known in self._iterations.alive():
            if iterator is value:
                return self._iterations.no_position(iterator)
        return ""

    def uncaptured(self) -> list[str]:
        """Return a description of a data set that workers hold and that a resumed run's workers would not hold."""
        return [_OLD_COPIES] if self._iterations.have_old_copies() else []

    def loader_key(self, loader: object) -> str:
        """Return the name of an iterator of a DataLoader; empty for any other object."""
        for iterator, known in self._iterations.alive():
            if iterator is loader:
                return f"{_KEY} {known.number}"
        return ""

    def places(self) -> list[tuple[weakref.ref[Any], IteratorPlace]]:
        """Return the live iterators with their places."""
        return [(weakref.ref(iterator), self._iterations.place(iterator)) for iterator, _known in self._iterations.alive()]

    def given(self) -> list[tuple[int, int]]:
        """Return (iterator's number, count of batches handed out) for each live iterator."""
        return [(known.number, iterator._num_yielded) for iterator, known in self._iterations.alive()]

    def goes_back(self, iterator: Any) -> bool:
        """Return whether an iterator can be brought back to where it is now."""
        return not self._iterations.reason_to_load(iterator)

    def put_back(self, places: list[tuple[weakref.ref[Any], IteratorPlace]]) -> list[str]:
        """Bring iterators back to their places; or change nothing, and return the reasons why some cannot be."""
        moved = [
            (there, place) for each, place in places if (there := each()) is not None and self._iterations.place(there) != place
        ]
        reasons = [
            "an iterator over a DataLoader has been drawn from, which is only loaded again"
            for _there, place in moved
            if place.is_loaded
        ]
        if not reasons:
            for iterator, place in moved:
                self._iterations.set_place(iterator, place)
        return reasons

    def set_count(self, begun: int) -> None:
        """Set how many runs over loaders have begun."""
        self._iterations.made = begun

    def counts(self) -> dict[str, int]:
        """Return how many runs over loaders have begun."""
        return {"begun": self._iterations.made}

    def restore(self, counts: dict[str, int], positions: Mapping[str, Array], mode: Mode) -> None:
        """Bring live iterators to their positions.

        A generator that is pulled again may have begun iterators in another order than the first run. The streams at
        their samplers' first draws tell which iterator is which; the pulls bring them to their places.
        """
        packed = [array for key, array in positions.items() if key.startswith(_KEY)]
        places = {place.number: place for place in (msgspec.msgpack.decode(each.tobytes(), type=IteratorPlace) for each in packed)}
        pulled = self._iterations.drawn_by_pulls()
        for iterator, known in self._iterations.alive():
            place, birth = places.get(known.number), known.indices.birth
            same = [] if place is not None and place.birth == birth else [each for each in places.values() if each.birth == birth]
            if same and birth:
                known.number = same[0].number
            elif place is not None and id(iterator) not in pulled and (place.birth == birth or not known.is_pulled):
                self._iterations.set_place(iterator, place)
        self._iterations.made = counts["begun"]

    def parts_of_ended(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind and parts of a StatefulDataLoader's iterator that has ended; None for other objects."""
        if not stateful_loader.is_stateful(value):
            return None
        known = next((known for iterator, known in self._iterations.alive() if iterator is value), None)
        return stateful_loader.parts_of_ended(value, None if known is None else known.loader())

    def parts_of_new(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind and parts (loader, place) of an iterator that the loop has made; None for other objects."""
        for iterator, known in self._iterations.alive():
            is_known = iterator is value and not stateful_loader.is_stateful(value)
            if is_known and not self._iterations.no_position(iterator):
                return KIND, [maker_of(known.loader()), msgspec.msgpack.encode(self._iterations.place(iterator))]
        return None

    def remake(self, kind: str, parts: list[Any], current: object) -> object:
        """Return the iterator that `parts_of_new` described: one that already goes over the loader (inside a progress
        bar), if there is one, else a new one.
        """
        if kind == stateful_loader.KIND:
            return stateful_loader.remake(parts, current)
        place, loader = msgspec.msgpack.decode(parts[1], type=IteratorPlace), loader_of(parts[0])
        for iterator, known in self._iterations.alive():
            if known.number == place.number and known.loader() is loader:
                self._iterations.set_place(iterator, place)
                return iterator
        return self._iterations.make(loader, place)


def _epoch(moment: Any) -> object:
    return moment[:2] if isinstance(moment, tuple) else moment
