"""A DataLoader's iterator, set to a place, goes on with the batches that the first one gave: with workers, whose random
streams come back too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from detrain.adapters.torch.data.loaders import Loaders

LOADERS = Loaders(lambda: None)
"""It watches the loaders of the whole process, from here on."""


class Augmented(Dataset[Any]):
    """Rows that draw from all three streams of the process that loads them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> list[float]:
        return [float(index), random.random(), float(np.random.rand()), float(torch.rand(()))]


def batches(iterator: Iterator[Any], count: int) -> list[bytes]:
    return [torch.stack(next(iterator)).numpy().tobytes() for _ in range(count)]


@pytest.mark.parametrize("given", [0, 1, 5])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_go_on_with_their_streams_at_a_place(workers: int, given: int) -> None:
    """Workers are processes: there is nothing cheaper that has their streams."""
    loaders = LOADERS
    loader = DataLoader(Augmented(), 4, shuffle=True, num_workers=workers)
    first = iter(loader)
    batches(first, given)
    positions, counts = loaders.positions("seek")[0], loaders.counts()
    rest = batches(first, 10 - given)

    loaders.restore(counts, positions, "seek")
    assert batches(first, 10 - given) == rest
    assert next(first, None) is None
