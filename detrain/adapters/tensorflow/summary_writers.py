"""The settings that TensorFlow keeps for all summaries: the writer, the step, and whether summaries are recorded
(`tf.summary.record_if`).

A function that writes summaries reads these settings as it is traced, and the values go into the trace; Keras's
TensorBoard sets them at each batch. A resumed run traces such a function ahead, so they are put in place for it. The
recording condition may be any function, and must not be called once more; so its results in the first run's trace are
noted. Writers are named by the folders they write to.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from types import CellType, FunctionType
from typing import Any, Final

import numpy as np
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops import summary_ops_v2

from detrain.adapters.stable_names import Births
from detrain.adapters.tensorflow.values.json_values import NoDataError, NotThereError, ValueDescriptions
from detrain.base.in_place import in_place_of
from detrain.python.outside import event_files

_STATE: Final = summary_ops_v2._summary_state
_WRITER: Final = "writer"
_RETURNED: Final = "returned"
_IS_WRITTEN: Final = "is written"
_CONDITION: Final = "is_recording"
_SETTINGS: Final = ("step", _CONDITION)


class Summaries:
    """These settings: read as a trace begins, and put in place for the same trace in a resumed process."""

    def __init__(self, births: Births) -> None:
        self._descriptions = ValueDescriptions(births)
        self._folders: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()
        self._noted: dict[str, Any] = {}
        self._watch_writers()
        event_files.follow(lambda: [folder for folder in list(self._folders.values()) if folder is not None])

    def flush(self) -> None:
        """Flush every open writer."""
        for writer in list(self._folders):
            if not writer._closed:
                writer.flush()

    def state(self) -> dict[str, Any]:
        """Return the state that the loop goes on with: the step, if it is a number, and the variables that Keras's
        recording condition has closed over.
        """
        step = {"step": _STATE.step} if isinstance(_STATE.step, int) else {}
        return step | ({"condition": closed} if (closed := self._closed_over()) else {})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""
        if state.get("step") is not None:
            summary_ops_v2.set_step(state["step"])
        was = state.get("condition", {})
        for name, described in self._closed_over().items():
            if was.get(name, described) != described:
                _cells(_STATE.is_recording)[name].cell_contents = self._descriptions.recall(was[name])

    def _closed_over(self) -> dict[str, Any]:
        """Return the data that Keras's recording condition has closed over.

        TensorBoard made that condition at the last batch.
        """
        found = {}
        for name, cell in _cells(_STATE.is_recording).items():
            with contextlib.suppress(NoDataError, ValueError):
                found[name] = self._descriptions.describe(cell.cell_contents)
        return found

    def read(self) -> dict[str, Any]:
        """Return the settings in a form that JSON can hold. Values that cannot be described are left out."""
        writer = _STATE.writer
        folder = None if writer is None else self._folders.get(writer)
        found: dict[str, Any] = {_WRITER: folder} if writer is None or folder is not None else {}
        for name in _SETTINGS:
            value = getattr(_STATE, name)
            if callable(value):
                found[_RETURNED] = []
                continue
            with contextlib.suppress(NoDataError):
                found[name] = self._descriptions.describe(value)
        return found

    @contextlib.contextmanager
    def noting(self, found: dict[str, Any]) -> Iterator[None]:
        """Note, in the result of `read`, whether the trace uses a writer, and the condition's results (None for a
        tensor).
        """
        condition, returned = _STATE.is_recording, found.get(_RETURNED, [])

        def noted() -> Any:
            value = condition()
            returned.append(bool(value) if isinstance(value, bool | np.bool_) else None)
            return value

        self._noted = found
        with summary_ops_v2.record_if(noted) if _RETURNED in found else contextlib.nullcontext():
            yield
        self._noted = {}

    def note_captured(self, handles: set[int]) -> None:
        """Note whether a trace has captured a writer; the argument has the identities of the captured handles."""
        if any(id(writer._resource) in handles for writer in list(self._folders)):
            self._noted[_IS_WRITTEN] = True

    @contextlib.contextmanager
    def as_read(self, found: dict[str, Any], *, is_ahead: bool) -> Iterator[None]:
        """Put settings that `read` returned in place.

        Raises NotThereError if the function is built ahead, and the writer in its trace does not exist yet.
        """
        before = {name: getattr(_STATE, name) for name in (_WRITER, *_SETTINGS)}
        now = {}
        if _WRITER in found:
            now[_WRITER] = self._writer(found[_WRITER])
            if now[_WRITER] is None and found[_WRITER] is not None:
                if is_ahead and found.get(_IS_WRITTEN):
                    raise NotThereError
                is_any = not found.get(_IS_WRITTEN)  # the trace only asked whether a writer exists
                now[_WRITER] = _STATE.writer or (summary_ops_v2.create_noop_writer() if is_any else None)
        for name in _SETTINGS:
            if name in found:
                now[name] = self._descriptions.recall(found[name])
        if _RETURNED in found:
            now[_CONDITION] = _Returns(found[_RETURNED], _STATE.is_recording)
        for name, value in now.items():
            setattr(_STATE, name, value)
        try:
            yield
        finally:
            for name in now:
                setattr(_STATE, name, before[name])

    def _writer(self, folder: str | None) -> Any:
        """Return the open writer that writes to a folder; None if there is none, or if there are several."""
        found = [writer for writer, to in self._folders.items() if to == folder and not writer._closed]
        return found[0] if folder is not None and len(found) == 1 else None

    def _watch_writers(self) -> None:
        """Note each writer and its folder as it is made."""
        original = summary_ops_v2._ResourceSummaryWriter.__init__

        @in_place_of(summary_ops_v2._ResourceSummaryWriter, "__init__")
        def made(writer: Any, create_fn: Any, init_op_fn: Any, *args: Any, **kwargs: Any) -> None:
            original(writer, create_fn, init_op_fn, *args, **kwargs)
            folder = getattr(init_op_fn, "keywords", {}).get("logdir")
            self._folders[writer] = folder.numpy().decode(errors="surrogateescape") if isinstance(folder, EagerTensor) else None


def _cells(condition: Any) -> dict[str, CellType]:
    """Return the closure's cells, by name, of a condition that is a function of Keras's; none for others."""
    is_kerass = isinstance(condition, FunctionType) and condition.__module__.partition(".")[0] in ("keras", "tf_keras")
    return dict(zip(condition.__code__.co_freevars, condition.__closure__ or (), strict=True)) if is_kerass else {}


class _Returns:
    """A condition that returns its results of the first run, and calls the present one where that was a tensor."""

    def __init__(self, returned: list[bool | None], now: Any) -> None:
        self._returned, self._now = iter(returned), now

    def __call__(self) -> Any:
        value = next(self._returned, None)
        if value is not None:
            return value
        now = self._now() if callable(self._now) else self._now
        return True if now is None else now
