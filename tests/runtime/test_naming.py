"""Names in a graph: they lead to what the program defines and to types of data, and to nothing else that a process
holds.
"""

from __future__ import annotations

import builtins
import collections
import math
import operator
import os
import subprocess
import sys
import threading
import types
import typing
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from detrain.python.inspect import names
from detrain.python.inspect.object_graph import ABSENT
from tests.runtime.state_values import Bag, Batch, Child, Colour, Config, Groups, Parent, Point, Slotted, Table

borrowed = os.system
"""A name of this module for what another one defines."""


class Outer:
    class Inner:
        def method(self) -> None:
            pass


def function() -> None:
    pass


def names_of(module: types.ModuleType) -> list[str]:
    return [f"{module.__name__}:{name}" for name in sorted(vars(module))]


@pytest.mark.parametrize(
    "value", [Outer, Outer.Inner, Outer.Inner.method, function, Batch, int, collections.deque, np.float32, np.ndarray]
)
def test_what_the_program_defines_and_types_of_data_are_found_by_their_name(value: Any) -> None:
    assert names.find_static(names.static_name(value)) is value
    assert names.is_findable(value)


@pytest.mark.parametrize(
    "value",
    [np.less, np.mean, math.sqrt, operator.lt, keras.ops.less, keras.activations.relu, tf.nn.tanh, tf.reduce_mean, min, len],
)
def test_functions_of_libraries_that_compute_are_found_by_their_name(value: Any) -> None:
    assert names.computes(value)
    assert names.find_static(names.static_name(value)) is value


@pytest.mark.parametrize(
    "value", [np.load, np.save, os.system, eval, open, getattr, tf.io.write_file, tf.py_function, keras.saving.load_model, print]
)
def test_functions_that_do_more_are_not(value: Any) -> None:
    assert not names.computes(value)
    assert names.find_static(names.static_name(value)) is ABSENT


def test_a_module_of_the_program_is_found_by_its_name() -> None:
    module = sys.modules[__name__]
    assert names.find_static(names.static_name(module)) is module


@pytest.mark.parametrize("module", [builtins, os, sys, subprocess, threading, types, typing, np, np.random])
def test_no_function_of_python_or_a_library_is_found_that_does_more_than_compute(module: types.ModuleType) -> None:
    found = {name: names.find_static(name) for name in names_of(module)}
    functions = {name for name, value in found.items() if value is not ABSENT and not isinstance(value, type)}
    assert {name for name in functions if not names.computes(found[name])} == set()
    assert not functions & {
        f"numpy:{name}" for name in ("load", "save", "savetxt", "fromfile", "memmap", "vectorize", "apply_along_axis")
    }
    if module is not builtins and module is not np:
        assert {name for name, value in found.items() if value is not ABSENT} - {"typing:Any"} == set()


@pytest.mark.parametrize(
    "name",
    [
        f"{__name__}:borrowed",
        f"{__name__}:os.system",
        f"{__name__}:os",
        f"{__name__}:builtins.eval",
        f"{__name__}:Outer.__dict__",
        f"{__name__}:Outer.Inner.method.__globals__",
        f"{__name__}:__builtins__",
        f"{__name__}:Batch",  # defined elsewhere
        "os:",
        "sys:modules",
        "not imported:",
        "not imported:name",
    ],
)
def test_a_name_does_not_lead_through_the_program_to_something_else(name: str) -> None:
    assert names.find_static(name) is ABSENT
    assert names.find_class(name, None) is None
    assert names.find_enum(name, None) is None


@given(st.text("abcos.:_", max_size=12))
def test_any_name_is_an_object_of_its_name_or_nothing(name: str) -> None:
    found = names.find_static(name)
    assert found is ABSENT or names.static_name(found) == name


def test_no_attribute_hook_of_a_module_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    module = types.ModuleType("hooked")
    module.__file__ = __file__
    module.__getattr__ = lambda name: calls.append(name)  # type: ignore[method-assign]  # noqa: PLW0108
    monkeypatch.setitem(sys.modules, "hooked", module)
    assert names.find_static("hooked:anything") is ABSENT
    assert calls == []


def test_a_function_inside_a_function_is_not_found_by_name() -> None:
    def inner() -> None:
        pass

    assert not names.is_findable(inner)
    assert not names.is_findable(lambda: None)
    assert not names.is_findable(os.system)


def test_a_class_inside_a_function_is_that_of_the_live_object() -> None:
    class Local:
        pass

    assert names.find_class(names.class_name(Local), Local()) is Local
    assert names.find_class(names.class_name(Local), None) is None
    assert names.find_class("threading:Thread", threading.Thread()) is None


@pytest.mark.parametrize(
    "cls", [Batch, Child, Config, Slotted, Point, Table, Groups, Outer.Inner, types.SimpleNamespace, collections.ChainMap]
)
def test_objects_of_the_program_are_data(cls: type) -> None:
    assert names.is_user_class(cls)


@pytest.mark.parametrize(
    "cls", [threading.Thread, type("Mine", (threading.Thread,), {}), type(typing.Iterable[int]), np.ndarray, int]
)
def test_objects_with_a_part_of_a_library_are_not(cls: type) -> None:
    assert not names.is_user_class(cls)


def test_a_class_of_python_is_not_the_programs_own() -> None:
    assert names.is_own_class(Batch)
    assert not names.is_own_class(dict)
    assert not names.is_own_class(collections.UserDict)


def test_enumerations_of_any_imported_module_are_found() -> None:
    assert names.find_enum(names.class_name(Colour), None) is Colour
    assert names.find_enum("signal:Signals", None) is not None
    assert names.find_enum("os:system", None) is None


def test_slots_are_those_of_all_bases_under_their_mangled_names() -> None:
    assert set(names.slots_of(Child)) == {"_Parent__hidden", "kept", "more"}
    assert names.slots_of(Child)["kept"] is vars(Parent)["kept"]


@pytest.mark.parametrize(("cls", "base"), [(Groups, collections.defaultdict), (Bag, set), (Table, dict), (Batch, None)])
def test_the_container_under_a_class_is_the_most_special_one(cls: type, base: type | None) -> None:
    assert names.container_base(cls) is base


def test_methods_are_found_past_the_hooks_of_a_class() -> None:
    class Hooked:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        def step(self) -> int:
            return 1

    value = Hooked()
    assert names.find_method(value, "step") == value.step
    assert names.find_method(value, "other") is ABSENT
    assert names.find_method([1], "append") == [1].append or callable(names.find_method([1], "append"))
    assert names.own_attributes(value) == {}
    assert names.own_attributes(3) is None


def test_an_object_with_another_class_s_dictionary_has_none() -> None:
    """As what TensorFlow's `tf_should_use` puts around a `TensorArray`."""

    class Other:
        pass

    borrowed: Any = type("Borrowed", (), {"__slots__": (), "__dict__": vars(Other)["__dict__"]})
    assert names.own_attributes(borrowed()) is None
