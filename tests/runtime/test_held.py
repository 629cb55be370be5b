"""What a checkpoint has read is written while training goes on: no op that changes a variable
may change what was read.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

_DENSE = """
AdaMax Adadelta Adagrad AdagradV2 Adam AdamWithAmsgrad AddSign CenteredRMSProp
Ftrl FtrlV2 GradientDescent KerasMomentum Momentum PowerSign ProximalAdagrad ProximalGradientDescent RMSProp
"""
_SPARSE = (
    "Adadelta Adagrad AdagradV2 CenteredRMSProp Ftrl FtrlV2 KerasMomentum Momentum ProximalAdagrad ProximalGradientDescent RMSProp"
)
_SCATTER = "Add Div Max Min Mul NdAdd NdMax NdMin NdSub NdUpdate Sub Update"
UPDATES = [
    *("AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp", "ResourceStridedSliceAssign"),
    *(f"ResourceApply{name}" for name in _DENSE.split()),
    *(f"ResourceSparseApply{name}" for name in _SPARSE.split()),
    *(f"ResourceScatter{name}" for name in _SCATTER.split()),
]
"""The ops of TensorFlow that change a variable in place."""


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    tf.get_logger().setLevel("ERROR")


@pytest.mark.parametrize("how", ["eager", "compiled", "xla"])
@pytest.mark.parametrize("name", UPDATES)
def test_no_op_changes_what_was_read(name: str, how: str) -> None:
    from detrain.adapters.tensorflow.values.tensors import read_each

    variables, update = _prepared(name)
    if how != "eager":
        update = tf.function(update, jit_compile=how == "xla")
    moved = 0
    for _turn in range(3):  # the first sparse update changes how a variable is read from then on
        held = read_each(variables)
        before = {key: array.copy() for key, array in held.items()}
        try:
            update()
        except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
            if how == "xla" and "unsupported op" in str(error).lower():
                pytest.skip("XLA has no such op")
            raise
        assert list(held) == list(variables)
        assert all(np.array_equal(held[key], before[key], equal_nan=True) for key in held)
        moved += any(not np.array_equal(variables[key].numpy(), before[key], equal_nan=True) for key in held)
    assert moved


def _prepared(name: str) -> tuple[dict[str, Any], Any]:
    """Return variables and a function without arguments that updates them by an op."""
    from tensorflow.python.framework import op_def_registry

    draw, rows = np.random.default_rng(0), 1024
    definition = op_def_registry.get(name)
    references = [each for each in definition.input_arg if each.type == tf.resource.as_datatype_enum]
    variables = {each.name: tf.Variable(draw.random((rows, 4), np.float32) + 0.5) for each in references}
    arguments: dict[str, Any] = {key: variable.handle for key, variable in variables.items()}
    is_sparse = "Sparse" in name or "Scatter" in name
    at = np.array([1, 5, 9, 700], np.int32)
    values = {
        "indices": at[:, None] if "Nd" in name else at,
        **dict.fromkeys(("grad", "delta", "value", "updates"), _values(name, draw, 4 if is_sparse else rows)),
        "global_step": np.int64(3),
        "lr_power": np.float32(-0.5),
        "begin": np.array([2, 0], np.int32),
        "end": np.array([6, 4], np.int32),
        "strides": np.ones(2, np.int32),
    }
    if "StridedSlice" in name:
        values["value"] = draw.random((4, 4), np.float32)
    arguments |= {
        each.name: tf.constant(values.get(each.name, np.float32(0.5)))
        for each in definition.input_arg
        if each.name not in arguments
    }
    op = getattr(tf.raw_ops, name)

    def update() -> None:
        op(**arguments)

    return variables, update


def _values(name: str, draw: Any, rows: int) -> Any:
    values = draw.random((rows, 4), np.float32)
    return values - 1 if "Min" in name else values + 1


def test_a_value_that_waits_is_copied_because_its_variable_may_take_its_memory_over() -> None:
    from detrain.adapters.tensorflow.variables import TensorFlowVariables

    waiting = np.zeros(1 << 19, np.float32)
    nothing = SimpleNamespace(arrays=dict)
    adapter: Any = SimpleNamespace(_pending={"late": waiting}, alive=dict, _tables=nothing)

    found = TensorFlowVariables.tensors(adapter)

    assert np.array_equal(found["late"], waiting)
    assert not np.shares_memory(found["late"], waiting)


def test_variables_of_all_devices_and_dtypes_are_read_and_those_without_a_value_left_out() -> None:
    from detrain.adapters.tensorflow.values.tensors import read_each

    given = {
        dtype.name: tf.cast(tf.constant([[0.5, -3.0]]), dtype)
        for dtype in (tf.float16, tf.bfloat16, tf.float64, tf.int8, tf.uint16, tf.int64, tf.bool, tf.complex64)
    }
    variables: dict[str, Any] = {key: tf.Variable(value) for key, value in given.items()}
    with tf.device("CPU:1" if len(tf.config.list_logical_devices("CPU")) > 1 else "CPU:0"):
        variables["there"] = tf.Variable(3.0)
    variables["text"] = tf.Variable(["a"])
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(), shared_name="without a value")
    variables["none"] = SimpleNamespace(handle=handle, dtype=tf.float32)

    found = read_each(variables)

    assert found.pop("there") == 3.0
    assert list(found) == list(given)
    for key, value in given.items():
        assert found[key].dtype == value.dtype.as_numpy_dtype
        assert found[key].tobytes() == value.numpy().tobytes()
