"""Outputs clipped to the golden run's ranges, beside the same clipping by hooks in the program's own text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from detrain.faults.experiment import Experiment
from detrain.faults.record import read_record
from tests.e2e.runs import detrain

pytest.importorskip("torch")

PROGRAM = """
import json, os
import torch
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10), nn.Dropout(0.1))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
images, labels = torch.randn(192, 1, 8, 8), torch.randint(10, (192,))
HAND, SEEN, NOW = json.loads(os.environ.get("HAND", "null")), {}, [0]

def by_hand(name):
    def see(module, args, output):
        for step, hit, element, mask in HAND["hits"]:
            if (step, hit) == (NOW[0], name):
                output.data.view(-1).view(torch.int32)[element] ^= mask
        low, high = output.min().item(), output.max().item()
        known = SEEN.get(name, (low, high))
        SEEN[name] = min(low, known[0]), max(high, known[1])
        if HAND["ranges"]:
            return output.clamp(*HAND["ranges"][name]) if (output != output.clamp(*HAND["ranges"][name])).any() else output
    return see

if HAND:
    for number, module in enumerate(model):
        module.register_forward_hook(by_hand(f"model.{number}"))
for epoch in range(2):
    for batch in range(12):
        NOW[0] = 12 * epoch + batch
        x, y = images[batch * 16 :][:16], labels[batch * 16 :][:16]
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()), flush=True)
if HAND:
    print("seen", json.dumps(SEEN))
"""
JAX = """
import jax, jax.numpy as jnp
w = jnp.ones(6)
@jax.jit
def update(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * gradient, loss
for epoch in range(2):
    for batch in range(4):
        w, loss = update(w, jnp.full((4, 6), batch / 4))
"""
DRAWN = ("-n", 12, "--seed", 2, "--models", "BIT:30", "--stage", "forward", "--site", "*/model.*/[acr]*", "--after", 4)


def by_hand(folder: Path, hits: list[tuple[int, str, int, int]], ranges: dict[str, list[float]]) -> list[str]:
    environment = {**os.environ, "HAND": json.dumps({"hits": hits, "ranges": ranges}), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()


def hits_of(trial: Experiment) -> list[tuple[int, str, int, int]]:
    fault = trial.injection
    assert fault is not None
    step, name = 12 * trial.at[1] + trial.at[2], fault.site.split("/")[1]
    return [(step, name, int(at), int(mask)) for at, mask in zip(fault.array("positions"), fault.array("flip"), strict=True)]


@pytest.mark.slow
def test_trials_with_ranges_are_those_of_a_program_that_clips_by_its_own_hooks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for name, ranges in (("bare", []), ("clipped", ["--ranges"]), ("alone", ["--ranges"])):
        plan = detrain("campaign", "plan", "--name", name, *DRAWN, *ranges, "program.py", cwd=tmp_path)
        assert plan.status == 0, plan.err
        how = ("--engine", "process") if name == "alone" else ("--workers", 1)
        done = detrain("campaign", "run", "--name", name, *how, "program.py", cwd=tmp_path)
        assert done.status == 0, done.err
    digests = {
        name: detrain("campaign", "run", "--name", name, "--json", "program.py", cwd=tmp_path)
        for name in ("bare", "clipped", "alone")
    }
    of = {name: json.loads(done.out)["digest"] for name, done in digests.items()}
    assert of["clipped"] == of["alone"] != of["bare"]

    seen = json.loads(by_hand(tmp_path, [], {})[-1].removeprefix("seen "))
    differing = 0
    for number in range(4):
        found = {}
        for name in ("bare", "clipped"):
            out = tmp_path / f"{name}-{number}.json"
            record = ("campaign", "record", "--name", name, "--number", number, "--out", out, "program.py")
            assert detrain(*record, cwd=tmp_path).status == 0
            found[name] = read_record(out)
        again = detrain("replay", tmp_path / f"clipped-{number}.json", "program.py", cwd=tmp_path)
        assert (again.status, "IDENTICAL" in again.out) == (0, True), again.err
        trial = found["clipped"].experiment
        assert {name: [float.fromhex(each) for each in bounds] for name, bounds in trial.ranges.items()} == seen
        step = 12 * trial.at[1] + trial.at[2]
        for name, bounds in (("bare", {}), ("clipped", seen)):
            losses = [line.split()[1] for line in by_hand(tmp_path, hits_of(trial), bounds) if line.startswith("loss")]
            mine = [repr(float(each.series["loss"])) for each in found[name].steps]
            assert mine == losses[step : step + len(mine)], (number, name)
        differing += found["bare"].steps != found["clipped"].steps
    assert differing

    report = detrain("campaign", "report", "--name", "clipped", "--compare", "bare", "program.py", cwd=tmp_path)
    assert "beside bare, on 12 trials of the same faults: the share of harmful faults differs by " in report.out, report.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "text", "why"),
    [
        (
            "torch",
            PROGRAM.replace("model = nn", "model = torch.compile(nn").replace("0.1))", "0.1)), backend='aot_eager')"),
            "compiled",
        ),
        ("torch", PROGRAM.replace("model(x)", "(x.flatten(1) @ model[3].weight[:, :64].T)"), "the program calls none"),
        ("jax", JAX, "this program is of another framework"),
    ],
)
def test_a_program_whose_modules_are_not_heard_of_is_refused(tmp_path: Path, framework: str, text: str, why: str) -> None:
    pytest.importorskip(framework)

    (tmp_path / "program.py").write_text(text)
    done = detrain("campaign", "plan", "-n", 4, "--after", 2, "--ranges", "program.py", cwd=tmp_path)
    assert (done.status, why in done.err) == (82, True), done.err
