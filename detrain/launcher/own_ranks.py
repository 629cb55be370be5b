"""Start, watch, end and restart the ranks of a job on this machine if PyTorch, and so torchrun, is not installed. The
variables that torchrun sets tell each process its rank.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final

from detrain.base import messages

RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"
"""The variable by which a launcher tells the ranks how often it has started them again."""
_PAUSE_S: Final = 0.1
_GRACE_S: Final = 30.0
"""Ranks that are asked to end may take this long, as under torchrun."""


def run(command: Sequence[str], count: int, restarts: int = 0) -> int:
    """Run a command in `count` processes; when one fails, end the others and start all again, at most `restarts` times,
    unless this process has been asked to end.

    Returns 0, or the exit status of the first one that failed (128 + N for signal N).
    """
    asked: list[int] = []
    for number in range(restarts + 1):
        status = _run_once(command, count, asked, number)
        if status == 0 or number == restarts or asked:
            break
        messages.say(f"a rank has ended with {status}: all ranks start again ({restarts - number - 1} more times at most)")
    return status


def environments(count: int) -> list[dict[str, str]]:
    """Return, for each rank of a job on this machine, the variables with its rank and the address of the job."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def _run_once(command: Sequence[str], count: int, asked: list[int], restarted: int) -> int:
    """Run the ranks once, after so many restarts; add the signals that ask them to end to `asked`."""
    ranks = [subprocess.Popen(command, env={**os.environ, **own, RESTARTS: str(restarted)}) for own in environments(count)]

    def hand_on(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        for each in ranks:
            each.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return _wait(ranks)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """Wait until all ranks have ended well, or one has failed and the others have been ended. Return the status."""
    while True:
        ended = [status for each in ranks if (status := each.poll()) is not None]
        failed = next((status for status in ended if status), 0)
        if failed:
            _end(ranks)
            return failed if failed > 0 else 128 - failed
        if len(ended) == len(ranks):
            return 0
        time.sleep(_PAUSE_S)


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + _GRACE_S
    for each in ranks:
        each.terminate()
    for each in ranks:
        try:
            each.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()
