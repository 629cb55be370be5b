"""Files are made with the user's umask, and nothing is written through a symbolic link that somebody has put in the
way.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from detrain.base.errors import DetrainError
from detrain.cli.ckpt import export_tensors as export
from detrain.store.lock import hold
from tests.store.homes import PROGRAM, Run, epoch

NAME = "train-r1-p0-e00001-e000000"


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_files_are_made_with_the_umask(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        run = Run(tmp_path)
        run.save(1)
        hold(tmp_path, PROGRAM)
        CliRunner().invoke(export, ["--to", "npz", str(run.catalogue.path(PROGRAM, 1, epoch(1)))], catch_exceptions=False)
    finally:
        os.umask(before)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys([f"{NAME}.h5", f"{NAME}.npz", "train-r1.journal", "train-r1.manifest", ".train.lock"], mode)


@pytest.mark.parametrize(
    "name", [f"{NAME}.h5", f".{NAME}.h5.PID.tmp", f"{NAME}.npz", "train-r1.journal", "train-r1.manifest", ".train.lock"]
)
@pytest.mark.parametrize("is_there", [True, False])
def test_nothing_is_written_through_a_link(name: str, is_there: bool, tmp_path: Path) -> None:
    name = name.replace("PID", str(os.getpid()))
    home, secret = tmp_path / "home", tmp_path / "secret"
    home.mkdir()
    if is_there:
        secret.write_bytes(b"as it was")
    (home / name).symlink_to(secret)
    said = None
    try:
        hold(home, PROGRAM)
        run = Run(home)
        run.save(1)
        CliRunner().invoke(export, ["--to", "npz", str(run.catalogue.path(PROGRAM, 1, epoch(1)))], catch_exceptions=False)
    except DetrainError as error:
        said = str(error)

    assert name in said if said is not None else not (home / name).is_symlink()
    assert secret.exists() == is_there
    assert not is_there or secret.read_bytes() == b"as it was"


def test_a_folder_in_the_place_of_a_file_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "train-r1.manifest").mkdir()
    with pytest.raises(DetrainError, match="manifest"):
        Run(tmp_path).save(1)
