"""What of a compiler's work is state; one of another version is let be, and what it has compiled is named."""

from __future__ import annotations

import collections
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from detrain.adapters.torch.compiler import history, sizes


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


_PGO = pytest.importorskip("torch._dynamo.pgo")
_TENSOR, _NUMBER = _PGO.FrameStateSizeEntry.make_tensor, _PGO.FrameStateSizeEntry.make_scalar


@pytest.mark.parametrize(
    ("seen", "is_any"),
    [
        ([_TENSOR((8, 4), (4, 1))], False),
        ([_TENSOR((8, 4), (4, 1))] * 2, False),
        ([_NUMBER(3), _NUMBER(3)], False),
        ([_TENSOR((8, 4), (4, 1)), _TENSOR((5, 4), (4, 1))], True),
        ([_TENSOR((4, 4), (4, 1)), _TENSOR((4, 4), (1, 4))], True),
        ([_NUMBER(3), _NUMBER(4)], True),
        ([_NUMBER(3), _TENSOR((8, 4), (4, 1))], True),
    ],
)
def test_a_size_is_any_where_two_were_met(seen: list[Any], *, is_any: bool) -> None:
    """Each compiled program was said to depend on its cache: that a tensor is no number was taken for a size."""
    entry = _PGO.FrameStateSizeEntry()
    for each in seen:
        entry |= each

    assert sizes.has_any({"frame": {"x": sizes._data(_PGO, entry)}}) is is_any
