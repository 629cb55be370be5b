"""What is lost: of the state that the loop makes, what no checkpoint holds.

It is named when it is first seen, or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from threading import Thread
from types import FrameType
from typing import Final

from detrain.adapters import unsupported
from detrain.adapters.group import Adapters
from detrain.base import messages
from detrain.base.digest import digest_value
from detrain.base.errors import NotCapturable
from detrain.python.inspect.generator_callers import COUNTED, counted_draws
from detrain.python.inspect.library_reads import is_read
from detrain.python.inspect.object_graph import AND_READ, LOADS_TRAINED, is_needed
from detrain.python.inspect.user_modules import user_modules
from detrain.python.loaders.generator_reads import PULLED_SINCE, READS_AND_CHANGED, Reads
from detrain.python.loaders.generator_replay import Pulls
from detrain.python.outside.rewritten_files import Contents
from detrain.python.process import children, open_figures, pending_callbacks, pool_jobs
from detrain.python.process.random_streams import Streams

_MOST_SHOWN: Final = 8
_TYPE: Final = re.compile(r"[\w.]+\)")
"""How a loss ends of which no more is known than its type: the loop has made it."""


class Uncaptured:
    """Names losses, each once. `is_strict`: the first one ends the run."""

    def __init__(
        self,
        adapters: Adapters,
        streams: Streams,
        contents: Contents,
        pulls: Pulls,
        moment: Callable[[], object],
        *,
        is_strict: bool,
    ) -> None:
        """`moment` tells one place of the run from another."""
        self._pulls, self._moment = pulls, moment
        self._reads = Reads(lambda value: digest_value(value, adapters.to_array))
        self._adapters, self._streams, self._contents, self._is_strict = adapters, streams, contents, is_strict
        self.named: Final[set[str]] = set()
        self._explained: Final[set[str]] = set()
        self._later: dict[str, int] = {}
        """What was to be called later when the loop was entered."""
        self._figures: dict[int, tuple[int, ...]] = {}
        """What was in the open figures then."""
        self._drawn: dict[str, int] = {}
        """How often generators out of reach had been drawn from then."""

    def begin_phase(self) -> None:
        """The program enters a training loop: what is there now will be there again."""
        self._figures, self._drawn, self._later = open_figures.drawn(), dict(self._streams.drawn), pending_callbacks.asked()

    def begin_pulls(self) -> None:
        """The generators are known that are there as the loop is entered."""
        self._reads.begin(self._pulls.alive())

    def look(self, frame: FrameType, not_captured: Iterable[str], again: Container[Thread], *, has_updates: bool) -> None:
        """Name what is lost at a cut.

        `not_captured` is what the codec has met; `again` are threads that a resumed run brings to the same place.
        Raises NotCapturable, if that is asked for.
        """
        new = sorted(self.found(frame, not_captured, again, has_updates=has_updates) - self.named)
        read = [loss for loss in new if READS_AND_CHANGED in loss]
        self._warn_of_reads(read)
        trained = [loss for loss in new if loss.endswith(f"{LOADS_TRAINED})")]
        self._warn_of_trained(trained)
        new = [loss for loss in new if loss not in (*read, *trained)]
        if not new:
            return
        self.named.update(new)
        if self._is_strict:
            raise NotCapturable(
                f"the loop makes objects that no checkpoint can hold: {_listed(new)}",
                "make them before the loop, or run without --strict to go on without them",
            )
        refused = [loss for loss in new if is_refused(loss)]
        needed = [loss for loss in new if is_needed(loss)]
        others = [loss for loss in new if loss not in (*refused, *needed)]
        files = [module.__file__ or "" for module in user_modules().values()]
        differing = [loss for loss in others if may_differ(loss, files)]
        harmless = [loss for loss in others if loss not in differing]
        if refused:
            self._warn("a resumed run will be REFUSED from here on", refused, "refused")
        if needed:
            self._warn("as long as they are there a resumed run will be REFUSED from here on", needed, "refused-for-now")
        if differing:
            self._warn("a resumed run may DIFFER from here on", differing, "may-differ")
        if harmless:
            self._warn("harmless, nothing reads what they say: a resumed run goes on without", harmless, "harmless")

    def found(self, frame: FrameType, not_captured: Iterable[str], again: Container[Thread] = (), *, has_updates: bool) -> set[str]:
        """Return what is lost at a cut, with the arguments of `look`."""
        return {
            *not_captured,
            *self._reads.changed(self._pulls.alive(), self._moment()),
            *unsupported.check_training(has_updates=has_updates),
            *children.living(again),
            *pool_jobs.living(),
            *counted_draws(frame),
            *self._contents.not_captured(),
            *(what for what, count in pending_callbacks.asked().items() if count > self._later.get(what, 0)),
            *(f"the generator of {name}" for name, count in self._streams.drawn.items() if count != self._drawn.get(name, 0)),
            *self._adapters.uncaptured(),
            *([open_figures.NAME] if any(self._figures.get(number) != now for number, now in open_figures.drawn().items()) else []),
        }

    def _warn_of_reads(self, changed: list[str]) -> None:
        """Say what generators read that the loop changes, before it matters."""
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

    def _warn_of_trained(self, losses: list[str]) -> None:
        """Say what loads go through that the bodies train."""
        self.named.update(losses)
        for loss in losses:
            place = loss.partition(" (")[0]
            if self._is_strict:
                raise NotCapturable(f"{place}: {LOADS_TRAINED}", "take checkpoints at the starts of epochs: --every 1")
            messages.warn(
                f"{place}: a run that resumes inside an epoch loads batches through it again, with the weights of the epoch's "
                "start, and will be REFUSED if they are others then; --every 1 takes checkpoints at the starts of epochs"
            )

    def _warn(self, what: str, losses: list[str], anchor: str) -> None:
        """Say what is lost; and the first time that something is lost in this way, where it is explained."""
        messages.warn(f"not captured, {what}: {_listed(losses)}")
        if anchor not in self._explained:
            self._explained.add(anchor)
            messages.say(f"what that means is said by `detrain explain {anchor}`")


def is_doubtful(loss: str) -> bool:
    """Return whether a run may not resume from a checkpoint without what was lost."""
    return is_refused(loss) or loss.endswith((PULLED_SINCE, f"{LOADS_TRAINED})"))


def is_refused(loss: str) -> bool:
    """Return whether a run does not resume from a checkpoint without what was lost: it would go on, and do other
    things.
    """
    return loss.startswith(COUNTED) or loss.endswith(f"{AND_READ})")


def may_differ(loss: str, files: Sequence[str]) -> bool:
    """Return whether a run that goes on without what was lost may do other things: a program of these files reads what
    it says, or nobody can tell.
    """
    if loss == open_figures.NAME:
        return False
    path, _, kind = loss.partition(" (")
    is_told = kind.endswith((": it has moved on)", ": open for writing)")) or _TYPE.fullmatch(kind) is not None
    return not is_told or not _is_path(path) or is_read(path, files)


def _is_path(text: str) -> bool:
    """Return whether a loss is named by the names that lead to it (`games in main()[0].env`), not in words."""
    return all(word.isidentifier() for word in text.partition(" in ")[0].partition("[")[0].split("."))


def _listed(losses: list[str]) -> str:
    more = f" and {len(losses) - _MOST_SHOWN} more: `detrain ckpt show` lists them" if len(losses) > _MOST_SHOWN else ""
    return ", ".join(losses[:_MOST_SHOWN]) + more
