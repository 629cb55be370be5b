"""The engine that a command is asked for, by its name."""

from __future__ import annotations

from pathlib import Path

from detrain.base.errors import UsageError
from detrain.campaign.engine.api import Engine
from detrain.python.process.environment import threads_here


def made(name: str, workers: int | None, address: str | None, folder: Path) -> Engine:
    """Return an engine of so many workers at a time; None: one a core, or a CPU of the cluster. In `folder` it leaves
    what it writes.

    Raises UsageError where what it needs is not installed, or an address is given to another than Ray's;
    CampaignStopped where there is none.
    """
    if address is not None and name != "ray":
        raise UsageError(f"--address {address!r} is of a Ray cluster, and the engine is {name}", "add --engine ray")
    if name == "ray":
        from detrain.campaign.engine.ray_cluster import RayCluster

        return RayCluster(workers, address)
    if name in ("slurm", "submitit-local"):
        from detrain.campaign.engine.slurm_jobs import SlurmJobs

        return SlurmJobs(workers or 4, folder / "jobs", is_local=name != "slurm")
    from detrain.campaign.engine.local import Local

    return Local(workers or threads_here())
