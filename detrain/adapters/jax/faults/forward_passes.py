"""The forward passes of an experiment on inference: compiled functions that take no gradient and give scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from detrain.adapters.jax.faults.equations import Equation
from detrain.adapters.jax.faults.rewriting import Rewriting, rewritten
from detrain.base.digest import Array

_CHOOSES: Final = ("argmax", "top_k")
"""Equations that choose a class by its score."""


class JaxPasses:
    """Notes the scores of each pass."""

    def __init__(self, on_pass: Callable[[int], None]) -> None:
        """`on_pass` is called after each pass, with a number that tells one function from another."""
        self._on_pass = on_pass
        self._outputs: list[Array] = []

    def note(self, scores: jax.Array, number: int) -> None:
        """Note the scores of a pass, of shape [..., class]; `number` tells one function from another."""
        if scores.is_fully_addressable:
            self._outputs.append(np.asarray(scores.astype(jnp.float32)))
            self._on_pass(number)

    def outputs(self) -> list[Array]:
        """Return the scores of the passes since the last call, the class on the last axis."""
        given, self._outputs = self._outputs, []
        return given


def place_of_scores(function: ClosedJaxpr) -> int | None:
    """Return the number of a function's first output that can be scores.

    Of several outputs, one in the shape of an input is none: a function that makes new weights returns them in the
    shapes in which it has got them.
    """
    given = {each.shape for each in function.in_avals} if len(function.out_avals) > 1 else set()
    outputs = enumerate(function.out_avals)
    return next((place for place, each in outputs if _are_scores(each) and each.shape not in given), None)


def with_scores(function: ClosedJaxpr, equations: Sequence[Equation]) -> ClosedJaxpr | None:
    """Return a function with one input and one output more: the latter are the scores by which it chooses a class. None
    if it chooses none, or none for all inputs at once.
    """
    chosen = [each for each in equations if each.value.primitive.name in _CHOOSES and _are_scores(each.value.invars[0].aval)]
    chosen = [each for each in chosen if (each.runs, each.entry, each.devices) == (1, None, 1) and _is_by_class(each)]
    if not chosen:
        return None
    scores = chosen[-1].value.invars[0].aval
    cells = [jax.core.ShapedArray(scores.shape, scores.dtype)]
    return rewritten(function, Rewriting(cells, {chosen[-1].path: lambda equation, _cells: ([equation], [equation.invars[0]])}))


def _is_by_class(equation: Equation) -> bool:
    params = equation.value.params
    axes = params["axes"] if "axes" in params else (params["axis"],)  # of `argmax`, of `top_k`
    return tuple(axes) == (equation.value.invars[0].aval.ndim - 1,)


def _are_scores(array: Any) -> bool:
    shape: tuple[int, ...] = getattr(array, "shape", ())
    return len(shape) > 1 and shape[-1] > 1 and jnp.issubdtype(array.dtype, np.floating)
