"""The norms that the guard looks at: those of arrays (no scalars) that the program's names lead to, look after look. A
step puts other arrays in their place, under the same names.

And the way back to a moment held in memory. Arrays never change, so references to them make a moment. But a step may
take over the memory of its arguments (`donate_argnums`), and these arrays are gone. On a CPU, XLA does not take over
memory that NumPy views: it writes elsewhere, and the array stays. So a moment holds views.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from detrain.adapters.api import Again, CannotGoBackError, PutBack, Rollback, Watched, adam_constant, bounded
from detrain.adapters.jax import settings as flags
from detrain.adapters.jax.jitted import plain_jit
from detrain.adapters.jax.marks import Own, calling
from detrain.adapters.jax.named_arrays import NamedArrays
from detrain.base.digest import Array
from detrain.base.errors import FrameworkUnsupported

_EXACT: Final = ("float32", "float64")
"""The types for which theory gives a bound: in less exact ones a running mean may stand still."""
_SQUARES: Final = ("nu", "sq", "var", "sum", "second")
"""Parts of the names of arrays that hold squares: in optax's states, in statistics of layers."""

STATE: Final = "ScaleByAdamState"
"""The class of optax's states with the moments `mu` and `nu`."""
_MAKER: Final = "scale_by_adam"
_PLACES: Final = ("_src.transform",)
"""Modules of optax, beside `optax` itself, in which that maker is replaced."""


class AdamDecays:
    """Theory's bound on the first moment of optax's Adam, from the decays of the optimizers that were made.

    An optimizer's state does not tell its decays. So the bound is the widest of all optimizers that were made.
    """

    def __init__(self) -> None:
        self._factors: list[float] = []

    def watch(self, optax: ModuleType) -> None:
        """Note the decays of each Adam optimizer that optax makes from now on."""
        original: Any = getattr(optax, _MAKER, None)
        if original is None:
            return
        signature = inspect.signature(original)

        @functools.wraps(original)
        def made(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            decays = [each for name in ("b1", "b2") if isinstance(each := given.arguments.get(name), int | float)]
            self._factors.append(adam_constant(*decays) if len(decays) == 2 else math.inf)
            return original(*args, **kwargs)

        for owner in (optax, *(functools.reduce(getattr, name.split("."), optax) for name in _PLACES)):
            setattr(owner, _MAKER, made)

    def factor(self) -> float | None:
        """Return the C of |mu| <= C sqrt(nu), by element, for all optimizers made so far; None if there is none."""
        widest = max(self._factors, default=math.inf)
        return widest if math.isfinite(widest) else None


class JaxNorms:
    """See `detrain.adapters.api.Norms`."""

    reads_ranks = False

    def __init__(self, decays: AdamDecays) -> None:
        self._decays = decays
        self._names = NamedArrays()
        self._found: dict[str, Any] = {}
        self._forms: dict[str, Any] = {}
        self._watched: list[Watched] = []
        self._norms_of = plain_jit(_norms)

    def watch_gradients(self) -> None:
        """Raise FrameworkUnsupported: JAX takes gradients inside of compiled functions."""
        raise FrameworkUnsupported(
            "--guard-gradients: JAX takes gradients inside of compiled functions, where the guard does not look",
            "run it with --guard alone: weights and states of optimizers are watched",
        )

    def norms(self) -> tuple[Sequence[Watched], Array]:
        """Return the arrays watched for hardware faults, and their Euclidean norms [array] float64."""
        self._names.look()
        found = {name: each for name, each in self._names.found.items() if _is_watched(each[0])}
        away = next((name for name, (array, _of) in found.items() if not array.is_fully_addressable), None)
        if away is not None:
            raise FrameworkUnsupported(
                f"--guard: {away} lies over several processes, and the guard looks at what one process has",
                "run it without --guard",
            )
        if not all(name in found and _form(found[name][0]) == form for name, form in self._forms.items()) or not self._forms:
            self._forms = {name: _form(array) for name, (array, _of) in found.items()}
            self._watched = [self._described(name, array, of) for name, (array, of) in found.items()]
        self._found = {name: found[name][0] for name in self._forms}
        with calling(Own()):
            norms = self._norms_of(list(self._found.values())) if self._found else np.zeros(0)
        return self._watched, np.asarray(norms).astype(np.float64)

    def value(self, key: str) -> Array | None:
        """Return the values of a watched array, in float64; None if the key is unknown or the array deleted."""
        array = self._found.get(key)
        return None if array is None or array.is_deleted() else np.asarray(array).astype(np.float64)

    def _described(self, name: str, array: Any, of: str) -> Watched:
        if not of:
            return Watched(name, "weights", 1)
        before, moment, after = _split(name)
        group, power = f"{of} {moment}", 2 if any(part in moment for part in _SQUARES) else 1
        factor = self._decays.factor() if of == STATE and moment == "mu" and array.dtype.name in _EXACT else None
        partner = self._names.found.get(f"{before}nu{after}")
        watched = Watched(name, group, power)
        if factor is None or partner is None or partner[0].dtype.name not in _EXACT:
            return watched
        return bounded(watched, f"{before}nu{after}", factor, array.size)


def _split(name: str) -> tuple[str, str, str]:
    """Split a name at the field of an optimizer's state: return the text before it, the field, the text after it."""
    parts = name.split(".")
    place = next((place for place, part in enumerate(parts) if part in ("mu", "nu")), len(parts) - 1)
    before, after = ".".join(parts[:place]), ".".join(parts[place + 1 :])
    return f"{before}." if before else "", parts[place], f".{after}" if after else ""


def _is_watched(array: Any) -> bool:
    is_float = jnp.issubdtype(array.dtype, np.floating) and array.dtype.itemsize > 1
    return bool(is_float and array.ndim and array.size and not array.is_deleted())


def _form(array: Any) -> tuple[Any, ...]:
    return array.shape, array.dtype


def _norms(arrays: list[Any]) -> Any:
    """Return the Euclidean norms of arrays; half precision is summed in float32."""
    wide = [each.astype(jnp.promote_types(each.dtype, np.float32)).reshape(-1) for each in arrays]
    return jnp.stack([jnp.sqrt(jnp.sum(each * each)).astype(np.float32) for each in wide])


class JaxRollback(Rollback):
    """See `detrain.adapters.api.Rollback`. Traces are kept: a function that is traced again gives the same one."""

    undo: Callable[[], None] = staticmethod(lambda: None)
    """Restores the bits of arrays that faults in memory have changed."""

    def hold(self, *, on_host: bool) -> PutBack:
        """Hold the flags, flax's count of modules, and all arrays that are alive."""
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
        """Return functions without effect: JAX has no iterators whose loads must be repeated."""
        return lambda: lambda _item, _fetched: None


def _views(array: Any) -> list[Any]:
    """Return views of an array's memory on this process's devices."""
    return [shard.data.__array__() for shard in array.addressable_shards]
