"""When a trial has taken too long: by the golden run's time for its steps, from its fault on."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from detrain.adapters import shared_copies
from detrain.base.cursor import Address
from detrain.campaign.time_limit import LEAST_S, TimeLimit, Watch, limit_of
from detrain.campaign.trial import with_time
from detrain.campaign.trial_log import END, HANG, TrialResult, read_log
from detrain.faults.experiment import Experiment, Injection
from detrain.runtime.observers.experiment_run import Log, StepLine

FAULT = Injection(site="s", operand="output", worker=0, dtype="float32", shape=(1,), positions=b"", sources=b"", keep=b"", flip=b"")
FIRST_S, STEP_S, VALIDATION_S, END_S = 7.0, 2.0, 30.0, 11.0
"""Of two epochs with four steps, a validation behind each, and what the program does behind the loop."""
SPENT: dict[Address, float] = {
    **{(0, epoch, batch): STEP_S for epoch in range(2) for batch in range(4)},
    (0, 0, 0): FIRST_S,
    (0, 0, -1): VALIDATION_S,
    (0, 1, -1): VALIDATION_S,
    END: END_S,
}
GOLDEN = TrialResult(0, (), "program", spent=SPENT)


def plan(at: Address, until: Address | None = None, count: int | None = None) -> Experiment:
    return Experiment(log="", injection=FAULT, at=at, until=until, count=count)


@pytest.mark.parametrize(
    ("trial", "usual"),
    [
        (plan((0, 0, 1), count=3), 3 * STEP_S),
        (plan((0, 0, 1), until=(0, 0, 3)), 3 * STEP_S),
        (plan((0, 0, 3), count=2), 2 * STEP_S + VALIDATION_S),
        (plan((0, 0, 2), until=(0, 1, 1)), 4 * STEP_S + VALIDATION_S),
        (plan((0, 1, 2)), 2 * STEP_S + VALIDATION_S + END_S),
        (plan((0, 1, 2), count=9), 2 * STEP_S + VALIDATION_S + END_S),  # the program ends before
        (plan((0, 0, 0), count=1), FIRST_S),
    ],
)
def test_a_trial_has_ten_times_what_its_steps_took_and_the_first(trial: Experiment, usual: float) -> None:
    assert limit_of(trial, GOLDEN, None).from_fault == pytest.approx(10 * (usual + FIRST_S))


def test_a_slower_machine_gives_more_time_and_a_faster_one_no_less() -> None:
    trial = plan((0, 0, 1), count=3)
    usual, slow, fast = (limit_of(trial, GOLDEN, None, pace) for pace in (1.0, 4.0, 0.2))

    assert slow.from_fault == pytest.approx(4 * usual.from_fault)
    assert fast == usual
    assert slow.is_longer(usual)
    assert not usual.is_longer(usual)
    assert limit_of(trial, GOLDEN, 4.5, 4.0).from_fault == 4.5


@pytest.mark.parametrize(("times", "tries"), [(1.0, 1), (1.3, 1), (5.0, 2)])
def test_a_trial_that_is_late_is_tried_again_only_on_a_machine_that_is_slower_now(times: float, tries: int) -> None:
    """How fast it is now, the same steps without the fault say."""
    given: list[TimeLimit | None] = []

    class Subject:
        limit_s = None

        def trial(self, _experiment: Experiment, *, limit: TimeLimit | None = None) -> TrialResult:
            given.append(limit)
            return TrialResult(HANG if len(given) == 1 else 0, (), "until", is_armed=True)

        def unarmed(self, _experiment: Experiment) -> TrialResult:
            return TrialResult(0, (), "until", spent={at: times * seconds for at, seconds in SPENT.items()})

    done = with_time(Subject(), plan((0, 0, 1), count=3), GOLDEN)  # type: ignore[arg-type]

    assert (len(given), done.status) == (tries, HANG if tries == 1 else 0)
    if tries == 2:
        limit = given[1]
        assert limit is not None
        assert limit.from_fault == pytest.approx(times * limit_of(plan((0, 0, 1), count=3), GOLDEN, None).from_fault)


def test_ten_seconds_are_left_to_the_quickest_and_what_is_given_counts() -> None:
    quick = TrialResult(0, (), "program", spent=dict.fromkeys(SPENT, 0.001))

    assert limit_of(plan((0, 0, 1), count=3), quick, None).from_fault == LEAST_S
    assert limit_of(plan((0, 0, 1), count=3), GOLDEN, 4.5).from_fault == 4.5
    assert limit_of(plan((0, 0, 1), count=3), TrialResult(0, (), ""), None).from_fault == LEAST_S


def test_a_run_without_a_fault_has_no_limit() -> None:
    assert limit_of(Experiment(log="", at=(0, 0, 1), count=3), GOLDEN, 4.5) == TimeLimit(math.inf, math.inf)


def test_the_clock_of_a_trial_starts_at_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("detrain.campaign.time_limit.time.monotonic", lambda: now[0])
    log = tmp_path / "log"
    watch = Watch(log, TimeLimit(until_fault=100.0, from_fault=20.0), since=now[0])

    def after(seconds: float, *lines: bytes) -> tuple[bool, bool]:
        with log.open("ab") as file:
            file.writelines(lines)
        now[0] += seconds
        return watch.is_late(), watch.is_armed

    assert not watch.is_late()  # there is no log yet
    assert after(90.0, msgspec.json.encode(Log(start="abc")) + b"\n") == (False, False)
    armed = msgspec.json.encode(Log(is_armed=True)) + b"\n"
    assert after(0.0, armed[:7]) == (False, False)
    assert after(9.0, armed[7:]) == (False, True)
    assert after(19.0) == (False, True)
    assert after(2.0) == (True, True)
    assert after(0.0, msgspec.json.encode(Log(end="until")) + b"\n") == (False, True)
    assert after(60.0) == (False, True)  # the process goes on with another, or ends


def test_the_time_in_which_a_function_is_compiled_for_a_fault_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("detrain.campaign.time_limit.time.monotonic", lambda: now[0])
    log = tmp_path / "log"
    watch = Watch(log, TimeLimit(until_fault=100.0, from_fault=20.0), since=now[0])

    def after(seconds: float, line: Log) -> tuple[bool, float]:
        with log.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        assert not watch.is_late()
        now[0] += seconds
        return watch.is_late(), watch.since_fault_s()

    assert after(5.0, Log(is_armed=True)) == (False, 5.0)
    assert after(90.0, Log(compiling="begun")) == (False, 0.0)
    assert after(19.0, Log(compiling="done")) == (False, 19.0)
    assert after(2.0, Log(alarm=None)) == (True, 21.0)


def test_who_tries_copies_of_a_function_is_heard_from_the_first_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bool] = []
    monkeypatch.setattr(shared_copies, "heard", [heard.append])

    for place in shared_copies.copies(range(20), [3]):
        assert heard == [True]
        assert place == tuple(range(8))
        break

    assert heard == [True, False]


def test_a_trial_that_never_comes_to_its_fault_is_late_some_time(tmp_path: Path) -> None:
    assert Watch(tmp_path / "log", TimeLimit(until_fault=-1.0)).is_late()


def test_a_log_says_what_each_step_took_and_what_followed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    step = StepLine(0, 0, 0, {})
    lines = [Log(step=step, seconds=1.5), Log(step=step, seconds=0.25), Log(step=StepLine(0, 0, -1, {}), seconds=4.0)]
    log.write_bytes(b"\n".join(map(msgspec.json.encode, [*lines, Log(end="program", seconds=2.0)])))

    assert read_log(log).spent == {(0, 0, 0): 1.75, (0, 0, -1): 4.0, END: 2.0}
