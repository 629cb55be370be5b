"""Sites are chosen as named, and what goes into the step does what the plan says."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.stats import binomtest

from detrain.base.cursor import parse_cursor, written
from detrain.base.errors import FaultInvalid, SiteUnknown
from detrain.campaign.outcomes import NO_STEP, UNKNOWN, outcome_of
from detrain.campaign.planning.drawn_plan import DrawnPlan
from detrain.campaign.trial import drawn_fault
from detrain.campaign.trial_log import HANG, TrialResult, same_before, same_from
from detrain.faults.bits import dtype_named
from detrain.faults.drawing import at_element, draw_injection, injection
from detrain.faults.experiment import Injection
from detrain.faults.models import PUBLISHED, model_named
from detrain.faults.plan import Operand, trial_rng
from detrain.faults.population.facts import Coming
from detrain.faults.sites import OperandShape, Site, Stage, select
from detrain.faults.statistics.intervals import wilson
from detrain.python.inspect.program_metrics import is_accuracy
from detrain.runtime.observers.experiment_run import StepLine
from tests.faults.applied import applied

OWN = ("FLIP:2", "BIT:3,7", "STUCK0:1", "STUCK1:5", "SET:3", "FLIP@weight", "SET:2@input")


def site(
    layer: str, op: str = "MatMul", stage: Stage = "forward", *, is_alive: bool = True, dtype: str = "float32", replicas: int = 1
) -> Site:
    shapes = {"input": (4, 70), "weight": (70, 32), "output": (4, 32)}
    names = [name for name in shapes if op == "MatMul" or name == "output"]
    return Site(
        name=f"step/{stage}/{layer}/{op}",
        layer=layer,
        op=op,
        stage=stage,
        role="grad_in" if stage == "backward" else "",
        operands={name: OperandShape(0, shapes[name], dtype) for name in names},
        executions=1,
        is_alive=is_alive,
        replicas=replicas,
    )


SITES = [
    site("net/conv1"),
    site("net/conv1", "BiasAdd"),
    site("net/conv1", stage="backward"),
    site("net/fc"),
    site("net/dead", is_alive=False),
]


@pytest.mark.parametrize(
    ("pattern", "stage", "expected"),
    [
        ("conv1", None, [0, 2]),
        ("conv1", "forward", [0]),
        ("conv1_grad_in", None, [2]),
        ("net/*", "forward", [0, 1, 3]),
        ("step/forward/net/conv1/BiasAdd", None, [1]),
        ("*", None, [0, 2, 3]),
    ],
)
def test_a_pattern_names_the_contractions_of_its_layers_first(pattern: str, stage: str | None, expected: list[int]) -> None:
    assert select(SITES, pattern, stage=stage) == [SITES[index] for index in expected]


def test_of_a_program_without_contractions_all_sites_are_drawn_from() -> None:
    assert select(SITES[1:2], "*") == SITES[1:2]


@pytest.mark.parametrize(
    ("pattern", "operand", "words"),
    [
        ("conv2", "output", "nearest are conv1"),
        ("xyz", "output", "values of float32, float16"),
        ("dead", "output", "is dead"),
        ("step*BiasAdd", "weight", "with 'weight'"),
    ],
)
def test_a_site_that_is_not_there_is_refused(pattern: str, operand: str, words: str) -> None:
    with pytest.raises(SiteUnknown, match=words):
        select(SITES, pattern, operand=operand)


def done(fault: Injection, bits: np.ndarray) -> np.ndarray:
    """What the compiled step does, in NumPy."""
    flat = bits.reshape(-1).copy()
    source = bits.reshape(-1)[fault.array("sources")]
    flat[fault.array("positions")] = (source & fault.array("keep").view(bits.dtype)) ^ fault.array("flip").view(bits.dtype)
    return flat.reshape(bits.shape)


@given(
    st.sampled_from([*PUBLISHED, *OWN]), st.sampled_from(["float32", "float16", "bfloat16", "int32", "int8"]), st.integers(0, 2**32)
)
def test_what_goes_into_the_step_is_the_plan(name: str, dtype_name: str, seed: int) -> None:
    dtype, model = dtype_named(dtype_name), model_named(name)
    target = site("net/fc", dtype=dtype_name).operands[model.operand.value]
    bits = np.random.default_rng(seed).integers(0, 1 << dtype.width, target.shape, dtype=dtype.unsigned)
    plan = model.plan(target.shape, dtype, trial_rng(seed, 0))

    fault = injection(site("net/fc", dtype=dtype_name), plan, model.operand, 0)

    assert np.array_equal(done(fault, bits), applied(plan, bits))


def drawn_from(sites: list[Site], steps: list[tuple[int, int, int]], there: list[Site] | None = None) -> DrawnPlan:
    return DrawnPlan(5, 40, list(PUBLISHED.values()), {0: sites}, steps, lambda _at: there or sites)


def test_a_trial_is_the_same_fault_whichever_ran_before() -> None:
    steps = [(0, epoch, batch) for epoch in range(3) for batch in range(9)]
    plan = drawn_from(SITES[:1], steps)
    trials = [plan.trial(number)[1] for number in range(8)]

    assert [plan.trial(number)[1] for number in reversed(range(8))] == trials[::-1]
    assert len({trial.at for trial in trials}) > 1


def test_a_trial_that_missed_is_drawn_among_the_sites_of_its_own_step() -> None:
    there = [site("net/small"), site("net/branch")]
    plan = drawn_from(SITES[:1], [(0, 1, batch) for batch in range(9)], there)
    for number in range(20):
        first = plan.trial(number)[1]
        found = plan.again(number, first)
        assert found is not None
        facts, again = found
        assert again.at == first.at
        assert again.injection is not None
        assert again.injection.site == facts.site
        assert (facts.layer, facts.site) in {(each.layer, each.name) for each in there}
        assert plan.again(number, first) == found
        assert plan.again(number, again) is None, "it is the same fault"


@pytest.mark.parametrize("model", ["FLIP:1", "RANDOM@input", "STUCK1:30@weight", "N16_RD", "RD_CORRECT", "INPUT_16"])
@pytest.mark.parametrize("count", [2, 5])
def test_faults_at_once_are_those_of_the_model_on_elements_of_their_own(model: str, count: int) -> None:
    """The first faults of the same random numbers, where they do not meet: what each would do alone, all have done."""
    named = model_named(model)
    rng = trial_rng(7, count)
    alone = [draw_injection(SITES[3], named, 0, rng) for _ in range(count)]
    hit = [set(one.array("positions").tolist()) for one in alone]
    assert sum(map(len, hit)) == len(set.union(*hit)), "choose other seeds"

    together = draw_injection(SITES[3], named, 0, trial_rng(7, count), count)

    together.check()
    assert together.array("positions").tolist() == sorted(set.union(*hit))
    values = np.random.default_rng(0).integers(1 << 31, size=alone[0].elements, dtype=np.int32)
    expected = values.copy()
    for one in alone:
        expected[one.array("positions")] = (values[one.array("sources")] & one.array("keep")) ^ one.array("flip")
    found = values.copy()
    found[together.array("positions")] = (values[together.array("sources")] & together.array("keep")) ^ together.array("flip")
    assert found.tolist() == expected.tolist()
    if named.is_limited:
        assert set(together.array("limited").tolist()) == {place for one in alone for place in one.array("limited").tolist()}


def test_a_seed_draws_another_fault_at_each_site() -> None:
    sites = [site(f"net/fc{number}") for number in range(12)]
    found = {
        (one.positions, one.flip)
        for each in sites
        for one in [drawn_fault("FLIP:1", each.layer, None, 0, 5, (0, 0, 0), 0).among(sites)]
        if one.site == each.name
    }

    assert len(found) == len(sites)


def test_more_faults_than_elements_are_refused() -> None:
    with pytest.raises(FaultInvalid, match="129 faults of FLIP:1 at once do not fit the 128 elements"):
        draw_injection(SITES[3], model_named("FLIP:1"), 0, trial_rng(0, 0), 129)


@pytest.mark.parametrize("coming", [Coming(steps=3), Coming(steps=0), Coming(steps=0, duty=0.25), Coming(at_once=3)])
def test_how_faults_come_changes_nothing_else_of_a_plan(coming: Coming) -> None:
    once = drawn_from(SITES[:1], [(0, 0, 0)])
    plan = replace(once, coming=coming)
    assert plan.digest != once.digest

    for number in range(20):
        facts, trial = plan.trial(number)
        assert (trial.steps, trial.duty) == (coming.steps, coming.duty)
        assert (trial.at, facts.site) == (once.trial(number)[1].at, once.trial(number)[0].site)
        assert plan.trial(number) == (facts, trial)
    seeds = {plan.trial(number)[1].duty_seed for number in range(20)}
    assert len(seeds) == (20 if coming.duty < 1 else 1)


def test_faults_among_a_step_are_in_ops_of_their_own_and_the_first_is_as_it_would_be_alone() -> None:
    once = drawn_from(SITES, [(0, 0, 0)])
    plan = replace(once, coming=Coming(at_once=3, among="step"))

    for number in range(20):
        facts, trial = plan.trial(number)
        assert (facts, trial.injection) == (once.trial(number)[0], once.trial(number)[1].injection)
        assert len({facts.site, *(fault.site for fault, _ in trial.also)}) == 3
        assert plan.trial(number)[1] == trial
    with pytest.raises(FaultInvalid, match="faults in tensors of their own do not fit a step"):
        replace(once, coming=Coming(at_once=len(SITES) + 1, among="step")).trial(0)


def test_any_run_of_a_site_that_runs_often_in_a_step_may_be_hit() -> None:
    often = msgspec.structs.replace(SITES[0], executions=3)
    plan = drawn_from([often], [(0, 0, 0)])

    assert {plan.trial(number)[1].occurrence for number in range(40)} == {0, 1, 2}


def test_replicas_and_operands_that_are_not_there_are_refused() -> None:
    with pytest.raises(FaultInvalid, match="no replica 2: the step runs on 2"):
        draw_injection(site("net/fc", replicas=2), model_named("RD"), 2, trial_rng(0, 0))
    with pytest.raises(FaultInvalid, match="has no weight"):
        draw_injection(SITES[1], model_named("WT"), 0, trial_rng(0, 0))
    assert draw_injection(site("net/fc", replicas=2), model_named("RD"), 1, trial_rng(0, 0)).operand == Operand.OUTPUT


@given(st.tuples(*[st.integers(0, 10**6)] * 3))
def test_a_cursor_is_read_as_it_is_written(cursor: tuple[int, int, int]) -> None:
    assert parse_cursor(written(cursor)) == cursor


@given(st.integers(1, 500), st.data())
def test_intervals_are_those_of_scipy(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    expected = binomtest(count, total).proportion_ci(0.95, method="wilson")

    assert wilson(count, total) == pytest.approx((expected.low, expected.high), abs=1e-9)


def steps(losses: dict[tuple[int, int], float], state: str = "") -> TrialResult:
    """A run that has said this of its steps."""
    return TrialResult(
        0, tuple(StepLine(0, epoch, batch, {"loss": loss}, state) for (epoch, batch), loss in losses.items()), "program"
    )


def test_a_trial_is_compared_with_the_golden_run_before_its_fault_or_not_at_all() -> None:
    golden = steps({(0, 0): 1.0, (0, 1): 0.5, (0, -1): 9.0, (1, 0): 0.25})

    assert same_before(golden, steps({(0, 0): 1.0, (0, 1): 7.0}), (0, 0, 1)) is True
    assert same_before(golden, steps({(0, 0): 1.5, (0, 1): 0.5}), (0, 0, 1)) is False
    assert same_before(golden, steps({(1, 0): 7.0}), (0, 1, 0)) is None
    # The golden run still has an accuracy of an earlier step, which a run that begins behind it does not have.
    carried = TrialResult(0, (StepLine(0, 1, 0, {"loss": 0.25, "accuracy": 0.5}),), "program")
    assert same_before(carried, steps({(1, 0): 0.25}), (0, 1, 1)) is True
    assert same_before(carried, steps({(1, 0): 0.5}), (0, 1, 1)) is False


def test_a_run_with_the_site_in_place_is_equal_only_with_equal_variables() -> None:
    golden = steps({(0, 0): 1.0, (0, 1): 0.5, (0, -1): 9.0}, "a")

    assert same_from(golden, steps({(0, 0): 1.0, (0, 1): 0.5}, "a"), (0, 0, 0))
    assert not same_from(golden, steps({(0, 0): 1.0, (0, 1): 0.5}, "b"), (0, 0, 0))
    assert not same_from(golden, steps({(0, 1): 0.5, (0, 2): 0.5}, "a"), (0, 0, 0))
    assert not same_from(golden, steps({}, "a"), (0, 0, 0))
    assert same_from(golden, steps({(0, 0): 1.0, (0, 1): 0.5}), (0, 0, 0)), "a run that takes no digest of these steps"


@pytest.mark.parametrize(
    ("losses", "state", "outcome"),
    [
        ({(0, 0): 1.0, (0, 1): 0.5}, "a", "masked"),
        ({(0, 0): 1.0, (0, 1): 0.5}, "b", UNKNOWN),
        ({(0, 0): 1.0, (0, 1): 0.75, (1, 0): 0.5}, "a", UNKNOWN),
        ({(0, 0): 1.0, (0, 1): 0.75, (1, 0): float("nan")}, "a", "short-term INF/NaN"),
    ],
)
def test_without_an_accuracy_masked_is_what_ends_with_the_golden_variables(
    losses: dict[tuple[int, int], float], state: str, outcome: str
) -> None:
    """A program that ends when its loss is low goes on longer with a fault."""
    assert outcome_of(steps({(0, 0): 1.0, (0, 1): 0.5}, "a"), steps(losses, state), (0, 0, 0)) == outcome


def test_of_several_accuracies_the_one_that_suffers_most_tells_the_outcome() -> None:
    def run(*second: float) -> TrialResult:
        series = [{"loss": 1.0, "accuracy": 0.9, "accuracy_1": accuracy} for accuracy in second]
        return TrialResult(0, tuple(StepLine(0, 0, batch, each) for batch, each in enumerate(series)), "program")

    golden = run(0.9, 0.9, 0.9, 0.9)

    assert outcome_of(golden, run(0.9, 0.9, 0.1, 0.1), (0, 0, 1)) == "sharp degrade"
    assert outcome_of(golden, run(0.9, 0.9, 0.9, 0.9), (0, 0, 1)) == "masked"


def with_accuracy(
    values: dict[tuple[int, int], float | None], *, end: str = "program", state: str = "a", status: int = 0
) -> TrialResult:
    """A run whose losses are finite, and its accuracy at each step; None: the step was left before it was taken."""
    series = {at: {"loss": 1.0} | ({} if value is None else {"accuracy": value}) for at, value in values.items()}
    return TrialResult(status, tuple(StepLine(0, *at, each, state) for at, each in series.items()), end)


LEARNT = {(epoch, batch): 0.9 for epoch in range(3) for batch in range(20)}


@pytest.mark.parametrize("status", [0, 3])
def test_a_step_that_is_left_before_its_accuracy_is_taken_is_not_infinite(status: int) -> None:
    """The program ends by itself on a huge loss, which is finite."""
    golden = with_accuracy(LEARNT)
    trial = with_accuracy({(0, 0): 0.9, (0, 1): 0.9, (0, 2): None}, state="b", status=status, end="" if status else "program")

    assert outcome_of(golden, trial, (0, 0, 1)) == ("crash" if status else "other")


def test_steps_are_compared_at_their_cursors_where_an_epoch_is_left_early() -> None:
    """The second epoch is hard for the golden run, too."""
    golden = with_accuracy({(epoch, batch): 0.1 if epoch == 1 else 0.9 for epoch in range(3) for batch in range(20)})
    trial = {(0, 0): 0.9, (0, 1): 0.9} | {(1, batch): 0.1 for batch in range(20)} | {(2, batch): 0.9 for batch in range(20)}

    assert outcome_of(golden, with_accuracy(trial, state="b"), (0, 0, 1)) == "other"  # not masked: it has left an epoch
    assert outcome_of(golden, with_accuracy(trial, state="a"), (0, 0, 1)) == "masked"


@pytest.mark.parametrize("scale", [1, 100])
def test_accuracies_in_percent_are_classified_as_fractions_are(scale: int) -> None:
    golden = with_accuracy(dict.fromkeys(LEARNT, 0.9 * scale))
    trial = with_accuracy({at: 0.9 * scale if at <= (0, 5) else 0.885 * scale for at in LEARNT}, state="b")
    low = with_accuracy({at: 0.9 * scale if at <= (0, 5) else 0.1 * scale for at in LEARNT}, state="b")

    assert outcome_of(golden, trial, (0, 0, 5)) == "masked"
    assert outcome_of(golden, low, (0, 0, 5)) == "sharp-slow degrade"


def test_validations_in_percent_do_not_make_fractions_small() -> None:
    def run(accuracy: float) -> TrialResult:
        steps = [StepLine(0, 0, batch, {"loss": 1.0, "accuracy": 0.5 if batch < 3 else accuracy}, "b") for batch in range(60)]
        return TrialResult(0, (*steps, StepLine(0, 0, -1, {"test_accuracy": 60.0}, "b")), "program")

    assert outcome_of(run(0.5), run(0.2), (0, 0, 2)) == "sharp-slow degrade"


def test_numbers_that_are_no_accuracies_are_not_classified_by() -> None:
    golden, trial = (with_accuracy(dict.fromkeys(LEARNT, 400.0), state=state) for state in "ab")
    assert outcome_of(golden, trial, (0, 0, 5)) == UNKNOWN


@pytest.mark.parametrize("last", [(2, 4), (0, 4)])
def test_training_that_ends_early_by_the_fault_is_not_masked(last: tuple[int, int]) -> None:
    golden, short = with_accuracy(LEARNT), {at: 0.9 for at in LEARNT if at <= last}

    assert outcome_of(golden, with_accuracy(short, state="b"), (0, 0, 1)) == "other"
    assert outcome_of(golden, with_accuracy(short, state="b", end="until"), (0, 0, 1)) == "masked"


def test_a_step_without_the_accuracy_in_question_is_not_judged_by_another() -> None:
    def run(accuracy: float | None) -> TrialResult:
        series = {"loss": 1.0, "top_accuracy": 0.9}
        late = series if accuracy is None else series | {"accuracy": accuracy}
        steps = [StepLine(0, 0, batch, series | {"accuracy": 0.5} if batch < 3 else late, "b") for batch in range(60)]
        return TrialResult(0, tuple(steps), "until")

    assert outcome_of(run(0.5), run(0.2), (0, 0, 2)) == "sharp-slow degrade"
    assert outcome_of(run(0.5), run(None), (0, 0, 2)) == "masked"


def test_a_fault_in_the_last_step_is_masked_only_where_the_variables_are_equal() -> None:
    golden = with_accuracy(LEARNT)
    assert outcome_of(golden, with_accuracy(LEARNT, state="b"), (0, 2, 19)) == NO_STEP
    assert outcome_of(golden, with_accuracy(LEARNT), (0, 2, 19)) == "masked"
    assert outcome_of(golden, with_accuracy(LEARNT, state="b"), (0, 2, 18)) == "masked"


def test_the_best_accuracy_so_far_is_none_of_a_step() -> None:
    assert is_accuracy("accuracy")
    assert is_accuracy("softmax_accuracy")
    assert not is_accuracy("best_accuracy")
    assert not is_accuracy("best_val_acc")


def test_steps_that_take_no_gradient_stand_in_no_trials_way() -> None:
    silent, golden = StepLine(0, 0, 0, {}, "a"), steps({(0, 1): 1.0, (0, 2): 0.5}, "a")
    golden = replace(golden, steps=(silent, *golden.steps))

    assert outcome_of(golden, golden, (0, 0, 1)) == "masked"


def test_a_process_that_ends_in_the_first_step_that_it_runs_is_a_crash_wherever_it_began() -> None:
    golden = steps({(0, 0): 1.0, (0, 1): 0.5, (1, 0): 0.25, (1, 1): 0.125}, "a")

    assert outcome_of(golden, TrialResult(134, (), "", is_armed=True), (0, 1, 0)) == "crash"
    assert outcome_of(golden, TrialResult(HANG, (), "", is_armed=True), (0, 1, 0)) == "hang"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (2,)}, "outside of a tensor of 2 elements"),
        ({"positions": b""}, "not one of each for each position"),
        ({"keep": b"123"}, "no float32"),
        ({"dtype": "complex64"}, "complex64"),
        ({"sources": np.array([-1], np.int64).tobytes()}, "position -1"),
    ],
)
def test_an_altered_fault_is_refused(changes: dict[str, Any], message: str) -> None:
    rng = trial_rng(0, 0)
    whole = draw_injection(SITES[0], model_named("SET:2"), 0, rng)
    whole = msgspec.structs.replace(whole, positions=np.array([3], np.int64).tobytes(), sources=np.array([3], np.int64).tobytes())
    whole.check()

    with pytest.raises(FaultInvalid, match=message):
        msgspec.structs.replace(whole, **changes).check()


@pytest.mark.parametrize(
    ("element", "hit"),
    [("2,3", {(2, 3)}), ("*, 3", {(row, 3) for row in range(4)}), ("1,*", {(1, column) for column in range(32)})],
)
@pytest.mark.parametrize("name", ["SET:5", "FLIP:3", "ADJ:2", "RANDOM", "BIT:30", "STUCK0:29"])
def test_a_named_element_gets_what_a_drawn_one_would_have_got(name: str, element: str, hit: set[tuple[int, int]]) -> None:
    drawn = draw_injection(SITES[3], model_named(name), 0, trial_rng(3, 0))
    named = at_element(drawn, element)

    positions = named.array("positions")
    assert {(int(at) // 32, int(at) % 32) for at in positions} == hit
    assert named.array("sources").tolist() == positions.tolist() == sorted(positions.tolist())
    for each in ("keep", "flip"):
        assert set(named.array(each).tolist()) == set(drawn.array(each).tolist())
        assert len(named.array(each)) == len(hit)


@pytest.mark.parametrize(
    ("name", "element", "why"),
    [
        ("SET:5", "4,0", "is [4, 32]"),
        ("SET:5", "1", "an index from 0 for each axis"),
        ("SET:5", "-1,0", "an index from 0 for each axis"),
        ("SET:5", "a,0", "an index from 0 for each axis"),
        ("RD", "1,1", "a model of one"),
        ("N32_FLIP:1", "1,1", "a model of one"),
    ],
)
def test_an_element_that_is_none_and_a_model_of_several_are_refused(name: str, element: str, why: str) -> None:
    drawn = draw_injection(SITES[3], model_named(name), 0, trial_rng(3, 0))

    with pytest.raises(FaultInvalid) as error:
        at_element(drawn, element)
    assert why in str(error.value)
