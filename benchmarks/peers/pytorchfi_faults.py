"""The same faults by PyTorchFI and by a campaign of detrain: what the hit step computes and predicts, fault by fault.

    python benchmarks/peers/pytorchfi_faults.py FOLDER [TRIALS]

with pytorchfi 0.6.0, which is not among our extras. Faults are drawn by the campaign: one element of a convolution's
output in some step becomes a number. PyTorchFI puts the same number at the same place of a copy of the model as it is
in that step.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

PROGRAM = """
import torch
from torch import nn
from sklearn.datasets import load_digits

torch.manual_seed(0)
data = load_digits()
images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(data.target)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 10),
)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
before_step = globals().get("before_step", lambda *given: None)
for epoch in range(3):
    for batch in range(28):
        x, y = images[batch * 64 :][:64], labels[batch * 64 :][:64]
        before_step(model, epoch, batch, x, y)
        guess = model(x)
        loss = nn.functional.cross_entropy(guess, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("predicted", guess.argmax(1).tolist(), flush=True)
"""
VALUE = 100.0
LAYERS = (0, 2, 5)
"""Places of the convolutions in the model."""


def detrain(*words: object, cwd: Path) -> None:
    subprocess.run([sys.executable, "-m", "detrain", *map(str, words)], cwd=cwd, check=True)


def main(folder: Path, trials: int) -> None:
    """Run the campaign, and each of its faults by PyTorchFI."""
    import torch
    from pytorchfi.core import fault_injection

    from detrain.campaign.engine.header import load
    from detrain.campaign.engine.ledger import Ledgers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    drawn = ("--models", f"SET:{VALUE:g}", "--site", "forward/*/convolution", "--strata", "layer", "--after", 1)
    detrain("campaign", "plan", "-n", trials, *drawn, "program.py", cwd=folder)
    detrain("campaign", "run", "program.py", cwd=folder)
    os.chdir(folder)
    campaign = load(next(Path.cwd().glob("ckpt/*/*/campaign-campaign")), ())
    rows = {row.number: row for row in Ledgers(campaign.ledgers, campaign.plan.digest).rows()}
    plans = {number: campaign.plan.trial(number)[1] for number in rows}
    found: dict[int, tuple[float, bool]] = {}

    def before_step(model: Any, epoch: int, batch: int, x: Any, y: Any) -> None:
        mine = [number for number, plan in plans.items() if plan.at == (0, epoch, batch)]
        if not mine:
            return
        state = torch.get_rng_state()
        injector = fault_injection(model, len(x), input_shape=[1, 8, 8], layer_types=[torch.nn.Conv2d])
        with torch.no_grad():
            golden = model(x).argmax(1)
            for number in mine:
                fault = plans[number].injection
                assert fault is not None
                at = [int(each) for each in np.unravel_index(fault.array("positions")[0], fault.shape)]
                layer = LAYERS.index(int(fault.site.split("/")[1].rpartition(".")[2]))
                places = {"batch": at[0], "layer_num": layer, "dim1": at[1], "dim2": at[2], "dim3": at[3], "value": VALUE}
                faulty = injector.declare_neuron_fi(**{name: [value] for name, value in places.items()})
                guess = faulty(x)
                found[number] = torch.nn.functional.cross_entropy(guess, y).item(), bool((guess.argmax(1) != golden).any())
        torch.set_rng_state(state)

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path("program.py", {"before_step": before_step})
    same_loss = sum(found[number][0] == row.loss for number, row in rows.items())
    same_outcome = sum(found[number][1] == (row.stdout == "differs") for number, row in rows.items())
    table: dict[str, Counter[str]] = {}
    for number, row in rows.items():
        table.setdefault(row.layer, Counter()).update(
            faults=1, pytorchfi=int(found[number][1]), detrain=int(row.stdout == "differs")
        )
    print(json.dumps({"faults": len(rows), "equal losses": same_loss, "equal outcomes": same_outcome, "layers": table}, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 600)
