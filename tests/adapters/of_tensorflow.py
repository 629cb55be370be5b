"""A training with Keras on TensorFlow, for the adapter contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from detrain.adapters.api import Settings
from detrain.adapters.instruments import TakesInstruments
from detrain.adapters.tensorflow.adapter import TensorFlow
from detrain.base.digest import Array
from detrain.python.process.random_streams import Streams


class Training:
    """See `tests.adapters.contract.Subject`."""

    def __init__(self, trial: TakesInstruments) -> None:
        self.adapter = TensorFlow(Settings(seed=3, threads=1, experiment=trial), Streams())
        import keras

        self.adapter.on_import("keras")
        keras.utils.set_random_seed(3)
        layers = keras.layers
        self.model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(3)]
        )
        self.optimizer = keras.optimizers.Adam(0.01)
        self.scale = tf.Variable([1.5, -2.0])
        self.optimizer.build(self.model.trainable_variables)
        rows = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
        self._iterator = iter(tf.data.Dataset.from_tensor_slices(rows).shuffle(20, seed=5).repeat().batch(8))
        self._own = tf.random.Generator.from_seed(9)
        model, optimizer, scale = self.model, self.optimizer, self.scale

        @tf.function
        def step(rows: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(rows, training=True))) + tf.reduce_sum(scale**2)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            scale.assign(scale * 0.9)

        self._step = step
        self.adapter.begin_phase()

    def step(self) -> None:
        self._step(next(self._iterator))

    def state(self) -> Mapping[str, Array]:
        found = {f"{each.path} {number}": each.numpy() for number, each in enumerate(self.model.variables)}
        found |= {f"{each.path} {number} of Adam": each.numpy() for number, each in enumerate(self.optimizer.variables)}
        return found | {"scale": self.scale.numpy()}

    def constants(self) -> list[Any]:
        odd = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32).view(np.float32)
        plain = [np.arange(6).reshape(2, 3).astype(name) for name in ("int8", "uint16", "int64", "float16", "complex64")]
        texts = tf.constant([b"a\0", b"", "µ".encode()])
        narrow = tf.cast(tf.constant([1.5, float("inf")]), tf.bfloat16)
        return [tf.constant(odd), *map(tf.constant, plain), tf.constant(True), tf.zeros((0, 3)), texts, narrow]

    def tensors(self) -> list[Any]:
        return []

    def change(self, _value: Any) -> None:
        raise AssertionError("TensorFlow has no such tensors")

    def bytes_of(self, value: Any) -> bytes:
        return f"{value.dtype.name} {value.shape}".encode() + tf.io.serialize_tensor(value).numpy()

    def draw(self) -> bytes:
        return tf.random.normal((4,)).numpy().tobytes()

    def generator(self) -> tuple[object, Callable[[], bytes]]:
        return self._own, lambda: self._own.normal((4,)).numpy().tobytes()

    def loader(self) -> Iterator[Any]:
        return self._iterator

    def objects(self) -> list[object]:
        return []

    def watched(self) -> Mapping[str, Array]:
        assert self.adapter.variables is not None
        return self.adapter.variables.tensors()

    def spoil(self) -> None:
        self._step(tf.fill((8, 6), float("nan")))


def subject(trial: TakesInstruments) -> Training:
    """Return the training."""
    return Training(trial)
