"""The framework that Keras computes with. Keras chooses it once, when it is imported (keras/src/backend/config.py)."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "KERAS_BACKEND"
_DEFAULT: Final = "tensorflow"


def in_process() -> str:
    """Return the module that Keras computes with in this process; its default if Keras has not chosen yet."""
    config: Any = sys.modules.get("keras.src.backend.config")
    return _DEFAULT if config is None else str(config.backend())


def foreseen(trees: Iterable[ast.Module]) -> str:
    """Return the module that Keras will compute with in a program: the one that its source sets in the environment,
    else the one set there now, else the one in Keras's own file of settings.
    """
    set_in = [found for tree in trees for node in ast.walk(tree) if (found := _set_by(node))]
    if set_in or VARIABLE in os.environ:
        return set_in[0] if set_in else os.environ[VARIABLE]
    try:
        home = Path(os.environ.get("KERAS_HOME") or Path("~/.keras").expanduser())
        settings = json.loads((home / "keras.json").read_bytes())
    except (OSError, ValueError, RuntimeError):
        return _DEFAULT
    backend = settings.get("backend") if isinstance(settings, dict) else None
    return backend if isinstance(backend, str) else _DEFAULT


def _set_by(node: ast.AST) -> str:
    """Return the backend that `os.environ["KERAS_BACKEND"] = "jax"` or a similar call sets; empty for other nodes."""
    match node:
        case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=name))], value=ast.Constant(value=str(backend))):
            return backend if name == VARIABLE else ""
        case ast.Call(args=[ast.Constant(value=name), ast.Constant(value=str(backend))]) if name == VARIABLE:
            return backend  # `setdefault`, `putenv`
        case ast.Call(func=ast.Attribute(attr="set_backend"), args=[ast.Constant(value=str(backend))]):
            return backend
    return ""
