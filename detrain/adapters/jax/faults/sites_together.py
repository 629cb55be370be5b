"""The outputs of equations that can be hit, and those of them that can share one copy of a function.

A product that is added up gets a copy of its own: compilers contract product and sum, and round once, unless an op
stands between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from detrain.adapters.jax.faults.equations import Equation, dtype_named
from detrain.adapters.jax.faults.injector import Spot
from detrain.faults.bits import dtype_named as bits_of
from detrain.faults.experiment import BITS

_HANDS_ON: Final = frozenset(
    {
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "copy_p", "name", "iota", "pvary"),
        *("optimization_barrier", "sharding_constraint", "device_put", "empty", "empty2", "create_token"),
    }
)
"""Equations that compute nothing: they hand values on, or give the same value each time."""
_LARGEST: Final = 1 << 31
"""Positions are numbers of 32 bits."""


def can_be_hit(variable: Any) -> bool:
    """Return whether a fault can be put into the values of a variable."""
    return dtype_named(variable) in BITS and 0 < variable.aval.size < _LARGEST


def outputs(equation: Equation) -> Iterator[tuple[int, Any]]:
    """Yield the outputs of an equation that are sites: their numbers, and variables.

    A value that is the same on all devices, by its type, is no site: after a hit on one of them it would differ there.
    """
    if equation.value.primitive.name not in _HANDS_ON:
        for number, variable in enumerate(equation.value.outvars):
            if can_be_hit(variable) and (not equation.axes or equation.axes & variable.aval.mat.varying):
                yield number, variable


def spots_together(equations: Sequence[Equation], width: Any) -> list[Spot]:
    """Return the spots of a function that can share a copy: outputs whose elements have the bits of type `width`."""
    return [
        Spot(equation.path, number)
        for equation in equations
        if not equation.is_contracted
        for number, variable in outputs(equation)
        if bits_of(dtype_named(variable)).unsigned == width
    ]
