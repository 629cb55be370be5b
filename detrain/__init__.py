"""The public API: probes, and the errors. Imports no framework, and nothing that a training process does not need.

A program that `detrain run` rewrites calls these; a program may also call them by hand.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from detrain.base import VERSION
from detrain.base.errors import DetrainError

if TYPE_CHECKING:
    from detrain import moment
    from detrain.runtime.session.probes import (
        batch_loop,
        epoch_loop,
        guard_run,
        record_batch,
        record_end,
        record_epoch,
        record_load,
        record_phase,
    )

__version__ = VERSION


def __getattr__(name: str) -> Any:
    """Import the probes, or `moment`, where they are asked for: the commands do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = import_module("detrain.moment") if name == "moment" else getattr(import_module("detrain.runtime.session.probes"), name)
    globals()[name] = found
    return found


def load_ipython_extension(shell: Any) -> None:
    """Make a notebook's kernel a run: `%load_ext detrain`."""
    from detrain.notebook.extension import load

    load(shell)


__all__ = [
    "DetrainError",
    "__version__",
    "batch_loop",
    "epoch_loop",
    "guard_run",
    "moment",
    "record_batch",
    "record_end",
    "record_epoch",
    "record_load",
    "record_phase",
]
