"""Writing a checkpoint file: HDF5, so that any HDF5 reader opens it, and behind that a trailer, by which detrain itself
reads it.

HDF5 lays the file out; detrain writes the bytes of the arrays where HDF5 has made room for them, and takes digests on
the way. Documented byte by byte in docs/reference/format.md.
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
"""So much is digested and then written at a time: it is still in the processor's cache."""


def write(path: Path, snapshot: Snapshot) -> str:
    """Write a checkpoint so that `path` either holds all of it or is as it was; return its digest.

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
    """Refuse, before anything is written, what the disk has no room for. Raises StoreError."""
    needed = snapshot.nbytes + len(snapshot.python) + sum(map(len, snapshot.rng.values()))
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return  # the write will say why
    if free < needed:
        raise StoreError(
            f"cannot write checkpoint {str(path)!r}: it takes {needed} bytes, the disk has {free} left",
            "free space, or give another folder with --ckpt DIR; earlier checkpoints are intact",
        )


def write_into(sink: Sink, snapshot: Snapshot) -> str:
    """Write all arrays, then the manifest, by whose digest the whole is known, then the trailer; return that digest.

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
    """A new HDF5 file, by h5py's low level: the high one is five times as slow, and stores the time at which groups are
    made.
    """

    def __init__(self, sink: Sink) -> None:
        import h5py  # takes a while, and reading does without it

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
        """Write text of fixed length as an attribute of the file: other text lies in a heap without checksums."""
        self.hdf5.attrs.create(name, text.encode(), dtype=self._h5.string_dtype("utf-8", max(len(text.encode()), 1)))

    def put(self, name: str, array: Array) -> tuple[str, Extent]:
        """Write one dataset; return its digest, and where its bytes lie."""
        h5 = self._h5
        kind = h5.h5t.py_create(array.dtype if _is_native(array.dtype) else _opaque(array.dtype), logical=True)
        space = h5.h5s.create_simple(array.shape) if array.ndim else h5.h5s.create(h5.h5s.SCALAR)
        properties = self._timeless("DATASET_CREATE")
        properties.set_alloc_time(h5.h5d.ALLOC_TIME_EARLY)
        # Without the bytes of arrays that have none: HDF5 has no type of size 0, and fills those of size 1 with zeros.
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
    """Return whether HDF5 has the type.

    Of the others (bfloat16, dates, text, ...) the bytes go in, and their name goes along.
    """
    sizes = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
    return dtype.itemsize in sizes.get(dtype.kind, ()) and not is_extension(dtype)


def _opaque(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"V{max(dtype.itemsize, 1)}")  # empty text has no bytes; HDF5 has no type without any


def _reason(error: OSError) -> str:
    """Return why, in a line: h5py writes HDF5's whole internal state into its messages."""
    return os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
