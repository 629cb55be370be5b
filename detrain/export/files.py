"""The export of a checkpoint's tensors to `.npz`, `.safetensors` or Keras's weights files (`.weights.h5`, as Keras 3.15
reads them, made from the checkpoint's descriptions of its models).

Neither TensorFlow nor Keras is imported for that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from detrain.base.digest import Array, raw_bytes
from detrain.base.dtypes import dtype_name, is_extension
from detrain.base.errors import CannotExport, StoreError, UsageError
from detrain.base.npz import write_npz
from detrain.export.object_tensors import tensors_of
from detrain.store import Meta, Snapshot, read
from detrain.store.atomic_file import Sink, exporting
from detrain.store.catalogue import is_ours
from detrain.store.snapshot import WeightsFile

if TYPE_CHECKING:
    import h5py

FORMATS: Final = {"keras": ".weights.h5", "npz": ".npz", "safetensors": ".safetensors"}
"""The ending of a file's name, by format."""
_SAFETENSORS: Final = {
    "|b1": "BOOL", "|i1": "I8", "|u1": "U8", "<i2": "I16", "<u2": "U16", "<i4": "I32", "<u4": "U32", "<i8": "I64", "<u8": "U64",
    "<f2": "F16", "<f4": "F32", "<f8": "F64", "<c8": "C64",
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""The names in safetensors of the dtypes that it knows."""


class Exported(msgspec.Struct, frozen=True):
    """A file that was written."""

    path: Path
    tensors: int
    size_bytes: int
    """The size of the tensors together."""
    model: str = ""
    """Keras's name of the model with these weights; empty for a file of all tensors."""


def export(file: Path, form: str, output: Path | None = None, match: str = "") -> Iterator[Exported]:
    """Write the tensors of a checkpoint in the format `form`, one of `FORMATS`; yield each file once it is written.

    Only tensors with `match` in their names are written; for `keras`, only models with it in theirs, each to a file of
    its own. `output` is the file to write, by default `file` with another ending. Raises UsageError, CannotExport,
    StoreError; no file stays that is not whole.
    """
    snapshot = read(file)
    target = output or file.with_suffix(FORMATS[form])
    if is_ours(target):
        raise UsageError(f"{target.name!r} is the name of a file that detrain works with", "give another file with --output")
    if form == "keras":
        for path, weights in _weights_of_models(file, snapshot, match, output):
            _write(path, partial(_write_keras, weights=weights, tensors=snapshot.tensors))
            arrays = [snapshot.tensors[key] for group in weights.groups for key in group.keys]
            yield Exported(path, len(arrays), sum(array.nbytes for array in arrays), weights.name)
        return
    tensors = {name: np.asarray(array, order="C") for name, array in tensors_of(snapshot).items() if match in name}
    if not tensors:
        raise UsageError(f"no tensor of {str(file)!r} has {match!r} in its name", "`detrain ckpt show` lists them")
    if form == "npz":
        _write(target, lambda sink: write_npz(sink, dict(_for_numpy(name, array) for name, array in tensors.items())))
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


def _weights_of_models(file: Path, snapshot: Snapshot, match: str, output: Path | None) -> list[tuple[Path, WeightsFile]]:
    """Return the models to write, with their paths: those named `match`, or else those with it in their names.

    Raises CannotExport unless all can be written; UsageError if Keras does not read files with the target's name.
    """
    target = output or file.with_suffix(FORMATS["keras"])
    if not target.name.endswith(FORMATS["keras"]):
        raise UsageError(f"Keras reads no weights from {target.name!r}", f"give a file with the ending {FORMATS['keras']}")
    known = snapshot.meta.weights
    if known is None:
        raise CannotExport(
            f"{str(file)!r} does not say which variable is which of a Keras model: an earlier version of detrain took it",
            "resume the run with this version and export its next checkpoint, or export all tensors with --to npz",
        )
    built = {key: weights for key, weights in known.items() if weights.groups or weights.refused}
    chosen = {key: weights for key, weights in built.items() if match in (key, weights.name)}
    chosen = chosen or {key: weights for key, weights in built.items() if match in key or match in weights.name}
    if not chosen:
        among = f" with {match!r} in its name among {_listed(built)}" if built and match else ""
        unbuilt = f" ({_listed(known)}: not built yet)" if known and not built else ""
        raise CannotExport(
            f"{str(file)!r} holds no Keras model{among}{unbuilt}",
            "export a later checkpoint" if unbuilt else "export the tensors with --to npz",
        )
    for key, weights in chosen.items():
        _check(f"model {weights.name!r} ({key})", weights, snapshot.tensors)
    names = _names(known)
    stem = target.name.removesuffix(FORMATS["keras"])
    is_one = len(chosen if output else built) == 1
    paths = {key: target if is_one else target.with_name(f"{stem}-{names[key]}{FORMATS['keras']}") for key in chosen}
    if len(set(paths.values())) < len(paths):
        raise CannotExport(f"two of the models {_listed(chosen)} would get one file", "export them one by one with --match")
    return [(paths[key], weights) for key, weights in chosen.items()]


def _write_keras(sink: Sink, weights: WeightsFile, tensors: Mapping[str, Array]) -> None:
    """Write a file as Keras's `H5IOStore` does: for each object a group `PATH/vars` with its variables `0`, `1`, ..."""
    import h5py

    with h5py.File(sink, "w") as hdf5:
        for group in weights.groups:
            place = _group(hdf5, f"{group.path}/vars" if group.path else "vars")
            if group.name is not None:
                place.attrs["name"] = group.name
            for number, key in enumerate(group.keys):
                array = np.asarray(tensors[key], order="C")
                dataset = place.create_dataset(str(number), data=array)
                if is_extension(array.dtype):
                    dataset.attrs["dtype"] = dtype_name(array.dtype)


def _group(hdf5: h5py.File, path: str) -> Any:
    """Return a group; make it and the groups above it if they do not exist.

    Unlike groups made by h5py's own calls, these do not hold the time of their creation.
    """
    import h5py

    plist = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    plist.set_obj_track_times(False)
    place: Any = hdf5
    for name in path.split("/"):
        if name not in place:
            h5py.h5g.create(place.id, name.encode(), gcpl=plist)
        place = place[name]
    return place


def _check(what: str, weights: WeightsFile, tensors: Mapping[str, Array]) -> None:
    todo = "export its tensors with --to npz, or other models with --match"
    if weights.refused:
        raise CannotExport(f"{what} cannot be written: {weights.refused}", todo)
    for group in weights.groups:
        for key in group.keys:
            if key not in tensors:
                raise CannotExport(f"{what} cannot be written: the checkpoint has no value of {key!r}", todo)
            dtype = tensors[key].dtype
            if dtype_name(dtype) != "bfloat16" and (is_extension(dtype) or dtype.kind not in "biufc"):
                raise CannotExport(f"{what} cannot be written: Keras's files cannot hold {key!r} of dtype {dtype}", todo)


def _names(known: Mapping[str, WeightsFile]) -> dict[str, str]:
    """Return, for each model, a part for a file's name: the model's name, or its key if another model has that name."""
    plain = {key: re.sub(r"[^\w.-]", "-", weights.name) for key, weights in known.items()}
    counts = Counter(plain.values())
    return {key: name if counts[name] == 1 else re.sub(r"[^\w.-]", "-", key) for key, name in plain.items()}


def _listed(known: Mapping[str, WeightsFile]) -> str:
    return ", ".join(weights.name for weights in known.values())
