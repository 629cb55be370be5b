"""The writer of checkpoint files: HDF5, so that any HDF5 reader opens them, and at the end a trailer, by which detrain
itself reads them.

HDF5 lays the file out; detrain writes the bytes of the arrays where HDF5 has made room for them, and computes digests
at the same time. Documented byte by byte in docs/reference/format.md.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from detrain.base.byte_digests import digest_bytes
from detrain.base.digest import Array, begin_array, raw_bytes
from detrain.base.dtypes import dtype_name, is_extension
from detrain.base.errors import StoreError
from detrain.store.array_packs import packed
from detrain.store.atomic_file import Sink, replacing
from detrain.store.snapshot import Snapshot
from detrain.store.trailer import FORMAT_VERSION, MAGIC, Extent, ListedArray, Trailer, digest_of_rest

_GROUPS: Final = ("tensors", "rng", "python", "python/arrays", "python/packs")
_CHUNK_BYTES: Final = 1 << 20
"""Bytes that are digested and then written at a time: they are still in the processor's cache."""


def write(path: Path, snapshot: Snapshot) -> str:
    """Write a checkpoint so that `path` either holds all of it or stays as it was; return its digest.

    Raises StoreError.
    """
    _check_space(path, snapshot)
    try:
        with replacing(path) as sink:
            return (snapshot.writes or write_into)(sink, snapshot)
    except OSError as error:
        raise StoreError(
            f"cannot write checkpoint {str(path)!r}: {_reason(error)}",
            "free space or make the folder writable, or give another with --ckpt DIR; earlier checkpoints are intact",
        ) from error


def _check_space(path: Path, snapshot: Snapshot) -> None:
    """Raise StoreError, before a byte is written, if the disk has no room for the checkpoint."""
    needed = snapshot.nbytes + len(snapshot.python) + sum(map(len, snapshot.rng.values()))
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return  # the write will raise the reason
    if free < needed:
        raise StoreError(
            f"cannot write checkpoint {str(path)!r}: it takes {needed} bytes, the disk has {free} left",
            "free space, or give another folder with --ckpt DIR; earlier checkpoints are intact",
        )


def write_into(sink: Sink, snapshot: Snapshot) -> str:
    """Write all arrays, then the manifest, then the trailer; return the manifest's digest, which identifies the whole.

    Raises OSError.
    """
    parts: list[tuple[str, Array, str]] = [("meta", _bytes(msgspec.json.encode(snapshot.meta, order="deterministic")), "")]
    for number, (key, array) in enumerate(snapshot.tensors.items()):
        parts.append((f"tensors/{number:05d} {key.replace('/', ' ')}", array, key))
    parts += [(f"rng/{name}", _bytes(state), "") for name, state in snapshot.rng.items()]
    parts.append(("python/graph", _bytes(snapshot.python), ""))
    apart, packs = packed(snapshot.arrays)
    parts += [(f"python/arrays/{name}", array, "") for name, array in apart.items()]
    parts += [(name, array, "") for name, array in packs]
    listed: list[ListedArray] = []
    extents: list[Extent] = []
    file = _NewFile(sink)
    with file.hdf5:
        for name, array, key in parts:
            if sink.error is not None:
                raise sink.error
            dtype = dtype_name(array.dtype)
            if dtype is None:
                raise ValueError(f"{name!r} has dtype {array.dtype}, whose bytes are not data")
            digest, extent = file.put(name, array)
            listed.append(ListedArray(name, dtype, array.shape, digest, key))
            extents.append(extent)
        manifest = msgspec.json.encode(listed)
        extents.append(file.put("manifest", _bytes(manifest))[1])
        file.put_text("digest", digest_bytes(manifest))
    if sink.error is not None:
        raise sink.error
    end = sink.seek(0, os.SEEK_END)
    trailer = Trailer(
        tuple(extent.offset for extent in extents),
        digest_of_rest(sink.read_at, extents, end),
        digest_bytes(manifest),
        len(manifest),
    )
    sink.seek(end)
    sink.write(trailer.pack())
    return trailer.manifest_digest


class _NewFile:
    """A new HDF5 file, written by h5py's low-level API: the high-level one is five times as slow, and stores the times
    at which groups are made.
    """

    def __init__(self, sink: Sink) -> None:
        import h5py  # slow to import, and reading does without it

        self._h5 = h5py
        self._sink = sink
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, sink)
        self.hdf5: Any = h5py.File(h5py.h5f.create(b"checkpoint", h5py.h5f.ACC_TRUNC, self._timeless("FILE_CREATE"), access))
        self.put_text("format", MAGIC)
        self.hdf5.attrs["version"] = FORMAT_VERSION
        for group in _GROUPS:
            h5py.h5g.create(self.hdf5.id, group.encode(), gcpl=self._timeless("GROUP_CREATE"))

    def put_text(self, name: str, text: str) -> None:
        """Write text of fixed length as an attribute of the file: HDF5 puts other text in a heap without checksums."""
        self.hdf5.attrs.create(name, text.encode(), dtype=self._h5.string_dtype("utf-8", max(len(text.encode()), 1)))

    def put(self, name: str, array: Array) -> tuple[str, Extent]:
        """Write one dataset; return its digest and the extent of its bytes."""
        h5 = self._h5
        kind = h5.h5t.py_create(array.dtype if _is_native(array.dtype) else _opaque(array.dtype), logical=True)
        space = h5.h5s.create_simple(array.shape) if array.ndim else h5.h5s.create(h5.h5s.SCALAR)
        properties = self._timeless("DATASET_CREATE")
        properties.set_alloc_time(h5.h5d.ALLOC_TIME_EARLY)
        # HDF5 fills only arrays without bytes: their elements have 1 byte in the file, as HDF5 has no type of size 0.
        properties.set_fill_time(h5.h5d.FILL_TIME_NEVER if array.nbytes else h5.h5d.FILL_TIME_ALLOC)
        offset = h5.h5d.create(self.hdf5.id, name.encode(), kind, space, properties).get_offset()
        return self._write(array, offset or 0)

    def _write(self, array: Array, offset: int) -> tuple[str, Extent]:
        state, data = begin_array(array.dtype, array.shape), memoryview(raw_bytes(array))
        self._sink.seek(offset)
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = data[start : start + _CHUNK_BYTES]
            state.update(chunk)
            self._sink.write(chunk)
        return state.hexdigest(), Extent(offset if data else 0, len(data))

    def _timeless(self, kind: str) -> Any:
        properties = self._h5.h5p.create(getattr(self._h5.h5p, kind))
        properties.set_obj_track_times(False)
        return properties


def _bytes(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def _is_native(dtype: np.dtype[Any]) -> bool:
    """Return True if HDF5 has the type.

    Of other types (bfloat16, dates, text, ...) the bytes are stored as opaque, and the manifest has the dtype's name.
    """
    sizes = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
    return dtype.itemsize in sizes.get(dtype.kind, ()) and not is_extension(dtype)


def _opaque(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"V{max(dtype.itemsize, 1)}")  # empty text has 0 bytes an item; HDF5 has no type of size 0


def _reason(error: OSError) -> str:
    """Return the reason of an error in one line: h5py writes HDF5's whole internal state into its messages."""
    return os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
