"""Sets after changes, and a process that restores them: `python -m tests.runtime.set_cases encode|restore FILE`."""

from __future__ import annotations

import datetime
import random
import sys
from pathlib import Path
from typing import Any

from detrain.python.inspect.object_graph import Encoded
from tests.runtime.state_values import Bag, World, encode, filled, restore

COUNT = 60


def make(seed: int) -> World:
    """Return a set, a frozenset, one of a class of the program, and one that was full and is empty now."""
    source = random.Random(seed)
    pool: list[Any] = [*map(str, range(30)), *range(-9, 40), *(datetime.date(2000 + n, 1, 1) for n in range(9)), ("a", 1.5), b"c"]
    value = set(source.sample(pool, source.randrange(40)))
    for _ in range(source.randrange(30)):
        act = source.randrange(3)
        if act == 0:
            value.discard(source.choice(pool))
        elif act == 1 and value:
            value.pop()
        else:
            value.add(source.choice(pool))
    emptied = set(value)
    while emptied:
        emptied.pop()
    return {"set": value, "frozen": frozenset(value), "own": filled(Bag, value), "emptied": emptied}


def show(world: World) -> None:
    """Print each set's order, the results of its `pop()`, and its order after more elements were added."""
    for value in world.values():
        order, popped = list((set if isinstance(value, set) else frozenset).__iter__(value)), []
        if isinstance(value, set):
            popped = [set.pop(value) for _ in range(set.__len__(value) // 2)]
            set.update(value, map(str, range(20, 50)), range(9))
            popped += set.__iter__(value)
        print(order, popped)


def main(what: str, file: str) -> None:
    """Encode sets into a file, or restore them from it; print how they then behave."""
    worlds = {f"{name} {seed}": value for seed in range(COUNT) for name, value in make(seed).items()}
    if what == "encode":
        encoded = encode(worlds)
        assert encoded.not_captured == []
        Path(file).write_bytes(encoded.graph)
    else:
        worlds = {}
        if missing := restore(Encoded(Path(file).read_bytes(), {}, []), worlds):
            print("missing", missing)
    show(worlds)


if __name__ == "__main__":
    main(*sys.argv[1:])
