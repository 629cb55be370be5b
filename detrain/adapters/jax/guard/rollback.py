"""The way back to a moment that is held in memory: arrays never change, so a moment is whoever still leads to them.

But a step may take the memory of arrays that it is given (`donate_argnums`), and they are gone. On a CPU that is not
done to memory that NumPy looks at: XLA writes elsewhere then, and the array stays. So a moment holds views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from detrain.adapters.api import Again, CannotGoBackError, PutBack, Rollback
from detrain.adapters.jax import settings as flags


class JaxRollback(Rollback):
    """See `detrain.adapters.api.Rollback`. What functions were traced to stays, and is the same when they are
    traced again.
    """

    undo: Callable[[], None] = staticmethod(lambda: None)
    """Gives arrays the bits again that a fault in memory has changed."""

    def hold(self, *, on_host: bool) -> PutBack:
        """Hold the flags, and the arrays that there are."""
        was, modules = flags.flags(), flags.count_of_modules()
        held = [(array, _views(array)) for array in jax.live_arrays() if not array.is_deleted()]

        def put_back() -> None:
            gone = next((array for array, _held in held if array.is_deleted()), None)
            if gone is not None:
                raise CannotGoBackError(f"the memory of an array was given away (donated): {gone.aval}")
            self.undo()
            flags.set_flags(was)
            flags.set_count_of_modules(modules)

        return put_back

    def begin_load(self) -> Callable[[], Again]:
        """Return what has nothing to say of a load: JAX has no iterators."""
        return lambda: lambda _item, _fetched: None


def _views(array: Any) -> list[Any]:
    """Return views of an array's memory on this process's devices."""
    return [shard.data.__array__() for shard in array.addressable_shards]
