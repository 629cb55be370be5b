"""Options that the commands about hardware faults share."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

import click

from detrain.base.errors import UsageError
from detrain.base.options import Option
from detrain.faults.sites import Stage


class Seconds(click.FloatRange):
    """A time limit: a number of seconds from 1 on."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail with a usage error if the value is no number, or is infinite or NaN."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


SECONDS: Final = Seconds(min=1)

OfStage = Annotated[Stage | None, Option("Only sites of this stage.")]
Shares = Literal["uniform", "fidelity"]
DrawnBy = Annotated[int, Option("Seed of what is drawn.", least=0)]
After = Annotated[int | None, Option("Steps to run from the fault on [to the program's end].", "N", least=1)]
Thresholds = Annotated[
    tuple[str, ...],
    Option("A number of the outcomes' definitions (docs/reference/faults.md); repeatable.", "NAME=NUMBER", flag="--threshold"),
]
OfInference = Annotated[
    bool,
    Option("Steps are forward passes without gradients: PROGRAM, or a part of it, evaluates.", flag="--inference"),
]
Guarded = Annotated[bool, Option("Look for the faults, as `detrain run --guard detect` does.")]
AtOnce = Annotated[int, Option("So many faults hit at once.", "K", least=1)]
Among = Annotated[Literal["tensor", "step"], Option("With --at-once: one tensor, or each its own, any of a step's.")]
TrialLimit = Annotated[
    float | None,
    Option("From its fault on; a longer trial hangs [10 x the golden run's time for these steps, >= 10].", "S", type=SECONDS),
]


def require_several(at_once: int, among: str) -> None:
    """Raise UsageError if each fault needs a tensor of its own, but there is only one fault."""
    if among == "step" and at_once == 1:
        raise UsageError("--among step is of several faults", "add --at-once 3")


def steps_hit(steps: int | None, *, is_permanent: bool) -> int | None:
    """Return how many steps in a row a fault hits, 0 for all. Raises UsageError if both options are given."""
    if is_permanent and steps is not None:
        raise UsageError(f"--permanent hits all steps, --steps {steps} not", "give one of them")
    return 0 if is_permanent else steps
