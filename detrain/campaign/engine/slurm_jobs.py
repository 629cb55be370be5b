"""Workers as jobs of Slurm, by submitit: a job is one worker with its lease. A job gets only paths and settings."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from detrain.base.errors import CampaignStopped, UsageError
from detrain.campaign.engine.api import TrialLease, Work, WorkerEnded

_POLL_S: Final = 1.0
_SAID: Final = 12
_DAY_MIN: Final = 24 * 60


class Hold:
    """The function of a job: runs a worker, and returns its status."""

    def __init__(self, command: list[str], folder: str, log: str, settings: dict[str, str]) -> None:
        self.command, self.folder, self.log, self.settings = command, folder, log, settings

    def __call__(self) -> int:
        """Run the worker; return its exit status."""
        with Path(self.log).open("wb") as stderr:
            return subprocess.run(
                self.command,
                cwd=self.folder,
                env={**os.environ, **self.settings},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                check=False,
            ).returncode


class SlurmJobs:
    """Runs a fixed number of jobs at a time. The campaign's folder is on a file system that all nodes see."""

    def __init__(self, slots: int, folder: Path, *, is_local: bool, minutes: int = _DAY_MIN) -> None:
        try:
            import submitit
        except ImportError as error:
            raise UsageError("--engine slurm: submitit is not installed", "pip install 'detrain[slurm]'") from error
        self.slots = slots
        try:
            self._executor: Any = submitit.AutoExecutor(folder=folder, cluster="local" if is_local else "slurm")
        except RuntimeError as error:
            raise CampaignStopped(f"no Slurm here: {error}", "run it where `srun` is, or with another --engine") from error
        self._executor.update_parameters(timeout_min=minutes, cpus_per_task=1, name="detrain")
        self._running: dict[str, tuple[TrialLease, str, Any]] = {}

    def start(self, work: Work) -> None:
        """Take the work from which leases are started."""
        self._work = work

    def submit(self, lease: TrialLease) -> None:
        """Submit a job for a lease."""
        shard = f"job-{lease.identity}"
        names = ("DETRAIN_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH")
        settings = {name: os.environ[name] for name in names if name in os.environ}
        hold = Hold(self._work.command(lease, shard), os.getcwd(), str(self._work.log(lease)), settings)
        try:
            self._running[lease.identity] = lease, shard, self._executor.submit(hold)
        except RuntimeError as error:  # submitit's, of `sbatch`
            raise CampaignStopped(
                f"Slurm takes no job: {error}",
                "set what it wants by SBATCH_PARTITION, SBATCH_ACCOUNT or SBATCH_TIMELIMIT, and run the campaign again",
            ) from error

    def events(self) -> Iterator[WorkerEnded]:
        """Wait a little, and yield the workers that have ended."""
        time.sleep(_POLL_S)
        for identity, (lease, shard, job) in list(self._running.items()):
            if not job.done():
                continue
            del self._running[identity]
            error = job.exception()
            status = -1 if error is not None else int(job.result())
            log = self._work.log(lease)
            said = log.read_text(errors="replace").splitlines()[-_SAID:] if log.is_file() else []
            yield WorkerEnded(lease, shard, status, "\n".join(said) or str(error or ""))

    def stop(self) -> None:
        """Cancel all jobs."""
        for _lease, _shard, job in self._running.values():
            job.cancel(check=False)
        self._running = {}
