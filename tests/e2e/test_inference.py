"""Faults in forward passes without gradients: of a program that evaluates, and of the evaluation in one that trains.

Each is a process, as a user starts it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from detrain.base import errors
from tests.e2e.forkserver import Server

TRAINS = """\
import os
import numpy as np, torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(60, 1, 6, 6)
y = (x.sum((1, 2, 3)) > 0).long() + 3 * (x[:, 0, 0, 0] > 0).long()
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8))
run = model
optimizer = torch.optim.SGD(model.parameters(), 0.1)
# HOOK
for epoch in range(2):
    for start in range(0, 40, 10):
        loss = nn.functional.cross_entropy(model(x[start : start + 10]), y[start : start + 10])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    EVALUATES
"""
IN_A_LOOP = """right = 0
    with torch.no_grad():
        for start in range(40, 60, 5):
            scores = run(x[start : start + 5])
            right += int((scores.argmax(1) == y[start : start + 5]).sum())
    print(epoch, right)
"""
IN_A_FUNCTION = """print(epoch, evaluate(run))
"""
FUNCTION = """
@torch.inference_mode()
def evaluate(model):
    model.eval()
    right = 0
    for start in range(40, 60, 5):
        scores = model(x[start : start + 5])
        right += int((scores.argmax(1) == y[start : start + 5]).sum())
    model.train()
    return right
"""
ALONE = TRAINS.partition("optimizer = ")[0] + "epoch = 0\n" + IN_A_LOOP.replace("\n    ", "\n")
TRAINS_TOO = TRAINS.replace("EVALUATES", IN_A_LOOP)
IN_INFERENCE_MODE = TRAINS.replace("EVALUATES", IN_A_FUNCTION).replace("# HOOK", FUNCTION)
COMPILED = "torch.compile(model, backend='aot_eager')"
PROGRAMS = {
    "of a program that evaluates": (ALONE, "0:2", 2, "model"),
    "in a program that trains": (TRAINS_TOO, "1:2", 6, "model"),
    "in a function": (IN_INFERENCE_MODE, "1:3", 7, "model"),
    "of a compiled model": (ALONE, "0:2", 2, COMPILED),
    "of a compiled model in a function": (IN_INFERENCE_MODE, "1:3", 7, COMPILED),
}
"""Each with the step, the number of the forward pass that this is, and what makes it; by hand it is the plain model."""
HOOK = """
passes, given = [0], {}
def spoil(module, inputs, output):
    if not torch.is_grad_enabled():
        passes[0] += 1
        if passes[0] - 1 == WHICH and FAULTY:
            output = output.clone()
            output[3, 2, 1, 1] = VALUE
            return output
def note(module, inputs, output):
    if not torch.is_grad_enabled() and passes[0] - 1 == WHICH:
        np.save(os.environ["SCORES"], output.numpy())
model[0].register_forward_hook(spoil)
model[3].register_forward_hook(note)
"""


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.slow if at else []) for at, each in enumerate(PROGRAMS)])
def test_a_fault_does_to_each_input_what_it_does_by_hand(name: str, torch_server: Server, tmp_path: Path) -> None:
    text, at, number, made = PROGRAMS[name]
    (tmp_path / "program.py").write_text(text.replace("run = model", f"run = {made}"))
    scores = []
    for is_faulty in (False, True):
        hook = HOOK.replace("WHICH", str(number)).replace("FAULTY", str(is_faulty)).replace("VALUE", "40.0")
        (tmp_path / "by_hand.py").write_text(
            text.replace("epoch = 0\n", f"epoch = 0\n{hook}")
            if "epoch = 0\n" in text
            else text.replace("for epoch in", f"{hook}\nfor epoch in")
        )
        done = torch_server.detrain("run", "--bare", "by_hand.py", cwd=tmp_path, SCORES=str(tmp_path / f"{is_faulty}.npy"))
        assert done.status == 0, done.err
        scores.append(np.load(tmp_path / f"{is_faulty}.npy").astype(np.float64))

    fault = ("--model", "SET:40", "--site", "forward/*.0/conv*", "--element", "3,2,1,1", "--at", at)
    found = corrupted_by(torch_server, tmp_path, *fault)

    assert found == corruptions(*scores)
    assert found["sdc_10"] > 0


def corrupted_by(server: Server, folder: Path, *fault: str) -> dict[str, int]:
    """Put a fault into a pass of `program.py`, and again by its record; return the numbers of corrupted inputs."""
    done = server.detrain("inject", "--inference", *fault, "--out", "record.json", "program.py", cwd=folder)
    again = server.detrain("replay", "record.json", "program.py", cwd=folder)
    assert done.status == 0, done.err
    assert again.out.startswith("IDENTICAL"), again.err
    found: dict[str, int] = json.loads((folder / "record.json").read_text())["corruptions"]
    return found


def corruptions(golden: np.ndarray, faulty: np.ndarray) -> dict[str, int]:
    """Return the numbers of corrupted inputs by scores of shape [input, class], which are finite."""
    top = np.argsort(-golden, axis=1)[:, :5]
    one, other = (softmax(each, axis=1) for each in (golden, faulty))
    change = np.abs(other.max(1) - one.max(1)) / one.max(1)
    return {
        "inputs": len(golden),
        "sdc_1": int((golden.argmax(1) != faulty.argmax(1)).sum()),
        "sdc_5": int(sum(each not in row for each, row in zip(faulty.argmax(1), top, strict=True))),
        "sdc_10": int((change > 0.1).sum()),
        "sdc_20": int((change > 0.2).sum()),
        "nonfinite": 0,
    }


JAX = """\
import os, sys
import jax, jax.numpy as jnp, numpy as np
rng = np.random.default_rng(0)
x = rng.normal(size=(60, 12)).astype("float32")
y = (x.sum(1) > 0).astype(int) + 3 * (x[:, 0] > 0)
weights = {
    "first": jnp.asarray(rng.normal(size=(12, 16)) * 0.3, jnp.float32),
    "second": jnp.asarray(rng.normal(size=(16, 8)) * 0.3, jnp.float32),
}
passes = [0]

def scores_of(weights, rows, is_hit=False):
    hidden = rows @ weights["first"]
    # HIT
    return jax.nn.relu(hidden) @ weights["second"]

def loss_of(weights, rows, labels):
    scores = scores_of(weights, rows)
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1).mean(), scores

@jax.jit
def gradient(weights, rows, labels):
    return jax.value_and_grad(loss_of, has_aux=True)(weights, rows, labels)

@jax.jit
def update(weights, slopes):
    return jax.tree.map(lambda one, slope: one - 0.1 * slope, weights, slopes)

@jax.jit
def predict(weights, rows, is_hit=False):
    return scores_of(weights, rows, is_hit)

def evaluate(weights):
    right = 0
    for start in range(40, 60, 5):
        scores = predict(weights, x[start : start + 5])
        passes[0] += 1
        right += int((scores.argmax(1) == y[start : start + 5]).sum())
    return right

for epoch in range(2):
    for start in range(0, 40, 10):
        (loss, _scores), slopes = gradient(weights, x[start : start + 10], y[start : start + 10])
        weights = update(weights, slopes)
    print(epoch, evaluate(weights))
"""
JAX_BY_HAND = JAX.replace("# HIT", "hidden = jnp.where(is_hit, hidden.at[3, 2].set(40.0), hidden)").replace(
    "x[start : start + 5])\n        passes",
    'x[start : start + 5], passes[0] == 6 and "faulty" in sys.argv)\n'
    '        if passes[0] == 6:\n            np.save(os.environ["SCORES"], scores)\n        passes',
)


JAX_COUNTS = JAX.replace(
    "def predict(weights, rows, is_hit=False):\n    return scores_of(weights, rows, is_hit)",
    "def predict(weights, rows, labels):\n    return (scores_of(weights, rows).argmax(1) == labels).sum()",
).replace("x[start : start + 5])\n        passes", "x[start : start + 5], y[start : start + 5])\n        passes")
JAX_COUNTS = JAX_COUNTS.replace("int((scores.argmax(1) == y[start : start + 5]).sum())", "int(scores)")


@pytest.mark.parametrize(
    "text", [JAX, pytest.param(JAX_COUNTS, marks=pytest.mark.slow)], ids=["scores are returned", "they are counted inside"]
)
def test_on_jax_too(text: str, jax_server: Server, tmp_path: Path) -> None:
    """`gradient` and `update` are no passes: one takes a gradient, the other returns what it has got."""
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "by_hand.py").write_text(JAX_BY_HAND)
    scores = []
    for words in ((), ("faulty",)):
        file = tmp_path / f"{len(words)}.npy"
        done = jax_server.detrain("run", "--bare", "by_hand.py", *words, cwd=tmp_path, SCORES=str(file))
        assert done.status == 0, done.err
        scores.append(np.load(file).astype(np.float64))

    fault = ("--model", "SET:40", "--site", "predict/forward/dot_general@0", "--element", "3,2", "--at", "1:2")
    found = corrupted_by(jax_server, tmp_path, *fault)

    assert found == corruptions(*scores)
    assert found["sdc_10"] > 0


@pytest.mark.slow
def test_trials_in_one_process_are_those_of_a_process_each(torch_server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS["in a program that trains"][0])
    command = ("random", "--inference", "-n", "8", "--seed", "3", "--models", "FLIP:1,BIT:30", "--json")

    one, each = (
        torch_server.detrain(*command, "--engine", engine, "--out", engine, "program.py", cwd=tmp_path)
        for engine in ("auto", "process")
    )
    again = torch_server.detrain(*command, "--out", "auto", "program.py", cwd=tmp_path)

    assert (one.status, each.status, again.status) == (0, 0, 0), one.err + each.err + again.err
    assert one.out == each.out == again.out
    assert {record["corruptions"]["inputs"] for record in json.loads(one.out)} == {5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ALONE.replace("torch.no_grad()", "torch.enable_grad()"), "no loop of its own has computed scores without"),
        (
            TRAINS.replace("EVALUATES", "with torch.no_grad():\n        print([float(model(x[:5]).sum()) for _ in range(3)])"),
            "takes a gradient",
        ),
        (ALONE.replace("run = model", "run = torch.compile(model, backend='eager')"), "its backend (eager) is given no graph"),
        (ALONE.replace("run = model", "run = torch.compile(lambda x: model(x), backend='eager')"), "its backend (eager) is"),
        (ALONE.replace("run = model", "run = torch.compile(lambda x: model(x), backend='aot_eager')"), "a part of a function"),
        (ALONE.replace("run = model", "run = model\nmodel.compile()"), "nothing of Sequential is compiled"),
    ],
    ids=["with gradients", "in a comprehension", "no graph", "no graph of a function", "a function", "nothing compiled"],
)
def test_what_is_no_inference_is_refused(text: str, said: str, torch_server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(text)

    done = torch_server.detrain("sites", "--inference", "program.py", cwd=tmp_path)

    assert done.status == errors.FaultInvalid.exit_code, done.err
    assert said in done.err


NOT_PASSES = {
    "no scores, and no class": JAX_COUNTS.replace(".argmax(1) == labels).sum()", " ** 2).sum()"),
    "op by op": JAX.replace("@jax.jit\ndef predict", "def predict"),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", NOT_PASSES.values(), ids=NOT_PASSES)
def test_on_jax_what_gives_no_scores_is_refused(text: str, jax_server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(text)

    done = jax_server.detrain("sites", "--inference", "program.py", cwd=tmp_path)

    assert done.status == errors.FaultInvalid.exit_code, done.err
    assert "a function under jax.jit that returns scores or takes their argmax" in done.err
