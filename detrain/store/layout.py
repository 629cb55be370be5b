"""The checkpoint file: its HDF5 layout, its digests, and the atomic write. Documented byte by byte in docs/format.md.

Data only: nothing in a file is ever unpickled, evaluated or imported, and links to other files are refused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import h5py
import msgspec
import numpy as np

from detrain.errors import CheckpointDamaged, CheckpointTooNew, StoreError
from detrain.runtime.digest import Array, digest_array, digest_bytes

FORMAT_VERSION: Final = 1
_MAGIC: Final = "detrain checkpoint"
_GROUPS: Final = ("tensors", "rng", "python")
_DIGEST: Final = "xxh3_128"


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
    try:
        digest = _write_file(temporary, snapshot)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(
            f"cannot write checkpoint {str(path)!r}: {error}",
            "free space or make the folder writable, or give another with --ckpt DIR; earlier checkpoints are intact",
        ) from error
    return digest


def read_meta(path: Path) -> Meta:
    """Return what a checkpoint says about itself, its digest checked; tensors are not read."""
    with _open(path) as file:
        return _read_meta(path, file)


def read(path: Path) -> Snapshot:
    """Read a checkpoint and check every digest. Raises CheckpointDamaged, CheckpointTooNew or StoreError."""
    with _open(path) as file:
        meta = _read_meta(path, file)
        values: dict[str, Array] = {}
        for name, dataset in _datasets(path, file):
            array = _load(path, name, dataset)
            _check(path, name, digest_array(array), _attribute(path, dataset, _DIGEST))
            values[name] = array
        tensors = {_attribute(path, file[name], "key"): values[name] for name in values if name.startswith("tensors/")}
        rng = {name[4:]: values[name].tobytes() for name in values if name.startswith("rng/")}
        arrays = {name[len("python/arrays/") :]: values[name] for name in values if name.startswith("python/arrays/")}
        return Snapshot(meta, tensors, rng, values["python/graph"].tobytes(), arrays)


def verify(path: Path) -> str:
    """Check every digest of a checkpoint, and return the digest of the whole. Raises as `read` does."""
    read(path)
    with _open(path) as file:
        return str(_attribute(path, file, "digest"))


def _write_file(path: Path, snapshot: Snapshot) -> str:
    meta = msgspec.json.encode(snapshot.meta, order="deterministic").decode()
    with h5py.File(path, "x", libver=("v110", "v114"), track_order=False) as file:
        file.attrs["format"] = _MAGIC
        file.attrs["version"] = FORMAT_VERSION
        file.create_dataset("meta", data=np.frombuffer(meta.encode(), np.uint8), track_times=False)
        lines = [meta]
        for group in _GROUPS:
            file.create_group(group)
        for number, (key, array) in enumerate(snapshot.tensors.items()):
            name = f"tensors/{number:05d} {key.replace('/', ' ')}"
            lines.append(_put(file, name, array, {"key": key}))
        for name, packed in snapshot.rng.items():
            lines.append(_put(file, f"rng/{name}", np.frombuffer(packed, np.uint8)))
        lines.append(_put(file, "python/graph", np.frombuffer(snapshot.python, np.uint8)))
        for name, array in snapshot.arrays.items():
            lines.append(_put(file, f"python/arrays/{name}", array))
        digest = _tree_digest(lines)
        file.attrs["digest"] = digest
    return digest


def _put(file: Any, name: str, array: Array, attributes: Mapping[str, str] | None = None) -> str:
    """Write one dataset with its digest; return its line in the tree digest."""
    digest = digest_array(array)
    native = array.dtype.kind != "V"  # bfloat16 and the like have no HDF5 type: their bytes go in, their name goes along
    stored = array if native else np.ascontiguousarray(array).view(np.dtype(f"V{array.dtype.itemsize}"))
    dataset = file.create_dataset(name, data=stored, track_times=False)
    dataset.attrs[_DIGEST] = digest
    if not native:
        dataset.attrs["dtype"] = array.dtype.name
    for key, value in (attributes or {}).items():
        dataset.attrs[key] = value
    return _line(name, array, digest)


def _line(name: str, array: Array, digest: str) -> str:
    return f"{name} {array.dtype.name} {array.shape} {digest}"


def _tree_digest(lines: list[str]) -> str:
    return digest_bytes("\n".join([lines[0], *sorted(lines[1:])]).encode())


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise StoreError(f"no checkpoint at {str(path)!r}", "`detrain ckpt ls DIR` lists those of a folder")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (StoreError, CheckpointTooNew):
        raise
    # h5py turns a damaged structure into any of these, depending on the byte that is wrong.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, UnicodeError, MemoryError) as error:
        raise CheckpointDamaged(
            f"checkpoint {str(path)!r} cannot be read: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            "it is truncated or damaged; detrain goes back to the newest good one",
        ) from error


def _read_meta(path: Path, file: Any) -> Meta:
    if file.attrs.get("format") != _MAGIC:
        raise CheckpointDamaged(f"{str(path)!r} is not a checkpoint of detrain", "give the file or folder that detrain wrote")
    version = int(file.attrs["version"])
    if version > FORMAT_VERSION:
        raise CheckpointTooNew(
            f"checkpoint {str(path)!r} has format {version}; this detrain reads up to {FORMAT_VERSION}",
            "update detrain, or start anew with --fresh; the file is left as it is",
        )
    text = file["meta"][()].tobytes()
    lines = [text.decode()]
    for name, dataset in _datasets(path, file):
        dtype = str(dataset.attrs.get("dtype", dataset.dtype.name))
        lines.append(f"{name} {dtype} {dataset.shape} {_attribute(path, dataset, _DIGEST)}")
    _check(path, "the tree of names, shapes and digests", _tree_digest(lines), _attribute(path, file, "digest"))
    return msgspec.json.decode(text, type=Meta)


def _datasets(path: Path, file: Any) -> list[tuple[str, Any]]:
    """Return every dataset under the known groups; links that leave the file are refused, not followed."""
    found: list[tuple[str, Any]] = []

    def walk(group: Any, prefix: str) -> None:
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise CheckpointDamaged(f"checkpoint {str(path)!r} has a link at {prefix + name!r}", "detrain follows none")
            item = group[name]
            if isinstance(item, h5py.Group):
                walk(item, f"{prefix}{name}/")
            else:
                found.append((f"{prefix}{name}", item))

    for group in _GROUPS:
        walk(file[group], f"{group}/")
    return found


def _load(path: Path, name: str, dataset: Any) -> Array:
    if dataset.external or dataset.is_virtual:
        raise CheckpointDamaged(f"dataset {name!r} of {str(path)!r} lies outside the file", "detrain follows no links")
    if dataset.chunks is None and dataset.nbytes > path.stat().st_size:
        raise CheckpointDamaged(f"dataset {name!r} of {str(path)!r} claims {dataset.nbytes} bytes, more than the file has")
    array: Array = np.asarray(dataset[()])
    dtype = dataset.attrs.get("dtype")
    return array if dtype is None else array.view(_named_dtype(str(dtype)))


def _named_dtype(name: str) -> np.dtype[Any]:
    """Return a dtype that NumPy itself lacks, from ml_dtypes (which every framework brings along)."""
    import ml_dtypes

    kinds: dict[str, Callable[[], np.dtype[Any]]] = {
        known: lambda known=known: np.dtype(getattr(ml_dtypes, known))  # type: ignore[misc]
        for known in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4")
    }
    if name not in kinds:
        raise CheckpointDamaged(f"unknown dtype {name!r}", f"known besides NumPy's own: {', '.join(kinds)}")
    return kinds[name]()


def _check(path: Path, name: str, got: str, expected: str) -> None:
    if got != expected:
        raise CheckpointDamaged(
            f"checkpoint {str(path)!r} is damaged: {name} has digest {got}, written as {expected}",
            "detrain goes back to the newest good one; keep the file if you want to look at it",
        )


def _attribute(path: Path, item: Any, name: str) -> str:
    value = item.attrs.get(name)
    if not isinstance(value, str):
        raise CheckpointDamaged(f"checkpoint {str(path)!r}: {item.name!r} lacks its attribute {name!r}", "it is damaged")
    return value


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
