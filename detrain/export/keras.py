"""Keras's weights files (`.weights.h5`, as Keras 3.15 reads them) from a checkpoint, by what it says of its models."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from detrain.base.digest import Array
from detrain.base.dtypes import dtype_name, is_extension
from detrain.base.errors import CannotExport, UsageError
from detrain.store import Snapshot
from detrain.store.atomic_file import Sink
from detrain.store.weights_file import WeightsFile

if TYPE_CHECKING:
    import h5py

_ENDING: Final = ".weights.h5"


def choose(file: Path, snapshot: Snapshot, match: str, output: Path | None) -> list[tuple[Path, WeightsFile]]:
    """Return the models to write that have the name `match`, or else have it in their names, and where.

    Raises CannotExport unless all can be written.
    """
    target = output or file.with_suffix(_ENDING)
    if not target.name.endswith(_ENDING):
        raise UsageError(f"Keras reads no weights from {target.name!r}", f"give a file with the ending {_ENDING}")
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
    stem = target.name.removesuffix(_ENDING)
    is_one = len(chosen if output else built) == 1
    paths = {key: target if is_one else target.with_name(f"{stem}-{names[key]}{_ENDING}") for key in chosen}
    if len(set(paths.values())) < len(paths):
        raise CannotExport(f"two of the models {_listed(chosen)} would get one file", "export them one by one with --match")
    return [(paths[key], weights) for key, weights in chosen.items()]


def write(sink: Sink, weights: WeightsFile, tensors: Mapping[str, Array]) -> None:
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
    """Return a group, made with those above it.

    Unlike h5py's own these do not hold the time at which they were made.
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
    """Return a name for a part of a file's name for each model: its own, or its key where another has the same."""
    plain = {key: re.sub(r"[^\w.-]", "-", weights.name) for key, weights in known.items()}
    counts = Counter(plain.values())
    return {key: name if counts[name] == 1 else re.sub(r"[^\w.-]", "-", key) for key, name in plain.items()}


def _listed(known: Mapping[str, WeightsFile]) -> str:
    return ", ".join(weights.name for weights in known.values())
