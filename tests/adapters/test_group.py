"""Several adapters in one process: each gets its own variables, and the guard sees those of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from detrain.adapters.api import Watched
from detrain.adapters.group import Adapters
from detrain.base.digest import Array


class Arrays:
    """A registry of variables, and what the guard looks at, over arrays of NumPy."""

    def __init__(self, **arrays: Array) -> None:
        self.arrays = arrays
        self.given: list[str] = []
        self.watched: Sequence[Watched] = [Watched(key, key, 1) for key in arrays]

    def tensors(self) -> dict[str, Array]:
        return dict(self.arrays)

    def restore(self, tensors: Mapping[str, Array]) -> None:
        for key, array in tensors.items():
            self.given.append(key)
            self.arrays[key] = array

    def norms(self) -> tuple[Sequence[Watched], Array]:
        return self.watched, np.array([np.linalg.norm(array) for array in self.arrays.values()])


def group(*members: tuple[str, Arrays | None]) -> Adapters:
    adapters = Adapters()
    for name, arrays in members:
        adapters.add(cast(Any, SimpleNamespace(name=name, variables=arrays, norms=arrays)))
    return adapters


def test_each_adapter_gets_back_its_own_variables_and_no_others() -> None:
    one, other = Arrays(w=np.ones(2), b=np.zeros(1)), Arrays(k=np.full(3, 5.0))
    adapters = group(("first", one), ("second", other))

    tensors, owners = adapters.owned()
    assert tensors.keys() == {"w", "b", "k"}
    adapters.restore({key: array + 1 for key, array in tensors.items()}, owners)

    assert (one.given, other.given) == (["w", "b"], ["k"])
    assert other.arrays["k"].tolist() == [6.0] * 3


def test_they_do_so_in_whatever_order_they_come_and_one_that_has_none_is_asked_for_none() -> None:
    owners = {"first": ("w",), "second": ("k",)}
    one, other = Arrays(w=np.ones(2)), Arrays(k=np.ones(1))
    adapters = group(("second", other), ("third", None), ("first", one))

    adapters.restore({"w": np.zeros(2), "k": np.zeros(1)}, owners)

    assert (one.given, other.given) == (["w"], ["k"])


def test_variables_of_a_checkpoint_of_one_adapter_are_all_its_own() -> None:
    one = Arrays(w=np.ones(2))
    adapters = group(("first", one), ("other", None))

    tensors, owners = adapters.owned()
    assert owners == {}
    adapters.restore({**tensors, "made lazily": np.ones(1)}, owners)

    assert one.given == ["w", "made lazily"]


def test_what_is_watched_is_one_list_and_the_same_one_until_an_adapter_watches_others() -> None:
    one, other = Arrays(w=np.array([3.0, 4.0])), Arrays(k=np.array([2.0]))
    adapters = group(("first", one), ("second", other))

    watched, norms = adapters.norms()
    assert [each.key for each in watched] == ["w", "k"]
    assert norms.tolist() == [5.0, 2.0]
    assert adapters.norms()[0] is watched
    other.watched = [Watched("k", "k", 2)]
    assert adapters.norms()[0] is not watched


def test_without_adapters_there_is_nothing() -> None:
    adapters = Adapters()

    assert adapters.owned() == ({}, {})
    assert adapters.norms()[1].size == 0
    assert adapters.to_array(np.ones(1)) is None
    assert adapters.uncaptured() == []


@pytest.mark.parametrize("described", [["third", "w"], ["second", "w"]])
def test_the_variable_of_an_adapter_that_is_not_there_is_not_found(described: list[Any]) -> None:
    assert group(("first", Arrays(w=np.ones(1))), ("second", None)).find_variable(described, makes=True) is None
