"""Exported tensors have the bits of the checkpoint; what cannot be written is refused, and nothing is left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file

from detrain.cli.export import command
from detrain.errors import StoreError, UsageError
from detrain.runtime.digest import Array
from detrain.store import Meta, Snapshot, read_meta, write

TENSORS: dict[str, Array] = {
    "dense/kernel": np.array([[1.5, -0.0], [np.nan, np.inf]], np.float32),
    "dense/half": np.arange(5, dtype=ml_dtypes.bfloat16),
    "iterations": np.array(7, np.int64),
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    meta = Meta(
        phase=0, epoch=1, batch=0, cut="epoch", run=1, program="train", arguments=(), sources={}, environment={}, seed=0,
        batches_done=3, journal_bytes=0,
    )  # fmt: skip
    path = tmp_path / "train-r1-p0-e00001-e000000.h5"
    write(path, Snapshot(meta, TENSORS, {}, b"\x82\xa5nodes\x90\xa5roots\x80"))
    return path


def exported(checkpoint: Path, *options: str) -> Path:
    done = CliRunner().invoke(command, [*options, str(checkpoint)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return checkpoint.with_suffix(f".{options[1]}")


def test_npz(checkpoint: Path) -> None:
    loaded = np.load(exported(checkpoint, "--to", "npz"), allow_pickle=False)

    assert sorted(loaded) == ["dense/half:bfloat16", "dense/kernel", "iterations"]
    assert loaded["dense/kernel"].tobytes() == TENSORS["dense/kernel"].tobytes()
    assert loaded["dense/half:bfloat16"].view(ml_dtypes.bfloat16).tobytes() == TENSORS["dense/half"].tobytes()
    assert loaded["iterations"] == 7


def test_safetensors(checkpoint: Path) -> None:
    loaded = load_file(exported(checkpoint, "--to", "safetensors", "--match", "kernel"))

    assert list(loaded) == ["dense/kernel"]
    assert loaded["dense/kernel"].tobytes() == TENSORS["dense/kernel"].tobytes()


def test_no_such_tensor(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="no tensor"):
        CliRunner().invoke(command, ["--to", "npz", "--match", "nothing", str(checkpoint)], catch_exceptions=False)


def test_a_folder_that_is_not_there(checkpoint: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        CliRunner().invoke(command, ["--to", "npz", "-o", "/nowhere/x.npz", str(checkpoint)], catch_exceptions=False)
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == [checkpoint.name]


def test_a_full_disk_is_seen_before_anything_is_written(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(checkpoint.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=10))
    meta = Meta(
        phase=0, epoch=2, batch=0, cut="epoch", run=1, program="train", arguments=(), sources={}, environment={}, seed=0,
        batches_done=3, journal_bytes=0,
    )  # fmt: skip
    with pytest.raises(StoreError, match="the disk has 10 left"):
        write(checkpoint.with_name("train-r1-p0-e00002-e000000.h5"), Snapshot(meta, TENSORS, {}, b""))
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == [checkpoint.name]


def test_safetensors_of_every_type_that_it_knows(checkpoint: Path) -> None:
    types = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8"]
    bits = np.random.default_rng(0)
    tensors = {f"t/{number}": bits.integers(0, 2, (3, 2)).astype(kind) for number, kind in enumerate(types)}
    tensors |= {"empty": np.zeros((0, 3), np.float32), "scalar": np.array(2.5), "by columns": np.arange(6.0).reshape(2, 3).T}
    write(checkpoint, Snapshot(read_meta(checkpoint), tensors, {}, b""))
    path = exported(checkpoint, "--to", "safetensors")
    loaded = load_file(path)

    assert {name: (array.dtype, array.shape, array.tobytes()) for name, array in loaded.items()} == {
        name: (array.dtype, array.shape, array.tobytes()) for name, array in tensors.items()
    }
    with safe_open(path, "np") as file:
        assert file.metadata() == {"program": "train", "phase": "0", "epoch": "1", "batch": "0", "cut": "epoch"}


def test_a_type_that_safetensors_lacks_is_refused_and_nothing_left(checkpoint: Path) -> None:
    write(checkpoint, Snapshot(read_meta(checkpoint), {"a": np.zeros(2, np.complex128)}, {}, b""))
    with pytest.raises(UsageError, match="cannot hold 'a' of dtype complex128"):
        CliRunner().invoke(command, ["--to", "safetensors", str(checkpoint)], catch_exceptions=False)
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == [checkpoint.name]


def test_no_checkpoint_is_overwritten(checkpoint: Path) -> None:
    before = checkpoint.read_bytes()
    with pytest.raises(UsageError, match="is the name of a checkpoint"):
        CliRunner().invoke(command, ["--to", "npz", "-o", str(checkpoint), str(checkpoint)], catch_exceptions=False)
    assert checkpoint.read_bytes() == before
