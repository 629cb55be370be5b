"""The devices that a checkpoint's tensors were on, where they are not: refused, or all on the CPU."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager
from typing import Final

import torch

from detrain.adapters.torch.devices.copies import Copies
from detrain.python.codec.table import kind_named
from detrain.python.inspect.object_graph import Graph, Item

_CUDA: Final = re.compile(r"cuda(:\d+)?")
_HERE: Final = ("cpu", "meta")
_UNTOUCHED: Final = frozenset({"enum", "set", "frozenset", "generator", "class", "memory", "inside"})
"""Kinds of nodes, beside those that hold nothing, in which a text that reads like a device is none, or where two would
become one.
"""


class TorchDevices:
    """See `detrain.adapters.api.Devices`."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._maps = False
        self.copies = Copies()

    def forget(self) -> None:
        """The program's objects are gone through anew."""
        self._seen.clear()

    def note(self, device: str) -> None:
        """A tensor or generator on a device was met."""
        if device not in _HERE:
            self._seen.add(device)

    def seen(self) -> list[str]:
        """Return the devices other than the CPU that were met since `forget`."""
        return sorted(self._seen)

    def missing(self, state: bytes) -> list[str]:
        """Return the CUDA devices of a checkpoint's tensors that are not here."""
        was = [device for device in json.loads(state).get("devices", ()) if _CUDA.fullmatch(device)]
        here = torch.cuda.device_count() if was else 0
        return [device for device in was if int(device.partition(":")[2] or 0) >= here]

    def others(self) -> int:
        """Return how many CUDA devices are here."""
        return int(torch.cuda.device_count())

    def map_to_cpu(self) -> None:
        """Have what was on CUDA devices go to the CPU from here on."""
        self._maps = True

    def mapped(self, graph: Graph) -> Graph:
        """Return a graph of Python state with what was on CUDA devices on the CPU, if that is wanted: tensors, and
        values of the program that are devices or their names.
        """
        if not self._maps:
            return graph
        for node in graph.nodes:
            if node.kind not in _UNTOUCHED and kind_named(node.kind).holds != "nothing":
                node.items = list(map(_on_cpu, node.items))
                node.named = [[name, _on_cpu(value)] for name, value in node.named]
            if node.kind == "shared":
                form = node.data[1]
                form[2] = _on_cpu(form[2])
        graph.roots = {name: _on_cpu(item) for name, item in graph.roots.items()}
        return graph

    def copies_later(self) -> AbstractContextManager[None]:
        """Inside, what is held of CUDA devices may still be there."""
        return self.copies.later()


def _on_cpu(item: Item) -> Item:
    return "cpu" if isinstance(item, str) and _CUDA.fullmatch(item) else item
