"""What is looked at where compiled steps end, against NumPy; and that the steps are what they were."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tensorflow.python.eager import context  # noqa: E402 - TensorFlow may be missing

from detrain.adapters.tensorflow.guard.norms import half_of_squares  # noqa: E402
from detrain.adapters.tensorflow.guard.step_norms import Inside  # noqa: E402

RANDOM = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _calls_are_put_back() -> Iterator[None]:
    tf.get_logger().setLevel("ERROR")
    original = context.Context.call_function
    yield
    context.Context.call_function = original


def made() -> dict[str, Any]:
    """Return variables of several shapes and types, one that no step writes among them."""
    shapes = {"matrix": (3, 5), "vector": (7,), "table": (11, 2), "frozen": (4,)}
    found = {key: tf.Variable(RANDOM.normal(size=shape).astype("float32")) for key, shape in shapes.items()}
    return {**found, "half": tf.Variable(tf.constant(RANDOM.normal(size=6), tf.bfloat16))}


def watching(variables: dict[str, Any]) -> Inside:
    inside = Inside(half_of_squares)
    inside.watch(variables)
    inside.take()
    return inside


def halves(variables: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return what is expected: half the sum of the squares of each, in float64."""
    return np.array([np.square(np.asarray(v.numpy(), np.float64)).sum() / 2 for v in variables.values()])


def looked(inside: Inside, variables: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return what the calls have found; of variables that no call has looked at, what they are."""
    found = halves(variables)
    for numbers, sums in inside.take():
        found[slice(None) if numbers is None else numbers] = sums.numpy()
    return found


def plain(v: dict[str, Any], x: Any) -> Any:
    v["matrix"].assign_add(x * tf.ones_like(v["matrix"]))
    v["vector"].assign(v["vector"] * 1.5)
    v["half"].assign_sub(tf.cast(x, tf.bfloat16) * v["half"])
    return tf.reduce_sum(v["matrix"]) + v["frozen"][0]


def branching(v: dict[str, Any], x: Any) -> Any:
    if x > 0.5:
        v["vector"].assign_add(tf.fill(v["vector"].shape, x))
    for _ in tf.range(3):
        v["matrix"].assign(v["matrix"] * 1.1)
    return x + v["vector"][0]


def nested(v: dict[str, Any], x: Any) -> Any:
    inner = tf.function(lambda y: v["matrix"].assign_add(y * tf.ones_like(v["matrix"])))
    inner(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(tf.gather(v["table"], [1, 3])))
    gradient = tape.gradient(loss, v["table"])
    tf.raw_ops.ResourceScatterSub(resource=v["table"].handle, indices=gradient.indices, updates=gradient.values * 0.01)
    return loss


def nothing_returned(v: dict[str, Any], x: Any) -> None:
    v["matrix"].assign(v["matrix"] * x)


STEPS: dict[str, tuple[Callable[..., Any], bool]] = {
    "plain": (plain, False),
    "XLA": (plain, True),
    "branches and loops": (branching, False),
    "nested, with a sparse update": (nested, False),
    "one that returns nothing": (nothing_returned, False),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_has_written_is_looked_at_where_it_ends(name: str) -> None:
    body, is_compiled = STEPS[name]
    variables = made()
    bare = {key: tf.Variable(value) for key, value in variables.items()}
    inputs = [tf.constant(x, tf.float32) for x in RANDOM.uniform(0, 1, 8)]
    step_of_bare = tf.function(lambda x: body(bare, x), jit_compile=is_compiled)
    expected = [step_of_bare(x) for x in inputs]

    inside = watching(variables)
    step = tf.function(lambda x: body(variables, x), jit_compile=is_compiled)
    for turn, x in enumerate(inputs):
        returned = step(x)
        assert inside.is_complete is (turn > 1)
        if inside.is_complete:
            found = inside.take()
            assert len(found) == 1
            numbers, sums = found[0]
            assert numbers is not None  # none of the steps knows all variables
            np.testing.assert_allclose(sums.numpy(), halves(variables)[numbers], rtol=1e-5)
        else:
            inside.take()
        assert (returned is None) == (expected[turn] is None)
        if returned is not None:
            assert returned.numpy().tobytes() == expected[turn].numpy().tobytes()
    for key, value in variables.items():
        assert value.numpy().tobytes() == bare[key].numpy().tobytes()


def test_a_value_that_is_no_number_is_in_the_sums() -> None:
    variables = made()
    inside = watching(variables)
    step = tf.function(lambda x: variables["vector"].assign(variables["vector"] * x))
    for x in (1.0, 1.0, 1.0, float("nan")):
        step(tf.constant(x))
        found = looked(inside, variables)
    assert np.isnan(found[1])
    assert np.isfinite(np.delete(found, 1)).all()


def test_what_else_writes_a_variable_is_heard_of() -> None:
    variables, other = made(), tf.Variable(0.0)
    inside = watching(variables)
    step = tf.function(lambda x: plain(variables, x))
    for _ in range(3):
        step(tf.constant(0.1))
        inside.take()
    counting = tf.function(lambda: other.assign_add(1.0))
    reading = tf.function(lambda: tf.reduce_sum(variables["matrix"]))
    for _ in range(3):
        counting(), reading()
        inside.take()

    step(tf.constant(0.1))
    counting()  # writes, but nothing that is looked at
    reading()  # knows what is looked at, and writes nothing
    inside.note_written(other.handle)
    assert inside.is_complete
    inside.note_written(variables["frozen"].handle)
    assert not inside.is_complete
    inside.take()
    another = tf.function(lambda: variables["vector"].assign(variables["vector"] * 2))
    another()
    assert not inside.is_complete


def test_the_last_of_several_calls_counts_and_each_function_for_its_own() -> None:
    variables = made()
    inside = watching(variables)
    one = tf.function(lambda x: variables["vector"].assign_add(tf.fill([7], x)))
    two = tf.function(lambda x: variables["table"].assign(variables["table"] * x))
    for x in (0.5, 1.5, 2.5, 3.5):
        for _ in range(3):
            one(tf.constant(x))
        two(tf.constant(x))
        is_complete = inside.is_complete
        found = looked(inside, variables)
    assert is_complete
    np.testing.assert_allclose(found, halves(variables), rtol=1e-5)


def test_a_function_that_is_given_other_variables_is_looked_at_from_outside() -> None:
    variables, others = made(), made()
    inside = watching(variables)

    @tf.function
    def scaled(matrix: Any, x: Any) -> Any:
        return matrix.assign(matrix * x)

    for _ in range(3):
        scaled(variables["matrix"], tf.constant(1.5))
        is_complete = inside.is_complete
        found = looked(inside, variables)
    assert is_complete
    np.testing.assert_allclose(found, halves(variables), rtol=1e-5)
    before = others["matrix"].numpy() * np.float32(1.5)
    scaled(others["matrix"], tf.constant(1.5))
    assert not inside.is_complete
    assert others["matrix"].numpy().tobytes() == before.tobytes()


def test_a_step_whose_gradient_is_taken_outside_is_one_like_others() -> None:
    variables = made()
    inside = watching(variables)

    @tf.function
    def forward(x: Any) -> Any:
        variables["vector"].assign_add(tf.fill([7], x))  # as a batch normalisation does
        return tf.reduce_sum(tf.square(variables["matrix"])) * x

    for _ in range(4):
        before = variables["matrix"].numpy()
        with tf.GradientTape() as tape:
            loss = forward(tf.constant(0.25))
        gradient = tape.gradient(loss, variables["matrix"])
        np.testing.assert_allclose(gradient.numpy(), before * 0.5, rtol=1e-6)
        is_complete = inside.is_complete
        found = looked(inside, variables)
    assert is_complete
    np.testing.assert_allclose(found, halves(variables), rtol=1e-5)


def test_an_error_in_a_step_is_the_programs_own() -> None:
    variables = made()

    def run(step: Any) -> list[str]:
        said = []
        for x in (1.0, 1.0, 1.0, -1.0):
            try:
                step(tf.constant(x))
            except tf.errors.InvalidArgumentError as error:
                said.append(error.message)
        return said

    def step(x: Any) -> Any:
        tf.debugging.assert_greater(x, 0.0, message="x must be positive")
        return variables["vector"].assign(variables["vector"] * x)

    expected = run(tf.function(step))
    inside = watching(variables)
    found = run(tf.function(step))

    assert len(found) == len(expected) == 1
    assert "x must be positive" in found[0]
    assert "detrain" not in found[0]
    assert not inside.is_complete


def test_other_variables_can_be_looked_at_and_functions_that_are_gone_leave_nothing_behind() -> None:
    variables = made()
    inside = watching(variables)
    step = tf.function(lambda x: plain(variables, x))
    for _ in range(4):
        step(tf.constant(0.1))
        inside.take()
    fewer = {key: variables[key] for key in ("half", "matrix")}
    inside.watch(fewer)
    for _ in range(4):
        step(tf.constant(0.1))
        is_complete = inside.is_complete
        [(numbers, sums)] = inside.take() or [(None, None)]
    assert is_complete
    assert numbers is None  # all of them, in their order
    np.testing.assert_allclose(sums.numpy(), halves(fewer), rtol=1e-2)

    copies = [each.copy for each in inside._steps.values() if each is not None]
    assert copies
    assert all(map(context.context().has_function, copies))
    del step
    gc.collect()
    inside.watch(variables)
    assert not any(map(context.context().has_function, copies))
    assert not inside._steps
