"""Prints the series of `StepMetrics`, as JSON. Run by test_series.py in its own process: it changes TensorFlow."""

from __future__ import annotations

import gc
import json
import os

import keras
import tensorflow as tf

from detrain.adapters.api import Settings
from detrain.adapters.tensorflow.adapter import TensorFlow
from detrain.adapters.tensorflow.faults.graph_sites import Sites
from detrain.adapters.tensorflow.faults.step_metrics import StepMetrics
from detrain.faults.experiment import Experiment
from detrain.python.process.random_streams import Streams
from detrain.runtime.observers.experiment_run import ExperimentRun

TensorFlow(Settings(0, 1), Streams())
experiment = ExperimentRun([Experiment(log=os.devnull)], dict, lambda: None)
series = StepMetrics(Sites(lambda _name, _replica: [], counts=False), experiment)
series.on_keras()
weight = tf.Variable(2.0)


@tf.function
def often(x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = weight * x
    tape.gradient(loss, weight)


@tf.function
def seldom(x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = 100.0 * weight * x
    tape.gradient(loss, weight)


def of_two_tapes() -> list[dict[str, float]]:
    """Return the series of steps: a second gradient is taken in each third step, and none in the last."""
    said = []
    for step in range(5):
        often(tf.constant(1.0))
        if step % 3 == 2:
            seldom(tf.constant(1.0))
        said.append(series.read())
    return [*said, series.read(), {"has_loss": series.has_loss()}]


def of_tapes_in_loops() -> list[dict[str, str]]:
    """Return the series for a loss in a loop that may be NaN in the first turn: compiled, by calls, eager."""

    def step(turns: tf.Tensor) -> None:
        for turn in turns:
            with tf.GradientTape() as tape:
                loss = weight * turn
            tape.gradient(loss, weight)

    said = []
    for turns in ([1.0, 2.0, 3.0], [float("nan"), 2.0]):
        for run in (tf.function(step), lambda x: [often(each) for each in x], step):
            run(tf.constant(turns))
            said.append({name: repr(loss) for name, loss in series.read().items()})
    return said


def of_inner_gradients() -> list[dict[str, float]]:
    """Return the series for a gradient under another tape, and one taken while another is taken; compiled, eager."""

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                out = weight * x * x
            loss = tf.recompute_grad(lambda a: 100.0 * weight * a)(x) + inner.gradient(out, x)
        tape.gradient(loss, weight)

    tf.function(step)(tf.constant(3.0))
    said = [series.read()]
    step(tf.constant(3.0))
    return [*said, series.read()]


def of_metrics_with_one_name() -> list[dict[str, float]]:
    """Return the series of metrics with one name, made in this order; the third is alone in the second step."""
    metrics = [keras.metrics.Mean(name="loss") for _ in range(9)]
    for number, metric in enumerate(metrics):
        metric.update_state(float(number))
    said = [series.read()]
    metrics[2].update_state(7.0)
    return [*said, series.read()]


def of_a_resumed_process() -> list[dict[str, float]]:
    """Return the series of a metric whose total is set to that of a checkpoint after the metric is made and before the
    first step; a trial step was run before.
    """
    often(tf.constant(1.0))
    metric = keras.metrics.Mean(name="mean")
    metric.total.assign(30.0)
    metric.count.assign(10.0)
    series.begin()
    metric.update_state(5.0)
    return [series.read()]


def of_metrics_that_are_made_anew() -> list[dict[str, float]]:
    """Return the series of metrics that each get the place in memory of the one before, with a larger count."""
    said = []
    for count in range(1, 4):
        metric = keras.metrics.Mean(name="mean")
        for _ in range(count):
            metric.update_state(float(count))
        said.append(series.read())
        del metric
        gc.collect()
    return said


def of_many_kinds() -> list[dict[str, float]]:
    """Return the series of many kinds of metrics: those without a total and a count are left out."""
    y, out = tf.constant([[0.0, 1.0], [1.0, 0.0]]), tf.constant([[0.1, 0.9], [0.3, 0.7]])
    metrics = [
        keras.metrics.F1Score(),
        keras.metrics.AUC(),
        keras.metrics.R2Score(),
        keras.metrics.CategoricalAccuracy(),
        keras.metrics.Sum(),
    ]
    for metric in metrics[:-1]:
        metric.update_state(y, out)
    metrics[-1].update_state(out)
    iou = keras.metrics.MeanIoU(2)
    iou.update_state(tf.argmax(y, 1), tf.argmax(out, 1))
    return [series.read()]


def of_a_total_that_a_fault_has_made_huge() -> list[dict[str, float]]:
    """Return the series around a huge value: later additions to the total are lost, and the tape's
    loss counts; the same after infinity.
    """
    loss, accuracy = keras.metrics.Mean(name="loss"), keras.metrics.Mean(name="accuracy")
    said = []
    for value in (3.0, 1e30, 5.0, float("inf"), 6.0):
        often(tf.constant(value / 2))
        loss.update_state(value)
        accuracy.update_state(0.5)
        said.append(series.read())
    return said


said = {
    function.__name__: function()
    for function in (of_two_tapes, of_tapes_in_loops, of_inner_gradients, of_metrics_with_one_name, of_a_resumed_process)
}
said |= {
    function.__name__: function()
    for function in (of_metrics_that_are_made_anew, of_many_kinds, of_a_total_that_a_fault_has_made_huge)
}
print(json.dumps(said))
