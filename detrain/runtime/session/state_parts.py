"""What the state at a cut consists of: read by the checkpointer, set by the restorer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from detrain.adapters.group import Adapters
from detrain.guard.detector import Guard
from detrain.python.process.random_streams import Streams
from detrain.runtime.session.batch_recorder import BatchRecorder
from detrain.runtime.session.world import World
from detrain.runtime.state.capture import Capture
from detrain.runtime.state.identity import Identity
from detrain.runtime.state.position import Position
from detrain.runtime.state.uncaptured import Uncaptured


@dataclass(frozen=True, slots=True, kw_only=True)
class StateParts:
    """The parts of a session that have a share in it."""

    position: Position
    world: World
    adapters: Adapters
    streams: Streams
    capture: Capture
    recorder: BatchRecorder
    uncaptured: Uncaptured
    identity: Identity
    guard: Callable[[], Guard | None]
    """Returns the guard of the run, if it has one by now."""
