"""Faults in several tensors of one step, beside the same ones put in by hand, in the program's own text."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from detrain.campaign.engine.ledger import Ledgers
from detrain.faults.experiment import Experiment, Injection
from detrain.faults.record import read_record
from tests.e2e.runs import detrain, environment

PROGRAMS = {
    "torch": """
import json, os
import torch

HITS = json.loads(os.environ.get("HITS", "[]"))  # [step, name of what is hit, element, mask]

def hit(step, name, value):
    for at, site, element, mask in HITS:
        if (at, site) == (step, name):
            value.data.view(-1).view(torch.int32)[element] ^= mask
    return value

torch.manual_seed(0)
torch.set_num_threads(1)
weights = [torch.nn.Parameter(torch.randn(6, 6)) for _ in range(3)]
bias = torch.nn.Parameter(torch.zeros(6))
optimizer = torch.optim.SGD([*weights, bias], 0.01)
x, y = torch.randn(24, 4, 6), torch.randn(24, 4, 6)

def scores(rows, step):
    h = hit(step, "addmm", torch.addmm(bias, rows, weights[0]))
    h = hit(step, "relu", torch.relu(h))
    h = hit(step, "mm", torch.mm(h, weights[1]))
    h = hit(step, "tanh", torch.tanh(h))
    return hit(step, "mm#1", torch.mm(h, weights[2]))

for epoch in range(2):
    for batch in range(12):
        step = 12 * epoch + batch
        for number, weight in enumerate(weights):
            hit(step, f"weights[{number}]", weight)
        rows, wanted = x[step], y[step]
        h = scores(rows, step)
        loss = ((h - wanted) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()), flush=True)
""",
    "jax": """
import json, os
import jax, jax.numpy as jnp, numpy as np

HITS = json.loads(os.environ.get("HITS", "[]"))
rng = np.random.default_rng(0)
weights = [jnp.asarray(rng.normal(size=(6, 6)), jnp.float32) for _ in range(3)]
x, y = (jnp.asarray(rng.normal(size=(24, 4, 6)), jnp.float32) for _ in range(2))

def hit(step, name, value):
    bits = np.array(value).view(np.uint32).reshape(-1)
    for at, site, element, mask in HITS:
        if (at, site) == (step, name):
            bits[element] ^= np.uint32(mask & 0xFFFFFFFF)
    return jnp.asarray(bits.view(np.float32).reshape(value.shape))

def loss_of(weights, x, y):
    return jnp.mean((jnp.tanh(jax.nn.relu(x @ weights[0]) @ weights[1]) @ weights[2] - y) ** 2)

@jax.jit
def update(weights, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
    return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients)], loss

for epoch in range(2):
    for batch in range(12):
        step = 12 * epoch + batch
        if HITS:
            weights = [hit(step, f"weights[{number}]", weight) for number, weight in enumerate(weights)]
        weights, loss = update(weights, x[step], y[step])
        print("loss", repr(float(loss)), flush=True)
""",
    "tensorflow": """
import json, os
import numpy as np, tensorflow as tf

HITS = json.loads(os.environ.get("HITS", "[]"))
tf.config.experimental.enable_op_determinism()
if HITS:  # graphs of an experiment run as they were traced
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
rng = np.random.default_rng(0)
weights = [tf.Variable(rng.normal(size=(6, 6)).astype("float32"), name=f"w{number}") for number in range(3)]
x, y = (rng.normal(size=(24, 4, 6)).astype("float32") for _ in range(2))

@tf.function
def update(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.tanh(tf.nn.relu(x @ weights[0]) @ weights[1]) @ weights[2] - y) ** 2)
    for weight, gradient in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(0.01 * gradient)
    return loss

for epoch in range(2):
    for batch in range(12):
        step = 12 * epoch + batch
        for at, site, element, mask in HITS:
            if at == step:
                bits = weights[int(site[-2])].numpy().copy()
                bits.view(np.int32).reshape(-1)[element] ^= np.int32(mask)
                weights[int(site[-2])].assign(bits)
        loss = update(x[step], y[step])
        print("loss", repr(float(loss)), flush=True)
""",
}
PROGRAMS["torch, compiled"] = PROGRAMS["torch"].replace(
    "for epoch in", "if not HITS:\n    scores = torch.compile(scores, backend='aot_eager', dynamic=True)\n\nfor epoch in"
)
MEMORY = "--mode RF --site memory/weights*"
VALUES = "--mode IOV --stage forward --site */[amrt]*"


def by_hand(folder: Path, trial: Experiment) -> list[str]:
    """Run the program by Python alone, with faults in its text; return the losses from the fault on."""
    step = 12 * trial.at[1] + trial.at[2]
    hits = [hit for fault in faults_of(trial) for hit in hits_of(fault, step)]
    changes = {"HITS": json.dumps(hits), "OMP_NUM_THREADS": "1", "TF_ENABLE_ONEDNN_OPTS": "1"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("loss")][step : step + (trial.count or 0)]


def faults_of(trial: Experiment) -> list[Injection]:
    assert trial.injection is not None
    return [trial.injection, *(fault for fault, _ in trial.also)]


def hits_of(fault: Injection, step: int) -> list[tuple[int, str, int, int]]:
    """Return a fault in the words of the program."""
    of_weight = re.search(r"w(?:eights)?\W?(\d)", fault.site) if fault.is_in_memory else None
    name = f"weights[{of_weight[1]}]" if of_weight is not None else fault.site.rpartition("/")[2]
    return [(step, name, int(at), int(mask)) for at, mask in zip(fault.array("positions"), fault.array("flip"), strict=True)]


def rows_of(folder: Path, name: str, *how: object) -> tuple[str, list[tuple[int, str, str]]]:
    done = detrain("campaign", "run", "--name", name, "--json", *how, "program.py", cwd=folder).ok()
    told = json.loads(done.out)
    ledger = next(folder.glob(f"ckpt/*/*/campaign-{name}/ledger"))
    return told["digest"], [(row.number, row.outcome, row.digest) for row in Ledgers(ledger, told["plan"]).rows()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("torch", VALUES),
        ("torch, compiled", VALUES),
        ("torch", MEMORY),
        ("jax", MEMORY),
        ("tensorflow", "--mode RF --site memory/*w*"),
    ],
)
def test_faults_in_several_tensors_are_those_put_in_by_hand(tmp_path: Path, name: str, options: str) -> None:
    pytest.importorskip(name.partition(",")[0])
    (tmp_path / "program.py").write_text(PROGRAMS[name])
    drawn = ("-n", 6, "--seed", 3, "--models", "FLIP:1", "--at-once", 3, "--among", "step", "--after", 4, *shlex.split(options))
    for campaign in ("one", "two"):
        plan = detrain("campaign", "plan", "--name", campaign, *drawn, "program.py", cwd=tmp_path)
        assert plan.status == 0, plan.err

    one, alone = rows_of(tmp_path, "one", "--workers", 1, "--engine", "process"), rows_of(tmp_path, "two", "--workers", 2)
    assert one == alone

    for number in range(3):
        out = tmp_path / f"{number}.json"
        record = ("campaign", "record", "--name", "one", "--number", number, "--out", out, "program.py")
        made, again = detrain(*record, cwd=tmp_path), detrain("replay", out, "program.py", cwd=tmp_path)
        assert (made.status, again.status, "IDENTICAL" in again.out) == (0, 0, True), made.err + again.err
        found = read_record(out)
        trial = found.experiment
        assert len({fault.site for fault in faults_of(trial)}) == 3
        assert [repr(float(step.series["loss"])) for step in found.steps] == by_hand(tmp_path, trial), faults_of(trial)


@pytest.mark.slow
def test_several_tensors_of_a_compiled_step_are_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    (tmp_path / "program.py").write_text(PROGRAMS["jax"])
    done = detrain("campaign", "plan", "-n", 6, "--at-once", 2, "--among", "step", "--after", 2, "program.py", cwd=tmp_path)

    assert "faults in 2 tensors of a step at once" in done.err, done.err
    assert done.status == 82
    assert "golden run" not in done.err


@pytest.mark.slow
def test_random_trials_with_faults_in_several_tensors_are_those_put_in_by_hand(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAMS["torch, compiled"])
    drawn = ("--models", "FLIP:1", "--stage", "forward", "--site", "*/[amrt]*", "--at-once", 3, "--among", "step", "--after", 4)

    done = detrain("random", "-n", 3, "--seed", 5, *drawn, "--out", "found", "program.py", cwd=tmp_path)
    again = detrain("replay", "found/trial-000001.json", "program.py", cwd=tmp_path)

    assert (done.status, again.status, "IDENTICAL" in again.out) == (0, 0, True), done.err + again.err
    for number in range(3):
        found = read_record(tmp_path / "found" / f"trial-{number:06d}.json")
        assert len({fault.site for fault in faults_of(found.experiment)}) == 3
        assert [repr(float(step.series["loss"])) for step in found.steps] == by_hand(tmp_path, found.experiment)
