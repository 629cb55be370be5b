"""Two words for what no checkpoint holds: harmless, refused; each said once. What a thing is decides."""

from __future__ import annotations

import importlib
import logging
import logging.handlers
import sys
import threading
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest

from detrain.base import messages
from detrain.base.losses import HARMLESS, LOADS_TRAINED, is_harmless, is_refused, lacking, place_of_loss
from detrain.python.inspect.output_only import is_output_only
from tests.runtime.state_values import baseline_of, encode, restore


def of(module: str) -> object:
    """An object of a class that says it is of a module."""
    return type("Thing", (), {"__module__": module})()


@pytest.mark.parametrize(
    ("module", "is_output"),
    [
        ("torch.utils.tensorboard.writer", True),
        ("rich.progress", True),
        ("wandb.sdk.wandb_run", True),
        ("matplotlib.figure", True),
        ("clu.periodic_actions", True),
        ("clu.metrics", False),
        ("wandb.sdk.wandb_config", False),
        ("richer.progress", False),
        ("torch_ema.ema", False),
        ("pytorch_warmup.base", False),
        ("somelib", False),
    ],
)
def test_the_library_that_a_thing_is_of_says_whether_it_only_shows_or_records(module: str, is_output: bool) -> None:
    assert is_output_only(of(module)) == is_output


def test_a_logger_is_harmless_and_one_that_holds_lines_back_is_not() -> None:
    assert is_output_only(logging.StreamHandler())
    assert not is_output_only(logging.handlers.MemoryHandler(10))


def test_an_archive_is_harmless_as_long_as_nobody_writes_into_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as written:
        assert not is_output_only(written)
    with zipfile.ZipFile(tmp_path / "a.zip") as read:
        assert is_output_only(read)


@pytest.mark.parametrize(("mode", "is_read"), [("r", True), ("r+", False), ("a", False)])
def test_an_hdf5_file_is_harmless_where_it_can_only_be_read(mode: Any, is_read: bool, tmp_path: Path) -> None:
    """A data set that opened one when it was read had each resume refused."""
    with h5py.File(tmp_path / "rows.h5", "w") as written:
        written["a/rows"] = np.arange(6.0)
        assert not is_output_only(written)
    with h5py.File(tmp_path / "rows.h5", mode) as file:
        assert [is_output_only(each) for each in (file, file["a"], file["a/rows"])] == [is_read] * 3


@pytest.mark.parametrize(("mode", "is_read"), [("r", True), ("r+", False), ("c", False)])
def test_an_array_that_is_mapped_to_a_file_is_harmless_where_it_can_only_be_read(mode: Any, is_read: bool, tmp_path: Path) -> None:
    np.arange(6.0).tofile(tmp_path / "rows.bin")

    assert is_output_only(np.memmap(tmp_path / "rows.bin", mode=mode)) == is_read


@pytest.mark.parametrize("is_readonly", [False, True])
def test_a_database_is_harmless_where_it_was_opened_to_be_read(is_readonly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its class says that it is one of Python's own."""

    class Environment:
        __module__ = "builtins"

        def flags(self) -> dict[str, bool]:
            return {"readonly": is_readonly}

    module: Any = ModuleType("lmdb")
    module.Environment = Environment
    monkeypatch.setitem(sys.modules, "lmdb", module)

    assert is_output_only(Environment()) == is_readonly


@pytest.mark.parametrize(("raised", "is_read"), [("ReadonlyError", True), ("BadValsizeError", False)])
def test_a_transaction_is_harmless_where_it_may_not_write(raised: str, is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets keep one, and each resume was refused. py-lmdb 3.0 says of none whether it may write."""

    class Transaction:
        __module__ = "builtins"

        def delete(self, key: bytes) -> bool:
            raise type(raised, (Exception,), {})(key)

    module: Any = ModuleType("lmdb")
    module.Transaction = Transaction
    monkeypatch.setitem(sys.modules, "lmdb", module)

    assert is_output_only(Transaction()) == is_read


@pytest.mark.parametrize(
    ("loss", "refused"),
    [
        (f"writer (torch.utils.tensorboard.writer.SummaryWriter: it has moved on{HARMLESS})", False),
        ("schedule (acclib.Schedule: it has moved on)", True),
        ("writer (function: its code is not in the source)", True),
        ("state.json (file: the loop changes it in place)", True),
        ("what the thread worker holds", True),
        (f"source (lib.Source: {LOADS_TRAINED})", False),
    ],
)
def test_what_is_not_known_to_be_harmless_is_refused(loss: str, refused: bool) -> None:
    assert is_refused(loss) == refused
    assert not (refused and is_harmless(loss))


def test_what_the_user_allows_is_told_by_its_place() -> None:
    losses = ["games in main()[0].env (lib.Env: it has moved on)", "what the thread worker holds"]

    assert lacking(losses, ()) == losses
    assert lacking(losses, [place_of_loss(losses[0])]) == losses[1:]
    assert place_of_loss(losses[1]) == losses[1]


def test_a_warning_is_said_once_in_a_process(capfd: pytest.CaptureFixture[str]) -> None:
    for text in ("one for this test", "another for this test", "one for this test"):
        messages.warn(text)

    assert capfd.readouterr().err.splitlines() == [
        "detrain: warning: one for this test",
        "detrain: warning: another for this test",
    ]


@pytest.mark.parametrize(
    ("name", "held", "is_held_elsewhere", "missing"),
    [
        ("rich.progress", threading.Thread(), False, []),  # it is made anew, without the thread
        ("rich.progress", threading.Thread(), True, ["box['shown'].held", "box['held']"]),
        ("tqdm.std", threading.Thread(), False, []),
        ("tqdm.std", 1, False, []),
        ("statsmodels.api", threading.Thread(), False, ["box['shown']"]),
    ],
)
def test_what_only_a_bar_holds_need_not_be_there_in_a_resumed_run(
    name: str, held: object, is_held_elsewhere: bool, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has made it in an earlier epoch, so at this epoch's start it was there."""
    shown: Any = of(name)
    shown.held = held
    monkeypatch.setattr(importlib.import_module(name), "Thing", type(shown), raising=False)
    world: dict[str, object] = {"box": {"shown": shown} | ({"held": held} if is_held_elsewhere else {})}
    encoded = encode(world, baseline_of(world))
    there: dict[str, object] = {"box": {}}

    assert encoded.not_captured == []
    assert restore(encoded, there, baseline_of(there)) == missing
