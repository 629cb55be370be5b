"""Faults in PyTorch: what the injected step gives is what the step gives that is computed by hand, bit for bit."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from detrain.faults.models import PUBLISHED
from tests.e2e.runs import said_by

pytest.importorskip("torch")


def said(module: str, *arguments: str) -> Any:
    """Run a module in a process of its own: an adapter changes PyTorch for good."""
    return json.loads(said_by(f"faults.{module}", *arguments).splitlines()[-1])


@pytest.mark.parametrize("every", [pytest.param(11, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_a_fault_in_each_op_of_a_step_is_that_of_the_step_computed_by_hand(every: int) -> None:
    found = said("torch_by_hand", str(every))
    assert found["wrong"] == {name: [] for name in found["tried"]}
    assert min(found["tried"].values()) > 300 / every
    assert every > 1 or found["models"] == sorted(PUBLISHED)


def test_a_fault_in_what_outlives_the_step_and_in_what_python_asks_for_is_that_of_the_step_computed_by_hand() -> None:
    assert said("torch_stores") == {"wrong": []}


def test_what_a_step_does_first_with_each_variable_is_what_flipping_each_bit_says() -> None:
    found = said("torch_liveness")
    assert found["said"] == found["brute"]
    assert [sum(counts[kind] > 0 for counts in found["brute"].values()) for kind in range(3)] == [6, 6, 4]


def test_steps_of_all_kinds() -> None:
    found = said("torch_steps")
    assert len(found) == 20
    assert [f"{name}:\n{error}" for name, error in found.items() if error is not None] == []


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(23, id="some"), pytest.param(2, id="most")])
def test_a_fault_in_each_op_of_a_compiled_step_is_that_of_the_step_computed_by_hand(every: int) -> None:
    found = said("torch_graphs", str(every))
    assert found["wrong"] == {name: [] for name in found["tried"]}
    assert min(found["tried"].values()) > 200 / every


@pytest.mark.parametrize("what", ["short", pytest.param("long", marks=pytest.mark.slow)])
def test_compiled_steps_of_all_kinds(what: str) -> None:
    found = said("torch_graphs", what)
    assert len(found) == {"short": 6, "long": 2}[what]
    assert [f"{name}:\n{error}" for name, error in found.items() if error is not None] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a compiler of C++")
def test_a_fault_in_what_inductor_compiles_is_that_of_the_programs_own_pass_and_op() -> None:
    found = said("torch_inductor", "9")
    assert found["wrong"] == {name: [] for name in found["wrong"]}
    tried = found["tried"]
    assert min(tried[stage] for stage in ("forward", "backward", "optimizer")) >= 4
    assert tried["unarmed equal"] == sum(tried[stage] for stage in ("forward", "backward", "optimizer"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a compiler of C++")
@pytest.mark.parametrize("quarter", range(4))
def test_faults_in_ordinary_compiled_programs_are_those_of_the_programs_own_pass_and_op(quarter: int) -> None:
    found = said("torch_ways", str(quarter))
    assert found["wrong"] == {way: [] for way in found["wrong"]}
    assert found["tried"]["compared"] >= 3
