"""A filter of detrain's frames in errors of TensorFlow and Keras, which say where and by whose calls ops were made.

Both libraries leave out their own frames, and TensorFlow those of files in a list; detrain's files are added to that.
"""

from __future__ import annotations

import os
from typing import Any, Final

from tensorflow.python.util import tf_stack, traceback_utils

from detrain.base import PACKAGE

_FILES: Final = frozenset(map(str, PACKAGE.rglob("*.py")))


class _OwnFrames(tf_stack.SentinelFilter):  # type: ignore[misc]
    """The filter that TensorFlow starts with in each thread: it hides detrain's files and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.update()

    def get_filtered_filenames(self) -> frozenset[str]:
        """Return the paths of the files to hide."""
        return _FILES


def hide_own_frames() -> None:
    """Hide detrain's frames from TensorFlow."""
    tf_stack.SentinelFilter = _OwnFrames
    tf_stack._source_filter_stacks.clear()  # for threads that made ops during TensorFlow's import
    hide_in(traceback_utils)


def hide_in(module: Any) -> None:
    """Hide detrain's frames in the tracebacks that a library's module filters."""
    module._EXCLUDED_PATHS = (*module._EXCLUDED_PATHS, str(PACKAGE) + os.sep)
