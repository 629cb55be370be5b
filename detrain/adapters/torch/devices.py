"""Copies of a CUDA device's storages, held while training goes on; and a checkpoint's devices that this machine lacks:
the adapter reports them, or maps them all to the CPU.

A storage is copied on its device at once, on the stream on which the program computes; the thread that writes the
checkpoint brings the copy to the host, on its own stream, into memory that the device can write to directly. So
training waits only for copies within the device. If a device has no room for them, the bytes go to the host at once.

PyTorch's documentation of the calls: `torch.cuda.Stream` and "Memory management" in its notes on CUDA.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch

from detrain.adapters.torch.held_memory import has_stepped, look_at, unseen
from detrain.adapters.torch.streams import ACCELERATORS
from detrain.base.digest import Array
from detrain.base.errors import FrameworkUnsupported
from detrain.python.codec.table import kind_named
from detrain.python.inspect.object_graph import Graph, Item

_SMALL_BYTES: Final = 1 << 16
"""Fewer bytes than these reach the host in less time than a copy, an event and a wait take."""
_SHARE: Final = 0.9
"""The share of the room beside the program's peak that copies may take: free memory is in pieces."""

_DEVICE: Final = re.compile(rf"({'|'.join(sorted(ACCELERATORS))})(?::(\d+))?")
_HERE: Final = ("cpu", "meta")
_UNTOUCHED: Final = frozenset({"enum", "set", "frozenset", "generator", "class", "memory", "inside"})
"""Kinds of nodes, besides those that hold nothing, that are not mapped: a text that reads like a device is none there,
or two items would become one.
"""


class HeldBytes:
    """The bytes that a device's storage had when it was held."""

    def __init__(self, copy: Any, event: Any, stream: Any) -> None:
        """`event`: reached when the copy is done; `stream`: for the transfer to the host."""
        self._copy, self._event, self._stream = copy, event, stream
        self.nbytes: int = copy.numel()

    def fetch(self) -> Array:
        """Bring the bytes to the host, once, on any thread; wait until they are there."""
        with unseen(), torch.no_grad():
            host = _host_memory(self.nbytes)
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self._event)
                host.copy_(self._copy, non_blocking=True)
            self._stream.synchronize()
            self._copy = None  # not before: the allocator knows only the program's stream, and would reuse the memory
            found: Array = host.numpy()
            return found


def _host_memory(size: int) -> Any:
    """Return host memory that a device can write to directly, which PyTorch keeps for the next time; if there is none,
    ordinary memory.
    """
    try:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty(size, dtype=torch.uint8, device="cpu")


class Copies:
    """Holds the bytes of devices' storages."""

    def __init__(self) -> None:
        self._is_later = False
        self._room: dict[int, float] = {}
        """The bytes that may still be copied in this save, by device."""
        self._peak: dict[int, int] = {}
        """The program's highest use seen so far, in bytes by device: the program may reset PyTorch's own count."""
        self._streams: dict[int, Any] = {}

    @contextmanager
    def later(self) -> Iterator[None]:
        """Inside, held bytes may still be on the device (`HeldBytes`)."""
        self._is_later, self._room = True, {}
        try:
            yield
        finally:
            self._is_later = False

    def hold(self, storage: Any) -> Any:
        """Return the bytes that a storage has now, as an array or as `HeldBytes`."""
        if self._is_later and storage.is_cuda and storage.nbytes() >= _SMALL_BYTES:
            copy = self._copied(storage, storage.device.index or 0)
            if copy is not None:
                return copy
        return look_at(storage.cpu()).copy()

    def _copied(self, storage: Any, device: int) -> HeldBytes | None:
        if device not in self._room:
            self._room[device] = self._room_on(device)
        if storage.nbytes() > self._room[device]:
            return None
        try:
            with unseen(), torch.inference_mode(mode=False), torch.no_grad():
                copy = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).clone()
        except torch.OutOfMemoryError:
            self._room[device] = 0
            return None
        self._room[device] -= storage.nbytes()
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device, priority=torch.cuda.Stream.priority_range()[0])  # the lowest
        return HeldBytes(copy, event, self._streams[device])

    def _room_on(self, device: int) -> float:
        """Return the bytes that copies may take on a device: a share of the room that the program's peak leaves."""
        peak = self._peak[device] = max(self._peak.get(device, 0), torch.cuda.max_memory_allocated(device))
        if not has_stepped():  # the memory that a step needs is not known yet
            return 0
        free, _all = torch.cuda.mem_get_info(device)
        return _SHARE * float(free + torch.cuda.memory_reserved(device) - peak)


class TorchDevices:
    """See `detrain.adapters.api.Devices`."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._maps = False
        self.copies = Copies()

    def forget(self) -> None:
        """Forget the devices met so far, as a new walk over the program's objects begins."""
        self._seen.clear()

    def note(self, device: str) -> None:
        """Note that the walk has met a tensor or generator on a device.

        Raises FrameworkUnsupported for a kind of device whose random generators detrain does not know.
        """
        if device in _HERE:
            return
        if not _DEVICE.fullmatch(device):
            raise FrameworkUnsupported(
                f"the program has a tensor on {device!r}: detrain does not know the random generators of such devices",
                f"train on the CPU, or on one of these: {', '.join(sorted(ACCELERATORS))}",
            )
        self._seen.add(device)

    def seen(self) -> list[str]:
        """Return the devices other than the CPU that were met since `forget`."""
        return sorted(self._seen)

    def missing(self, state: bytes) -> list[str]:
        """Return the devices that a checkpoint's tensors need and this machine lacks."""
        was = [found for device in json.loads(state).get("devices", ()) if (found := _DEVICE.fullmatch(device))]
        return [each[0] for each in was if int(each[2] or 0) >= torch.get_device_module(each[1]).device_count()]

    def others(self) -> int:
        """Return how many devices this machine has beside the CPU."""
        return int(torch.accelerator.device_count())

    def map_to_cpu(self) -> None:
        """From here on, map other devices to the CPU."""
        self._maps = True

    def mapped(self, graph: Graph) -> Graph:
        """Return a graph of Python state with all devices mapped to the CPU, if that is wanted: in tensors, and in the
        program's values that are devices or their names.
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
        """Inside, held bytes of CUDA devices may still be on the device."""
        return self.copies.later()


def _on_cpu(item: Item) -> Item:
    return "cpu" if isinstance(item, str) and _DEVICE.fullmatch(item) else item
