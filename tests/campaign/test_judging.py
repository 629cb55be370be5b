"""What a trial said, wrote and left is compared with the golden run's, without what differs between two of these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from detrain.base.errors import UsageError
from detrain.campaign.judging.check import FAILS, PASSES, measured_by, run_check
from detrain.campaign.judging.judge import Judge, Masks
from detrain.campaign.trial_log import HANG, TrialResult
from detrain.runtime.observers.experiment_run import StepLine
from detrain.runtime.observers.said import BEHIND, Said, WrittenFile, write_variables

WORDS = st.sampled_from(["epoch", "loss", "0.25", "17", "nan", "saved", "/tmp/a1", "in", "done", "1e-3", "min"])
LINES = st.lists(st.lists(WORDS, min_size=1, max_size=5).map(" ".join), max_size=6)


@given(LINES, LINES)
def test_two_golden_runs_are_equal_once_their_differences_are_known(one: list[str], other: list[str]) -> None:
    masks = Masks()
    masks.learn("\n".join(one), "\n".join(other))
    assert masks.compared("\n".join(one)) == masks.compared("\n".join(other))


@given(LINES)
def test_where_nothing_differs_all_is_compared(lines: list[str]) -> None:
    masks = Masks()
    masks.learn("\n".join(lines), "\n".join(lines))
    assert masks.compared("\n".join(lines)) == lines


def test_a_word_that_differs_may_be_any_and_the_others_must_be_as_they_are() -> None:
    masks = Masks()
    masks.learn("epoch 1 loss 0.25 by a1\nsaved in /tmp/a1\ndone", "epoch 1 loss 0.25 by b2\nsaved in /tmp/b2\ndone")

    assert masks.compared("saved in /tmp/c3") == masks.compared("saved in /tmp/d")
    assert masks.compared("epoch 1 loss 0.25 by c") != masks.compared("epoch 1 loss 0.75 by c")
    assert masks.compared("done") != masks.compared("done, but")


def test_what_was_the_same_by_chance_is_known_from_another_step() -> None:
    masks = Masks()
    masks.learn("step 1 loss 0.5 rate 31", "step 1 loss 0.5 rate 33")
    masks.learn("step 2 loss 0.4 rate 32", "step 2 loss 0.4 rate 32")

    assert masks.compared("step 2 loss 0.4 rate 7") == masks.compared("step 2 loss 0.4 rate 32")
    assert masks.compared("step 2 loss 0.3 rate 32") != masks.compared("step 2 loss 0.4 rate 32")


@pytest.mark.parametrize(
    ("text", "compared"),
    [
        ("took 3.5 s, at last", ["took … s, at last"]),
        ("3/3 [00:01<00:00, 5ms/step] loss 0.5", ["3/3 [00:01<00:00, … loss 0.5"]),
        ("<object at 0x7f3a9c0012d0> 3", ["<object at … 3"]),
        ("max 0.9 min 0.3", ["max 0.9 min 0.3"]),
        (":::took long:::\n::: open", ["::: open"]),
        ("  5%|# |\r 10%|## |\rloss 1", []),
        ("detrain: guard: an alarm\nloss 1", ["loss 1"]),
        ("loss 1\r\nloss 2", ["loss 1", "loss 2"]),
    ],
)
def test_times_progress_bars_and_what_detrain_says_are_left_out(text: str, compared: list[str]) -> None:
    assert Masks().compared(text) == compared


def test_lines_that_the_user_names_are_left_out() -> None:
    assert Masks(ignored=(r"^cache", "hits$")).compared("cache 3\nloss 1\n4 hits") == ["loss 1"]


def run(end: str, steps: int, *said: Said, files: tuple[WrittenFile, ...] | None = None) -> TrialResult:
    lines = tuple(StepLine(0, at // 3, at % 3, {}, f"state {at}") for at in range(steps))
    return TrialResult(0, lines, end, said=said, files=files)


def losses(steps: int, changed: dict[int, str] | None = None, err: dict[int, str] | None = None) -> list[Said]:
    """Return what a program says in six steps, three an epoch: what is behind an epoch comes with its last step."""
    found = []
    for at in range(steps):
        text = (changed or {}).get(at, f"loss {at}\n")
        found.append(Said((0, at // 3, at % 3), is_body=True, out=text, err=(err or {}).get(at, "")))
        if at % 3 == 2:
            found.append(Said((0, at // 3, BEHIND), out=f"epoch {at // 3}\n"))
    return found


GOLDEN = run("program", 6, *losses(6), Said((BEHIND, 0, 0), out="over\n"))
JUDGE = Judge(GOLDEN, GOLDEN)


def since(at: int, said: list[Said]) -> list[Said]:
    return [each for each in said if each.place >= (0, at // 3, at % 3, True)]


def windowed(at: int, last: int, **told: dict[int, str]) -> TrialResult:
    done = run("until", last + 1, *since(at, losses(last + 1, **told)))
    return replace(done, said=tuple(each for each in done.said if each.at <= (0, last // 3, last % 3)))


@given(st.integers(0, 5), st.integers(0, 5))
def test_a_trial_that_says_what_the_golden_run_says_up_to_its_horizon_is_equal(at: int, length: int) -> None:
    seen = JUDGE.seen((0, at // 3, at % 3), windowed(at, min(at + length, 5)), GOLDEN)
    assert (seen.stdout, seen.stderr, seen.files) == ("equal", "equal", "not judged")


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_a_line_that_is_another_from_the_fault_on_is_seen_and_none_before_it(at: int, length: int, where: int) -> None:
    last = min(at + length, 5)
    seen = JUDGE.seen((0, at // 3, at % 3), windowed(at, last, changed={where: "loss nan\n"}), GOLDEN)
    assert seen.stdout == ("differs" if at <= where <= last else "equal")


@pytest.mark.parametrize("status", [HANG, 1])
def test_of_a_trial_that_has_not_come_to_the_end_of_its_first_step_nothing_is_compared(status: int) -> None:
    golden = TrialResult(0, (), "until", said=(Said((0, 0, 3), True, "epoch 0"), Said((0, 1, 0), True, "epoch 1")))
    seen = Judge(golden, golden).seen((0, 0, 3), TrialResult(status, (), ""), golden)

    assert (seen.stdout, seen.stderr, seen.files) == ("not judged", "not judged", "not judged")


def test_what_a_process_says_once_only_does_not_count_at_a_horizon() -> None:
    warning = "/x/y.py:3: RuntimeWarning: overflow encountered\n"
    done = windowed(1, 4, err={2: warning})
    assert JUDGE.seen((0, 0, 1), done, GOLDEN).stderr == "equal"
    other = JUDGE.seen((0, 0, 1), windowed(1, 4, err={2: "bad value\n"}), GOLDEN)
    assert (other.stderr, other.has_only_warnings) == ("differs", False)
    whole = run("program", 6, *since(1, losses(6, err={2: warning})), Said((BEHIND, 0, 0), out="over\n"))
    seen = JUDGE.seen((0, 0, 1), whole, GOLDEN)
    assert (seen.stdout, seen.stderr, seen.has_only_warnings) == ("equal", "differs", True)


def test_a_warning_that_the_golden_run_gives_earlier_is_none_of_the_faults() -> None:
    warning = "/x/y.py:3: UserWarning: the first call\n"
    golden = run("program", 6, *losses(6, err={0: warning}))
    whole = run("program", 6, *since(3, losses(6, err={3: warning})))
    assert Judge(golden, golden).seen((0, 1, 0), whole, golden).stderr == "equal"


def test_what_is_missing_at_the_end_is_seen() -> None:
    whole = run("program", 6, *since(1, losses(6)))
    assert JUDGE.seen((0, 0, 1), whole, GOLDEN).stdout == "differs"


@pytest.mark.parametrize(
    ("changed", "found"), [({}, "not judged"), ({3: "loss nan\n"}, "not judged"), ({2: "loss 9\n"}, "differs")]
)
def test_what_a_step_says_in_which_its_trial_was_ended_is_not_judged(changed: dict[int, str], found: str) -> None:
    done = replace(windowed(1, 3, changed=changed), end="non-finite loss")
    assert JUDGE.seen((0, 0, 1), done, GOLDEN).stdout == found


def with_files(**digests: str) -> TrialResult:
    files = tuple(WrittenFile(path, digest) for path, digest in digests.items())
    return replace(GOLDEN, files=files)


@pytest.mark.parametrize(
    ("trial", "found"),
    [
        ({"a": "1", "b": "2", "log": "t"}, "equal"),
        ({"a": "1", "b": "3", "log": "t"}, "differs"),
        ({"a": "1", "log": "t"}, "differs"),
        ({"a": "1", "b": "2", "log": "t", "more": "4"}, "differs"),
    ],
)
def test_files_are_compared_but_for_those_that_two_golden_runs_differ_by(trial: dict[str, str], found: str) -> None:
    golden = with_files(a="1", b="2", log="x")
    judge = Judge(golden, with_files(a="1", b="2", log="y"))
    done = replace(with_files(**trial), said=GOLDEN.said)
    assert judge.seen((0, 0, 0), done, golden).files == found


def test_files_whose_names_differ_from_run_to_run_are_none_of_the_faults() -> None:
    golden = with_files(a="1", run7="2")
    judge = Judge(golden, with_files(a="1", run8="2"))
    assert judge.seen((0, 0, 0), with_files(a="1", run9="2"), golden).files == "equal"


def test_a_file_that_was_written_before_the_fault_is_not_missed() -> None:
    golden = replace(GOLDEN, files=(WrittenFile("early", "1", (0, 0, 1)), WrittenFile("late", "2", (0, 1, 1))))
    judge = Judge(golden, golden)
    late = replace(GOLDEN, files=(WrittenFile("late", "2", (0, 1, 1)),))
    assert judge.seen((0, 1, 0), late, golden).files == "equal"
    assert judge.seen((0, 0, 0), late, golden).files == "differs"


BYTES = {
    "w torch.float64[1, 2]": np.array([1.0, 2.0]).view(np.uint8),
    "b torch.bfloat16[1, 2]": np.array([0x3F80, 0x4000], np.uint16).view(np.uint8),
}


def test_a_check_is_a_command_or_a_function_of_the_final_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of Python: what is shown is how a check is started."""
    monkeypatch.chdir(tmp_path)
    write_variables(str(tmp_path / "v.npz"), {"net/file": np.arange(3.0), "self": np.ones(2, np.float16), **BYTES})
    function = """def sums(v):
    return v["net/file"].sum() == 3 and v["self"].dtype == "float16" and v["w"].tolist() == [[1, 2]] == v["b"].tolist()
"""
    (tmp_path / "judge.py").write_text(function)
    found = run_check("judge:sums", tmp_path / "v.npz", 60)
    status = run_check("python -c \"import os, sys; sys.exit(len(os.environ['DETRAIN_VARIABLES']))\"", tmp_path / "v.npz", 60)
    assert (found[0], status[0]) == (PASSES, FAILS)
    with pytest.raises(UsageError, match="cannot be started"):
        run_check("no-such-command-at-all", tmp_path / "v.npz", 60)


@pytest.mark.parametrize(
    ("text", "why"), [("import sys\nsys.exit(0)", "it ended with status 0"), ("def f(arrays): return 'x'", "could not convert")]
)
def test_a_metric_that_gives_no_number_is_named(text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that ends the process with success raised IndexError."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measure_by.py").write_text(text + "\n")
    np.savez(tmp_path / "variables.npz", w=np.zeros(2))

    with pytest.raises(UsageError, match=f"gives no number: .*{why}"):
        measured_by("measure_by:f", tmp_path / "variables.npz", 60)
