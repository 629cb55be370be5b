"""The first access of a PyTorch step to the elements of tensors that outlive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from detrain.adapters.torch.faults.first_accesses import FirstAccesses  # noqa: E402
from detrain.faults.sites import Access  # noqa: E402

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(lambda: torch.zeros(2, 3), Access(6, 0, 0), id="all elements"),
        pytest.param(lambda: torch.zeros(0), Access(0, 0, 0), id="no elements"),
        pytest.param(lambda: torch.zeros(3, 0, 2), Access(0, 0, 0), id="no elements in three dimensions"),
        pytest.param(lambda: torch.zeros(1).expand(5), Access(5, 0, 0), id="elements that share one place"),
        pytest.param(lambda: torch.zeros(2, 1).expand(2, 4), Access(8, 0, 0), id="rows that share their places"),
        pytest.param(lambda: torch.zeros(4, 2)[1:3, 0], Access(2, 0, 0), id="a view"),
    ],
)
def test_each_element_that_is_read_first_counts(make: Callable[[], Any], expected: Access) -> None:
    tensor, accesses = make(), FirstAccesses()
    accesses.begin([tensor])
    accesses.note(aten.sum.default, (tensor,), {})

    assert accesses.of(tensor) == expected


def test_elements_that_a_step_overwrites_or_leaves_are_counted_apart() -> None:
    tensor, accesses = torch.zeros(6), FirstAccesses()
    accesses.begin([tensor])
    accesses.note(aten.sum.default, (tensor[:1],), {})
    accesses.note(aten.fill_.Scalar, (tensor[1:3], 0.0), {})
    accesses.note(aten.sum.default, (tensor[:4],), {})

    assert accesses.of(tensor) == Access(2, 2, 2)
