"""A call of Keras's `fit` as a run shows it: for how many epochs, over how many batches, from what."""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any, Final

import msgspec

from detrain.base.structure import FitCall
from detrain.instrument.fit_calls import described
from detrain.instrument.loop_positions import position, read_source, real_path
from detrain.python.inspect.frames import names_of

_LOADERS: Final = {
    "ArrayDataAdapter": "arrays",
    "TFDatasetAdapter": "a tf.data set",
    "PyDatasetAdapter": "a PyDataset",
    "GeneratorDataAdapter": "a generator",
    "TorchDataLoaderAdapter": "a DataLoader of PyTorch",
    "GrainDatasetAdapter": "a Grain data set",
}
"""Keras's adapters of data, by the names of their classes."""


def seen_fit(user: FrameType, frame: FrameType) -> FitCall:
    """Return the call of `fit` in the user's frame; `frame` is that of `fit` itself, in its loops."""
    file, place = real_path(user.f_code.co_filename), position(user)
    source = read_source(file)
    calls: list[ast.Call] = [] if source is None else source.calls_at(place)
    fit = described(file, calls[0]) if calls else FitCall(file, place.line, "fit")
    names: dict[str, Any] = names_of(frame)
    steps = names.get("epoch_iterator")
    adapter = type(getattr(steps, "data_adapter", None)).__name__
    first, last = names.get("initial_epoch"), names.get("epochs")
    return msgspec.structs.replace(
        fit,
        line=calls[0].lineno if calls else place.line,
        epochs=last - first if isinstance(first, int) and isinstance(last, int) else None,
        batches=_count(getattr(steps, "steps_per_epoch", None)) or _count(getattr(steps, "_num_batches", None)),
        loader=_LOADERS.get(adapter, ""),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None
