"""Probes around what the line of an update loads itself."""

from __future__ import annotations

import pytest

from detrain.base.structure import Loop, Nest
from detrain.instrument.text_edits import apply
from detrain.instrument.value_probes import edits_for_fetches


@pytest.mark.parametrize(
    ("header", "before", "after"),
    [
        (
            "for step in range(9):",
            "loss, acc = model.train_on_batch(*loader.get())",
            "loss, acc = model.train_on_batch(*_detrain_fetch((loader.get())))",
        ),
        (
            "for step in range(9):",
            "losses.append(float(step_on(next(it))))",
            "losses.append(float(step_on(_detrain_fetch((next(it))))))",
        ),
        ("for step in range(9):", "total += float(step_on(next(it)))", "total += float(step_on(_detrain_fetch((next(it)))))"),
        (
            "while True:",
            "train(model, x=memory.sample(32), scale=float(rate))",
            "train(model, x=_detrain_fetch((memory.sample(32))), scale=float(rate))",
        ),
        ("for x in data:", "step_on(augment(x))", "step_on(augment(x))"),
        (
            "for step in range(9):",
            "optimizer.apply_gradients(zip(tape.gradient(loss, w), w))",
            "optimizer.apply_gradients(zip(tape.gradient(loss, w), w))",
        ),
        ("for step in range(9):", "optimizer.apply(gradients_of(batch()), w)", "optimizer.apply(gradients_of(batch()), w)"),
        ("for step in range(9):", "step_on(lambda: load(), [load() for _ in x])", "step_on(lambda: load(), [load() for _ in x])"),
    ],
)
def test_calls_among_the_arguments_of_an_update_are_noted_where_nothing_else_loads(header: str, before: str, after: str) -> None:
    source = f"{header}\n    {before}\n"
    nest = Nest(Loop("program.py", 1, 0, "for"), update_line=2)

    edited = apply(source.encode(), edits_for_fetches(source.encode(), [nest], "program.py")).decode()

    assert edited == f"{header}\n    {after}\n"
    assert (
        edits_for_fetches(source.encode(), [Nest(Loop("program.py", 1, 0, "for"), load_line=1, update_line=2)], "program.py") == []
    )
