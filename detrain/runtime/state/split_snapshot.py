"""The state of one rank at a cut in two parts: its own part, as bytes, and the arrays that all ranks of the job share.

The own part names the shared arrays. It is enough to save a rank that is gone, as every rank that is left has the
shared ones. Together they are the checkpoint that the rank would have written.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import xxhash

from detrain.base.digest import Array
from detrain.base.errors import CheckpointDamaged
from detrain.store import Meta, Snapshot

_LENGTH_BYTES: Final = 8


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """An array. `shared`: its name if all ranks hold it; `data` is empty then."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    shared: str = ""


class _Own(msgspec.Struct, frozen=True, array_like=True):
    meta: bytes
    """JSON, as in the checkpoint file, because the frameworks' entries in it are JSON."""
    tensors: dict[str, _Packed]
    rng: dict[str, bytes]
    python: bytes
    arrays: dict[str, _Packed]


class Split(msgspec.Struct, frozen=True):
    """One rank's state at a cut."""

    own: bytes
    shared: Mapping[str, Array]
    """The shared arrays by their name on all ranks; they may only be read."""

    def fingerprint(self) -> bytes:
        """Return a digest of the shared arrays."""
        state = xxhash.xxh3_128()
        for name, array in sorted(self.shared.items()):
            state.update(f"{name} {array.nbytes}\n".encode())
            state.update(array.data)
        return state.digest()

    def write(self, path: Path) -> None:
        """Write the shared arrays. Raises OSError."""
        head = msgspec.msgpack.encode([(name, array.nbytes) for name, array in self.shared.items()])
        with io.FileIO(path, "w") as file:  # not `open`: detrain follows the files that it opens as the program's own
            for part in (len(head).to_bytes(_LENGTH_BYTES, "big"), head, *self.shared.values()):
                left = memoryview(part).cast("B")  # type: ignore[arg-type]  # an array is a buffer
                while left:
                    left = left[file.write(left) or 0 :]


def split(snapshot: Snapshot, replicas: Mapping[int, str]) -> Split:
    """Split a state in two. `replicas`: names of the shared arrays by their addresses. To be called at the cut."""
    shared: dict[str, Array] = {}
    arrays: dict[str, _Packed] = {}
    for key, array in snapshot.arrays.items():
        name = replicas.get(array.ctypes.data, "") if array.dtype == np.uint8 and not array.flags.writeable else ""
        if name and name not in shared:
            shared[name] = array
            arrays[key] = _Packed("|u1", array.shape, b"", name)
        else:
            arrays[key] = _packed(array)
    tensors = {key: _packed(array) for key, array in snapshot.tensors.items()}
    own = _Own(msgspec.json.encode(snapshot.meta), tensors, dict(snapshot.rng), snapshot.python, arrays)
    return Split(msgspec.msgpack.encode(own), shared)


def read_shared(path: Path) -> dict[str, Array]:
    """Return the arrays that `Split.write` has written. Raises OSError, CheckpointDamaged."""
    data = path.read_bytes()
    try:
        length = int.from_bytes(data[:_LENGTH_BYTES], "big")
        at = _LENGTH_BYTES + length
        found: dict[str, Array] = {}
        for name, size in msgspec.msgpack.decode(data[_LENGTH_BYTES:at], type=list[tuple[str, int]]):
            found[name] = np.frombuffer(data, np.uint8, size, at)
            at += size
    except ValueError as error:
        raise CheckpointDamaged(f"{str(path)!r} cannot be read: {error}", "the newest periodic checkpoint is used") from error
    return found


def joined(own: bytes, shared: Mapping[str, Array]) -> Snapshot:
    """Return the state that `split` took apart. Raises CheckpointDamaged if the parts do not belong together."""
    try:
        packed = msgspec.msgpack.decode(own, type=_Own)
        meta = msgspec.json.decode(packed.meta, type=Meta)
        arrays = {key: _unpacked(each, shared) for key, each in packed.arrays.items()}
        tensors = {key: _unpacked(each, shared) for key, each in packed.tensors.items()}
    except (ValueError, KeyError) as error:
        raise CheckpointDamaged(
            f"the parts of a just-in-time checkpoint do not belong together: {error}", "the newest periodic checkpoint is used"
        ) from error
    return Snapshot(meta, tensors, packed.rng, packed.python, arrays)


def _packed(array: Array) -> _Packed:
    return _Packed(array.dtype.str, array.shape, array.tobytes())


def _unpacked(packed: _Packed, shared: Mapping[str, Array]) -> Array:
    if not packed.shared:
        return np.frombuffer(packed.data, np.dtype(packed.dtype)).reshape(packed.shape)
    array = shared[packed.shared]
    if array.shape != packed.shape:
        raise ValueError(f"{packed.shared} has {array.nbytes} bytes, and was {packed.shape}")
    return array
