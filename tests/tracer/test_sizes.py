"""Sizes of what the loops see, and what changed with the dataset."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detrain.python.inspect.named import inside
from detrain.tracer.dataset_sizes import changed_sizes, sizes_in


def test_nested_objects_are_measured_by_path() -> None:
    loader = SimpleNamespace(files=["a", "b", "c"], options={"names": [1, 2]}, array=np.zeros((4, 2)))
    again = loader

    sizes = sizes_in([sys._getframe()])

    assert again is loader
    assert sizes == {"loader.files": 3, "loader.options": 1, "loader.options['names']": 2, "loader.array": 4}


def test_an_object_that_cannot_be_measured_is_left_out() -> None:
    class Strange:
        def __len__(self) -> int:
            raise RuntimeError("no")

        def __getattr__(self, name: str) -> object:
            raise ImportError(name)

    strange = Strange()
    found = sizes_in([sys._getframe()])

    assert strange is not None
    assert "strange" not in found


def test_no_method_of_a_dictionary_of_the_program_is_called() -> None:
    class Strange(dict[str, object]):
        def items(self) -> NoReturn:
            raise RuntimeError("no")

    strange = Strange(files=[1, 2])
    sizes = sizes_in([sys._getframe()])

    assert sizes == {"strange": 1, "strange['files']": 2}
    assert list(inside(strange)) == [(("[", "files"), [1, 2])]


def test_no_attribute_hook_of_the_program_is_run() -> None:
    asked: list[str] = []

    class Proxy:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            raise AttributeError(name)

    proxy = Proxy()
    sizes_in([sys._getframe()])

    assert proxy is not None
    assert asked == []


sizes = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 9))


@given(sizes, sizes, st.none() | st.integers(1, 5))
def test_what_changed_is_named_with_both_sizes(first: dict[str, int], second: dict[str, int], difference: int | None) -> None:
    changed = changed_sizes(first, second, difference)

    for path in {*first, *second}:
        one, other = first.get(path), second.get(path)
        is_changed = one is not None and other is not None and one != other
        assert (path in changed) == (is_changed and difference in (None, abs((one or 0) - (other or 0))))
    assert all(pair == (first[path], second[path]) for path, pair in changed.items())
