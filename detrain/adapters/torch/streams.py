"""PyTorch's random streams: the default generators of the devices, and generators that a program holds."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from detrain.base import messages
from detrain.python.process.random_streams import Stream

_SIZE: Final = struct.Struct("<I")
ACCELERATORS: Final = {"cuda", "mps", "xpu"}
"""The kinds of devices, beside the CPU, whose generators detrain knows."""


class TorchStreams:
    """See `detrain.adapters.api.RandomStreams`."""

    def streams(self) -> dict[str, Stream]:
        """Return the CPU's default generator as a stream, and those of all devices of a kind as one stream, by name."""
        here = {"cuda": True, "mps": torch.backends.mps.is_available(), "xpu": torch.xpu._is_compiled()}
        devices = {f"torch.{kind}": _DeviceStream(kind) for kind, is_here in here.items() if is_here}
        return {"torch": GeneratorStream(torch.default_generator), **devices}

    def held_generator(self, value: object) -> Stream | None:
        """Return a `torch.Generator` as a stream; None for any other object."""
        return GeneratorStream(value) if type(value) is torch.Generator else None


def watch_seeds() -> None:
    """Make `torch.seed()` and `Generator.seed()` take their number from `os.urandom`, as `random.seed()` does: a
    resumed run asks for it again before its loop, and gets the same. PyTorch's own functions ask the system in C++
    (aten/src/ATen/CPUGeneratorImpl.cpp).

    The class is written in C: its dictionary is reached by `gc`.
    """
    [methods] = gc.get_referents(vars(torch.Generator))

    @functools.wraps(methods["seed"])
    def seed(self: Any) -> int:
        number = int.from_bytes(os.urandom(8), "little")
        self.manual_seed(number)
        return number

    methods["seed"] = seed
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch.Generator))


class GeneratorStream:
    """A `torch.Generator`: its state in PyTorch's own form, 5,056 bytes on the CPU, 16 on CUDA."""

    def __init__(self, source: torch.Generator) -> None:
        self._source = source

    def pack(self) -> bytes:
        """Return the generator's state, the spare Gaussians included."""
        return bytes(self._source.get_state().numpy().tobytes())

    def unpack(self, packed: bytes) -> None:
        """Set the generator's state. A state of another size is left out: it is of another kind of device."""
        if len(packed) != self._source.get_state().numel():
            messages.say(f"the state of a generator is left out: its device was another than {self._source.device}")
            return
        self._source.set_state(torch.from_numpy(np.frombuffer(packed, np.uint8).copy()))


class _DeviceStream:
    """The default generators of all devices of a kind, once PyTorch has initialised them; before that nothing was
    drawn. Apple's GPU (MPS) is one device, and has one as soon as it is asked for.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._devices = kind, torch.get_device_module(kind)

    def _generators(self) -> Sequence[torch.Generator]:
        return [self._devices._get_default_mps_generator()] if self._kind == "mps" else self._devices.default_generators

    def pack(self) -> bytes:
        if not (self._kind == "mps" or self._devices.is_initialized()):
            return b""
        states = [each.get_state().numpy().tobytes() for each in self._generators()]
        return b"".join(_SIZE.pack(len(state)) + state for state in states)

    def unpack(self, packed: bytes) -> None:
        if not packed:
            return
        if not self._devices.device_count():
            kind = self._kind.upper()
            messages.say(f"{kind}'s random streams are left out: there is no {kind} here")
            return
        if self._kind != "mps":
            self._devices.init()
        at = 0
        for generator in self._generators():
            if at >= len(packed):  # the first run had fewer devices
                return
            (size,) = _SIZE.unpack_from(packed, at)
            GeneratorStream(generator).unpack(packed[at + _SIZE.size : at + _SIZE.size + size])
            at += _SIZE.size + size
