"""A program over a `DataLoader`, with each two of its arguments, killed inside its second epoch and at the start of its
third, ends as if nothing had been. Or it is refused, as it was said beforehand, or goes back to where it is not. A
process is what is killed, so each row takes some.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import NotCapturable
from tests.e2e.forkserver import Server
from tests.e2e.loader_arguments import is_refused, name_of, rows, text

DEATHS = ("1:2", "2:0")
"""At which batches the program is killed: those that have them."""
SAMPLE = 21
"""One in so many rows without workers is tried in the fast lane."""


def _is_slow(number: int, row: dict[str, object]) -> bool:
    return "num_workers" in row or number % SAMPLE > 0


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=name_of(row), marks=[pytest.mark.slow if _is_slow(number, row) else pytest.mark.fast])
        for number, row in enumerate(rows())
    ],
)
def test_a_loader_killed_inside_an_epoch_and_between_two_gives_what_it_would_have_given(
    row: dict[str, object], torch_server: Server, tmp_path: Path
) -> None:
    program, oracle = tmp_path / "program.py", tmp_path / "whole" / "program.py"
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    program.write_text(text(row))
    oracle.write_text(text(row | ({"in_order": True} if "in_order" in row else {})))  # else its order is chance
    whole = torch_server.bare(oracle, cwd=tmp_path / "whole").ok()

    said = ""
    for death in (*DEATHS, ""):
        last = torch_server.detrain("run", "--every", row["every"], program, cwd=tmp_path / "killed", DIE_AT=death)
        if is_refused(row) and last.status == NotCapturable.exit_code:
            assert "REFUSED from here on" in said
            return
        assert last.status == (-9 if death else 0), last.err
        said += last.err
    assert whole.out.endswith(last.out)
    assert "ended" in last.out
    assert ("going back from" if is_refused(row) else "") in said
    assert ("not captured" in said) == is_refused(row)
