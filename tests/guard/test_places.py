"""Where the last states are held: by reference on the device, or copied to the host's memory."""

from __future__ import annotations

import itertools
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from detrain.adapters.group import Adapters
from detrain.base.cursor import Cursor
from detrain.guard.detector import Guard


def test_what_is_held_on_the_host_takes_no_memory_of_the_device_and_comes_back_the_same() -> None:
    tf = pytest.importorskip("tensorflow")
    from detrain.adapters.tensorflow.rollback import TensorFlowRollback

    variables = {
        "floats": tf.Variable([1.5, float("nan"), -0.0]),
        "half": tf.Variable(tf.constant([1.0, 3.0], tf.bfloat16)),
        "count": tf.Variable(7, dtype=tf.int64),
    }
    owner: Any = SimpleNamespace(
        top_counts=dict,
        set_top_counts=lambda _counts: None,
        units=list,
        state=lambda: (0, {}),
        go_back=lambda _draws: None,
        made=dict,
        given=dict,
        set_given=lambda _given: None,
        inside=SimpleNamespace(forget=lambda: None),
    )
    rollback = TensorFlowRollback(owner, owner, lambda: variables, owner, owner, owner, owner)
    before = {key: variable.numpy().tobytes() for key, variable in variables.items()}

    ways, found = [], []
    for on_host in (False, True):
        ways.append(rollback.hold(on_host=on_host))
        assert rollback.pulls.latest is not None
        found.append(rollback.pulls.latest.values)

    by_reference, copied = found
    assert all(isinstance(value, tf.Tensor) for value in by_reference.values())
    assert all(isinstance(value, np.ndarray | np.generic) for value in copied.values())
    read = {key: np.asarray(value) for key, value in by_reference.items()}
    assert not any(np.shares_memory(copied[key], read[key]) for key in read)
    for put_back in reversed(ways):
        for variable in variables.values():
            variable.assign(tf.zeros_like(variable))
        put_back()
        assert {key: variable.numpy().tobytes() for key, variable in variables.items()} == before


def test_what_iterators_hand_out_is_kept_as_long_as_the_moment_is() -> None:
    pytest.importorskip("tensorflow")
    from detrain.adapters.tensorflow.guard.held_state import IteratorPulls, TensorFlowHeldState

    class Counts:
        detrain_pulled = 0

    pulls, iterator, numbers = IteratorPulls(), Counts(), itertools.count()
    draw = lambda _iterator: next(numbers)  # noqa: E731
    held = TensorFlowHeldState(0, 0, {}, frozenset(), {}, {}, {}, weakref.WeakSet([iterator]), (0, {}))
    pulls.follow(held)
    first = [pulls.next(iterator, draw) for _ in range(2)]
    pulls.take_back(held)

    assert [pulls.next(iterator, draw) for _ in range(3)] == [*first, 2]
    assert [value for _iterator, value in held.pulls] == [0, 1, 2]
    del held
    assert pulls.latest is None
    assert pulls.next(iterator, draw) == 3


def test_what_is_infinite_before_the_first_step_is_so_by_intent_and_what_becomes_so_is_not(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    from detrain.adapters.tensorflow.guard.norms import TensorFlowNorms

    variables = {
        "best": tf.Variable([np.inf, 2.0]),
        "weight": tf.Variable([1.0, 2.0]),
        "slot": tf.Variable([0.0, 0.0], trainable=False),
        "nan": tf.Variable([np.nan, np.inf]),
    }
    owner: Any = SimpleNamespace(living=lambda _cls: [], find=lambda _name: None)
    watching = TensorFlowNorms(owner, lambda: variables)
    adapters = Adapters()
    adapters.add(cast(Any, SimpleNamespace(name="tensorflow", norms=watching)))
    guard = Guard(recovers=False, goes_on=False, log=tmp_path / "log", adapters=adapters, is_first=True)

    guard.must_go_back(Cursor(0, 0, 0, "epoch"), 0)
    variables["weight"].assign([np.inf, 2.0])
    variables["slot"].assign([0.0, -np.inf])
    variables["made late"] = tf.Variable([1.0, np.inf])  # by the first step, in which the fault is
    variables["best, made late"] = tf.Variable([1.0, np.inf], trainable=False)
    watching.on_change()
    watched, norms = watching.norms()

    found = dict(zip((each.key for each in watched), norms, strict=True))
    assert found.keys() == {"weight", "slot", "nan", "made late"}
    assert not np.isfinite(list(found.values())).any()


def test_bounds_from_theory_are_for_the_optimizers_of_keras_and_squares_are_told_from_sums() -> None:
    pytest.importorskip("tensorflow")
    import keras

    from detrain.adapters.tensorflow.guard.norms import find_watched

    class Adam(keras.optimizers.Adam):
        """One of a program's own: its moments may be anything."""

    found = {}
    for cls in (keras.optimizers.Adam, Adam):
        optimizer = cls(clipnorm=1.0, use_ema=True, gradient_accumulation_steps=2)
        optimizer.build([keras.Variable(np.ones((2, 3), np.float32))])
        births: Any = SimpleNamespace(living=lambda _cls, each=optimizer: [("own", each)], find=lambda _name: None)
        slots = {variable.path.rpartition("_")[2]: variable._value for variable in optimizer.variables if variable.shape}
        found[cls] = {each.group: each for each in find_watched(slots, births, lambda _key, _variable: False)}

    of_keras, own = found[keras.optimizers.Adam], found[Adam]
    powers = {"_momentums": 1, "_velocities": 2, "_accumulated_gradients": 1, "_model_variables_moving_average": 1}
    assert {group: each.power for group, each in of_keras.items()} == {f"own {name}": power for name, power in powers.items()}
    assert of_keras.keys() == own.keys()
    assert of_keras["own _velocities"].limit < 1.1 < own["own _velocities"].limit
    assert of_keras["own _momentums"].partner
    assert not own["own _momentums"].partner


def test_scalars_that_are_trained_are_watched_and_sums_by_hand_are_told_from_squares_by_their_signs() -> None:
    tf = pytest.importorskip("tensorflow")
    import keras

    from detrain.adapters.tensorflow.guard.norms import TensorFlowNorms

    weight, scalar, rate = tf.Variable([1.0, 2.0]), tf.Variable(1.0), tf.Variable(0.1)
    gradients, squares = (tf.Variable([0.0, 0.0], trainable=False) for _ in range(2))
    optimizer = keras.optimizers.Adam()
    optimizer.build([weight, scalar])
    variables = {"weight": weight, "scalar": scalar, "rate": rate, "gradients": gradients, "squares": squares}
    variables |= {f"slot {number}": variable._value for number, variable in enumerate(optimizer.variables)}
    owner: Any = SimpleNamespace(living=lambda _cls: [("Adam", optimizer)], find=lambda _name: None)
    watching = TensorFlowNorms(owner, lambda: variables)

    for _turn in range(11):
        watched, norms = watching.norms()
        gradients.assign([-1.0, 3.0])
        squares.assign([1.0, 9.0])
        scalar.assign(float("nan"))
        watching.inside.note_written(scalar.handle)

    found = {each.key: each for each in watched}
    assert "rate" not in found
    assert (found["gradients"].power, found["squares"].power) == (1, 2)
    assert not np.isfinite(norms[list(found).index("scalar")])
    assert len([key for key, each in found.items() if each.group == "Adam _momentums"]) == 2
