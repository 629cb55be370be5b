"""The whole state at a cut, as far as the rest of a run can read it, and its digest."""

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
    """The parts of a session that hold some of the state."""

    capture: Capture
    adapters: Adapters
    streams: Streams
    files: Files
    contents: Contents
    uncaptured: Uncaptured
    baseline: Callable[[], Baseline]
    """Returns the baseline: the values that were there before the loop."""
    kept_in: Path
    """The folder for the ends that are cut off from files."""

    def digest(self, frame: FrameType, loop: RunningLoop, since: Address, files: Mapping[str, FileState]) -> str:
        """Return the digest (hex) of the state at the head of a turn of a batch loop: two runs with the same digest go
        on alike. Return "" where a part of the state is not known.

        The digest covers the content of a checkpoint there, but for the variables of frameworks: each step has its own
        digest of these. `files` are the states of the files after an earlier step: if the program has written files
        since then, the state is not known, as nothing reads their content.
        """
        pool_jobs.wait()
        encoded = self.capture.encode(frame, self.baseline(), are_loads_replayed=True, loop=loop)
        lost = self.uncaptured.found(frame, encoded.not_captured, has_updates=True)
        positions, unknown = self.adapters.positions("forward")
        is_written = self.files.state() != files or self.contents.written_since(since) or self.contents.changed_databases
        if lost or encoded.not_captured or unknown or is_written:
            return ""
        state = xxhash.xxh3_128(encoded.graph)
        for name, array in sorted({**encoded.arrays, **positions}.items()):
            state.update(f"{name} {digest_array(array)}\n".encode())
        rest = self.adapters.state(), self.streams.read(), self.streams.drawn, sorted(encoded.moved)
        state.update(msgspec.json.encode(rest, order="deterministic"))
        return state.hexdigest()
