"""A metric of Hugging Face's `evaluate`, which programs of `accelerate` have: one that has computed is as it was before
it was asked for the first time, but for the names of the files that it has removed. One that is being filled is not.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detrain.python.inspect import fingerprint

LIBRARY = """
import threading

class EvaluationModule:
    def __init__(self):
        self.seed = 3
        self.file_paths = self.filelocks = self.data = self.writer = None

    def add_batch(self, predictions):
        self.writer = self.writer or []
        self.writer.append(predictions)

    def compute(self):
        self.file_paths, self.filelocks = ["/cache/default_experiment-1-0.arrow"], [threading.Lock()]
        result = sum(map(sum, self.writer)) / len(self.writer)
        del self.data, self.writer
        self.data = self.writer = None
        return result
"""
"""As `evaluate` 0.4 goes about it."""


@pytest.fixture(params=[False, True], ids=["of the library", "of a class that derives from it"])
def metric(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    package = tmp_path / "site-packages" / "evaluate"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "module.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(package.parent)
    cls = importlib.import_module("evaluate.module").EvaluationModule
    yield type("Glue", (cls,), {"__module__": __name__})() if request.param else cls()
    for name in ("evaluate", "evaluate.module"):
        del sys.modules[name]


def test_one_that_has_computed_has_not_moved(metric: Any) -> None:
    new = fingerprint.inside(metric)
    metric.add_batch([1, 0])
    assert metric.compute() == 1.0
    assert fingerprint.inside(metric) == new


def test_one_that_is_being_filled_has_moved(metric: Any) -> None:
    new = fingerprint.inside(metric)
    metric.add_batch([1, 0])
    assert fingerprint.inside(metric) != new


def test_one_that_is_seeded_anew_has_moved(metric: Any) -> None:
    new = fingerprint.inside(metric)
    metric.seed = 4
    assert fingerprint.inside(metric) != new


POOL = """
import functools
import numpy as np

class Data:
    def __init__(self, length):
        self.length = length

    @functools.cached_property
    def _stats(self):
        return {"iterator": id(object())}

class RngPool:
    def __init__(self, seed):
        self._seed, self._generator_cache = seed, []

    def acquire_rng(self, index):
        rng = self._generator_cache.pop() if self._generator_cache else np.random.Generator(np.random.Philox(self._seed))
        state = rng.bit_generator.state
        state["state"]["counter"] = np.array([0, 0, 0, index], np.uint64)
        rng.bit_generator.state = state
        return rng

    def release_rng(self, rng):
        self._generator_cache.append(rng)
"""
"""As grain 0.2 goes about it: each element's numbers are those of its index."""


def test_generators_that_are_set_anew_for_each_element_are_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run over a `random_map` was refused: its threads had asked for another number of generators at once."""
    package = tmp_path / "site-packages" / "grain" / "_src" / "python" / "dataset" / "transformations"
    package.mkdir(parents=True)
    (package / "map.py").write_text(POOL)
    for folder in (package, *package.parents[:4]):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    for name in [name for name in sys.modules if name.partition(".")[0] == "grain"]:
        monkeypatch.delitem(sys.modules, name)
    pool = importlib.import_module("grain._src.python.dataset.transformations.map").RngPool(3)
    new = fingerprint.inside(pool)

    both = [pool.acquire_rng(1), pool.acquire_rng(2)]
    for each in both:
        each.normal()
        pool.release_rng(each)

    data = sys.modules[type(pool).__module__].Data(3)
    untouched = fingerprint.inside(data)
    assert data._stats
    assert fingerprint.inside(data) == untouched
    data.length = 4
    assert fingerprint.inside(data) != untouched
    assert fingerprint.inside(pool) == new
    pool._seed = 4
    assert fingerprint.inside(pool) != new
    for name in [name for name in sys.modules if name.partition(".")[0] == "grain"]:
        del sys.modules[name]
