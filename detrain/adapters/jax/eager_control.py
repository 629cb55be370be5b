"""Bodies of `lax.scan`, `while_loop`, `cond`, `map` and `jax.checkpoint` that are called outside of `jax.jit`.

JAX traces such a function once and keeps the trace as long as the function lives: a Python value that it reads is that
of the trace ever after. A resumed run traces later; so what was traced is compared, as it is of compiled functions.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from detrain.adapters.jax import private_names
from detrain.adapters.jax.jitted import Jitted
from detrain.adapters.jax.marks import Own, calls
from detrain.base.errors import Diverged

_OF_JIT: Final = "jit"
_OWN: Final = ", JAX's "
"""In the key of a function that JAX has made around one of the program's."""
Found = dict[str, dict[str, str]]
"""By function, by the types of its arguments: the digest of what was traced."""


class EagerControl:
    """The traces of bodies that are alive, and what the first run had."""

    def __init__(self, fail: Callable[[Exception], object], digest: Callable[[Any], str]) -> None:
        self._fail, self._digest = fail, digest
        self._traced: weakref.WeakKeyDictionary[Any, tuple[str, dict[Any, str]]] = weakref.WeakKeyDictionary()
        """By function: its key, and the digests of its traces by their arguments and the mesh that is set."""
        self._made: dict[str, int] = {}
        """How many functions there were of each key: one that is made anew for each call has no trace that lasts."""
        self._expected: Found = {}
        trace = private_names.trace_of_bodies()

        def traced(fun: Any, in_avals: Any, debug_info: Any, *context: Any, **options: Any) -> Any:
            found = trace(fun, in_avals, debug_info, *context, **options)
            if debug_info.traced_for != _OF_JIT and not any(isinstance(call, Jitted | Own) for call in calls()):
                self._note(fun, in_avals, debug_info, found[0])
            return found

        private_names.replace_trace_of_bodies(traced)

    def state(self) -> Found:
        """Return the traces that may be used again."""
        found = {key: dict(traces) for key, traces in self._expected.items()}
        for key, traces in list(self._traced.values()):
            found.setdefault(key, {}).update({_shown(place): digest for place, digest in traces.items()})
        return {key: traces for key, traces in found.items() if self._made.get(key, 1) == 1}

    def expect(self, was: Mapping[str, Mapping[str, str]]) -> None:
        """Compare what is traced from now on with what `state` returned in the first run."""
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
        digest = traces[place] = self._digest(jaxpr)
        if self._expected.get(key, {}).get(_shown(place), digest) != digest:
            self._fail(
                Diverged(
                    f"the body {key.partition(_OWN)[0]} is not what the first run had traced: Python values that it reads "
                    "(globals, attributes, variables around it) have changed since, which JAX does not see",
                    "hand them over as arguments (in the carry), or start anew with --fresh",
                )
            )


def _shown(place: tuple[Any, Any]) -> str:
    """Return the types of arguments, and the mesh that is set, in words."""
    avals, mesh = place
    return str(avals) if mesh.empty else f"{avals} {mesh}"


def _key(fun: Any, debug_info: Any) -> str:
    """Return what a function is known by: JAX traces functions of its own in the name of the program's, too."""
    name, _, place = str(debug_info.func_src_info).partition(" at ")
    own = str(getattr(fun, "__qualname__", type(fun).__qualname__)).rpartition(".")[2]
    of_jax = "" if own == name else f"{_OWN}{own}"
    return f"{name!r} ({debug_info.traced_for}, {PurePath(place).name}){of_jax}"
