"""All that the rest of a run can read, at a cut: what is held in memory of it, and its digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import msgspec
import xxhash

from detrain.adapters.group import Adapters
from detrain.base.cursor import Address, FileState
from detrain.base.digest import digest_array
from detrain.python.codec.baseline import Baseline
from detrain.python.loaders.strategy import RunningLoop
from detrain.python.outside.open_files import Files
from detrain.python.outside.rewritten_files import Contents
from detrain.python.process import pool_jobs
from detrain.python.process.random_streams import Streams
from detrain.runtime.state.capture import Capture
from detrain.runtime.state.uncaptured import Uncaptured


class WholeState(msgspec.Struct, frozen=True):
    """The parts of a session that have a share in the state."""

    capture: Capture
    adapters: Adapters
    streams: Streams
    files: Files
    contents: Contents
    uncaptured: Uncaptured
    baseline: Callable[[], Baseline]
    """Returns what was there before the loop."""
    kept_in: Path
    """Where files are kept that are cut off."""

    def digest(self, frame: FrameType, loop: RunningLoop, since: Address, files: Mapping[str, FileState]) -> str:
        """Return the digest (hex) at the head of a turn of a batch loop: where two are the same, the runs go on the
        same. Nothing where a part of the state is not known.

        It is of what a checkpoint there would hold, without the variables of frameworks, whose digest is taken with
        each step. Where the program has written files since a step, behind which they were `files`, it is not known:
        what is in them is not looked at.
        """
        pool_jobs.wait()
        encoded = self.capture.encode(frame, self.baseline(), are_loads_replayed=True, loop=loop)
        lost = self.uncaptured.found(frame, encoded.not_captured, has_updates=True)
        positions, unknown = self.adapters.positions("forward")
        is_written = self.files.state() != files or self.contents.written_since(since)
        if lost or encoded.not_captured or unknown or is_written:
            return ""
        state = xxhash.xxh3_128(encoded.graph)
        for name, array in sorted({**encoded.arrays, **positions}.items()):
            state.update(f"{name} {digest_array(array)}\n".encode())
        rest = self.adapters.state(), self.streams.read(), self.streams.drawn, sorted(encoded.moved)
        state.update(msgspec.json.encode(rest, order="deterministic"))
        return state.hexdigest()
