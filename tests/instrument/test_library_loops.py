"""The loops of libraries that run a training in a program's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.framework_names import LibraryTraining
from detrain.instrument import find_loops

TRAINER = """
class Trainer:
    def fit(self):
        for epoch in range(3):
            for batch in self.data:
                self.step(batch)
            self.validate()

class Outer:
    def fit(self):
        while not self.done:
            self.epoch_loop.advance()

class Inner:
    def advance(self):
        for group in self.data:
            for batch in group:
                self.step(batch)
"""


@pytest.mark.parametrize(
    ("epochs", "batches", "lines"),
    [
        (None, "Trainer.fit", (None, 4)),
        ("Trainer.fit", "Trainer.fit", (4, 5)),
        ("Outer.fit", "Inner.advance", (11, 16)),
        ("Outer.gone", "Inner.advance", None),
    ],
)
def test_the_loops_of_a_library_are_found_alone_nested_and_in_two_functions(
    epochs: str | None, batches: str, lines: tuple[int | None, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "trains_for_you"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "trainer.py").write_text(TRAINER)
    monkeypatch.syspath_prepend(tmp_path)
    where = None if epochs is None else ("trainer.py", epochs)
    training = LibraryTraining("trains_for_you", where, ("trainer.py", batches), "step", "1.0")
    monkeypatch.setattr(find_loops, "LIBRARY_TRAININGS", (training,))
    found = [
        (n.epoch_loop.line if n.epoch_loop else None, n.batch_loop.line)
        for n in find_loops.library_nests({"trains_for_you"}, "tensorflow")
    ]
    assert found == ([] if lines is None else [lines])
