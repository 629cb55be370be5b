"""Keeps the frames of detrain out of the errors of TensorFlow and Keras: they say where operations were made, and by
whose calls.

Both leave out their own frames, and TensorFlow those of files that it is told: detrain's are added to these.
"""

from __future__ import annotations

import os
from typing import Any, Final

from tensorflow.python.util import tf_stack, traceback_utils

from detrain.base import PACKAGE

_FILES: Final = frozenset(map(str, PACKAGE.rglob("*.py")))


class _OwnFrames(tf_stack.SentinelFilter):  # type: ignore[misc]
    """What TensorFlow starts from in each thread: it hides nothing but detrain's files."""

    def __init__(self) -> None:
        super().__init__()
        self.update()

    def get_filtered_filenames(self) -> frozenset[str]:
        """Return the files whose frames are hidden."""
        return _FILES


def hide_own_frames() -> None:
    """Hide detrain's frames from TensorFlow."""
    tf_stack.SentinelFilter = _OwnFrames
    tf_stack._source_filter_stacks.clear()  # of the threads in which something was made as TensorFlow was imported
    hide_in(traceback_utils)


def hide_in(module: Any) -> None:
    """Hide detrain's frames from what cuts tracebacks for a library."""
    module._EXCLUDED_PATHS = (*module._EXCLUDED_PATHS, str(PACKAGE) + os.sep)
