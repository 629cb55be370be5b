"""The trainings of `gpu.sh`, and what it computes of what they leave.

    python benchmarks/gpu_networks.py digits | resnet | wide [options]
    python benchmarks/gpu_networks.py compare ONE OTHER
    python benchmarks/gpu_networks.py report FOLDER

A training writes its last state to `$STATE.pt`, the times of its steps to `$STATE.json`, and kills itself at the step
`$DIE_AT`. All else is arguments, which are those of the first run when it is resumed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROUNDS = ("bare", "again", "detrain")


class Images(Dataset[Any]):
    """Images [channels, side, side] float32 that are drawn by their number, with labels; augmented in the workers."""

    def __init__(self, count: int, channels: int, side: int, classes: int) -> None:
        self.shape, self.count, self.classes = (channels, side, side), count, classes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = np.random.default_rng(index).random(self.shape, np.float32) * np.float32(np.random.uniform(0.8, 1.2))
        shifted = torch.roll(torch.from_numpy(image), random.randint(-1, 1), dims=2)
        return shifted + 0.05 * torch.randn(self.shape), index % self.classes


class Bottleneck(nn.Module):
    """A block of ResNet-50 (He et al. 2016, figure 5)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.path = nn.Sequential(
            *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        is_same = stride == 1 and before == after
        self.beside = (
            nn.Identity() if is_same else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(x) + self.beside(x))


def resnet(depths: tuple[int, ...], width: int, pool: str) -> nn.Module:
    """Return ResNet-50, or a smaller one; `pool`: `max`, or `conv` where the backward of pooling does not repeat."""
    shrink = nn.MaxPool2d(3, 2, 1) if pool == "max" else nn.Conv2d(width, width, 3, 2, 1)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), shrink]
    before = width
    for stage, depth in enumerate(depths):
        for number in range(depth):
            layers.append(Bottleneck(before, width << stage, 2 if stage and not number else 1))
            before = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def made(args: argparse.Namespace) -> tuple[nn.Module, Any, Any, Any]:
    """Return model, optimizer, data set and loss of a training."""
    if args.name == "digits":
        model: nn.Module = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 4 * 4, 10)),
        )
        data: Any = Images(args.batch * args.steps, 1, 8, 10)
    elif args.name == "resnet":
        model = resnet((1, 1) if args.small else (3, 4, 6, 3), 8 if args.small else 64, args.pool)
        data = Images(args.batch * args.steps, 3, 32 if args.small else 224, 1000)
    else:
        side = int((args.megabytes * 1e6 / 12 / 12) ** 0.5)  # parameters and two slots, in float32
        model = nn.Sequential(*[nn.Linear(side, side, bias=False) for _ in range(12)])
        data = [(torch.zeros(side), 0)] * (args.batch * args.steps)
    model = model.to(args.device, memory_format=torch.channels_last if args.name == "resnet" else torch.preserve_format)
    if args.name == "resnet":
        return model, torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-4), data, nn.functional.cross_entropy
    loss = nn.functional.cross_entropy if args.name == "digits" else lambda found, _labels: found.square().mean()
    return model, torch.optim.AdamW(model.parameters(), 1e-3), data, loss


def train(args: argparse.Namespace) -> None:
    """Train, and leave the last state and the times of the steps."""
    device = args.device = "cuda" if args.device == "cuda" and torch.cuda.is_available() else "cpu"
    model, optimizer, data, loss_of = made(args)
    loader = DataLoader(data, args.batch, shuffle=True, num_workers=args.workers, pin_memory=device == "cuda")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=args.epochs * args.steps)
    is_mixed = args.name == "resnet"
    half = torch.float16 if device == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(device, enabled=is_mixed and device == "cuda")
    begins, done = [], 0
    for _epoch in range(args.epochs):
        for batch, labels in loader:
            if os.environ.get("DIE_AT") == str(done):  # no name keeps it: a checkpoint would bring it back
                os.kill(os.getpid(), signal.SIGKILL)
            if device == "cuda":
                torch.cuda.synchronize()
            begins.append(time.perf_counter())
            layout = torch.channels_last if batch.dim() == 4 else torch.preserve_format
            images = batch.to(device, non_blocking=True, memory_format=layout)
            optimizer.zero_grad()
            with torch.autocast(device, half, enabled=is_mixed):
                loss = loss_of(model(images), labels.to(device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            done += 1
            if os.environ.get("SAVE") and done % args.every == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{os.environ['STATE']}.saved")
    begins.append(time.perf_counter())
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    streams = {"cpu": torch.get_rng_state(), **({"cuda": torch.cuda.get_rng_state()} if device == "cuda" else {})}
    torch.save({"state": state, "streams": streams}, f"{os.environ['STATE']}.pt")
    steps = [after - before for before, after in itertools.pairwise(begins)]
    Path(f"{os.environ['STATE']}.json").write_text(json.dumps({"device": device, "every": args.every, "steps": steps}))


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return the tensors and numbers of a state, by path."""
    if isinstance(value, dict):
        return {name: leaf for key, item in value.items() for name, leaf in leaves(item, f"{path}.{key}").items()}
    if isinstance(value, list | tuple):
        return {name: leaf for key, item in enumerate(value) for name, leaf in leaves(item, f"{path}.{key}").items()}
    return {path: value}


def differing_bits(one: Path, other: Path) -> tuple[int, int]:
    """Return how many bits of two states differ, and how many there are; a number that differs counts 64."""
    left, right = (leaves(torch.load(path, map_location="cpu", weights_only=False)) for path in (one, other))
    assert left.keys() == right.keys()
    found = of = 0
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            a, b = (each.contiguous().reshape(-1).view(torch.uint8).numpy() for each in (value, right[name]))
            found, of = found + int(np.unpackbits(a ^ b).sum()), of + 8 * a.size
        else:
            found, of = found + 64 * (repr(value) != repr(right[name])), of + 64
    return found, of


def stall_of(times: dict[str, Any]) -> list[float]:
    """Return for each save how much longer the step before it and the one behind took than two others, in seconds."""
    steps, every = times["steps"], times["every"]
    plain = statistics.median(step for number, step in enumerate(steps) if number % every not in (0, every - 1))
    return [steps[at - 1] + steps[at] - 2 * plain for at in range(2 * every, len(steps), every)]


def report(folder: Path) -> None:
    """Print what was measured."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem == "figures":
            continue
        times = json.loads(path.read_text())
        name, _, how = path.stem.rpartition("-")
        entry = found.setdefault(name, {"device": times["device"]})
        entry[f"{how}: median step in ms"] = round(1e3 * statistics.median(times["steps"][2:]), 3)
        if name.startswith("wide"):
            entry[f"{how}: stall in ms"] = [round(1e3 * each, 2) for each in stall_of(times)]
    for path in sorted(folder.glob("*.bits")):
        name, _, how = path.stem.rpartition("-")
        found.setdefault(name, {})[f"differing bits, {how}"] = path.read_text().strip()
    text = json.dumps(found, indent=1)
    (folder / "figures.json").write_text(text)
    print(text)


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=["digits", "resnet", "wide", "compare", "report"])
    parser.add_argument("paths", type=Path, nargs="*")
    for option, number in (("epochs", 2), ("steps", 40), ("batch", 64), ("workers", 2), ("megabytes", 400), ("every", 10)):
        parser.add_argument(f"--{option}", type=int, default=number)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pool", default="max")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if args.name == "compare":
        found, of = differing_bits(*args.paths)
        print(f"{found} of {of}")
    elif args.name == "report":
        report(args.paths[0])
    else:
        train(args)


if __name__ == "__main__":
    sys.exit(main())
