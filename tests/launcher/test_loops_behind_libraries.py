"""A library whose loop is known is found behind another library, which alone the program imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.launcher.program import Program
from detrain.launcher.structure import find_structure

LOOP = """
class NeuralNet:
    def fit_loop(self, epochs):
        for epoch in range(epochs):
            self.run_single_epoch([1, 2])

    def run_single_epoch(self, batches):
        for batch in batches:
            self.step_fn(batch)
"""


def test_a_loop_is_found_by_what_the_imported_library_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = tmp_path / "site-packages"
    for name, text in [("skorch/__init__", ""), ("skorch/net", LOOP), ("fine_tuning_tools", "from skorch.net import NeuralNet\n")]:
        file = libraries / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(libraries))
    (tmp_path / "train.py").write_text("from fine_tuning_tools import NeuralNet\nNeuralNet().fit_loop(2)\n")

    found = find_structure(Program.find(str(tmp_path / "train.py"), is_module=False), tmp_path)

    assert [Path(nest.batch_loop.file).name for nest in found.nests] == ["net.py"]
    assert found.nests[0].epoch_loop is not None
