"""The rows of a campaign as a Parquet file, by DuckDB: a column for each field of `TrialRow`, ordered by number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from detrain.faults.population.trial_row import TrialRow
from detrain.faults.statistics.intervals import library
from detrain.reports.campaign.columns import columns_of


def write_parquet(path: Path, rows: Sequence[TrialRow]) -> None:
    """Write rows; the bits that differ are text, separated by commas. Raises UsageError where duckdb is not installed.

    The file is there whole or not at all.
    """
    duckdb = library("duckdb")
    columns = columns_of(rows)
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    with duckdb.connect() as connection:
        connection.register("trials", columns)
        quoted = str(temporary).replace("'", "''")
        connection.execute(f"COPY (SELECT * FROM trials ORDER BY number) TO '{quoted}' (FORMAT parquet, COMPRESSION zstd)")
    temporary.replace(path)
