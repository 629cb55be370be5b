"""Jobs of Slurm: what stands for its commands here is a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from detrain.base.errors import CampaignStopped
from detrain.campaign.engine.api import TrialLease
from detrain.campaign.engine.slurm_jobs import SlurmJobs


class Work:
    """Work of which no worker is started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, _lease: TrialLease, _shard: str) -> list[str]:
        return ["true"]

    def log(self, _lease: TrialLease) -> Path:
        return self._folder / "log"


def test_a_job_that_slurm_does_not_take_stops_the_campaign_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    for name, text in (("srun", "exit 0"), ("sbatch", "echo 'Requested time limit is invalid' >&2; exit 1")):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/sh\n{text}\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    engine = SlurmJobs(1, tmp_path / "jobs", is_local=False)
    engine.start(cast("Any", Work(tmp_path)))

    with pytest.raises(CampaignStopped, match="Slurm takes no job: Requested time limit is invalid"):
        engine.submit(TrialLease("1-1", [0]))
    engine.stop()
