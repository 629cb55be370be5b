"""Code that runs in a DataLoader's worker: it sends the random streams with each batch, and sets them in a resumed run.

`StampedInit` stands in for the program's `worker_init_fn`. It is pickled by its name, so it works with `spawn`, too.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawValue
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import xxhash
from torch.utils.data._utils import worker as _worker

from detrain.base.child_processes import die_with
from detrain.base.plain_types import SCALARS
from detrain.python.inspect.held import by_identity, walk
from detrain.python.inspect.names import own_attributes
from detrain.python.inspect.random_state import is_stream, state_of
from detrain.python.process.random_streams import NumpyStream, PythonStream, Stream
from detrain.python.process.sigterm import is_awaited

MARK: Final = "detrain: a batch with the streams behind it"
_MOST_ITEMS: Final = 256
_PLAIN: Final = tuple(SCALARS)
_DEEPEST: Final = 8
_SMALL_BYTES: Final = 1 << 12


class Stamp(NamedTuple):
    """The state of a worker after a batch."""

    streams: dict[str, bytes]
    """The states of its random streams, by name."""
    is_moved: bool
    """Whether its copy of the data set has changed since the start."""


@dataclass(frozen=True)
class WorkerExhausted(_worker._IterableDatasetStopIteration):  # type: ignore[misc]
    """A worker's message that it has no further batch, with its state now: a dropped batch may have drawn numbers."""

    stamp: Stamp | None


@functools.cache
def _leaving() -> Any:
    """Return a number in memory shared with workers: 1 once this process is at its end, else 0."""
    found, here = RawValue("b", 0), os.getpid()

    def leave() -> None:
        if os.getpid() == here:
            found.value = 1

    atexit.register(leave)  # registered after `multiprocessing`'s function, so called before it
    return found


class StampedInit:
    """Calls the program's `worker_init_fn`, sets the streams in a resumed run, and stamps each batch."""

    def __init__(self, original: Callable[[int], None] | None, states: dict[int, dict[str, bytes]]) -> None:
        self._original, self._states = original, states
        self._leaving = _leaving() if is_awaited() else None
        self._parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0

    def __call__(self, worker: int) -> None:
        """Set up the worker of this number. It ends with the process that has started it, even if that is killed: a
        worker of PyTorch would wait for ever for a reader of its batches, if they are more than a pipe holds."""
        die_with(self._parent)
        if self._leaving is not None:
            signal.signal(signal.SIGTERM, _Outlived(self._leaving))
        if self._original is not None:
            self._original(worker)
        from torch.utils.data import _DatasetKind, get_worker_info

        info: Any = get_worker_info()
        stamps = _Stamps(info.dataset)
        if worker in self._states:
            stamps.write(self._states[worker])
        create = _DatasetKind.create_fetcher

        def create_fetcher(*args: Any) -> Any:
            fetcher = create(*args)
            fetch = fetcher.fetch

            def stamped(index: Any) -> Any:
                data = fetch(index)
                return MARK, data, stamps.take()

            fetcher.fetch = stamped
            return fetcher

        # This process is the worker's own.
        _worker._IterableDatasetStopIteration = lambda number: WorkerExhausted(number, stamps.take())
        _DatasetKind.create_fetcher = staticmethod(create_fetcher)


class _Outlived:
    """A worker's handler of SIGTERM.

    Slurm, systemd and `timeout` send SIGTERM to all processes of a job that they end, and the run still needs its
    workers for the batches up to its last checkpoint. So only a second signal ends the worker, or one that comes when
    the run's process is at its end: that process waits for the workers that it has not let go before.
    """

    def __init__(self, leaving: Any) -> None:
        self._is_second, self._leaving = False, leaving

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_second or self._leaving.value:
            os._exit(0)  # as PyTorch's own handler does: the process that trains takes any other end for an error
        self._is_second = True


class _Stamps:
    def __init__(self, dataset: object) -> None:
        from detrain.adapters.torch.streams import GeneratorStream

        self._streams: dict[str, Stream] = {
            "python": PythonStream(),
            "numpy": NumpyStream(),
            "torch": GeneratorStream(torch.default_generator),
        }
        self._dataset = dataset
        self._was = signature(dataset)
        self._seen: tuple[object, ...] = ()

    def write(self, states: dict[str, bytes]) -> None:
        for name, packed in states.items():
            self._streams[name].unpack(packed)

    def take(self) -> Stamp | None:
        """Return the worker's state now; None if it is the same as after the batch before."""
        legacy: Any = np.random.get_state(legacy=False)
        python, torch_now = random.getstate(), torch.default_generator.get_state().numpy().tobytes()
        words, rest = legacy["state"].get("key"), (legacy["state"].get("pos"), legacy.get("has_gauss"), legacy.get("gauss"))
        numpy_now = repr(legacy) if words is None else (words.tobytes(), *rest)
        is_moved = signature(self._dataset) != self._was
        now = (python, numpy_now, torch_now, is_moved)
        if now == self._seen:
            return None
        self._seen = now
        return Stamp({name: stream.pack() for name, stream in self._streams.items()}, is_moved)


def signature(value: object) -> str:
    """Return a digest of an object's content that is cheap to read: numbers, texts, small arrays, generators, sizes."""
    state = xxhash.xxh3_128()

    def below(at: tuple[object, int]) -> list[tuple[object, int]]:
        parts = [] if isinstance(at[0], _PLAIN) or at[1] > _DEEPEST else _parts(at[0], state)
        return [(part, at[1] + 1) for part in parts]

    for item, _depth in walk([(value, 0)], below, lambda at: by_identity(at[0])):
        is_scalar = isinstance(item, _PLAIN)
        state.update(repr(item).encode("utf-8", "surrogatepass") if is_scalar else type(item).__name__.encode())
    return state.hexdigest()


def _parts(item: Any, state: Any) -> list[object]:
    """Return the objects that an object leads to; add generators, tensors, arrays and sizes to the digest here."""
    if is_stream(item):
        state.update(repr(state_of(item)).encode())
    elif isinstance(item, torch.Generator):
        state.update(item.get_state().numpy().tobytes())
    elif isinstance(item, torch.Tensor):
        is_small = item.layout is torch.strided and item.numel() * item.element_size() <= _SMALL_BYTES
        state.update(repr(item.tolist() if is_small else (tuple(item.shape), item._version)).encode())
    elif isinstance(item, np.ndarray):
        state.update(item.tobytes() if item.nbytes <= _SMALL_BYTES and item.dtype != object else repr(item.shape).encode())
    elif isinstance(item, dict | list | tuple | set | frozenset):
        state.update(str(len(item)).encode())
        if len(item) <= _MOST_ITEMS:
            return [*item.keys(), *item.values()] if isinstance(item, dict) else list(item)
    elif not isinstance(item, type):
        own = own_attributes(item)
        return list(own.values()) if own is not None and len(own) <= _MOST_ITEMS else []
    return []
