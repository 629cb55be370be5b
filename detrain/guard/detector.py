"""The guard of a run: it looks at the norms at each cut, reports and logs alarms, and decides how the run reacts."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from detrain.adapters.group import Adapters
from detrain.base import messages
from detrain.base.cursor import Cursor
from detrain.base.errors import FaultPersists
from detrain.guard.bounds import Bounds, Excess, Mark

DEPTH: Final = 2
"""Number of steps to run again. A fault in the gradients shows in the same step, one in the weights in the next."""

_MOST_NAMED: Final = 8
"""So many variables of an alarm are logged: NaN spreads to all of them within a step."""

Action = Literal["detected", "went back", "restarted", "stopped", "went on"]


class Guard:
    """Watches the variables of a run. `log` is the file of its alarms, each a line of JSON."""

    def __init__(self, *, recovers: bool, goes_on: bool, log: Path, adapters: Adapters, is_first: bool) -> None:
        self.recovers: Final = recovers
        self.bounds: Final = Bounds({})
        self._goes_on = goes_on
        self._log = log
        self._adapters = adapters
        self._looked_at = 0
        self.alarm: Excess | None = None
        """The worst excess that the last look has seen."""
        self._known: set[str] = set()
        """Variables that were above their bounds at the last look, and have been named."""
        self._tried_until = self.restarted_until = -1
        """Number of batches done at the last alarm after which steps were run again in memory, and at the last one
        after which the run began again at a checkpoint."""
        self._is_whole_way = False
        if is_first:  # a log here is from a run that was killed before its first checkpoint
            log.unlink(missing_ok=True)
        lines = read_log(log)
        if lines and lines[-1]["action"] == "restarted":
            self.restarted_until = lines[-1]["batches_done"]

    def must_go_back(self, cursor: Cursor, batches_done: int) -> bool:
        """Look at the norms if a body has run since the last look. Return whether the last steps must be run again.

        Raises FaultPersists if that has been tried.
        """
        if batches_done == self._looked_at:
            if not batches_done:  # values that are infinite before the first step are meant to be: frameworks note them
                self.bounds.begin(*self._adapters.norms())
            return False
        self._looked_at = batches_done
        self.alarm = None
        excesses = self.bounds.judge(*self._adapters.norms())
        if not excesses:
            self._known.clear()
            return False
        self.alarm = excesses[0]
        new = [excess for excess in excesses if excess.key not in self._known]
        self._known = {excess.key for excess in excesses}
        if not self.recovers:
            if new:
                self._say(cursor, batches_done, new, "detected")
            return False
        is_repeated = batches_done <= self._tried_until and self._is_whole_way
        if not is_repeated and batches_done > self.restarted_until:
            self._known.clear()
            self._say(cursor, batches_done, excesses, "detected")
            return True
        if self._goes_on:
            if new:
                self._say(cursor, batches_done, new, "went on")
            self.bounds.admit(excesses)
            return False
        self._say(cursor, batches_done, excesses, "stopped")
        raise FaultPersists(
            f"{self._describe(excesses[0])} at {cursor} again, after the steps before it were run again: no transient fault",
            "training diverges here, or an earlier step did the damage: look at it, or go on with --on-repeat continue",
        )

    def has_tried(self, batches_done: int) -> bool:
        """Return whether the steps before an alarm have been run again from memory, as far back as it reached."""
        return batches_done <= self._tried_until

    def go_back(self, bounds: Mark) -> None:
        """Put the bounds back, too, as an earlier state of the run has been put back."""
        self.bounds.go_back(bounds)
        self._known.clear()
        self._looked_at, self.alarm = -1, None

    def note_way(self, cursor: Cursor, batches_done: int, *, back_to: Cursor, steps: int) -> None:
        """Log and report that the state of an earlier cut has been put back."""
        self._tried_until, self._is_whole_way = batches_done, steps >= DEPTH
        self._write(cursor, batches_done, "went back", {"back_to": str(back_to), "steps": steps})
        messages.say(f"went back to {back_to}, in memory: {steps} step{'s' if steps > 1 else ''} run again")

    def note_restart(self, cursor: Cursor, batches_done: int, why: str) -> None:
        """Log and report that the run is about to begin again at a checkpoint."""
        self._write(cursor, batches_done, "restarted", {"why": why})
        messages.say(f"no exact way back in memory ({why}): starting again from a checkpoint before the fault")

    def note_success(self, cursor: Cursor, batches_done: int) -> None:
        """Log and report that steps run again have ended without an alarm, if the last look was that behind them."""
        if self.alarm is None and max(self._tried_until, self.restarted_until) in range(batches_done + 1):
            self._tried_until = self.restarted_until = -1
            self._write(cursor, batches_done, "recovered", {})
            messages.say(f"at {cursor} again, without the alarm: it was a transient fault, and is undone")

    def _say(self, cursor: Cursor, batches_done: int, excesses: Sequence[Excess], action: Action) -> None:
        for excess in excesses[:_MOST_NAMED]:
            details = {"variable": excess.key, "norm": _number(excess.norm), "bound": _number(excess.bound), "kind": excess.kind}
            self._write(cursor, batches_done, action, {**details, **self._largest(excess.key)})
        more = f" and {len(excesses) - 1} more" if len(excesses) > 1 else ""
        messages.warn(f"alarm at {cursor}: {self._describe(excesses[0])}{more}")

    def _describe(self, excess: Excess) -> str:
        largest = self._largest(excess.key)
        where = f", {largest['value']} at {largest['position']}" if largest else ""
        return f"{excess.key} has norm {excess.norm:.4g}, bound {excess.bound:.4g} ({excess.kind}){where}"

    def _largest(self, key: str) -> dict[str, Any]:
        """Return the largest element of a variable (a NaN counts as the largest), and its position."""
        array = self._adapters.watched_value(key)
        if array is None or not array.size:
            return {}
        sizes = np.abs(array.astype(np.float64))
        place = int(np.argmax(np.where(np.isnan(sizes), np.inf, sizes)))
        position = [int(number) for number in np.unravel_index(place, array.shape)]
        return {"value": _number(float(array.reshape(-1)[place])), "position": position}

    def _write(self, cursor: Cursor, batches_done: int, action: str, more: dict[str, Any]) -> None:
        line = json.dumps({"at": str(cursor), "cut": cursor.cut, "batches_done": batches_done, "action": action, **more})
        with io.FileIO(self._log, "a") as file:  # not `open`: detrain follows the files that it opens
            file.write(line.encode() + b"\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log of alarms."""
    found = []
    for line in _lines(path):
        with contextlib.suppress(ValueError):  # a torn line: the machine went down while it was written
            found.append(json.loads(line))
    return found


def _lines(path: Path) -> Iterable[bytes]:
    return path.read_bytes().splitlines() if path.is_file() else ()


def _number(value: float) -> float | str:
    """Return a number in a form that JSON allows: text if it is not finite."""
    return value if np.isfinite(value) else str(value)
