"""Faults in values of all dtypes in JAX, compared with NumPy's. Run by test_jax in a process of its own."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from detrain.adapters.jax.faults.injector import InjectionPoint
from detrain.faults.bits import DTYPES
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Experiment
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from tests.faults.jax_by_hand import begin

MODELS = ("FLIP:1", "ZERO", "RD_CORRECT", "N16_RD_CORRECT", "RANDOM", "STUCK1:0")


def main() -> None:
    """Print the differences."""
    instruments, wrong = begin([Experiment(log="")]), []
    for number, dtype in enumerate(DTYPES):
        given = jnp.asarray(np.random.default_rng(number).integers(0, 2 if dtype == "bool" else 100, (5, 8))).astype(dtype)

        def step(value: Any) -> Any:
            return value & value.T[:5, :5].any() if value.dtype == np.dtype(bool) else value * value

        function = jax.jit(step)
        instruments.begin_step()
        golden = np.asarray(function(given))
        sites = [site for site in instruments.sites() if site.operands["output"].shape == (5, 8) and site.is_alive]
        for model in MODELS:
            injection = draw_injection(sites[-1], model_named(model), 0, trial_rng(number, 1))
            instruments._points[:] = [InjectionPoint([injection])]
            instruments.select(injection)
            instruments.arm(0)
            found = np.asarray(function(given))
            instruments.disarm()
            firing = instruments.firing()
            bits = patterns(golden, dtype)
            at, sources = (injection.array(name) for name in ("positions", "sources"))
            keep, flip = (injection.array(name).view(bits.dtype) for name in ("keep", "flip"))
            before = bits[at].copy()
            bits[at] = (bits[sources] & keep) ^ flip
            if patterns(found, dtype).tobytes() != bits.tobytes():
                wrong.append(f"{dtype} {model}")
            if firing is None or (firing.golden, firing.injected) != (before.tobytes(), bits[at].tobytes()):
                wrong.append(f"{dtype} {model}: {firing}")
    print(json.dumps(wrong))


def patterns(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the bits of values [element]; of dtypes of fewer than eight bits, those that count."""
    kind = DTYPES[dtype]
    return np.array(values).reshape(-1).view(kind.unsigned) & kind.unsigned.type(2**kind.width - 1)


if __name__ == "__main__":
    main()
