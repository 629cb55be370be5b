"""A compiled function with equations put in. The values that these keep, the cells, are handed through the calls and
loops around them: a loop carries the cells with its own values, and gives them back. All other equations stay as they
are.

So the plan of a fault is an argument of the function, and another plan needs no compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.extend.core.primitives import closed_call_p

from detrain.adapters.jax.faults.equations import OF_WHILE, SHARDED, WHILE, Path, devices_of, paths_inside, widened, without_names
from detrain.adapters.jax.jitted import plain_jit
from detrain.adapters.jax.marks import Own, calling
from detrain.adapters.jax.private_names import Var

Edit = Callable[[JaxprEqn, list[Any]], tuple[list[JaxprEqn], list[Any]]]
"""Takes an equation and the variables that hold the cells before it; returns the equations that replace it, and the
variables that hold the cells behind them."""
Entry = Callable[[list[Any]], tuple[list[JaxprEqn], list[Any]]]
"""Takes the cells' variables; returns equations that run when a jaxpr is entered, and the cells' new variables."""


class Rewriting:
    """Changes to a function, by paths. `cells` are the types of the cells, `edits` change equations, `entries` add
    equations that run when a jaxpr is entered.
    """

    def __init__(self, cells: Sequence[Any], edits: Mapping[Path, Edit], entries: Mapping[Path, Entry] | None = None) -> None:
        self.cells, self.edits, self.entries = cells, edits, entries or {}

    def are_in(self, path: Path) -> bool:
        """Return whether any change is inside of the equation at a path."""
        return any(each[: len(path)] == path for each in (*self.edits, *self.entries))

    def spread(self, cells: list[Any], devices: int) -> list[Any]:
        """Return the cells of each of several devices, along a new first axis."""
        return [jnp.broadcast_to(each, (devices, *each.shape)) for each in cells]

    def joined(self, cells: list[Any], before: list[Any]) -> list[Any]:
        """Return the cells behind an equation that ran on several devices, from those of each device, and from those
        before it.
        """
        return [each[0] for each in cells]


def rewritten(function: ClosedJaxpr, changes: Rewriting) -> ClosedJaxpr:
    """Return a function with its equations at some paths edited. The cells are its last inputs and its last outputs."""
    return ClosedJaxpr(_edited(function.jaxpr, (), changes), function.consts)


def _edited(jaxpr: Jaxpr, path: Path, changes: Rewriting) -> Jaxpr:
    given = _variables(changes.cells)
    put, now = changes.entries[path](given) if path in changes.entries else ([], given)
    found = [*put]
    for number, equation in enumerate(jaxpr.eqns):
        here = (*path, number)
        if here in changes.edits:
            put, now = changes.edits[here](equation, now)
            found += put
        elif changes.are_in(here):
            inner = [_edited(each, inside, changes) for inside, each in paths_inside(equation, here)]
            made = _variables(changes.cells)
            if equation.primitive.name == SHARDED:
                found += _on_devices(equation, inner[0], changes, now, made)
            elif equation.primitive.name == WHILE:
                found += _decided_ahead(equation, inner, now, made)
            else:
                found.append(widened(equation, inner, now, made))
            now = made
        else:
            found.append(equation)
    return without_names(jaxpr.replace(invars=[*jaxpr.invars, *given], outvars=[*jaxpr.outvars, *now], eqns=found))


def _on_devices(equation: JaxprEqn, inner: Jaxpr, changes: Rewriting, now: list[Any], made: list[Any]) -> list[JaxprEqn]:
    """Return the equations that run a jaxpr on several devices, each with cells of its own."""
    devices, count = devices_of(equation), len(now)
    types = [[jax.core.ShapedArray((size, *each.shape), each.dtype) for each in changes.cells] for size in (devices, 1)]
    rows, rows_behind = _variables(types[0]), _variables(types[0])
    own, own_behind = _variables(types[1]), _variables(types[1])
    opened = call_of(lambda *cells: [each[0] for each in cells], own, inner.invars[-count:], like=equation)
    closed = call_of(lambda *cells: [each[None] for each in cells], inner.outvars[-count:], own_behind, like=equation)
    inner = inner.replace(
        invars=[*inner.invars[:-count], *own],
        outvars=[*inner.outvars[:-count], *own_behind],
        eqns=[opened, *inner.eqns, closed],
    )
    return [
        call_of(lambda *cells: changes.spread(list(cells), devices), now, rows),
        widened(equation, [inner], rows, rows_behind),
        call_of(changes.joined, [rows_behind, now], made),
    ]


def _decided_ahead(equation: JaxprEqn, inner: Sequence[Jaxpr], now: list[Any], made: list[Any]) -> list[JaxprEqn]:
    """Return the equations of a `while` with cells. A loop takes no cells from its condition: so this is run before the
    loop and at the end of each turn, and the loop carries what it has said.
    """
    params, count = equation.params, len(now)
    first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    condition, body = (ClosedJaxpr(each, params[name].consts) for name, each in zip(OF_WHILE, inner, strict=True))
    ahead = _run(equation, condition, [*equation.invars[:first], *equation.invars[last:], *now])
    given = _alike([*inner[0].invars[:first], *inner[1].invars[:-count], *ahead.outvars])
    values, goes_on, cells = given[last : -count - 1], given[-count - 1], given[-count:]
    turn = _run(equation, body, [*given[first:last], *values, *cells])
    after, cells, kept = turn.outvars[:-count], turn.outvars[-count:], []
    if goes_on.aval.shape:  # loops that `vmap` has made one of: each has its own end
        after, new = _alike(values), after
        kept = [call_of(_ended, [goes_on, new, values], after, like=equation)]
    again = _run(equation, condition, [*given[:first], *after, *cells])
    turns = inner[1].replace(
        constvars=[],
        invars=given,
        outvars=[*after, *again.outvars],
        eqns=[turn, *kept, again],
        effects=body.effects | condition.effects,
    )
    state, is_any = _alike(given[last:]), Var(jax.core.ShapedArray((), np.dtype(bool)))
    wanted = call_of(jnp.any, [state[-count - 1]], [is_any], like=equation)
    decides = inner[0].replace(constvars=[], invars=state, outvars=[is_any], eqns=[wanted])
    loops = {"cond_jaxpr": ClosedJaxpr(decides, ()), "body_jaxpr": ClosedJaxpr(turns, ())}
    return [
        ahead,
        equation.replace(
            invars=[*equation.invars, *ahead.outvars],
            outvars=[*equation.outvars, Var(goes_on.aval), *made],
            params={**loops, "cond_nconsts": 0, "body_nconsts": last},
        ),
    ]


def _run(around: JaxprEqn, function: ClosedJaxpr, invars: list[Any]) -> JaxprEqn:
    """Return an equation that runs a jaxpr, in the place of another equation."""
    params, outvars = {"call_jaxpr": function}, _alike(function.jaxpr.outvars)
    return around.replace(invars, outvars, closed_call_p, params, effects=function.effects)


def _ended(goes_on: Any, after: list[Any], before: list[Any]) -> list[Any]:
    """Return the values behind a turn of several loops: those of a loop that has ended stay as they were."""
    wanted = [jnp.expand_dims(goes_on, range(goes_on.ndim, each.ndim)) for each in after]
    return list(map(jnp.where, wanted, after, before))


def _alike(variables: Sequence[Any]) -> list[Any]:
    """Return new variables of the types of others."""
    return _variables([each.aval for each in variables])


def _variables(types: Sequence[Any]) -> list[Any]:
    return [Var(each) for each in types]


def call_of(
    function: Callable[..., Any], inputs: Sequence[Any], outvars: Sequence[Any], *, like: JaxprEqn | None = None
) -> JaxprEqn:
    """Return an equation that runs one of detrain's functions on variables; `like`: an equation on the same devices."""
    leaves, tree = jax.tree.flatten(list(inputs))

    def flat(*values: Any) -> Any:
        return jax.tree.leaves(function(*jax.tree.unflatten(tree, values)))

    types = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype, weak_type=each.aval.weak_type) for each in leaves]
    with calling(Own()):
        (equation,) = jax.make_jaxpr(plain_jit(flat))(*types).eqns
    return equation.replace(invars=leaves, outvars=list(outvars), ctx=equation.ctx if like is None else like.ctx)
