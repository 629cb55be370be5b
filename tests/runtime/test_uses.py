"""What of a program reads an object, and what only tells it something."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.python.inspect.library_reads import is_consulted, is_read


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("trial in objective()", "if trial.should_prune():\n    raise Pruned()\n", True),
        ("trial in objective()", "trial.report(loss, epoch)\n", False),
        ("study", "print(study.best_value)\n", True),
        ("study", "study.optimize(objective)\n", False),
        ("env.unwrapped.ale", "state = env.step(action)\n", True),
        ("callbacks in fit().callbacks[0].trial", "units = trial.suggest_int('units', 1, 9)\ncallbacks = [Prune(trial)]\n", True),
        ("writer", "with writer.as_default():\n    writer.add_scalar('loss', loss)\nwriter.close()\n", False),
        ("self.writer in train()", "self.writer = Writer()\nself.writer.add_scalar('loss', loss)\nx = self.loss()\n", False),
        ("run", "if run is not None:\n    run.log({'loss': loss})\n", False),
        ("loader.next", "batch = self.next.result()\n", True),
        ("table['a.b'].rows", "for row in table['a.b']:\n    pass\n", True),
        ("queue", "item = next(queue)\n", True),
        ("logger", "train(logger=logger)\n", False),
        ("config.run", "train(config.run)\n", False),
        ("nobody", "x = 1\n", False),
    ],
)
def test_a_program_reads_what_it_uses_of_an_answer(path: str, text: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(text)

    assert is_read(path, [str(tmp_path / "program.py")]) is expected


@pytest.mark.parametrize(
    ("module", "expected"), [("someenv", True), ("matplotlib.axes", False), ("wandb", False), ("keras", False)]
)
def test_libraries_that_show_or_record_and_frameworks_are_not_consulted(module: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("line = thing.plot(losses)\n")
    thing = type("Thing", (), {"__module__": module})()

    assert is_consulted(thing, "thing", [str(tmp_path / "program.py")]) is expected
