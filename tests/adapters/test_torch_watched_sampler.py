"""A sampler of the program may be advanced alone where what it draws follows from what it held as it began."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Sampler

from detrain.adapters.torch.data.samplers import SamplerWatch, leads_to
from detrain.python.process.random_streams import NumpyStream, PythonStream

STEP = [0]
"""What a loop moves."""


class Endless(Sampler[int]):
    """Detectron2's, and many programs'."""

    def __init__(self, size: int = 5) -> None:
        self.size, self.tracker = size, {"weights": np.ones(size), "tensor": torch.zeros(3)}

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(5)
        while True:
            yield from torch.randperm(self.size, generator=generator).tolist()


class ByPython(Endless):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield random.randrange(self.size)


class ByTorch(Endless):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.size).tolist()


class ByNumpy(Endless):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(np.random.choice(self.size, p=self.tracker["weights"] / self.tracker["weights"].sum()))


class OnceByTorch(Endless):
    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.size).tolist()


class ByWeights(Endless):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(self.tracker["weights"].argmax())


class ByGlobal(Endless):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield STEP[0]


def by_function() -> int:
    return STEP[0]


class ByFunction(Endless):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield by_function()


class ByClass(Endless):
    rates: ClassVar = {"low": 1}

    def __iter__(self) -> Iterator[int]:
        while True:
            yield sum(self.rates.values())


class ByKeys(Endless):
    def __init__(self) -> None:
        super().__init__()
        self.held = {"first": Endless()}

    def __iter__(self) -> Iterator[int]:
        while True:
            yield len(next(iter(self.held)))


class ByProperty(Endless):
    @property
    def now(self) -> int:
        return STEP[0]

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.now


class Moving(Endless):
    def __iter__(self) -> Iterator[int]:
        while True:
            self.size += 1
            yield self.size


class Held(Endless):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.size, generator=self.generator).tolist()


def read(generators: list[torch.Generator]) -> list[bytes]:
    streams = [each.get_state().numpy().tobytes() for each in (torch.default_generator, *generators)]
    return [PythonStream().pack(), NumpyStream().pack(), *streams]


def watch_of(sampler: Any, between: Callable[[Any], object]) -> SamplerWatch:
    """Draw from a sampler, with a loop's bodies between."""
    watch, source = SamplerWatch(sampler), iter(sampler)
    generators = [sampler.generator] if hasattr(sampler, "generator") else []
    for number in range(5 if type(sampler) is OnceByTorch else 12):
        watch.draw(source, lambda: read(generators), is_first=number == 0)
        between(sampler)
    return watch


def bodies(_sampler: Any) -> None:
    """Draw from all streams that programs share."""
    torch.rand(1), np.random.rand(), random.random()


@pytest.mark.parametrize("cls", [Endless, OnceByTorch, ByWeights, ByGlobal, ByFunction, Held])
def test_one_whose_draws_follow_from_its_beginning_is_closed(cls: type) -> None:
    assert watch_of(cls(), bodies).is_closed()


@pytest.mark.parametrize("cls", [ByPython, ByTorch, ByNumpy])
def test_one_that_draws_where_bodies_draw_is_not(cls: type) -> None:
    assert not watch_of(cls(), bodies).is_closed()


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "weights in place": (ByWeights, lambda one: one.tracker["weights"].__setitem__(2, 9.0)),
    "a tensor in place": (ByWeights, lambda one: one.tracker["tensor"].add_(1)),
    "an attribute": (ByWeights, lambda one: setattr(one, "size", 9)),
    "a global": (ByGlobal, lambda _: STEP.__setitem__(0, STEP[0] + 1)),
    "a global that a function reads": (ByFunction, lambda _: STEP.__setitem__(0, STEP[0] + 1)),
    "what a property reads": (ByProperty, lambda _: STEP.__setitem__(0, STEP[0] + 1)),
    "a value of its class": (ByClass, lambda one: one.rates.__setitem__("low", one.rates["low"] + 1)),
    "a key of its class": (ByClass, lambda one: one.rates.__setitem__(f"low {len(one.rates)}", 1)),
    "a key of objects": (ByKeys, lambda one: one.held.__setitem__(f"turn {len(STEP)}", one.held.popitem()[1])),
    "by itself": (Moving, lambda _: None),
    "its own generator": (Held, lambda one: torch.rand(1, generator=one.generator)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_that_leads_to_what_changes_is_not(change: str) -> None:
    make, between = CHANGES[change]
    assert not watch_of(make(), between).is_closed()


def test_what_is_below_a_batch_sampler_counts() -> None:
    sampler = ByWeights()
    watch = watch_of(BatchSampler(sampler, 2, drop_last=False), bodies)
    assert watch.is_closed()
    sampler.tracker["weights"][1] = 7.0
    assert not watch.is_closed()


def test_one_that_leads_to_what_cannot_be_told_is_not_closed() -> None:
    sampler = Endless()
    sampler.tracker["lock"] = object()
    assert leads_to(sampler) is None
    assert not watch_of(sampler, bodies).is_closed()


def test_what_was_drawn_has_a_digest() -> None:
    drawn = [watch_of(Endless(size), bodies).drawn for size in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
