"""`detrain launch`: start a job of several processes, with torchrun if it is there, each of them a `detrain run`."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import NoReturn

import click

from detrain.base import PACKAGE, messages
from detrain.base.config import OUTLIVING
from detrain.base.errors import StoreError, UsageError
from detrain.cli.run import command as run_command
from detrain.launcher import own_ranks
from detrain.python.process.environment import options_of_python
from detrain.runtime.ranks.launched import be_launcher


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS OF torchrun | OPTIONS OF detrain run]…",
)
@click.argument("arguments", metavar="PROGRAM [ARGS]…", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Run PROGRAM in several processes (of PyTorch, or of JAX), with checkpoints of all of them together.

    A thin front: `torchrun` starts the processes, with the options that are its own (`--nproc-per-node`, `--nnodes`,
    `--max-restarts`, `--rdzv-…`), and each of them is a `detrain run` with the others. Without an address for more than
    one machine, `--standalone` is added. Where PyTorch is not installed, detrain itself starts the processes of one
    machine, by the first and the third of these options.

    \b
    Example:
      detrain launch --nproc-per-node 4 --max-restarts 3 --every 50b train.py --epochs 10
    """
    launcher, run, program = _split(arguments)
    if not program:
        raise UsageError("no PROGRAM to launch", "give one, as in `detrain launch --nproc-per-node 4 train.py`")
    if any(word.partition("=")[0] in {"--jit", "--jit-every"} for word in run):
        for name, value in OUTLIVING.items():
            os.environ.setdefault(name, value)
    words = ["-m", "detrain", "run", *run, *program]
    _find_detrain()
    be_launcher()
    if importlib.util.find_spec("torch") is not None:
        _become([*launcher, *words])
    return own_ranks.run([sys.executable, *options_of_python(), *words], *_numbers(launcher))


def _split(arguments: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """Return torchrun's options, those of `detrain run`, and the program with its arguments."""
    options = [option for option in run_command.params if isinstance(option, click.Option)]
    flags = {name: option.is_flag for option in options for name in (*option.opts, *option.secondary_opts)}
    launcher: list[str] = []
    run: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, is_joined = word.partition("=")[0], "=" in word
        is_ours = name in flags
        takes_value = not is_joined and (not flags[name] if is_ours else name not in _FLAGS_OF_TORCHRUN)
        (run if is_ours else launcher).extend([word, *([rest.pop(0)] if takes_value and rest else [])])
    names = {word.partition("=")[0].replace("_", "-") for word in launcher}
    if not names & {"--standalone", "--nnodes", "--master-port", "--master-addr"} and not any("--rdzv" in name for name in names):
        launcher.insert(0, "--standalone")
    return launcher, run, rest


_FLAGS_OF_TORCHRUN = frozenset({"--standalone", "--no-python", "--no_python", "--run-path", "--run_path"})


def _numbers(words: list[str]) -> tuple[int, int]:
    """Return the numbers of processes and of restarts that are asked for. Raises UsageError for other options."""
    asked = " ".join(words).replace("=", " ").replace("_", "-").replace("--standalone", "").split()
    given = dict(zip(asked[::2], asked[1::2], strict=False))
    count, restarts = given.pop("--nproc-per-node", ""), given.pop("--max-restarts", "0")
    if given or len(asked) % 2 or not (count.isdecimal() and restarts.isdecimal() and int(count) > 0):
        raise UsageError(
            f"{' '.join(words)}: PyTorch, and so torchrun, is not installed; without it, `--nproc-per-node N` and "
            "`--max-restarts N` are all that is known",
            "start the ranks of one machine by these; on several, start `detrain run` on each with RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT set",
        )
    return int(count), int(restarts)


def _find_detrain() -> None:
    """Let the processes import this detrain, too."""
    folder = str(PACKAGE.parent)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([*known, folder])


def _become(words: list[str]) -> NoReturn:
    messages.flush_output()
    try:
        os.execv(sys.executable, [sys.executable, *options_of_python(), "-m", "torch.distributed.run", *words])
    except OSError as error:
        raise StoreError(f"cannot start {sys.executable!r}: {error}", "the arguments may be too long") from error
