"""What counts as there at an epoch's first batch, as for a run that resumes there; and what names a file may bind."""

from __future__ import annotations

import sys
from types import FrameType, ModuleType

import msgspec
import numpy as np
import pytest

from detrain.adapters.group import Adapters
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.coders import Decoder
from detrain.python.codec.graph_files import unpack
from detrain.python.inspect.object_graph import FORMAT
from detrain.python.loaders.generator_replay import LoopGenerators
from detrain.python.outside.open_files import Files
from detrain.runtime.state.capture import Capture


def here() -> FrameType:
    return sys._getframe(1)


def baselines() -> list[Baseline]:
    """Return those of two epochs; their frame is one that nobody looks into, as pytest does where it asserts."""
    capture = Capture(Adapters(), Files(), LoopGenerators(lambda: (0, 0, 0), str, lambda _address: None, None))  # type: ignore[arg-type]
    data, found = np.ones(13_000), []
    at_phase = capture.baseline(here())
    for _ in range(2):
        left = capture.left(here(), at_phase)
        found.append(capture.baseline(here(), left=left))
        for batch in np.split(data, 2):
            longer = np.append(batch, 1.0)
            longer.sum()
    return found


def test_a_batch_that_the_epoch_before_left_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detrain.runtime.state.capture._modules", lambda _frame: {})  # those of all tests
    for found in baselines():
        arrays = [known() for each in found.arrays.values() for known in each]
        lengths = {len(array) for array in arrays if np.ndim(array) == 1}

        assert 13_000 in lengths
        assert 6_501 not in lengths


def test_a_file_gives_no_name_of_a_library_to_another_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a library holds under it is filled."""
    capture = Capture(Adapters(), Files(), LoopGenerators(lambda: (0, 0, 0), str, lambda _address: None, None))  # type: ignore[arg-type]
    library = ModuleType("some_lib")
    library.torch = ModuleType("torch")  # type: ignore[attr-defined]  # of those that import a framework
    library.kept = [1]  # type: ignore[attr-defined]
    library.run = print  # type: ignore[attr-defined]
    library.paths = sys.path  # type: ignore[attr-defined]
    kept, paths = library.kept, list(sys.path)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_lib", library)
    names = ("some_lib|kept", "some_lib|run", "some_lib|paths", "sys|path")
    nodes = [["list", None, [1, 2]], *(["list", None, [3]] for _ in names[1:])]
    roots = {f"module|{name}": [number] for number, name in enumerate(names)}
    graph = {"format": FORMAT, "nodes": nodes, "roots": roots}
    decoder, baseline = Decoder(unpack(msgspec.msgpack.encode(graph), ()), {}, capture._hooks(), Baseline()), Baseline()
    capture._find_libraries(decoder, baseline)

    missing = capture._bind(decoder, here())

    assert missing == ["some_lib.run", "some_lib.paths", "sys.path"]
    assert sys.path == paths
    assert library.kept is kept == [1, 2]  # type: ignore[attr-defined]
    assert library.run is print  # type: ignore[attr-defined]


def test_a_name_that_the_loop_deletes_is_named_where_no_resumed_run_can_delete_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detrain.runtime.state.capture._modules", lambda _frame: {})  # those of all tests
    monkeypatch.setattr("detrain.runtime.state.capture.can_unbind", lambda _frame: False)

    def program() -> list[str]:
        capture = Capture(Adapters(), Files(), LoopGenerators(lambda: (0, 0, 0), str, lambda _address: None, None))  # type: ignore[arg-type]
        gone = ["read again"]
        baseline = capture.begin_phase(here())
        del gone
        return capture.encode(here(), baseline).not_captured or gone  # noqa: F821

    (named,) = program()

    assert named.startswith("gone in ")
