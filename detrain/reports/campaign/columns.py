"""The rows of a campaign as columns: NumPy arrays by the fields' names of `TrialRow`, quantities computed from these,
and a Parquet file, written by DuckDB and ordered by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from detrain.campaign.judging.categories import Category
from detrain.faults.bits import DTYPES
from detrain.faults.outcome_classes import Verdict, verdict_of
from detrain.faults.population.trial_row import TrialRow
from detrain.faults.statistics.intervals import library

Columns = dict[str, NDArray[Any]]
_NUMBERS: Final = {int: np.int64, float: np.float64, bool: np.bool_}

FIELDS: Final = ("sign", *(f"exponent {place}" for place in range(1, 9)), "exponent, lower", "mantissa, upper third")
BIT_FIELDS: Final = (*FIELDS, "mantissa, middle", "mantissa, lower", "integer, upper half", "integer, lower half", "bool")
"""The place of the highest bit that a fault has changed; exponent bits are counted from the highest, 1."""
DEVIATIONS: Final = ("none", "to 1e-6", "to 1e-3", "to 1", "to 1e3", "to 1e9", "above", "not finite", "not known")
"""The relative change of the first element."""


def columns_of(rows: Sequence[TrialRow]) -> Columns:
    """Return rows, ordered by their numbers, as arrays [trials]. Texts are objects; None becomes NaN."""
    ordered = sorted(rows, key=lambda row: row.number)
    found: Columns = {}
    for field in msgspec.structs.fields(TrialRow):
        values = [getattr(row, field.name) for row in ordered]
        if field.name == "bits":
            found[field.name] = np.array([",".join(map(str, each)) for each in values], object)
        elif field.type in _NUMBERS:
            found[field.name] = np.array(values, _NUMBERS[field.type])
        elif field.name in ("loss", "golden_loss", "accuracy", "golden_accuracy"):
            found[field.name] = np.array([np.nan if each is None else each for each in values], np.float64)
        else:
            found[field.name] = np.array(values, object)
    return found


def are(verdict: Verdict, columns: Columns) -> NDArray[np.bool_]:
    """Return which trials have a verdict (masked, harmful, not judged) [trials], by their outcome."""
    return np.array([verdict_of(outcome) is verdict for outcome in columns["outcome"]], bool)


def kinds(columns: Columns) -> NDArray[Any]:
    """Return the heading in SASSIFI's tables for each trial [trials]."""
    return np.array([Category(int(each)).kind for each in columns["category"]], object)


def bit_field(dtype: str, bits: Sequence[int]) -> str:
    """Return the place of the highest bit that was changed; empty if there is none."""
    if not bits or dtype not in DTYPES:
        return ""
    kind, bit = DTYPES[dtype], max(bits)
    if dtype == "bool":
        return "bool"
    if not kind.exponent:
        return "integer, upper half" if bit >= kind.width // 2 else "integer, lower half"
    if bit == kind.width - 1:
        return "sign"
    mantissa = (kind.exponent & -kind.exponent).bit_length() - 1
    if bit >= mantissa:
        place = kind.width - 1 - bit
        return f"exponent {place}" if place <= 8 else "exponent, lower"
    third = 3 * bit // mantissa
    return ("mantissa, lower", "mantissa, middle", "mantissa, upper third")[third]


def bit_fields(columns: Columns) -> NDArray[Any]:
    """Return the place of the highest changed bit of each trial [trials]."""
    known: dict[tuple[str, str], str] = {}
    found = []
    for dtype, text in zip(columns["dtype"], columns["bits"], strict=True):
        if (dtype, text) not in known:
            known[dtype, text] = bit_field(dtype, [int(bit) for bit in text.split(",") if bit])
        found.append(known[dtype, text])
    return np.array(found, object)


def deviations(columns: Columns) -> NDArray[Any]:
    """Return the relative change of the first element of each trial [trials]."""
    return np.array(list(map(_deviation, columns["dtype"], columns["golden"], columns["injected"])), object)


def _deviation(dtype: str, golden: str, injected: str) -> str:
    if not golden or not injected or dtype not in DTYPES:
        return "not known"
    kind = DTYPES[dtype]
    with np.errstate(invalid="ignore", over="ignore"):
        old, new = kind.numbers(np.array([int(golden, 16), int(injected, 16)], kind.unsigned))
        if not np.isfinite(new) or not np.isfinite(old):
            return "not finite"
        change = abs(new - old)
        if change == 0:
            return "none"
        ratio = change / abs(old) if old else np.inf
    for name, limit in (("to 1e-6", 1e-6), ("to 1e-3", 1e-3), ("to 1", 1.0), ("to 1e3", 1e3), ("to 1e9", 1e9)):
        if ratio <= limit:
            return name
    return "above"


def progress(columns: Columns, parts: int = 10) -> tuple[NDArray[Any], list[str]]:
    """Return the part of the training that holds each trial's fault [trials], and the names of the parts in order.

    A part is one epoch, or, if there are many, as many epochs as make about ten parts.
    """
    epochs = sorted(set(zip(columns["phase"].tolist(), columns["epoch"].tolist(), strict=True)))
    each = -(-len(epochs) // parts)
    names = {}
    for start in range(0, len(epochs), each):
        together = epochs[start : start + each]
        first, last = (f"{phase}/{epoch}" if epochs[-1][0] else str(epoch) for phase, epoch in (together[0], together[-1]))
        names.update(dict.fromkeys(together, f"epoch {first}" if first == last else f"epochs {first} – {last}"))
    where = [names[key] for key in zip(columns["phase"].tolist(), columns["epoch"].tolist(), strict=True)]
    return np.array(where, object), list(dict.fromkeys(names.values()))


def write_parquet(path: Path, rows: Sequence[TrialRow]) -> None:
    """Write rows; the bits that differ are text, separated by commas. Raises UsageError if duckdb is not installed.

    The file appears as a whole or not at all.
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
