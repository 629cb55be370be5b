"""The calls of the program's compiled functions: which functions run in a step, and their copies with a fault in them.

A call is seen where JAX runs a function that it has compiled. So a function that is differentiated outside of `jax.jit`
is seen too: its forward and its backward pass are compiled functions of their own. JAX's own functions (`jnp.mean`,
called op by op) are not.

Digests of an equation's outputs are taken where these are computed: sums of bit patterns, each with a weight of its
own. All turns of a loop give one digest.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path as File
from typing import Any, Final

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import xxhash
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.extend.core.primitives import jit_p

from detrain.adapters.jax import private_names
from detrain.adapters.jax.faults.equations import Equation, Path, branches_of, dtype_named, equations, wider_call
from detrain.adapters.jax.faults.forward_passes import JaxPasses, place_of_scores, with_scores
from detrain.adapters.jax.faults.injector import InjectionPoint, Spot, Spots
from detrain.adapters.jax.faults.rewriting import Edit, Rewriting, call_of, rewritten
from detrain.adapters.jax.faults.sites_together import spots_together
from detrain.adapters.jax.named_arrays import value_of
from detrain.adapters.jax.private_names import Var
from detrain.adapters.shared_copies import copies
from detrain.base import PACKAGE
from detrain.faults.sites import output_name

_NOT_OF_PROGRAMS: Final = tuple(f"{folder}{os.sep}" for folder in (File(jax.__file__).parent, PACKAGE))
"""The folders of JAX and of detrain: functions written there have no sites, though programs call them."""
Heard = Callable[["Function", Sequence[Any], list[Any]], None]
"""Called with each of the program's functions that ran, its inputs, and its outputs, which may be exchanged."""

_TURN: Final = np.uint32(31)
_WEIGHT: Final = np.uint32(2654435761)


def digest_of_input(value: Any) -> int:
    """Return the digest of an input of a function."""
    parts = [value_of(each.data) for each in value.addressable_shards] if isinstance(value, jax.Array) else [np.asarray(value)]
    state = xxhash.xxh3_64()
    for each in parts:
        state.update(np.ascontiguousarray(each).tobytes())
    return state.intdigest() >> 1


def with_digests(function: ClosedJaxpr, named: Sequence[tuple[str, Equation]]) -> tuple[list[str], ClosedJaxpr]:
    """Return the names of the digests, in their order, and a function with a cell that takes the digests."""
    names: list[str] = []
    edits: dict[Path, Edit] = {}
    for name, equation in named:
        numbers = [number for number in sorted(equation.live) if _has_bits(equation.value.outvars[number])]
        edits[equation.path] = _edit(len(names), numbers)
        names += [output_name(name, number) for number in numbers]
    return names, rewritten(function, _Digests([jax.core.ShapedArray((len(names),), np.dtype(np.uint32))], edits))


class _Digests(Rewriting):
    def joined(self, cells: list[Any], before: list[Any]) -> list[Any]:
        """Return sums over the devices, each device with a weight of its own."""
        return [jnp.sum(each * _weights(len(each))[:, None], 0, dtype=np.uint32) for each in cells]


def _has_bits(variable: Any) -> bool:
    name = dtype_named(variable)
    return name not in ("", "float0") and not name.startswith("complex")


def _edit(first: int, numbers: Sequence[int]) -> Edit:
    def put(equation: JaxprEqn, cells: list[Any]) -> tuple[list[JaxprEqn], list[Any]]:
        if not numbers:
            return [equation], cells

        def taken(values: list[Any], cell: Any) -> Any:
            for place, value in enumerate(values, first):
                cell = cell.at[place].set(cell[place] * _TURN + _digest(value))
            return cell

        made = [Var(cells[0].aval)]
        outputs = [equation.outvars[number] for number in numbers]
        return [equation, call_of(taken, [outputs, cells[0]], made)], list(made)

    return put


def _digest(value: Any) -> Any:
    """Return the sum of the bit patterns of a value's elements, each times an odd number of its own."""
    size = value.dtype.itemsize
    is_float = jnp.issubdtype(value.dtype, np.floating)
    bits = lax.bitcast_convert_type(value, np.dtype(f"u{min(size, 4)}")) if is_float or size == 8 else value
    bits = bits.astype(np.uint32)
    bits = bits.reshape(-1)
    return jnp.sum(bits * _weights(bits.size), dtype=np.uint32)


def _weights(count: int) -> Any:
    return (lax.iota(np.uint32, count) * _WEIGHT) | np.uint32(1)


class Function(msgspec.Struct, eq=False):
    """A compiled function for inputs of some types."""

    closed: ClosedJaxpr
    name: str
    equations: list[Equation]
    plain: ClosedJaxpr
    """The same function, for calls from here: C runs it from the second time on, and does not come here again."""
    scores: int | None = None
    """In an experiment on inference: the number of the output that is the scores; None: it is no forward pass."""
    adds_scores: bool = False
    """Whether this output is one more than the program's function has; it takes one more input, too."""
    calls: int = 0
    """How often it was called in the step that is watched."""
    entries: dict[Path, int] = {}
    """In these calls: how often each branch, and each body of a `while`, was run."""
    named: dict[str, Equation] = {}
    """Its equations by their names; empty until they are asked for."""
    together: dict[Any, list[Spot]] = {}
    """The spots that can share a copy, by the width of their elements."""
    copies: dict[tuple[InjectionPoint, tuple[Spot, ...]], ClosedJaxpr] = {}
    """Copies with spots put in: their last inputs and outputs are the cells of the point."""
    counting: tuple[list[Path], ClosedJaxpr] | None = None
    """The paths of its branches and bodies, and a copy with one more cell, which counts their runs."""

    def name_of(self, equation: Equation) -> str:
        """Return the name of an equation, which is that of the site of its first output."""
        parts = (self.name, equation.stage, equation.layer, f"{equation.value.primitive.name}@{equation.address}")
        return "/".join(part for part in parts if part)

    def runs(self, equation: Equation) -> int:
        """Return how often an equation has run in the step that is watched."""
        return equation.runs * (self.calls if equation.entry is None else self.entries.get(equation.entry, 0))


class Functions:
    """Follows the calls of the program's functions, and puts points of faults into them."""

    def __init__(self, heard: Heard, passes: JaxPasses | None = None) -> None:
        """`passes`: told of each forward pass, in an experiment on inference."""
        self._heard, self._passes, self._counts = heard, passes, False
        self._known: dict[int, Function] = {}
        """The functions by the identity of their jaxprs."""
        self._own: weakref.WeakSet[ClosedJaxpr] = weakref.WeakSet()
        self._called: dict[int, Function] = {}
        self.point: InjectionPoint | None = None
        """The point whose site is put into the functions that are called; None: the program's own functions run."""
        self.is_unarmed_equal = True
        """Whether the calls with the site put in, but not armed, gave the same bits as those without it."""
        self.digests: list[tuple[str, int, int]] | None = None
        """Digests of each function's inputs and each equation's outputs, in their order; None: they are not wanted."""
        self._original = private_names.call_of_jit()
        private_names.replace_call_of_jit(self._call)

    def begin(self, *, counts: bool) -> None:
        """Begin a step: note the functions called from here on; with `counts`, also the runs of branches and bodies."""
        self._called, self._counts = {}, counts
        for each in self._known.values():
            each.calls, each.entries = 0, {}

    def called(self) -> list[Function]:
        """Return the functions called since `begin`, in the order of their first calls; stop counting runs."""
        self._counts = False
        return list(self._called.values())

    def _call(self, *args: Any, jaxpr: ClosedJaxpr, **params: Any) -> Any:
        function = None if jaxpr in self._own else self._function(jaxpr, args, params)
        if function is None:
            return self._original(*args, jaxpr=jaxpr, **params)
        if function.adds_scores:
            args, params = self._wider(function.closed, args, params)
        function.calls += 1
        self._called[id(function)] = function
        found = [] if self.digests is None else self._digests_of(function, args, params)  # before its inputs are gone
        spot = self._spot(function)
        if self.point is not None and spot is not None:
            outputs = self._call_with_spot(self.point, spot, function, args, params)
        elif self._counts and (counting := self._counting(function))[0]:
            (counts,), outputs = _bind(counting[1], args, [np.zeros(len(counting[0]), np.int32)], params)
            for path, runs in zip(counting[0], np.asarray(counts), strict=True):
                function.entries[path] = function.entries.get(path, 0) + int(runs)
        else:
            outputs = jit_p.bind(*args, jaxpr=function.plain, **params)
        if self.digests is not None:
            self.digests += found
        self._heard(function, args, outputs)
        if function.scores is not None and self._passes is not None:
            self._passes.note(outputs[function.scores], id(function))
        outputs = outputs[: len(outputs) - function.adds_scores]
        return outputs, None, None, []  # C is given nothing to call: the next call comes here, too

    def _spot(self, function: Function) -> Spot | None:
        """Return the spot of the site in a function; None: the site is not in it."""
        if self.point is None:
            return None
        if not function.named:
            function.named = {function.name_of(each): each for each in function.equations}
        equation = function.named.get(self.point.op)
        return None if equation is None else self.point.spot(equation)

    def _call_with_spot(
        self, point: InjectionPoint, spot: Spot, function: Function, args: Sequence[Any], params: dict[str, Any]
    ) -> list[Any]:
        """Call a copy of a function, with the site in it. If the function has no effects, it and unarmed copies are
        called first, to find a copy that changes no bits by itself.
        """
        if point.width not in function.together:
            function.together[point.width] = spots_together(function.equations, point.width)
        spots: tuple[Spot, ...] = (spot,)
        if function.closed.effects:
            self.is_unarmed_equal = False  # nobody can tell
        elif self.is_unarmed_equal:
            plain = jit_p.bind(*_copies(args, params), jaxpr=function.plain, **params)
            for spots in copies(function.together[point.width], (spot,)):
                closed = self._copy(function, point, spots)
                _cells, unarmed = _bind(closed, _copies(args, params), point.cells(spots), params)
                self.is_unarmed_equal = all(map(_is_same, unarmed, plain))
                if self.is_unarmed_equal:
                    break
        closed = self._copy(function, point, spots)
        cells, outputs = _bind(closed, args, point.cells(spots, spot), params)
        point.take(cells, spots, spot)
        return outputs

    def _copy(self, function: Function, point: InjectionPoint, spots: tuple[Spot, ...]) -> ClosedJaxpr:
        """Return a function with spots put in."""
        found = function.copies.get((point, spots))
        if found is None:
            found = rewritten(function.closed, Spots(spots, point.cells(spots)))
            function.copies[point, spots] = found
            self._own.add(found)
        return found

    def _function(self, closed: ClosedJaxpr, args: Sequence[Any], params: dict[str, Any]) -> Function | None:
        known = self._known.get(id(closed))
        if known is None:
            source = str(closed.jaxpr.debug_info.func_src_info).rpartition(" at ")[2]
            if source.startswith(_NOT_OF_PROGRAMS):
                return None
            found, plain = equations(closed.jaxpr, private_names.transformations()), self._plain(closed)
            known = self._known[id(closed)] = Function(closed, params["name"], found, plain)
            if self._passes is not None and not any(each.stage == "backward" for each in found):
                self._show_scores(known, args, params)
        return known

    def _plain(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        plain = ClosedJaxpr(closed.jaxpr, closed.consts)
        self._own.add(plain)
        return plain

    def _show_scores(self, function: Function, args: Sequence[Any], params: dict[str, Any]) -> None:
        """Find the scores of a forward pass: one of its outputs, or what it chooses a class by inside.

        The latter becomes an output, unless that changes other bits.
        """
        function.scores = place_of_scores(function.closed)
        shown = None if function.scores is not None or function.closed.effects else with_scores(function.closed, function.equations)
        if shown is None:
            return
        plain = self._plain(shown)
        golden = jit_p.bind(*_copies(args, params), jaxpr=function.plain, **params)
        wider, more = self._wider(shown, _copies(args, params), params)
        found = jit_p.bind(*wider, jaxpr=plain, **more)
        if all(map(_is_same, found[:-1], golden)):
            function.closed, function.plain = shown, plain
            function.equations = equations(shown.jaxpr, private_names.transformations())
            function.scores, function.adds_scores = len(golden), True

    @staticmethod
    def _wider(closed: ClosedJaxpr, args: Sequence[Any], params: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a function that takes a place for its scores, and the parameters of its call."""
        place = closed.in_avals[-1]
        return (*args, np.zeros(place.shape, place.dtype)), params | wider_call(params, 1)

    def _digests_of(self, function: Function, args: Sequence[Any], params: dict[str, Any]) -> list[tuple[str, int, int]]:
        """Return digests of a call's inputs and of each equation's outputs, which a second call on copies computes."""
        inputs = [(f"{function.name}/input {place}", 0, digest_of_input(each)) for place, each in enumerate(args)]
        names, closed = with_digests(function.closed, [(function.name_of(each), each) for each in function.equations])
        if not names or function.closed.effects:
            return inputs
        self._own.add(closed)
        cells, _outputs = _bind(closed, _copies(args, params), [np.zeros(len(names), np.uint32)], params)
        return [*inputs, *((name, 0, int(digest)) for name, digest in zip(names, np.asarray(cells[0]), strict=True))]

    def _counting(self, function: Function) -> tuple[list[Path], ClosedJaxpr]:
        """Return the paths of a function's branches and bodies, and a copy of the function that counts their runs."""
        if function.counting is None:
            paths = branches_of(function.closed.jaxpr)
            cells = [jax.core.ShapedArray((len(paths),), np.dtype(np.int32))]
            entries = {path: functools.partial(_counted, number) for number, path in enumerate(paths)}
            function.counting = paths, rewritten(function.closed, Rewriting(cells, {}, entries))
            self._own.add(function.counting[1])
        return function.counting


def _counted(number: int, cells: list[Any]) -> tuple[list[JaxprEqn], list[Any]]:
    """Return the equation that counts a run of a branch or body, and the variable of the cell behind it."""
    made = [private_names.Var(cells[0].aval)]
    return [call_of(lambda counts: counts.at[number].add(1), cells, made)], made


def _bind(closed: ClosedJaxpr, args: Sequence[Any], cells: list[Any], params: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Call a function with equations put in; return its cells, and its outputs."""
    found = jit_p.bind(*args, *cells, jaxpr=closed, **(params | wider_call(params, len(cells))))
    return found[len(found) - len(cells) :], found[: len(found) - len(cells)]


def _copies(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Return the arguments of a call, with copies of those whose memory the call would take."""
    return [jnp.copy(each) if is_given else each for each, is_given in zip(args, params["donated_invars"], strict=True)]


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two arrays are the same to the bit, on each device that this process has."""
    parts = zip(one.addressable_shards, other.addressable_shards, strict=True)
    return all(value_of(mine.data).tobytes() == value_of(its.data).tobytes() for mine, its in parts)
