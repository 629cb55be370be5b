"""A DataLoader's iterator, set to a place, goes on with the batches that the first one gave: with workers, whose random
streams come back too.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    dataloader,
)
from torch.utils.data.distributed import DistributedSampler

from detrain.adapters.torch.data.loaders import TorchLoaders
from detrain.adapters.torch.data.samplers import reason_to_load
from detrain.adapters.torch.data.worker import StampedInit, _Outlived, signature
from detrain.base.errors import Diverged
from detrain.python.process.sigterm import Termination

MOMENT = [0]
NOTED: list[Any] = []
LOADERS = TorchLoaders(lambda: MOMENT[0], SimpleNamespace(note=NOTED.append, is_again=False, drawn_by_pulls=set))  # type: ignore[arg-type]
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


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_an_iterator_with_workers_that_live_on_is_found_by_one_name_in_all_epochs() -> None:
    """A process that resumes in a later epoch has begun it once only, and must find its workers' streams."""
    loader = DataLoader(Augmented(), 4, shuffle=True, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    key = LOADERS.loader_key(iterator)
    batches(iterator, 10)
    assert iter(loader) is iterator
    batches(iterator, 10)
    positions, counts = LOADERS.positions("seek")[0], LOADERS.counts()
    torch.manual_seed(5)  # the order of the next epoch; what its workers draw goes on
    rest = batches(iter(loader), 10)

    assert LOADERS.loader_key(iterator) == key
    LOADERS.restore(counts, positions, "seek")
    torch.manual_seed(5)
    assert batches(iter(loader), 10) == rest


class Endless(Sampler[int]):
    def __init__(self) -> None:
        self.seed = 5

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(40, generator=generator).tolist()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_the_programs_is_advanced_alone_and_its_draws_are_compared(workers: int) -> None:
    sampler = Endless()
    iterator = iter(DataLoader(Augmented(), 4, sampler=sampler, num_workers=workers))

    def rows(count: int) -> list[list[float]]:
        return [next(iterator)[0].tolist() for _ in range(count)]

    rows(7)
    positions, counts = LOADERS.positions("seek")[0], LOADERS.counts()
    rest = rows(15)
    LOADERS.restore(counts, positions, "seek")
    assert rows(15) == rest

    sampler.seed = 6
    with pytest.raises(Diverged, match="draws others than in the first run"):
        LOADERS.restore(counts, positions, "seek")


def test_what_a_body_draws_from_an_iterator_that_lives_on_is_noted() -> None:
    loader = DataLoader(Augmented(), 4)
    lives_on = iter(loader)
    MOMENT[0] += 1
    NOTED.clear()
    drawn, own = next(lives_on), next(iter(loader))

    assert [each is drawn for each in NOTED] == [True], "and not of one that the body has made"
    assert own is not drawn


class _RepeatSampler:
    """As ultralytics, timm and programs write it."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler


@pytest.mark.parametrize(
    ("sampler", "is_advanced"),
    [
        (lambda: SequentialSampler(range(4)), True),
        (lambda: BatchSampler(RandomSampler(range(4), generator=torch.Generator()), 2, False), True),
        (lambda: BatchSampler(RandomSampler(range(4)), 2, False), True),
        (lambda: RandomSampler(range(4), generator=torch.default_generator), False),
        (lambda: RandomSampler(range(4), True, generator=torch.default_generator), False),
        (lambda: DistributedSampler(range(4), 2, 0), False),  # the program may set its epoch in between
    ],
)
def test_a_sampler_that_repeats_another_is_advanced_alone_where_each_order_follows_from_its_beginning(
    sampler: Callable[[], Any], is_advanced: bool
) -> None:
    assert (reason_to_load(_RepeatSampler(sampler())) == "") == is_advanced


def test_a_loader_of_a_library_over_pytorchs_iterators_is_let_be() -> None:
    """fastai's has not the attributes of PyTorch's: a program that used it ended with our error."""
    loader = DataLoader(Augmented(), 4)
    names = [name for name in vars(loader) if "batch_sampler" not in name and name not in ("sampler", "generator")]
    other = SimpleNamespace(
        **{name: vars(loader)[name] for name in names}, _auto_collation=True, _index_sampler=loader.batch_sampler
    )
    other.generator = None
    other._dataset_kind, other._get_shared_seed = loader._dataset_kind, lambda: None

    iterator = dataloader._SingleProcessDataLoaderIter(other)
    assert len(next(iterator)) == 4
    assert LOADERS.places()


class Rows(IterableDataset[Any]):
    """Eleven rows for each worker, that draw."""

    def __iter__(self) -> Iterator[float]:
        for _ in range(11):
            yield float(torch.rand(()))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_that_live_on_say_what_they_hold_behind_a_batch_that_is_dropped() -> None:
    """Else a run that resumed at the start of an epoch had their streams as they were before its rows."""
    loader = DataLoader(Rows(), 4, num_workers=2, persistent_workers=True, drop_last=True)
    iterator = iter(loader)
    assert len(list(iterator)) == 4
    positions, counts = LOADERS.positions("seek")[0], LOADERS.counts()
    rest = [each.numpy().tobytes() for each in iter(loader)]

    LOADERS.restore(counts, positions, "seek")
    assert [each.numpy().tobytes() for each in iter(loader)] == rest


def test_a_worker_outlives_the_first_sigterm_of_a_run_that_answers_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert StampedInit(None, {})._leaving is None
        signal.signal(signal.SIGTERM, Termination(lambda: True)._on_signal)
        assert StampedInit(None, {})._leaving is not None
    finally:
        signal.signal(signal.SIGTERM, before)

    leaving = SimpleNamespace(value=0)
    answer = _Outlived(leaving)
    answer(signal.SIGTERM, None)
    assert ends == []
    answer(signal.SIGTERM, None)
    assert ends == [0]

    leaving.value = 1
    _Outlived(leaving)(signal.SIGTERM, None)
    assert ends == [0, 0], "a process at its end waits for its workers for ever"


class _Settings:
    def __init__(self) -> None:
        vars(self)["items"] = {"size": 8}

    def __getattr__(self, name: str) -> Any:
        return vars(self)["items"][name]


def test_a_data_set_may_hold_an_object_whose_missing_attributes_raise_a_key_error() -> None:
    settings = _Settings()
    before = signature([settings])
    settings.items["size"] = 9
    assert signature([settings]) != before
