"""The comparison of the lines that runs of a program print.

Some numbers in them come from a clock. Durations, and numbers that differ between two whole runs, are left out of the
comparison; they are known by the line's shape (the line without its numbers) and the number's place in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

_NUMBER: Final = re.compile(
    r"(?P<clock>(?:(?<=ETA: )|(?<=ETA ))\d+(?::\d\d){0,2}s?|(?<=[\[<])\d+(?::\d\d){1,2}(?=[<,]))|"
    r"(?:[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b)"
    r"(?P<unit>\s?(?:us|µs|ms|s|sec|secs|seconds|min|minutes|h|hours|it/s|s/it)\b)?"
)
"""A number with the unit of time behind it: a duration may have another unit in another run.

The first alternative is the time left or gone on a progress bar (Keras's, tqdm's): a longer time has more parts.
"""
_MOST_SHOWN: Final = 90
"""The most characters of a line that are shown."""
Field = tuple[str, int]
"""The shape of a line, and the place of a number in it."""


def timed_fields(one: str, other: str) -> set[Field] | None:
    """Return the fields whose numbers differ between two whole runs, or None if their lines differ in more."""
    lines, others = _lines(one), _lines(other)
    if len(lines) != len(others):
        return None
    found: set[Field] = set()
    for line, twin in zip(lines, others, strict=True):
        (shape, numbers), (other_shape, other_numbers) = _parsed(line), _parsed(twin)
        if shape != other_shape:
            return None
        found |= {(shape, place) for place, pair in enumerate(zip(numbers, other_numbers, strict=True)) if pair[0] != pair[1]}
    return found


def first_difference(whole: str, other: str, timed: Collection[Field], where: str = "after the resume") -> str | None:
    """Return, in words, the first line that differs in the output of two runs from the same cut on, or None. `where`:
    which run printed the other output.
    """
    lines, others = _lines(whole), _lines(other)
    for number, (line, twin) in enumerate(zip(lines, others, strict=False)):
        if line != twin and _without(line, timed) != _without(twin, timed):
            return f"line {number + 1} {where} is {_short(twin, line)}, in the whole run it is {_short(line, twin)}"
    if len(lines) != len(others):
        return f"{len(others)} lines {where}, in the whole run there are {len(lines)}"
    return None


def _lines(text: str) -> Sequence[str]:
    """Return lines as a terminal shows them: of text overwritten by carriage returns, only the last."""
    return [line.rstrip("\r\b").rpartition("\r")[2] for line in text.split("\n")]


def _parsed(line: str) -> tuple[str, list[str]]:
    return _NUMBER.sub("#", line), [match[0] for match in _NUMBER.finditer(line)]


def _without(line: str, timed: Collection[Field]) -> tuple[str, list[str]]:
    shape, _numbers = _parsed(line)
    kept = []
    for place, match in enumerate(_NUMBER.finditer(line)):
        is_time = (shape, place) in timed or match["unit"] is not None or match["clock"] is not None
        kept.append("" if is_time else match[0])
    return shape, kept


def _short(line: str, other: str) -> str:
    """Return a line, quoted; of a long one, the part around its first difference from the other."""
    if len(line) <= _MOST_SHOWN:
        return repr(line)
    common = next((at for at, (one, two) in enumerate(zip(line, other, strict=False)) if one != two), min(len(line), len(other)))
    begin = max(common - _MOST_SHOWN // 2, 0)
    end = begin + _MOST_SHOWN
    return repr(f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''}")
