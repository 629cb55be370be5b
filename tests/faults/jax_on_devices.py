"""A fault at one of eight devices, in a step under `shard_map`, compared with a step that has it in its own text. Run
by test_jax in a process of its own: prints the differences.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from detrain.adapters.jax.faults.injector import InjectionPoint
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Experiment
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.faults.sites import Site
from tests.adapters.trial import PROFILE
from tests.faults.jax_by_hand import begin

DEVICES = 8
MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("rows", "more"))
ALL = PartitionSpec(("rows", "more"))


def train_step(params: Any, rows: Any, hand: Any = None) -> Any:
    """Data parallel by hand: the gradient of each device's rows, summed over all."""

    def at(place: str, value: Any, turn: Any = 0) -> Any:
        if hand is None or hand[0] != place:
            return value
        _place, device, position, flip, when = hand
        bits = lax.bitcast_convert_type(value, jnp.uint32).reshape(-1)
        changed = lax.bitcast_convert_type(bits.at[position].set(bits[position] ^ flip).reshape(value.shape), jnp.float32)
        return jnp.where((lax.axis_index(("rows", "more")) == device) & (turn == when), changed, value)

    def on_device(params: Any, rows: Any) -> Any:
        def loss_of(params: Any) -> Any:
            hidden = rows @ params["w"]

            def body(carry: Any, _: Any) -> Any:
                return jnp.sin(carry @ params["v"]), None

            hidden, _ = lax.scan(body, hidden, None, length=3)
            return (hidden**2).mean()

        loss, grads = jax.value_and_grad(loss_of)(
            jax.tree.map(lambda each: lax.pcast(each, ("rows", "more"), to="varying"), params)
        )
        grads["w"] = at("gradient", grads["w"])
        return lax.pmean(loss, ("rows", "more")), lax.pmean(grads, ("rows", "more"))

    loss, grads = jax.shard_map(on_device, mesh=MESH, in_specs=(PartitionSpec(), ALL), out_specs=PartitionSpec())(params, rows)
    return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), loss


def given() -> Any:
    """Return arguments of the step."""
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(6, 16)).astype(np.float32), "v": rng.normal(size=(16, 16)).astype(np.float32) * 0.3}
    rows = rng.normal(size=(8 * DEVICES, 6)).astype(np.float32)
    everywhere = NamedSharding(MESH, PartitionSpec())
    return jax.device_put(params, everywhere), jax.device_put(rows, NamedSharding(MESH, ALL))


def bits(result: Any) -> list[bytes]:
    """Return a result as bytes."""
    return [np.asarray(each).tobytes() for each in jax.tree.leaves(result)]


def main(what: str) -> None:
    """Print the sites, or the differences."""
    if what == "sites":
        instruments = begin([PROFILE])
        instruments.begin_step()
        jax.jit(train_step)(*given())
        print(msgspec.json.encode(instruments.sites()).decode())
        return
    sites = msgspec.json.decode(sys.stdin.read(), type=list[Site])
    instruments, wrong = begin([Experiment(log="")]), []
    golden = bits(jax.jit(train_step)(*given()))
    gradient = next(
        site for site in sites if site.stage == "backward" and site.op == "transpose" and site.operands["output"].shape == (6, 16)
    )
    for site in [gradient, *(site for site in sites if site.op in ("sin", "dot_general"))]:
        if site.replicas != DEVICES:
            wrong.append(f"{site.name} is on {site.replicas} devices")
        for worker in (0, 5):
            injection = draw_injection(site, model_named("BIT:30"), worker, trial_rng(worker, 3))
            instruments._points[:] = [InjectionPoint([injection])]
            instruments.select(injection)
            instruments.arm(site.executions - 1)
            found = bits(jax.jit(train_step)(*given()))
            instruments.disarm()
            firing = instruments.firing()
            if firing is None or firing.count != 1 or found == golden:
                wrong.append(f"{site.name} on {worker}: {firing}")
            if instruments.series.read().keys() != {"loss"}:
                wrong.append("the loss, a mean over devices, is not seen")
            if site is gradient:
                hand = ("gradient", worker, int(injection.array("positions")[0]), np.uint32(1 << 30), 0)
                if found != bits(jax.jit(lambda *arguments, hand=hand: train_step(*arguments, hand))(*given())):
                    wrong.append(f"{site.name} on {worker}: another state than by hand")
    print(json.dumps({"wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
