"""Turn a just-in-time checkpoint into ordinary ones: before the ranks agree, each writes its own part of it.

Each rank reads its own state and the shared state that one rank has saved, and commits the checkpoint that it would
have written at that cut. All later code treats it like any other checkpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from detrain.base import messages
from detrain.base.config import Ranks
from detrain.base.errors import DetrainError
from detrain.runtime.ranks.manifest import find
from detrain.runtime.state.split_snapshot import joined, read_shared
from detrain.store import Catalogue
from detrain.store.catalogue import cursor_of
from detrain.store.job_home import JUST_IN_TIME, complete_names


def take_in(catalogue: Catalogue, program: str, run: int, ranks: Ranks) -> None:
    """Write this rank's part of a run's newest just-in-time checkpoint, if it is newer than all complete ones."""
    found, passed = find(catalogue.folder.parent / JUST_IN_TIME, f"{program} run {run}", ranks.world)
    for line in passed:
        if "no manifest" not in line and "another job" not in line:
            messages.warn(line)
    if found is None:
        return
    base = found.manifest.base
    try:
        own = found.small(ranks.rank, base)
        if not own:
            return  # it was taken at a cut from which no run could go on
        snapshot = joined(own, read_shared(found.big / f"cut-{base.cut}"))
        cursor = cursor_of(snapshot.meta)
        counts = complete_names(catalogue.folder, ranks.world)  # a death at an epoch's start leaves some ranks with a newer one
        mine = [entry for entry in catalogue.entries() if (entry.program, entry.run) == (program, run)]
        if any(entry.cursor.key() >= cursor.key() and counts(entry.path.name) for entry in mine):
            return
        catalogue.save(program, run, cursor, snapshot)
    except (OSError, DetrainError) as error:
        messages.warn(f"the just-in-time checkpoint in {str(found.folder)!r} cannot be used: {error}")
        return
    messages.say(f"just-in-time checkpoint at {cursor} ({found.manifest.why})")


def clear(job: Path) -> None:
    """Delete the just-in-time checkpoints: all ranks have taken in their parts by now."""
    shutil.rmtree(job / JUST_IN_TIME, ignore_errors=True)
