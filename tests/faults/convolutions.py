"""Convolutions of every kind, and what they compute, by definition: the oracle of these tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from detrain.faults.limits import Convolution, Stage

Array = NDArray[np.float64]
Compute = Callable[[Array, Array], Array]


def taps(op: Convolution) -> list[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
    """Every (place of Y, tap, place of X) of a two-dimensional convolution, by its definition."""
    found = []
    for y in product(range(op.y[1]), range(op.y[2])):
        for tap in product(range(op.kernel[0]), range(op.kernel[1])):
            x = tuple(y[a] * op.strides[a] - op.before[a] + tap[a] * op.dilations[a] for a in (0, 1))
            if all(0 <= x[a] < op.x[a + 1] for a in (0, 1)):
                found.append((y, tap, x))
    return found


def computed(op: Convolution) -> Compute:
    """The op itself, as a function of its input and its weight."""

    def compute(a: Array, b: Array) -> Array:
        out = np.zeros(op.output)
        for (yh, yw), (kh, kw), (xh, xw) in taps(op):
            if op.stage is Stage.FORWARD:
                out[:, yh, yw] += a[:, xh, xw] @ b[kh, kw]
            elif op.stage is Stage.GRAD_IN:
                out[:, xh, xw] += a[:, yh, yw] @ b[kh, kw].T
            else:
                out[kh, kw] += a[:, xh, xw].T @ b[:, yh, yw]
        return out

    return compute


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    batch, into, out = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 16, 20, 35]))
    size, window = [draw(st.tuples(*[st.integers(1, top)] * 2)) for top in (7, 3)]
    strides, dilations = (draw(st.tuples(*[st.integers(1, 2)] * 2)) for _ in "sd")
    extents = [(w - 1) * d + 1 for w, d in zip(window, dilations, strict=True)]
    padding = draw(st.sampled_from(["SAME", "VALID", "EXPLICIT"]))
    if padding == "SAME":
        space = [-(-n // s) for n, s in zip(size, strides, strict=True)]
    elif padding == "VALID":
        size = tuple(max(n, e) for n, e in zip(size, extents, strict=True))
        space = [(n - e) // s + 1 for n, e, s in zip(size, extents, strides, strict=True)]
    else:
        padding = [(e - 1, e // 2) for e in extents]
        space = [(n + e - 1 + e // 2 - e) // s + 1 for n, e, s in zip(size, extents, strides, strict=True)]
    if draw(st.booleans()):
        into, out = out, into
    return Convolution.of(
        draw(st.sampled_from(Stage)),
        x=(batch, *size, into),
        kernel=(*window, into, out),
        y=(batch, *space, out),
        strides=strides,
        dilations=dilations,
        padding=padding,
    )
