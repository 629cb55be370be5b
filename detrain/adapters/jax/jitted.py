"""The compiled functions that `jax.jit` and `jax.pmap` return, as objects that report the calls that update weights.

JAX calls a compiled function from C, where Python sees nothing. So both are replaced before the program imports
anything else: their results call JAX's own object, and know from the trace whether the function updates weights.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np
from jax.stages import Compiled, Lowered, Traced

from detrain.adapters.jax.marks import NOTHING, Marked, calling, calls, hand_on
from detrain.base.in_place import in_place_of

plain_jit: Final[Any] = jax.jit
"""JAX's own `jax.jit`."""
_COMPILERS: Final[dict[str, Any]] = {"jax.jit": plain_jit, "jax.pmap": jax.pmap}
"""JAX's compilers, by the kind of the functions that they return."""
_STATIC_OF_PMAP: Final = "static_broadcasted_argnums"


class Jitted(Marked):
    """A function that `jax.jit` or `jax.pmap` has compiled. Everything but a call goes to JAX's own object."""

    told: Callable[[Jitted, tuple[Any, ...]], None] = staticmethod(lambda _jitted, _arguments: None)
    """Called with each function whose call may update weights, and the call's arguments."""
    numbered: Callable[[Any, str], str] = staticmethod(lambda _function, key: key)
    """Returns the key of a function, and gives it one if it has none."""

    def __init__(self, kind: str, compiled: Any, options: dict[str, Any], key: str = "") -> None:
        functools.update_wrapper(self, compiled)
        vars(self).pop("lower", None)  # `jax.pmap`'s own, whose trace would not be seen
        self.__wrapped__ = compiled.__wrapped__  # the function itself, as with JAX's object
        self.kind, self.compiled, self.options = kind, compiled, options
        self.function = getattr(compiled, "_fun", compiled.__wrapped__)
        self.statics: list[object] = []
        """The static arguments of the call in progress, for `jax.pmap`."""
        self.key = Jitted.numbered(self.function, key)
        self.mark = self._known = _mark_of(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.options.get(_STATIC_OF_PMAP):
            self.statics = [args[number] for number in np.atleast_1d(self.options[_STATIC_OF_PMAP]) if number < len(args)]
        going_on = calls()
        going_on.append(self)
        try:
            result = self.compiled(*args, **kwargs)
        finally:
            going_on.pop()
        self._has_ended(args)
        return result

    def _has_ended(self, args: tuple[Any, ...]) -> None:
        """Report a call that has ended if it may have updated weights."""
        if self.mark != self._known:
            self._known = self.mark
            _keep(self.function, self.mark)
        if self.mark and not hand_on(self):
            Jitted.told(self, args)

    @property
    def number(self) -> int:
        """The number of the function: two objects of one function do the same."""
        return id(self.function)

    def __getattr__(self, name: str) -> Any:
        if name == "compiled":  # of an object that was made without `__init__`
            raise AttributeError(name)
        return getattr(self.compiled, name)

    def __get__(self, instance: Any, _owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self.compiled)

    def __reduce__(self) -> tuple[Any, ...]:
        return _compiled_again, (self.kind, self.function, self.options)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace and lower the function, as JAX does."""
        return self._stage(self.compiled.lower, args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function, as JAX does."""
        return self._stage(self.compiled.trace, args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the shapes of the function's results, as JAX does."""
        return self._traced(self.compiled.eval_shape, args, kwargs)

    def _traced(self, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with calling(self):
            return method(*args, **kwargs)

    def _stage(self, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        found = self._traced(method, args, kwargs)
        found.detrain_function = self
        return found


_marks: Final[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()
"""The marks of functions: JAX traces each function once, however often `jax.jit(function)` is called."""


def _mark_of(function: Any) -> int:
    try:
        return _marks.get(function, NOTHING)
    except TypeError:  # it cannot be held weakly
        return NOTHING


def _keep(function: Any, mark: int) -> None:
    with contextlib.suppress(TypeError):
        _marks[function] = mark


def _compiled_again(kind: str, function: Any, options: dict[str, Any], key: str = "") -> Jitted:
    return Jitted(kind, _COMPILERS[kind](function, **options), options, key)


@functools.wraps(jax.jit)
def jit(*args: Any, **options: Any) -> Any:
    """Stand in for `jax.jit`, which returns a decorator if it is called without a function."""
    made = _COMPILERS["jax.jit"](*args, **options)
    if not hasattr(made, "_jit_info"):
        return lambda function: jit(function, **options)
    return Jitted("jax.jit", made, options)


@functools.wraps(jax.pmap)
def pmap(fun: Any, *args: Any, **options: Any) -> Any:
    """Stand in for `jax.pmap`, which takes the name of its axis by position, too."""
    options = ({"axis_name": args[0]} if args else {}) | options
    return Jitted("jax.pmap", _COMPILERS["jax.pmap"](fun, **options), options)


def parts(value: object) -> tuple[str, list[object]] | None:
    """Return the kind and the parts of a compiled function; None for any other object."""
    if type(value) is not Jitted or "function" not in vars(value):
        return None
    return value.kind, [value.function, value.options, value.key]


def remake(kind: str, inside: list[Any], current: object) -> object | None:
    """Return the compiled function that such parts make: `current` if it has these parts; None for other kinds."""
    if kind not in _COMPILERS or inside[0] is None:
        return None
    function, options, _key = inside
    if type(current) is Jitted and current.kind == kind and current.function is function and current.options == options:
        return current
    return _compiled_again(kind, *inside)


def install(told: Callable[[Jitted, tuple[Any, ...]], None]) -> None:
    """Have `jax.jit` and `jax.pmap` return objects that report to `told` the calls that may update weights."""
    Jitted.told = staticmethod(told)
    jax.jit, jax.pmap = jit, pmap
    if not hasattr(Compiled.__call__, "__wrapped__"):
        _follow_stages()


def _follow_stages() -> None:
    """Have calls of what `lower().compile()` returns count as calls of the function."""
    for stage, step in ((Traced, "lower"), (Lowered, "compile")):
        setattr(stage, step, _handing_on(getattr(stage, step)))
    call: Any = Compiled.__call__

    @in_place_of(Compiled, "__call__")
    def called(this: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(this, *args, **kwargs)
        function = getattr(this, "detrain_function", None)
        if function is not None:
            function._has_ended(args)
        return result


def _handing_on(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def made(this: Any, *args: Any, **kwargs: Any) -> Any:
        found = step(this, *args, **kwargs)
        found.detrain_function = getattr(this, "detrain_function", None)
        return found

    return made
