"""Ordinary PyTorch programs, killed at the starts of epochs, inside them, and in later passes over the data, end as if
nothing had been. A process is what is killed, so each row takes some.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detrain.base.errors import NotCapturable
from tests.e2e.choices import ends_as_if_never_killed
from tests.e2e.forkserver import Server
from tests.e2e.ordinary_torch import CONFIGS, LIBRARY, draws_ahead, is_refused, name_of, needs, tables, text
from tests.e2e.runs import Result, library

FAST = {0, 5}, {13}, {0}, ()
"""The rows of each table in the fast lane: the plainest, and one with workers, drawn rows, an average of the weights
and clones; one with a thread that loads ahead, rows that draw, and a log that rotates; one with a config.
"""


def printed(result: Result) -> list[str]:
    """Return the lines that a program has printed, without those of hydra's logger, which begin with the time."""
    return [line for line in result.out.splitlines() if "][INFO] - " not in line]


def _cases() -> Iterator[Any]:
    for table, fast in zip(tables(), FAST, strict=True):
        for number, row in enumerate(table):
            yield pytest.param(row, id=name_of(row), marks=pytest.mark.fast if number in fast else pytest.mark.slow)


@pytest.mark.parametrize("row", [*_cases()])
def test_an_ordinary_program_killed_again_and_again_ends_as_one_that_never_was(
    row: dict[str, object], torch_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for needed in needs(row):
        pytest.importorskip(needed)
    program = tmp_path / "program.py"
    program.write_text(text(row))
    library(tmp_path, {"ahead.py": LIBRARY, "configs.py": CONFIGS})

    def run_whole(folder: Path) -> Result:
        if draws_ahead(row):
            return torch_server.detrain("run", program, cwd=folder)
        return torch_server.bare(program, cwd=folder)

    refused = NotCapturable.exit_code if is_refused(row) else 0
    ends_as_if_never_killed(torch_server, program, row["every"], request, run_whole, printed, refused)
