"""Convolutions of every kind with their results by definition: the oracle of these tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from detrain.faults.limits import Convolution, ConvPass

Array = NDArray[np.float64]
Compute = Callable[[Array, Array], Array]


Place = tuple[int, ...]


def taps(op: Convolution) -> list[tuple[Place, Place, Place]]:
    """Return every (place of Y, tap, place of X) of a convolution, by its definition."""
    found = []
    for y in np.ndindex(*op.y[1:-1]):
        for tap in np.ndindex(*op.kernel[:-2]):
            x = tuple(y[a] * op.strides[a] - op.before[a] + tap[a] * op.dilations[a] for a in range(len(y)))
            if all(0 <= x[a] < op.x[a + 1] for a in range(len(y))):
                found.append((y, tap, x))
    return found


def computed(op: Convolution) -> Compute:
    """Return the op itself, as a function of its input and its weight."""

    def compute(a: Array, b: Array) -> Array:
        out = np.zeros(op.output)
        for y, tap, x in taps(op):
            if op.stage is ConvPass.FORWARD:
                out[:, *y] += a[:, *x] @ b[tap]
            elif op.stage is ConvPass.GRAD_IN:
                out[:, *x] += a[:, *y] @ b[tap].T
            else:
                out[tap] += a[:, *x].T @ b[:, *y]
        return out

    return compute


@st.composite
def convolutions(draw: st.DrawFn, ranks: tuple[int, ...] = (1, 2, 3)) -> Convolution:
    """Draw convolutions over a number of spatial axes."""
    rank = draw(st.sampled_from(ranks))
    batch, into, out = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 16, 20, 35]))
    size, window = (draw(st.tuples(*[st.integers(1, top)] * rank)) for top in (7 if rank < 3 else 4, 3))
    strides, dilations = (draw(st.tuples(*[st.integers(1, 2)] * rank)) for _ in "sd")
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
        draw(st.sampled_from(ConvPass)),
        x=(batch, *size, into),
        kernel=(*window, into, out),
        y=(batch, *space, out),
        strides=strides,
        dilations=dilations,
        padding=padding,
    )
