"""What the command hands to the training process, as JSON in an open file: the probes of a large program fit into no
variable.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from detrain.base.errors import UsageError
from detrain.base.structure import Structure

VARIABLE: Final = "DETRAIN_SESSION"
RESTARTED: Final = "DETRAIN_GUARD_RUN"
"""Environment variable by which a run that the guard starts again gets the number of the run to go on with."""

Unit = Literal["epochs", "batches", "minutes"]
Mode = Literal["auto", "seek", "forward"]
"""How loaders come back: set to their positions where that is exact, always (or the run is refused), or never."""


SELDOM: Final = 1 << 40
"""So many batches no run has: checkpoints are taken at the starts of epochs alone."""


class Every(msgspec.Struct, frozen=True):
    """How often a checkpoint is taken: each `count` of `unit`."""

    count: float
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> Every:
        """Return what `--every TEXT` means: `3` (epochs), `50b` (batches) or `10min`. Raises UsageError."""
        match = re.fullmatch(r"(\d+|\d*\.\d+(?=min))(b|min|)", text)
        if match is None or float(match[1]) <= 0:
            raise UsageError(
                f"--every {text!r} is not a distance between checkpoints",
                "give a number above 0: 3 (epochs), 50b (batches) or 10min",
            )
        units = {"": "epochs", "b": "batches", "min": "minutes"}
        return cls(float(match[1]), units[match[2]])  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.count:g} {self.unit}"


class Ranks(msgspec.Struct, frozen=True):
    """Which process of a job of several this is, as launchers such as torchrun say it by variables."""

    rank: int
    world: int
    job: str = ""
    """A number that no other start of the job has."""

    @classmethod
    def of_environment(cls) -> Ranks | None:
        """Return what the environment says; None for a process that is alone."""
        rank, world = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        is_job = rank.isdecimal() and world.isdecimal() and int(world) > 1 and "MASTER_ADDR" in os.environ
        return cls(int(rank), int(world)) if is_job else None


class JitPlan(msgspec.Struct, frozen=True):
    """How a job takes just-in-time checkpoints."""

    every: int = 0
    """The state is held each so many batches; 0: as often as that takes a thousandth of the time."""
    hang_s: float = 600.0
    """A batch that has taken less is never taken for a hang."""
    is_asked_for: bool = False
    """Else they are not taken where they cannot be, and the program is not ended for it."""


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


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What a traced run is to do."""

    info: str
    """The inst.info to write."""
    base: str
    """The folder that file names in it are relative to."""
    static: Structure
    """What static analysis proposes."""
    epochs: int | None = None
    """End after so many epochs; None: as soon as the loops are known for sure."""
    is_second: bool = False
    diff_size: int | None = None
    marks: tuple[tuple[str, int], ...] = ()
    """File and line of the loops that carry marks (3.11), by number."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one program. Paths are absolute."""

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
    home: str
    seed: int
    threads: int
    every: Every
    keep: int
    keep_every: int = 0
    """Checkpoints of each so manieth epoch stay, too."""
    keep_best: str = ""
    """The number of the program by which the best checkpoint is told, and stays: `NAME`, where lower is better, or
    `max:NAME`."""
    is_fresh: bool = False
    """What an earlier process of the run heard is not to be heard again."""
    is_strict: bool = False
    stops_on_save_error: bool = True
    saves_on_sigterm: bool = True
    allows_environment: bool = False
    maps_to_cpu: bool = False
    """What was on devices that are not here goes to the CPU."""
    allowed_losses: tuple[str, ...] = ()
    """Places of what a resumed run goes on without, though it may matter."""
    loader: Mode = "auto"
    stations: tuple[str, ...] = ()
    """Checkpoints at which this run stops on its way to the newest, which is the last; empty when it starts anew."""
    edits: dict[str, list[tuple[int, int, str]]] = {}
    """Probes to insert, by source file: (first byte, last byte, text) of the file as UTF-8."""
    edited: dict[str, str] = {}
    """The digests of these files' bytes, as they were when the probes were placed."""
    environment: dict[str, str] = {}
    is_bare: bool = False
    """Only the deterministic settings: no probes, no checkpoints."""
    trace: Trace | None = None
    """Set for a run that is only to find the program's structure."""
    structure: Structure | None = None
    """The loops that carry probes, where detrain has found them itself."""
    info: str = ""
    """Where the structure is written once the run has confirmed it."""
    guard: str = ""
    """`detect` or `recover`: look for hardware faults at each cut."""
    guards_gradients: bool = False
    """The norms of gradients are looked at, too."""
    ring: str = "device"
    """Where the guard holds the last states: `device`, or `host` where the device's memory is short."""
    goes_on_after_repeat: bool = False
    """An alarm that comes again when steps are run again does not end the run."""
    is_restarted: bool = False
    """The guard has started this process: the one before it met an alarm."""
    command: tuple[str, ...] = ()
    """The arguments of the `detrain` command, to start it again."""
    ranks: Ranks | None = None
    """Which process of a job it is; its home is the rank's own folder."""
    jit: JitPlan | None = None
    """Of a job: the ranks watch each other, hold the state now and then, and save it when one is gone."""

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
