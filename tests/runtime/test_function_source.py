"""Which code a checkpoint may ask for by a name and a digest."""

from __future__ import annotations

import functools
import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from detrain.python.inspect.function_source import find, may_go_on, source


def counted() -> Callable[[], int]:
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return count

    return step


@pytest.mark.parametrize("function", [counted, counted()], ids=["at the top", "made"])
def test_the_programs_functions_are_found(function: Any) -> None:
    found = source(function)
    assert found is not None
    assert find(*found.key) is not None


def test_a_function_that_a_library_has_made_is_found() -> None:
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([torch.zeros(1)], 0.1), lambda _: 1.0)
    made = scheduler.optimizer.step
    found = source(getattr(made, "__func__", made))
    assert found is not None
    assert find(*found.key) is not None


@pytest.mark.parametrize(
    "function",
    [shutil.rmtree, torch.load, torch.hub.load, functools.lru_cache(maxsize=3)],
    ids=["rmtree", "load", "hub", "made by Python's own"],
)
def test_no_other_function_of_a_library_can_be_asked_for(function: Any) -> None:
    """Its source is there, and its digest the right one."""
    assert source(function) is None


CALLING = """
def run(call):
    rate = 1.0
    def slower():
        nonlocal rate
        rate *= 0.5
        return rate
    return call(slower), slower
"""


def test_a_variable_of_a_librarys_call_that_goes_on_may_be_bound_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "calling_lib.py").write_text(CALLING)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))

    def is_bound_elsewhere(function: Any) -> bool:
        found = source(function)
        assert found is not None
        return may_go_on(found, "rate")

    during, slower = importlib.import_module("calling_lib").run(is_bound_elsewhere)
    assert during
    assert not is_bound_elsewhere(slower)
