"""The verdict on three runs of a program: only what was compared and is equal is called exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from detrain.verify.state_diff import Difference
from detrain.verify.verification import Verification, read_notes
from detrain.verify.verified_run import Comparison, VerifiedRun


def verified(change: Callable[[Verification], None] = lambda _: None) -> Verification:
    """A program of four batches that was killed once, and is exact unless that is changed."""
    whole, again, killed = (VerifiedRun(name, Path(name)) for name in ("whole", "again", "killed"))
    for run in (again, killed):
        run.comparison, run.variables = Comparison(4, None, {"1:0": []}), 3
    killed.kills, killed.lines, killed.files = ["0:2"], 5, {"log.csv": "digest"}
    found = Verification(whole, again, killed, 4)
    change(found)
    return found


def test_what_was_compared_is_counted() -> None:
    found = verified()

    assert found.is_exact
    assert found.verdict == "EXACT: 1 kill at 1 of 3 cuts, 0 differing bits in 4 batches, 3 variables, 5 lines of output, 1 file"


def test_what_was_not_compared_is_said() -> None:
    def leave_out(found: Verification) -> None:
        found.killed.lines, found.killed.files = None, None

    found = verified(leave_out)

    assert found.is_exact
    assert found.verdict.endswith(
        "not compared: output (other lines in each run), files (too many in the current folder to work in copies of it)"
    )


def differ(run: VerifiedRun) -> None:
    run.comparison = Comparison(4, None, {"1:0": [Difference("w", "tensor")]})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda found: differ(found.again), "NOT DETERMINISTIC"),
        (lambda found: setattr(found.killed, "status", 75), "REFUSED"),
        (lambda found: differ(found.killed), "NOT EXACT"),
        (lambda found: found.killed.differing_output.append("file log.csv"), "NOT EXACT"),
        (lambda found: found.killed.differing.append("w at the end of the program"), "NOT EXACT"),
        (lambda found: setattr(found.killed, "comparison", None), "NOT EXACT"),
        (lambda found: found.killed.kills.clear(), "NOTHING SHOWN"),
    ],
)
def test_whatever_differs_or_was_not_done_is_not_exact(change: Callable[[Verification], None], word: str) -> None:
    found = verified(change)

    assert found.verdict.startswith(f"{word}: ")
    assert not found.is_exact


def test_values_that_differ_between_whole_runs_are_left_out_and_named() -> None:
    def of_a_clock(found: Verification) -> None:
        for run in (found.again, found.killed):
            run.comparison = Comparison(4, None, {"1:0": [Difference("times[3]", "value")]})

    found = verified(of_a_clock)

    assert found.is_exact
    assert found.verdict.endswith("not compared: times[#] (other values in each run)")


def test_what_a_first_run_printed_before_it_started_again_is_not_compared(tmp_path: Path) -> None:
    """A killed run that goes back to its beginning knows its loops, and does not start again."""
    whole, killed = VerifiedRun("whole", tmp_path, output="0\n1\n0\n1\n2\n"), VerifiedRun("killed", tmp_path, output="0\n1\n2\n")
    for run, began in ((whole, 4), (killed, 0)):
        states = tmp_path / run.name
        states.write_text(f'["started at ", [0, 0]]\n["started at ", [{began}, 0]]\n["begun at 0:0 epoch", [{began}, 0]]\n')
        read_notes(run, states)

    killed.compare_outputs(whole, whole)

    assert (killed.differing_output, killed.lines) == ([], 3)
