"""The row of a trial: the facts of its plan, and its results. It is the same whichever process did the trial, and
whichever other trials that process did.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import xxhash

from detrain.base.cursor import Address
from detrain.campaign.judging.categories import Category, TrialFacts, category_of
from detrain.campaign.judging.check import FAILS
from detrain.campaign.judging.judge import Judge
from detrain.campaign.judging.spread import Spread
from detrain.campaign.outcomes import corruptions_of, outcome_of
from detrain.campaign.trial_log import HANG, TrialResult
from detrain.faults.bits import dtype_named
from detrain.faults.experiment import Experiment, Firing
from detrain.faults.outcome_classes import Outcome, Thresholds
from detrain.faults.population.facts import Facts, Told
from detrain.faults.population.trial_row import OUTSIDE, TrialRow
from detrain.python.inspect.program_metrics import is_accuracy
from detrain.runtime.observers.experiment_run import StepLine

_GUARD_LOOKED: Final = -1
_NO_GUARD: Final = -2
_NOT_JUDGED: Final = "not judged"


class Rows(msgspec.Struct, dict=True):
    """Makes the rows of a campaign."""

    judge: Judge
    thresholds: Thresholds
    has_guard: bool
    spread: Spread | None = None
    """Golden runs of other seeds that trials are judged by."""

    @property
    def golden(self) -> TrialResult:
        """The golden run."""
        return self.judge.golden

    @cached_property
    def known(self) -> Mapping[Address, StepLine]:
        """The golden run's steps by their cursors."""
        return self.golden.by_cursor()

    def row(self, facts: Facts, plan: Experiment, done: TrialResult, golden: TrialResult) -> TrialRow:
        """Return the row of a trial that was done, beside the run that it is compared with.

        The text, the files and all final variables count as the program's output.

        Raises FaultInvalid if the two runs cannot be compared.
        """
        known = self.known if golden is self.golden else golden.by_cursor()
        row = _row(facts, plan, known, done, has_guard=self.has_guard)
        outcome = outcome_of(golden, done, plan.at, self.thresholds, self.spread)
        corrupted = corruptions_of(golden, done, plan.at)
        seen = self.judge.seen(plan.at, done, golden)
        category, why = category_of(
            TrialFacts(
                is_timeout=done.status == HANG,
                status=done.status,
                exception=row.error,
                text=seen.text,
                has_failed_check=done.check == FAILS,
                has_other_files=seen.files == "differs" or not row.is_equal,
                has_other_stdout=seen.stdout == "differs",
                has_other_stderr=seen.stderr == "differs",
                has_only_warnings=seen.has_only_warnings,
            )
        )
        return msgspec.structs.replace(
            row,
            outcome=outcome,
            category=int(category),
            error=row.error or why,
            stdout=seen.stdout,
            stderr=seen.stderr,
            files=seen.files,
            check=done.check,
            **({} if corrupted is None else msgspec.structs.asdict(corrupted)),
        )


def _row(facts: Facts, plan: Experiment, known: Mapping[Address, StepLine], done: TrialResult, *, has_guard: bool) -> TrialRow:
    steps = [_filled(step, known, plan.at) for cursor, step in sorted(done.by_cursor().items()) if cursor >= plan.at]
    steps = _as_often(steps, plan.digests_every)
    trained = [step for step in steps if step.batch >= 0]
    last = trained[-1] if trained else None
    at_last = known.get(last.address) if last is not None else None
    is_equal = last is not None and at_last is not None and last.state != "" and _is_same(last, at_last)
    unsigned = dtype_named(facts.dtype).unsigned.newbyteorder("<")
    fired = done.fired or Firing(0, b"", b"")
    before, after = np.frombuffer(fired.golden, unsigned), np.frombuffer(fired.injected, unsigned)
    digits = unsigned.itemsize * 2
    differing = int(before[0] ^ after[0]) if before.size else 0
    end = done.end or f"status {done.status}"
    return TrialRow(
        **msgspec.structs.asdict(facts),
        bits=tuple(bit for bit in range(unsigned.itemsize * 8) if differing >> bit & 1),
        golden=f"{int(before[0]):0{digits}x}" if before.size else "",
        injected=f"{int(after[0]):0{digits}x}" if after.size else "",
        outcome="",
        category=0,
        status=done.status,
        error=done.crash,
        stdout=_NOT_JUDGED,
        stderr=_NOT_JUDGED,
        files=_NOT_JUDGED,
        check="",
        steps=len(trained),
        is_equal=is_equal,
        equal_after=_equal_after(trained, known),
        loss=_finite(last, "loss"),
        golden_loss=_finite(at_last, "loss"),
        accuracy=_accuracy(last),
        golden_accuracy=_accuracy(at_last),
        nonfinite_after=next((place + 1 for place, step in enumerate(trained) if _is_broken(step)), -1),
        alarm_after=done.alarm.steps + 1 if done.alarm is not None else _GUARD_LOOKED if has_guard else _NO_GUARD,
        end=end,
        digest=xxhash.xxh3_128_hexdigest(msgspec.json.encode((steps, end, done.fired), order="sorted")),
        early_after=done.early_after,
        seconds=done.seconds,
        host=socket.gethostname(),
    )


def crash_row(facts: Facts, plan: Experiment, *, has_guard: bool) -> TrialRow:
    """Return the row of a trial in which two workers died: nothing else is known of it."""
    row = _row(facts, plan, {}, TrialResult(-9, (), ""), has_guard=has_guard)
    return msgspec.structs.replace(
        row,
        outcome=Outcome.CRASH.value,
        category=int(Category.EXIT_STATUS),
        end="crash: its worker died twice",
        error="its worker died twice",
    )


def told_row(facts: Facts, plan: Experiment, told: Told, *, has_guard: bool) -> TrialRow:
    """Return the row of a trial whose result is known beforehand, so that nothing is run."""
    row = _row(facts, plan, {}, TrialResult(0, (), f"not run: {told}"), has_guard=has_guard)
    if told == "never read":
        return msgspec.structs.replace(row, outcome=Outcome.MASKED.value, category=int(Category.NEVER_READ), is_equal=True)
    return msgspec.structs.replace(row, outcome=OUTSIDE)


def _filled(step: StepLine, known: Mapping[Address, StepLine], at: Address) -> StepLine:
    """Return a step with the accuracies that the program keeps from before the trial's beginning.

    A process that started at a checkpoint has them only once the program sets them; until then the golden run's count.
    """
    start = known.get(at)
    if start is None or step.batch < 0:
        return step
    kept = {name: value for name, value in start.series.items() if name not in step.series and is_accuracy(name)}
    return msgspec.structs.replace(step, series={**step.series, **kept}) if kept else step


def _as_often(steps: list[StepLine], every: int) -> list[StepLine]:
    """Return steps with the digests that every trial has: one every `every` steps, and that of the last step."""
    trained = [place for place, step in enumerate(steps) if step.batch >= 0]
    due = {place for number, place in enumerate(trained) if number % every == 0 or number == len(trained) - 1}
    return [step if place in due or not step.state else msgspec.structs.replace(step, state="") for place, step in enumerate(steps)]


def _equal_after(steps: list[StepLine], known: Mapping[Address, StepLine]) -> int:
    """Return the number of steps after which all variables are the golden run's, there and at all later digests; -1 if
    they are not.
    """
    found = -1
    for place, step in enumerate(steps):
        if not step.state:
            continue
        golden = known.get(step.address)
        if golden is None or not _is_same(step, golden):
            found = -1
        elif found < 0:
            found = place + 1
    return found


def _is_same(step: StepLine, golden: StepLine) -> bool:
    return (step.state, step.outputs) == (golden.state, golden.outputs)


def _is_broken(step: StepLine) -> bool:
    return not all(math.isfinite(float(value)) for value in step.series.values())


def _finite(step: StepLine | None, name: str) -> float | None:
    value = float(step.series.get(name, math.nan)) if step is not None else math.nan
    return value if math.isfinite(value) else None


def _accuracy(step: StepLine | None) -> float | None:
    name = next(filter(is_accuracy, sorted(step.series)), "") if step is not None else ""
    return _finite(step, name)
