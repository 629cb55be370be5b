"""Kills processes while they save, and checks that the newest checkpoint reported as saved is found.

Children are forked from this small process, so that a start takes a millisecond. They resume, as `detrain run` does,
then save again and again: small states at once, large ones by the background writer. They report the start and the end
of each save on a pipe.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from detrain.base import messages
from detrain.store.background_writer import Writer
from tests.store.homes import Run, resumed

LARGE = 1_500_000
"""Elements of the large states (6 MB)."""


def train(folder: Path, pipe: int) -> None:
    """Save until killed."""
    found = resumed(folder)
    run, number = found if found is not None else (Run(folder), 0)
    writer = Writer()
    while True:
        number += 1
        os.write(pipe, b"began %d\n" % number)
        is_large = number % 3 == 0
        writer.write(lambda number=number, is_large=is_large: run.save(number, LARGE if is_large else 6), is_large=is_large)  # type: ignore[misc]
        writer.drain()
        os.write(pipe, b"saved %d\n" % number)


def kill_one(folder: Path, delay_s: float) -> tuple[int, int]:
    """Start a child and kill it `delay_s` after its first save began; return the numbers of the last
    saves that it had ended and begun.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            train(folder, write)
        except BaseException as error:  # the child must not run its parent's code
            os.write(write, f"failed {error!r}\n".encode())
        finally:
            os._exit(1)
    os.close(write)
    said = os.read(read, 4096)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(read, 1 << 16):
        said += more
    os.close(read)
    lines = [line.split() for line in said.decode().splitlines()]
    assert not [line for line in lines if line[0] == "failed"], said.decode()
    last = {word: max((int(number) for kind, number in lines if kind == word), default=0) for word in ("began", "saved")}
    return last["saved"], last["began"]


def torture(kills: int, seed: int) -> dict[str, int]:
    """Kill `kills` children; return counts of the cases met. Raises AssertionError if a checkpoint is lost."""
    draw = random.Random(seed)
    messages.say = lambda _text: None
    counts = {"kills": 0, "in a save": 0, "temporary file left": 0, "committed without a line": 0}
    while counts["kills"] < kills:
        with tempfile.TemporaryDirectory() as place:
            folder, newest = Path(place), 0
            for _ in range(min(25, kills - counts["kills"])):
                saved, began = kill_one(folder, draw.random() ** 2 * 0.15)
                newest = max(newest, saved)
                counts["kills"] += 1
                counts["in a save"] += began > saved
                counts["temporary file left"] += bool(list(folder.glob(".*.tmp")))
                run = resumed(folder)
                number = 0 if run is None else run[1]
                assert newest <= number <= max(began, newest), f"found {number}, saved {newest}, began {began}"
                counts["committed without a line"] += number > newest
                newest = number
                if run is not None:
                    run[0].journal.close()
    return counts


if __name__ == "__main__":
    print(torture(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
