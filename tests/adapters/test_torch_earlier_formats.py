"""States of PyTorch's that an earlier version wrote are read: 26 trainings that have each kind of node of format 3."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch")

import tests.adapters.test_torch_aliases  # noqa: E402  which enters its trainings
import tests.adapters.test_torch_state  # noqa: E402, F401
from tests.adapters.torch_describe import describe  # noqa: E402
from tests.adapters.torch_resume import BEFORE, CASES, World, as_a_process, made  # noqa: E402

FILES: dict[str, bytes] = msgspec.msgpack.decode((Path(__file__).parent / "golden" / "torch-3.msgpack").read_bytes())


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_training_goes_on_from_format_3(name: str) -> None:
    tried, world = CASES[name], World()
    with as_a_process():
        names, step = made(tried)
        for turn in range(BEFORE):
            step(names, turn)
        whole = describe(vars(names), of_graphs=tried.of_graphs)
    with as_a_process():
        names, step = made(tried)
        assert world.restore(FILES[name], vars(names), world.baseline(vars(names))) == []
        assert describe(vars(names), of_graphs=tried.of_graphs) == whole
