"""What of a process with several trials is believed: only that behind which the run was the golden run again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from detrain.base.errors import FaultInvalid
from detrain.campaign import batch_of_trials
from detrain.campaign.trial_log import HANG, TrialResult
from detrain.faults.experiment import Experiment, Injection
from detrain.runtime.observers.experiment_run import Log, StepLine
from detrain.runtime.observers.trials_in_process import ALONE

FAULT = Injection(site="s", operand="output", worker=0, dtype="float32", shape=(1,), positions=b"", sources=b"", keep=b"", flip=b"")
GOLDEN = TrialResult(0, tuple(StepLine(0, 0, batch, {"loss": float(batch)}, f"state {batch}") for batch in range(10)), "program")
PLANS = {number: Experiment(log="", injection=FAULT, at=(0, 0, at), count=2) for number, at in enumerate((2, 2, 5, 6))}


def golden(*batches: int) -> list[Log]:
    return [Log(step=GOLDEN.steps[batch]) for batch in batches]


def faulty(batch: int, end: str = "until") -> list[Log]:
    steps = [Log(step=StepLine(0, 0, each, {"loss": -1.0}, "other")) for each in (batch, batch + 1)]
    return [Log(start=f"state {batch - 1}"), Log(is_armed=True), *steps, Log(end=end)]


WHOLE = [[*golden(0, 1), *faulty(2)], faulty(2), [*golden(2, 3, 4), *faulty(5)], [*golden(5), *faulty(6)], golden(6)]
WHOLE[-1].append(Log(end="until"))


class Subject:
    """Processes that leave given logs, one after another; the last ends with its last log."""

    limit_s, is_watched = None, False

    def __init__(self, folder: Path, runs: Sequence[Sequence[Sequence[Log]]]) -> None:
        self.folder, self.runs = folder, list(runs)
        self.begun: list[list[tuple[int, int, int]]] = []

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        home = self.folder / str(len(self.begun))
        home.mkdir()
        yield home

    def link_golden(self, _before: object, _home: Path) -> None:
        pass

    @contextlib.contextmanager
    def process(self, experiments: Sequence[Experiment], home: Path) -> Iterator[Subject]:
        self.begun.append([plan.at for plan in experiments])
        (home / "stderr").write_text("")
        for plan, lines in zip(experiments, self.runs.pop(0), strict=False):
            Path(plan.log).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        yield self

    def poll(self) -> int:
        return 0

    kill = wait = poll


def run(tmp_path: Path, *runs: Sequence[Sequence[Log]], plans: dict[int, Experiment] = PLANS) -> tuple[list[int], Subject]:
    subject = Subject(tmp_path, runs)
    found = dict(batch_of_trials.run_together(subject, plans, GOLDEN))  # type: ignore[arg-type]
    assert all([step.batch for step in done.steps if step.state == "other"] for done in found.values())
    return sorted(found), subject


def test_all_trials_of_a_process_that_comes_back_to_the_golden_run_are_believed(tmp_path: Path) -> None:
    found, subject = run(tmp_path, WHOLE)

    assert found == [0, 1, 2, 3]
    assert subject.begun == [[(0, 0, 2), (0, 0, 2), (0, 0, 5), (0, 0, 6), (0, 0, 6)]]


@pytest.mark.parametrize(("which", "believed"), [(0, []), (2, []), (3, [0, 1]), (4, [0, 1, 2])])
def test_nothing_is_believed_that_is_not_followed_by_the_golden_run(which: int, believed: list[int], tmp_path: Path) -> None:
    first = next(number for number, line in enumerate(WHOLE[which]) if line.step is not None)
    step = WHOLE[which][first].step
    assert step is not None
    left = [list(lines) for lines in WHOLE]
    left[which][first] = Log(step=msgspec.structs.replace(step, state="left behind"))

    found, subject = run(tmp_path, left)

    assert found == believed
    assert len(subject.begun) == 1


def test_a_trial_that_ends_its_process_is_for_one_of_its_own_and_the_others_go_on(tmp_path: Path) -> None:
    crashed = [*WHOLE[:2], WHOLE[2][:-1]]  # behind the third trial's armed step there is no more
    rest = [[*golden(0, 1, 2, 3, 4, 5), *faulty(6)], [*golden(6), *faulty(7)], [*golden(7), Log(end="until")]]
    plans = {**PLANS, 4: msgspec.structs.replace(PLANS[3], at=(0, 0, 7))}
    found, subject = run(tmp_path, crashed, rest, plans=plans)

    assert found == [0, 1, 3, 4]
    assert [len(begun) for begun in subject.begun] == [6, 3]


def test_a_trial_that_makes_the_program_end_ends_its_process(tmp_path: Path) -> None:
    ended = [WHOLE[0], faulty(2, end="program")]
    rest = [[*golden(0, 1, 2, 3, 4), *faulty(5)], *WHOLE[3:]]

    found, subject = run(tmp_path, ended, rest)

    assert found == [0, 1, 2, 3]
    assert [len(begun) for begun in subject.begun] == [5, 3]


def test_a_trial_that_makes_the_program_crash_is_for_a_process_of_its_own(tmp_path: Path) -> None:
    found, _ = run(tmp_path, [WHOLE[0], faulty(2, end="crash: ValueError")], [WHOLE[0], *rest_of(2)])

    assert found == [0, 2, 3]


def test_a_trial_that_crashes_where_its_process_goes_on_is_believed_with_the_status_of_a_crash(tmp_path: Path) -> None:
    subject = Subject(tmp_path, [[WHOLE[0], [*faulty(2)[:2], Log(crash="ValueError")], *WHOLE[2:]]])

    found = dict(batch_of_trials.run_together(subject, PLANS, GOLDEN))  # type: ignore[arg-type]

    assert {number: (done.status, done.crash) for number, done in found.items()} == {
        **dict.fromkeys((0, 2, 3), (0, "")),
        1: (1, "ValueError"),
    }
    assert len(subject.begun) == 1


def test_a_trial_that_began_with_other_variables_is_not_believed(tmp_path: Path) -> None:
    other = [Log(start="left behind"), *faulty(2, end="program")[1:]]

    assert run(tmp_path, [WHOLE[0], other])[0] == []


def rest_of(index: int) -> list[list[Log]]:
    """Return what a process leaves from a trial on, the steps from the window at 2 on run again."""
    return [list(lines) for lines in WHOLE[index:]]


def test_a_process_that_cannot_go_back_leaves_the_rest_to_others(tmp_path: Path) -> None:
    found, subject = run(tmp_path, [WHOLE[0], [Log(obstacle="no way")]])

    assert found == []
    assert len(subject.begun) == 1


@pytest.mark.parametrize(
    ("at", "count", "until", "takes"),
    [
        ((0, 0, 0), 2, None, False),
        ((0, 1, 0), 2, None, True),
        ((0, 0, 1), 10, None, True),
        ((0, 0, 1), None, (0, 1, 0), True),
        ((0, 0, 1), None, None, False),
    ],
)
def test_trials_with_a_horizon_share_a_process_but_for_the_first_step_where_that_leaves_things(
    at: tuple[int, int, int], count: int, until: object, takes: bool
) -> None:
    plan = Experiment(log="", injection=FAULT, at=at, count=count, until=until)  # type: ignore[arg-type]

    assert batch_of_trials.Together(alone_at={(0, 0, 0)}).takes(plan) is takes
    assert batch_of_trials.Together().takes(plan) is (count is not None or until is not None)
    assert not batch_of_trials.Together("an obstacle").takes(plan)


TWO = TrialResult(0, (*GOLDEN.steps, *(StepLine(0, 1, batch, {"loss": 9.0}, f"second {batch}") for batch in range(4))), "program")


def test_trials_of_an_epochs_first_step_are_left_to_others_where_it_cannot_be_begun_again(tmp_path: Path) -> None:
    first = {number: msgspec.structs.replace(PLANS[0], at=(0, 1, 0)) for number in (0, 1)}
    trial = [Log(is_armed=True), Log(step=StepLine(0, 1, 0, {"loss": -1.0}, "other")), Log(end="until")]
    known = batch_of_trials.Together()
    subject = Subject(tmp_path, [[trial, [Log(left="the loader runs Python")]]])

    found = dict(batch_of_trials.run_together(subject, first, TWO, known))  # type: ignore[arg-type]

    assert found == {}
    assert len(subject.begun) == 1
    assert known.alone_at == {(0, 1, 0)}
    assert known.takes(PLANS[0])


def test_a_trial_that_runs_into_the_next_epoch_is_believed_once_the_golden_run_has_been_there(tmp_path: Path) -> None:
    plans = {0: msgspec.structs.replace(PLANS[0], at=(0, 0, 9)), 1: msgspec.structs.replace(PLANS[0], at=(0, 0, 9))}
    into = [Log(step=StepLine(0, 0, 9, {"loss": -1.0}, "other")), Log(step=StepLine(0, 1, 0, {"loss": -1.0}, "other"))]
    trial = [Log(start="state 8"), Log(is_armed=True), *into, Log(end="until")]
    for name, seen, believed in (("same", TWO.steps[10], [0, 1]), ("another", StepLine(0, 1, 0, {"loss": 8.0}, "odd"), [])):
        (tmp_path / name).mkdir()
        closing = [*golden(9), Log(step=seen), Log(end="until")]
        subject = Subject(tmp_path / name, [[[*golden(8), *trial], trial, closing]])
        found = dict(batch_of_trials.run_together(subject, plans, TWO))  # type: ignore[arg-type]
        assert sorted(found) == believed, name


class Refusing(Subject):
    """Its first process is ended by detrain: a fault cannot be put in."""

    def poll(self) -> int:
        return FaultInvalid.exit_code if len(self.begun) == 1 else 0

    kill = wait = poll


def test_all_trials_at_a_site_at_which_no_fault_can_be_put_in_leave_the_process_that_this_ends(tmp_path: Path) -> None:
    """Each of them ended one, and all that it had done was done again."""
    ended = [*WHOLE[:2], WHOLE[2][:-1]]
    rest = [[*golden(*range(7)), *faulty(7)], [*golden(7), Log(end="until")]]
    of_other = msgspec.structs.replace(FAULT, site="other")
    plans = {number: msgspec.structs.replace(plan, injection=of_other) for number, plan in PLANS.items() if number < 2}
    plans |= {2: PLANS[2], 3: PLANS[3], 4: msgspec.structs.replace(PLANS[3], at=(0, 0, 7), injection=of_other)}
    subject = Refusing(tmp_path, [ended, rest])

    found = dict(batch_of_trials.run_together(subject, plans, GOLDEN))  # type: ignore[arg-type]

    assert sorted(found) == [0, 1, 4]
    assert [len(begun) for begun in subject.begun] == [6, 2]


class Late(Subject):
    """Its first process goes on until it is killed."""

    is_killed = False

    def poll(self) -> int | None:  # type: ignore[override]
        return None if len(self.begun) == 1 and not self.is_killed else 0

    def kill(self) -> None:  # type: ignore[override]
        self.is_killed = True

    wait = kill  # type: ignore[assignment]


@pytest.mark.parametrize("before", [2, 0])
def test_a_trial_that_is_late_hangs_where_one_before_has_shown_how_fast_the_machine_is(
    before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on in a new process. Without a trial before, it is for a process of its own."""
    monkeypatch.setattr("detrain.campaign.time_limit.LEAST_S", 0.0)
    spent = replace(GOLDEN, spent={(0, 0, batch): 1e-6 for batch in range(10)})
    plans = {number: PLANS[number] for number in ([0, 1, 2, 3] if before else [2, 3])}
    late = [*golden(*range(2 if before else 0, 5)), *faulty(5)[:2]]
    rest = [[*golden(0, 1, 2, 3, 4, 5), *faulty(6)], [*golden(6), Log(end="until")]]
    subject = Late(tmp_path, [[*WHOLE[:before], late], rest])

    found = dict(batch_of_trials.run_together(subject, plans, spent))  # type: ignore[arg-type]

    assert sorted(found) == ([0, 1, 2, 3] if before else [3])
    assert len(subject.begun) == 2
    if before:
        assert (found[2].status, found[2].end, found[2].is_armed) == (HANG, "", True)
        assert {found[number].status for number in (0, 1, 3)} == {0}


def test_a_trial_that_is_late_is_not_believed_where_the_run_before_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detrain.campaign.time_limit.LEAST_S", 0.0)
    spent = replace(GOLDEN, spent={(0, 0, batch): 1e-6 for batch in range(10)})
    other = Log(step=msgspec.structs.replace(GOLDEN.steps[3], state="left behind"))
    subject = Late(tmp_path, [[*WHOLE[:2], [*golden(2), other, *golden(4), *faulty(5)[:2]]]])

    assert dict(batch_of_trials.run_together(subject, PLANS, spent)) == {}  # type: ignore[arg-type]
    assert len(subject.begun) == 1


def test_a_trial_whose_site_alone_changes_bits_is_done_again_beside_a_twin(tmp_path: Path) -> None:
    place = msgspec.structs.replace(FAULT, site="t")
    plans = {0: PLANS[0], 1: Experiment(log="", injection=place, at=(0, 0, 5), count=2)}
    step = Log(step=StepLine(0, 0, 5, {"loss": 5.0}, "of the site"))
    alone = [*golden(2, 3, 4), Log(start="state 4"), Log(is_armed=True), step, Log(end=ALONE)]
    ends = [*golden(5), Log(end="until")]
    first = [[*golden(0, 1), *faulty(2)], alone, ends]
    twin = [
        *golden(3, 4),
        Log(start="state 4"),
        step,
        Log(step=StepLine(0, 0, 6, {"loss": 6.5}, "behind")),
        Log(end="until"),
    ]
    again = [twin, [Log(start="state 4"), *faulty(5)[1:]], ends]
    subject = Subject(tmp_path, [first, again])

    found = dict(batch_of_trials.run_together(subject, plans, GOLDEN))  # type: ignore[arg-type]

    assert [len(begun) for begun in subject.begun] == [3, 3]
    assert sorted(found) == [0, 1]
    assert found[0].twin is None
    beside = found[1].twin
    assert beside is not None
    assert [each.state for each in beside.steps] == [*(f"state {at}" for at in range(5)), "of the site", "behind"]
    assert [each.state for each in found[1].steps if each.batch >= 5] == ["other", "other"]


def test_a_twin_that_does_not_come_to_its_end_has_the_trial_done_alone(tmp_path: Path) -> None:
    plans = {0: Experiment(log="", injection=FAULT, at=(0, 0, 5), count=2), 1: PLANS[0]}
    alone = [Log(start="state 4"), Log(is_armed=True), Log(end=ALONE)]
    first = [[*golden(0, 1), *faulty(2)], [*golden(2, 3, 4), *alone], [*golden(5), Log(end="until")]]
    again = [[*golden(0, 1, 2, 3, 4), Log(start="state 4")]]
    subject = Subject(tmp_path, [first, again])

    assert sorted(dict(batch_of_trials.run_together(subject, plans, GOLDEN))) == [1]  # type: ignore[arg-type]
