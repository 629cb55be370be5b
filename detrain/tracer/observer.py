"""Observes a running program: at each update of weights it finds the loops around the update, and watches their turns.

It watches no loop before the first update, and none once the loops are known.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Final

import msgspec

from detrain.base.framework_names import MODULES, runs_training
from detrain.base.structure import AnyLoop, FitCall, Loop, Nest, Structure
from detrain.instrument.find_loops import epoch_loop_among, observed_nest
from detrain.instrument.fit_calls import described
from detrain.instrument.loop_positions import SourcePosition, body_lines, position, read_source, real_path
from detrain.instrument.syntax import counting_names
from detrain.python.inspect.frames import is_of_package, is_user_file, names_of, outwards
from detrain.python.inspect.tracing import is_traced
from detrain.tracer.dataset_sizes import sizes_in
from detrain.tracer.events import LoopLines, MarkWatcher, loop_watcher
from detrain.tracer.inference import Inference, LoopKey, Phase, nested

_NEWS_EACH: Final = 16
"""Number of updates between two calls of `on_news`, if none of the updates brings news."""

_ABOVE: Final = 2
"""Number of frames from `UpdateObserver._see` to the one that noted an update."""
_Mark = tuple[int, CodeType, int]
"""A frame's distance from the one that noted an update, its code, and its current instruction."""

_USERS: Final = "the user's"
_FIT: Final = "Keras's fit"
_ENTRY: Final = "detrain's, which runs the program"
_OTHERS: Final = "another's"
_KERAS_FIT: Final = os.path.join("keras", "src", "")
_LAUNCH: Final = os.path.join("detrain", "runtime", "session", "launch.py")

_LOADERS: Final = {
    "ArrayDataAdapter": "arrays",
    "TFDatasetAdapter": "a tf.data set",
    "PyDatasetAdapter": "a PyDataset",
    "GeneratorDataAdapter": "a generator",
    "TorchDataLoaderAdapter": "a DataLoader of PyTorch",
    "GrainDatasetAdapter": "a Grain data set",
}
"""Keras's adapters of data, by the names of their classes."""


class Findings(msgspec.Struct, frozen=True):
    """The findings of a run."""

    structure: Structure
    is_sure: bool
    updates: int
    took_s: float
    """Seconds from the first update to the last one that was watched."""


class _Level(msgspec.Struct, frozen=True):
    """A frame of a stack: the loops around its position."""

    index: int
    """The number of the frame, counted from the innermost of the user's."""
    file: str
    loops: tuple[AnyLoop, ...]
    bodies: LoopLines
    place: SourcePosition


class _LoopStack(msgspec.Struct, frozen=True):
    """The user's frames at an update that are in loops; outermost first."""

    nest: tuple[LoopKey, ...]
    levels: tuple[_Level, ...]


class _UpdaterPlace(msgspec.Struct):
    """The place from which an updater was last called."""

    marks: list[_Mark]
    """Frames by which a further call from this place is recognized."""
    stack: _LoopStack
    is_repeating: bool = False
    """Whether further updates from this place bring no news until a loop is entered or turns: they are only counted."""
    repeats: int = 0
    """Number of updates counted here, and not yet in the inference."""


class UpdateObserver:
    """Takes updates from a framework, and turns of loops from a watcher. It calls `on_news` after updates."""

    def __init__(
        self,
        on_news: Callable[[UpdateObserver], None],
        marks: Sequence[LoopKey] = (),
        *,
        asks_sizes: bool = False,
        library: str = "",
    ) -> None:
        """`marks`: the loops that carry marks, by number; `asks_sizes`: whether objects of the program are asked for
        their sizes, which runs code of theirs; `library`: an installed package that is watched as the program is.
        """
        self._library = library
        self._on_news, self._asks_sizes = on_news, asks_sizes
        self._inference = Inference()
        self._watcher = loop_watcher(self._reached, self._entered, marks)
        self._is_watching = True
        self._has_updates = False
        self._since_news = 0
        self._is_settled = False
        """Whether the loops are known: their turns are no longer watched, until an update comes from another place."""
        self._kinds: dict[int, str] = {}
        """The owner of each code object, by its address."""
        self._codes: list[CodeType] = []
        """The code objects, kept alive so that no other one takes their addresses."""
        self._stacks: dict[tuple[tuple[int, int], ...], _LoopStack] = {}
        self._latest: dict[int, _UpdaterPlace] = {}
        """The place from which each updater was last called."""
        self._places: dict[LoopKey, tuple[AnyLoop, SourcePosition]] = {}
        self._fits: dict[tuple[CodeType, int], FitCall] = {}
        self._outside = 0
        self._began = self._ended = 0.0
        self.sizes: dict[str, int] = {}

    def on_update(self, what: int) -> None:
        """Note that weights have been updated, in a call of the caller."""
        if not self._is_watching:
            return
        if not self._has_updates:
            self._has_updates, self._inference = True, Inference()
            self._latest.clear()
        latest = self._latest.get(what)
        if latest is not None and latest.is_repeating and latest.repeats < _NEWS_EACH and _is_at(latest.marks, _ABOVE):
            latest.repeats += 1
            return
        self._see(what)
        self._since_news += 1
        if self._inference.has_news or not self._inference.updates or self._since_news >= _NEWS_EACH:
            self._inference.has_news, self._since_news = False, 0
            self._on_news(self)

    def on_assign(self, what: int) -> None:
        """Note that a weight was set outside of updates. This counts as an update as long as there are no others."""
        if self._is_watching and not self._has_updates:
            self._see(what)

    def _see(self, what: int) -> None:
        self._count_repeats()
        latest = self._latest.get(what)
        is_lasting = self._is_settled or self._watcher.is_lasting
        if latest is not None and latest.stack.nest and is_lasting and _is_at(latest.marks, _ABOVE + 1):
            self._ended = time.monotonic()
            if self._is_settled:
                self._inference.count(latest.stack.nest)
            else:
                self._learn(latest.stack, [], what)
            latest.is_repeating = self._is_settled or self._inference.is_repeating(latest.stack.nest, what)
            return
        frames: list[FrameType] = []
        marks: list[_Mark] = []
        has_tracer = is_traced()
        for depth, frame in enumerate(outwards(sys._getframe(_ABOVE))):
            code = frame.f_code
            kind = self._kinds.get(id(code)) or self._kind(code)
            if kind is _USERS:
                frames.append(frame)
            elif kind is _FIT:
                self._note_fit(frame)
                return
            elif has_tracer and str(frame.f_globals.get("__name__")).partition(".")[0] in MODULES:
                frames.clear()  # it traces or transforms their code: loops there are a part of the step
            if kind is _USERS or kind is _ENTRY:
                marks.append((depth, code, frame.f_lasti))
            if kind is _ENTRY:
                break
        self._ended = time.monotonic()
        self._began = self._began or self._ended
        key = tuple([(id(each.f_code), each.f_lasti) for each in frames])
        known = self._stacks.get(key)
        stack = self._stacks[key] = known or _stack(frames)
        self._latest[what] = _UpdaterPlace(marks, stack)
        if not stack.nest:
            self._outside += 1
        elif self._is_settled and known:
            self._inference.count(stack.nest)
        else:
            self._learn(stack, frames, what)

    def _count_repeats(self) -> None:
        for what, place in self._latest.items():
            if place.repeats and self._is_settled:
                self._inference.count(place.stack.nest, place.repeats)
            elif place.repeats:
                self._inference.update(place.stack.nest, what, place.repeats)
            place.repeats, place.is_repeating = 0, False

    def _kind(self, code: CodeType) -> str:
        """Return a code object's owner, and remember it by the address, as hashing a code object takes microseconds."""
        is_fit = code.co_name == "fit" and _KERAS_FIT in code.co_filename
        is_entry = code.co_name == "_run" and code.co_filename.endswith(_LAUNCH)
        file = code.co_filename
        is_users = is_user_file(file) or runs_training(file, code.co_qualname) or is_of_package(file, self._library)
        kind = _USERS if is_users else _FIT if is_fit else _ENTRY if is_entry else _OTHERS
        self._kinds[id(code)] = kind
        self._codes.append(code)
        return kind

    def _learn(self, stack: _LoopStack, frames: list[FrameType], what: int) -> None:
        """Note an update inside loops that are not yet known for sure, and have these loops watched."""
        is_new = self._inference.update(stack.nest, what)
        if is_new:
            for level in stack.levels:
                for loop in level.loops:
                    self._places.setdefault((level.file, loop.lineno), (loop, level.place))
            if self._asks_sizes and not self.sizes:
                self.sizes = sizes_in(reversed(frames))
        if is_new or self._inference.has_news:
            self._is_settled = self.is_sure
        if not self._is_settled and (is_new or not self._watcher.is_lasting):
            self._watcher.arm([(frames[level.index], level.file, level.bodies) for level in stack.levels])

    @property
    def is_sure(self) -> bool:
        """Whether the loops seen so far are known for sure."""
        return self._has_updates and self._inference.is_sure()

    @property
    def knows_batch_loop(self) -> bool:
        """Whether one loop has been seen to update repeatedly."""
        return self._inference.knows_batch_loop()

    @property
    def batch_loops(self) -> set[LoopKey]:
        """The loops that are batch loops, as far as updates have shown."""
        return {phase.batch for phase in self._inference.phases()}

    @property
    def has_only_fit(self) -> bool:
        """Whether all updates so far were made by `fit`."""
        return bool(self._fits) and not self._inference.updates

    @property
    def loops(self) -> set[LoopKey]:
        """All loops inside which an update was seen."""
        return set(self._inference.records)

    @property
    def epochs(self) -> int:
        """The number of epochs that have been seen to end."""
        return self._inference.epochs()

    def stop(self) -> None:
        """Stop watching."""
        self._is_watching = False
        self._watcher.stop()

    def outcome(self, static: Structure, *, has_ended: bool) -> Findings:
        """Return the findings.

        If the run was cut short, keep loops that static analysis proposes and the run has not reached.
        """
        self._count_repeats()
        nests = [self._nest(phase) for phase in self._inference.phases()]
        if not has_ended:
            nests += [
                msgspec.structs.replace(nest, evidence=(*nest.evidence, "static analysis; not reached in the traced run"))
                for nest in static.nests
                if not self._was_passed(nest, static)
            ]
        fits = list(self._fits.values())
        seen = {(fit.file, fit.line) for fit in fits}
        if not has_ended:
            fits += [fit for fit in static.fits if (fit.file, fit.line) not in seen]
        took = self._ended - self._began
        seen_by = f"{self._inference.updates} updates in {took:.1f} s, by {self._watcher.name}" if nests else "in fit"
        source = f"a traced run ({seen_by})"
        structure = Structure(tuple(nests), source, tuple(fits) if self._fits else ())
        return Findings(structure, self.is_sure, self._inference.updates + self._outside, took)

    def _was_passed(self, nest: Nest, static: Structure) -> bool:
        """Return whether the run has been through a loop that static analysis proposes, or found others instead."""
        known = self._inference.records
        key, around = _key(nest.batch_loop), _key(nest.epoch_loop)
        if key in known:  # one batch loop may have several epoch loops: the run has not come to all of them
            same = [other for other in static.nests if _key(other.batch_loop) == key]
            return around in known or not any(_key(other.epoch_loop) in known for other in same)
        return around in known and self.is_sure

    @property
    def enter(self) -> Callable[[Any, int], Any]:
        """The function that marks in the program call."""
        assert isinstance(self._watcher, MarkWatcher)
        return self._watcher.enter

    def _reached(self, code: CodeType, line: int) -> bool:
        self._count_repeats()
        return self._inference.turn((real_path(code.co_filename), line))

    def _entered(self, loop: LoopKey) -> None:
        self._count_repeats()
        self._inference.entered(loop)

    def _note_fit(self, frame: FrameType) -> None:
        user = next((each for each in outwards(frame) if is_user_file(each.f_code.co_filename)), None)
        if user is not None and (user.f_code, user.f_lasti) not in self._fits:
            self._fits[user.f_code, user.f_lasti] = seen_fit(user, frame)

    def _nest(self, phase: Phase) -> Nest:
        file, _line = phase.batch
        loop, place = self._places[phase.batch]
        source = read_source(file)
        assert source is not None
        epoch = None if phase.epoch is None else (phase.epoch[0], self._places[phase.epoch][0])
        around, remarks = epoch_loop_among(source.loops_around(loop.lineno, loop.col_offset), loop, counting_names(source.tree))
        if epoch is not None and around is not None and (file, around.lineno) in phase.nest:
            epoch = (file, around)
        update = _call_in(loop, source.calls_at(place))
        nest = observed_nest(file, source.tree, loop, epoch, update)
        if not self._has_updates:
            remarks += ("no optimizer was applied in the run: loops that set weights were taken",)
        return msgspec.structs.replace(nest, evidence=phase.evidence, remarks=remarks, is_confirmed=phase.is_sure)


def _is_at(marks: Sequence[_Mark], above: int) -> bool:
    """Return whether an update comes from the same places again; the frame that notes it is `above` frames up.

    The check skips the frames between these places, which would take three times as long: the same number of frames
    leads from one place to the next.
    """
    get = sys._getframe
    try:
        for depth, code, instruction in marks:
            frame = get(depth + above)
            if frame.f_code is not code or frame.f_lasti != instruction:
                return False
    except ValueError:  # the stack is not so deep
        return False
    return True


def _key(loop: Loop | None) -> LoopKey | None:
    return None if loop is None else (loop.file, loop.line)


def _call_in(loop: AnyLoop, calls: list[ast.Call]) -> ast.Call | None:
    inside = {id(node) for statement in loop.body for node in ast.walk(statement)}
    return next((call for call in calls if id(call) in inside), None)


def _stack(frames: list[FrameType]) -> _LoopStack:
    """Return the loops around frames; the innermost frame comes first."""
    levels = tuple(_level(frame, index) for index, frame in enumerate(frames))[::-1]
    nest = nested((level.file, loop.lineno) for level in levels for loop in level.loops)
    return _LoopStack(nest, tuple(level for level in levels if level.loops))


def _level(frame: FrameType, index: int) -> _Level:
    file = real_path(frame.f_code.co_filename)
    source = read_source(file)
    place = position(frame)
    loops = () if source is None else tuple(source.loops_around(place.line, place.column))
    return _Level(index, file, loops, {loop.lineno: body_lines(loop) for loop in loops}, place)


def seen_fit(user: FrameType, frame: FrameType) -> FitCall:
    """Return the call of `fit` in the user's frame; `frame` is the frame of `fit` itself, inside its loops."""
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
