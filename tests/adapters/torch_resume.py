"""Small trainings of PyTorch that are cut after three steps, and resumed in the same process: the state goes through
bytes into the objects of a training that was made anew, as in a process that has reached the loop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
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
from tests.adapters.cut_world import Case, cases
from tests.adapters.torch_describe import describe

CASES, case = cases()


class NoLoaders:
    """A stand-in for the part that knows DataLoaders: the real one changes PyTorch for good."""

    def parts_of_new(self, _value: object) -> None:
        """Return None: there are no DataLoaders."""

    def parts_of_ended(self, _value: object) -> None:
        """Return None: there are no DataLoaders."""


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

    as_a_process = staticmethod(as_a_process)

    def describe(self, names: Mapping[str, Any], tried: Case) -> list[str]:
        """See `cut_world.World`."""
        return describe(names, of_graphs=tried.of_graphs)

    def rest(self) -> tuple[Any, Any]:
        """Return the count of the process's hooks, and PyTorch's random stream."""
        return self.counts.count(), torch.get_rng_state()

    @contextmanager
    def resumed(self, rest: tuple[Any, Any]) -> Iterator[None]:
        """Set the count before names are put back, and the stream behind that."""
        self.counts.set_count(rest[0])
        yield
        torch.set_rng_state(rest[1])

    def versions(self, names: Mapping[str, Any]) -> list[int]:
        """See `cut_world.World`."""
        found: list[int] = []
        seen: set[int] = set()
        left = list(names.values())
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
