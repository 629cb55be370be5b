"""Running programs for the end-to-end tests: under detrain, bare (the oracle, which does not use detrain), and
killed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.e2e.forkserver import Server

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 1200

ORACLE = """
import os, random, runpy, sys
random.seed(0)
import numpy
numpy.random.seed(0)
import tensorflow
tensorflow.random.set_seed(0)
tensorflow.config.experimental.enable_op_determinism()
random.seed(0)
numpy.random.seed(0)
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

ORACLES = {
    "tensorflow": ORACLE,
    "torch": """
import os, random, runpy, sys
random.seed(0)
import numpy
numpy.random.seed(0)
import torch
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch._C._jit_set_profiling_mode(False)
random.seed(0)
numpy.random.seed(0)
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
""",
    "jax": """
import os, random, runpy, sys
random.seed(0)
import numpy
numpy.random.seed(0)
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
""",
}
"""Code of a bare run, by framework: the same seeds and settings, without detrain."""


@dataclass(frozen=True)
class Result:
    """The result of a run: its exit status and output."""

    status: int
    out: str
    err: str

    def ok(self) -> Result:
        """Return the result, or raise AssertionError if the run has not ended well."""
        assert self.status == 0, self.out + self.err
        return self

    def died(self) -> Result:
        """Return the result, or raise AssertionError if the run was not killed."""
        assert self.status == -signal.SIGKILL, self.out + self.err
        return self

    def last_line(self) -> str:
        """Return the last line of the output, in which the programs print the digest of their weights."""
        return self.out.strip().splitlines()[-1] if self.out.strip() else ""

    def matching(self, pattern: str) -> list[str]:
        """Return the lines of the output that match."""
        return [line for line in self.out.splitlines() if re.search(pattern, line)]


Run = Callable[..., Result]
"""A function that runs a command: its arguments are words, and as keywords `cwd` and changes of the environment."""


_DEATHS: tuple[tuple[int, ...], ...] = ((0, 2), (0, 1), (0,))
_FAST_DEATHS: tuple[tuple[int, ...], ...] = ((2,), (0,))


def deaths_of(whole: Result, request: pytest.FixtureRequest) -> list[int]:
    """Return the batches of its second, third and fourth epoch at which a program is killed; it prints the epochs'
    starts. In the fast lane one of them is inside an epoch, and one at the start of an epoch.
    """
    starts = ast.literal_eval(whole.matching("^starts")[0].removeprefix("starts "))
    deaths = _DEATHS if request.node.get_closest_marker("slow") else _FAST_DEATHS
    return sorted({start + more for start, turns in zip(starts[1:], deaths, strict=False) for more in turns})


def goes_through(resumed: list[str], whole: list[str], trainings: int) -> bool:
    """Return True if a resumed run printed the lines of the whole run, to its end, without those before each cut.

    Code before a training, and between the head of an epoch and its batches, runs again and prints again. The lines
    from there to the cut are left out: at two places at most in each training.
    """
    left_out = {-1: 0}  # positions in the whole run where the lines so far may end, each with its number of gaps
    for line in resumed:
        left_out = {
            at: min(count + (before != at - 1) for before, count in left_out.items() if before < at)
            for at, other in enumerate(whole)
            if other == line and min(left_out, default=at) < at
        }
    return bool(resumed) and left_out.get(len(whole) - 1, 2 * trainings + 1) <= 2 * trainings


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of the runs."""
    own = ("DETRAIN", "CKPT_DIR", "PYTHONHASHSEED", "JAX_NUM_CPU_DEVICES")
    plain = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    return {**plain, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0", **changes}


def bare(*command: object) -> Result:
    """Run a program with the same determinism settings and without detrain."""
    return _finish([sys.executable, "-c", ORACLE, *map(str, command)])


def plain(*command: object, cwd: Path | None = None, **changes: str) -> Result:
    """Run plain Python."""
    return _finish([sys.executable, *map(str, command)], cwd=cwd, env=environment(**changes))


def detrain(*command: object, cwd: Path | None = None, given: str = "", **changes: str) -> Result:
    """Run the command `detrain`, with `given` as its standard input."""
    return _finish([sys.executable, "-m", "detrain", *map(str, command)], cwd, environment(**changes), given)


def said_by(module: str, *arguments: object, given: str = "", **changes: str) -> str:
    """Return the output of a module of the tests. It runs in a process of its own, as it changes that for good."""
    command = [sys.executable, "-m", f"tests.{module}", *map(str, arguments)]
    return _finish(command, ROOT, environment(**changes), given, timeout_s=None).ok().out


def _finish(
    command: list[str],
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    given: str = "",
    timeout_s: float | None = TIMEOUT_S,
) -> Result:
    done = subprocess.run(
        command,
        input=given or None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=env or environment(),
        cwd=cwd,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def library(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Write files of libraries, by path, beside a program. Return the variable by which Python finds them."""
    place = folder / "site-packages"
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}


def ran(runs: Server | Run, folder: Path, text: str, *options: object, name: str = "program.py", **changes: str) -> Result:
    """Write a program into a folder, and run it there by `detrain run`."""
    (folder / name).write_text(text)
    return (runs if callable(runs) else runs.detrain)("run", *options, name, cwd=folder, **changes)


def compared(
    runs: Server | Run,
    folder: Path,
    text: str,
    *options: object,
    at: str | Sequence[str],
    every: str = "",
    whole: str = "--bare",
    name: str = "program.py",
    is_tail: bool = False,
    is_apart: bool = False,
    **changes: str,
) -> tuple[Result, Result, Result]:
    """Run a program whole; then run it so that it dies at each of some places, and again to its end, which must be that
    of the whole run. The whole run is "bare", with `--bare`, or a "run" in a home of its own. Return it, the last run
    that died, and the one that ended. With `is_apart` they run in folders of their own, "whole" and "killed".
    """
    (folder / name).write_text(text)
    whole_in, killed_in = folder, folder
    if is_apart:
        name, (whole_in, killed_in) = str(folder / name), (folder / each for each in ("whole", "killed"))
        whole_in.mkdir(exist_ok=True)
        killed_in.mkdir(exist_ok=True)
    detrain_run = runs if callable(runs) else runs.detrain
    if whole == "bare":
        first = bare_python(folder / name) if callable(runs) else runs.bare(name, cwd=whole_in, **changes)
    else:
        first = detrain_run("run", *(["--ckpt", "whole"] if whole == "run" else ["--bare"]), name, cwd=whole_in, **changes)
    first.ok()
    died, last = after_deaths(runs, killed_in, None, *options, at=at, every=every, name=name, **changes)
    last.ok()
    assert last.last_line() == first.last_line(), died.err + last.err
    assert not is_tail or last.out == first.out[-len(last.out) :]
    return first, died, last


def after_deaths(
    runs: Server | Run,
    folder: Path,
    text: str | None,
    *options: object,
    at: str | Sequence[str],
    every: str = "",
    name: str = "program.py",
    **changes: str,
) -> tuple[Result, Result]:
    """Run a program that dies at each of some places, and once more. Return the last run that died, and the one after.

    `text`: None if the program is there already.
    """
    if text is not None:
        (folder / name).write_text(text)
    detrain_run = runs if callable(runs) else runs.detrain
    command = ("run", *(["--every", every] if every else []), *options, name)
    for place in (at,) if isinstance(at, str) else at:
        died = detrain_run(*command, cwd=folder, DIE_AT=place, **changes).died()
    return died, detrain_run(*command, cwd=folder, **changes)


def weights(text: str) -> list[str]:
    """Return the lines of an output that show the weights."""
    return [line for line in text.splitlines() if line.startswith("weights")]


def alarms(home: Path) -> list[dict[str, Any]]:
    """Return the records of alarms by the guards of the runs in a home."""
    return [json.loads(line) for path in sorted(home.glob("*.alarms.jsonl")) for line in path.read_text().splitlines()]


def actions(home: Path) -> list[str]:
    """Return the actions on alarms by the guards of the runs in a home."""
    return [line["action"] for line in alarms(home) if line["action"] != "detected"]


def injected(folder: Path, *command: object) -> tuple[dict[str, Any], list[str]]:
    """Put a fault into a program by `detrain inject`; return the record, and the lines that show the weights."""
    run = detrain("inject", "--out", "record.json", *command, cwd=folder).ok()
    return json.loads((folder / "record.json").read_text()), weights(run.out)


def killed(home: Path, *command: object, at_batch: int | None = None, in_save: int | None = None) -> bool:
    """Run `detrain run --ckpt home ...` and SIGKILL it once its journal holds `at_batch` batches more than before, or
    while it writes its `in_save`-th checkpoint. Returns False if the program ended first."""
    journals = {path: path.stat().st_size for path in home.glob("*.journal")}
    saved = {path.name for path in home.glob("*.h5")}
    process = subprocess.Popen(
        [sys.executable, "-m", "detrain", "run", "--ckpt", str(home), *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if at_batch is not None and _new_batches(home, journals) >= at_batch:
            break
        if (
            in_save is not None
            and list(home.glob(".*.h5.*.tmp"))
            and len({p.name for p in home.glob("*.h5")} - saved) >= in_save - 1
        ):
            break
        time.sleep(0.0005)
    was_running = process.poll() is None
    if was_running:
        process.send_signal(signal.SIGKILL)
    process.wait()
    return was_running


def _new_batches(home: Path, before: dict[Path, int]) -> int:
    """Return the number of batch records written since (40 bytes each; a resumed run first cuts the journal)."""
    count = 0
    for path in home.glob("*.journal"):
        data = path.read_bytes()
        known = before.get(path, 0)
        count += data[known if len(data) >= known else 0 :].count(b"\xa1b")
    return count


def bare_python(*command: object) -> Result:
    """Run a program without a framework, seeded, and without detrain."""
    text = "\n".join(line for line in ORACLE.splitlines() if "tensorflow" not in line)
    return _finish([sys.executable, "-c", text, *map(str, command)])
