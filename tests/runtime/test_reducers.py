"""Reducers of packages: objects that nothing else can look into come back by them, and what they do is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

from detrain.base.errors import ReducerInvalid
from detrain.python.codec.in_process import encode_value, restore_value
from detrain.python.process import reducers
from tests.runtime.state_values import NO_FRAMEWORK, baseline_of, encode, restore


def _hidden(values: list[float]) -> Callable[[], list[float]]:
    return lambda: values


class Hidden:
    """Stands for an object of an extension: its state is where no attribute leads to (but through a function)."""

    __slots__ = ("_values",)

    def __init__(self, *values: float) -> None:
        self._values = _hidden(list(values))

    def values(self) -> list[float]:
        return self._values()


class Further(Hidden):
    """It may hold more than its base."""


class HiddenReducer:
    """Does all that a reducer has to."""

    def save(self, value: Hidden) -> Any:
        return {"values": np.array(value.values()), "kind": ("hidden", None, 1)}

    def load(self, value: Hidden, data: Any) -> None:
        value.values()[:] = data["values"].tolist()


class MakingReducer(HiddenReducer):
    """Makes objects, too."""

    def make(self, data: Any) -> Hidden:
        return Hidden(*data["values"].tolist())


class Forgetful(HiddenReducer):
    """Loads nothing."""

    def load(self, value: Hidden, data: Any) -> None:
        pass


class OfNoData(HiddenReducer):
    """Saves what is no data."""

    def save(self, value: Hidden) -> Any:
        return {"values": [value]}


class Failing(HiddenReducer):
    """Fails."""

    def save(self, value: Hidden) -> Any:
        raise KeyError("no such state")


class Nothing:
    """No reducer."""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type | None], None]]:
    """Installs one of the reducers above for `Hidden`, or none."""

    def with_reducer(reducer: type | None) -> None:
        name = f"{__name__}.Hidden"
        point = None if reducer is None else EntryPoint(name, f"{__name__}:{reducer.__name__}", reducers.ENTRY_POINTS)
        monkeypatch.setattr(reducers, "installed", lambda: {} if point is None else {name: point})
        reducers.reduction_named.cache_clear()

    yield with_reducer
    reducers.reduction_named.cache_clear()


def test_an_object_gets_its_data_in_place_and_stays_one_under_two_names(install: Any) -> None:
    install(HiddenReducer)
    first = {"a": Hidden(1.0, -0.0), "b": [2]}
    first["b"].append(first["a"])
    baseline = baseline_of(first)
    first["a"].values()[:] = [0.1, float("nan"), 3.0]
    encoded = encode(first, baseline)
    first["a"].values().clear()  # what the loop does behind the checkpoint
    assert encoded.not_captured == []

    there = Hidden(1.0, -0.0)
    second = {"a": there, "b": [2, there]}
    assert restore(encoded, second, baseline_of(second)) == []

    assert second["a"] is second["b"][1] is there
    assert repr(there.values()) == "[0.1, nan, 3.0]"


def test_objects_that_the_loop_has_made_are_made_anew_and_do_not_take_the_place_of_others(install: Any) -> None:
    install(MakingReducer)

    def world() -> dict[str, Any]:
        return {"all": [Hidden(1.0)]}

    first, second = world(), world()
    baseline, old = baseline_of(first), second["all"][0]
    first["all"].insert(0, Hidden(5.0))
    first["same"] = first["all"][0]

    assert restore(encode(first, baseline), second, baseline_of(second)) == []

    assert [each.values() for each in second["all"]] == [[5.0], [1.0]]
    assert second["all"][1] is old
    assert second["same"] is second["all"][0]


def test_what_the_loop_has_made_and_no_reducer_makes_is_named(install: Any) -> None:
    install(HiddenReducer)
    first: dict[str, Any] = {"all": []}
    baseline = baseline_of(first)
    first["all"].append(Hidden(5.0))

    (named,) = encode(first, baseline).not_captured

    assert named.startswith("all[0] (")
    assert named.endswith("the loop has made it, and its reducer makes none)")


def test_where_the_package_is_not_installed_the_object_is_missing(install: Any) -> None:
    install(HiddenReducer)
    first, second = {"a": Hidden(1.0)}, {"a": Hidden(1.0)}
    encoded = encode(first, baseline_of(first))
    install(None)

    missing = restore(encoded, second, baseline_of(second))

    assert missing[0].endswith(f"no package that is installed here has a reducer for {__name__}.Hidden")


@pytest.mark.parametrize(
    ("reducer", "said"),
    [
        (OfNoData, r"at \['values'\]\[0\] an object of Hidden, which is no data"),
        (Failing, r"failed in `save`: KeyError\('no such state'\)"),
        (Nothing, "is a Nothing without `save` and `load`"),
    ],
)
def test_a_reducer_that_cannot_save_is_named(install: Any, reducer: type, said: str) -> None:
    install(reducer)
    world = {"a": Hidden(1.0)}

    with pytest.raises(ReducerInvalid, match=said):
        encode(world, baseline_of(world))


def test_a_reducer_that_does_not_bring_an_object_back_is_named(install: Any) -> None:
    install(Forgetful)
    first, second = {"a": Hidden(1.0)}, {"a": Hidden(1.0)}
    baseline = baseline_of(first)
    first["a"].values()[0] = 2.0
    encoded = encode(first, baseline)

    with pytest.raises(ReducerInvalid, match="`save` returns something else than what was loaded"):
        restore(encoded, second, baseline_of(second))


def test_a_way_back_in_memory_goes_through_the_reducer_as_often_as_it_is_gone(install: Any) -> None:
    install(HiddenReducer)
    value = [Hidden(1.0, 2.0)]
    live = encode_value(value, NO_FRAMEWORK)

    for _ in range(2):
        value[0].values()[:] = [7.0]
        assert restore_value(live, NO_FRAMEWORK) == []
        assert value[0].values() == [1.0, 2.0]


def test_a_class_that_derives_from_the_named_one_has_no_reducer(install: Any) -> None:
    install(HiddenReducer)

    assert reducers.reduction_of(Hidden) is not None
    assert reducers.reduction_of(Further) is None
