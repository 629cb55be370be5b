"""The loops of programs that train with JAX are found in the source: where their marks say."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from detrain.instrument.find_loops import analyse
from tests.programs_marks import JAX, marks


@pytest.mark.parametrize("program", sorted(JAX.glob("*.py")), ids=lambda path: path.stem)
def test_the_marked_loops_are_found(program: Path) -> None:
    marked = {(mark.role, mark.line) for mark in marks(program)}

    nests = analyse(program).nests

    assert {("batch loop", nest.batch_loop.line) for nest in nests} == {each for each in marked if each[0] == "batch loop"}
    assert {("epoch loop", nest.epoch_loop.line) for nest in nests if nest.epoch_loop} == {
        each for each in marked if each[0] == "epoch loop"
    }
    assert {("update", nest.update_line) for nest in nests} <= marked


@pytest.mark.parametrize(
    ("step", "is_found"),
    [
        ("state = state.apply_gradients(grads=grad(state, batch))", True),
        ("state, loss = jax.jit(train_step)(state, batch)", True),
        ("optimizer.update(model, grads)", True),
        ("updates, opt = tx.update(grad(state, batch), opt)", True),
        ("svi_state, loss = svi.update(svi_state, batch)", True),
        ("svi_state, loss = self.svi.stable_update(svi_state, batch)", True),
        ("options.update({'batch': batch})", False),
        ("print(optimizer_settings.update(batch))", False),
    ],
)
def test_what_updates_with_jax_is_known_by_its_calls(step: str, is_found: bool, tmp_path: Path) -> None:
    text = (
        f"import jax\ndef train_step(state, batch):\n    return optax.apply_updates(state, batch)\nfor batch in data:\n    {step}\n"
    )
    (tmp_path / "main.py").write_text(text)

    assert bool(analyse(tmp_path / "main.py").nests) is is_found


_MAKER: Final = """\
import jax

def make(optimizer, loss):
    def evaluate(state, batch):
        return loss(state, batch)

    @jax.jit
    def step(state, batch):
        return optax.apply_updates(state, jax.grad(loss)(state, batch))

    {returned}

class Agent:
    def __init__(self):
        self.learn = self._made()

    def _made(self):
        def inside(state, batch):
            return optax.apply_updates(state, batch)

        return jax.jit(inside)

{made}
agent = Agent()
for batch in data:
    {called}
"""


@pytest.mark.parametrize(
    ("returned", "made", "called", "is_found"),
    [
        ("return step", "train = make(adam, loss)", "state = train(state, batch)", True),
        ("return jax.jit(step)", "train = jax.jit(make(adam, loss))", "state = train(state, batch)", True),
        ("return evaluate, step", "test, train = make(adam, loss)", "state = train(state, batch)", True),
        ("return evaluate, step", "test, train = make(adam, loss)", "print(test(state, batch))", False),
        ("return evaluate", "test = make(adam, loss)", "print(test(state, batch))", False),
        ("return evaluate", "", "state = agent.learn(state, batch)", True),
        ("return step", "", "state = make(adam, loss)(state, batch)", True),
    ],
)
def test_a_step_that_a_function_of_the_program_makes_is_known(
    returned: str, made: str, called: str, is_found: bool, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text(_MAKER.format(returned=returned, made=made, called=called))

    nests = analyse(tmp_path / "main.py").nests

    assert [nest.batch_loop.line for nest in nests] == ([25] if is_found else [])


def test_a_loop_around_a_training_that_another_name_means_is_its_epoch_loop(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("""\
import jax

def make(optimizer, loss):
    def train(state, data):
        for batch in data:
            state = optax.apply_updates(state, batch)
        return state

    return train

fit = make(adam, loss)
for seed in range(3):
    state = fit(seed, data)
""")

    (nest,) = analyse(tmp_path / "main.py").nests

    assert (nest.batch_loop.line, nest.epoch_loop and nest.epoch_loop.line) == (5, 12)


@pytest.mark.parametrize(
    ("library", "body", "is_found"),
    [
        ("jax", "population, state = es.ask(key, state)\n    state, metrics = es.tell(key, population, fitness, state)", True),
        ("jax", "state = es.tell(key, state)", False),
        ("jax", "population = es.ask()\n    log.tell(population)", False),
        ("ask_tell", "trial = study.ask()\n    study.tell(trial, 1.0)", False),
    ],
)
def test_a_search_without_gradients_is_known_by_what_it_is_asked_and_told(
    library: str, body: str, is_found: bool, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text(f"import {library}\nfor generation in range(64):\n    {body}\n")

    assert bool(analyse(tmp_path / "main.py").nests) is is_found
