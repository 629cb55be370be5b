"""Randomness of the system, as the processes of a run hear it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FORKING = """
import os, random, sys, uuid
import numpy as np
from detrain.base.cursor import Cursor
from detrain.python.outside.clock_and_entropy import Outside

place = Cursor(0, 1, 2) if sys.argv[1] == "inside" else None
outside = Outside({"entropy": ["of the run"]}, lambda: place)
outside.watch()

def said():
    return uuid.uuid4(), np.random.default_rng().integers(1 << 30), random.random()

def in_child(act):
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    os.waitpid(child, 0)

def nested():
    print(*said(), flush=True)
    in_child(lambda: print(*said(), flush=True))

if sys.argv[2] == "resumed":
    elsewhere, place = place, Cursor(0, 0, 7)
    in_child(said)  # at another place, which a resumed run passes over or not
    place = elsewhere
for _ in range(2):
    in_child(nested)
"""


def test_each_forked_child_draws_its_own_and_the_same_in_each_run(tmp_path: Path) -> None:
    """Processes, because what is asked of the system is replaced in the whole of one."""
    program = tmp_path / "forking.py"
    program.write_text(_FORKING)

    def heard(*arguments: str) -> list[str]:
        done = subprocess.run([sys.executable, program, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    inside = heard("inside", "begun")
    assert len(set(inside)) == 4
    assert len({line.split()[-1] for line in inside}) == 4
    assert heard("inside", "resumed") == inside
    outside = heard("outside", "begun")
    assert len(set(outside)) == 4
    assert heard("outside", "resumed") == outside
