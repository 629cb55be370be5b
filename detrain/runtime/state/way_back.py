"""What to do about a resume that is refused, beside starting anew: the newest checkpoint that may do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from detrain.base.config import Config
from detrain.base.errors import DetrainError, Diverged, NotCapturable, StoreError
from detrain.base.losses import is_doubtful, lacking
from detrain.store import Catalogue, Entry, read_meta


def way_back(error: DetrainError, config: Config, catalogue: Catalogue, passed: Sequence[str]) -> str:
    """Return, in words, the earlier checkpoint to go on from where a resumed run is refused; empty if there is none.

    Where a batch that was loaded again was another one, it is the start of an epoch before it: what the bodies between
    have changed may be what it is drawn by. A batch behind the cut, or the first of an epoch that the run has come to
    as it would come to it again, would be the same once more. Otherwise it is a checkpoint that this run has come
    through (`passed`), or the start of an epoch without what makes the newest doubtful.
    """
    if not isinstance(error, Diverged | NotCapturable) or not error.may_go_back or not config.stations or config.ranks is not None:
        return ""
    target = next((entry for entry in catalogue.entries() if str(entry.path) == config.stations[-1]), None)
    if target is None or not config.command:
        return ""
    aim, at = target.cursor, error.at if isinstance(error, Diverged) else None
    is_again, has_doubts = at is not None and at < (aim.phase, aim.epoch, aim.batch), any(map(is_doubtful, _lost(target)))
    for entry in reversed(catalogue.ways(config.program, config.run)):
        cursor, lost = entry.cursor, _lost(entry)
        if cursor.key() >= aim.key() or lacking(lost, config.allow_lost):
            continue
        if at is not None and is_again:
            here = (cursor.phase, cursor.epoch, cursor.batch)
            is_good = here <= at and not cursor.is_inside and (here != at or here[:2] != (aim.phase, aim.epoch))
        else:
            is_sound = has_doubts and not cursor.is_inside and not any(map(is_doubtful, lost))
            is_good = is_sound or (at is None and str(entry.path) in passed)
        if is_good:
            why = "up to which all batches were equal" if is_again else "which has all that it needs"
            return f", or go back to the checkpoint at {cursor}, {why}: `{_command(config.command, str(cursor))}`"
    return ""


def _lost(entry: Entry) -> tuple[str, ...]:
    """Return what a checkpoint lacks: all, where it cannot be read."""
    try:
        return read_meta(entry.path).not_captured
    except StoreError:
        return ("its file",)


def _command(words: tuple[str, ...], cursor: str) -> str:
    first, *rest = words
    if "--from" in rest[:-1]:
        place = rest.index("--from")
        del rest[place : place + 2]
    return shlex.join(["detrain", first, "--from", cursor, *rest])
