"""What a mirror holds, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detrain.base import messages
from detrain.store.catalogue import parse_name
from detrain.store.mirror.remote import Remote, programs_at
from detrain.store.mirror.restore import damage_in, without
from detrain.store.mirror.states import NotWhole, State, get_state, state_names


def list_states(url: str) -> list[dict[str, Any]]:
    """Return a row for each state of each program in a mirror, the newest last. Raises MirrorFailed, UsageError."""
    return [_row(program, state) for program in programs_at(url) for state in _states(Remote(url, program))]


def check_states(url: str) -> list[dict[str, Any]]:
    """Return a row for each state in a mirror, with `good`, else why it is not, and the checkpoint from which a run
    would go on all the same: all its parts are read. Raises MirrorFailed where the mirror does not answer, UsageError.
    """
    rows = []
    for program in programs_at(url):
        remote, whole = Remote(url, program), set[str]()
        for name in state_names(remote):
            why, left = "", None
            try:
                state = get_state(remote, name)
                lost = damage_in(remote, state, whole)
                why, left = next(iter(lost.values()), ""), without(state, lost, state.checkpoint)
            except NotWhole as error:
                why = error.what
            goes_on = "" if left is None else left.checkpoint
            rows.append({"program": program, "state": name, "good": not why, "why": why, "goes on": goes_on})
    return rows


def _states(remote: Remote) -> Iterator[State]:
    for name in state_names(remote):
        try:
            yield get_state(remote, name)
        except NotWhole as error:
            messages.warn(error.what)


def _row(program: str, state: State) -> dict[str, Any]:
    entry = parse_name(Path(state.checkpoint))
    return {
        "program": program,
        "run": state.run,
        "cursor": str(entry.cursor) if entry is not None else "",
        "size": state.size,
        "made": state.made,
        "by": state.host,
        "checkpoint": state.checkpoint,
    }
