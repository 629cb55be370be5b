"""What JAX has traced of the program's functions: a compiled function does what its Python did when it was traced, also
when a value that it read from there has changed since.

A resumed run traces later. It is compared with what the first run had traced, and stops where that was something else,
before it computes with it. A function is known by its name, and by its number among those of that name; a trace by the
types of the arguments and the static ones.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from detrain.adapters.jax import private_names
from detrain.adapters.jax.jitted import Jitted
from detrain.adapters.jax.marks import calls
from detrain.adapters.jax.spread_arrays import content, is_spread
from detrain.base.byte_digests import digest_bytes
from detrain.base.digest import digest_array
from detrain.base.errors import Diverged
from detrain.python.inspect.names import find_static, static_name

_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")
_OF_PMAP: Final = "_cached_shard_map.<locals>."
Found = dict[str, dict[str, list[str]]]
"""By function, by arguments: the digests of what was traced."""


class Traces:
    """What was traced in this process, and what the first run had."""

    def __init__(self, fail: Callable[[Exception], object]) -> None:
        self._fail = fail
        self._counts: dict[str, int] = {}
        self._keys: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._found: Found = {}
        self._expected: Found = {}
        trace = private_names.trace_of_jit()

        def traced(fun: Any, ji: Any, ctx_mesh: Any, dbg: Any, avals: Any, args: Any, kwargs: Any) -> Any:
            found = trace(fun, ji, ctx_mesh, dbg, avals, args, kwargs)
            function = calls()[-1] if calls() else None
            if isinstance(function, Jitted) and (function.function is fun or _is_of_pmap(function, fun)):
                statics = [args[number] for number in ji.static_argnums if number < len(args)]
                statics += [(name, kwargs[name]) for name in ji.static_argnames if name in kwargs]
                statics += function.statics
                types = [*map(str, avals), str(found.in_tree), *map(_shown, statics), *([] if ctx_mesh.empty else [str(ctx_mesh)])]
                self._note(function, digest_bytes(" ".join(types).encode()), found.params["jaxpr"])
            return found

        private_names.replace_trace_of_jit(traced)
        Jitted.numbered = staticmethod(self._numbered)

    def state(self) -> dict[str, Any]:
        """Return what was traced, and how many functions of each name there were."""
        return {"counts": self._counts, "found": self._found}

    def expect(self, was: Mapping[str, Any]) -> None:
        """Compare what is traced from now on with what `state` returned in the first run."""
        self._counts = dict(was["counts"])
        self._expected = was["found"]
        for key, by_arguments in self._expected.items():
            for arguments, digests in by_arguments.items():
                known = self._found.setdefault(key, {}).setdefault(arguments, [])
                known += [each for each in digests if each not in known]

    def _numbered(self, function: Any, key: str) -> str:
        """Return the key of a function that is compiled: `key`, if it has one already."""
        try:
            known = self._keys.get(function)
        except TypeError:  # it cannot be held weakly
            return key or self._next(static_name(function))
        if known is None:
            name = static_name(function)
            known = self._keys[function] = key or (name if find_static(name) is function else self._next(name))
        return known

    def _next(self, name: str) -> str:
        self._counts[name] = self._counts.get(name, 0) + 1
        return f"{name} #{self._counts[name]}"

    def _note(self, function: Jitted, arguments: str, jaxpr: Any) -> None:
        digest = trace_digest(jaxpr)
        expected = self._expected.get(function.key, {}).get(arguments)
        if expected is not None and digest not in expected:
            self._fail(
                Diverged(
                    f"the compiled function {function.key.partition(' ')[0]!r} is not what the first run had traced: Python values "
                    "that it reads (globals, attributes, variables around it) have changed since, which JAX does not see",
                    "pass them as arguments, or start anew with --fresh",
                )
            )
        known = self._found.setdefault(function.key, {}).setdefault(arguments, [])
        if digest not in known:
            known.append(digest)
            known.sort()


def _is_of_pmap(function: Jitted, traced: Any) -> bool:
    """Return whether a function that is traced is what JAX makes of one that `jax.pmap` was given."""
    return function.kind == "jax.pmap" and str(getattr(traced, "__qualname__", "")).startswith(_OF_PMAP)


def trace_digest(jaxpr: Any) -> str:
    """Return a digest of what a trace does."""
    return digest_bytes("\n".join(_content(jaxpr)).encode())


def _shown(value: object) -> str:
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:  # an edge: code of the program
        return type(value).__qualname__


def _content(closed: Any) -> Iterator[str]:
    """Yield what a trace says: its text, and the constants in it."""
    yield _ADDRESS.sub("", closed.jaxpr.pretty_print(use_color=False, source_info=False))
    yield from _constants(closed)


def _constants(value: Any) -> Iterator[str]:
    if isinstance(value, ClosedJaxpr):
        # A tracer belongs to what is being transformed around it: no later call can meet it.
        yield from (digest_array(_plain(each)) for each in value.consts if not isinstance(each, jax.core.Tracer))
        yield from _constants(value.jaxpr)
    elif isinstance(value, Jaxpr):
        for equation in value.eqns:
            for each in equation.invars:
                if isinstance(each, Literal) and np.ndim(each.val):
                    yield digest_array(np.asarray(each.val))
            for parameter in equation.params.values():
                yield from _constants(parameter)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _constants(each)
    elif isinstance(value, np.ndarray):
        yield digest_array(value)


def _plain(value: Any) -> Any:
    is_key = isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    value = jax.random.key_data(value) if is_key else value
    return content(value) if is_spread(value) else np.asarray(value)
