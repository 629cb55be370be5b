"""Ordinary PyTorch programs, killed at the starts of epochs, inside them, and in later passes over the data, end as if
nothing had been. A process is what is killed, so each row takes some.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detrain.base.errors import NotCapturable
from tests.e2e.forkserver import Server
from tests.e2e.ordinary_torch import (
    CONFIGS,
    LIBRARY,
    draws_ahead,
    is_refused,
    name_of,
    needs,
    rows,
    rows_beside,
    rows_of_libraries,
    rows_with_configs,
    text,
)
from tests.e2e.runs import Result, deaths_of

FAST = (0, 5)
"""The rows of the fast lane: the plainest, and one with workers, drawn rows, an average of the weights and clones."""
FAST_BESIDE = (13,)
"""One with a thread that loads ahead, rows that draw, and a log that rotates."""
FAST_WITH_CONFIGS = (0,)
TABLES = (rows(), FAST), (rows_beside(), FAST_BESIDE), (rows_with_configs(), FAST_WITH_CONFIGS), (rows_of_libraries(), ())


def printed(result: Result) -> list[str]:
    """Return the lines that a program has printed, without those of hydra's logger, which begin with the time."""
    return [line for line in result.out.splitlines() if "][INFO] - " not in line]


def _cases() -> Iterator[Any]:
    """The plain programs, those beside whose loop something goes on, and those with a config or a helper."""
    for table, fast in TABLES:
        for number, row in enumerate(table):
            yield pytest.param(row, id=name_of(row), marks=pytest.mark.fast if number in fast else pytest.mark.slow)


@pytest.mark.parametrize("row", [*_cases()])
def test_an_ordinary_program_killed_again_and_again_ends_as_one_that_never_was(
    row: dict[str, object], torch_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for library in needs(row):
        pytest.importorskip(library)
    program = tmp_path / "program.py"
    program.write_text(text(row))
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "ahead.py").write_text(LIBRARY)
    (tmp_path / "site-packages" / "configs.py").write_text(CONFIGS)
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    if draws_ahead(row):
        whole = torch_server.detrain("run", program, cwd=tmp_path / "whole")
    else:
        whole = torch_server.bare(program, cwd=tmp_path / "whole")
    assert whole.status == 0, whole.err
    deaths = deaths_of(whole, request)

    said = ""
    for death in (*deaths, ""):
        last = torch_server.detrain("run", "--every", row["every"], program, cwd=tmp_path / "killed", DIE_AT=str(death))
        if is_refused(row) and last.status == NotCapturable.exit_code:
            assert "REFUSED from here on" in said
            again = torch_server.detrain("run", "--every", row["every"], program, cwd=tmp_path / "killed")
            assert again.status == NotCapturable.exit_code, again.err
            return
        assert last.status in (0, -9), last.err
        said += last.err
        if last.status == 0:
            break
    assert not is_refused(row)
    assert last.last_line() == whole.last_line(), said + last.err
    lines = printed(last)
    assert lines == printed(whole)[-len(lines) :]
    assert "not captured" not in last.err
