"""The loss of a step, which is the value that `value_and_grad` returns, and the step's weights, which are the arrays
that gradients are taken of. No program is changed.

A loss inside of a compiled function is seen if the function returns it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from detrain.adapters.jax.faults.equations import MOVES, inner_jaxprs, is_call
from detrain.adapters.jax.faults.functions import Function
from detrain.adapters.jax.trees import leaves_of


class JaxLosses:
    """Notes losses; those of several gradients in a step are added up."""

    def __init__(self, ends_with: Callable[[Callable[[], float]], bool]) -> None:
        self._ends_with = ends_with
        self._losses: list[Any] = []
        self._has_any = False
        self._traced: dict[int, Any] = {}
        """Variables that were losses in traces, by identity."""
        self._weights: dict[int, Any] = {}
        """Variables that gradients were taken of in traces, by identity."""
        self._places: dict[int, tuple[list[int], list[int]]] = {}
        """By the identity of a function: which of its outputs are losses, and which of its inputs are weights."""
        self._taken: dict[int, Any] | None = None
        """Arrays that gradients were taken of since `begin`, by identity; None: they are not noted."""
        self.takes_eagerly = False
        """Whether a gradient was taken outside of compiled functions."""

    def begin(self) -> None:
        """Note from here on which arrays gradients are taken of."""
        self._taken = {}

    def weights(self) -> dict[int, Any]:
        """Return the arrays that gradients were taken of since `begin`, by identity, and stop noting them."""
        found, self._taken = self._taken or {}, None
        return found

    def note(self, arguments: Any, value: Any) -> None:
        """Note a gradient that has been taken: its arguments, and its value if that is known."""
        for variables, arrays in ((self._traced, value), (self._weights, arguments)):
            for each in leaves_of(arrays):
                if isinstance(each, Tracer):
                    variable = getattr(each, "val", None)
                    variables[id(variable)] = variable
                elif isinstance(each, jax.Array) and variables is self._traced:
                    self._add(each)
                elif isinstance(each, jax.Array):
                    self.takes_eagerly = True
                    if self._taken is not None:
                        self._taken[id(each)] = each

    def hear(self, function: Function, inputs: Sequence[Any], outputs: list[Any]) -> None:
        """Note the losses and the weights of a compiled function that has been called."""
        losses, weights = self._places_of(function)
        if self._taken is not None:
            self._taken |= {id(inputs[place]): inputs[place] for place in weights}
        for place in losses:
            self._add(outputs[place])
        if losses and self._ends_with(self._total):
            for place in losses:  # the trial ends with this step: the rest of its body gets a finite number
                outputs[place] = jax.numpy.nan_to_num(outputs[place], nan=0.0, posinf=0.0, neginf=0.0)

    def weights_of(self, function: Function) -> set[int]:
        """Return the identities of a function's inputs that it takes gradients of."""
        return {id(function.closed.jaxpr.invars[place]) for place in self._places_of(function)[1]}

    def _places_of(self, function: Function) -> tuple[list[int], list[int]]:
        found = self._places.get(id(function))
        if found is None:
            jaxpr = function.closed.jaxpr
            losses = [place for place in range(len(jaxpr.outvars)) if any(id(each) in self._traced for each in _made(jaxpr, place))]
            weights = [
                place for place in range(len(jaxpr.invars)) if any(id(each) in self._weights for each in _taken(jaxpr, place))
            ]
            found = self._places[id(function)] = losses, weights
        return found

    def _add(self, loss: Any) -> None:
        if jax.numpy.issubdtype(loss.dtype, np.floating):
            self._losses.append(loss)
            self._has_any = True

    def _total(self) -> float:
        return float(sum(float(np.asarray(each).astype(np.float64).sum()) for each in self._losses if not each.is_deleted()))

    def has_loss(self) -> bool:
        """Return whether a loss has been seen since the last call of `read`, or no loss has ever been seen."""
        return bool(self._losses) or not self._has_any

    def read(self) -> dict[str, float]:
        """Return the loss of the step that has ended; empty if no loss was seen."""
        found = {"loss": self._total()} if self._losses else {}
        self._losses = []
        return found


def _made(jaxpr: Jaxpr, place: int) -> Iterator[Any]:
    """Yield the variables that hold a function's output: in the function, and in those that it calls."""
    makers = {id(variable): (equation, number) for equation in jaxpr.eqns for number, variable in enumerate(equation.outvars)}
    variable = jaxpr.outvars[place]
    while True:
        yield variable
        equation, number = makers.get(id(variable), (None, 0))
        if equation is None:
            return
        if is_call(equation):
            for inner in inner_jaxprs(equation):
                yield from _made(inner, number)
            return
        name = equation.primitive.name
        is_mean = name == "div" and isinstance(equation.invars[1], Literal) and _is_sum(makers.get(id(equation.invars[0])))
        if not (name in MOVES or is_mean or _is_sum((equation, 0))):
            return
        variable = equation.invars[0]


def _is_sum(made_by: tuple[JaxprEqn, int] | None) -> bool:
    """Return whether a value is a sum over devices; a mean over devices is such a sum, divided by their number."""
    return made_by is not None and made_by[0].primitive.name.startswith("psum")


def _taken(jaxpr: Jaxpr, place: int) -> Iterator[Any]:
    """Yield the variables that hold a function's input: in the function, and in those that it hands the input to."""
    variable = jaxpr.invars[place]
    yield variable
    for equation in jaxpr.eqns:
        for number, each in enumerate(equation.invars if is_call(equation) else ()):
            if each is variable:
                for inner in inner_jaxprs(equation):
                    yield from _taken(inner, number)
