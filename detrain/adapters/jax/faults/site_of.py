"""Sites of equations: their operands by name, the gradient that a backward pass's product makes, the use of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from detrain.adapters.jax.faults.equations import Equation, dtype_named
from detrain.adapters.jax.faults.functions import Function
from detrain.adapters.jax.faults.sites_together import can_be_hit, outputs
from detrain.faults.sites import CONTRACTIONS, OperandShape, Role, Site, output_name, places_of

_GATHER: Final = "gather"


def sites_of(functions: Iterable[Function], weights_of: Callable[[Function], set[int]]) -> list[Site]:
    """Return the sites of the functions that have run: equations that several functions share are one site.
    `weights_of` returns the inputs of a function, by identity, that it takes gradients of.
    """
    found: dict[tuple[str, str], Site] = {}
    for function in functions:
        factors = _Factors(function, weights_of(function))
        for equation in function.equations:
            for number, _variable in outputs(equation):
                site = _site(function, equation, number, *factors.role(equation))
                known = found.get((site.name, site.signature))
                if known is not None:
                    runs, is_alive = known.executions + site.executions, known.is_alive or site.is_alive
                    site = msgspec.structs.replace(known, executions=runs, is_alive=is_alive)
                found[site.name, site.signature] = site
    return [site for site in found.values() if site.executions]


class _Factors:
    """The values that are inputs, and those that are weights, of the products of a function's forward pass."""

    def __init__(self, function: Function, weights: set[int]) -> None:
        self._known = weights
        products = [each for each in function.equations if each.value.primitive.name in CONTRACTIONS and each.stage == "forward"]
        pairs = [each.factors[:: -1 if self._is_turned(each) else 1] for each in products]
        self._inputs, self._weights = {first for first, _second in pairs}, {second for _first, second in pairs}

    def _is_turned(self, equation: Equation) -> bool:
        """Return whether the first factor of a product of the forward pass is a weight, and the second is no weight."""
        return [each in self._known for each in equation.factors] == [True, False]

    def role(self, equation: Equation) -> tuple[Role, bool]:
        """Return which gradient a product of the backward pass makes, and whether its weight comes before its input.

        The input's gradient has the weight as a factor, the weight's gradient has the input.
        """
        if equation.value.primitive.name not in CONTRACTIONS:
            return "", False
        if equation.stage != "backward":
            return "", self._is_turned(equation)
        of_input, of_weight = ([each in known for each in equation.factors] for known in (self._inputs, self._weights))
        if any(of_weight) and not any(of_input):
            return "grad_in", of_weight == [True, False]
        if any(of_input) and not any(of_weight):
            return "grad_wt", of_input == [False, True]
        return "", False


def _site(function: Function, equation: Equation, number: int, role: Role, is_turned: bool) -> Site:
    value = equation.value
    operands = {"output": (number, value.outvars[number]), **(_operands(value, is_turned=is_turned) if not number else {})}
    return Site(
        name=output_name(function.name_of(equation), number),
        layer=equation.layer,
        op=value.primitive.name,
        stage=equation.stage,
        role=role,
        operands={name: OperandShape(place, tuple(each.aval.shape), dtype_named(each)) for name, (place, each) in operands.items()},
        executions=function.runs(equation),
        replicas=equation.devices,
        attributes=_ATTRIBUTES.get(value.primitive.name, lambda _value: {})(value),
        is_alive=number in equation.live,
        signature=equation.signature,
        use=equation.uses.get(number, ""),
    )


def _operands(value: Any, *, is_turned: bool) -> dict[str, tuple[int, Any]]:
    """Return the operands that can be told apart, with their places. `is_turned`: the weight comes before the input."""
    name = value.primitive.name
    if name == _GATHER:
        places = {"index": 1}
    elif name in CONTRACTIONS:
        places = dict(zip(("input", "weight"), places_of(name)[:: -1 if is_turned else 1], strict=True))
    else:
        return {}
    return {operand: (place, value.invars[place]) for operand, place in places.items() if can_be_hit(value.invars[place])}


Attributes = dict[str, list[int] | str | bool]
_UNKNOWN: Final = "layout"
"""The attribute of a product with an order of axes that does not tell which outputs read an element."""


def _of_product(value: Any) -> Attributes:
    """Return which factors of a product of matrices are transposed."""
    ((left, right), (left_batch, right_batch)) = value.params["dimension_numbers"]
    ranks, batch = [each.aval.ndim for each in value.invars], tuple(range(len(left_batch)))
    is_batched = left_batch == right_batch == batch and ranks == [len(batch) + 2] * 2
    is_for_all = not batch and ranks[1] == 2 and ranks[0] >= 2 and left == (ranks[0] - 1,)
    if len(left) != 1 or not (is_batched or is_for_all):
        return {_UNKNOWN: "other"}
    return {"transpose_a": left[0] != ranks[0] - 1, "transpose_b": right[0] == ranks[1] - 1}


def _of_convolution(value: Any) -> Attributes:
    """Return the attributes that decide which outputs of a convolution read an element, in TensorFlow's axis order."""
    params = value.params
    numbers, rank = params["dimension_numbers"], value.invars[0].aval.ndim
    last, kernel = (0, rank - 1, *range(1, rank - 1)), (rank - 1, rank - 2, *range(rank - 2))
    is_plain = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec) == (last, kernel, last)
    is_plain &= set(params["lhs_dilation"]) <= {1} and params["feature_group_count"] == params["batch_group_count"] == 1
    return {
        "data_format": "NHWC" if is_plain else "other",
        "strides": [1, *params["window_strides"], 1],
        "dilations": [1, *params["rhs_dilation"], 1],
        "padding": "EXPLICIT",
        "explicit_paddings": [0, 0, *(each for pair in params["padding"] for each in pair), 0, 0],
    }


_ATTRIBUTES: Final[dict[str, Callable[[Any], Attributes]]] = {
    "dot_general": _of_product,
    "conv_general_dilated": _of_convolution,
}
