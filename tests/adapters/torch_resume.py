"""Small trainings of PyTorch that are cut after three steps, and resumed in the same process: the state goes through
bytes into the objects of a training that was made anew, as in a process that has reached the loop.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from detrain.adapters.torch.devices import TorchDevices
from detrain.adapters.torch.distributed.fully_sharded import FullySharded
from detrain.adapters.torch.distributed.spread_tensors import SpreadTensors
from detrain.adapters.torch.leaves import TorchLeaves
from detrain.adapters.torch.settings import GlobalHooks
from detrain.adapters.torch.tensors import TorchTensors
from tests.adapters import cut_world
from tests.adapters.cut_world import AFTER, BEFORE, Case, Outcome, cases, made, packed
from tests.adapters.torch_describe import describe

CASES, case = cases()


class NoLoaders:
    """A stand-in for the part that knows DataLoaders: the real one changes PyTorch for good."""

    def parts_of_new(self, _value: object) -> None:
        """Return None: there are no DataLoaders."""

    def parts_of_ended(self, _value: object) -> None:
        """Return None: there are no DataLoaders."""


class World(cut_world.World):
    """The codec's hooks with the adapter's parts for Python objects, as a session has them."""

    def __init__(self) -> None:
        nothing = dict.fromkeys(("variables", "rules", "random", "loaders", "building", "rollback", "norms"))
        self.devices = TorchDevices()
        leaves: Any = TorchLeaves(NoLoaders(), SpreadTensors(FullySharded()), self.devices)  # type: ignore[arg-type]
        super().__init__(
            SimpleNamespace(name="torch", leaves=leaves, shared=TorchTensors(self.devices), devices=self.devices, **nothing)
        )
        self.counts = GlobalHooks()


@contextmanager
def as_a_process() -> Iterator[None]:
    """Reset PyTorch's counts for the process and its seed, as in a process that starts."""
    torch.manual_seed(7)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    before = RemovableHandle.next_id
    RemovableHandle.next_id = 0
    yield
    RemovableHandle.next_id = max(before, RemovableHandle.next_id)


def run(world: World, tried: Case) -> Outcome:
    """Run a training as a whole, and once more from its cut."""
    with as_a_process():
        names, step = made(tried)
        for turn in range(BEFORE + AFTER):
            step(turn)
        unread = describe(vars(names), of_graphs=tried.of_graphs)
    with as_a_process():
        names, step = made(tried)
        baseline = world.baseline(vars(names))
        for turn in range(BEFORE):
            step(turn)
        versions = _versions(names)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            encoded = world.encode(vars(names), baseline)
        read = _versions(names)
        file, count, stream = packed(encoded), world.counts.count(), torch.get_rng_state()
        whole_at_cut = describe(vars(names), of_graphs=tried.of_graphs)
        for turn in range(BEFORE, BEFORE + AFTER):
            step(turn)
        whole = describe(vars(names), of_graphs=tried.of_graphs)
        is_held = packed(encoded) == file
    with as_a_process():
        names, step = made(tried)
        baseline = world.baseline(vars(names))
        world.counts.set_count(count)
        missing = world.restore(file, vars(names), baseline)
        torch.set_rng_state(stream)
        if tried.is_refused:
            return Outcome(encoded.not_captured, missing, ([], []), ([], whole), unread, is_held, (read, versions))
        at_cut = describe(vars(names), of_graphs=tried.of_graphs)
        for turn in range(BEFORE, BEFORE + AFTER):
            step(turn)
        at_end = describe(vars(names), of_graphs=tried.of_graphs)
    return Outcome(encoded.not_captured, missing, (at_cut, whole_at_cut), (at_end, whole), unread, is_held, (read, versions))


def _versions(names: Any) -> list[int]:
    found: list[int] = []
    seen: set[int] = set()
    left = list(vars(names).values())
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            found.append(0 if torch.nn.parameter.is_lazy(value) or value.is_inference() else value._version)
        elif isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            left += value
        elif not isinstance(value, type):
            left += list((getattr(value, "__dict__", None) or {}).values())
    return found
