"""The public API: probes, and the errors. Imports no framework, and nothing that a training process does not need.

A program that `detrain run` rewrites calls these; a program may also call them by hand.
"""

from __future__ import annotations

from typing import Any

from detrain import moment
from detrain.base import VERSION
from detrain.base.errors import DetrainError
from detrain.runtime.session.probes import (
    batch_loop,
    epoch_loop,
    guard_run,
    record_batch,
    record_epoch,
    record_load,
    record_phase,
)

__version__ = VERSION


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
    "record_epoch",
    "record_load",
    "record_phase",
]
