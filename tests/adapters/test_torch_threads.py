"""The number of threads decides about bits: it is the user's, where a variable asks for one, and the first run's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from detrain.base.framework_names import TORCH
from detrain.python.process.environment import base_environment, variables

torch = pytest.importorskip("torch")

from detrain.adapters.torch import settings  # noqa: E402

HERE = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    yield
    torch.set_num_threads(kept[0])
    torch.use_deterministic_algorithms(kept[1])
    torch.backends.cudnn.deterministic = kept[2]


def test_without_a_variable_the_number_is_the_one_of_the_run() -> None:
    settings.fix(0, 3)
    assert torch.get_num_threads() == 3


def test_what_the_user_asks_for_by_a_variable_is_left_as_pytorch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)  # what PyTorch does when it is imported
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings.fix(0, 3)
    assert torch.get_num_threads() == 1


def test_a_resumed_run_is_given_the_variable_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "OMP_NUM_THREADS" in TORCH.settings
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    first = base_environment(HERE)
    assert first["OMP_NUM_THREADS"] == "1"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert variables(HERE, first)["OMP_NUM_THREADS"] == "1"


def test_a_variable_that_the_first_run_did_not_have_does_not_change_a_resumed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = base_environment(HERE)
    monkeypatch.setenv("OMP_NUM_THREADS", str(HERE + 1))
    assert variables(HERE, first)["OMP_NUM_THREADS"] == str(HERE)


@pytest.mark.parametrize("machine", [HERE, HERE + 1])
@pytest.mark.parametrize("now", ["", str(HERE + 2)])
def test_each_library_gets_the_number_that_the_first_run_asked_for(machine: int, now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    first = base_environment(machine)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, now)

    again = variables(machine, first)

    assert again["OMP_NUM_THREADS"] == "1"
    assert again.get("MKL_NUM_THREADS", "1") == "1"
