"""Caches of functions: a resumed run computes again what depends on the arguments alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detrain.python.inspect import pure_functions
from detrain.python.inspect.pure_functions import is_recomputable

STATE = {"rate": 1.0}


def weight(step: int, warmup: int = 3) -> float:
    return math.exp(-step / warmup)


def of_state(step: int) -> float:
    return STATE["rate"] * step


def from_a_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def calls(step: int) -> tuple[float, ...]:
    return tuple(weight(each) for each in (step, step + 1))


def pair(step: int) -> tuple[float, float]:
    return weight(step), weight(step, 2)


def makes_a_list(step: int) -> list[int]:
    return [step]


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize(
    ("function", "argument", "expected"),
    [
        (weight, 2, True),
        (pair, 2, True),
        (of_state, 2, False),
        (makes_a_list, 2, False),
        (calls, 2, False),
        (from_a_file, __file__, False),
    ],
)
def test_what_is_kept_of_arguments_alone_is_computed_again(
    function: Callable[[Any], Any], argument: object, expected: bool, size: int | None
) -> None:
    cache = functools.lru_cache(size)(function)
    cache(argument)

    assert is_recomputable(cache) == expected


def test_a_closure_may_read_anything() -> None:
    state = [1]

    @functools.cache
    def of_closure(step: int) -> int:
        return step + state[0]

    of_closure(1)

    assert not is_recomputable(of_closure)


def test_a_program_that_reads_the_counts_of_a_cache_reads_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("print(weight.{counts}().hits)\n".format(counts="cache" + "_info"))
    cache = functools.cache(weight)
    cache(2)
    assert is_recomputable(cache)

    monkeypatch.setattr(pure_functions, "user_modules", lambda: {"program": SimpleNamespace(__file__=str(tmp_path / "program.py"))})

    assert not is_recomputable(cache)
