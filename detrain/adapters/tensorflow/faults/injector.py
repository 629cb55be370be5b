"""A fault in a compiled step: traced once, armed by variables, with no Python in the graph.

At the site stands `If(gate)`; all sites share one gate. While it is closed, the value passes unchanged, and the graph's
other ops are as without a fault. While it is open, each run of the op lowers the countdown by one; at 0 the value is
corrupted. For a fault in an operand the op runs once more on the corrupted operand: that op alone sees it, not the
variable behind it, nor the gradient.

A branch costs time for each variable that it takes (3 us), whether it runs or not; so one variable holds a fault's
whole plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import ops

from detrain.adapters.tensorflow.faults.eager_sites import located
from detrain.adapters.tensorflow.faults.graph_ops import operands_of
from detrain.adapters.tensorflow.values.tensors import hidden_variable, linked
from detrain.faults.experiment import BITS, Firing, Injection

_ARRAYS: Final = ("positions", "sources", "keep", "flip", "limited")
_COUNTS: Final = ("countdown", "fired", "misfits")
_VALUES: Final = ("golden", "injected")
_INTERNAL: Final = ("_class", "_output_shapes")


class ArmedSwitch:
    """The gate that arms an injection: one variable, read once in each graph, for any number of sites."""

    def __init__(self) -> None:
        self._is_open = False
        self._variable: Any = None
        self._reads: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def set(self, *, is_open: bool) -> None:
        """Open or close the gate."""
        self._is_open = is_open
        if self._variable is not None:
            self._variable.assign(is_open)

    def read(self, graph: Any) -> Any:
        """Return the gate's value when the graph runs. Called in that graph."""
        if self._variable is None:
            self._variable = hidden_variable(self._is_open, tf.bool)
        if graph not in self._reads:
            with tf.control_dependencies(None):
                self._reads[graph] = self._variable.read_value()
        return self._reads[graph]


class TensorFlowInjectionPoint:
    """The point in a graph where the injections of one place are put, one at a time."""

    def __init__(self, injections: Sequence[Injection], gate: ArmedSwitch | None = None) -> None:
        self._gate: Final = gate or ArmedSwitch()
        self._injection = injections[0]
        self._place: Final = injections[0].place
        self._bits: Final = BITS[self._injection.dtype]
        sizes = {name: max(each.array(name).size for each in injections) for name in _ARRAYS}
        self._sizes: Final = dict.fromkeys(_COUNTS, 1) | sizes | dict.fromkeys(_VALUES, sizes["keep"])
        ends = np.cumsum(list(self._sizes.values())).tolist()
        self._places: Final = {name: slice(end - size, end) for (name, size), end in zip(self._sizes.items(), ends, strict=True)}
        self._plan = np.zeros(ends[-1], np.int64)
        self._fill()
        self._variable: Any = None
        """The plan in the graph, int64: counts, arrays, and the values before and after the fault, bits as integers;
        None until the site is traced."""

    @property
    def is_placed(self) -> bool:
        """True if the site has been traced."""
        return self._variable is not None

    def fits(self, name: str, replica: int) -> bool:
        """Return whether an op's name and replica are those of the site to hit."""
        return (name, replica) == (self._injection.site, self._injection.worker)

    def is_for(self, signature: Callable[[], str]) -> bool:
        """Return whether an op with the site's name is the one to hit, which another trace may lack."""
        return self._injection.signature in ("", signature())

    def takes(self, injection: Injection) -> bool:
        """Return whether an injection is one of this place."""
        return self._place == injection.place

    def select(self, injection: Injection) -> None:
        """Apply this injection from now on, and forget all that was done before."""
        self._injection = injection
        self._plan[:] = 0
        self._fill()
        self._assign()

    def arm(self, occurrence: int) -> None:
        """Have the next run of the site hit, or the one so many runs later."""
        self._set_countdown(occurrence + 1)

    def disarm(self) -> None:
        """Have no run hit."""
        self._set_countdown(0)

    def _set_countdown(self, value: int) -> None:
        self._gate.set(is_open=value > 0)
        if self._variable is not None:
            self._plan[:] = self._variable.numpy()
        self._plan[self._places["countdown"]] = value
        self._assign()

    def _fill(self) -> None:
        """Put the injection into the plan.

        All injections' arrays get the same length: the first element is repeated at the end.
        """
        for name in _ARRAYS:
            array = self._injection.array(name)
            self._plan[self._places[name]] = np.concatenate([array, np.repeat(array[:1], self._sizes[name] - array.size)])

    def _assign(self) -> None:
        if self._variable is not None:
            self._variable.assign(self._plan.copy())  # a copy: TensorFlow may take over the array's memory

    def firing(self) -> Firing | None:
        """Return the faults done so far; None if there were none."""
        plan = {} if self._variable is None else {name: self._variable.numpy()[place] for name, place in self._places.items()}
        if not plan or not (plan["fired"][0] or plan["misfits"][0]):
            return None
        kind, count = np.dtype(self._bits).newbyteorder("<"), self._injection.array("keep").size
        golden, injected = (plan[name][:count].astype(kind).tobytes() for name in _VALUES)
        return Firing(int(plan["fired"][0]), golden, injected, int(plan["misfits"][0]))

    def replace(self, op: Any, output: int, golden: Any) -> Any:
        """Return the output with the fault's branch in place. Called in the op's graph, while no tape records."""
        if self._variable is None:
            self._variable = hidden_variable(self._plan.copy(), tf.int64)
        variable = self._variable
        index, tensor = located(op, self._injection, operands_of(op, output))

        def armed() -> Any:
            plan = dict(zip(self._sizes, tf.split(variable.read_value(), list(self._sizes.values())), strict=True))
            has_shape = tf.equal(tf.size(tensor, out_type=tf.int64), self._injection.elements)
            # In a smaller batch the operand (a weight) may keep its size, while there are fewer outputs.
            if self._injection.limited:
                size = tf.size(golden, out_type=tf.int64)
                has_outputs = tf.equal(size, self._injection.outputs) | (self._injection.outputs == 0)
                has_shape &= has_outputs & (tf.reduce_max(plan["limited"]) < size)
            plan["countdown"] -= 1
            is_now = tf.equal(plan["countdown"][0], 0)
            plan["fired"] += tf.cast(is_now & has_shape, tf.int64)
            plan["misfits"] += tf.cast(is_now & ~has_shape, tf.int64)
            result, *values = tf.cond(
                is_now & has_shape,
                lambda: self._hit(op, index, tensor, golden, plan),
                lambda: (tf.identity(golden), *(tf.identity(plan[name]) for name in _VALUES)),
            )
            plan.update(zip(_VALUES, values, strict=True))
            variable.assign(tf.concat(list(plan.values()), 0), read_value=False)
            return result

        result = tf.cond(self._gate.read(golden.graph), armed, lambda: tf.identity(golden))
        if len(tf.config.list_logical_devices()) == 1:
            _leave_whole(result)
        return linked(golden, result)

    def _hit(self, op: Any, index: int, tensor: Any, golden: Any, plan: dict[str, Any]) -> tuple[Any, ...]:
        """Return the op's output under the fault, and the values before and after the fault."""
        flat = tf.reshape(tensor, [-1])
        is_bool = tensor.dtype == tf.bool  # a byte that is 0 or 1
        bits = flat if tensor.dtype.is_integer else tf.cast(flat, tf.int8) if is_bool else tf.bitcast(flat, self._bits)
        keep, flip = (tf.cast(plan[name], bits.dtype) for name in ("keep", "flip"))
        value = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_and(tf.gather(bits, plan["sources"]), keep), flip)
        met = tf.gather(bits, plan["positions"])
        bits = tf.tensor_scatter_nd_update(bits, plan["positions"][:, tf.newaxis], value)
        # Not `value`: XLA on a CPU compiles a plan with that into code that crashes.
        made = tf.gather(bits, plan["positions"])
        faulty = bits if tensor.dtype.is_integer else bits != 0 if is_bool else tf.bitcast(bits, tensor.dtype)
        faulty = tf.reshape(faulty, tf.shape(tensor))
        if self._injection.operand != "output":
            faulty = _again(op, index, faulty)
            if self._injection.limited:
                flat = tf.reshape(faulty, [-1])
                limited = plan["limited"]
                mixed = tf.tensor_scatter_nd_update(tf.reshape(golden, [-1]), limited[:, tf.newaxis], tf.gather(flat, limited))
                faulty = tf.reshape(mixed, tf.shape(golden))
        faulty.set_shape(golden.shape)
        return faulty, tf.cast(met, tf.int64), tf.cast(made, tf.int64)


def _leave_whole(result: Any) -> None:
    """Have a branch run as one op, in half the time: otherwise the executor has to pass by the ops of both sides.

    This is done only if there is one device: as one op a branch would have to place all its variables by itself.
    """
    branch = result.op.inputs[0].op if result.op.type == "Identity" else result.op
    branch._set_attr("_lower_using_switch_merge", attr_value_pb2.AttrValue(b=False))


def _again(op: Any, index: int, faulty: Any) -> Any:
    """Return the first output of an op run again, with only one input exchanged, even if it takes a tensor twice."""
    inputs = [faulty if place == index else each for place, each in enumerate(op.inputs)]
    attributes = {name: value for name, value in op.node_def.attr.items() if name not in _INTERNAL}
    graph = ops.get_default_graph()
    again = graph._create_op_internal(op.type, inputs, [output.dtype for output in op.outputs], attrs=attributes, op_def=op.op_def)
    return again.outputs[0]
