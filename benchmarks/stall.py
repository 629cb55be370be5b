"""For how long a PyTorch training stands still while it is saved, and what memory that takes.

Compared in one run: detrain, `torch.save`, and `async_save` of torch.distributed.checkpoint.

    python benchmarks/stall.py [--sizes 100,400] [--saves 6] [--rounds 3] [--place DIR]

For each size (MB of parameters and Adam's state, in 12 layers) each way of saving trains the same steps, in turn,
`--rounds` times, with a save each 40. *Stall* is what the step with a save and the step behind it take longer than two
others: a save that goes on in the background makes the next update wait, or copy. It is given in milliseconds, with the
range of the middle half, and as a ratio to copying the whole state into memory that is in use already. *All* is what
the 20 steps from the save on take longer: what is written beside them takes time of processors and memory from them.
*Memory* is the highest resident size less that of the same training without saves, in states.
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
EVERY = 40
PROGRAM = """
import json, resource, sys, time
import torch
from torch import nn

megabytes, saves, how, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
EVERY = 40
side = int((megabytes * 1_000_000 / 12 / 12) ** 0.5)  # parameters and two slots, in float32
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(side, side, bias=False) for _ in range(12)])
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
data = torch.randn(64, side)
pending = None
begins = []
for epoch in range(1):
    for batch in range(EVERY * (saves + 1)):
        begins.append(time.perf_counter())
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        if batch % EVERY == EVERY - 1 and how == "torch.save":
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{place}/state.pt")
        if batch % EVERY == EVERY - 1 and how == "async_save":
            import torch.distributed.checkpoint as dcp
            if pending is not None:
                pending.result()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            pending = dcp.async_save(state, checkpoint_id=f"{place}/dcp-{batch}", no_dist=True)
begins.append(time.perf_counter())
if pending is not None:
    pending.result()
state = [*model.parameters(), *[each for held in optimizer.state.values() for each in held.values()]]
copies = [each.detach().clone() for each in state]
times = []
for _ in range(5):
    begin = time.perf_counter()
    for copy, each in zip(copies, state):
        copy.copy_(each.detach())
    times.append(time.perf_counter() - begin)
steps = [after - before for before, after in zip(begins, begins[1:])]
size = sum(each.nbytes for each in state)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - size  # without the copies, which came last
print(json.dumps({"steps": steps, "copy": sorted(times)[2], "bytes": size, "peak": peak}))
"""
WAYS = ("none", "detrain", "torch.save", "async_save")


def run(way: str, megabytes: int, saves: int, place: Path) -> dict[str, object]:
    """Train once; return what the program says of it."""
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        program = Path(scratch) / "program.py"
        program.write_text(PROGRAM)
        arguments = [str(program), str(megabytes), str(saves), way, scratch]
        command = [sys.executable, *arguments]
        if way == "detrain":
            options = ["--ckpt", f"{scratch}/ckpt", "--every", f"{EVERY}b", "--keep", "1"]
            command = [sys.executable, "-m", "detrain", "run", *options, *arguments]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def stalls(steps: list[float], count: int) -> list[float]:
    """Return what each save has cost in so many steps from it on [s]. The first steps make slots, and are left out."""
    plain = statistics.median(
        step for number, step in enumerate(steps) if number >= EVERY and EVERY // 2 <= number % EVERY < EVERY - 2
    )
    # detrain saves before the load of a batch whose number is a multiple, the others behind the batch before it.
    first = range(EVERY * 2 - 1, len(steps) - count, EVERY)
    return [sum(steps[number : number + count]) - count * plain for number in first]


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--sizes", default="100,400", help="MB, comma-separated")
    parser.add_argument("--saves", type=int, default=6, help="in each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    print("| state | way | stall, ms (middle half) | in copies | all, ms | memory, in states | step, ms |")
    print("|---|---|---|---|---|---|---|")
    for megabytes in map(int, options.sizes.split(",")):
        found: dict[str, list[dict[str, object]]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                found[way].append(run(way, megabytes, options.saves, options.place))
        copy = statistics.median(float(str(each["copy"])) for runs in found.values() for each in runs)
        bare = statistics.median(float(str(each["peak"])) for each in found["none"])
        for way in WAYS[1:]:
            costs = sorted(cost for each in found[way] for cost in stalls(each["steps"], 2))  # type: ignore[arg-type]
            of_all = [cost for each in found[way] for cost in stalls(each["steps"], EVERY // 2)]  # type: ignore[arg-type]
            low, middle, high = costs[len(costs) // 4], statistics.median(costs), costs[len(costs) * 3 // 4]
            peak = statistics.median((float(str(each["peak"])) - bare) / float(str(each["bytes"])) for each in found[way])
            step = statistics.median(step for each in found[way] for step in each["steps"])  # type: ignore[attr-defined]
            stall = f"{middle * 1e3:.0f} ({low * 1e3:.0f} to {high * 1e3:.0f}) | {middle / copy:.2f}"
            cells = f"{stall} | {statistics.median(of_all) * 1e3:.0f} | {peak:.2f} | {step * 1e3:.0f}"
            print(f"| {megabytes} MB | {way} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
