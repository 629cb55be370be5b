"""What theory says of the first moment of optax's Adam: by the decays that the program has made such optimizers with.

An optimizer's state does not say which decays it is of. So the bound is the widest of all that were made.
"""

from __future__ import annotations

import functools
import inspect
import math
from types import ModuleType
from typing import Any, Final

from detrain.adapters.api import adam_constant

STATE: Final = "ScaleByAdamState"
"""The class of optax's states with the moments `mu` and `nu`."""
_MAKER: Final = "scale_by_adam"
_PLACES: Final = ("_src.transform",)
"""Modules of optax, beside itself, in which that is looked up."""


class AdamDecays:
    """The decays of the optimizers that were made."""

    def __init__(self) -> None:
        self._factors: list[float] = []

    def watch(self, optax: ModuleType) -> None:
        """Hear of optimizers that optax makes from now on."""
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
        """Return C of |mu| <= C sqrt(nu), by element, for all that were made; None if there is no such bound."""
        widest = max(self._factors, default=math.inf)
        return widest if math.isfinite(widest) else None
