"""The reader of checkpoint files, by their trailers. No byte is used before its digest was found right; HDF5 is not
involved.

A file states the sizes of its arrays: these are checked against the file's own size before memory is allocated.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detrain.base.byte_digests import begin_named, digest_bytes
from detrain.base.errors import CheckpointDamaged, CheckpointTooNew, StoreError
from detrain.store.snapshot import LargeArrays, Meta, Snapshot
from detrain.store.trailer import Extent, ListedArray, Trailer, digest_of_rest, read_trailer

_CHUNK_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 32 << 20
_MOST_THREADS: Final = 4
"""Memory limits the speed of reading: more threads than this gain nothing."""
_GRAPH: Final = "python/graph"
_ARRAYS: Final = "python/arrays/"
if TYPE_CHECKING:
    import numpy as np

    from detrain.base.digest import Array

    New = Callable[[tuple[int, ...], np.dtype[Any]], Array]
    """A function that makes an array of a shape and dtype, to be filled."""


def read_meta(path: Path) -> Meta:
    """Return the metadata of a checkpoint, their digest checked; tensors are not read."""
    with _opened(path) as file:
        return file.meta()


def read(path: Path) -> Snapshot:
    """Read a checkpoint and check every digest. Raises CheckpointDamaged, CheckpointTooNew or StoreError."""
    with opened(path) as snapshot:
        return dataclasses.replace(snapshot, tensors=dict(snapshot.tensors.items()), arrays=dict(snapshot.arrays.items()))


@contextlib.contextmanager
def opened(path: Path, new: New | None = None, told: Callable[[int], None] = lambda _bytes: None) -> Iterator[Snapshot]:
    """Open a checkpoint and check all digests but those of tensors and of large arrays. These are read, and checked,
    when they are asked for: a caller that takes them one by one needs no memory for all.

    `new` makes the arrays of tensors; `told` is called with the number of bytes of each chunk read; both in several
    threads. Raises CheckpointDamaged, CheckpointTooNew or StoreError, also when an array is read later.
    """
    from detrain.store.array_packs import unpacked

    with _descriptor(path) as descriptor:
        with _errors_of(path):
            file = _OpenCheckpoint(descriptor, new, told)
            file.check_rest()
            tensors = {listed.key: name for name, listed in file.listed.items() if name.startswith("tensors/")}
            arrays = {name[len(_ARRAYS) :]: name for name in file.listed if name.startswith(_ARRAYS)}
            late = {*tensors.values(), *(name for name in arrays.values() if file.size_bytes(name) > _CHUNK_BYTES)}
            values = dict(file.arrays([name for name in file.listed if name not in late]))
            rng = {name[len("rng/") :]: values[name].tobytes() for name in values if name.startswith("rng/")}
            held = {key: values[name] for key, name in arrays.items() if name not in late}
            for name, array in unpacked(values):
                if name in arrays:
                    raise CheckpointDamaged(f"has the array {name!r} twice")
                arrays[name], held[name] = "", array
            stored = _StoredArrays(path, file, tensors, {}), _StoredArrays(path, file, arrays, held)
            snapshot = Snapshot(file.meta(), stored[0], rng, values[_GRAPH].tobytes(), stored[1])
        yield snapshot


def verify(path: Path) -> str:
    """Check every digest of a checkpoint, and return the digest of the whole. Raises as `read` does."""
    return look(path, reads_all=True)[0]


def look(path: Path, *, reads_all: bool) -> tuple[str, Meta]:
    """Return the digest and the metadata of a checkpoint, both checked. Its arrays are checked, too; without
    `reads_all`, those of a large file are not. Raises as `read` does.
    """
    with _opened(path) as file:
        file.check_rest()
        for name in file.listed if reads_all or not file.is_large else ():
            file.check(name)
        return file.trailer.manifest_digest, file.meta()


class _OpenCheckpoint:
    """An open checkpoint whose trailer and manifest are whole."""

    def __init__(self, descriptor: int, new: New | None = None, told: Callable[[int], None] = lambda _bytes: None) -> None:
        self._descriptor, self._new, self._told = descriptor, new, told
        self._end = os.fstat(descriptor).st_size
        self.trailer: Trailer = read_trailer(self._read_at, self._end)
        self._end -= self.trailer.size_bytes
        *offsets, manifest_offset = self.trailer.offsets
        self._manifest = Extent(manifest_offset, self.trailer.manifest_bytes)
        if self._manifest.offset + self._manifest.size_bytes > self._end:
            raise CheckpointDamaged("is damaged: its manifest does not lie in it")
        data = self._read_at(self._manifest.offset, self._manifest.size_bytes)
        _check("the manifest", digest_bytes(data), self.trailer.manifest_digest)
        entries = msgspec.json.decode(data, type=list[ListedArray])
        self.listed = {listed.name: listed for listed in entries}
        if len(entries) != len(offsets) or len(self.listed) != len(entries) or not {"meta", _GRAPH} <= self.listed.keys():
            raise CheckpointDamaged("has other arrays than a checkpoint has")
        self._extents = {listed.name: Extent(at, listed.size_bytes()) for at, listed in zip(offsets, entries, strict=True)}

    @property
    def is_large(self) -> bool:
        """True if the file is so large that reading it once less saves noticeable time."""
        return self._end >= _LARGE_BYTES

    def check_rest(self) -> None:
        """Check that the arrays lie in the file without overlaps, and that the bytes between them have their digest."""
        rest = digest_of_rest(self._read_at, [*self._extents.values(), self._manifest], self._end)
        _check("what lies between the arrays", rest.hex(), self.trailer.rest.hex())

    def meta(self) -> Meta:
        """Return the metadata of the checkpoint, their digest checked."""
        self._require_room("meta")
        data = bytearray(self.size_bytes("meta"))
        self._digest("meta", memoryview(data))
        return msgspec.json.decode(data, type=Meta)

    def array(self, name: str) -> Array:
        """Return an array, its digest checked."""
        import numpy as np  # callers that only check files do without

        from detrain.base.dtypes import named_dtype

        listed, extent = self.listed[name], self._extents[name]
        dtype = named_dtype(listed.dtype)
        self._require_room(name)
        # Arrays of the program own their memory, as the arrays did that were saved.
        own = self._new if name.startswith("tensors/") else None
        new = np.zeros if not extent.size_bytes else own or np.empty
        array: Array = new(listed.shape, dtype)
        self._digest(name, array.reshape(-1).view(np.uint8).data if extent.size_bytes else memoryview(b""))
        return array

    def size_bytes(self, name: str) -> int:
        """Return the size of an array in bytes."""
        return self._extents[name].size_bytes

    def read_into(self, name: str, memory: Array) -> None:
        """Read the bytes of an array into memory [byte] uint8 of its size, and check them. If this raises, the memory
        may have been overwritten in part."""
        self._require_room(name)
        if memory.nbytes != self.size_bytes(name):
            raise CheckpointDamaged(f"has an array {name!r} of {self.size_bytes(name)} bytes where {memory.nbytes} belong")
        self._digest(name, memory.data)

    def _require_room(self, name: str) -> None:
        extent, shape = self._extents[name], self.listed[name].shape
        if extent.offset + extent.size_bytes > self._end or math.prod(shape) > max(extent.size_bytes, self._end):
            raise CheckpointDamaged(f"has an array {name!r} of shape {shape}, more than there is room for")

    def arrays(self, names: Iterable[str]) -> Iterator[tuple[str, Array]]:
        """Yield arrays by name, their digests checked. Several threads read those of a large file ahead."""
        if not self.is_large:
            yield from ((name, self.array(name)) for name in names)
            return
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
        import concurrent.futures  # slow to import, for large checkpoints alone

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            ahead: collections.deque[tuple[str, concurrent.futures.Future[Array]]] = collections.deque()
            for name in names:
                ahead.append((name, pool.submit(self.array, name)))
                if len(ahead) > threads:
                    first, array = ahead.popleft()
                    yield first, array.result()
            yield from ((each, array.result()) for each, array in ahead)

    def check(self, name: str) -> None:
        """Check the digest of an array, in little memory."""
        self._digest(name, None)

    def _digest(self, name: str, into: memoryview | None) -> None:
        listed, extent = self.listed[name], self._extents[name]
        state = begin_named(listed.dtype, listed.shape)
        scratch = memoryview(bytearray(min(_CHUNK_BYTES, extent.size_bytes))) if into is None else into[:0]
        for start in range(0, extent.size_bytes, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, extent.size_bytes - start)
            chunk = scratch[:length] if into is None else into[start : start + length]
            self._read_into(chunk, extent.offset + start)
            state.update(chunk)
            self._told(length)
        _check(name, state.hexdigest(), listed.digest)

    def _read_at(self, offset: int, count: int) -> bytes:
        data = bytearray(count)
        self._read_into(memoryview(data), offset)
        return bytes(data)

    def _read_into(self, chunk: memoryview, offset: int) -> None:
        done = 0
        while done < len(chunk):
            count = os.preadv(self._descriptor, [chunk[done:]], offset + done)
            if not count:
                raise CheckpointDamaged("became shorter while it was read")
            done += count


class _StoredArrays(LargeArrays):
    """Tensors or arrays of an open checkpoint, by key: those that are not `held` are read when they are asked for, by
    their names in the file."""

    def __init__(self, path: Path, file: _OpenCheckpoint, names: Mapping[str, str], held: Mapping[str, Array]) -> None:
        self._path, self._file, self._names, self._held = path, file, names, held

    def __getitem__(self, key: str) -> Array:
        if key in self._held:
            return self._held[key]
        with _errors_of(self._path):
            return self._file.array(self._names[key])

    def __contains__(self, key: object) -> bool:
        return key in self._names  # Mapping's own method would read the array

    def size_bytes(self, key: str) -> int:
        return self._held[key].nbytes if key in self._held else self._file.size_bytes(self._names[key])

    def read_into(self, key: str, memory: Array) -> None:
        if key in self._held:
            memory[:] = self._held[key]
            return
        with _errors_of(self._path):
            self._file.read_into(self._names[key], memory)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def items(self) -> ItemsView[str, Array]:
        """Return a view of the keys and arrays that reads ahead."""
        return _Items(self)

    def ahead(self) -> Iterator[tuple[str, Array]]:
        """Yield each key and array in turn; threads may read the next arrays already."""
        arrays = self._file.arrays(name for key, name in self._names.items() if key not in self._held)
        for key in self._names:
            if key in self._held:
                yield key, self._held[key]
                continue
            with _errors_of(self._path):
                _name, array = next(arrays)
            yield key, array


class _Items(ItemsView[str, "Array"]):
    _mapping: _StoredArrays

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        return self._mapping.ahead()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_OpenCheckpoint]:
    with _descriptor(path) as descriptor, _errors_of(path):
        yield _OpenCheckpoint(descriptor)


@contextlib.contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    """Open a checkpoint's file and yield its descriptor. Raises StoreError."""
    if not path.is_file():
        raise StoreError(f"no checkpoint at {str(path)!r}", "`detrain ckpt ls DIR` lists those of a folder")
    with _errors_of(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turn errors raised inside this context into StoreErrors that name the file."""
    try:
        yield
    except CheckpointTooNew as error:
        todo = "update detrain, or start anew with --fresh; the file is left as it is"
        raise CheckpointTooNew(f"checkpoint {str(path)!r} {error.what}", todo) from error
    except PermissionError as error:
        raise StoreError(f"checkpoint {str(path)!r} cannot be read: {error.strerror}", "make the file readable") from error
    except OSError as error:
        raise _damaged(path, f"cannot be read: {error.strerror or error}") from error
    except (CheckpointDamaged, ValueError, MemoryError, RecursionError, msgspec.MsgspecError) as error:
        # The digests are right, but the values are ones that no array can have: somebody made the file by hand.
        raise _damaged(path, error.what if isinstance(error, CheckpointDamaged) else f"is none: {error}") from error


def _damaged(path: Path, what: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"checkpoint {str(path)!r} {what}",
        "detrain goes back to the newest good one; keep the file if you want to look at it",
    )


def _check(name: str, got: str, expected: str) -> None:
    if got != expected:
        raise CheckpointDamaged(f"is damaged: {name} has digest {got}, written as {expected}")
