"""A training with JAX, for the adapter contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from detrain.adapters.api import Settings
from detrain.adapters.instruments import TakesInstruments
from detrain.adapters.jax.adapter import Jax
from detrain.base.digest import Array
from detrain.python.process.random_streams import Streams


class Training:
    """See `tests.adapters.contract.Subject`."""

    def __init__(self, trial: TakesInstruments) -> None:
        self.adapter = Jax(Settings(seed=3, threads=1, experiment=trial), Streams())
        self.adapter.on_import("optax")
        self.optimizer = optax.adam(0.1)
        self.held: dict[str, Any] = {"params": {"w": jnp.ones((6, 3)), "b": jnp.zeros(3)}, "mean": jnp.zeros(3)}
        self.held |= {"state": self.optimizer.init(self.held["params"]), "key": jax.random.key(0)}
        self._rows, self.place = np.random.default_rng(0).normal(size=(1000, 8, 6)).astype(np.float32), {"row": 0}
        self._train = jax.jit(self._trained, donate_argnums=0)
        self.adapter.begin_phase()

    def _trained(self, held: Any, rows: Any) -> Any:
        key, sub = jax.random.split(held["key"])

        def loss(params: Any) -> Any:
            given = rows @ params["w"] + params["b"]
            return (given * jax.random.bernoulli(sub, 0.7, (3,))).var(), given.mean(0)

        (value, mean), grads = jax.value_and_grad(loss, has_aux=True)(held["params"])
        updates, state = self.optimizer.update(grads, held["state"])
        params = optax.apply_updates(held["params"], updates)
        return {"params": params, "state": state, "key": key, "mean": 0.9 * held["mean"] + 0.1 * mean}, value

    def step(self) -> None:
        self._step(self._rows[self.place["row"]])
        self.place["row"] += 1

    def _step(self, rows: Any) -> None:
        held, _loss = self._train(self.held, rows)
        self.held.update(held)

    def state(self) -> Mapping[str, Array]:
        moments = self.held["state"][0]
        found = {name: np.array(value) for name, value in self.held["params"].items()}
        found |= {f"{name} of Adam": np.array(value) for name, value in moments.mu.items()}
        found |= {f"{name} of nu of Adam": np.array(value) for name, value in moments.nu.items()}
        return {**found, "count of Adam": np.array(moments.count), "running_mean": np.array(self.held["mean"])}

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
        return iter(self._rows)

    def objects(self) -> list[object]:
        return [self.held, self.place]

    def watched(self) -> Mapping[str, Array]:
        self.adapter.names.look()
        return self.adapter.names.tensors()

    def spoil(self) -> None:
        self._step(np.full((8, 6), np.nan, np.float32))


def subject(trial: TakesInstruments) -> Training:
    """Return the training."""
    return Training(trial)
