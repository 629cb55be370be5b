"""Functions that JAX compiles: what `jax.jit` returns, with a count of the calls that update weights.

JAX calls a compiled function from C, where nothing can be seen. So `jax.jit` is replaced before the program imports
anything else: what it returns calls JAX's own object, and knows from the trace whether the function updates weights.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, Final

import jax

from detrain.adapters.jax.marks import NOTHING, Marked, calling, calls, hand_on

KIND: Final = "jax.jit"
plain_jit: Final[Any] = jax.jit
"""JAX's own."""


class Jitted(Marked):
    """A function that `jax.jit` has compiled. All else than a call is JAX's own object."""

    told: Callable[[Jitted, tuple[Any, ...]], None] = staticmethod(lambda _jitted, _arguments: None)
    """Hears of each call that may update weights, with the arguments."""
    numbered: Callable[[Any, str], str] = staticmethod(lambda _function, key: key)
    """Gives a function a key, if it has none."""

    def __init__(self, compiled: Any, options: dict[str, Any], key: str = "") -> None:
        functools.update_wrapper(self, compiled)
        self.__wrapped__ = compiled.__wrapped__  # the function itself, as with JAX's object
        self.compiled, self.options = compiled, options
        self.key = Jitted.numbered(compiled._fun, key)
        self.mark = self._known = _mark_of(compiled._fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        going_on = calls()
        going_on.append(self)
        try:
            result = self.compiled(*args, **kwargs)
        finally:
            going_on.pop()
        if self.mark != self._known:
            self._known = self.mark
            _keep(self.compiled._fun, self.mark)
        if self.mark and not hand_on(self):
            Jitted.told(self, args)
        return result

    @property
    def number(self) -> int:
        """The number of the function: another object of the same function does the same."""
        return id(self.compiled._fun)

    def __getattr__(self, name: str) -> Any:
        if name == "compiled":  # of an object that was made without `__init__`
            raise AttributeError(name)
        return getattr(self.compiled, name)

    def __get__(self, instance: Any, _owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self.compiled)

    def __reduce__(self) -> tuple[Any, ...]:
        return _jit_again, (self.compiled._fun, self.options)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace and lower the function, as JAX does."""
        return self._traced(self.compiled.lower, args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function, as JAX does."""
        return self._traced(self.compiled.trace, args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the shapes that the function gives, as JAX does."""
        return self._traced(self.compiled.eval_shape, args, kwargs)

    def _traced(self, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with calling(self):
            return method(*args, **kwargs)


_marks: Final[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()
"""What was seen in functions: JAX traces each once, however often `jax.jit(function)` is called."""


def _mark_of(function: Any) -> int:
    try:
        return _marks.get(function, NOTHING)
    except TypeError:  # it cannot be held weakly
        return NOTHING


def _keep(function: Any, mark: int) -> None:
    with contextlib.suppress(TypeError):
        _marks[function] = mark


def _jit_again(function: Any, options: dict[str, Any]) -> Jitted:
    return Jitted(plain_jit(function, **options), options)


@functools.wraps(plain_jit)
def jit(*args: Any, **options: Any) -> Any:
    """Stand for `jax.jit`: also where it returns a decorator, as it is given no function."""
    made = plain_jit(*args, **options)
    if not hasattr(made, "_jit_info"):
        return lambda function: jit(function, **options)
    return Jitted(made, options)


def parts(value: object) -> tuple[str, list[object]] | None:
    """Return the kind of a compiled function and what it is made of; None for anything else."""
    if type(value) is not Jitted or not hasattr(value.compiled, "_fun"):
        return None
    return KIND, [value.compiled._fun, value.options, value.key]


def remake(inside: list[Any], current: object) -> object | None:
    """Return a function compiled from another with these options: `current` if it is that."""
    function, options, key = inside
    if function is None:
        return None
    if type(current) is Jitted and current.compiled._fun is function and current.options == options:
        return current
    return Jitted(plain_jit(function, **options), options, key)


def install(told: Callable[[Jitted, tuple[Any, ...]], None]) -> None:
    """Have `jax.jit` return objects that tell of calls that may update weights."""
    Jitted.told = staticmethod(told)
    jax.jit = jit
