"""The program's compiled functions as they are called: which run in a step, and those with a fault in them.

A call is seen where JAX runs what it has compiled. So what is differentiated outside of `jax.jit` is seen too: its
forward and its backward pass are functions of their own. Functions of JAX's own (`jnp.mean`, called op by op) are not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, Final

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.extend.core.primitives import jit_p

from detrain.adapters.jax import private_names
from detrain.adapters.jax.faults.equations import Equation, Path, equations, is_branching
from detrain.adapters.jax.faults.inner_jaxprs import wider_call
from detrain.adapters.jax.faults.injector import CELLS, InjectionPoint
from detrain.adapters.jax.faults.rewriting import Edit, rewritten
from detrain.adapters.jax.jitted import plain_jit

_OWN_CODE: Final = str(File(jax.__file__).parent)
Heard = Callable[["Function", Sequence[Any], Sequence[Any]], None]
"""Told of each call of one of the program's functions: it, its inputs, its outputs."""


@dataclass(eq=False)
class _Put:
    """A function with equations put in."""

    closed: ClosedJaxpr
    points: list[InjectionPoint]
    misfits: list[InjectionPoint]
    """Points whose site it has, in another shape."""
    entries: list[Path] = field(default_factory=list)
    """What its only cell counts the runs of."""


@dataclass(eq=False)
class Function:
    """A compiled function for inputs of some types."""

    closed: ClosedJaxpr
    name: str
    equations: list[Equation]
    calls: int = 0
    """How often it was called in the step that is watched."""
    entries: dict[Path, int] = field(default_factory=dict)
    """In these calls: how often each branch, and each body of a `while`, was run."""
    put: _Put | None = None

    def name_of(self, equation: Equation) -> str:
        """Return the name of an equation, which is that of the site of its first output."""
        parts = (self.name, equation.stage, equation.layer, f"{equation.value.primitive.name}@{equation.address}")
        return "/".join(part for part in parts if part)

    def runs(self, equation: Equation) -> int:
        """Return how often an equation has run in the step that is watched."""
        return equation.runs * (self.calls if equation.entry is None else self.entries.get(equation.entry, 0))


class Functions:
    """Follows the calls of the program's functions."""

    def __init__(self, points: Sequence[InjectionPoint], heard: Heard, *, counts: bool) -> None:
        self._points, self._heard, self._counts = points, heard, counts
        self._known: dict[int, Function] = {}
        """By the identity of the jaxprs."""
        self._own: weakref.WeakSet[ClosedJaxpr] = weakref.WeakSet()
        self._called: dict[int, Function] = {}
        self.others: dict[str, JaxprEqn] = {}
        """Equations that are called as a site is, and are others than its."""
        self._original = private_names.call_of_jit()
        private_names.replace_call_of_jit(self._call)

    def begin(self) -> None:
        """A step begins: note what is called from here on."""
        self._called = {}
        for each in self._known.values():
            each.calls, each.entries = 0, {}

    def called(self) -> list[Function]:
        """Return what has been called since, in that order."""
        return list(self._called.values())

    def _call(self, *args: Any, jaxpr: ClosedJaxpr, **params: Any) -> Any:
        function = None if jaxpr in self._own else self._function(jaxpr, params["name"])
        if function is None:
            return self._original(*args, jaxpr=jaxpr, **params)
        function.calls += 1
        self._called[id(function)] = function
        put = function.put
        if put is None:
            outputs = self._original(*args, jaxpr=jaxpr, **params)[0]
        else:
            outputs = self._call_put(function, put, args, params)
        self._heard(function, args, outputs)
        return outputs, None, None, []  # C is given nothing to call: the next call comes here, too

    def _call_put(self, function: Function, put: _Put, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        for misfit in put.misfits:
            misfit.note_misfit()
        if put.entries:
            cells: list[Any] = [np.zeros(len(put.entries), np.int32)]
        else:
            cells = [cell for point in put.points for cell in point.cells()]
        if not cells:
            return self._original(*args, jaxpr=function.closed, **params)[0]  # type: ignore[no-any-return]
        more = params | wider_call(params, len(cells))
        outputs = jit_p.bind(*args, *cells, jaxpr=put.closed, **more)
        count = len(outputs) - len(cells)
        if put.entries:
            for path, runs in zip(put.entries, np.asarray(outputs[count]), strict=True):
                function.entries[path] = function.entries.get(path, 0) + int(runs)
        for number, point in enumerate(put.points):
            first = count + number * len(CELLS)
            point.take(outputs[first : first + len(CELLS)])
        return outputs[:count]  # type: ignore[no-any-return]

    def _function(self, closed: ClosedJaxpr, name: str) -> Function | None:
        known = self._known.get(id(closed))
        if known is None:
            source = str(closed.jaxpr.debug_info.func_src_info).rpartition(" at ")[2]
            if source.startswith(_OWN_CODE):
                return None
            around = str(private_names.current_source().name_stack)
            known = self._known[id(closed)] = Function(closed, name, equations(closed.jaxpr, around))
            known.put = self._counting(known) if self._counts else self._with_points(known)
            if known.put is not None and known.put.closed is not closed:
                self._own.add(known.put.closed)
        return known

    def _with_points(self, function: Function) -> _Put | None:
        """Return a function with the points put in that are for it; None if there are none."""
        chosen: list[tuple[InjectionPoint, Equation]] = []
        misfits: list[InjectionPoint] = []
        for point in self._points:
            for equation in function.equations:
                if not point.is_of(function.name_of(equation)):
                    continue
                if not point.is_for(equation.signature):
                    self.others[point.op] = equation.value
                elif point.fits(equation.value):
                    chosen.append((point, equation))
                    point.is_placed = True
                else:
                    misfits.append(point)
                    point.is_placed = True
        if not chosen:
            return _Put(function.closed, [], misfits) if misfits else None
        edits: dict[Path, Edit] = {}
        for number, (point, equation) in enumerate(chosen):
            edit = point.edit(number * len(CELLS))
            known = edits.get(equation.path)
            edits[equation.path] = edit if known is None else _both(known, edit)
        cells = [each for point, _equation in chosen for each in point.types]
        return _Put(rewritten(function.closed, cells, edits), [point for point, _equation in chosen], misfits)

    def _counting(self, function: Function) -> _Put | None:
        """Return a function that counts the runs of its branches and bodies; None if it has none."""
        paths = is_branching(function.closed.jaxpr)
        if not paths:
            return None

        def counting(number: int) -> Callable[[list[Any]], tuple[list[JaxprEqn], list[Any]]]:
            def enter(cells: list[Any]) -> tuple[list[JaxprEqn], list[Any]]:
                (counted,) = jax.make_jaxpr(plain_jit(lambda counts: counts.at[number].add(1)))(_type_of(cells[0])).eqns
                made = [private_names.Var(cells[0].aval)]
                return [counted.replace(invars=list(cells), outvars=list(made))], made

            return enter

        cells = [jax.core.ShapedArray((len(paths),), np.dtype(np.int32))]
        entries = {path: counting(number) for number, path in enumerate(paths)}
        return _Put(rewritten(function.closed, cells, {}, entries), [], [], paths)


def _type_of(variable: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)


def _both(first: Edit, other: Edit) -> Edit:
    """Return what puts two points into one equation: the other one at the equation that the first has left."""

    def put(equation: JaxprEqn, cells: list[Any]) -> tuple[list[JaxprEqn], list[Any]]:
        found, cells = first(equation, cells)
        place = next(number for number, each in enumerate(found) if each.primitive is equation.primitive)
        put, cells = other(found[place], cells)
        return [*found[:place], *put, *found[place + 1 :]], cells

    return put
