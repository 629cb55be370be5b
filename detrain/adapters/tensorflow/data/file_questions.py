"""What the program asks through TensorFlow about files outside of its loops, answered as the first run was.

`tf.io.gfile`, and the note beside TensorFlow's own checkpoints of which is the newest. Caches of tf.data in files are
noted.
"""

from __future__ import annotations

import base64
import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.data.ops import cache_op
from tensorflow.python.lib.io import file_io
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from detrain.base.in_place import in_place_of
from detrain.python.outside.fs_answers import Answers


def watch_files(answers: Answers) -> None:
    """Put the recorded answers in the place of the real ones."""
    native = file_io._pywrap_file_io
    for name in ("FileExists", "IsDirectory"):
        setattr(native, name, _asking(answers, name, getattr(native, name)))
    for name in ("GetChildren", "GetMatchingFiles"):
        setattr(native, name, _listing(answers, name, getattr(native, name)))
    remove = native.DeleteRecursively

    @in_place_of(native, "DeleteRecursively")
    def delete_recursively(path: Any, *arguments: Any) -> None:
        answers.clear("DeleteRecursively", path, lambda: remove(path, *arguments))

    remove_file = native.DeleteFile

    @in_place_of(native, "DeleteFile")
    def delete_file(path: Any, *arguments: Any) -> None:
        answers.clear_in_loop(tf.compat.as_str_any(path), lambda: remove_file(path, *arguments), tf.errors.NotFoundError)

    _watch_newest(answers)
    _watch_caches(answers)


def _asking(answers: Answers, question: str, real: Any) -> Any:
    """A path that is not there is told by an error."""

    @functools.wraps(real)
    def ask(path: Any, *arguments: Any) -> Any:
        found: list[Any] = []

        def is_there() -> bool:
            try:
                found.append(real(path, *arguments))
            except tf.errors.NotFoundError:
                return False
            return found[0] is not False

        if not answers.is_so(question, path, is_there):
            if found:
                return found[0]
            raise tf.errors.NotFoundError(None, None, f"{tf.compat.as_str_any(path)}; No such file or directory")
        return found[0] if found else True

    return ask


def _listing(answers: Answers, question: str, real: Any) -> Any:
    @functools.wraps(real)
    def list_files(path: Any, *arguments: Any) -> Any:
        return answers.among(question, path, real(path, *arguments), tf.compat.as_str_any)

    return list_files


def _watch_caches(answers: Answers) -> None:
    """Note which files a `cache()` of tf.data fills: its lock keeps every other iterator away,
    after a kill for ever.
    """
    real = cache_op.CacheDataset.__init__

    @in_place_of(cache_op.CacheDataset, "__init__")
    def make(self: Any, input_dataset: Any, filename: Any, *arguments: Any, **keywords: Any) -> None:
        prefix = tf.get_static_value(filename) if tf.is_tensor(filename) else filename
        if isinstance(prefix, str | bytes) and prefix:
            answers.fill(tf.compat.as_str(prefix))
        real(self, input_dataset, filename, *arguments, **keywords)


def _watch_newest(answers: Answers) -> None:
    """Have `get_checkpoint_state`, by which all of TensorFlow finds its newest checkpoint, say what it said."""
    real = checkpoint_management.get_checkpoint_state

    @in_place_of(checkpoint_management, "get_checkpoint_state", tf.train, tf.compat.v1.train, tf.compat.v2.train)
    def get_checkpoint_state(checkpoint_dir: Any, latest_filename: Any = None) -> Any:
        def read() -> str:
            state = real(checkpoint_dir, latest_filename)
            return "" if state is None else base64.b64encode(state.SerializeToString()).decode()

        told = answers.told("get_checkpoint_state", f"{checkpoint_dir}/{latest_filename or 'checkpoint'}", read)
        return CheckpointState.FromString(base64.b64decode(told)) if told else None
