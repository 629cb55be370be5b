"""Observes a running program: at each update of weights it looks which loops are around it, and watches those turn.

Nothing is watched before the first update, and nothing after the loops are known.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Final

import msgspec

from detrain.instrument.analysis import epoch_loop_among, observed_nest
from detrain.runtime.frames import is_user_file
from detrain.structure import AnyLoop, Nest, Structure
from detrain.tracer.events import LineWatcher, OnLine, line_watcher
from detrain.tracer.inference import Inference, LoopKey, Phase, nested
from detrain.tracer.sizes import sizes_in
from detrain.tracer.source import Position, body_lines, position, read_source

_NEWS_EACH: Final = 16
"""Updates between two looks at what is known, once it is known."""

_KERAS_FIT: Final = os.path.join("keras", "src", "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has shown."""

    structure: Structure
    is_sure: bool
    updates: int
    took_s: float
    """Seconds from the first update to the last one that was watched."""


class Observer:
    """Takes updates from a framework, and turns of loops from a watcher. `on_news` is called after updates."""

    def __init__(self, on_news: Callable[[Observer], None], make_watcher: Callable[[OnLine], LineWatcher] = line_watcher) -> None:
        self._on_news = on_news
        self._inference = Inference()
        self._watcher = make_watcher(self._reached)
        self._is_watching = True
        self._has_updates = False
        self._since_news = 0
        self._is_settled = False
        """Whether the loops are known: their turns are no longer watched, until an update comes from elsewhere."""
        self._around: dict[tuple[CodeType, int], tuple[str, tuple[AnyLoop, ...], Position]] = {}
        self._stacks: dict[tuple[tuple[CodeType, int], ...], tuple[LoopKey, ...]] = {}
        self._places: dict[LoopKey, tuple[AnyLoop, Position]] = {}
        self._fits: dict[str, None] = {}
        self._outside = 0
        self._began = self._ended = 0.0
        self.sizes: dict[str, int] = {}

    def on_update(self, what: int) -> None:
        """Weights have been updated, somewhere below the caller."""
        if not self._is_watching:
            return
        if not self._has_updates:
            self._has_updates, self._inference = True, Inference()
        self._see(what)
        self._since_news += 1
        if not self._is_settled or self._since_news >= _NEWS_EACH:
            self._since_news = 0
            self._on_news(self)

    def on_assign(self, what: int) -> None:
        """A weight was set outside of updates: this counts as long as there are no others."""
        if self._is_watching and not self._has_updates:
            self._see(what)

    def _see(self, what: int) -> None:
        frames: list[FrameType] = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if is_user_file(code.co_filename):
                frames.append(frame)
            elif code.co_name == "fit" and _KERAS_FIT in code.co_filename:
                self._note_fit(frame)
                return
            frame = frame.f_back
        self._ended = time.monotonic()
        self._began = self._began or self._ended
        stack = tuple([(each.f_code, each.f_lasti) for each in frames])
        if self._is_settled and stack in self._stacks:
            self._inference.count(self._stacks[stack])
            return
        parts = [(each, *self._look(each)) for each in reversed(frames)]
        nest = nested((file, loop.lineno) for _frame, file, loops, _place in parts for loop in loops)
        if nest:
            self._stacks[stack] = nest
        if not nest:
            self._outside += 1
        elif self._inference.update(nest, what):
            for _frame, file, loops, place in parts:
                for loop in loops:
                    self._places.setdefault((file, loop.lineno), (loop, place))
            if not self.sizes:
                self.sizes = sizes_in([frame for frame, *_rest in parts])
        self._is_settled = self.is_sure
        for frame, _file, loops, _place in parts:
            if loops and not self._is_settled:
                self._watcher.arm(frame, {loop.lineno: body_lines(loop) for loop in loops})

    @property
    def is_sure(self) -> bool:
        """Whether the loops seen so far are known for sure."""
        return self._has_updates and self._inference.is_sure()

    @property
    def knows_batch_loop(self) -> bool:
        """Whether one loop has been seen to update repeatedly."""
        return any(self._inference.records[phase.batch].most_of_one > 1 for phase in self._inference.phases())

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
        """How many epochs have been seen to end."""
        return self._inference.epochs()

    def stop(self) -> None:
        """Watch nothing any more."""
        self._is_watching = False
        self._watcher.stop()

    def outcome(self, static: Structure, *, has_ended: bool) -> Outcome:
        """Return what was seen. Loops that static analysis proposes and that were not reached are kept if the run was cut short."""
        nests = [self._nest(phase) for phase in self._inference.phases()]
        if not has_ended:
            nests += [
                msgspec.structs.replace(nest, evidence=(*nest.evidence, "static analysis; not reached in the traced run"))
                for nest in static.nests
                if not self._was_passed(nest)
            ]
        took = self._ended - self._began
        source = f"a traced run ({self._inference.updates} updates in {took:.1f} s, by {self._watcher.name})"
        structure = Structure(tuple(nests), source, tuple(self._fits))
        return Outcome(structure, self.is_sure, self._inference.updates + self._outside, took)

    def _was_passed(self, nest: Nest) -> bool:
        """Return whether the run has been through a loop that static analysis proposes, or knows it better."""
        known = self._inference.records
        key = (nest.batch_loop.file, nest.batch_loop.line)
        around = None if nest.epoch_loop is None else (nest.epoch_loop.file, nest.epoch_loop.line)
        return key in known or (around in known and self.is_sure)

    def _look(self, frame: FrameType) -> tuple[str, tuple[AnyLoop, ...], Position]:
        key = (frame.f_code, frame.f_lasti)
        if key not in self._around:
            file = _real(frame.f_code.co_filename)
            source = read_source(file)
            place = position(frame)
            loops = () if source is None else tuple(source.loops_around(place.line, place.column))
            self._around[key] = (file, loops, place)
        return self._around[key]

    def _reached(self, code: CodeType, line: int) -> None:
        self._inference.turn((_real(code.co_filename), line))

    def _note_fit(self, frame: FrameType) -> None:
        user: FrameType | None = frame
        while user is not None and not is_user_file(user.f_code.co_filename):
            user = user.f_back
        if user is not None:
            self._fits[f"{os.path.basename(user.f_code.co_filename)}:{user.f_lineno}"] = None

    def _nest(self, phase: Phase) -> Nest:
        file, _line = phase.batch
        loop, place = self._places[phase.batch]
        source = read_source(file)
        assert source is not None
        epoch = None if phase.epoch is None else (phase.epoch[0], self._places[phase.epoch][0])
        around, remarks = epoch_loop_among(source.loops_around(loop.lineno, loop.col_offset), loop)
        if epoch is not None and around is not None and (file, around.lineno) in phase.nest:
            epoch = (file, around)
        update = _call_in(loop, source.calls_at(place))
        nest = observed_nest(file, source.tree, loop, epoch, update)
        if not self._has_updates:
            remarks += ("no optimizer was applied in the run: loops that set weights were taken",)
        return msgspec.structs.replace(nest, evidence=phase.evidence, remarks=remarks, is_confirmed=phase.is_sure)


def _call_in(loop: AnyLoop, calls: list[ast.Call]) -> ast.Call | None:
    inside = {id(node) for statement in loop.body for node in ast.walk(statement)}
    return next((call for call in calls if id(call) in inside), None)


@lru_cache(maxsize=1024)
def _real(filename: str) -> str:
    return os.path.realpath(filename)
