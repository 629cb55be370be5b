"""Exported tensors have the bits of the checkpoint; what cannot be written is refused, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import ml_dtypes
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file

from detrain.base.digest import Array
from detrain.base.errors import CannotExport, StoreError, UsageError
from detrain.cli.ckpt import export_tensors
from detrain.export.files import Exported, export
from detrain.store import Meta, Snapshot, read, read_meta, write
from detrain.store.snapshot import WeightsFile, WeightsGroup

TENSORS: dict[str, Array] = {
    "dense/kernel": np.array([[1.5, -0.0], [np.nan, np.inf]], np.float32),
    "dense/half": np.arange(5, dtype=ml_dtypes.bfloat16),
    "iterations": np.array(7, np.int64),
    "file": np.array([2.5]),
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
    done = CliRunner().invoke(export_tensors, [*options, str(checkpoint)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return checkpoint.with_suffix(f".{options[1]}")


def test_what_was_written_is_told(checkpoint: Path) -> None:
    assert list(export(checkpoint, "npz", match="dense")) == [Exported(checkpoint.with_suffix(".npz"), 2, 26)]


def test_npz(checkpoint: Path) -> None:
    loaded = np.load(exported(checkpoint, "--to", "npz"), allow_pickle=False)

    assert sorted(loaded) == ["dense/half:bfloat16", "dense/kernel", "file", "iterations"]
    assert loaded["dense/kernel"].tobytes() == TENSORS["dense/kernel"].tobytes()
    assert loaded["dense/half:bfloat16"].view(ml_dtypes.bfloat16).tobytes() == TENSORS["dense/half"].tobytes()
    assert loaded["iterations"] == 7


def test_safetensors(checkpoint: Path) -> None:
    loaded = load_file(exported(checkpoint, "--to", "safetensors", "--match", "kernel"))

    assert list(loaded) == ["dense/kernel"]
    assert loaded["dense/kernel"].tobytes() == TENSORS["dense/kernel"].tobytes()


def test_no_such_tensor(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="no tensor"):
        CliRunner().invoke(export_tensors, ["--to", "npz", "--match", "nothing", str(checkpoint)], catch_exceptions=False)


def test_a_folder_that_is_not_there(checkpoint: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        CliRunner().invoke(export_tensors, ["--to", "npz", "-o", "/nowhere/x.npz", str(checkpoint)], catch_exceptions=False)
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
        CliRunner().invoke(export_tensors, ["--to", "safetensors", str(checkpoint)], catch_exceptions=False)
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == [checkpoint.name]


def test_no_pipe_gives_way_to_a_file(checkpoint: Path) -> None:
    pipe = checkpoint.with_name("pipe")
    os.mkfifo(pipe)

    with pytest.raises(UsageError, match="a device or a pipe"):
        CliRunner().invoke(export_tensors, ["--to", "npz", "-o", str(pipe), str(checkpoint)], catch_exceptions=False)

    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "name",
    ["", "train-r1.manifest", "train-r1.journal", "train-r1.changes", ".train.lock", "inst.info", "train-r2-p0-e00001-e000000.h5"],
)
def test_nothing_that_runs_live_on_is_overwritten(checkpoint: Path, name: str) -> None:
    target = checkpoint.with_name(name) if name else checkpoint
    before = target.read_bytes() if target.exists() else None
    with pytest.raises(UsageError, match="is the name of a file that detrain works with"):
        CliRunner().invoke(export_tensors, ["--to", "npz", "-o", str(target), str(checkpoint)], catch_exceptions=False)
    assert (target.read_bytes() if target.exists() else None) == before


MODEL = WeightsFile(
    "net", (WeightsGroup("", "net", ()), WeightsGroup("layers/dense", "d", ("dense/kernel", "dense/half")))
)  # fmt: skip
UNBUILT = WeightsFile("later")


def saying(checkpoint: Path, weights: dict[str, WeightsFile] | None) -> Path:
    """Let the checkpoint say this of its models."""
    snapshot = read(checkpoint)
    write(checkpoint, dataclasses.replace(snapshot, meta=msgspec.structs.replace(snapshot.meta, weights=weights)))
    return checkpoint


def to_keras(checkpoint: Path, *options: str) -> str:
    done = CliRunner().invoke(export_tensors, ["--to", "keras", *options, str(checkpoint)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_keras(checkpoint: Path) -> None:
    said = to_keras(saying(checkpoint, {"Net": MODEL, "Other": UNBUILT}))

    path = checkpoint.with_name("train-r1-p0-e00001-e000000.weights.h5")
    assert said == f"net: 2 variables, to {path}\n"
    with h5py.File(path) as file:
        assert list(file) == ["layers", "vars"]
        assert (file["vars"].attrs["name"], file["layers/dense/vars"].attrs["name"]) == ("net", "d")
        assert file["layers/dense/vars/0"][()].tobytes() == TENSORS["dense/kernel"].tobytes()
        assert file["layers/dense/vars/1"].attrs["dtype"] == "bfloat16"
        assert file["layers/dense/vars/1"][()].tobytes() == TENSORS["dense/half"].tobytes()


def test_keras_with_several_models(checkpoint: Path) -> None:
    """Each file is named after its model, or after the model's key where two have one name."""
    named = msgspec.structs.replace(MODEL, name="../tower")
    saying(checkpoint, {"Net": MODEL, "Net.1": MODEL, "Tower": named})
    to_keras(checkpoint, "--output", str(checkpoint.with_name("x.weights.h5")))

    written = sorted(path.name for path in checkpoint.parent.iterdir() if path != checkpoint)
    assert written == ["x-..-tower.weights.h5", "x-Net.1.weights.h5", "x-Net.weights.h5"]
    assert to_keras(checkpoint, "--match", "Net").endswith(f"{checkpoint.stem}-Net.weights.h5\n")


def test_keras_is_not_needed_for_its_files(checkpoint: Path) -> None:
    program = (
        "import sys; from detrain.cli.ckpt import export_tensors; export_tensors(sys.argv[1:], standalone_mode=False); "
        "assert not {'keras', 'tensorflow'} & set(sys.modules)"
    )
    options = ["--to", "keras", str(saying(checkpoint, {"Net": MODEL}))]
    subprocess.run([sys.executable, "-c", program, *options], check=True)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (None, "does not say which variable is which .* an earlier version"),
        ({}, "holds no Keras model\n"),
        ({"Later": UNBUILT}, r"holds no Keras model \(later: not built yet\)\n  export a later"),
        ({"Net": MODEL, "Own": WeightsFile("own", refused="Dense 'x' is odd")}, r"model 'own' \(Own\) .*: Dense 'x' is odd"),
        ({"Net": WeightsFile("net", (WeightsGroup("", "net", ("gone",)),))}, "has no value of 'gone'"),
        ({"Net": WeightsFile("net", (WeightsGroup("", "net", ("small",)),))}, "cannot hold 'small' of dtype float8_e5m2"),
        ({"A B": MODEL, "A/B": MODEL}, "two of the models net, net would get one file"),
    ],
)
def test_what_cannot_be_a_file_of_keras_is_refused(weights: dict[str, WeightsFile] | None, reason: str, checkpoint: Path) -> None:
    write(checkpoint, Snapshot(read_meta(checkpoint), TENSORS | {"small": np.zeros(2, ml_dtypes.float8_e5m2)}, {}, b""))
    with pytest.raises(CannotExport, match=reason):
        to_keras(saying(checkpoint, weights))
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == [checkpoint.name]


def test_keras_reads_only_files_with_its_ending(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match=r"reads no weights from 'x\.h5'"):
        to_keras(saying(checkpoint, {"Net": MODEL}), "-o", "x.h5")


def test_what_a_killed_export_left_is_deleted_by_the_next(checkpoint: Path) -> None:
    folder = checkpoint.parent
    program = (
        "import os, signal, sys; from detrain.cli.ckpt import export_tensors; "
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL); export_tensors(sys.argv[1:])"
    )
    subprocess.run([sys.executable, "-c", program, "--to", "npz", str(checkpoint)], check=False)
    assert len(list(folder.glob(".*.export"))) == 1
    others = [folder / name for name in (".train-r1-p0-e00002-e000000.h5.77.tmp", ".notes.export", "x.7.export")]
    for path in others:
        path.touch()
    (folder / ".link.7.export").symlink_to(checkpoint)

    exported(checkpoint, "--to", "safetensors")

    assert [path.name for path in folder.glob(".*.export") if path not in others] == [".link.7.export"]
    assert all(path.exists() for path in others)
    assert checkpoint.exists()


def test_the_file_of_an_export_at_work_is_left_alone(checkpoint: Path) -> None:
    running = checkpoint.parent / ".x.npz.7.export"
    with running.open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        child = os.fork()
        if child == 0:
            exported(checkpoint, "--to", "npz")
            os._exit(0)
        os.waitpid(child, 0)
        assert running.exists()
    exported(checkpoint, "--to", "npz")
    assert not running.exists()


def test_an_export_whose_file_another_took_for_a_leftover_makes_it_anew(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, taken = fcntl.lockf, []

    def late(descriptor: int, how: int) -> None:
        if not taken:  # the other one looks between the making of the file and its lock
            taken.extend(checkpoint.parent.glob(".*.export"))
            taken[0].unlink()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "lockf", late)

    assert sorted(np.load(exported(checkpoint, "--to", "npz"))) == ["dense/half:bfloat16", "dense/kernel", "file", "iterations"]
    assert len(taken) == 1
    assert not list(checkpoint.parent.glob(".*.export"))
