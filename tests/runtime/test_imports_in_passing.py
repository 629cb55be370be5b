"""Who imports a framework decides whether it gets an adapter: TensorFlow imports JAX only because it is installed."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detrain.adapters import registry
from detrain.base.errors import FrameworkUnsupported
from detrain.runtime.session.launch import _Finder


def is_followed(importer: str, program: Path) -> bool:
    """Return whether the finder takes JAX up where a module of this name imports it."""
    finder = _Finder(SimpleNamespace(entry=str(program), seed=0), None, None)  # type: ignore[arg-type]
    space: dict[str, Any] = {"__name__": importer, "finder": finder}
    exec("found = finder.find_spec('jax')", space)
    return space["found"] is not None


@pytest.fixture(autouse=True)
def nothing_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setattr(registry, "left_out", [])
    for name in [each for each in sys.modules if each.partition(".")[0] in ("jax", "jaxlib", "flax", "optax", "equinox", "orbax")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("importer", ["__main__", "train", "flax.core", "some_library"])
def test_a_framework_that_the_program_or_a_library_of_it_imports_is_followed(importer: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import tensorflow\n")
    assert is_followed(importer, tmp_path / "program.py")
    assert registry.left_out == []


def test_one_that_another_framework_imports_is_not_unless_the_program_does(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import tensorflow\n")
    assert not is_followed("tensorflow.lite.python.util", program)
    assert registry.left_out == ["jax"]
    program.write_text("import tensorflow\nimport optax\n")
    assert is_followed("tensorflow.lite.python.util", program)


def test_a_program_that_uses_what_was_left_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:

    user, jax = types.ModuleType("user"), types.ModuleType("jax.numpy")
    user.jnp = jax  # type: ignore[attr-defined]
    monkeypatch.setattr(registry, "user_modules", lambda: {"user": user})
    monkeypatch.setattr(registry, "left_out", ["jax"])
    with pytest.raises(FrameworkUnsupported, match="uses jax"):
        registry.check_training(has_updates=True)
