"""`detrain run`: train, with checkpoints; run again, it resumes to the bit."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from detrain.base.config import Every, JitPlan, Mode, Ranks
from detrain.base.errors import UsageError
from detrain.cli.shared.options import PROGRAM_SETTINGS, home_option, program_arguments
from detrain.launcher.become import become
from detrain.launcher.configuration import DEFAULT_SEED, configure, configure_bare
from detrain.launcher.options import RunOptions
from detrain.launcher.program import Program


class EveryType(click.ParamType[Every]):
    """`3` (epochs), `50b` (batches) or `10min`."""

    name = "N|Nb|Nmin"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Every:
        """Parse the option."""
        if isinstance(value, Every):
            return value
        return Every.parse(str(value))


@click.command(context_settings=PROGRAM_SETTINGS)
@click.option(
    "--every",
    type=EveryType(),
    default="1",
    show_default=True,
    metavar="N|Nb|Nmin",
    help="Save each N epochs, N batches or N minutes.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="K",
    default=3,
    show_default=True,
    help="How many checkpoints to keep.",
)
@click.option("--keep-every", type=click.IntRange(min=1), metavar="M", help="Keep those of each Mth epoch, too.")
@click.option("--keep-best", default="", metavar="[max:]METRIC", help="Keep the one with the lowest (max: highest) METRIC, too.")
@home_option("Folder of the checkpoints")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    metavar="S",
    default=None,
    help=f"Seed of all random streams [{DEFAULT_SEED}].",
)
@click.option("--fresh", is_flag=True, help="Start anew; checkpoints that are there stay.")
@click.option("--from", "goes_on_from", default="", metavar="CURSOR", help="Go on from the checkpoint at CURSOR, as 2:0.")
@click.option(
    "--on-save-error",
    type=click.Choice(["stop", "warn"]),
    default="stop",
    show_default=True,
    help="When a checkpoint cannot be written: end the program, or go on without it.",
)
@click.option(
    "--on-sigterm",
    type=click.Choice(["checkpoint", "ignore"]),
    default="checkpoint",
    show_default=True,
    help="On SIGTERM: take a last checkpoint at the next cut, or leave the signal to the program.",
)
@click.option(
    "--guard",
    type=click.Choice(["detect", "recover"]),
    default=None,
    help="Look for hardware faults after each step: name them, or go back and run the steps again.",
)
@click.option("--guard-gradients", is_flag=True, help="With --guard: look at the norms of gradients, too.")
@click.option(
    "--guard-ring",
    type=click.Choice(["device", "host"]),
    default="device",
    show_default=True,
    help="Where --guard recover holds the last two states: on the device, copied on write, or copied to the host's memory.",
)
@click.option(
    "--on-repeat",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="When an alarm comes again in the steps that are run again: end the program, or go on.",
)
@click.option(
    "--loader",
    type=click.Choice(["auto", "seek", "forward"]),
    default="auto",
    show_default=True,
    help="On resume: set loaders to their positions, or load the batches before the cut again (auto: seek where it is exact).",
)
@click.option(
    "--jit/--no-jit",
    default=None,
    help="In a job: the ranks watch each other, and those that are left save when one is gone; by default where it can be.",
)
@click.option(
    "--jit-every",
    type=click.IntRange(1),
    metavar="N",
    help="With --jit: hold the state each N batches; so many are lost at most. By default as often as takes 0.1% of the time.",
)
@click.option(
    "--jit-hang",
    type=click.FloatRange(1),
    metavar="SECONDS",
    default=600,
    show_default=True,
    help="With --jit: a batch counts as a hang after so long, if that is eight times as long as the last ones took.",
)
@click.option("--strict", is_flag=True, help="Refuse to run if some state cannot be captured.")
@click.option(
    "--allow-lost",
    multiple=True,
    metavar="NAME",
    help="Go on without NAME, which no checkpoint holds, as a warning or a refusal names it. May be given more than once.",
)
@click.option("--allow-environment", is_flag=True, help="Resume although versions or the machine differ.")
@click.option(
    "--map-device",
    default="",
    metavar="cpu",
    help="With --allow-environment: put what was on a device that is not here on the CPU.",
)
@click.option("--bare", is_flag=True, help="Only the deterministic settings: no probes, no checkpoints.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@program_arguments
def command(
    every: Every,
    keep: int,
    keep_every: int | None,
    keep_best: str,
    home: str,
    seed: int | None,
    fresh: bool,
    goes_on_from: str,
    on_save_error: str,
    on_sigterm: str,
    guard: str | None,
    guard_gradients: bool,
    guard_ring: str,
    on_repeat: str,
    loader: Mode,
    jit: bool | None,
    jit_every: int | None,
    jit_hang: float,
    strict: bool,
    allow_lost: tuple[str, ...],
    allow_environment: bool,
    map_device: str,
    bare: bool,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> int:
    """Run PROGRAM deterministically and with checkpoints; run again, it resumes to the bit.

    \b
    Example:
      detrain run --every 50b train.py --epochs 10
    """
    if guard_gradients and guard is None:
        raise UsageError("--guard-gradients without --guard", "give --guard detect or --guard recover")
    if guard != "recover" and (guard_ring != "device" or on_repeat != "stop"):
        option = f"--guard-ring {guard_ring}" if guard_ring != "device" else f"--on-repeat {on_repeat}"
        raise UsageError(f"{option} without --guard recover", "give --guard recover, or leave it out")
    if map_device not in ("", "cpu"):
        raise UsageError(f"--map-device {map_device}: what was on a device can go on on the CPU alone", "give --map-device cpu")
    if map_device and not allow_environment:
        raise UsageError(
            "--map-device cpu without --allow-environment", "give both: the CPU computes other bits than the device did"
        )
    if goes_on_from and (fresh or bare):
        raise UsageError(f"--from {goes_on_from} with {'--fresh' if fresh else '--bare'}", "give one of them")
    if (jit or jit_every) and Ranks.of_environment() is None:
        raise UsageError(
            f"{'--jit' if jit else '--jit-every'} in one process", "it is for jobs of several ranks: `detrain launch`, or torchrun"
        )
    found = Program.find(program, is_module=is_module)
    options = RunOptions(
        every=every,
        keep=keep,
        seed=seed,
        keep_every=keep_every,
        keep_best=keep_best,
        starts_anew=fresh,
        goes_on_from=goes_on_from,
        is_strict=strict,
        stops_on_save_error=on_save_error == "stop",
        saves_on_sigterm=on_sigterm == "checkpoint",
        allows_environment=allow_environment,
        maps_to_cpu=map_device == "cpu",
        allowed_losses=allow_lost,
        loader=loader,
        guard=guard or "",
        guards_gradients=guard_gradients,
        ring=guard_ring,
        goes_on_after_repeat=on_repeat == "continue",
        jit=JitPlan(jit_every or 0, jit_hang, bool(jit or jit_every)) if jit is not False else None,
        command=tuple(sys.argv[1:]),
    )
    if bare:
        become(configure_bare(found, arguments, Path(home), options), None)
    become(*configure(found, arguments, Path(home), options))
