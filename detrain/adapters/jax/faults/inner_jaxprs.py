"""Equations that have jaxprs inside: calls, loops, branches. Which these are, and how values are handed through them.

A step is one jaxpr: forward, backward and update are all in it, and what was `vmap` or `grad` is no more there. What
has a jaxpr inside and is not of these (a Pallas kernel, a solver) is an equation like any other, seen from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import PartitionSpec

from detrain.adapters.jax.private_names import UNSPECIFIED

_CALLS: Final = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Equations that run one jaxpr once, with the parameter that it is. Nothing is differentiated any more where it stands,
so that a rule for that may be left behind."""
SHARDED: Final = "shard_map"
"""Runs its jaxpr on each device."""
_WHILE: Final = "body_jaxpr"


def inner_jaxprs(equation: JaxprEqn) -> list[Jaxpr]:
    """Return the jaxprs of an equation that can have sites inside; the condition of a `while` has none."""
    if any(hasattr(effect, "input") for effect in equation.effects):
        return []  # it changes references, which are told by their place among the inputs
    name, params = equation.primitive.name, equation.params
    if name in _CALLS and _CALLS[name] in params:
        return [_opened(params[_CALLS[name]])]
    if name == "scan":
        return [_opened(params["jaxpr"])]
    if name == "while":
        return [_opened(params[_WHILE])]
    if name == SHARDED:
        return [params["jaxpr"]]
    return [_opened(each) for each in params["branches"]] if name == "cond" else []


def is_call(equation: JaxprEqn) -> bool:
    """Return whether an equation runs one jaxpr once, with its own inputs and outputs."""
    return equation.primitive.name in _CALLS or equation.primitive.name == SHARDED


def devices_of(equation: JaxprEqn) -> int:
    """Return on how many devices an equation runs its jaxpr, on parts of its inputs."""
    if equation.primitive.name != SHARDED:
        return 1
    return prod(equation.params["mesh"].shape[axis] for axis in equation.params["newly_manual_axes"])


def runs_of_scan(equation: JaxprEqn) -> int | None:
    """Return how often an equation runs its jaxpr; None where that is not known before it runs."""
    if equation.primitive.name == "scan":
        return int(equation.params["length"])
    return 1 if is_call(equation) else None


def carried(equation: JaxprEqn) -> tuple[int, int]:
    """Return which inputs of an equation's jaxpr it carries from turn to turn, from the first to behind the last.

    So many of its outputs, from the first on, are what it has carried.
    """
    params = equation.params
    if equation.primitive.name == "scan":
        return params["num_consts"], params["num_consts"] + params["num_carry"]
    if equation.primitive.name == "while":
        return params["body_nconsts"], len(_opened(params[_WHILE]).invars)
    return 0, 0


def widened(equation: JaxprEqn, inner: Sequence[Jaxpr], given: Sequence[Any], made: Sequence[Any]) -> JaxprEqn:
    """Return an equation that hands on more values: `given` are the variables that it takes in, `made` those that it
    gives. In each of the `inner` jaxprs, which stand for its own, they are the last inputs and the last outputs.
    """
    name, params, count = equation.primitive.name, dict(equation.params), len(given)
    invars, outvars = [*equation.invars], [*equation.outvars]
    if name in _CALLS:
        params[_CALLS[name]] = _like(params[_CALLS[name]], inner[0])
        params.update(wider_call(params, count) if name == "jit" else {})
    elif name == "scan":
        first, carried = params["num_consts"] + params["num_carry"], params["num_carry"]
        moved = _moved(inner[0], first, carried, count)
        params.update(jaxpr=_like(params["jaxpr"], moved), num_carry=carried + count)
        invars[first:first], outvars[carried:carried] = given, made
        return equation.replace(invars=invars, outvars=outvars, params=params)
    elif name == SHARDED:
        axes = tuple(axis for axis in params["mesh"].axis_names if axis in params["newly_manual_axes"])
        specs = (PartitionSpec(axes),) * count
        params.update(jaxpr=inner[0], in_specs=(*params["in_specs"], *specs), out_specs=(*params["out_specs"], *specs))
    elif name == "while":
        condition = params["cond_jaxpr"]
        more = [type(each)(each.aval) for each in inner[0].invars[-count:]]
        wider = without_names(condition.jaxpr.replace(invars=[*condition.jaxpr.invars, *more]))
        params.update(cond_jaxpr=_like(condition, wider), body_jaxpr=_like(params[_WHILE], inner[0]))
    else:
        params["branches"] = tuple(map(_like, params["branches"], inner))
    return equation.replace(invars=[*invars, *given], outvars=[*outvars, *made], params=params)


def wider_call(params: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the parameters of a compiled call that say something of each input or output, for more of them."""
    return {
        "in_shardings": (*params["in_shardings"], *(UNSPECIFIED,) * count),
        "out_shardings": (*params["out_shardings"], *(UNSPECIFIED,) * count),
        "in_layouts": (*params["in_layouts"], *(None,) * count),
        "out_layouts": (*params["out_layouts"], *(None,) * count),
        "donated_invars": (*params["donated_invars"], *(False,) * count),
    }


def without_names(jaxpr: Jaxpr) -> Jaxpr:
    """Return a jaxpr that does not say what its inputs and outputs are called: it was made with others."""
    return jaxpr.replace(debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None))


def _moved(jaxpr: Jaxpr, first: int, carried: int, count: int) -> Jaxpr:
    """Return a jaxpr whose last inputs and outputs are the last that it carries from turn to turn."""
    invars, outvars = jaxpr.invars, jaxpr.outvars
    return jaxpr.replace(
        invars=[*invars[:first], *invars[-count:], *invars[first:-count]],
        outvars=[*outvars[:carried], *outvars[-count:], *outvars[carried:-count]],
    )


def _opened(jaxpr: Any) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def _like(closed: Any, jaxpr: Jaxpr) -> Any:
    """Return a jaxpr with the constants of another one, if that is closed over some."""
    return ClosedJaxpr(jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else jaxpr
