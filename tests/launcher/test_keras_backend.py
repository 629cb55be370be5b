"""Which framework Keras will compute with, foreseen from the source, the environment and Keras's own file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from detrain.base import keras_backend

FILE = '{"backend": "jax", "floatx": "float32"}'


@pytest.mark.parametrize(
    ("source", "variable", "file", "expected"),
    [
        ('import os\nos.environ["KERAS_BACKEND"] = "torch"', "jax", "", "torch"),
        ('import os\nos.environ.setdefault("KERAS_BACKEND", "torch")', "", "", "torch"),
        ('import keras\nkeras.config.set_backend("jax")', "", "", "jax"),
        ("import keras", "torch", FILE, "torch"),
        ("import keras", "", FILE, "jax"),
        ("import keras", "", "no JSON", "tensorflow"),
        ('import os\nos.environ["OTHER"] = "torch"', "", "", "tensorflow"),
    ],
    ids=["set", "set by default", "set by Keras", "in the environment", "in its file", "a broken file", "another variable"],
)
def test_the_source_comes_before_the_environment_and_that_before_the_file(
    source: str, variable: str, file: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if variable:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    if file:
        (tmp_path / "keras.json").write_text(file)

    assert keras_backend.foreseen([ast.parse(source)]) == expected
