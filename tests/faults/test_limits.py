"""The 16-output limit against a brute-force convolution: perturb an element, and see which outputs change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from detrain.base.errors import FaultInvalid
from detrain.faults.limits import Convolution, ConvPass, LinearOp, MatMul, limited_outputs
from detrain.faults.plan import Operand, trial_rng
from tests.faults.convolutions import Array, Compute, computed, convolutions


def operands(op: Convolution) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return op.shape_of(Operand.INPUT), op.shape_of(Operand.WEIGHT)


def changed(compute: Compute, shapes: tuple[tuple[int, ...], tuple[int, ...]], operand: Operand, elements: Any) -> set[int]:
    """The flat outputs that change if any of the elements does. All numbers are positive, so nothing cancels."""
    rng = np.random.Generator(np.random.PCG64(0))
    a, b = (rng.uniform(1, 2, shape) for shape in shapes)
    hit_a, hit_b = a.copy(), b.copy()
    (hit_a if operand is Operand.INPUT else hit_b).reshape(-1)[elements] += 1000
    return set(np.flatnonzero(compute(a, b) != compute(hit_a, hit_b)).tolist())


def assert_limited(
    op: LinearOp, compute: Compute, shapes: tuple[tuple[int, ...], tuple[int, ...]], operand: Operand, seed: int, length: int
) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    size = int(np.prod(shapes[0 if operand is Operand.INPUT else 1]))
    start = int(rng.integers(max(1, size - length + 1)))
    elements = np.arange(start, min(start + length, size), dtype=np.int64)

    seen = limited_outputs(op, operand, elements, trial_rng(seed, 0))

    changes = changed(compute, shapes, operand, elements)
    channels = op.output[-1]
    places, seen_channels = np.unique(seen // channels), np.unique(seen % channels)
    assert (np.diff(seen) > 0).all()
    assert len(seen) <= 16
    if operand is Operand.INPUT:
        assert set(seen.tolist()) <= changes
        assert bool(len(seen)) == bool(changes)  # empty only where nothing reads the elements
        if len(seen):
            assert len(places) == 1
            assert len(seen) == min(16, channels)
            assert (np.diff(seen_channels) == 1).all()
            assert seen_channels[0] % 16 == 0
    else:
        assert len(seen_channels) == 1
        assert (np.diff(places) == 1).all()
        columns = [np.arange(c.first, c.first + c.length) * channels + c.channel for c in op.columns(elements)]
        assert set(np.concatenate(columns).tolist()) >= changes  # what is left unseen does not change
        mine = next(column for column in columns if set(seen.tolist()) <= set(column.tolist()))
        assert len(seen) == min(16, len(mine))
        assert np.searchsorted(mine, seen[0]) % 16 == 0


@given(
    op=convolutions(),
    operand=st.sampled_from([Operand.INPUT, Operand.WEIGHT]),
    seed=st.integers(0, 999),
    length=st.sampled_from([1, 64]),
)
@settings(max_examples=300)
def test_a_limited_fault_in_a_convolution_is_seen_by_16_of_the_outputs_that_read_it(
    op: Convolution, operand: Operand, seed: int, length: int
) -> None:
    assert_limited(op, computed(op), operands(op), operand, seed, length)


@given(
    sizes=st.tuples(st.sampled_from([1, 5, 16, 40]), st.integers(1, 4), st.sampled_from([1, 5, 16, 40])),
    batch=st.sampled_from([(), (2,), (2, 3)]),
    transposed=st.tuples(st.booleans(), st.booleans()),
    shares_weight=st.booleans(),
    operand=st.sampled_from([Operand.INPUT, Operand.WEIGHT]),
    seed=st.integers(0, 999),
    length=st.sampled_from([1, 64]),
)
def test_a_limited_fault_in_a_product_of_matrices_is_seen_by_16_of_the_outputs_that_read_it(
    sizes: tuple[int, int, int],
    batch: tuple[int, ...],
    transposed: tuple[bool, bool],
    shares_weight: bool,
    operand: Operand,
    seed: int,
    length: int,
) -> None:
    m, k, n = sizes
    a = (*batch, *((k, m) if transposed[0] else (m, k)))
    b = (*(() if shares_weight else batch), *((n, k) if transposed[1] else (k, n)))
    op = MatMul(a, b, *transposed)

    def compute(x: Array, y: Array) -> Array:
        return (x.swapaxes(-1, -2) if transposed[0] else x) @ (y.swapaxes(-1, -2) if transposed[1] else y)

    assert op.output == (*batch, m, n)
    assert_limited(op, compute, (a, b), operand, seed, length)


@given(op=convolutions(), element=st.integers(0, 10**6), operand=st.sampled_from([Operand.INPUT, Operand.WEIGHT]))
def test_all_readers_of_an_input_and_no_others_can_be_drawn(op: Convolution, element: int, operand: Operand) -> None:
    channels = op.output[-1]
    shapes = operands(op)
    elements = np.array([element % int(np.prod(shapes[0]))])

    readers = op.readers(elements)

    assert set(readers.tolist()) == {output // channels for output in changed(computed(op), shapes, Operand.INPUT, elements)}


KINDS = [
    (7, 3, 2, 1, "SAME"),
    (8, 3, 2, 1, "SAME"),
    (8, 7, 2, 1, "SAME"),
    (6, 2, 1, 1, "SAME"),
    (9, 3, 1, 2, "SAME"),
    (9, 3, 2, 1, "VALID"),
]


@pytest.mark.parametrize(
    ("stage", "size", "window", "stride", "dilation", "padding"),
    # No such gradients on the CPU.
    [(stage, *kind) for stage in ConvPass for kind in KINDS if kind[3] == 1 or stage is ConvPass.FORWARD],
)
def test_the_oracle_of_these_tests_computes_what_tensorflow_computes(
    stage: ConvPass, size: int, window: int, stride: int, dilation: int, padding: str
) -> None:
    import tensorflow as tf

    x, kernel = np.zeros((2, size, size + 1, 3)), np.zeros((window, window, 3, 5))
    shape = tuple(tf.nn.conv2d(x, kernel, stride, padding, dilations=dilation).shape)
    strides, dilations = (stride, stride), (dilation, dilation)
    op = Convolution.of(stage, x=x.shape, kernel=kernel.shape, y=shape, strides=strides, dilations=dilations, padding=padding)
    rng = np.random.Generator(np.random.PCG64(4))
    a, b = rng.normal(size=op.shape_of(Operand.INPUT)), rng.normal(size=op.shape_of(Operand.WEIGHT))

    x = tf.constant(a if stage is not ConvPass.GRAD_IN else np.zeros(op.x))
    kernel = tf.constant(b if stage is not ConvPass.GRAD_WT else np.zeros(op.kernel))
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tf.nn.conv2d(x, kernel, stride, padding, dilations=dilation)
    if stage is ConvPass.FORWARD:
        expected = y
    else:  # a convolution is linear in each: its gradients do not depend on what they are taken at
        dy, at = (a, x) if stage is ConvPass.GRAD_IN else (b, kernel)
        expected = tape.gradient(y, at, output_gradients=tf.constant(dy))
    np.testing.assert_allclose(computed(op)(a, b), expected.numpy(), rtol=1e-9)


def test_the_place_and_the_channels_are_drawn_uniformly() -> None:
    op = Convolution.of(
        ConvPass.FORWARD,
        x=(2, 8, 8, 4),
        kernel=(3, 3, 4, 64),
        y=(2, 8, 8, 64),
        strides=(1, 1),
        dilations=(1, 1),
        padding="SAME",
    )
    element = np.array([np.ravel_multi_index((1, 4, 4, 2), op.x)])

    drawn = [limited_outputs(op, Operand.INPUT, element, trial_rng(0, trial))[0] for trial in range(7200)]

    _, counts = np.unique(drawn, return_counts=True)
    assert len(counts) == 9 * 4  # nine places, four groups of 16 channels
    assert stats.chisquare(counts).pvalue > 0.001


def test_an_input_between_the_strides_is_seen_by_nothing() -> None:
    op = Convolution.of(
        ConvPass.FORWARD, x=(1, 4, 4, 1), kernel=(1, 1, 1, 16), y=(1, 2, 2, 16), strides=(2, 2), dilations=(1, 1), padding="SAME"
    )

    assert len(limited_outputs(op, Operand.INPUT, np.array([5]), trial_rng(0, 0))) == 0


def test_a_fault_in_an_output_has_no_limit() -> None:
    with pytest.raises(FaultInvalid, match="cannot be limited"):
        limited_outputs(MatMul((2, 3), (3, 4)), Operand.OUTPUT, np.array([0]), trial_rng(0, 0))


@pytest.mark.parametrize(
    "wrong", [{"kernel": (3, 3, 2, 8)}, {"y": (1, 8, 8, 16)}, {"strides": (2, 2)}, {"padding": "VALID"}, {"padding": "CIRCULAR"}]
)
def test_a_grouped_convolution_or_one_that_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    right = {
        "x": (1, 8, 8, 4),
        "kernel": (3, 3, 4, 8),
        "y": (1, 8, 8, 8),
        "strides": (1, 1),
        "dilations": (1, 1),
        "padding": "SAME",
    }
    Convolution.of(ConvPass.FORWARD, **right)

    with pytest.raises(FaultInvalid, match="limited fault"):
        Convolution.of(ConvPass.FORWARD, **{**right, **wrong})


def test_matrices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FaultInvalid, match="do not go together"):
        MatMul((2, 3), (2, 3))
    with pytest.raises(FaultInvalid, match="do not go together"):
        MatMul((5, 2, 3), (4, 3, 3))
