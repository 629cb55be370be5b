"""Moments of a run that is over, from code: what a kernel or a script gets is what an uninterrupted run had there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from detrain import moment
from detrain.base.errors import StoreError, UsageError
from tests.e2e.runs import ROOT, environment
from tests.e2e.test_at import bits, digests, run
from tests.e2e.test_notebook import Kernel

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
__all__ = ["run"]


@pytest.fixture
def there(run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run, as the current one, and the variables of the environment that the run had."""
    monkeypatch.chdir(run)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return run


def test_values_and_tensors_are_those_that_an_uninterrupted_run_had(there: Path) -> None:
    before = digests(there)
    had = np.load(there.parent / "had-1-3.npz")

    found = moment.at("1:3", "program.py")

    assert (found.cursor, found.step, found.since) == ("1:3", 8, "1:1")
    assert found.values["x"].tobytes() == had["x"].tobytes()
    assert found.values["x"].dtype == had["x"].dtype
    assert (found.values["epoch"], found.values["step"]) == (1, 3)
    assert type(found.values["step"]) is int
    assert "model" not in found.values
    assert found.shown["model"].startswith("torch.nn.modules.container.Sequential Sequential(")
    (weight,) = (array for name, array in found.tensors.items() if name.partition(" ")[0].endswith("0.weight"))
    assert weight.tobytes() == had["weight"].tobytes()
    assert digests(there) == before


def test_expressions_come_as_data_where_that_is_all_of_them(there: Path) -> None:
    wanted = ["float('nan')", "'text'", "'zero\\0'", "2 ** 70", "len(history) > 7", "nothing_such", "x[:2].bfloat16()", "[1]"]

    found = moment.at(8, "program.py", expressions=wanted)

    assert np.isnan(found.values.pop("float('nan')"))
    x = np.frombuffer(bits(there, "x")["1:3"], np.float32).reshape(8, 4)[:2]
    halves = found.values.pop("x[:2].bfloat16()").tobytes()
    assert np.abs(np.frombuffer(halves, np.uint16).astype(np.uint32).__lshift__(16).view(np.float32) - x.ravel()).max() < 0.02
    assert dict(found.values) == {"'text'": "text", "len(history) > 7": True}
    assert found.shown["nothing_such"] == "NameError: name 'nothing_such' is not defined"
    assert list(found.shown) == wanted


def test_the_first_step_at_which_an_expression_is_true_is_found(there: Path) -> None:
    found = moment.first("len(history) == 7", "program.py", since="1:0")

    assert found is not None
    assert (found.cursor, found.step) == ("1:2", 7)
    assert moment.first("len(history) > 99", "program.py", since="2:3") is None


def test_what_the_run_has_not_is_refused(there: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the run has no step 7:0"):
        moment.at("7:0", "program.py")
    with pytest.raises(StoreError, match="has no checkpoint of program"):
        moment.at("1:0", "program.py", home=tmp_path)


@pytest.fixture
def kernel(run: Path) -> Iterator[Kernel]:
    """A real one, in the folder of the run."""
    client = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    manager = client.KernelManager()
    manager.start_kernel(env=environment(PYTHONPATH=str(ROOT)), cwd=str(run))
    channels = manager.client()
    channels.start_channels()
    channels.wait_for_ready(timeout=60)
    made = Kernel(manager, channels)
    yield made
    made.end()


def test_a_notebook_looks_at_a_run(run: Path, kernel: Kernel) -> None:
    cells = [
        "import detrain\nthere = detrain.moment.at('2:1', 'program.py')",
        "print(there.cursor, there.values['x'].tobytes().hex())",
    ]

    assert kernel.run(cells), kernel.shown
    assert f"2:1 {bits(run, 'x')['2:1'].hex()}{os.linesep}" in kernel.shown
