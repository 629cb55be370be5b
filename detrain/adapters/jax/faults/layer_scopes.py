"""Layers of nnx and equinox, whose calls JAX does not hear of: they run in a scope with the name that leads to them in
the program (`model.blocks.0.attn`), as those of linen do by themselves. Nothing else of a function changes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any, Final

import jax

from detrain.python.inspect.frames import user_frames
from detrain.python.inspect.held import walk
from detrain.python.inspect.names import own_attributes

_LIBRARIES: Final = (("flax.nnx", "Module", "flax.nnx"), ("equinox", "Module", "equinox.nn"))
"""(module, the class that all layers derive from, where the library's own layers are)."""
_MOST: Final = 10_000


def name_layers() -> None:
    """Have the libraries' own layers that are there now run in scopes with their names."""
    for module, base, own in _LIBRARIES:
        root: Any = getattr(sys.modules.get(module), base, None)
        for cls in walk(root.__subclasses__(), lambda each: each.__subclasses__()) if root is not None else ():
            call = vars(cls).get("__call__")
            if cls.__module__.startswith(own) and call is not None and not hasattr(call, "_detrain_scope"):
                type.__setattr__(cls, "__call__", _scoped(call, root))


def _scoped(call: Any, root: type) -> Any:
    @functools.wraps(call)
    def scoped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(_name(self, root)):
            return call(self, *args, **kwargs)

    scoped._detrain_scope = True  # type: ignore[attr-defined]
    return scoped


def _name(layer: Any, root: type) -> str:
    """Return the name that leads to a layer from the outermost frame of the program from which one does."""
    for frame in user_frames(sys._getframe())[::-1]:
        held = [(name, value) for name, value in frame.f_locals.items() if isinstance(value, root)]
        for name, value in walk(held, functools.partial(_below, root=root), lambda at: id(at[1]), most=_MOST):
            if value is layer:
                return name
    return type(layer).__name__


def _below(at: tuple[str, Any], root: type) -> Iterator[tuple[str, Any]]:
    name, value = at
    if isinstance(value, root):
        inside: Any = (own_attributes(value) or {}).items()
    elif isinstance(value, list | tuple):
        inside = enumerate(value)
    elif isinstance(value, dict):
        inside = value.items()
    else:
        return
    yield from ((f"{name}.{step}", each) for step, each in inside if isinstance(each, root | list | tuple | dict))
