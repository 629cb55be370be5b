"""The loss (the value whose gradient a training step takes) and Keras's metrics of each step, read without a change of
the program.

In a compiled step the loss goes into a hidden variable; in eager code it is read. Metrics are read from their totals,
so that each step has a value of its own, not the mean since the epoch began.
"""

from __future__ import annotations

import math
import sys
import weakref
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_resource_variable_ops, resource_variable_ops

from detrain.adapters.instruments import TakesInstruments
from detrain.adapters.tensorflow.faults.graph_owners import function_of, replica_of
from detrain.adapters.tensorflow.faults.graph_sites import Sites
from detrain.adapters.tensorflow.values.tensors import array_of, hidden_variable
from detrain.base.in_place import in_place_of

_NOTHING: Final = np.zeros(2)


class StepMetrics:
    """The losses and metrics of steps."""

    def __init__(self, sites: Sites, experiment: TakesInstruments) -> None:
        self._sites, self._experiment = sites, experiment
        self._watch_calls()
        self._losses: dict[tuple[str, int], Any] = {}
        """Hidden variables by (function and turn in it, replica): [number of notes, sum of losses] since they
        were last read."""
        self._nothing: Any = None
        """The content of these variables before any note; None until TensorFlow is in use, then a tensor."""
        self._eager: dict[str, float] = {}
        self._turns: dict[tuple[int, int], int] = {}
        """How many gradients have been taken, by (id of the graph, replica)."""
        self._graphs: list[Any] = []
        self._metrics: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """How often each metric was reset, in the order in which metrics were made."""
        self._seen: weakref.WeakKeyDictionary[Any, tuple[int, float, float]] = weakref.WeakKeyDictionary()
        """By metric: its number of resets, its total and its count at the last reading."""
        original = tf.GradientTape.gradient

        @in_place_of(tf.GradientTape, "gradient")
        def gradient(tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            # The gradient of a penalty, or of a block computed again (`recompute_grad`), is no loss's.
            if not sites.where.is_inner(tape):
                self._note(target)
            return original(tape, target, *args, **kwargs)

    def _watch_calls(self) -> None:
        """Have compiled functions return 0 for values that are not finite once a trial ends with their step, and only
        zeros if they raise.

        Most programs end at a loss that is no number, but their process has other trials to do.
        """
        original = concrete_function.ConcreteFunction._call_flat

        @in_place_of(concrete_function.ConcreteFunction, "_call_flat")
        def called(function: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(function, *args, **kwargs)
            except tf.errors.OpError as error:
                nothing = _nothing_of(function) if context.executing_eagerly() else None
                if nothing is None or not self._experiment.ends_with_error(error, sys._getframe(1)):
                    raise
                return nothing
            is_over = context.executing_eagerly() and self._experiment.ends_with(self.loss_so_far)
            return tf.nest.map_structure(_finite, result) if is_over else result

    def on_keras(self) -> None:
        """Watch Keras's metrics: Keras has been imported."""
        import keras

        self._watch_metrics(keras.metrics.Metric, keras.metrics.Mean)

    def on_keras_2(self) -> None:
        """Watch the metrics of Keras 2 (`tf_keras`), which has been imported."""
        import tf_keras

        self._watch_metrics(tf_keras.metrics.Metric, tf_keras.metrics.Metric)

    def _watch_metrics(self, cls: Any, reset_by: Any) -> None:
        """Watch a class of metrics. `reset_by`: the class from which means have their `reset_state`."""
        original_init, original_reset = cls.__init__, reset_by.reset_state

        @in_place_of(cls, "__init__")
        def made(metric: Any, *args: Any, **kwargs: Any) -> None:
            original_init(metric, *args, **kwargs)
            self._metrics.setdefault(metric, 0)

        @in_place_of(reset_by, "reset_state")
        def reset(metric: Any) -> None:
            self._metrics[metric] = self._metrics.get(metric, 0) + 1
            original_reset(metric)

    def _note(self, target: Any) -> None:
        tensors = [tensor for tensor in tf.nest.flatten(target) if tf.is_tensor(tensor) and tensor.dtype.is_floating]
        if not tensors:
            return
        if context.executing_eagerly():
            name = f"{sys._getframe(2).f_code.co_name} {sys._getframe(2).f_lineno}"
            loss = float(sum(array_of(tf.convert_to_tensor(tensor)).astype(np.float64).sum() for tensor in tensors))
            self._eager[name] = self._eager.get(name, 0.0) + loss
            return
        graph = ops.get_default_graph()
        function = function_of(graph)
        if function is None:
            return
        replica = replica_of(graph)
        turn = self._turns[id(graph), replica] = self._turns.get((id(graph), replica), -1) + 1
        self._graphs.append(graph)  # kept alive, so that no other graph gets its id
        with self._sites.own_ops(graph):
            key = (f"{function} {turn}", replica)
            if key not in self._losses:
                self._losses[key] = hidden_variable(_NOTHING, tf.float64)
            total = tf.add_n([tf.reduce_sum(tf.cast(tensor, tf.float64)) for tensor in tensors])
            self._losses[key].assign_add(tf.stack([tf.ones_like(total), total]), read_value=False)

    def begin(self) -> None:
        """Drop losses and metrics noted before the first step of this process, which is about to run."""
        self.read()

    def loss_so_far(self) -> float:
        """Return the loss of the step under way, as far as it is known."""
        return sum(self._eager.values()) + sum(float(_read(each)[1]) for each in self._losses.values())

    def has_loss(self) -> bool:
        """Return whether a gradient has been taken since the last call of `read`, or none ever is."""
        return not self._losses or bool(self._eager) or any(_read(each)[0] for each in self._losses.values())

    def read(self) -> dict[str, float]:
        """Return the loss of the step that has ended (over all replicas and tapes, also those in loops), and its
        metrics.

        A step that takes no gradient has no loss.
        """
        losses = self._take_losses()
        return ({"loss": float(sum(losses))} if losses else {}) | self._read_metrics()

    def _take_losses(self) -> list[float]:
        """Return the losses noted since the last call, and forget them."""
        losses = list(self._eager.values())
        self._eager.clear()
        for variable in self._losses.values():
            count, loss = _read(variable).tolist()
            if count:
                losses.append(loss)
                if self._nothing is None:
                    self._nothing = tf.constant(_NOTHING)
                # This takes a fifth of the time of `assign`.
                gen_resource_variable_ops.assign_variable_op(variable.handle, self._nothing)
        return losses

    def state(self) -> object:
        """Return the metrics' counts and totals that are remembered from step to step."""
        return self._metrics.copy(), self._seen.copy()

    def set_state(self, state: Any) -> None:
        """Restore the counts and totals that `state` returned, and forget losses noted since."""
        metrics, seen = state
        self._metrics.update(metrics)
        self._seen = seen.copy()
        self._take_losses()

    def _read_metrics(self) -> dict[str, float]:
        """Return the mean of each metric's values since the last reading; metrics without new values are left out.

        So are metrics whose earlier total a fault has made so large that it swallows additions. If several metrics have
        one name, the second in the order of their making gets `_1` behind it, and so on, as Keras names layers.
        """
        values: dict[str, float] = {}
        for metric, resets in sorted(self._metrics.items(), key=lambda pair: str(pair[0].name)):
            total, count = _value(metric, "total"), _value(metric, "count")
            if total is None or count is None:
                continue
            before = self._seen.get(metric, (0, 0.0, 0.0))
            self._seen[metric] = (resets, total, count)
            if before[0] != resets or count < before[2]:
                before = (resets, 0.0, 0.0)
            if count > before[2] and not _is_lost(total - before[1], before[1], count - before[2]):
                name, turn = str(metric.name), 0
                while (numbered := f"{name}_{turn}" if turn else name) in values:
                    turn += 1
                values[numbered] = (total - before[1]) / (count - before[2])
        return values


def _nothing_of(function: Any) -> Any:
    """Return zeros in the form of a function's results; None if a shape is not known."""
    found = function.structured_outputs
    tensors = [each for each in tf.nest.flatten(found) if isinstance(each, tf.Tensor)]
    if not tensors or not all(each.shape.is_fully_defined() for each in tensors):
        return None
    return tf.nest.map_structure(lambda each: tf.zeros(each.shape, each.dtype) if isinstance(each, tf.Tensor) else each, found)


def _finite(value: Any) -> Any:
    if not isinstance(value, ops.EagerTensor) or not value.dtype.is_floating:
        return value
    array = value.numpy()
    return tf.constant(np.where(np.isfinite(array), array, np.zeros((), array.dtype)), value.dtype)


def _is_lost(added: float, total: float, count: float) -> bool:
    """Return whether the additions to a float32 total are too small beside it to be read, or the total is not finite.

    They can be read if the mean is exact to 0.01, or to a sixteenth of itself: an accuracy always is.
    """
    unit = float(np.spacing(np.float32(abs(total))))
    return not math.isfinite(total) or (unit > count / 100 and abs(added) < 16 * unit)


def _value(metric: Any, name: str) -> float | None:
    variable = getattr(metric, name, None)
    value = getattr(variable, "_value", variable)
    if not isinstance(value, tf.Variable) or value.shape.rank != 0:
        return None
    return float(_read(value))


def _read(variable: Any) -> Any:
    """Return a variable's value without the Python layers of its own `numpy`: this is done after each step."""
    if not isinstance(variable, resource_variable_ops.BaseResourceVariable):  # a variable with copies on replicas
        return variable.numpy()
    return array_of(gen_resource_variable_ops.read_variable_op(variable.handle, variable.dtype))
