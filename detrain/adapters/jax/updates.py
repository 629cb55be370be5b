"""The places where weights change: calls that add an optimizer's updates to them (`optax.apply_updates`); in a program
without such calls, the places where a gradient is taken of other weights than the last one.

JAX runs the Python code of a compiled function once, when it traces it. The mark of that trace belongs to the function
(`marks.Marked`), and holds for each of its calls.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import jax
from jax._src.interpreters.partial_eval import DynamicJaxprTracer
from jax.core import Tracer

from detrain.adapters.jax import jitted
from detrain.adapters.jax.marks import APPLIED, GRADIENT, Marked, calls, hand_on, mark
from detrain.adapters.jax.trees import leaves_of

_EAGER: Final = 1
"""The number that stands for all updates outside of compiled functions."""
_GRADIENTS: Final = ("grad", "value_and_grad")
_AT_ONCE: Final = ("vjp", "linearize")
_LOOPS: Final = {"scan": 0, "fori_loop": 2, "while_loop": 1, "map": 0}
"""JAX's own loops, with the place of the argument that is the body. A loop outside of compiled functions traces its
body once and keeps the trace."""
GRADIENT_KIND: Final = "jax.gradient"


class JaxUpdates:
    """Reports each update, with the number of the function that makes it."""

    on_gradient: Callable[[Any, Any], None] = staticmethod(lambda _arguments, _value: None)
    """Called for each gradient that is taken, outside of compiled functions and in their traces, with the arguments by
    which it is taken and the value of which it is taken (None: not known)."""

    def __init__(self, on_update: Callable[[int], None]) -> None:
        self._on_update = on_update
        self._has_optimizer = False
        self._before: dict[int, list[Callable[[], object]]] = {}
        self._functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._bodies: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        jitted.install(self._called)
        for name in _GRADIENTS:
            setattr(jax, name, self._watching_function(name, getattr(jax, name)))
        for name in _AT_ONCE:
            setattr(jax, name, self._watching_call(getattr(jax, name)))
        for name, place in _LOOPS.items():
            setattr(jax.lax, name, self._watching_loop(getattr(jax.lax, name), place))

    def watch_optimizers(self, module: Any, *owners: str) -> None:
        """Watch the `apply_updates` of an imported library, under all names that lead to it."""
        original: Any = module.apply_updates

        @functools.wraps(original)
        def apply_updates(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._applied(result)
            return result

        for owner in (module, *(functools.reduce(getattr, name.split("."), module) for name in owners)):
            owner.apply_updates = apply_updates

    def _applied(self, weights: object) -> None:
        """Mark or report an update. `vmap` and `shard_map` outside of compiled functions update as Python runs them."""
        if not mark(APPLIED) and not any(isinstance(leaf, DynamicJaxprTracer) for leaf in leaves_of(weights)):
            self._tell(_EAGER)

    def _called(self, function: Marked, arguments: tuple[Any, ...]) -> None:
        if function.mark == APPLIED:
            self._tell(function.number)
        else:
            self._look(function.number, arguments)

    def _tell(self, what: int) -> None:
        self._has_optimizer = True
        self._before.clear()
        self._on_update(what)

    def _look(self, what: int, arguments: tuple[Any, ...]) -> None:
        """Report an update if the gradients just taken are of other arrays than the last time."""
        if self._has_optimizer:
            return
        leaves = next((found for argument in arguments if (found := _arrays(argument))), [])
        before = self._before.get(what)
        self._before[what] = [weakref.ref(leaf) for leaf in leaves]
        if before is None:
            return
        was = [reference() for reference in before]
        if len(was) != len(leaves) or any(one is not other for one, other in zip(was, leaves, strict=True)):
            self._on_update(what)

    def _watching_function(self, name: str, original: Any) -> Any:
        """Wrap `jax.grad` or its like: the gradient functions that it makes report their calls."""

        @functools.wraps(original)
        def taken(fun: Any, *args: Any, **options: Any) -> Any:
            made = original(fun, *args, **options)

            @functools.wraps(made)
            def gradient(*arguments: Any, **named: Any) -> Any:
                result = made(*arguments, **named)
                chosen = args[0] if args else options.get("argnums", 0)
                by = [
                    arguments[each] for each in (chosen if isinstance(chosen, tuple | list) else [chosen]) if each < len(arguments)
                ]
                self.on_gradient(by, _first(result[0]) if name == "value_and_grad" else None)
                self._gradient(_source(fun), arguments)
                return result

            self._functions.add(gradient)
            return gradient

        return taken

    def _watching_call(self, original: Any) -> Any:
        """Wrap `jax.vjp`, or another function that takes a gradient itself: it reports its calls."""

        @functools.wraps(original)
        def taken(fun: Any, *arguments: Any, **options: Any) -> Any:
            result = original(fun, *arguments, **options)
            self.on_gradient(arguments, _first(result[0]))
            self._gradient(_EAGER, arguments)
            return result

        return taken

    def _gradient(self, what: int, arguments: tuple[Any, ...]) -> None:
        if not mark(GRADIENT) and not any(isinstance(leaf, Tracer) for leaf in leaves_of(arguments)):
            self._look(what, arguments)

    def _watching_loop(self, original: Any, place: int) -> Any:
        """Wrap one of JAX's loops: it hands on the mark of its body."""

        @functools.wraps(original)
        def loop(*args: Any, **kwargs: Any) -> Any:
            body: Any = args[place] if len(args) > place else kwargs.get("f", kwargs.get("body_fun"))
            call = _JaxLoop(body)
            going_on = calls()
            going_on.append(call)
            try:
                result = original(*args, **kwargs)
            finally:
                going_on.pop()
            with contextlib.suppress(TypeError):  # a body that cannot be held weakly is traced each time
                call.mark = self._bodies[body] = max(call.mark, self._bodies.get(body, 0))
            if call.mark and not hand_on(call):
                self._called(call, args[place + 1 :])
            return result

        return loop

    # Gradient functions that a program holds.

    def parts(self, value: Any) -> tuple[str, list[object]] | None:
        """Return the kind and the parts of a gradient function; None for any other function.

        They are read from its variables: a table of them would keep alive the object whose method it is of.
        """
        if value not in self._functions:
            return None
        inside = {name: cell.cell_contents for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True)}
        return GRADIENT_KIND, [inside["name"], inside["fun"], list(inside["args"]), dict(inside["options"])]

    def remake(self, inside: list[Any], current: Any) -> object | None:
        """Return the gradient function that such parts make: `current` if it has the same parts."""
        name, fun, args, options = inside
        if fun is None or name not in _GRADIENTS:
            return None
        now = self.parts(current) if isinstance(current, FunctionType) else None
        if now is not None and now[1][0] == name and now[1][1] is fun and now[1][2:] == [args, options]:
            return current  # type: ignore[no-any-return]
        return getattr(jax, name)(fun, *args, **options)  # type: ignore[no-any-return]


class _JaxLoop(Marked):
    """A loop of JAX's own that is in progress."""

    def __init__(self, body: object) -> None:
        self._body = body

    @property
    def number(self) -> int:
        """The number of the loop's body: the same loop is entered again and again."""
        return id(self._body)


def _source(function: Any) -> int:
    """Return the number of a function's source: a program may make the function anew for each call."""
    while isinstance(function, functools.partial):
        function = function.func
    return id(getattr(inspect.unwrap(function), "__code__", type(function)))


def _first(value: Any) -> Any:
    """Return a value without the auxiliary output beside it (`has_aux`)."""
    return value[0] if isinstance(value, tuple) and value else value


def _arrays(value: object) -> list[Any]:
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, jax.Array)]
