"""Arrays of the program as sites in memory: their bits are changed where they lie, before a step runs.

JAX never writes into an array that is there, and has no way to. On a CPU its memory is the process's own: a bit is
changed there, and all who hold the array see it. Elsewhere it cannot be reached.
"""

from __future__ import annotations

import ctypes
from typing import Any

import jax
import numpy as np

from detrain.adapters.jax.named_arrays import NamedArrays
from detrain.base.errors import FaultInvalid
from detrain.faults.bits import dtype_named, little_endian
from detrain.faults.experiment import BITS, Firing, Injection
from detrain.faults.sites import MEMORY, MemoryKind, Site, memory_site


class Memory:
    """The arrays that names lead to."""

    def __init__(self) -> None:
        self._names = NamedArrays()
        self._weights: set[str] = set()
        self._struck: list[tuple[Any, Any, Any]] = []
        """Arrays whose bits were changed: each, the positions, and what was there."""

    def look(self) -> None:
        """Look which there are."""
        self._names.look()

    def note_weights(self, weights: dict[int, Any]) -> None:
        """The step has taken gradients of these arrays; they had their names when it began."""
        self._weights |= {name for name, (array, _of) in self._names.found.items() if id(array) in weights}

    def sites(self) -> list[Site]:
        """Return them as sites."""
        return [
            memory_site(name, self._kind(name, of), tuple(array.shape), str(array.dtype))
            for name, (array, of) in self._names.arrays().items()
            if str(array.dtype) in BITS and len(array.sharding.device_set) == 1
        ]

    def _kind(self, name: str, of: str) -> MemoryKind:
        if name in self._weights:
            return "weight"
        return "slot" if of else "statistic"

    def undo(self) -> None:
        """The run goes back to before such faults: arrays, which a moment holds as they are, get their bits again."""
        for array, at, golden in reversed(self._struck):
            if not array.is_deleted():
                _bits(array)[at] = golden
        self._struck = []

    def strike(self, injection: Injection) -> Firing | None:
        """Change the bits of one of them; None if there is none of that name, shape and dtype."""
        found = self._names.arrays().get(injection.site.removeprefix(MEMORY))
        array = None if found is None else found[0]
        if array is None or (str(array.dtype), tuple(array.shape)) != (injection.dtype, injection.shape):
            return None
        (device,) = array.sharding.device_set
        if device.platform != "cpu":
            raise FaultInvalid(
                f"{injection.site!r} lies on {device}: JAX lets no one write into an array there",
                "hit what an equation gives: `detrain sites` lists them",
            )
        jax.block_until_ready(array)
        golden, values = injection.put_into(_bits(array))
        self._struck.append((array, injection.array("positions"), golden))
        return Firing(1, little_endian(golden), little_endian(values))


def _bits(array: Any) -> Any:
    """Return the memory of an array on a CPU, as its elements' bit patterns, to be written to."""
    unsigned = dtype_named(str(array.dtype)).unsigned
    size = array.size * unsigned.itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(array.unsafe_buffer_pointer()), unsigned)
