"""A fault at one of eight devices, in a `shard_map` that stands in a branch of a loop of another one, compared with a
step that has it in its own text. Run by test_jax in a process of its own: prints the differences.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from detrain.adapters.jax.faults.injector import InjectionPoint
from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from tests.adapters.trial import PROFILE
from tests.faults.jax_by_hand import begin

MESH = jax.make_mesh((4, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
TURNS, BIT = 3, 30


def step_with(hand: Any, *, checks: bool = True) -> Any:
    """Return a step; `hand`: the name of an op, the indices of a device on each axis, a position and a turn."""

    def at(op: str, value: Any, turn: Any) -> Any:
        if hand is None or hand[0] != op:
            return value
        _op, device, position, when = hand
        bits = lax.bitcast_convert_type(value, jnp.uint32).reshape(-1)
        changed = lax.bitcast_convert_type(bits.at[position].set(bits[position] ^ (1 << BIT)).reshape(value.shape), jnp.float32)
        is_here = turn == when
        for axis, index in zip(MESH.axis_names, device, strict=False):
            is_here &= lax.axis_index(axis) == index
        return jnp.where(is_here, changed, value)

    def on_both(block: Any, turn: Any) -> Any:
        return lax.psum(at("sin", jnp.sin(block), turn), "columns")

    def on_rows(block: Any) -> Any:
        whole = PartitionSpec(None, "columns")
        inner = jax.shard_map(
            on_both, in_specs=(whole, PartitionSpec()), out_specs=PartitionSpec(), axis_names={"columns"}, check_vma=checks
        )

        def body(carry: Any, turn: Any) -> Any:
            sums = lax.cond(turn < TURNS, lambda: inner(carry, turn), lambda: carry[:, :4])
            return at("tanh", jnp.tanh(jnp.concatenate([sums, sums[:, ::-1]], 1)), turn), None

        return lax.scan(body, block, jnp.arange(TURNS))[0]

    spec = PartitionSpec("rows")
    outer = jax.shard_map(on_rows, mesh=MESH, in_specs=spec, out_specs=spec, axis_names={"rows"}, check_vma=checks)
    return jax.jit(lambda rows: outer(rows) * 2)


def main() -> None:
    """Hit each of the two ops on two devices, in two turns, and print the differences."""
    instruments, wrong, tried = begin([PROFILE]), [], 0
    given = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    rows = jax.device_put(given, NamedSharding(MESH, PartitionSpec("rows")))
    for checks in (True, False):
        step = step_with(None, checks=checks)
        instruments.begin_step()
        golden = np.asarray(step(rows))
        sites = {site.op: site for site in instruments.sites()}
        if "psum" in " ".join(sites) and checks:
            wrong.append("a value that is the same on all devices is a site")
        for op, on in (("sin", MESH.devices.shape), ("tanh", MESH.devices.shape[:1])):
            site = sites[op]
            if (site.replicas, site.executions) != (np.prod(on), TURNS):
                wrong.append(f"{site.name}: {site.replicas} devices, {site.executions} runs")
            for worker in (0, site.replicas - 2):
                turn = worker % TURNS
                injection = draw_injection(site, model_named(f"BIT:{BIT}"), worker, trial_rng(worker, 3))
                instruments._points[:] = [InjectionPoint([injection])]
                instruments.select(injection)
                instruments.arm(turn)
                found = np.asarray(step(rows))
                instruments.disarm()
                firing, device = instruments.firing(), np.unravel_index(worker, on, order="F")
                hand = (op, tuple(map(int, device)), int(injection.array("positions")[0]), turn)
                expected = np.asarray(step_with(hand, checks=checks)(rows))
                tried += 1
                if firing is None or firing.count != 1 or found.tobytes() == golden.tobytes():
                    wrong.append(f"{site.name} on {worker}: {firing}")
                if found.tobytes() != expected.tobytes():
                    wrong.append(f"{site.name} on {worker}: another result than by hand")
    print(json.dumps({"wrong": wrong, "tried": tried}))


if __name__ == "__main__":
    main()
