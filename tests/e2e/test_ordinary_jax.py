"""Ordinary JAX programs, killed at the starts of epochs, inside them, and in later ones, end as if nothing had been.
A process is what is killed, so each row takes some.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.choices import ends_as_if_never_killed
from tests.e2e.forkserver import Server
from tests.e2e.ordinary_jax import name_of, rows, text


@pytest.mark.slow
@pytest.mark.parametrize("row", [pytest.param(row, id=name_of(row)) for row in rows()])
def test_an_ordinary_program_killed_again_and_again_ends_as_one_that_never_was(
    row: dict[str, object], jax_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (program := tmp_path / "program.py").write_text(text(row))
    said = ends_as_if_never_killed(jax_server, program, row["every"], request, lambda folder: jax_server.bare(program, cwd=folder))
    assert "resuming" in said or row["every"] == "1"
    assert "not captured" not in said
