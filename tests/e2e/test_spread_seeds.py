"""Golden runs with other seeds are what the program is with these numbers written into it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.runs import detrain, plain

TORCH = """
import random, numpy, torch
random.seed(5)
numpy.random.seed(seed=6)
torch.manual_seed(7)
rows, order = torch.randn(24, 4), list(range(24))
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(2):
    random.shuffle(order)
    for start in range(0, 24, 8):
        loss = (net(rows[order[start:start + 8]]) - float(numpy.random.rand())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(repr(loss.item()))
"""
TENSORFLOW = """
import random, numpy, keras
keras.utils.set_random_seed(5)
rows = numpy.random.normal(size=(24, 4)).astype("float32")
model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(rows, rows[:, :1], batch_size=8, epochs=2, verbose=0)
print([repr(loss) for loss in history.history["loss"]], random.random())
"""
JAX = """
import jax, jax.numpy as jnp
first, second = jax.random.split(jax.random.key(5))
rows = jax.random.normal(first, (24, 4))
weight = jax.random.normal(jax.random.PRNGKey(6), (4,))
step = jax.jit(jax.value_and_grad(lambda weight, rows: jnp.mean((rows @ weight - 1) ** 2)))
for epoch in range(2):
    for start in range(0, 24, 8):
        loss, slope = step(weight, rows[start:start + 8])
        weight = weight - 0.1 * slope
        print(repr(float(loss)))
"""
SEEDLESS = """
import torch
own = torch.Generator().manual_seed(7)
rows = torch.randn(24, 4, generator=own)
weight = torch.nn.Parameter(torch.randn(4, generator=own))
optimizer = torch.optim.SGD([weight], 0.1)
for epoch in range(2):
    for start in range(0, 24, 8):
        loss = (rows[start:start + 8] @ weight - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def with_seeds(source: str, by: int) -> str:
    return re.sub(r"(seed\(|seed=|key\(|Key\()(\d)\)", lambda found: f"{found[1]}{int(found[2]) + by})", source)


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "source"), [("torch", TORCH), ("tensorflow", TENSORFLOW), ("jax", JAX)])
def test_a_golden_run_of_another_seed_is_the_program_with_that_seed(framework: str, source: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    (tmp_path / "program.py").write_text(source)
    detrain("campaign", "plan", "-n", 5, "--after", 2, "--spread", 3, "program.py", cwd=tmp_path).ok()

    said = {path.parent.name: path.read_text() for path in tmp_path.glob("ckpt/*/*/golden*/stdout")}
    for number in (1, 2, 3):
        (tmp_path / "other.py").write_text(with_seeds(source, number))
        assert said[f"golden-seed-{number}-own"] == plain("other.py", cwd=tmp_path).out != said["golden"]


@pytest.mark.slow
def test_a_program_in_which_nothing_depends_on_the_seed_is_refused_after_one_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(SEEDLESS)
    done = detrain("campaign", "plan", "-n", 5, "--after", 2, "--spread", 3, "program.py", cwd=tmp_path)

    assert done.status != 0
    assert "nothing in it depends on that seed" in done.err
    assert "with seed 2" not in done.err
