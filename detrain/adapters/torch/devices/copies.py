"""Storages of a CUDA device, held while training goes on.

A storage is copied on its device at once, on the stream on which the program computes; the thread that writes the
checkpoint brings the copy to the host, on a stream of its own, into memory that the device can write to by itself. So
training waits for copies within the device alone. Where there is no room for them, the bytes come to the host at once.

What PyTorch says of each call: `torch.cuda.Stream` and "Memory management" in its notes on CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from detrain.adapters.torch.held_memory import has_stepped, look_at, unseen
from detrain.base.digest import Array

_SMALL_BYTES: Final = 1 << 16
"""So much is brought over in less time than a copy, an event and a wait take."""
_SHARE: Final = 0.9
"""Of the room beside the program's own peak: memory is cut into pieces."""


class HeldBytes:
    """The bytes that a storage of a device had when it was held."""

    def __init__(self, copy: Any, event: Any, stream: Any) -> None:
        """`event`: reached when the copy is done; `stream`: on which it is brought over."""
        self._copy, self._event, self._stream = copy, event, stream
        self.nbytes: int = copy.numel()

    def fetch(self) -> Array:
        """Bring the bytes to the host, once; waits for that, on any thread."""
        with unseen(), torch.no_grad():
            host = _host_memory(self.nbytes)
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self._event)
                host.copy_(self._copy, non_blocking=True)
            self._stream.synchronize()
            self._copy = None  # not before: the allocator, which knows the other stream alone, would hand it out again
            found: Array = host.numpy()
            return found


def _host_memory(size: int) -> Any:
    """Return bytes of the host's that a device writes to by itself, which PyTorch keeps for the next time; if there are
    none, other ones.
    """
    try:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty(size, dtype=torch.uint8, device="cpu")


class Copies:
    """Holds storages of devices."""

    def __init__(self) -> None:
        self._is_later = False
        self._room: dict[int, float] = {}
        """What may still be copied in this save, in bytes by device."""
        self._peak: dict[int, int] = {}
        """The most that the program has had there, as far as it was looked at: it may set PyTorch's count back."""
        self._streams: dict[int, Any] = {}

    @contextmanager
    def later(self) -> Iterator[None]:
        """Inside, what is held may still be on the device (`HeldBytes`)."""
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
        """Return how much the program leaves free even where it needs most, in bytes."""
        peak = self._peak[device] = max(self._peak.get(device, 0), torch.cuda.max_memory_allocated(device))
        if not has_stepped():  # what a step needs is not known yet
            return 0
        free, _all = torch.cuda.mem_get_info(device)
        return _SHARE * float(free + torch.cuda.memory_reserved(device) - peak)
