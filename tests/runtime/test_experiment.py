"""An experiment arms its fault for the steps it is for, ends where it should, and takes
nothing for done that was not.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import binomtest

from detrain.adapters.instruments import Also
from detrain.base.cursor import Address
from detrain.base.errors import FaultInvalid, FaultNotFired
from detrain.campaign.trial_log import read_log
from detrain.faults.experiment import Bounds, Experiment, Firing, Injection
from detrain.faults.sites import Site
from detrain.runtime.observers import experiment_run as module
from detrain.runtime.observers.experiment_run import ExperimentRun
from detrain.runtime.observers.instruments_together import InstrumentsTogether
from detrain.runtime.observers.trials_in_process import TrialsInProcess

INJECTION = Injection(
    site="step/forward/fc/MatMul",
    operand="output",
    worker=0,
    dtype="float32",
    shape=(2,),
    positions=bytes(8),
    sources=bytes(8),
    keep=bytes(4),
    flip=bytes(4),
)
STEPS = [(0, epoch, batch) for epoch in range(3) for batch in range(4)]


class Instruments:
    """A step whose loss is its number, and whose site does not run in the steps of `idle`, and has another shape in
    `other`.
    """

    def __init__(self, idle: Container[Address] = (), other: Container[Address] = ()) -> None:
        self.idle, self.other = idle, other
        self.hits = self.misfits = 0
        self.armed: list[Address] = []
        self.now: Address = (0, 0, 0)
        self.phantom: Address | None = None
        self.series = self

    def begin_step(self) -> None:
        """Nothing to count."""

    def ranges(self) -> dict[str, Bounds]:
        return {}

    def select(self, injection: Injection, also: Also = ()) -> None:
        """There is one."""

    def memory(self) -> list[Site]:
        return []

    def arm(self, occurrence: int) -> None:
        self.armed.append(self.now)
        self.misfits += self.now in self.other
        self.hits += self.now not in self.idle and self.now not in self.other

    def disarm(self) -> None:
        """Nothing to do."""

    def is_unarmed_equal(self) -> None:
        """Nobody has looked."""

    def is_placed(self) -> bool:
        return True

    def firing(self) -> Firing | None:
        return Firing(self.hits, b"\0\0\0\0", b"\1\0\0\0", self.misfits) if self.hits or self.misfits else None

    def begin(self) -> None:
        """Nothing has been measured before."""

    def has_loss(self) -> bool:
        return self.now != self.phantom

    def read(self) -> dict[str, float]:
        return {"loss": float(self.now[1] * 4 + self.now[2])}

    def sites(self) -> list[Site]:
        return []


class EndedError(BaseException):
    """The process would have ended."""


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instruments: Instruments, run_steps: list[Address], **options: object
) -> bool:
    """Run the steps; return whether the experiment ended the process."""

    def end(_status: int) -> None:
        raise EndedError

    monkeypatch.setattr(module.os, "_exit", end)
    plan = Experiment(log=str(tmp_path / "log"), injection=INJECTION, **options)  # type: ignore[arg-type]
    experiment = ExperimentRun([plan], lambda: {"w": np.zeros(2)}, lambda: None)
    experiment.attach(instruments)
    try:
        for step in run_steps:
            instruments.now = step
            experiment.begin(step)
            experiment.end_body()
        experiment.finish()
    except EndedError:
        return True
    return False


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("seed", [0, 3, 1 << 62])
def test_an_intermittent_fault_is_armed_in_the_steps_that_its_seed_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, seed: int
) -> None:
    instruments = Instruments()
    options = {"at": STEPS[2], "steps": steps, "duty": 0.4, "duty_seed": seed}
    assert not run(tmp_path, monkeypatch, instruments, STEPS, **options)

    may_be = STEPS[2:] if steps == 0 else STEPS[2 : 2 + steps]
    drawn = [np.random.Generator(np.random.Philox(key=np.array([seed, turn], np.uint64))).random() for turn in range(len(may_be))]
    assert instruments.armed == [step for turn, step in enumerate(may_be) if turn == 0 or drawn[turn] < 0.4]


def test_an_intermittent_fault_is_as_frequent_as_is_said() -> None:
    plan = Experiment(log="", injection=INJECTION, steps=0, duty=0.3, duty_seed=5)
    due = sum(plan.is_due(turn) for turn in range(1, 2001))

    assert binomtest(due, 2000, 0.3).pvalue > 0.001
    assert plan.is_due(0)


@pytest.mark.parametrize("changes", [{"duty": 0.0}, {"duty": 1.5}, {"duty": -1.0}, {"duty_seed": -1}, {"duty_seed": 1 << 64}])
def test_an_intermittent_fault_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FaultInvalid, match="intermittent"):
        Experiment(log="", injection=INJECTION, **changes).check()


@pytest.mark.parametrize(("steps", "expected"), [(1, STEPS[5:6]), (3, STEPS[5:8]), (0, STEPS[5:])])
def test_a_fault_is_armed_for_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, expected: list[Address]
) -> None:
    instruments = Instruments()

    assert not run(tmp_path, monkeypatch, instruments, STEPS, at=(0, 1, 1), steps=steps)
    assert instruments.armed == expected
    assert read_log(tmp_path / "log").fired == Firing(len(expected), b"\0\0\0\0", b"\1\0\0\0")


@pytest.mark.parametrize("how", ["idle", "other"])
def test_a_later_step_that_is_not_hit_is_an_error_or_of_a_permanent_fault_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    without = {how: STEPS[6:7]}
    error, what = (FaultNotFired, "did not run") if how == "idle" else (FaultInvalid, "another shape")
    with pytest.raises(error, match=f"1:2.*{what}"):
        run(tmp_path, monkeypatch, Instruments(**without), STEPS, at=(0, 1, 1), steps=3)
    (tmp_path / "log").unlink()

    assert not run(tmp_path, monkeypatch, Instruments(**without), STEPS, at=(0, 1, 1), steps=0)
    done = read_log(tmp_path / "log")
    assert done.missed == ((0, 1, 2),)
    assert done.fired == Firing(len(STEPS[5:]) - 1, b"\0\0\0\0", b"\1\0\0\0")


def test_a_step_that_is_run_again_is_not_hit_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instruments = Instruments()
    run(tmp_path, monkeypatch, instruments, [*STEPS[:6], *STEPS[4:]], at=(0, 1, 1))

    assert instruments.armed == [(0, 1, 1)]


@pytest.mark.parametrize(("options", "last"), [({"until": (0, 2, 1)}, (0, 2, 1)), ({"count": 2}, (0, 1, 2))])
def test_a_run_ends_where_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], last: Address
) -> None:
    assert run(tmp_path, monkeypatch, Instruments(), STEPS, at=(0, 1, 1), **options)

    done = read_log(tmp_path / "log")
    assert (max(done.by_cursor()), done.end) == (last, "until")
    assert [cursor for cursor, step in done.by_cursor().items() if step.state] == [
        step for step in STEPS if (0, 1, 1) <= step <= last
    ]


def test_the_last_step_of_an_epoch_has_a_digest_where_others_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is masked is told by it, wherever the program ends; the loader has run out, or the
    loop was left by `break`.
    """
    plan = Experiment(log=str(tmp_path / "log"), injection=INJECTION, at=(0, 1, 1), digests_every=10)
    experiment = ExperimentRun([plan], lambda: {"w": np.zeros(2)}, lambda: None)
    experiment.attach(Instruments())
    for step in STEPS:
        experiment.begin(step)
        if step[2] < 3:
            experiment.end_body()
        elif step[1] < 2:
            experiment.end_body()
            experiment.end_load()
            experiment.end_epoch(0, step[1])
        else:
            experiment.end_body(is_last=True)
            experiment.end_epoch(0, step[1])
    experiment.finish()

    done = read_log(tmp_path / "log")
    assert [cursor for cursor, step in done.by_cursor().items() if step.state] == [(0, 1, 1), (0, 1, 3), (0, 2, 3)]
    assert [cursor for cursor in done.by_cursor() if cursor[2] >= 0] == STEPS


def test_a_body_that_found_no_batch_is_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = ExperimentRun([Experiment(log=str(tmp_path / "log"))], lambda: {"w": np.zeros(2)}, lambda: None)
    instruments = Instruments()
    instruments.phantom = (0, 0, 3)
    experiment.attach(instruments)
    for step in STEPS[:4]:
        instruments.now = step
        experiment.begin(step)
        experiment.end_body(is_last=step[2] == 3)
    experiment.end_epoch(0, 0)

    assert [cursor for cursor in read_log(tmp_path / "log").by_cursor() if cursor[2] >= 0] == STEPS[:3]


def test_a_fault_that_did_not_fire_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FaultNotFired, match="did not run"):
        run(tmp_path, monkeypatch, Instruments(idle=STEPS), STEPS, at=(0, 1, 1))
    with pytest.raises(FaultNotFired, match="ended before 4:0"):
        run(tmp_path, monkeypatch, Instruments(), STEPS, at=(0, 4, 0))
    with pytest.raises(FaultInvalid, match="another shape"):
        run(tmp_path, monkeypatch, Instruments(other=STEPS), STEPS, at=(0, 1, 1))


def test_what_is_not_finite_survives_the_log_and_may_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instruments = Instruments()
    monkeypatch.setattr(instruments, "read", lambda: {"loss": float("nan") if instruments.now == (0, 1, 2) else 1.0})

    assert run(tmp_path, monkeypatch, instruments, STEPS, at=(0, 1, 1), stops_on_nonfinite=True)
    assert read_log(tmp_path / "log").by_cursor()[0, 1, 2].series == {"loss": "nan"}
    assert read_log(tmp_path / "log").end == "non-finite loss"


def test_with_two_frameworks_the_one_that_has_the_site_is_hit_and_losses_are_added_up() -> None:
    """The other one has nothing to say of the fault; a step that trains in one of them is a step."""
    one, other = Instruments(), Instruments(idle=STEPS)
    both = InstrumentsTogether([other, one], INJECTION)
    one.now = other.now = (0, 1, 1)
    other.phantom = (0, 1, 1)

    both.arm(0)
    both.disarm()

    assert (one.armed, other.armed) == ([(0, 1, 1)], [(0, 1, 1)])
    assert both.firing() == one.firing() is not None
    assert both.series.has_loss()
    assert both.series.read() == {"loss": 10.0}
    assert both.sites() == []


def test_several_variables_are_hit_together_or_it_is_not_done() -> None:
    """A step counts once, and only where each of them was there."""
    there = {"memory/a", "memory/b"}
    side = Instruments()
    side.strike = lambda fault: Firing(7, b"", b"") if fault.site in there else None  # type: ignore[attr-defined]
    first, second = (msgspec.structs.replace(INJECTION, site=f"memory/{name}") for name in "ab")
    both = InstrumentsTogether([side], first, [(second, 0)])

    both.arm(0)
    both.arm(0)
    assert (both.firing(), side.armed) == (Firing(2, b"", b""), [])
    there.remove("memory/b")
    both.arm(0)
    assert both.firing() == Firing(2, b"", b"")


NUMBERLESS = [math.nan, math.inf]


@pytest.mark.parametrize("loss", [1.0, *NUMBERLESS])
@pytest.mark.parametrize(("at", "least"), [((0, 0, 2), 0), ((0, 0, 1), 2), ((0, 0, 1), 3), ((0, 0, 3), 0)])
def test_a_trial_of_a_campaign_ends_with_a_step_whose_loss_is_no_number(
    tmp_path: Path, loss: float, at: Address, least: int
) -> None:
    """In the body of step 0:2, of trials that are at their least number of steps, or not yet, or not yet begun."""
    campaign = begun(tmp_path, at, least=least, stops_on_nonfinite=True)

    has_begun, is_enough = at <= (0, 0, 2), 3 - at[2] >= least
    assert campaign.ends_with(lambda: loss) == (has_begun and is_enough and not math.isfinite(loss))


def test_a_run_that_is_no_trial_of_a_campaign_goes_on_with_a_loss_that_is_no_number(tmp_path: Path) -> None:
    assert not begun(tmp_path, (0, 0, 1), stops_on_nonfinite=True, ends_with_loop=False).ends_with(lambda: math.nan)
    assert not begun(tmp_path, (0, 0, 1)).ends_with(lambda: math.nan)


@pytest.mark.parametrize(("way", "ends"), [("raises", True), ("tries", False), ("opens", False), ("has tried", True)])
def test_a_trial_ends_with_an_exception_that_the_program_does_not_catch(tmp_path: Path, way: str, ends: bool) -> None:
    campaign = begun(tmp_path, (0, 0, 1))
    code = {
        "raises": "def body():\n    return step()",
        "tries": "def body():\n    try:\n        return step()\n    except ValueError:\n        pass",
        "opens": "def body():\n    with manager:\n        return step()",
        "has tried": "def body():\n    try:\n        pass\n    except ValueError:\n        pass\n    return step()",
    }[way]
    step = lambda: campaign.ends_with_error(ValueError("bad"), sys._getframe(1))  # noqa: E731
    names = {"step": step, "manager": contextlib.nullcontext(), "__name__": "__main__"}
    exec(compile(code, str(tmp_path / "program.py"), "exec"), names)

    assert names["body"]() is ends  # type: ignore[operator]
    assert (campaign.is_over, read_log(tmp_path / "log").crash) == (ends, "ValueError" if ends else "")
    assert read_log(tmp_path / "log").status == ends


def begun(folder: Path, at: Address, **options: Any) -> TrialsInProcess:
    """Return a campaign's only trial in the body of step 0:2."""
    plan = Experiment(log=str(folder / "log"), injection=INJECTION, at=at, **{"ends_with_loop": True, **options})
    campaign = TrialsInProcess([plan], dict, lambda: None)
    instruments = Instruments()
    campaign.attach(instruments)
    for step in [(0, 0, 0), (0, 0, 1), (0, 0, 2)]:
        instruments.now = step
        campaign.begin(step)
        if step[2] < 2:
            campaign.end_body()
    return campaign


def test_a_fault_in_memory_is_not_done_where_its_run_is_not_armed(tmp_path: Path) -> None:
    struck = []

    class InSteps(Instruments):
        is_part_of_steps = True

        def strike(self, injection: Injection) -> Firing:
            struck.append(injection)
            return Firing(1, b"", b"")

    in_memory = msgspec.structs.replace(INJECTION, site="memory/w")
    plan = Experiment(log=str(tmp_path / "log"), injection=in_memory, is_armed=False)
    experiment = ExperimentRun([plan], lambda: {"w": np.zeros(2)}, lambda: None)
    experiment.attach(InSteps())
    experiment.begin((0, 0, 0))
    experiment.end_body()

    assert struck == []


@pytest.mark.parametrize("steps", [1, 3, 0])
def test_only_a_trial_whose_fault_is_over_may_end_as_the_golden_run(tmp_path: Path, steps: int) -> None:
    campaign = begun(tmp_path, STEPS[2], steps=steps, count=4)
    campaign.end_body()

    assert campaign.may_be_equal is (steps == 1)
