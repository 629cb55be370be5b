"""What a resume takes under `torch.compile`, beside a plain restart of the program, with a warm cache and a cold one.

    python benchmarks/resume_compiled.py [--repeat N]

A model with dropout trained for two epochs, validated behind each; compiled by Inductor, which takes a C++ compiler.
The process kills itself in the second epoch, one batch behind a checkpoint. Measured from the start of a process to its
first step (of a resume: the first that had not been done before):

- *plain*: the program without detrain, from its beginning.
- *resume*: a resumed run. It has two variants to compile: for training and for validation.

*Warm* is the cache that the first run has filled, *cold* is an empty one. The median and the extremes of `--repeat`
rounds are printed, and how many bits of the final weights differ.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from resume import start

PROGRAM = """
import os, signal, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False
x, y = torch.randn(3200, 128), torch.randint(4, (3200,))
net = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(256), nn.Linear(256, 4))
model = torch.compile(net)
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
steps = 0
for epoch in range(2):
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        os.write(2, f"STEP {time.time()}\\n".encode())
        if os.environ.get("STOP") == str(steps):
            os.kill(os.getpid(), signal.SIGKILL)
    net.eval()
    with torch.no_grad():
        print(epoch, nn.functional.cross_entropy(model(x[:320]), y[:320]).item())
    net.train()
np.save(os.environ["OUT"] + ".npy", np.concatenate([each.detach().numpy().reshape(-1) for each in net.parameters()]))
"""
EVERY, STOP, STEPS = 25, 176, 200
PLAIN = [sys.executable, "program.py"]
DETRAIN = [sys.executable, "-m", "detrain", "run", "--every", f"{EVERY}b", "program.py"]


def measure(folder: Path, repeat: int) -> tuple[dict[str, list[float]], int]:
    """Return the seconds of each way to its first new step, and how many bits of the resumed runs' weights differ."""
    whole, killed, warm = folder / "whole", folder / "killed", folder / "warm"
    for each in (whole, killed):
        _program(each)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(warm)
    start(DETRAIN, whole, "weights")
    start(DETRAIN, killed, "weights", STOP)
    seconds: dict[str, list[float]] = {}
    differing = 0
    for turn in range(repeat):
        for kind in ("warm", "cold"):
            for name, command in (("plain", PLAIN), ("resume", DETRAIN)):
                again = folder / f"{name}-{kind}-{turn}"
                cache = warm if kind == "warm" else folder / f"cache-{again.name}"  # a compiler takes no spaces
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
                if name == "resume":
                    shutil.copytree(killed, again, copy_function=shutil.copy2)
                    times = start(command, again, "weights")
                    first = times[STOP + len(times) - STEPS]
                    pair = [np.load(each / "weights.npy").view(np.uint32) for each in (whole, again)]
                    differing += int(np.bitwise_count(pair[0] ^ pair[1]).sum())
                else:
                    _program(again)
                    first = start(command, again, "weights", 1)[0]
                seconds.setdefault(f"{name}, {kind}", []).append(first)
                print(f"{name}, {kind}: {first:.2f} s", file=sys.stderr, flush=True)
    return seconds, differing


def _program(folder: Path) -> None:
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    with tempfile.TemporaryDirectory() as name:
        seconds, differing = measure(Path(name), parser.parse_args().repeat)
    for way, each in seconds.items():
        print(f"{way:14} {statistics.median(each):6.2f} s [{min(each):.2f}, {max(each):.2f}]")
    print(f"differing bits of the resumed runs' weights: {differing}")


if __name__ == "__main__":
    main()
