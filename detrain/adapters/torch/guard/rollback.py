"""The way back to a moment that is held in memory.

Tensors go back with the Python objects that hold them. What is left are the settings of the process, counts, and the
iterators over DataLoaders: these are brought back to where they were, and load their batches again.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from detrain.adapters.torch import settings as flags
from detrain.adapters.torch.data.iterations import IteratorPlace
from detrain.adapters.torch.data.loaders import TorchLoaders
from detrain.adapters.torch.hooks import GlobalHooks
from detrain.base.digest import Array


@dataclass(frozen=True, slots=True, eq=False)
class TorchHeldState:
    """What is PyTorch's own at a moment."""

    flags: dict[str, Any]
    hooks: int
    begun: int
    """Runs over loaders."""
    places: list[tuple[weakref.ref[Any], IteratorPlace]]


class TorchRollback:
    """See `detrain.adapters.api.Rollback`."""

    def __init__(self, loaders: TorchLoaders, hooks: GlobalHooks) -> None:
        self._loaders, self._hooks = loaders, hooks
        self._given: object = None

    def hold(self, *, on_host: bool) -> TorchHeldState:
        """Return settings, counts and how far loaders are. Tensors are held by who goes through the program's
        objects.
        """
        set_to = {name: get() for name, (get, _set) in flags.FLAGS.items()}
        return TorchHeldState(set_to, self._hooks.count(), self._loaders.counts()["begun"], self._loaders.places())

    def put_back(self, held: object) -> list[str]:
        """Put them back, or return why a loader cannot be brought back."""
        assert isinstance(held, TorchHeldState)
        reasons = self._loaders.put_back(held.places)
        if reasons:
            return reasons
        for name, value in held.flags.items():
            get, set_flag = flags.FLAGS[name]
            if get() != value:
                set_flag(value)
        self._hooks.set_count(held.hooks)
        self._loaders.set_count(held.begun)
        return []

    def irreversible(self) -> list[str]:
        """Return nothing: what cannot be put back, `put_back` finds."""
        return []

    def release(self) -> None:
        """Nothing is kept for a way back."""

    def begin_load(self) -> None:
        """A load begins: note how far loaders are."""
        self._given = self._loaders.given()

    def end_load(self) -> object:
        """Return whether the load drew from a DataLoader."""
        return self._loaders.given() != self._given

    def load_again(self, loaded: object) -> list[str]:
        """A batch is about to be handed out again: not one of a DataLoader, which has been brought back and gives it
        anew.
        """
        return ["the loop draws from a DataLoader by way of what cannot be brought back with it"] if loaded else []

    def is_pure(self, loader: object) -> bool:
        """Loaders run Python, and draw."""
        return False

    def goes_back(self, loader: object) -> bool:
        """Return whether this is a DataLoader, or an iterator over one that can be brought back to where it was."""
        return isinstance(loader, DataLoader) or (self._loaders.is_loader(loader) and self._loaders.goes_back(loader))

    def refetch(self, item: object, fetched: Sequence[list[Array]]) -> object | None:
        """PyTorch has no loop of its own."""
        return None
