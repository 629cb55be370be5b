"""States of PyTorch's that an earlier version wrote are read: 26 trainings that have each kind of node of format 3."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
import xxhash

torch = pytest.importorskip("torch")

import tests.adapters.test_torch_aliases  # noqa: E402  which enters its trainings
import tests.adapters.test_torch_state  # noqa: E402, F401
from tests.adapters.cut_world import made  # noqa: E402
from tests.adapters.torch_describe import describe  # noqa: E402
from tests.adapters.torch_resume import CASES, World, as_a_process  # noqa: E402

FILES: dict[str, tuple[bytes, bytes]] = msgspec.msgpack.decode((Path(__file__).parent / "golden" / "torch-3.msgpack").read_bytes())
"""For each training the state that was written, and the digest of the description of all objects then. Nothing is
trained again here: another processor may round otherwise."""


def case(name: str) -> object:
    has_code = name == "a_hook_of_an_optimizer" and sys.version_info[:2] != (3, 11)
    return pytest.param(name, marks=pytest.mark.skipif(has_code, reason="the file has the code of a function, of Python 3.11"))


@pytest.mark.parametrize("name", map(case, sorted(FILES)))
def test_a_training_goes_on_from_format_3(name: str) -> None:
    tried, world = CASES[name], World()
    file, whole = FILES[name]
    with as_a_process():
        names, _step = made(tried)
        assert world.restore(file, vars(names), world.baseline(vars(names))) == []
        lines = describe(vars(names), of_graphs=tried.of_graphs)
        assert xxhash.xxh3_128_digest("\n".join(lines).encode()) == whole, lines
