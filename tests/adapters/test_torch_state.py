"""PyTorch's state: a training that is resumed goes on as the one that was never cut, bit for bit; or the checkpoint
names what it does not hold. The oracle is the training that was not cut, as PyTorch itself tells it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from tests.adapters import torch_compiled, torch_layouts, torch_modules, torch_optimizers, torch_values  # noqa: E402, F401
from tests.adapters.torch_resume import CASES, World, run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch says of much that it may change


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield World()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CASES)
def test_a_training_that_is_resumed_goes_on_as_the_whole_one(world: World, name: str) -> None:
    tried = CASES[name]

    outcome = run(world, tried)

    assert outcome.versions[0] == outcome.versions[1], "reading has moved a version counter"
    assert outcome.is_held, "what is held has changed"
    assert [each for each in outcome.lost if not tried.lost or not each.startswith(tried.lost)] == []
    assert [each for each in tried.lost if not any(loss.startswith(each) for loss in outcome.lost)] == []
    if tried.is_refused:
        return
    assert first_difference(outcome.at_end[1], outcome.unread) is None, "reading has changed the training"
    assert outcome.missing == []
    assert first_difference(*outcome.at_cut) is None
    assert first_difference(*outcome.at_end) is None


def first_difference(one: list[str], other: list[str]) -> str | None:
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return f"{mine[:200]} | not | {theirs[:200]}"
    return None if len(one) == len(other) else f"{len(one)} lines, not {len(other)}"
