"""Sets a checkpoint's state in the program when the run has come to the checkpoint's cut."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import FrameType

from detrain.base import messages
from detrain.base.config import Config
from detrain.base.cursor import Cursor
from detrain.base.errors import Diverged, NotCapturable
from detrain.base.losses import is_harmless, lacking, place_of_loss
from detrain.python.codec.baseline import Baseline
from detrain.python.loaders.generator_reads import COUNTED
from detrain.python.loaders.strategy import RunningLoop
from detrain.python.process import pool_jobs
from detrain.runtime.session.checkpointer import StateParts
from detrain.store import Catalogue, Meta, Snapshot, read_meta


class Restorer:
    """Builds ahead, then sets counters and loaders, variables, Python objects and random streams, in this order."""

    def __init__(self, config: Config, catalogue: Catalogue, state: StateParts) -> None:
        self._config, self._catalogue, self._state = config, catalogue, state
        self._claims_from: int | None = None
        """Number of batches done when the state was restored; None once a body has run on that state."""

    @property
    def is_settled(self) -> bool:
        """Whether a body has run since the last restore; True if there was none."""
        return self._claims_from is None

    def check(self, meta: Meta) -> None:
        """Raise Diverged or EnvironmentChanged if the program, the environment or the epoch is not the checkpoint's,
        NotCapturable if the checkpoint lacks state that may matter.
        """
        self._state.identity.check(meta)
        lost = lacking(meta.not_captured, self._config.allow_lost)
        if lost:
            others = {loss for path in self._config.stations for loss in read_meta(Path(path)).not_captured}
            places = [place_of_loss(loss) for loss in lacking({*lost, *others}, self._config.allow_lost)]
            raise _refused(Cursor(meta.phase, meta.epoch, meta.batch), lost, sorted(set(places)))
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
        """Set the state of a checkpoint. Raises Diverged, NotCapturable.

        `is_sought`: set the loader of `loop` to its position, too. `is_last`: this is the newest checkpoint.
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
        astray = lacking(missing.astray, self._config.allow_lost)
        if astray:
            raise NotCapturable(
                f"{', '.join(astray[:4])} is not where the first run had it: steps that are passed over had moved it",
                "keep what it knows in objects of the program, or start anew with --fresh",
            )
        world = self._state.world
        changed = world.files.changed_since(world.outside.entered_at) if missing.others else []
        unnamed = missing.unnamed + (missing.others if changed else [])
        if unnamed:
            raise Diverged(
                f"the program is not as it was at the checkpoint: {'; '.join(unnamed[:4])}"
                + (f"; {', '.join(changed[:4])} has changed since the run began" if changed else ""),
                "its source and arguments are what they were: detrain cannot bring this back, or what the program reads before "
                "its loop was changed; restore that, or start anew with --fresh",
            )
        harmless = {place_of_loss(loss) for loss in snapshot.meta.not_captured if is_harmless(loss)}
        if is_last and (without := [place for place in missing.named if place not in harmless]):
            messages.warn(f"going on without what was named as not captured: {', '.join(without[:8])}")
        if missing.others:
            places = ", ".join(dict.fromkeys(other.partition(": ")[0] for other in missing.others[:8]))
            messages.say(f"made otherwise before the loop than in the first run, and put back as it was: {places}")
        self._state.adapters.build_made()
        world.files.restore(snapshot.meta.files, self._catalogue.folder if is_last else None)
        databases = enumerate(snapshot.meta.databases)
        world.contents.restore_databases({shown: snapshot.arrays[f"database{number:05d}"] for number, shown in databases})
        self._state.streams.write(snapshot.rng)
        self._state.recorder.be_at_station(lacks_streams=snapshot.meta.lacks_streams)
        self._state.position.batches_done = self._claims_from = snapshot.meta.batches_done
        guard = self._state.guard()
        if guard is not None:
            guard.bounds.set_state(snapshot.meta.guard)
        uncaptured, lost = self._state.uncaptured, snapshot.meta.not_captured
        uncaptured.named.update(lost)
        uncaptured.gone_on_without.update(snapshot.meta.gone_on_without, map(place_of_loss, lacking(lost, ())))

    def _require_loader(self, meta: Meta, loop: RunningLoop | None) -> None:
        now, was = "" if loop is None else self._state.adapters.loader_key(loop.iterator), meta.loader
        if loop is not None and now != was:  # no digest shows it if the run was killed before the batch behind the cut
            raise Diverged(
                f"the batch loop goes over {now or 'no iterator of tf.data'}; in the first run it went over {was or 'none'}",
                "does the program make other iterators before its loop than it did? Start anew with --fresh",
            )

    def check_claims(self) -> None:
        """After the first body of a resumed run, raise Diverged if that body made variables for which no value was
        restored.
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


def _refused(cursor: Cursor, lost: list[str], places: list[str]) -> NotCapturable:
    """Return the error for a checkpoint with losses that may matter; `places`: the places of all losses on the way."""
    allowed = " ".join(f"--allow-lost {shlex.quote(place)}" for place in places)
    how = (
        "draw by a plain `for x in ...` over it"
        if lost[0].startswith(COUNTED)
        else "make it before the loop, or anew in each epoch"
    )
    return NotCapturable(
        f"the checkpoint at {cursor} lacks {', '.join(lost)}: a run would go on otherwise than the first one",
        f"{how}, and start anew with --fresh; or add `{allowed}`, which goes on without",
    )
