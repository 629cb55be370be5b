"""The tensors of a checkpoint for other programs, as `.npz`, `.safetensors` or Keras's weights files.

Neither TensorFlow nor Keras is loaded for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from detrain.base.digest import Array, raw_bytes
from detrain.base.dtypes import dtype_name, is_extension
from detrain.base.errors import StoreError, UsageError
from detrain.export import keras as models
from detrain.export.object_tensors import tensors_of
from detrain.store import Meta, read
from detrain.store.atomic_file import Sink, exporting
from detrain.store.catalogue import is_ours

FORMATS: Final = {"keras": ".weights.h5", "npz": ".npz", "safetensors": ".safetensors"}
"""The ending of the files of each format."""
_SAFETENSORS: Final = {
    "|b1": "BOOL", "|i1": "I8", "|u1": "U8", "<i2": "I16", "<u2": "U16", "<i4": "I32", "<u4": "U32", "<i8": "I64", "<u8": "U64",
    "<f2": "F16", "<f4": "F32", "<f8": "F64", "<c8": "C64",
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""What safetensors calls the types that it knows."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that was written."""

    path: Path
    tensors: int
    size_bytes: int
    """Of the tensors."""
    model: str = ""
    """Keras's name of the model whose weights they are; empty for all tensors."""


def export(file: Path, form: str, output: Path | None = None, match: str = "") -> Iterator[Exported]:
    """Write the tensors of a checkpoint to the format `form`, one of `FORMATS`; yields each file when it is there.

    `match` is in the names of those that are written; for `keras` in the names of models, each of which gets a file of
    its own. `output` is the file to write, by default `file` with another ending. Raises UsageError, CannotExport,
    StoreError; a file that is not written whole is not left behind.
    """
    snapshot = read(file)
    target = output or file.with_suffix(FORMATS[form])
    if is_ours(target):
        raise UsageError(f"{target.name!r} is the name of a file that detrain works with", "give another file with --output")
    if form == "keras":
        for path, weights in models.choose(file, snapshot, match, output):
            _write(path, partial(models.write, weights=weights, tensors=snapshot.tensors))
            arrays = [snapshot.tensors[key] for group in weights.groups for key in group.keys]
            yield Exported(path, len(arrays), sum(array.nbytes for array in arrays), weights.name)
        return
    tensors = {name: np.asarray(array, order="C") for name, array in tensors_of(snapshot).items() if match in name}
    if not tensors:
        raise UsageError(f"no tensor of {str(file)!r} has {match!r} in its name", "`detrain ckpt show` lists them")
    if form == "npz":
        _write(target, lambda sink: np.savez(sink, **dict(_for_numpy(name, array) for name, array in tensors.items())))  # type: ignore[arg-type]
    else:
        _write(target, partial(_write_safetensors, tensors=tensors, meta=snapshot.meta))
    yield Exported(target, len(tensors), sum(array.nbytes for array in tensors.values()))


def _write(target: Path, write: Callable[[Sink], None]) -> None:
    if target.exists() and not target.is_file():
        raise UsageError(f"{str(target)!r} is a device or a pipe: a file would replace it", "give another file with --output")
    try:
        with exporting(target) as sink:
            write(sink)
    except OSError as error:
        raise StoreError(f"cannot write {str(target)!r}: {error.strerror or error}", "give another file with --output") from error


def _for_numpy(name: str, array: Array) -> tuple[str, Array]:
    if not is_extension(array.dtype):
        return name, array
    return f"{name}:{dtype_name(array.dtype)}", array.reshape(-1).view(f"u{array.itemsize}").reshape(array.shape)


def _write_safetensors(sink: Sink, tensors: dict[str, Array], meta: Meta) -> None:
    """Write https://github.com/huggingface/safetensors: length of the header (uint64), header (JSON), raw bytes."""
    about = {"program": meta.program, "phase": str(meta.phase), "epoch": str(meta.epoch), "batch": str(meta.batch), "cut": meta.cut}
    header: dict[str, object] = {"__metadata__": about}
    end = 0
    for name, array in tensors.items():
        kind = _SAFETENSORS.get(dtype_name(array.dtype) or "")
        if kind is None:
            raise UsageError(f"safetensors cannot hold {name!r} of dtype {array.dtype}", "give --match, or --to npz")
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (end, end + array.nbytes)}
        end += array.nbytes
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    sink.write(len(text).to_bytes(8, "little") + text)
    for array in tensors.values():
        sink.write(raw_bytes(array))
