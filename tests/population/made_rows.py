"""Rows of a campaign that was never run: facts of a plan, with outcomes drawn by a rule that is known."""

from __future__ import annotations

import numpy as np

from detrain.campaign.judging.categories import Category
from detrain.faults.bits import DTYPES
from detrain.faults.population.frame import Selection
from detrain.faults.population.plan import SampledPlan, sampled_plan
from detrain.faults.population.trial_row import TrialRow
from tests.population import made


def plan(count: int, seed: int = 3, models: tuple[str, ...] = ("FLIP:1", "RANDOM", "ZERO")) -> SampledPlan:
    """Return the plan of the rows."""
    return sampled_plan(made.profile(), Selection(seed=seed, models=models), count, after=20)


def harm(group: int, highest_bit: int) -> float:
    """Return the chance that a fault is not masked."""
    return (0.05 if group == 13 else 0.2) + (0.6 if highest_bit >= 28 else 0.0)


def rows(count: int, seed: int = 3, *, has_guard: bool = True, tells: bool = True) -> list[TrialRow]:
    """Return rows of all trials of a plan."""
    of = plan(count, seed)
    found = []
    for number in range(count):
        facts, experiment = of.trial(number)
        rng = np.random.default_rng([seed, number, 7])
        injection = experiment.injection
        assert injection is not None
        kind = DTYPES[facts.dtype]
        golden = int(rng.integers(1 << kind.width, dtype=np.uint64)) if kind.width < 64 else int(rng.integers(1 << 40))
        keep, flip = (int(injection.array(name)[0]) & ((1 << kind.width) - 1) for name in ("keep", "flip"))
        injected = (golden & keep) ^ flip
        bits = tuple(bit for bit in range(kind.width) if (golden ^ injected) >> bit & 1)
        is_harmful = rng.random() < harm(facts.group, max(bits, default=0))
        outcome = str(rng.choice(["immediate INF/NaN", "slow degrade", "other", "crash"])) if is_harmful else "masked"
        category = Category.UNTOLD if not tells else Category.MASKED if not is_harmful else Category.SDC_OUTPUT
        if tells and outcome == "crash":
            category = Category.EXIT_STATUS
        alarm = -2 if not has_guard else int(rng.integers(1, 12)) if is_harmful and rng.random() < 0.7 else -1
        known = {name: getattr(facts, name) for name in facts.__struct_fields__}
        found.append(
            TrialRow(
                **known,
                bits=bits,
                golden=f"{golden:x}",
                injected=f"{injected:x}",
                outcome=outcome,
                category=int(category),
                status=1 if outcome == "crash" else 0,
                error="RuntimeError" if outcome == "crash" else "",
                stdout="differs" if is_harmful else "equal",
                stderr="equal",
                files="not judged",
                check="",
                steps=20,
                is_equal=not is_harmful and rng.random() < 0.3,
                equal_after=-1,
                loss=None if "NaN" in outcome else 0.5,
                golden_loss=0.5,
                accuracy=None,
                golden_accuracy=None,
                nonfinite_after=1 if "NaN" in outcome else -1,
                alarm_after=alarm,
                end="crash: RuntimeError" if outcome == "crash" else "until",
                digest=f"{number:032x}",
                early_after=-1,
                seconds=0.05,
                host="made",
            )
        )
    return found
