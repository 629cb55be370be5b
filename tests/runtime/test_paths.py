"""Whether a path lies in a folder or below it."""

from __future__ import annotations

import os

import pytest

from detrain.base.paths import path_below


@pytest.mark.parametrize(
    ("path", "found"),
    [("a/b", "b"), ("a", "."), ("a/..b", "..b"), ("a/..b/c", "..b/c"), ("a/../b", None), ("b", None), ("a/..", None)],
)
def test_a_path_is_below_a_folder_or_not(path: str, found: str | None) -> None:
    assert path_below(os.path.abspath(path), os.path.abspath("a")) == found
