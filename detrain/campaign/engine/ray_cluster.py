"""Workers on a Ray cluster. An actor only holds a detrain process: Ray knows no trials, and restarts none."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from detrain.base.child_processes import dying_with_this
from detrain.base.errors import CampaignStopped, UsageError
from detrain.campaign.engine.api import TrialLease, Work, WorkerEnded

_WAIT_S = 0.2
_SAID = 12
_LOOK_S = 2.0
_CONNECT_S = 3.0
_GONE_S = 20.0
"""A control service that was restarted is back within this time."""
_KEPT = ("DETRAIN_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH", "CUBLAS_WORKSPACE_CONFIG")


class WorkerHolder:
    """Holds one worker at a time."""

    def run(self, command: list[str], folder: str, settings: dict[str, str]) -> tuple[int, str]:
        """Run a worker to its end; return its status and the last lines that it wrote to stderr."""
        with subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=dying_with_this(),  # noqa: PLW1509  the thread that starts it lives as long as the actor's call
        ) as process:
            _out, said = process.communicate()
        return process.returncode, "\n".join(said.decode(errors="replace").splitlines()[-_SAID:])


class RayCluster:
    """One actor for each slot. All machines see the folder of the campaign by the same path."""

    _is_gone = False

    def __init__(self, slots: int | None, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise UsageError("--engine ray: Ray is not installed", "pip install 'detrain[ray]'") from error
        self._ray: Any = ray
        where = address or "this machine"
        try:
            # Without an address Ray looks for the machine's last cluster, which may have been killed, or be another's.
            self._ray.init(address=address or "local", include_dashboard=False, log_to_driver=False, configure_logging=False)
            self.slots = slots or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError) as error:
            raise CampaignStopped(f"no Ray cluster at {where}: {error}", "see that it runs, then run again") from error
        self._idle: list[tuple[str, Any]] = []
        self._running: dict[Any, tuple[TrialLease, str, Any]] = {}
        self._made = 0
        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        self._control = host.strip("[]"), int(port)
        """Host and port of the cluster's control service."""
        self._seen = time.monotonic()
        """The time at which the control service last answered."""

    def start(self, work: Work) -> None:
        """Take the work from which leases are started."""
        self._work = work

    def submit(self, lease: TrialLease) -> None:
        """Start a worker on a lease."""
        shard, actor = self._idle.pop() if self._idle else self._actor()
        settings = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with self._told():
            future = actor.run.remote(self._work.command(lease, shard), os.getcwd(), settings)
        self._running[future] = lease, shard, actor

    def events(self) -> Iterator[WorkerEnded]:
        """Wait a little, and yield the workers that have ended."""
        self._require_there(_GONE_S)
        with self._told():
            done, _others = self._ray.wait(list(self._running), num_returns=1, timeout=_WAIT_S)
        for future in done:
            lease, shard, actor = self._running.pop(future)
            try:
                status, said = self._ray.get(future)
            except self._ray.exceptions.RayActorError as error:  # its machine, or the actor, was killed
                self._require_there(0.0)
                yield WorkerEnded(lease, shard, -9, str(error))
                continue
            except self._ray.exceptions.RayError as error:
                raise self._gone(error) from error
            self._idle.append((shard, actor))
            yield WorkerEnded(lease, shard, status, said)

    def stop(self) -> None:
        """End all workers, and leave the cluster."""
        for _lease, _shard, actor in self._running.values() if not self._is_gone else ():
            self._ray.kill(actor)
        self._running = {}
        self._ray.shutdown()

    def _actor(self) -> tuple[str, Any]:
        """Return a new actor, and the name of its ledger, which no other driver uses."""
        self._made += 1
        kind = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(WorkerHolder)
        return f"ray-{socket.gethostname()}-{os.getpid()}-{self._made}", kind.remote()

    def _told(self) -> _ClusterGone:
        return _ClusterGone(self)

    def _require_there(self, longest_s: float) -> None:
        """Raise CampaignStopped if the cluster's control service has not answered for `longest_s` seconds.

        Ray's client would wait for it for a minute, and then end this process.
        """
        now = time.monotonic()
        if now - self._seen < _LOOK_S and longest_s:
            return
        try:
            socket.create_connection(self._control, timeout=_CONNECT_S).close()
            self._seen = time.monotonic()
        except OSError as error:
            if now - self._seen >= longest_s:
                raise self._gone(error) from error

    def _gone(self, error: BaseException) -> CampaignStopped:
        self._is_gone = True
        return CampaignStopped(
            f"the Ray cluster is gone: {error}", "run the campaign again, on any engine: it goes on where it was"
        )


class _ClusterGone:
    """Raises CampaignStopped where a call of Ray's fails because the cluster is gone."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        ray = self._cluster._ray
        if isinstance(error, (ConnectionError, ray.exceptions.RayError)) or type(error) is RuntimeError:
            raise self._cluster._gone(error) from error
