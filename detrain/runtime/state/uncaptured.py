"""Losses: the parts of the state made by the loop that no checkpoint holds.

Each loss is named when it is first seen, or it ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from threading import Thread
from types import FrameType
from typing import Final

from detrain.adapters import registry
from detrain.adapters.group import Adapters
from detrain.base import messages
from detrain.base.digest import digest_value
from detrain.base.errors import NotCapturable
from detrain.base.losses import (
    HARMLESS,
    LOADS_READ,
    LOADS_TRAINED,
    OF_CACHE,
    OF_GRAPH,
    OF_OUTPUT,
    PULLED_SINCE,
    is_harmless,
    is_refused,
    lacking,
    place_of_loss,
)
from detrain.python.loaders.generator_reads import READS_AND_CHANGED, GeneratorReads, counted_draws
from detrain.python.loaders.generator_replay import LoopGenerators
from detrain.python.outside.rewritten_files import Contents
from detrain.python.process import children, pending_callbacks, pool_jobs
from detrain.python.process.library_random import HeldStreams
from detrain.python.process.random_streams import Streams

_MOST_SHOWN: Final = 8
_AT_STARTS: Final = "take checkpoints at the starts of epochs: --every 1"
_SHOWN_LATER: Final = {
    f"{LOADS_TRAINED})": (
        "a run that resumes inside an epoch loads batches through it again, with the weights of the epoch's start",
        _AT_STARTS,
    ),
    f"{LOADS_READ})": ("a run that resumes inside an epoch loads batches again by what it was at the epoch's start", _AT_STARTS),
    f"{OF_CACHE})": ("a run that resumes with another cache compiles it again", "keep the cache: TORCHINDUCTOR_CACHE_DIR=FOLDER"),
}
"""For losses that may change a resumed run, by the end of their text: how they change it, and advice to the user."""


class Uncaptured:
    """Names losses, each once. With `is_strict`, the first one ends the run."""

    def __init__(
        self,
        adapters: Adapters,
        streams: Streams,
        contents: Contents,
        pulls: LoopGenerators,
        moment: Callable[[], object],
        *,
        is_strict: bool,
        allowed: Container[str] = (),
    ) -> None:
        """`moment` returns a value unique to the run's place; `allowed`: places that the user agrees to lose."""
        self._pulls, self._moment = pulls, moment
        self._reads = GeneratorReads(lambda value: digest_value(value, adapters.to_array))
        self._adapters, self._streams, self._contents, self._is_strict = adapters, streams, contents, is_strict
        self._allowed = allowed
        self.held: Final = HeldStreams(adapters.held_generators)
        self.named: Final[set[str]] = set()
        self.gone_on_without: Final[set[str]] = set()
        """Places of the losses that the run accepted at a resume, as the user allowed it."""
        self._explained: Final[set[str]] = set()
        self._later: dict[str, int] = {}
        """Number of calls of each kind that were due later when the loop was entered."""
        self._figures: dict[int, tuple[int, ...]] = {}
        """Number of things in each of the axes of the open figures at that time."""
        self._drawn: dict[str, int] = {}
        """Number of draws from generators out of reach by that time."""

        self._ran: dict[int, int] = {}
        """Run times of child processes at that time, in nanoseconds."""

    def begin_phase(self) -> None:
        """Note the present values as the program enters a training loop: a resumed run has them here again."""
        self._figures, self._drawn, self._later = (
            pending_callbacks.drawn_figures(),
            dict(self._streams.drawn),
            pending_callbacks.asked(),
        )
        self._ran = children.run_times()

    def begin_pulls(self) -> None:
        """Note the values that generators read, as the loop is entered and its generators are known."""
        self._reads.begin(self._pulls.alive())

    def look(self, frame: FrameType, not_captured: Iterable[str], again: Container[Thread], *, has_updates: bool) -> set[str]:
        """Name the losses at a cut, and return those that a checkpoint there must list.

        `not_captured` are the losses that the codec has met; `again` are threads that a resumed run brings to the same
        place. Raises NotCapturable if the user asked for that (`is_strict`).
        """
        lost = self.found(frame, not_captured, again, has_updates=has_updates)
        new = sorted(lost - self.named)
        self._warn_of_reads([loss for loss in new if READS_AND_CHANGED in loss])
        self._warn_of_later([loss for loss in new if loss.endswith(tuple(_SHOWN_LATER))])
        new = [loss for loss in new if READS_AND_CHANGED not in loss and not loss.endswith(tuple(_SHOWN_LATER))]
        self.named.update(new)
        refused = lacking(new, self._allowed)
        allowed = [loss for loss in new if is_refused(loss) and loss not in refused]
        if refused and self._is_strict:
            raise NotCapturable(
                f"the loop makes objects that no checkpoint can hold: {_listed(refused)}",
                "make them before the loop, or run without --strict to go on without them",
            )
        if refused:
            self._warn("a resumed run will be REFUSED from here on", refused, "refused")
        if allowed:
            self._warn("a resumed run goes on without, by --allow-lost", allowed, "allowed")
        if harmless := [loss for loss in new if is_harmless(loss) and not loss.endswith(f"{OF_OUTPUT})")]:
            self._warn("harmless, a resumed run goes on without", harmless, "harmless")
        return {loss for loss in lost if READS_AND_CHANGED not in loss or loss.endswith(PULLED_SINCE)}

    def found(self, frame: FrameType, not_captured: Iterable[str], again: Container[Thread] = (), *, has_updates: bool) -> set[str]:
        """Return the losses at a cut. The arguments are those of `look`."""
        return {
            *(loss for loss in not_captured if not loss.endswith(f"{OF_GRAPH})")),
            *self._reads.changed(self._pulls.alive(), self._moment()),
            *registry.check_training(has_updates=has_updates),
            *children.living(again, self._ran),
            *pool_jobs.living(),
            *counted_draws(frame),
            *self._contents.not_captured(),
            *(what for what, count in pending_callbacks.asked().items() if count > self._later.get(what, 0)),
            *(f"the generator of {name}" for name, count in self._streams.drawn.items() if count != self._drawn.get(name, 0)),
            *(f"{name} (a generator that a library has made since)" for name in self.held.since()),
            *self._adapters.uncaptured(),
            *(
                [pending_callbacks.OPEN_FIGURES]
                if any(self._figures.get(number) != now for number, now in pending_callbacks.drawn_figures().items())
                else []
            ),
        }

    def _warn_of_reads(self, changed: list[str]) -> None:
        """Warn of values that generators read and the loop changes, before they matter."""
        for what in changed:
            base = what.removesuffix(PULLED_SINCE)
            if self._is_strict:
                raise NotCapturable(f"{base}: pulled again, it may yield otherwise", "make the generator anew in each epoch")
            messages.warn(
                f"{base}: a resumed run pulls it again from its start, and will be REFUSED if it yields otherwise; make it anew in "
                "each epoch"
            )
            if what.endswith(PULLED_SINCE):
                self.named.add(what)

    def _warn_of_later(self, losses: list[str]) -> None:
        """Warn of losses whose effect only a resumed run can see, by a comparison with the first run."""
        self.named.update(losses)
        for kind, (does, todo) in _SHOWN_LATER.items():
            places = [place_of_loss(loss) for loss in losses if loss.endswith(kind)]
            if not places:
                continue
            what = f"{', '.join(places[:_MOST_SHOWN])}: {kind.removesuffix(')')}"
            if self._is_strict:
                raise NotCapturable(what, todo)
            messages.warn(f"{what}: {does}, and will be REFUSED if that is not the same; {todo}")

    def _warn(self, what: str, losses: list[str], anchor: str) -> None:
        """Warn of losses; at the first of their kind (`anchor`), also say where that kind is explained."""
        messages.warn(f"not captured, {what}: {_listed(losses)}")
        if anchor not in self._explained:
            self._explained.add(anchor)
            messages.say(f"what that means is said by `detrain explain {anchor}`")


def _listed(losses: list[str]) -> str:
    losses = [f"{loss.removesuffix(f'{HARMLESS})')})" if is_harmless(loss) else loss for loss in losses]
    more = f" and {len(losses) - _MOST_SHOWN} more: `detrain ckpt show` lists them" if len(losses) > _MOST_SHOWN else ""
    return ", ".join(losses[:_MOST_SHOWN]) + more
