"""The checkpoint file: its HDF5 layout, its digests, and the atomic write. Documented byte by byte in docs/format.md.

Data only: nothing in a file is ever unpickled, evaluated or imported, and links to other files are refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import h5py
import msgspec
import numpy as np

from detrain.errors import CheckpointDamaged, CheckpointTooNew, StoreError
from detrain.runtime.cursor import FileState
from detrain.runtime.digest import Array, digest_array, digest_bytes
from detrain.runtime.dtypes import dtype_name, is_extension, named_dtype
from detrain.store.sink import Sink, new_file, sync_folder

FORMAT_VERSION: Final = 1
_MAGIC: Final = "detrain checkpoint"
_GROUPS: Final = ("tensors", "rng", "python", "python/arrays")
_GRAPH: Final = "python/graph"
_MANIFEST: Final = "manifest"


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says about itself. Times and process ids are not part of it: equal states give equal bytes."""

    phase: int
    epoch: int
    batch: int
    cut: str
    run: int
    program: str
    arguments: tuple[str, ...]
    sources: dict[str, str]
    """Digest of the syntax tree of each source file of the program, by its path relative to the program's folder."""
    environment: dict[str, str]
    seed: int
    batches_done: int
    """Batches done since the start of the run, over all phases and epochs."""
    journal_bytes: int
    """Length of the journal at this cut."""
    frameworks: dict[str, msgspec.Raw] = {}
    not_captured: tuple[str, ...] = ()
    item: str = ""
    """What the epoch loop goes over at this cut, where it is a number or text."""
    files: dict[str, FileState] = {}
    """Files that the program writes, by path."""
    folders: tuple[str, ...] = ()
    """Folders that the program has made."""
    guard: dict[str, tuple[int, float]] = {}
    """What the guard has seen: steps, and the largest norm, by group of variables."""
    outside: dict[str, list[str]] = {}
    """What the program has read of clock and randomness outside of its loops, by kind, in order."""


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the manifest says of one dataset. `key` is the full name of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at a cut: `meta`, framework tensors by key, packed random streams by name, the Python object graph.

    `python` is the codec's byte string, `arrays` the arrays it refers to by number.
    """

    meta: Meta
    tensors: Mapping[str, Array]
    rng: Mapping[str, bytes]
    python: bytes
    arrays: Mapping[str, Array] = field(default_factory=dict)


def write(path: Path, snapshot: Snapshot) -> str:
    """Write a checkpoint so that `path` either holds all of it or does not exist; return its digest.

    Temporary name in the same folder, write, fsync, rename, fsync of the folder. Raises StoreError; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _check_space(path, snapshot)
    try:
        temporary.unlink(missing_ok=True)  # of a process that was killed and had our number, as in a container
        with new_file(temporary) as sink:
            digest = _write_into(sink, snapshot)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(
            f"cannot write checkpoint {str(path)!r}: {_reason(error)}",
            "free space or make the folder writable, or give another with --ckpt DIR; earlier checkpoints are intact",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return digest


def _check_space(path: Path, snapshot: Snapshot) -> None:
    """Refuse, before anything is written, what the disk has no room for. Raises StoreError."""
    arrays = (*snapshot.tensors.values(), *snapshot.arrays.values())
    needed = sum(array.nbytes for array in arrays) + len(snapshot.python) + sum(map(len, snapshot.rng.values()))
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return  # the write will say why
    if free < needed:
        raise StoreError(
            f"cannot write checkpoint {str(path)!r}: it takes {needed} bytes, the disk has {free} left",
            "free space, or give another folder with --ckpt DIR; earlier checkpoints are intact",
        )


def read_meta(path: Path) -> Meta:
    """Return what a checkpoint says about itself, its digest checked; tensors are not read."""
    with _open(path) as file:
        return _read_meta(path, file, _read_manifest(path, file))


def read(path: Path) -> Snapshot:
    """Read a checkpoint and check every digest. Raises CheckpointDamaged, CheckpointTooNew or StoreError."""
    with _open(path) as file:
        manifest = _read_manifest(path, file)
        meta = _read_meta(path, file, manifest)
        datasets = _datasets(path, file)
        if set(datasets) != set(manifest):
            raise _damaged(path, f"has other arrays than its manifest says: {sorted(set(datasets) ^ set(manifest))[:4]}")
        values = {name: _load(path, manifest[name], datasets[name]) for name in manifest}
        tensors = {entry.key: values[name] for name, entry in manifest.items() if name.startswith("tensors/")}
        rng = {name[4:]: values[name].tobytes() for name in values if name.startswith("rng/")}
        arrays = {name[len("python/arrays/") :]: values[name] for name in values if name.startswith("python/arrays/")}
        return Snapshot(meta, tensors, rng, values[_GRAPH].tobytes(), arrays)


def verify(path: Path) -> str:
    """Check every digest of a checkpoint, and return the digest of the whole. Raises as `read` does."""
    read(path)
    with _open(path) as file:
        return _text(path, file, "digest")


def _write_into(sink: Sink, snapshot: Snapshot) -> str:
    """Write all datasets, and last the manifest, by whose digest the whole is known."""
    meta = msgspec.json.encode(snapshot.meta, order="deterministic")
    with _new_hdf5(sink) as file:
        _put_text(file, "format", _MAGIC)
        file.attrs["version"] = FORMAT_VERSION
        for group in _GROUPS:
            h5py.h5g.create(file.id, group.encode(), gcpl=_timeless(h5py.h5p.GROUP_CREATE))
        entries = [_put(file, "meta", _bytes(meta))]
        for number, (key, array) in enumerate(snapshot.tensors.items()):
            if sink.error is not None:
                raise sink.error
            entries.append(_put(file, f"tensors/{number:05d} {key.replace('/', ' ')}", array, key))
        entries += [_put(file, f"rng/{name}", _bytes(packed)) for name, packed in snapshot.rng.items()]
        entries.append(_put(file, _GRAPH, _bytes(snapshot.python)))
        entries += [_put(file, f"python/arrays/{name}", array) for name, array in snapshot.arrays.items()]
        manifest = msgspec.json.encode(entries)
        _put(file, _MANIFEST, _bytes(manifest))
        digest = digest_bytes(manifest)
        _put_text(file, "digest", digest)
    return digest


def _new_hdf5(sink: Sink) -> Any:
    """Return a new HDF5 file. By h5py's low level, because the high one cannot leave out the time at which groups are made."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, sink)
    return h5py.File(h5py.h5f.create(b"checkpoint", h5py.h5f.ACC_TRUNC, _timeless(h5py.h5p.FILE_CREATE), access))


def _timeless(kind: Any) -> Any:
    properties = h5py.h5p.create(kind)
    properties.set_obj_track_times(False)
    return properties


def _put(file: Any, name: str, array: Array, key: str = "") -> _Entry:
    """Write one dataset; return what the manifest says of it. By h5py's low level: the high one takes five times as long."""
    dtype = dtype_name(array.dtype)
    if dtype is None:
        raise ValueError(f"{name!r} has dtype {array.dtype}, whose bytes are not data")
    stored = np.asarray(array, order="C")
    if not _is_native(array.dtype):
        stored = _view(stored, _opaque(array.dtype), array.shape)
    space = h5py.h5s.create_simple(array.shape) if array.ndim else h5py.h5s.create(h5py.h5s.SCALAR)
    kind = h5py.h5t.py_create(stored.dtype, logical=True)
    dataset = h5py.h5d.create(file.id, name.encode(), kind, space, _timeless(h5py.h5p.DATASET_CREATE))
    if stored.size:
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, stored)
    return _Entry(name, dtype, array.shape, digest_array(array), key)


def _bytes(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def _put_text(item: Any, name: str, value: str) -> None:
    """Write a text attribute. Of fixed length: HDF5 keeps others in a heap without checksums, where it can hang on a wrong bit."""
    data = value.encode()
    item.attrs.create(name, data, dtype=h5py.string_dtype("utf-8", max(len(data), 1)))


def _is_native(dtype: np.dtype[Any]) -> bool:
    """Return whether HDF5 has the type. Of the others (bfloat16, dates, text, ...) the bytes go in, and their name goes along."""
    sizes = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
    return dtype.itemsize in sizes.get(dtype.kind, ()) and not is_extension(dtype)


def _opaque(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"V{max(dtype.itemsize, 1)}")  # empty text has no bytes; HDF5 has no type without any


def _view(array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return the bytes of a contiguous array as another type, and of what has no bytes a new array."""
    if 0 in (array.itemsize, dtype.itemsize):
        return np.zeros(shape, dtype)
    return array.reshape(-1).view(dtype).reshape(shape)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise StoreError(f"no checkpoint at {str(path)!r}", "`detrain ckpt ls DIR` lists those of a folder")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except StoreError:
        raise
    except PermissionError as error:
        raise StoreError(f"checkpoint {str(path)!r} cannot be read: {_reason(error)}", "make the file readable") from error
    except Exception as error:  # an edge: HDF5 and h5py raise anything on a damaged structure, depending on the byte that is wrong
        raise CheckpointDamaged(
            f"checkpoint {str(path)!r} cannot be read: {type(error).__name__}: {_reason(error)}",
            "it is truncated or damaged; detrain goes back to the newest good one",
        ) from error


def _read_manifest(path: Path, file: Any) -> dict[str, _Entry]:
    """Return what the checkpoint says of its datasets, by name, in the order in which they were written."""
    if "format" not in file.attrs or _text(path, file, "format") != _MAGIC:
        raise CheckpointDamaged(f"{str(path)!r} is not a checkpoint of detrain", "give the file or folder that detrain wrote")
    version = file.attrs["version"]
    if not isinstance(version, np.integer) or version < 1:
        raise _damaged(path, f"has format {version!r}")
    if version > FORMAT_VERSION:
        raise CheckpointTooNew(
            f"checkpoint {str(path)!r} has format {version}; this detrain reads up to {FORMAT_VERSION}",
            "update detrain, or start anew with --fresh; the file is left as it is",
        )
    data = _read_bytes(path, file, _MANIFEST)
    _check(path, "the manifest", digest_bytes(data), _text(path, file, "digest"))
    return {entry.name: entry for entry in msgspec.json.decode(data, type=list[_Entry])}


def _read_meta(path: Path, file: Any, manifest: dict[str, _Entry]) -> Meta:
    data = _read_bytes(path, file, "meta")
    _check(path, "meta", digest_array(_bytes(data)), manifest["meta"].digest)
    return msgspec.json.decode(data, type=Meta)


def _read_bytes(path: Path, file: Any, name: str) -> bytes:
    dataset = _child(path, file, name)
    _check_place(path, name, dataset, path.stat().st_size)
    return bytes(np.asarray(dataset[()], np.uint8).tobytes())


def _datasets(path: Path, file: Any) -> dict[str, Any]:
    """Return the datasets by name. Those whose bytes are not in this file, or that claim more than it has, are refused."""
    found = {name: _child(path, file, name) for name in ("meta", _GRAPH)}
    for group in ("tensors", "rng", "python/arrays"):
        names = _child(path, file, group)
        for name in names:
            found[f"{group}/{name}"] = _child(path, names, name)
    size_bytes = path.stat().st_size
    for name, dataset in found.items():
        size_bytes -= _check_place(path, name, dataset, size_bytes)
    return found


def _check_place(path: Path, name: str, dataset: Any, limit_bytes: int) -> int:
    """Return the size in bytes of a dataset that lies whole in the file; refuse any other."""
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
        raise _damaged(path, f"has no array at {name!r}")
    if dataset.id.get_create_plist().get_layout() != h5py.h5d.CONTIGUOUS or dataset.external or dataset.is_virtual:
        raise _damaged(path, f"has a dataset {name!r} that is compressed, in pieces or outside of the file")
    size = int(dataset.nbytes)
    if size > limit_bytes or dataset.id.get_storage_size() != size:
        raise _damaged(path, f"has a dataset {name!r} that claims {size} bytes, more than there are")
    return size


def _child(path: Path, parent: Any, name: str) -> Any:
    """Return what lies at a path below a group; links that could lead out of the file are refused, not followed."""
    for part in name.split("/"):
        if not isinstance(parent, h5py.Group):
            raise _damaged(path, f"has no group {parent.name!r}")
        if not isinstance(parent.get(part, getlink=True), h5py.HardLink):
            raise _damaged(path, f"has a link at {part!r}; detrain follows none")
        parent = parent[part]
    return parent


def _load(path: Path, entry: _Entry, dataset: Any) -> Array:
    """Return an array as the manifest describes it, its digest checked."""
    try:
        dtype = named_dtype(entry.dtype)
    except ValueError as error:
        raise _damaged(path, f"has a dataset {entry.name!r} whose dtype {error}") from error
    if dataset.dtype != (dtype if _is_native(dtype) else _opaque(dtype)) or dataset.shape != entry.shape:
        raise _damaged(path, f"has a dataset {entry.name!r} of type {dataset.dtype}{dataset.shape} that claims to be {dtype}")
    try:
        array: Array = np.empty(dataset.shape, dataset.dtype)
    except (ValueError, MemoryError) as error:
        raise _damaged(path, f"has a dataset {entry.name!r} of {dataset.nbytes} bytes, more than memory has") from error
    if array.size:
        dataset.read_direct(array)
    if array.dtype != dtype:
        array = _view(array, dtype, array.shape)
    _check(path, entry.name, digest_array(array), entry.digest)
    return array


def _check(path: Path, name: str, got: str, expected: str) -> None:
    if got != expected:
        raise _damaged(path, f"is damaged: {name} has digest {got}, written as {expected}")


def _text(path: Path, item: Any, name: str) -> str:
    """Return a text attribute."""
    if name not in item.attrs:
        raise _damaged(path, f"lacks the attribute {name!r} of {item.name!r}")
    attribute = item.attrs.get_id(name)
    kind = attribute.get_type()
    # Before it is read: text of variable length lies in the heap that HDF5 does not check.
    if not isinstance(kind, h5py.h5t.TypeStringID) or kind.is_variable_str() or attribute.shape != ():
        raise _damaged(path, f"has an attribute {name!r} of {item.name!r} that is not text of fixed length")
    value: bytes | str = item.attrs[name]
    return value if isinstance(value, str) else value.decode()


def _damaged(path: Path, what: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"checkpoint {str(path)!r} {what}",
        "detrain goes back to the newest good one; keep the file if you want to look at it",
    )


def _reason(error: Exception) -> str:
    """Return why, in a line: HDF5 writes its whole internal state into the messages of system errors."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error).partition("\n")[0]
