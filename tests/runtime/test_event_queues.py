"""What the writers of event files have not written yet is waited for, whatever kind of queue it is in."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from detrain.python.outside import event_files


@pytest.mark.parametrize("make", [queue.Queue, multiprocessing.Queue], ids=["PyTorch's", "tensorboardX's"])
def test_a_flush_waits_until_the_last_event_is_written(make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    class Writer(threading.Thread):
        def __init__(self) -> None:
            super().__init__(daemon=True)
            self._queue = make(10)

        def run(self) -> None:
            while (event := self._queue.get(True, 10)) is not None:
                time.sleep(0.05)  # it is out of the queue, and not yet in the file
                written.append(event)
                if hasattr(self._queue, "task_done"):
                    self._queue.task_done()

    writer = Writer()
    monkeypatch.setattr(event_files, "_WRITERS", {(Writer.__module__, "Writer")})
    writer.start()
    for count in (3, 1):
        before = len(written)
        for event in range(count):
            writer._queue.put(event)
        event_files.flush()
        assert written[before:] == list(range(count))
    writer._queue.put(None)
    writer.join()
