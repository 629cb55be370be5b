"""The loops of programs that train with JAX are found in the source: where their marks say."""

from __future__ import annotations

from pathlib import Path

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
