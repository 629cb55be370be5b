"""Functions, classes and methods where the table of samples does not say all: what names lead to, and what is lost."""

from __future__ import annotations

import collections
import copy
import importlib
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from detrain.python.codec.baseline import Baseline
from detrain.python.inspect import function_source
from tests.codec import program
from tests.codec.sample import into, resumed
from tests.codec.samples import SAMPLES
from tests.runtime import state_values as kinds
from tests.runtime.state_values import World, baseline_of, encode, restore


def test_a_function_is_not_made_from_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode({"made": [kinds.add_to(5)]}, baseline_of({}))
    monkeypatch.setattr(function_source, "_indices", {kinds.__name__: {}})
    world: World = {"made": None}
    assert restore(encoded, world, baseline_of(world))[0].startswith(
        "made[0]: the source of 'tests.runtime.state_values' has no function"
    )


def test_functions_that_the_loop_has_made_share_variables_with_those_that_are_there() -> None:
    after, before = kinds.make_functions(2), kinds.make_functions(2)
    baseline = baseline_of(after)
    after["double"] = after["make"](2)
    after["add"](3)
    into(encode({"double": after["double"], **after}, baseline), before)  # the new one comes first
    for world in (after, before):
        assert world["double"]() == 10
        world["add"](1)
        assert world["double"]() == 12


def test_a_function_and_what_wraps_it_under_another_name_were_both_there() -> None:
    baseline, there = Baseline(), (program.names, program.decorate(program.names))
    for each in (program, *there):
        baseline.bind_static(each)
    assert list(map(baseline.is_of_loop, (*there, program.decorate(program.names)))) == [False, False, True]


def test_annotations_that_are_no_classes_are_named() -> None:
    function = kinds.add_to(5)
    function.__annotations__["x"] = list[int]
    encoded = encode({"made": function}, baseline_of({}))
    assert encoded.not_captured == ["made.__annotations__['x'] (types.GenericAlias, harmless)"]
    assert into(encoded, {"made": None})["made"].__annotations__ == {"return": "int"}


LATE = """
import dataclasses
@dataclasses.dataclass
class State:
    step: int = 0
def adding(number):
    def add(x: {annotation}):
        return number + x
    return add
"""


def test_annotations_that_python_computes_when_they_are_asked_for_are_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So from Python 3.14 on: the function that computes those of a class leads to its methods, which a data class has
    without any source; those of a function may be names that are not defined.
    """
    (tmp_path / "late.py").write_text(LATE.format(annotation="unknown" if sys.version_info >= (3, 14) else "int"))
    monkeypatch.syspath_prepend(tmp_path)
    late = importlib.import_module("late")
    world: World = {"state": late.State(), "kind": late.State, "made": None}
    baseline = baseline_of(world)
    world["state"].step, world["made"] = 3, late.adding(5)

    encoded = encode(world, baseline)
    found = into(encoded, {"state": late.State(), "kind": late.State, "made": None})

    assert [loss for loss in encoded.not_captured if "harmless" not in loss] == []
    assert (found["state"].step, found["made"](2)) == (3, 7)


def test_an_attribute_that_a_class_has_come_to_have_is_gone_and_methods_stay() -> None:
    encoded = encode(program.with_members(), baseline_of(program.with_members()))
    names = program.Counting.names
    program.Counting.gone = 1  # type: ignore[attr-defined]
    names.append("b")
    assert restore(encoded, {"kind": program.Counting}) == []
    assert not hasattr(program.Counting, "gone")
    assert program.Counting.names is names == []
    assert program.Counting().step() == "step"


def test_a_static_method_whose_function_holds_something_stays_the_object_that_it_is() -> None:
    after, before = program.with_class(), program.with_class()
    baseline, live = baseline_of(after), vars(before["kind"])["free"]
    after["kind"].free()
    into(encode(after, baseline), before)
    assert vars(before["kind"])["free"] is live
    assert before["kind"].free() == 2


def test_a_type_of_python_as_a_factory_needs_nothing_else() -> None:
    assert encode({"groups": collections.defaultdict(list), "cls": dict, "kind": kinds.Batch}).not_captured == []


def test_an_alias_of_typing_is_left_alone() -> None:
    alias = typing.Optional[kinds.Batch]  # noqa: UP045
    before = (alias.__args__, dict(getattr(alias, "__dict__", {})))
    world = resumed({"alias": alias}, {"alias": alias})
    assert (alias.__args__, dict(getattr(alias, "__dict__", {}))) == before
    assert world["alias"] is alias


def test_generators_of_classes_of_the_program_are_known() -> None:
    """None is named as one that no position is known of."""
    world = SAMPLES["streams of the program's classes"].make()
    baseline = baseline_of(world)
    for _ in range(3):
        program.use_streams(world)
    encoded = encode(world, baseline)
    assert encoded.not_captured == []


def test_a_stream_goes_on_in_a_copy_too() -> None:
    after, before = SAMPLES["streams of shared bits"].make(), SAMPLES["streams of shared bits"].make()
    after["one"].spawn(2)
    for there in ({}, before):
        found: list[Any] = [copy.deepcopy(each)["one"].spawn(2) for each in (after, resumed(after, there))]
        assert [each.random() for each in found[0]] == [each.random() for each in found[1]]


def test_a_list_that_is_the_value_of_a_member_comes_back() -> None:
    world: World = {"mode": program.Mode}
    listed = program.Mode.LISTED.value
    encoded = encode(world, baseline_of(world))
    listed.append("more")
    assert restore(encoded, world, baseline_of(world)) == []

    assert program.Mode.LISTED.value is listed
    assert listed == ["names"]
