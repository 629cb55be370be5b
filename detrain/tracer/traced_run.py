"""A traced run of a program (`detrain trace`): observe, decide when enough has been seen, write the inst.info."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import msgspec

from detrain.base import messages
from detrain.base.config import Config, Trace
from detrain.base.errors import NoStructure
from detrain.base.structure import Nest, Structure, read_info, write_info
from detrain.instrument.fit_calls import summary
from detrain.tracer.dataset_sizes import changed_sizes
from detrain.tracer.observer import Findings, UpdateObserver


class TracedRun:
    """The work in the process of the traced program."""

    def __init__(self, config: Config, trace: Trace) -> None:
        self._config = config
        self._trace = trace
        self._is_over = False
        self.observer = UpdateObserver(self._news, trace.marks, asks_sizes=True)

    def _news(self, observer: UpdateObserver) -> None:
        """End the run after an update if it has shown enough."""
        wanted = self._trace.epochs
        is_fit = observer.has_only_fit and not self._trace.static.nests
        if is_fit or (observer.is_sure if wanted is None else observer.epochs >= wanted):
            self.finish(has_ended=False)
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(0)

    def finish(self, *, has_ended: bool) -> None:
        """Write the structure that was seen. `has_ended`: the program ran to its end. Raises NoStructure without it."""
        if self._is_over:
            return
        self._is_over = True
        self.observer.stop()
        outcome = self.observer.outcome(self._trace.static, has_ended=has_ended)
        structure = msgspec.structs.replace(
            outcome.structure, program=self._config.program, sizes=self.observer.sizes, base=self._trace.base
        )
        path = Path(self._trace.info)
        if not structure.fits and not (structure.nests and outcome.updates):
            raise _nothing(self._config.shown, outcome)
        if self._trace.second:
            structure = self._confirmed(structure, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_info(structure, path, Path(self._trace.base))
        _say(structure, outcome, path)

    def _confirmed(self, structure: Structure, path: Path) -> Structure:
        """Return the structure, with objects of another size than in the first round added to its evidence."""
        first = read_info(path, Path(self._trace.base))
        changed = changed_sizes(first.sizes, structure.sizes, self._trace.diff_size)
        if not changed:
            messages.warn(
                "no object that the loops see has another size than in the first round"
                + ("" if self._trace.diff_size is None else f" by {self._trace.diff_size}")
                + ": give a dataset of another size"
            )
        return msgspec.structs.replace(structure, nests=tuple(_with_loader(nest, changed) for nest in structure.nests))


def _with_loader(nest: Nest, changed: dict[str, tuple[int, int]]) -> Nest:
    """Add the objects with a changed size to the evidence, first those named in the loader's expression."""
    roots = set(re.findall(r"[^\W\d]\w*", nest.loader))
    named = sorted(changed, key=lambda path: (_root(path) not in roots, path))
    lines = [f"second round: {path} changed its size from {changed[path][0]} to {changed[path][1]}" for path in named[:4]]
    is_loader = any(_root(path) in roots for path in changed)
    if changed:
        lines.append(
            "the loader is among them" if is_loader else f"none of them is in the loader as it is written, {nest.loader!r}"
        )
    return msgspec.structs.replace(nest, evidence=(*nest.evidence, *lines))


def _root(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def _nothing(shown: str, outcome: Findings) -> NoStructure:
    if outcome.updates:
        return NoStructure(
            f"{shown!r} updated weights {outcome.updates} times, never inside a loop of its own",
            "if a library trains, `detrain run` finds its loop; else put the training into a loop, or name the loops in an "
            "inst.info (docs/reference/inst-info.md)",
        )
    return NoStructure(
        f"{shown!r} ended without an update of weights (no optimizer of PyTorch, TensorFlow, Keras or JAX was applied)",
        "give it the arguments with which it trains, or name the loops in an inst.info (docs/reference/inst-info.md)",
    )


def _say(structure: Structure, outcome: Findings, path: Path) -> None:
    if not structure.nests:
        places = ", ".join(fit.place for fit in structure.fits[:3])
        messages.say(f"trains through fit ({places}), no loop of its own; written to {path} (`detrain show {path}`)")
        for fit in structure.fits:
            messages.say(f"{fit.place}: {summary(fit)}")
        return
    for nest in structure.nests:
        epoch = "no epoch loop" if nest.epoch_loop is None else f"epoch loop {_place(nest.epoch_loop)}"
        sure = "sure" if nest.is_confirmed else "not confirmed: seen in too short a run"
        messages.say(f"batch loop {_place(nest.batch_loop)}, {epoch} ({sure})")
    messages.say(f"{outcome.updates} updates seen in {outcome.took_s:.1f} s; written to {path} (`detrain show {path}`)")


def _place(loop: object) -> str:
    return f"{os.path.basename(loop.file)}:{loop.line}"  # type: ignore[attr-defined]
