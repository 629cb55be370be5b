"""The points in TensorBoard's event files: tag, step and value. Each process writes its own files, and they contain
times.

A file consists of records `length (uint64) | checksum | Event | checksum` (TFRecord). In an Event (protocol buffers,
`tensorflow/core/util/event.proto`) field 2 is the step, and 5 the summary: its values (field 1) hold tag and value.
Wall time, graphs and the rest are left out.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from detrain.base.byte_digests import digest_bytes
from detrain.python.outside.event_files import MARK

_STEP, _SUMMARY, _VALUE = 2, 5, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
EventPoint = tuple[int, bytes]
"""The step, and the value with its tag."""


def is_event_file(name: str) -> bool:
    """Return True if a file's name is that of one of TensorBoard's event files."""
    return MARK in PurePosixPath(name).name


def points_by_folder(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return a digest of the points in each folder's event files. `files`: their bytes by name.

    A resumed process runs the code before its loop again, which writes the same points as in the first process: the
    points at the start of a later file that are equal to the first file's are left out.
    """
    by_folder: dict[str, list[list[EventPoint]]] = {}
    for name in sorted(files, key=_in_time):
        by_folder.setdefault(str(PurePosixPath(name).parent), []).append(list(points_in(files[name])))
    return {f"{folder}/*{MARK}* (points)": _digest(_merged(each)) for folder, each in by_folder.items()}


def points_in(data: bytes) -> Iterator[EventPoint]:
    """Yield the points of an event file, up to its last complete record."""
    for event in _records(data):
        fields = list(_fields(event))
        step = next((value for number, value in fields if number == _STEP and isinstance(value, int)), 0)
        for number, value in fields:
            if number == _SUMMARY and isinstance(value, bytes):
                yield from ((step, inner) for kind, inner in _fields(value) if kind == _VALUE and isinstance(inner, bytes))


def _in_time(name: str) -> tuple[str, list[int | str]]:
    """Return a sort key: names of event files hold the second of their creation, then host, process and a number."""
    path = PurePosixPath(name)
    return str(path.parent), [int(part) if part.isdecimal() else part for part in path.name.partition(MARK)[2].split(".")][:1]


def _merged(files: list[list[EventPoint]]) -> Iterable[EventPoint]:
    first = files[0]
    yield from first
    for later in files[1:]:
        same = next((at for at, (one, other) in enumerate(zip(first, later, strict=False)) if one != other), None)
        yield from later[min(len(first), len(later)) if same is None else same :]


def _digest(points: Iterable[EventPoint]) -> str:
    counted = sorted(Counter(points).items())
    return digest_bytes(b"".join(struct.pack("<qqq", step, len(value), count) + value for (step, value), count in counted))


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            return
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the (number, value) of each field in a message of protocol buffers; numbers of fixed width as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value - (1 << 64) if value >> 63 else value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            return
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    return value, at
