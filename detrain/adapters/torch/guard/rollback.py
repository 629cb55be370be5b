"""The way back to a moment that is held in memory.

Tensors go back with the Python objects that hold them. This module holds the rest: settings of the process, counts, the
record of compilations, and iterators over DataLoaders: these are brought back to their places, and load their batches
again.
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
from detrain.adapters.torch.distributed.buckets import Buckets
from detrain.adapters.torch.settings import GlobalHooks


class TorchRollback(Rollback):
    """See `detrain.adapters.api.Rollback`. An obstacle on the way back is found only when the state is put back."""

    def __init__(self, loaders: TorchLoaders, hooks: GlobalHooks, compiled: History, buckets: Buckets | None = None) -> None:
        self._loaders, self._hooks, self._compiled, self._buckets = loaders, hooks, compiled, buckets

    def hold(self, *, on_host: bool) -> PutBack:
        """Hold settings, counts, the record of compilations and the places of iterators. The caller holds tensors, with
        the program's objects.
        """
        set_to = flags.flags()
        hooks, begun, places = self._hooks.count(), self._loaders.counts()["begun"], self._loaders.places()
        compiled = json.loads(json.dumps(self._compiled.state()))

        buckets = self._in_buckets()

        def put_back() -> None:
            if self._in_buckets() != buckets:
                raise CannotGoBackError("DistributedDataParallel has made its buckets since, by the order of gradients")
            reasons = self._loaders.put_back(places)
            if reasons:
                raise CannotGoBackError("; ".join(reasons))
            flags.set_flags(set_to)
            self._compiled.restore(compiled)
            self._hooks.set_count(hooks)
            self._loaders.set_count(begun)

        return put_back

    def _in_buckets(self) -> list[object]:
        return self._buckets.moved_on() if self._buckets is not None else []

    def begin_load(self) -> Callable[[], Again]:
        """Return a function that notes whether the load has drawn from a DataLoader: this goes back and loads its batch
        anew, so the kept batch must not be handed out again.
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
        """Return `put back` for a DataLoader, and for an iterator over one that can go back to its place."""
        is_way = isinstance(loader, DataLoader) or (self._loaders.is_loader(loader) and self._loaders.goes_back(loader))
        return "put back" if is_way else ""
