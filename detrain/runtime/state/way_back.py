"""What to do about a resume that is refused, beside starting anew: the newest checkpoint that may do."""

from __future__ import annotations

import shlex

from detrain.base.config import Config
from detrain.base.errors import DetrainError, Diverged, NotCapturable, StoreError
from detrain.runtime.state.uncaptured import lacking
from detrain.store import Catalogue, Entry, read_meta


def way_back(error: DetrainError, config: Config, catalogue: Catalogue) -> str:
    """Return, in words, the earlier checkpoint to go on from where a resumed run is refused; empty if there is none.

    Where a batch was another one, all before it were equal: then it is the newest that lies before that batch.
    """
    if not isinstance(error, Diverged | NotCapturable) or not error.may_go_back or not config.stations or config.ranks is not None:
        return ""
    target = next((entry for entry in catalogue.entries() if str(entry.path) == config.stations[-1]), None)
    if target is None or not config.command:
        return ""
    differs = error.at if isinstance(error, Diverged) else None
    for entry in reversed(catalogue.ways(config.program, config.run)):
        cursor = entry.cursor
        is_before = cursor.key() < target.cursor.key() and (
            differs is None or (cursor.phase, cursor.epoch, cursor.batch) <= differs
        )
        if is_before and not _is_known_to_fail(entry, config):
            why = "up to which all batches were equal" if differs is not None else "whose first batch is compared, too"
            return f", or go back to the checkpoint at {cursor}, {why}: `{_command(config.command, str(cursor))}`"
    return ""


def _is_known_to_fail(entry: Entry, config: Config) -> bool:
    try:
        return bool(lacking(read_meta(entry.path).not_captured, config.allowed_losses))
    except StoreError:
        return True


def _command(words: tuple[str, ...], cursor: str) -> str:
    first, *rest = words
    if "--from" in rest[:-1]:
        place = rest.index("--from")
        del rest[place : place + 2]
    return shlex.join(["detrain", first, "--from", cursor, *rest])
