"""Objects of libraries that offer their position (`state_dict`, `load_state_dict`): set to it, unless they are
there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detrain.adapters.group import Adapters
from detrain.python.codec.baseline import Baseline
from detrain.python.codec.coders import Decoder, Encoder
from detrain.python.codec.graph_files import unpack
from detrain.python.loaders.generator_replay import LoopGenerators
from detrain.python.outside.open_files import Files
from detrain.runtime.state.codec_hooks import ProgramHooks

LIBRARY = """
import threading

class Source:
    \"\"\"Each iteration counts in a dictionary of its own; a position that is set is where the next one begins.\"\"\"

    def __init__(self, count):
        self.thread, self.count, self.counts = threading.Thread(), count, {"row": 0}

    def state_dict(self):
        return dict(self.counts)

    def load_state_dict(self, state):
        self.counts = dict(state)

    def __iter__(self):
        counts = self.counts
        for row in range(counts["row"], self.count):
            counts["row"] += 1
            yield row
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "library_of_sources.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("library_of_sources")
    del sys.modules["library_of_sources"]


@pytest.mark.parametrize(("loaded", "then"), [(0, 4), (2, 3), (3, 4)], ids=["not begun", "not there", "there"])
def test_a_source_is_set_to_its_position_unless_loading_has_brought_it_there(library: Any, loaded: int, then: int) -> None:
    """One that an iteration goes over counted no more from there on."""
    hooks = ProgramHooks(Adapters(), Files(), LoopGenerators(lambda: (0, 0, 0), str, lambda _old, _new: None, None))  # type: ignore[arg-type]
    sources, baselines = [library.Source(9) for _ in range(2)], [Baseline(), Baseline()]
    for source, baseline in zip(sources, baselines, strict=True):
        Encoder(hooks, baseline, is_baseline=True).encode(source, "source")
    rows = [iter(source) for source in sources]
    for _ in range(3):
        next(rows[0])
    for _ in range(loaded):
        next(rows[1])
    encoder = Encoder(hooks, baselines[0], are_loads_replayed=True)
    encoded = encoder.finish({"source": encoder.encode(sources[0], "source")})

    decoder = Decoder(unpack(encoded.graph, encoded.arrays), encoded.arrays, hooks, baselines[1])
    decoder.decode(decoder.roots["source"], sources[1], "source")

    assert decoder.finish() == encoded.not_captured == []
    assert sources[1].state_dict() == {"row": 3}
    next(rows[1])
    assert sources[1].state_dict() == {"row": then}
