"""The program's output while an experiment runs: its text on stdout and stderr between one cut and the next, and the
files that it has written in the end.

The text is read from the files behind descriptors 1 and 2, so that it includes the output of C code. If these lead
elsewhere (to a terminal, a pipe), no text is taken.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import re
import stat
import zipfile
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
import xxhash

from detrain.base import messages
from detrain.base.cursor import Address
from detrain.base.digest import Array
from detrain.base.dtypes import is_extension

BEHIND: Final = 1 << 40
"""Stands for the batch in output behind an epoch's last step, and for the phase in output behind the last training."""
KEEPS_VARIABLES: Final = "DETRAIN_KEEPS_VARIABLES"
"""The environment variable that tells an experiment to write its final variables beside its log."""
VARIABLES_SUFFIX: Final = ".npz"
_IN_BYTES: Final = re.compile(r"(?P<name>.+) \w+\.(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]")
"""The name of a tensor that PyTorch's adapter gives as bytes."""
_MOST: Final = 1 << 16
"""Number of bytes of one stretch that are kept as text; from the rest, only a digest is kept."""
_PIECE: Final = 1 << 20


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """The program's output in one stretch: before the body of a step, or in it."""

    at: Address
    is_body: bool = False
    out: str = ""
    err: str = ""

    @property
    def place(self) -> tuple[int, int, int, bool]:
        """The place of the output in the run, for comparison."""
        return *self.at, self.is_body


class WrittenFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that the program has written, as it is in the end."""

    path: str
    digest: str
    """xxh3-128, hex."""
    last: Address | None = None
    """The body that last opened the file for writing, if one did."""


class OutputStreams:
    """The text on stdout and stderr of this process."""

    def __init__(self) -> None:
        self._at = {number: os.fstat(number).st_size for number in (1, 2) if _can_be_read(number)}
        self._flush = ctypes.CDLL(None).fflush if self._at else None

    @property
    def are_seen(self) -> bool:
        """Whether the text of either can be read back."""
        return bool(self._at)

    def take(self) -> tuple[str, str]:
        """Return the new text on stdout and on stderr since the last call."""
        if self._flush is None:
            return "", ""
        messages.flush_output()
        self._flush(None)
        return self._new(1), self._new(2)

    def _new(self, number: int) -> str:
        before = self._at.get(number)
        if before is None:
            return ""
        now = self._at[number] = os.fstat(number).st_size
        if now <= before:
            return ""
        text = os.pread(number, min(now - before, _MOST), before).decode(errors="replace")
        if now - before <= _MOST:
            return text
        rest = xxhash.xxh3_128()
        for start in range(before + _MOST, now, _PIECE):
            rest.update(os.pread(number, min(_PIECE, now - start), start))
        return f"{text}\nand {now - before - _MOST} bytes more, {rest.hexdigest()}"


def _can_be_read(number: int) -> bool:
    try:
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        return is_file and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    except OSError:
        return False


def digests_of(paths: Mapping[str, Address | None]) -> list[WrittenFile]:
    """Return the files as they are now, in the order of their paths, without those that are gone."""
    return [WrittenFile(path, digest, last) for path, last in sorted(paths.items()) if (digest := _digest(path))]


def _digest(path: str) -> str:
    state = xxhash.xxh3_128()
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        while piece := os.read(descriptor, _PIECE):
            state.update(piece)
    except OSError:  # a folder
        return ""
    finally:
        os.close(descriptor)
    return state.hexdigest()


def write_variables(path: str, arrays: Mapping[str, Array]) -> None:
    """Write arrays as an `.npz` file; dtypes unknown to NumPy (bfloat16) as float32, which holds all their values."""
    with (
        io.FileIO(path, "w") as file,
        zipfile.ZipFile(file, "w") as archive,
    ):  # not `open`: detrain follows the files that it opens as the program's own
        for name, array in sorted(arrays.items()):
            known_name, known = _readable(name, array)
            with archive.open(f"{known_name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, known, allow_pickle=False)


def _readable(name: str, array: Array) -> tuple[str, Array]:
    """Return name and array as the user knows them: an array given as bytes gets the dtype and shape in its name."""
    told = _IN_BYTES.fullmatch(name)
    if told is None:
        return name, array.astype(np.float32) if is_extension(array.dtype) else np.asarray(array)
    kind, shape = told["dtype"], tuple(int(size) for size in told["shape"].split(", ") if size)
    if kind == "bfloat16":
        return told["name"], (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    try:
        return told["name"], array.view(kind).reshape(shape)
    except TypeError:  # a dtype that NumPy does not know
        return name, array
