"""The settings that the command hands to the training process, as JSON in an open file: the probes of a large program
do not fit into an environment variable.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from typing import Final

import msgspec

from detrain.base.options import Options, TraceOptions
from detrain.base.structure import Structure
from detrain.base.timing import StartParts

VARIABLE: Final = "DETRAIN_SESSION"
RESTARTED: Final = "DETRAIN_GUARD_RUN"
"""Environment variable with the number of the run to go on with, for a process that the guard starts again."""

MOMENT: Final = "DETRAIN_MOMENT"
"""Environment variable in which `detrain at` names, as JSON, the moment at which a run is to stop: the expressions that
are evaluated there come from the command line, and from no file."""
IS_CHECKED: Final = "DETRAIN_CHECKS_ALL"
"""Environment variable by which a process that met a damaged checkpoint has the next process check all beforehand."""

SELDOM: Final = 1 << 40
"""More batches than any run has: as a distance, it means that checkpoints are taken only at the starts of epochs."""


_LAUNCHERS: Final = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
"""Launchers of processes, and the variables that they set: number and count of the process, in all and on its machine.
Sources: PyTorch, "torchrun"; Slurm, srun(1), "Output environment variables" (a batch script has the first, and not the
second); Open MPI, mpirun(1), "Exported environment variables"; MPICH and Intel MPI, "Hydra process manager"."""


TOGETHER: Final = "export MASTER_ADDR and MASTER_PORT, so that they are one job"
"""What to do with processes of such a launcher that train together."""


class Ranks(msgspec.Struct, frozen=True):
    """The rank of this process in a job of several processes."""

    rank: int
    world: int
    local_rank: int | None = None
    """The number of this process on its machine; None if the launcher does not say."""
    local_world: int | None = None
    """The number of ranks on this machine; None if the launcher does not say."""
    job: str = ""
    """A number that differs at each start of the job."""
    port: int = 0
    """A port of rank 0's machine that was free when the job started: the processes of a framework may meet there."""

    @classmethod
    def of_environment(cls) -> Ranks | None:
        """Return the rank that the environment gives this process; None if it is the only process, or each process that
        was launched with it is a run of its own: where no address is given (`MASTER_ADDR`), they form no job.
        """
        launched = cls.launched()
        return launched[1] if launched is not None and os.environ.get("MASTER_ADDR") else None

    @classmethod
    def launched(cls) -> tuple[str, Ranks] | None:
        """Return the launcher that has started this process with others, and the number that it has given this one."""
        for launcher, names in _LAUNCHERS.items():
            rank, world, local_rank, local_world = (_leading_number(os.environ.get(name, "")) for name in names)
            if rank is not None and world is not None:
                return (launcher, cls(rank, world, local_rank, local_world)) if world > 1 else None
        return None

    @classmethod
    def how_to_start(cls, world: int) -> str:
        """Return what to do so that `world` processes, which this one has found to train together, are one job."""
        launched = cls.launched()
        if launched is None or os.environ.get("MASTER_ADDR"):
            return f"start it by `detrain launch --nproc-per-node {world}` or torchrun"
        return f"{launched[0]} has started these processes: {TOGETHER}"

    @property
    def is_on_one_machine(self) -> bool:
        """Whether the environment says that all ranks of the job run on this machine."""
        return self.local_world == self.world or os.environ.get("MASTER_ADDR", "") in ("127.0.0.1", "localhost")


def _leading_number(text: str) -> int | None:
    """Return the number at the start of a text: Slurm writes 4(x2) for two machines with four tasks each."""
    found = re.match(r"[0-9]+", text)
    return int(found[0]) if found else None


OUTLIVING: Final = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""Variables that keep PyTorch, over NCCL, from ending a rank because a peer is gone: else its watchdog ends the process
a minute after a collective fails, and its monitor some minutes later. torchrun sets the first to 1 if it is not set."""


def ended_by_nccl(variables: Mapping[str, str]) -> str:
    """Return a list of the variables by which PyTorch ends a rank when a peer is gone; empty if it does not."""
    handling, old = variables.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"), variables.get("NCCL_ASYNC_ERROR_HANDLING")
    found = [] if (handling or old) == "0" else [f"TORCH_NCCL_ASYNC_ERROR_HANDLING is {handling or old or 'not set'}"]
    monitors = variables.get("TORCH_NCCL_ENABLE_MONITORING")
    if (monitors or "1").lower() not in _OFF:
        found.append(f"TORCH_NCCL_ENABLE_MONITORING is {monitors or 'not set'}")
    # The following variables switch the handling of errors on again.
    debugs = variables.get("TORCH_NCCL_DESYNC_DEBUG") or variables.get("NCCL_DESYNC_DEBUG") or "0"
    if debugs.lower() not in _OFF:
        found.append(f"TORCH_NCCL_DESYNC_DEBUG is {debugs}")
    if variables.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        found.append("TORCH_DISTRIBUTED_DEBUG is DETAIL")
    return ", ".join(found)


_OFF: Final = frozenset({"0", "n", "no", "f", "false", "off"})


class Trace(TraceOptions, frozen=True, kw_only=True):
    """The task of a traced run: the options of `detrain trace`, and its paths."""

    info: str
    """The inst.info to write."""
    base: str
    """The folder to which file names in the inst.info are relative."""
    static: Structure
    """The structure that static analysis proposes."""
    marks: tuple[tuple[str, int], ...] = ()
    """File and line of each loop that carries a mark (Python 3.11), by the number of the mark."""


class Config(Options, frozen=True, kw_only=True):
    """One run of one program: its options, with all defaults settled, and the launcher's findings.

    Paths are absolute. In a job, `home` is the rank's own folder.
    """

    target: str
    """The program's file, or with `is_module` the module's name."""
    is_module: bool
    entry: str
    """The program's file."""
    shown: str
    """`sys.argv[0]` as the user wrote it."""
    arguments: tuple[str, ...]
    program: str
    """Name of the program in the checkpoint home: the stem of its file, or the module's name."""
    run: int
    seed: int
    jit: bool | None = False
    threads: int
    stations: tuple[str, ...] = ()
    """The checkpoints that this run restores one after another; the last is the newest. Empty when it starts anew."""
    edits: dict[str, list[tuple[int, int, str]]] = msgspec.field(default_factory=dict)
    """Probes to insert, by source file: (first byte, last byte, text) of the file as UTF-8."""
    edited: dict[str, str] = msgspec.field(default_factory=dict)
    """The digests of the bytes of these files when the probes were placed, by file."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    trace: Trace | None = None
    """Set only for a run that looks for the program's structure."""
    structure: Structure | None = None
    """The loops that carry probes, if detrain has found them itself."""
    info: str = ""
    """The file to which the structure is written once the run has confirmed it."""
    is_restarted: bool = False
    """Whether the guard has started this process, because the process before met an alarm."""
    command: tuple[str, ...] = ()
    """The arguments of the `detrain` command, for starting it again."""
    ranks: Ranks | None = None
    """The rank of this process; None outside of a job."""
    checks_as_read: bool = False
    """Whether the arrays of `stations` are still unread: damage in them comes to light only as the state is set."""
    start: StartParts | None = None
    """The times of the start's parts up to here; None without `--timing`."""

    def hand_over(self) -> str:
        """Write the settings into a nameless file, which the program that replaces this process inherits. Return the
        file's number as a text.
        """
        made = os.memfd_create("detrain") if hasattr(os, "memfd_create") else _nameless()
        with os.fdopen(made, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(self))
        os.set_inheritable(made, True)
        return str(made)

    @classmethod
    def handed_over(cls, where: str) -> Config:
        """Return the settings that `hand_over` wrote into the file with this number, and close the file."""
        with os.fdopen(int(where), "rb") as file:
            file.seek(0)
            return msgspec.json.decode(file.read(), type=cls)


def _nameless() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
