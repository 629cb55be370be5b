"""Sites of equations: operands by name, the gradient that a product of the backward pass is, what becomes of outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from detrain.adapters.jax.faults.equations import Equation, dtype_named
from detrain.adapters.jax.faults.functions import Function
from detrain.faults.experiment import BITS
from detrain.faults.sites import CONTRACTIONS, OperandShape, Site, output_name, places_of

_GATHER: Final = "gather"
_HANDS_ON: Final = frozenset(
    {
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "copy_p", "name", "iota", "pvary"),
        *("optimization_barrier", "sharding_constraint", "device_put", "empty", "empty2", "create_token"),
    }
)
"""Equations that compute nothing: they hand on, or give what is the same each time."""
_LARGEST: Final = 1 << 31
"""Positions are numbers of 32 bits."""


def sites_of(functions: Iterable[Function]) -> list[Site]:
    """Return the sites of the functions that have run: equations that several have are one site."""
    found: dict[tuple[str, str], Site] = {}
    for function in functions:
        for equation in function.equations:
            for number, variable in enumerate(equation.value.outvars):
                if not _can_be_hit(variable) or equation.value.primitive.name in _HANDS_ON:
                    continue
                site = _site(function, equation, number)
                known = found.get((site.name, site.signature))
                if known is not None:
                    runs, is_alive = known.executions + site.executions, known.is_alive or site.is_alive
                    site = msgspec.structs.replace(known, executions=runs, is_alive=is_alive)
                found[site.name, site.signature] = site
    return [site for site in found.values() if site.executions]


def _can_be_hit(variable: Any) -> bool:
    return dtype_named(variable) in BITS and 0 < variable.aval.size < _LARGEST


def _site(function: Function, equation: Equation, number: int) -> Site:
    value = equation.value
    operands = {"output": (number, value.outvars[number]), **(_operands(value) if not number else {})}
    return Site(
        name=output_name(function.name_of(equation), number),
        layer=equation.layer,
        op=value.primitive.name,
        stage=equation.stage,
        role="",
        operands={name: OperandShape(place, tuple(each.aval.shape), dtype_named(each)) for name, (place, each) in operands.items()},
        executions=function.runs(equation),
        is_alive=number in equation.live,
        signature=equation.signature,
    )


def _operands(value: Any) -> dict[str, tuple[int, Any]]:
    """Return the operands that can be told apart, with their places."""
    name = value.primitive.name
    if name == _GATHER:
        places = {"index": 1}
    elif name in CONTRACTIONS:
        places = dict(zip(("input", "weight"), places_of(name), strict=True))
    else:
        return {}
    return {operand: (place, value.invars[place]) for operand, place in places.items() if _can_be_hit(value.invars[place])}
