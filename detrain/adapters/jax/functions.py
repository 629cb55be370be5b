"""Functions of JAX's libraries that do nothing but compute, as values of a program: an activation, an initializer.

A name leads to each, and from the name of a file only such a function is found.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any, Final

import jax

from detrain.python.inspect.names import static_name

KIND: Final = "jax.function"
_KINDS: Final = (FunctionType, type(jax.numpy.where), type(jax.nn.relu))
_COMPUTING: Final = (
    *("jax.nn", "jax.numpy", "jax.lax", "jax.random", "jax.scipy"),
    *("jax._src.nn", "jax._src.numpy", "jax._src.lax", "jax._src.random", "jax._src.scipy"),
    *("flax.linen", "flax.nnx.nn", "equinox.nn", "optax.losses"),
)
_OF_LIBRARIES: Final = ("jax", "flax", "equinox", "optax")


def _modules() -> list[tuple[str, ModuleType]]:
    found = [(name, module) for name, module in sys.modules.items() if name.startswith(_COMPUTING)]
    return sorted((name, module) for name, module in found if isinstance(module, ModuleType))


class FunctionNames:
    """The names of such functions: those of all modules, once one is asked for that its own name does not lead to."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._modules = 0

    def parts(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind and the name of such a function; None for any other object."""
        if not isinstance(value, _KINDS) or str(getattr(value, "__module__", "")).partition(".")[0] not in _OF_LIBRARIES:
            return None
        name = static_name(value)
        if find(name) is value:
            return KIND, [name]
        modules = _modules()
        if len(modules) != self._modules:
            self._modules = len(modules)
            self._names = {
                id(item): f"{module}:{name}"
                for module, each in reversed(modules)
                for name, item in vars(each).items()
                if isinstance(item, _KINDS)
            }
        known = self._names.get(id(value))
        return None if known is None else (KIND, [known])


def find(name: str) -> object | None:
    """Return the function with a name; None if there is none, or it may do other things than compute."""
    module, _, attribute = name.partition(":")
    if not module.startswith(_COMPUTING):
        return None
    found = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
    return found if isinstance(found, _KINDS) else None
