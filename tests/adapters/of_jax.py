"""A training with JAX, for the adapter contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detrain.adapters.api import Settings
from detrain.adapters.instruments import TakesInstruments
from detrain.adapters.jax.adapter import Jax
from detrain.base.digest import Array
from detrain.python.process.random_streams import Streams


class Training:
    """See `tests.adapters.contract.Subject`."""

    def __init__(self, trial: TakesInstruments) -> None:
        self.adapter = Jax(Settings(seed=3, threads=1, experiment=trial), Streams())
        self.params, self._key = {"w": jnp.ones((6, 3)), "b": jnp.zeros(3)}, jax.random.key(0)
        self._rows = iter(np.random.default_rng(0).normal(size=(1000, 8, 6)).astype(np.float32))
        self._train = jax.jit(self._trained)
        self.adapter.begin_phase()

    @staticmethod
    def _trained(params: Any, key: Any, rows: Any) -> Any:
        def loss(params: Any) -> Any:
            return ((rows @ params["w"] + params["b"]) * jax.random.bernoulli(key, 0.7, (3,))).var()

        return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, params, jax.grad(loss)(params))

    def step(self) -> None:
        self._step(next(self._rows))

    def _step(self, rows: Any) -> None:
        self._key, key = jax.random.split(self._key)
        self.params = self._train(self.params, key, rows)

    def state(self) -> Mapping[str, Array]:
        return {name: np.array(value) for name, value in self.params.items()}

    def constants(self) -> list[Any]:
        odd = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32).view(np.float32)
        kinds = ("int4", "int8", "int32", "uint64", "bool", "float16", "bfloat16", "complex64", "float8_e4m3fn")
        plain = [jnp.arange(6).reshape(2, 3).astype(kind) for kind in kinds]
        placed = jax.device_put(np.ones(3, np.float32), jax.devices()[0])
        return [jnp.array(odd), *plain, placed, jnp.full((2,), 1.5), jnp.zeros((0, 3)), jnp.array(True), jnp.ones((4, 3)).T]

    def tensors(self) -> list[Any]:
        return []

    def bytes_of(self, value: Any) -> bytes:
        form = (str(value.dtype), value.shape, value.weak_type, value.committed, str(value.sharding))
        return repr(form).encode() + np.asarray(value).tobytes()

    def change(self, value: Any) -> None:
        raise AssertionError(f"no array of JAX's can be changed: {value}")

    def draw(self) -> bytes:
        return b""

    def generator(self) -> tuple[object, Callable[[], bytes]] | None:
        return None

    def loader(self) -> Iterator[Any]:
        return self._rows

    def spoil(self) -> None:
        self._step(np.full((8, 6), np.nan, np.float32))


def subject(trial: TakesInstruments) -> Training:
    """Return the training."""
    return Training(trial)
