"""What the command hands to the training process, as JSON in an open file: the probes of a large program fit into no
variable.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Final

import msgspec

from detrain.base.options import Options, TraceOptions
from detrain.base.structure import Structure
from detrain.base.timing import Parts

VARIABLE: Final = "DETRAIN_SESSION"
RESTARTED: Final = "DETRAIN_GUARD_RUN"
"""Environment variable by which a run that the guard starts again gets the number of the run to go on with."""

MOMENT: Final = "DETRAIN_MOMENT"
"""Environment variable by which `detrain at` says, as JSON, at which moment a run is to stand: what is evaluated there
comes from the command line, and from no file."""
IS_CHECKED: Final = "DETRAIN_CHECKS_ALL"
"""Environment variable by which a run that has met a damaged checkpoint has the next one read all beforehand."""

SELDOM: Final = 1 << 40
"""So many batches no run has: checkpoints are taken at the starts of epochs alone."""


class Ranks(msgspec.Struct, frozen=True):
    """Which process of a job of several this is, as launchers such as torchrun say it by variables."""

    rank: int
    world: int
    job: str = ""
    """A number that no other start of the job has."""
    port: int = 0
    """Of rank 0's machine, free as the job started: where a framework may have its processes meet."""

    @classmethod
    def of_environment(cls) -> Ranks | None:
        """Return what the environment says; None for a process that is alone."""
        rank, world = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        is_job = rank.isdecimal() and world.isdecimal() and int(world) > 1 and "MASTER_ADDR" in os.environ
        return cls(int(rank), int(world)) if is_job else None


OUTLIVING: Final = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""By what PyTorch, over NCCL, leaves a rank alone whose peer is gone: else its watchdog ends the process a minute after
an error of a collective, and its monitor some minutes after that. torchrun sets the first to 1 where it is not set."""


def ended_by_nccl(variables: Mapping[str, str]) -> str:
    """Return by which variables PyTorch ends a rank whose peer is gone, as a list; empty if it does not."""
    handling, old = variables.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"), variables.get("NCCL_ASYNC_ERROR_HANDLING")
    found = [] if (handling or old) == "0" else [f"TORCH_NCCL_ASYNC_ERROR_HANDLING is {handling or old or 'not set'}"]
    monitors = variables.get("TORCH_NCCL_ENABLE_MONITORING")
    if (monitors or "1").lower() not in _OFF:
        found.append(f"TORCH_NCCL_ENABLE_MONITORING is {monitors or 'not set'}")
    # These switch the handling of errors on again.
    debugs = variables.get("TORCH_NCCL_DESYNC_DEBUG") or variables.get("NCCL_DESYNC_DEBUG") or "0"
    if debugs.lower() not in _OFF:
        found.append(f"TORCH_NCCL_DESYNC_DEBUG is {debugs}")
    if variables.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        found.append("TORCH_DISTRIBUTED_DEBUG is DETAIL")
    return ", ".join(found)


_OFF: Final = frozenset({"0", "n", "no", "f", "false", "off"})


class Trace(TraceOptions, frozen=True, kw_only=True):
    """What a traced run is to do."""

    info: str
    """The inst.info to write."""
    base: str
    """The folder that file names in it are relative to."""
    static: Structure
    """What static analysis proposes."""
    marks: tuple[tuple[str, int], ...] = ()
    """File and line of the loops that carry marks (3.11), by number."""


class Config(Options, frozen=True, kw_only=True):
    """One run of one program: what it was asked for, settled, and what the launcher has found.

    Paths are absolute; `home` is a rank's own folder, where it is one of a job.
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
    """Checkpoints at which this run stops on its way to the newest, which is the last; empty when it starts anew."""
    edits: dict[str, list[tuple[int, int, str]]] = msgspec.field(default_factory=dict)
    """Probes to insert, by source file: (first byte, last byte, text) of the file as UTF-8."""
    edited: dict[str, str] = msgspec.field(default_factory=dict)
    """The digests of these files' bytes, as they were when the probes were placed."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    trace: Trace | None = None
    """Set for a run that is only to find the program's structure."""
    structure: Structure | None = None
    """The loops that carry probes, where detrain has found them itself."""
    info: str = ""
    """Where the structure is written once the run has confirmed it."""
    is_restarted: bool = False
    """The guard has started this process: the one before it met an alarm."""
    command: tuple[str, ...] = ()
    """The arguments of the `detrain` command, to start it again."""
    ranks: Ranks | None = None
    """Which process of a job it is."""
    checks_as_read: bool = False
    """The arrays of `stations` have not been read yet: a damage in them comes to light as the state is set."""
    start: Parts | None = None
    """What the parts of the start took up to here, where that is asked for."""

    def hand_over(self) -> str:
        """Write it into a nameless file that the program which replaces this process inherits;
        return what leads there.
        """
        made = os.memfd_create("detrain") if hasattr(os, "memfd_create") else _nameless()
        with os.fdopen(made, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(self))
        os.set_inheritable(made, True)
        return str(made)

    @classmethod
    def handed_over(cls, where: str) -> Config:
        """Return what `hand_over` has written, and close the file."""
        with os.fdopen(int(where), "rb") as file:
            file.seek(0)
            return msgspec.json.decode(file.read(), type=cls)


def _nameless() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
