"""Which versions of a framework an adapter is made for."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from detrain.adapters import registry
from detrain.adapters.api import Settings
from detrain.base.errors import FrameworkUnsupported
from detrain.base.framework_names import FRAMEWORKS, KNOWN, MODULES, FrameworkNames
from detrain.python.process.random_streams import Streams

SAID = {"PyTorch": "2.9 to 2.15", "TensorFlow": "2.21", "JAX": "0.10 to 0.12"}


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda each: each.name)
@pytest.mark.parametrize("is_later", [True, False])
def test_another_version_is_refused(framework: FrameworkNames, is_later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = framework.versions
    version = f"{high[0]}.{high[1]}.0+cpu" if is_later else f"{low[0]}.{low[1] - 1}.9"
    monkeypatch.setitem(sys.modules, framework.imported, SimpleNamespace(__version__=version))
    with pytest.raises(FrameworkUnsupported) as refused:
        registry.make(framework.imported, Settings(seed=0, threads=1), Streams())

    assert refused.value.what == f"{framework.name} {version} is not supported: this detrain knows {SAID[framework.name]}"
    wanted = f"{framework.imported}>={low[0]}.{low[1]},<{high[0]}.{high[1]}"
    assert refused.value.todo == f"install {wanted} (the extra `detrain[{framework.imported}]`)"


def test_the_modules_with_objects_that_stay_without_a_word_are_those_with_rules_of_their_own() -> None:
    """One of torchtext that draws the order of its batches was among them: a resumed run went on in another order."""
    opened = frozenset().union(*(each.open_modules for each in KNOWN))

    assert MODULES - opened == {"tensorflow", "keras", "tf_keras", "torchdata", "jaxlib"}
