"""For how long a training with many Python objects stands still while it is saved.

Compared in one run: detrain, `torch.save`, and `pickle.dumps` alone, which writes no file: being C, it is the limit.

    python benchmarks/objects.py [--objects 10000] [--epochs 12] [--rounds 3] [--before TREE]

The objects are a replay buffer of dataclasses in a deque, trees of nodes, objects with slots, and tables of dicts and
lists; the loop changes some of each. Each way of saving trains the same epochs, in turn, `--rounds` times. The stall is
what the process is busy with (user and system time, all threads) between the last batch of an epoch and the first of
the next: the median, with the range of the middle half. `--before` is another checkout of detrain, to be compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import collections, dataclasses, json, pickle, random, sys, time
import torch

@dataclasses.dataclass
class Step:
    state: tuple
    action: int
    reward: float
    info: dict

class Node:
    def __init__(self, depth):
        self.value, self.visits, self.name = random.random(), 0, f"node {depth}"
        self.children = [Node(depth - 1) for _ in range(3)] if depth else []

class Slots:
    __slots__ = ("number", "pair")
    def __init__(self, number):
        self.number, self.pair = number, [number, number + 1]

count, epochs, how, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
random.seed(0)
torch.manual_seed(0)
unit = count // 10
buffer = collections.deque((Step((n, n * 0.5), n % 4, n / 7, {"turn": n, "done": False}) for n in range(unit)), maxlen=unit)
trees = [Node(4) for _ in range(max(1, unit // 40))]
slots = [Slots(n) for n in range(unit // 2)]
table = {f"key {n}": {"number": n, "items": [n, str(n)]} for n in range(unit // 2)}
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
rows, ended, stalls = torch.randn(32, 6), None, []
for epoch in range(epochs):
    for batch in range(4):
        if batch == 0 and ended is not None:
            stalls.append(time.process_time() - ended)
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        buffer.append(Step((epoch, batch), batch, 0.5, {"turn": batch, "done": True}))
        for tree in trees:
            tree.visits += 1
        slots[batch].number += 1
        table[f"key {batch}"]["number"] += 1
    ended = time.process_time()
    state = {"buffer": buffer, "trees": trees, "slots": slots, "table": table, "model": model.state_dict()}
    if how == "torch.save":
        torch.save(state, f"{place}/state.pt")
    if how == "pickle.dumps":
        pickle.dumps(state, 5)
json.dump(stalls[2:], open(f"{place}/stalls.json", "w"))
"""


def main() -> None:
    """Measure, and print a table."""
    options = _options()
    trees = {"detrain": ROOT} | ({"detrain before": options.before} if options.before else {})
    ways = {**trees, "torch.save": None, "pickle.dumps": None}
    stalls: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way, tree in ways.items():
            stalls[way] += _measure(way, tree, options)
    limit = statistics.median(stalls["pickle.dumps"])
    print(f"{options.objects} objects, {options.rounds} rounds of {options.epochs} epochs")
    print(f"{'':16}{'stall [ms]':>12}{'middle half':>18}{'of pickle':>12}")
    for way, found in stalls.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{way:16}{middle * 1e3:12.1f}{f'{low * 1e3:.1f} to {high * 1e3:.1f}':>18}{middle / limit:12.1f}")


def _measure(way: str, tree: Path | None, options: argparse.Namespace) -> list[float]:
    with tempfile.TemporaryDirectory() as place:
        program = Path(place, "program.py")
        program.write_text(PROGRAM)
        arguments = [str(program), str(options.objects), str(options.epochs), way, place]
        command = [sys.executable, *arguments]
        if tree is not None:
            command = [sys.executable, "-m", "detrain", "run", "--ckpt", f"{place}/ckpt", "--every", "1", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree or "")}
        subprocess.run(command, check=True, env=environment, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return list(map(float, json.loads(Path(place, "stalls.json").read_text())))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, default=None, metavar="TREE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
