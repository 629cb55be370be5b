"""Which compiled functions are the program's."""

from __future__ import annotations

from typing import Any

import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("optax")

from detrain.adapters.jax.faults.functions import Functions  # noqa: E402
from detrain.base import PACKAGE  # noqa: E402
from tests.adapters.jax_resume import jax_put_back  # noqa: E402


@pytest.mark.parametrize(("file", "is_programs"), [(f"{PACKAGE}_runs/train.py", True), (f"{PACKAGE}/train.py", False)])
def test_a_folder_whose_name_begins_as_ours_is_the_programs(file: str, is_programs: bool) -> None:
    names: dict[str, Any] = {}
    exec(compile("def twice(x): return x * 2", file, "exec"), names)
    with jax_put_back():
        functions = Functions(lambda *_call: None)
        functions.begin(counts=False)
        jax.jit(names["twice"])(1.0)
        assert [each.name for each in functions.called()] == ["twice"] * is_programs
