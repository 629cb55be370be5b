"""What the program's code reads of Python as a framework traces it."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from detrain.adapters.group import Adapters
from detrain.base.errors import CheckpointDamaged
from detrain.python.codec.api import Baseline
from detrain.python.loaders.generator_replay import LoopGenerators
from detrain.python.outside.open_files import Files
from detrain.runtime.state.capture import Capture


class Held:
    def __init__(self, log: logging.Logger) -> None:
        self.scale, self.log, self.data = 2.0, log, np.zeros(5000)


def capture() -> Capture:
    return Capture(Adapters(), Files(), LoopGenerators(lambda: (0, 0, 0), str, lambda _address: None, None))  # type: ignore[arg-type,misc]


def a_function(held: Held, values: list[float]) -> Callable[[], float]:
    turns = 0

    def scaled() -> float:
        nonlocal turns
        turns += 1
        return held.scale * turns + sum(values)

    return scaled


def test_values_are_in_place_for_as_long_as_it_is_traced(tmp_path: Path) -> None:
    """A logger leads to its handlers, these to `open`, and in a run that leads to detrain's own state."""
    log = logging.Logger("held")
    log.addHandler(logging.FileHandler(tmp_path / "held.log"))
    held, values, at = Held(log), [1.0], capture()
    function, handlers, data = a_function(held, values), list(log.handlers), held.data
    function()
    text = at.reads(function, Baseline())
    held.scale, held.data[:] = 5.0, 1.0
    values.append(3.0)
    function()

    with at.as_read(function, text, Baseline()):
        assert function() == 2.0 * 2 + 1.0
    assert held.log.handlers == handlers
    assert held.data is data
    assert held.data.all()  # an array that large is no setting


def test_a_name_that_was_not_bound_is_bound_only_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RATE", 0.5)
    at = capture()
    text = at.reads(None, Baseline())
    monkeypatch.delitem(globals(), "RATE")

    with at.as_read(None, text, Baseline()):
        assert globals()["RATE"] == 0.5
    assert "RATE" not in globals()


def test_a_state_that_is_large_is_not_kept() -> None:
    held = SimpleNamespace(texts=[str(number) * 20 for number in range(20_000)])

    assert capture().reads(lambda: held.texts, Baseline()) == ""


@pytest.mark.parametrize("content", [b"", b"no graph", msgspec.msgpack.encode((b"no graph", {}))])
def test_what_is_no_graph_is_refused(content: bytes) -> None:
    with pytest.raises(CheckpointDamaged), capture().as_read(None, base64.b64encode(content).decode(), Baseline()):
        pass
