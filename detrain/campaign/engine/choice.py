"""The choice of an engine by its name."""

from __future__ import annotations

from pathlib import Path

from detrain.base.errors import UsageError
from detrain.campaign.engine.api import Engine
from detrain.python.process.environment import threads_here


def made(name: str, workers: int | None, address: str | None, folder: Path) -> Engine:
    """Return an engine with so many workers at a time; None: one for each core, or for each CPU of the cluster. Its
    files are left in `folder`.

    Raises UsageError if its packages are not installed, or if an engine other than Ray's gets an address;
    CampaignStopped if there is no cluster.
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
