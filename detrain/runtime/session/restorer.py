"""Sets the state of a checkpoint at its cut, in the program that has come there."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType

from detrain.base import messages
from detrain.base.config import Config
from detrain.base.errors import Diverged, NotCapturable
from detrain.python.codec.api import Baseline
from detrain.python.inspect.generator_callers import COUNTED
from detrain.python.inspect.object_graph import WITH_VARIABLES
from detrain.python.loaders.strategy import RunningLoop
from detrain.python.process import pool_jobs
from detrain.runtime.session.state_parts import StateParts
from detrain.runtime.state.uncaptured import is_refused
from detrain.store import Catalogue, Meta, Snapshot


class Restorer:
    """Builds ahead, sets counters and loaders, variables, Python objects, random streams: in this order."""

    def __init__(self, config: Config, catalogue: Catalogue, state: StateParts) -> None:
        self._config, self._catalogue, self._state = config, catalogue, state
        self._claims_from: int | None = None
        """Batches done when the state was restored, until a body has run on it."""

    @property
    def is_settled(self) -> bool:
        """Whether a body has run since the last state was restored, if one was."""
        return self._claims_from is None

    def check(self, meta: Meta) -> None:
        """Raise Diverged or EnvironmentChanged if this is not the program, the environment or the epoch of a
        checkpoint.
        """
        self._state.identity.check(meta)
        item = self._state.position.item
        if meta.item not in ("", item):
            here = self._state.position.cursor("epoch")
            raise Diverged(
                f"epoch {here} is {item or 'another'} for the program; it was {meta.item} in the first run",
                "does the program resume by itself, from a checkpoint of its own? Move that away, or start anew with --fresh",
            )

    def restore(
        self, snapshot: Snapshot, frame: FrameType, baseline: Baseline, loop: RunningLoop | None, *, is_sought: bool, is_last: bool
    ) -> None:
        """Set the state.

        `is_sought`: the loader of `loop` is set to its position, too; `is_last`: of the newest checkpoint.
        """
        pool_jobs.wait()
        positions = {key: snapshot.arrays[f"loader{number:05d}"] for number, key in enumerate(snapshot.meta.loaders)}
        self._state.adapters.set_state(snapshot.meta.frameworks, positions, self._config.loader)
        if snapshot.meta.frameworks:
            self._state.recorder.pulls.be_at(None)
        self._state.adapters.restore(snapshot.tensors, snapshot.meta.owners)
        loop = loop if is_sought else None
        self._require_loader(snapshot.meta, loop)
        missing = self._state.capture.restore(frame, snapshot, baseline, loop)
        named = snapshot.meta.not_captured
        unnamed = [loss for loss in missing if not any(_same_place(loss, _place_of(each)) for each in named)]
        if unnamed:
            raise Diverged(
                f"the program is not as it was at the checkpoint: {'; '.join(unnamed[:4])}",
                "its source and arguments are what they were: detrain cannot bring this back, or what the program reads before "
                "its loop was changed; restore that, or start anew with --fresh",
            )
        _refuse(missing, named)
        if is_last and missing:
            messages.warn(f"going on without what was named as not captured: {', '.join(missing[:8])}")
        self._state.adapters.build_made()
        self._state.world.files.restore(snapshot.meta.files, self._catalogue.folder if is_last else None)
        self._state.streams.write(snapshot.rng)
        self._state.recorder.be_at_station(lacks_streams=snapshot.meta.lacks_streams)
        self._state.position.batches_done = self._claims_from = snapshot.meta.batches_done
        guard = self._state.guard()
        if guard is not None:
            guard.bounds.set_state(snapshot.meta.guard)
        self._state.uncaptured.named.update(named)

    def _require_loader(self, meta: Meta, loop: RunningLoop | None) -> None:
        now, was = "" if loop is None else self._state.adapters.loader_key(loop.iterator), meta.loader
        if loop is not None and now != was:  # no digest tells, if the run was killed before the batch behind the cut
            raise Diverged(
                f"the batch loop goes over {now or 'no iterator of tf.data'}; in the first run it went over {was or 'none'}",
                "does the program make other iterators before its loop than it did? Start anew with --fresh",
            )

    def check_claims(self) -> None:
        """After the first body of a resumed run: see that what it has made took the values that
        were restored for it.
        """
        if self._claims_from is None or self._state.position.batches_done == self._claims_from:
            return
        self._claims_from = None
        unclaimed = self._state.adapters.unclaimed()
        if unclaimed:
            raise Diverged(
                f"variables were made anew, and no value was restored for them: {', '.join(unclaimed[:4])}",
                "make them before the loop (build the model, call the function once), and start anew with --fresh",
            )


def _refuse(missing: Sequence[str], named: Sequence[str]) -> None:
    """What the run would go on wrong without was named when it was saved."""
    for loss in named:
        if loss.startswith(COUNTED):
            raise NotCapturable(f"{loss}, is lost", "draw by a plain `for x in ...` over it, and start anew with --fresh")
        if is_refused(loss):
            raise NotCapturable(
                f"no checkpoint holds {loss}: the run would go on with what it says without the steps that are passed over",
                "keep what it knows in objects of the program, make it anew in each run of a loop, or start anew with --fresh",
            )
    for loss in missing:
        if any(_same_place(loss, _place_of(each)) and each.endswith(f"{WITH_VARIABLES})") for each in named):
            raise NotCapturable(
                f"{loss!r} was made in the loop, with variables that cannot be put back into another one",
                "make it before the loop, and start anew with --fresh",
            )


def _same_place(one: str, other: str) -> bool:
    """Return whether two paths (`games in main()[0].env`) are equal but for the function that
    their first name is of.
    """

    def parts(path: str) -> tuple[str, str]:
        name, _, rest = path.partition(" in ")
        return name, rest.partition("()")[2]

    return one == other or (" in " in one and parts(one) == parts(other))


def _place_of(named: str) -> str:
    """Return the path of what was named as `PATH (KIND)`."""
    return named.partition(" (")[0]
