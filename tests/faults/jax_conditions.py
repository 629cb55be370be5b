"""Each decision of a `while` is turned round once, and compared with the loop in NumPy. Run by test_jax in a process of
its own: prints the differences.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
from jax import lax

from detrain.adapters.jax.faults.injector import InjectionPoint
from detrain.faults.drawing import draw_injection
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from tests.adapters.trial import PROFILE
from tests.faults.jax_by_hand import begin

START = np.array([0.5, 3, 40], np.float32)
MOST = 20


def doubled(value: Any) -> Any:
    """Return a value doubled until it is at least 20, and the number of turns."""
    return lax.while_loop(lambda state: state[0] < MOST, lambda state: (state[0] * 2, state[1] + 1), (value, 0))


@jax.jit  # type: ignore[untyped-decorator]
def one_by_one(values: Any) -> Any:
    """Double each value, in a loop of its own."""
    return lax.scan(lambda _, value: (None, doubled(value)), None, values)[1]


@jax.jit  # type: ignore[untyped-decorator]
def together(values: Any) -> Any:
    """Double all values in one loop, whose condition decides for each."""
    return jax.vmap(doubled)(values)


def by_hand(groups: list[Any], wrong: tuple[int, int] | None) -> list[Any]:
    """Return the values and turns of `doubled`, a loop for each group; `wrong`: the number of the decision that is
    turned round, of all, and for which value of the group.
    """
    found, decisions = [], 0
    for group in groups:
        value, turns = group.copy(), np.zeros(group.size, np.int32)
        while True:
            goes_on = value < MOST
            if wrong is not None and decisions == wrong[0]:
                goes_on[wrong[1]] ^= True
            decisions += 1
            if not goes_on.any():
                break
            value, turns = np.where(goes_on, value * 2, value), np.where(goes_on, turns + 1, turns)
        found.append((value, turns))
    return [np.concatenate(each) for each in zip(*found, strict=True)]


def main() -> None:
    """Print the differences, and the numbers of decisions."""
    instruments = begin([PROFILE])
    wrong, executions = [], []
    for step, groups in ((one_by_one, [START[:1], START[1:2], START[2:]]), (together, [START])):
        instruments.begin_step()
        step(START)
        sites = {(site.op, site.use): site for site in instruments.sites()}
        assert sites["lt", "predicate"].executions == sites["mul", ""].executions + len(groups)
        site = sites["lt", "predicate"]
        executions.append(site.executions)
        for occurrence in range(site.executions):
            injection = draw_injection(site, model_named("FLIP:1"), 0, trial_rng(occurrence, 3))
            instruments._points[:] = [InjectionPoint([injection])]
            instruments.select(injection)
            instruments.arm(occurrence)
            found = [np.asarray(each) for each in step(START)]
            instruments.disarm()
            expected = by_hand(groups, (occurrence, int(injection.array("positions")[0])))
            if [each.tolist() for each in found] != [each.tolist() for each in expected]:
                wrong.append(f"{site.name} {occurrence}: {found}, expected {expected}")
            if (firing := instruments.firing()) is None or firing.count != 1 or not instruments.is_unarmed_equal():
                wrong.append(f"{site.name} {occurrence}: {firing}")
    print(json.dumps({"wrong": wrong, "decisions": executions}))


if __name__ == "__main__":
    main()
