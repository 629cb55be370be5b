"""The way back to a moment that is held in memory.

Tensors go back with the Python objects that hold them. What is left are the settings of the process, counts, what has
been compiled since, and the iterators over DataLoaders: these are brought back to where they were, and load their
batches again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

from torch.utils.data import DataLoader

from detrain.adapters.api import Again, CannotGoBackError, PutBack, Rollback
from detrain.adapters.torch import settings as flags
from detrain.adapters.torch.compiler.history import History
from detrain.adapters.torch.data.loaders import TorchLoaders
from detrain.adapters.torch.settings import GlobalHooks


class TorchRollback(Rollback):
    """See `detrain.adapters.api.Rollback`. What cannot be put back is found when it is to be."""

    def __init__(self, loaders: TorchLoaders, hooks: GlobalHooks, compiled: History) -> None:
        self._loaders, self._hooks, self._compiled = loaders, hooks, compiled

    def hold(self, *, on_host: bool) -> PutBack:
        """Hold settings, counts, what is compiled and how far loaders are. Tensors are held by who goes through the
        program's objects.
        """
        set_to = flags.flags()
        hooks, begun, places = self._hooks.count(), self._loaders.counts()["begun"], self._loaders.places()
        compiled = json.loads(json.dumps(self._compiled.state()))

        def put_back() -> None:
            reasons = self._loaders.put_back(places)
            if reasons:
                raise CannotGoBackError("; ".join(reasons))
            flags.set_flags(set_to)
            self._compiled.restore(compiled)
            self._hooks.set_count(hooks)
            self._loaders.set_count(begun)

        return put_back

    def begin_load(self) -> Callable[[], Again]:
        """Return what notes whether the load draws from a DataLoader, which is brought back and gives its batch anew:
        then it is not to be handed out again.
        """
        before = self._loaders.given()

        def end() -> Again:
            has_drawn = self._loaders.given() != before

            def again(_item: object, _fetched: object) -> None:
                if has_drawn:
                    raise CannotGoBackError("the loop draws from a DataLoader by way of what cannot be brought back with it")

            return again

        return end

    def way_of(self, loader: object) -> Literal["put back", ""]:
        """Return `put back` of a DataLoader, and of an iterator over one that can be brought back to where it was."""
        is_way = isinstance(loader, DataLoader) or (self._loaders.is_loader(loader) and self._loaders.goes_back(loader))
        return "put back" if is_way else ""
