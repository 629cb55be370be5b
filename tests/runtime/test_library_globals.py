"""A library may keep what the loop trains under a name of its own module."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch  # noqa: F401 - it is looked at

from detrain.python.inspect.library_globals import LibraryGlobals


class Parameter:
    """Stands for a tensor."""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a library, with a store of a class of its own, which another module has, too."""
    names = ("held_lib.store", "held_lib")
    made = {name: ModuleType(name) for name in names}
    made["held_lib.store"].__file__ = "/opt/site-packages/held_lib/store.py"
    made["held_lib"].torch = ModuleType("torch")  # type: ignore[attr-defined]
    exec("class Store:\n    def __init__(self):\n        self.params = {}\nstore = Store()\n", vars(made["held_lib.store"]))
    made["held_lib"].store = made["held_lib.store"].store  # type: ignore[attr-defined]
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made["held_lib.store"]


def names(found: LibraryGlobals) -> list[tuple[str, str]]:
    return [(module, name) for module, name, _ in found.values()]


def test_a_name_that_leads_to_a_parameter_is_found_once(library: ModuleType) -> None:
    found, one = LibraryGlobals(), Parameter()
    library.store.params["w"] = [one]

    found.look_for([one])

    assert names(found) == [("held_lib.store", "store")]


@pytest.mark.parametrize("name", ["torch", "no_framework_lib"])
def test_no_other_modules_are_looked_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of frameworks, and of libraries that import none."""
    found, one = LibraryGlobals(), Parameter()
    module = sys.modules.get(name) or ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(module, "held_for_a_test", [one], raising=False)

    found.look_for([one])

    assert names(found) == []


def test_a_name_that_leads_to_none_is_not_found(library: ModuleType) -> None:
    found = LibraryGlobals()
    library.store.params["w"] = Parameter()

    found.look_for([Parameter()])

    assert names(found) == []


def test_parameters_are_looked_for_once(library: ModuleType) -> None:
    found, one, other = LibraryGlobals(), Parameter(), Parameter()
    found.look_for([one])
    library.store.params["w"] = one

    found.look_for([one])
    assert names(found) == []
    found.look_for([one, other])
    assert names(found) == []


def test_a_new_parameter_at_the_place_of_an_old_one_is_looked_for(library: ModuleType) -> None:
    found = LibraryGlobals()
    for _ in range(3):
        found.look_for([Parameter()])  # each may lie where the last one lay

    one = Parameter()
    library.store.params["w"] = one
    found.look_for([one])

    assert names(found) == [("held_lib.store", "store")]
