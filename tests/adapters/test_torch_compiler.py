"""A version of PyTorch whose compiler detrain does not know: nothing is replaced, and what is compiled is named."""

from __future__ import annotations

import collections
import sys
from types import SimpleNamespace

import pytest
import torch

from detrain.adapters.torch.compiler import history


def test_a_compiler_of_another_version_is_let_be_and_what_it_has_compiled_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions were replaced that PyTorch 2.9 has otherwise: compiled programs ended with an AttributeError."""
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    frames: collections.Counter[str] = collections.Counter()
    monkeypatch.setitem(sys.modules, history.DYNAMO, SimpleNamespace())  # without what is replaced
    monkeypatch.setitem(sys.modules, f"{history.DYNAMO}.utils", SimpleNamespace(counters={"frames": frames}))

    compiled = history.History(None)
    compiled.on_import(history.DYNAMO)

    assert compiled.uncaptured() == []
    frames["total"] += 1
    assert len(compiled.uncaptured()) == 1
