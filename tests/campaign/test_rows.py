"""The row of a trial: its category is told by what the program gave, and 17 by a check of the user's alone."""

from __future__ import annotations

import numpy as np
import pytest

from detrain.campaign.engine.rows import Rows
from detrain.campaign.judging.categories import Category
from detrain.campaign.judging.check import FAILS, PASSES
from detrain.campaign.judging.judge import Judge
from detrain.campaign.trial_log import TrialResult, same_before, same_from
from detrain.faults.experiment import Firing, Injection
from detrain.faults.outcome_classes import USUAL
from detrain.faults.population.facts import planned
from detrain.faults.predictions import Prediction
from detrain.faults.sites import OperandShape, Site
from detrain.runtime.observers.experiment_run import StepLine

SITE = Site(
    name="forward/fc/mm", layer="fc", op="mm", stage="forward", role="", operands={"output": OperandShape(0, (4,), "float32")},
    executions=1, is_alive=True, replicas=1,
)  # fmt: skip
INJECTION = Injection(
    site=SITE.name, operand="output", worker=0, dtype="float32", shape=(4,), positions=bytes(8), sources=bytes(8), keep=bytes(4),
    flip=bytes(4),
)  # fmt: skip


def run(loss: float, state: str, *, check: str = "") -> TrialResult:
    steps = [StepLine(0, 0, batch, {"loss": 1.0 if batch < 2 else loss}, f"{state}{batch}") for batch in range(4)]
    firing = Firing(1, np.float32(1).tobytes(), np.float32(2).tobytes())
    return TrialResult(0, tuple(steps), "program", is_armed=True, fired=firing, check=check)


@pytest.mark.parametrize(
    ("loss", "check", "category"),
    [
        (np.nan, "", Category.SDC_OUTPUT),  # an ill outcome is no failed check
        (1.5, "", Category.SDC_OUTPUT),
        (1.5, PASSES, Category.SDC_OUTPUT),
        (1.5, FAILS, Category.SDC_CHECK),
        (1.0, FAILS, Category.SDC_CHECK),
    ],
)
def test_only_a_check_that_fails_makes_a_trial_one(loss: float, check: str, category: Category) -> None:
    golden = run(1.0, "a")
    facts, plan = planned(0, SITE, INJECTION, (0, 0, 1), 0, model="FLIP:1", after=None, least=0, group=7)

    row = Rows(Judge(golden, None), USUAL, has_guard=False).row(facts, plan, run(loss, "b", check=check), golden)

    assert Category(row.category) is category


def passed(outputs: str, top: int) -> TrialResult:
    steps = tuple(
        StepLine(0, 0, n, {}, "same", outputs if n == 1 else "a", (Prediction((top if n == 1 else 1, 2), 0.5),)) for n in (0, 1)
    )
    firing = Firing(1, np.float32(1).tobytes(), np.float32(2).tobytes())
    return TrialResult(0, steps, "until", is_armed=True, fired=firing)


@pytest.mark.parametrize(
    ("outputs", "top", "is_equal", "outcome", "sdc_1"),
    [("a", 1, True, "masked", 0), ("b", 1, False, "masked", 0), ("b", 2, False, "SDC-1", 1)],
)
def test_of_inference_what_a_model_gives_is_compared(outputs: str, top: int, is_equal: bool, outcome: str, sdc_1: int) -> None:
    """No variable changes in it."""
    golden = passed("a", 1)
    facts, plan = planned(0, SITE, INJECTION, (0, 0, 1), 0, model="FLIP:1", after=1, least=0, group=7)

    row = Rows(Judge(golden, None), USUAL, has_guard=False).row(facts, plan, passed(outputs, top), golden)

    assert (row.is_equal, row.equal_after, row.outcome) == (is_equal, 1 if is_equal else -1, outcome)
    assert (row.inputs, row.sdc_1, row.sdc_5) == (1, sdc_1, 0)
    assert same_from(golden, passed(outputs, top), (0, 0, 1)) == is_equal
    assert same_before(golden, passed(outputs, top), (0, 0, 2)) == is_equal
