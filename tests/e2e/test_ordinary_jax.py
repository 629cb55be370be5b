"""Ordinary JAX programs, killed at the starts of epochs, inside them, and in later ones, end as if nothing had been.
A process is what is killed, so each row takes some.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.ordinary_jax import name_of, rows, text
from tests.e2e.runs import deaths_of


@pytest.mark.slow
@pytest.mark.parametrize("row", [pytest.param(row, id=name_of(row)) for row in rows()])
def test_an_ordinary_program_killed_again_and_again_ends_as_one_that_never_was(
    row: dict[str, object], jax_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    program = tmp_path / "program.py"
    program.write_text(text(row))
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = jax_server.bare(program, cwd=tmp_path / "whole")
    assert whole.status == 0, whole.err
    deaths = deaths_of(whole, request)

    said = ""
    for death in (*deaths, ""):
        last = jax_server.detrain("run", "--every", row["every"], program, cwd=tmp_path / "killed", DIE_AT=str(death))
        assert last.status in (0, -9), last.err
        said += last.err
        if last.status == 0:
            break
    assert last.last_line() == whole.last_line()
    assert last.out == whole.out[-len(last.out) :]
    assert "resuming" in said or row["every"] == "1"
    assert "not captured" not in said
