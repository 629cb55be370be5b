"""The options of `detrain run`, each declared once: its name, type, default and help.

The commands are made from them; a run's `Config` extends them.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

import msgspec

from detrain.base.errors import UsageError


class Option(msgspec.Struct, frozen=True):
    """The help of a field or parameter that a command takes as an option; its name, type and default say the rest."""

    help: str
    metavar: str | None = None
    flag: str = ""
    """The option's flag; empty: `--` and the name."""
    least: float | None = None
    most: float | None = None
    type: object = None
    """A click type, or a function of the text, by which click reads the option; None: by its Python type."""
    variable: str | None = None
    """An environment variable that sets the option, too."""
    shows_default: bool = True
    """False if the help text itself names the default."""
    group: str = ""
    """Heading in the help for this option and those after it, up to the next heading."""


class Every(msgspec.Struct, frozen=True):
    """The distance between checkpoints: `count` units."""

    count: float
    unit: Literal["epochs", "batches", "minutes"]

    @classmethod
    def parse(cls, text: str) -> Every:
        """Return the distance of `--every TEXT`: `3` (epochs), `50b` (batches) or `10min`. Raises UsageError."""
        match = re.fullmatch(r"(\d+|\d*\.\d+(?=min))(b|min|)", text)
        if match is None or float(match[1]) <= 0:
            raise UsageError(
                f"--every {text!r} is not a distance between checkpoints",
                "give a number above 0: 3 (epochs), 50b (batches) or 10min",
            )
        units = {"": "epochs", "b": "batches", "min": "minutes"}
        return cls(float(match[1]), units[match[2]])  # type: ignore[arg-type]

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.count:g}{ {'epochs': '', 'batches': 'b', 'minutes': 'min'}[self.unit] }"


_UNITS: Final = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def bytes_of(text: str, option: str = "--keep-size") -> int:
    """Return the number of bytes of a text like `20GB` or `1.5TB`. Raises UsageError for any other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s?(KB|MB|GB|TB|)", text, re.IGNORECASE | re.ASCII)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match is not None else 0
    if size < 1:
        raise UsageError(f"{option} {text}: not a size", "give a number above 0 and its unit: 500MB, 20GB or 1.5TB")
    return size


def _bandwidth(text: str) -> int:
    return bytes_of(text, "--mirror-bandwidth")


EACH_EPOCH: Final = Every(1, "epochs")
Mode = Literal["auto", "seek", "forward"]
"""When a resume sets loaders to their positions: where that is exact, always (or the run is refused), or never."""
DEFAULT_SEED: Final = 0
"""The seed of a run without `--seed`."""


def home_option(what: str, group: str = "") -> Option:
    """Return the `--ckpt` option, with the help text `what`."""
    return Option(f"{what} [$CKPT_DIR].", "DIR", flag="--ckpt", type=_named, variable="CKPT_DIR", group=group)


def _named(home: str) -> str:
    """Refuse an empty name of a home: it would mean the current folder, but probably a shell variable was not set."""
    if not home:
        raise UsageError("--ckpt '' names no folder", "give one with --ckpt DIR or $CKPT_DIR (the current one is '.')")
    return home


Home = Annotated[str, home_option("Folder of the checkpoints")]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run, in the order of the help."""

    every: Annotated[
        Every,
        Option(
            "Save each N epochs, N batches or N minutes.",
            "N|Nb|Nmin",
            type=Every.parse,
            group="When a checkpoint is taken, for example --every 50b",
        ),
    ] = EACH_EPOCH
    """In a program without a loop over epochs, a distance in epochs becomes 10 minutes."""
    after_batches: Annotated[
        bool,
        Option("Save after the last batch of each epoch, too: a kill in its evaluation then costs no training."),
    ] = False
    on_sigterm: Annotated[
        Literal["checkpoint", "ignore"],
        Option("On SIGTERM: take a last checkpoint at the next cut, or leave the signal to the program."),
    ] = "checkpoint"
    preemption: Annotated[
        Literal["aws", "gcp", "azure"] | None,
        Option("Ask the cloud whether it takes this machine away; if so, as on SIGTERM."),
    ] = None
    on_save_error: Annotated[
        Literal["stop", "warn"], Option("When a checkpoint cannot be written: end the program, or go on without it.")
    ] = "stop"
    keep: Annotated[
        int,
        Option("How many checkpoints to keep.", "K", least=1, group="How many are kept, for example --keep 5 --keep-best val_loss"),
    ] = 3
    keep_every: Annotated[int | None, Option("Keep those of each Mth epoch, too.", "M", least=1)] = None
    keep_best: Annotated[str, Option("Keep the one with the lowest (max: highest) METRIC, too.", "[max:]METRIC")] = ""
    """METRIC is a number that the program computes."""
    keep_size: Annotated[
        int | None,
        Option("Keep as many more as all together take SIZE, as 20GB, spread evenly over the run.", "SIZE", type=bytes_of),
    ] = None
    """In bytes."""
    home: Annotated[
        str, home_option("Folder of the checkpoints", group="Where, for example --ckpt /scratch/ckpt --mirror s3://bucket/runs")
    ] = "ckpt"
    mirror: Annotated[
        str, Option("Copy each checkpoint to URL (s3://…, a path), and go on from there where DIR is gone.", "URL")
    ] = ""
    mirror_files: Annotated[tuple[str, ...], Option("With --mirror: copy the program's files 'out/**', too.", "PATTERN")] = ()
    mirror_bandwidth: Annotated[
        int | None,
        Option("With --mirror: send at most RATE a second, as 20MB.", "RATE", type=_bandwidth),
    ] = None
    """In bytes a second."""
    mirror_later: Annotated[bool, Option("With --mirror: begin although it does not answer.")] = False
    mirror_wait: Annotated[
        float, Option("With --mirror: wait so long at the end until the last checkpoint is there.", "SECONDS", least=0)
    ] = 100
    fresh: Annotated[bool, Option("Start anew; checkpoints that are there stay.", group="Which run, for example --from 2:0")] = (
        False
    )
    goes_on_from: Annotated[str, Option("Go on from the checkpoint at CURSOR, as 2:0.", "CURSOR", flag="--from")] = ""
    """Empty: the newest checkpoint."""
    timing: Annotated[bool, Option("Show what each part of the start took, up to the first new step.")] = False
    seed: Annotated[int | None, Option(f"Seed of all random streams [{DEFAULT_SEED}].", "S", least=0, most=2**32 - 1)] = None
    """None: the seed of the run to resume, else `DEFAULT_SEED`."""
    loader: Annotated[
        Mode,
        Option(
            "On resume: set loaders to their positions, or load the batches before the cut again (auto: seek where it is exact)."
        ),
    ] = "auto"
    strict: Annotated[
        bool,
        Option("Refuse to run if some state cannot be captured.", group="What may differ, for example --allow-lost env.renderer"),
    ] = False
    allow_lost: Annotated[
        tuple[str, ...],
        Option(
            "Go on without NAME, which no checkpoint holds, as a warning or a refusal names it. May be given more than once.",
            "NAME",
        ),
    ] = ()
    allow_environment: Annotated[bool, Option("Resume although versions or the machine differ.")] = False
    map_device: Annotated[str, Option("With --allow-environment: put what was on a device that is not here on the CPU.", "cpu")] = (
        ""
    )
    bare: Annotated[bool, Option("Only the deterministic settings: no probes, no checkpoints.")] = False
    guard: Annotated[
        Literal["detect", "recover"] | None,
        Option(
            "Look for hardware faults after each step: name them, or go back and run the steps again.",
            group="Hardware faults, for example --guard recover",
        ),
    ] = None
    guard_gradients: Annotated[bool, Option("With --guard: look at the norms of gradients, too.")] = False
    guard_ring: Annotated[
        Literal["device", "host"],
        Option("Where --guard recover holds the last two states: on the device, copied on write, or copied to the host's memory."),
    ] = "device"
    on_repeat: Annotated[
        Literal["stop", "continue"],
        Option("When an alarm comes again in the steps that are run again: end the program, or go on."),
    ] = "stop"
    jit: Annotated[
        bool | None,
        Option(
            "In a job: the ranks watch each other, and those that are left save when one is gone; by default where it can be.",
            group="Jobs of several ranks (`detrain launch`), for example --jit-every 10",
        ),
    ] = None
    """None: used where possible. True: the program is ended where it is not possible."""
    jit_every: Annotated[
        int | None,
        Option(
            "With --jit: hold the state each N batches; so many are lost at most. By default as often as takes 0.1% of the time.",
            "N",
            least=1,
        ),
    ] = None
    jit_hang: Annotated[
        float,
        Option(
            "With --jit: a batch counts as a hang after so long, if that is eight times as long as the last ones took.",
            "SECONDS",
            least=1,
        ),
    ] = 600

    def check(self, *, is_job: bool) -> None:
        """Raise UsageError for options that exclude each other, or that do not fit a job or a single process."""
        if self.guard_gradients and self.guard is None:
            raise UsageError("--guard-gradients without --guard", "give --guard detect or --guard recover")
        if self.guard != "recover" and (self.guard_ring != "device" or self.on_repeat != "stop"):
            option = f"--guard-ring {self.guard_ring}" if self.guard_ring != "device" else f"--on-repeat {self.on_repeat}"
            raise UsageError(f"{option} without --guard recover", "give --guard recover, or leave it out")
        is_seldom = self.every.unit == "minutes" or (self.every.unit == "epochs" and self.every.count > 1)
        if self.after_batches and (is_job or is_seldom):
            what = "in a job of several ranks, whose epochs may differ in length" if is_job else f"with --every {self.every}"
            todo = "leave it out" if is_job else "it rests on a checkpoint at each epoch's start: leave --every out"
            raise UsageError(f"--after-batches {what}", todo)
        if self.map_device not in ("", "cpu"):
            what = f"--map-device {self.map_device}: what was on a device can go on on the CPU alone"
            raise UsageError(what, "give --map-device cpu")
        if self.map_device and not self.allow_environment:
            todo = "give both: the CPU computes other bits than the device did"
            raise UsageError("--map-device cpu without --allow-environment", todo)
        if self.keep_size and is_job:
            what = "--keep-size in a job: the parts of ranks are of other sizes, and they would keep other cuts"
            raise UsageError(what, "give --keep or --keep-every")
        if self.preemption and (is_job or self.on_sigterm == "ignore"):
            what = f"--preemption {self.preemption} {'in a job of several ranks' if is_job else 'with --on-sigterm ignore'}"
            raise UsageError(what, "checkpoints at distances are what a job has: --every" if is_job else "leave one out")
        of_mirror = {"files": self.mirror_files, "bandwidth": self.mirror_bandwidth, "later": self.mirror_later}
        if not self.mirror and any(of_mirror.values()):
            option = next(name for name, value in of_mirror.items() if value)
            raise UsageError(f"--mirror-{option} without --mirror", "give --mirror URL, or leave it out")
        for pattern in self.mirror_files:
            given = PurePosixPath(pattern)
            is_odd = any(part == ".." or ("**" in part and part != "**") for part in given.parts)
            if is_odd or given.is_absolute() or not given.parts:
                what = f"--mirror-files {pattern!r} names no files below the folder in which the program runs"
                raise UsageError(what, "give a pattern from there on, in quotes, as 'out/**' for all files in out")
        if self.goes_on_from and (self.fresh or self.bare):
            raise UsageError(f"--from {self.goes_on_from} with {'--fresh' if self.fresh else '--bare'}", "give one of them")
        if self.timing and self.bare:
            raise UsageError("--timing with --bare: no probe sees the first step", "give one of them")
        if (self.jit or self.jit_every) and not is_job:
            todo = "it is for jobs of several ranks: `detrain launch`, or torchrun"
            raise UsageError(f"{'--jit' if self.jit else '--jit-every'} in one process", todo)


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `detrain trace`, a run that only looks for the program's loops."""

    until_sure: Annotated[bool, Option("End as soon as the loops are known for sure (the default).")] = False
    epochs: Annotated[int | None, Option("Watch for N epochs instead.", "N", least=1)] = None
    second: Annotated[bool, Option("Second round, on a dataset of another size: confirm the loader.")] = False
    diff_size: Annotated[int | None, Option("By how many elements the second dataset differs.", "N", least=1)] = None
    home: Annotated[str, home_option("Folder of the inst.info")] = "ckpt"

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.until_sure and self.epochs is not None:
            raise UsageError(f"--until-sure and --epochs {self.epochs} exclude each other", "give one of them")
        if self.diff_size is not None and not self.second:
            raise UsageError(f"--diff-size {self.diff_size} is for the second round", "give --second too")
