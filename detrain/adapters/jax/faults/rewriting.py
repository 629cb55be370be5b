"""A compiled function with equations put in. Values that these keep, the cells, are handed through all that is around
them: a cell goes into a loop with what that carries, and comes out of it again. All other equations stay as they are.

So a plan of a fault is an argument of the function, and another plan needs no compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from detrain.adapters.jax.faults.equations import Path, paths_inside
from detrain.adapters.jax.faults.inner_jaxprs import widened, without_names
from detrain.adapters.jax.jitted import plain_jit
from detrain.adapters.jax.marks import Own, calling
from detrain.adapters.jax.private_names import Var

Edit = Callable[[JaxprEqn, list[Any]], tuple[list[JaxprEqn], list[Any]]]
"""Returns the equations that stand for one, and the variables that hold the cells behind them; it is given that
equation and the variables that hold them before."""
Entry = Callable[[list[Any]], tuple[list[JaxprEqn], list[Any]]]
"""Returns equations that run when a jaxpr is entered, and the variables of the cells as `Edit` does."""


def rewritten(
    function: ClosedJaxpr, cells: Sequence[Any], edits: Mapping[Path, Edit], entries: Mapping[Path, Entry] | None = None
) -> ClosedJaxpr:
    """Return a function with its equations at some paths edited. `cells` are the types of the cells, which are its last
    inputs and its last outputs.
    """
    return ClosedJaxpr(_edited(function.jaxpr, (), cells, edits, entries or {}), function.consts)


def _edited(jaxpr: Jaxpr, path: Path, cells: Sequence[Any], edits: Mapping[Path, Edit], entries: Mapping[Path, Entry]) -> Jaxpr:
    given = [Var(each) for each in cells]
    put, now = entries[path](given) if path in entries else ([], given)
    found = [*put]
    for number, equation in enumerate(jaxpr.eqns):
        here = (*path, number)
        if here in edits:
            put, now = edits[here](equation, now)
            found += put
        elif any(each[: len(here)] == here for each in (*edits, *entries)):
            inner = [_edited(each, inside, cells, edits, entries) for inside, each in paths_inside(equation, here)]
            made: list[Any] = [Var(each) for each in cells]
            found.append(widened(equation, inner, now, made))
            now = made
        else:
            found.append(equation)
    return without_names(jaxpr.replace(invars=[*jaxpr.invars, *given], outvars=[*jaxpr.outvars, *now], eqns=found))


def call_of(function: Callable[..., Any], inputs: Sequence[Any], outvars: Sequence[Any]) -> JaxprEqn:
    """Return an equation that runs a function of detrain's own on variables."""
    leaves, tree = jax.tree.flatten(list(inputs))

    def flat(*values: Any) -> Any:
        return jax.tree.leaves(function(*jax.tree.unflatten(tree, values)))

    types = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype, weak_type=each.aval.weak_type) for each in leaves]
    with calling(Own()):
        (equation,) = jax.make_jaxpr(plain_jit(flat))(*types).eqns
    return equation.replace(invars=leaves, outvars=list(outvars))
