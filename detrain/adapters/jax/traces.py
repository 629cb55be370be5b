"""JAX's traces of the program's functions. A compiled function does as its Python code did when JAX traced it, even if
a value that this code read has changed since.

A resumed run traces later. Its traces are compared with the first run's; where one differs, the run stops before it
computes with that trace. A function is known by its name and its number among the functions of that name, a trace by
the types of the arguments and the static arguments.

Bodies of `lax.scan`, `while_loop`, `cond`, `map` and `jax.checkpoint` outside of `jax.jit` are compared, too: JAX
traces such a function once, and keeps the trace as long as the function lives.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from detrain.adapters.jax import private_names
from detrain.adapters.jax.jitted import Jitted
from detrain.adapters.jax.marks import Own, calls
from detrain.adapters.jax.spread_arrays import content, is_spread
from detrain.base.byte_digests import digest_bytes
from detrain.base.digest import digest_array
from detrain.base.errors import Diverged
from detrain.python.inspect.names import find_static, static_name

_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")
_OF_PMAP: Final = "_cached_shard_map.<locals>."
Found = dict[str, dict[str, list[str]]]
"""By function, by arguments: the digests of the traces."""

_OF_JIT: Final = "jit"
_OWN: Final = ", JAX's "
"""Part of the key of a function that JAX has made around one of the program's."""
_OfBodies = dict[str, dict[str, str]]
"""By function, by the types of its arguments: the digest of the trace."""


class Traces:
    """The traces of compiled functions in this process, and those that the first run had."""

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
        """Return the digests of the traces, and how many functions of each name there were."""
        return {"counts": self._counts, "found": self._found}

    def expect(self, was: Mapping[str, Any]) -> None:
        """Compare all traces from now on with those that `state` returned in the first run."""
        self._counts = dict(was["counts"])
        self._expected = was["found"]
        for key, by_arguments in self._expected.items():
            for arguments, digests in by_arguments.items():
                known = self._found.setdefault(key, {}).setdefault(arguments, [])
                known += [each for each in digests if each not in known]

    def _numbered(self, function: Any, key: str) -> str:
        """Return the key of a function that is compiled: the one it has, else `key`, else a new one."""
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
            self._fail(_other_trace(f"compiled function {function.key.partition(' ')[0]!r}", "pass them as arguments"))
        known = self._found.setdefault(function.key, {}).setdefault(arguments, [])
        if digest not in known:
            known.append(digest)
            known.sort()


def _is_of_pmap(function: Jitted, traced: Any) -> bool:
    """Return whether a traced function is the one that JAX makes around the argument of `jax.pmap`."""
    return function.kind == "jax.pmap" and str(getattr(traced, "__qualname__", "")).startswith(_OF_PMAP)


def _other_trace(what: str, todo: str) -> Diverged:
    return Diverged(
        f"the {what} is not what the first run had traced: Python values that it reads (globals, attributes, variables around "
        "it) have changed since, which JAX does not see",
        f"{todo}, or start anew with --fresh",
    )


def trace_digest(jaxpr: Any) -> str:
    """Return a digest of a trace's text and constants."""
    return digest_bytes("\n".join(_content(jaxpr)).encode())


def _shown(value: object) -> str:
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:  # an edge: code of the program
        return type(value).__qualname__


def _content(closed: Any) -> Iterator[str]:
    """Yield the text of a trace, and the digests of its constants."""
    yield _ADDRESS.sub("", closed.jaxpr.pretty_print(use_color=False, source_info=False))
    yield from _constants(closed)


def _constants(value: Any) -> Iterator[str]:
    if isinstance(value, ClosedJaxpr | Jaxpr):  # one class from JAX 0.11 on
        # A tracer belongs to the transformation around it: no later call can meet it.
        yield from (digest_array(_plain(each)) for each in getattr(value, "consts", ()) if not isinstance(each, jax.core.Tracer))
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


class EagerControl:
    """The traces of bodies that are alive, and those that the first run had."""

    def __init__(self, fail: Callable[[Exception], object]) -> None:
        self._fail = fail
        self._traced: weakref.WeakKeyDictionary[Any, tuple[str, dict[Any, str]]] = weakref.WeakKeyDictionary()
        """By function: its key, and the digests of its traces by their arguments and the mesh that is set."""
        self._made: dict[str, int] = {}
        """How many functions of each key there were: one that is made anew for each call has no trace that lasts."""
        self._expected: _OfBodies = {}
        trace = private_names.trace_of_bodies()

        def traced(fun: Any, in_avals: Any, debug_info: Any, *context: Any, **options: Any) -> Any:
            found = trace(fun, in_avals, debug_info, *context, **options)
            if debug_info.traced_for != _OF_JIT and not any(isinstance(call, Jitted | Own) for call in calls()):
                self._note(fun, in_avals, debug_info, found[0])
            return found

        private_names.replace_trace_of_bodies(traced)

    def state(self) -> _OfBodies:
        """Return the traces that may be used again."""
        found = {key: dict(traces) for key, traces in self._expected.items()}
        for key, traces in list(self._traced.values()):
            found.setdefault(key, {}).update({_shown_place(place): digest for place, digest in traces.items()})
        return {key: traces for key, traces in found.items() if self._made.get(key, 1) == 1}

    def expect(self, was: Mapping[str, Mapping[str, str]]) -> None:
        """Compare all traces from now on with those that `state` returned in the first run."""
        self._expected = {key: dict(traces) for key, traces in was.items()}

    def _note(self, fun: Any, avals: Any, debug_info: Any, jaxpr: Any) -> None:
        known = self._traced.get(fun)
        if known is None:
            key = _key(fun, debug_info)
            known = self._traced[fun] = key, {}
            self._made[key] = self._made.get(key, 0) + 1
        key, traces = known
        place = avals, private_names.mesh_that_is_set()
        if place in traces:
            return
        digest = traces[place] = trace_digest(jaxpr)
        if self._expected.get(key, {}).get(_shown_place(place), digest) != digest:
            self._fail(_other_trace(f"body {key.partition(_OWN)[0]}", "hand them over as arguments (in the carry)"))


def _shown_place(place: tuple[Any, Any]) -> str:
    """Return the types of arguments, and the mesh that is set, in words."""
    avals, mesh = place
    return str(avals) if mesh.empty else f"{avals} {mesh}"


def _key(fun: Any, debug_info: Any) -> str:
    """Return the key of a function; JAX traces functions of its own under the names of the program's, too."""
    name, _, place = str(debug_info.func_src_info).partition(" at ")
    own = str(getattr(fun, "__qualname__", type(fun).__qualname__)).rpartition(".")[2]
    of_jax = "" if own == name else f"{_OWN}{own}"
    return f"{name!r} ({debug_info.traced_for}, {PurePath(place).name}){of_jax}"
