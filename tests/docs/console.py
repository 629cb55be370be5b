"""Runs the commands of a page, and compares their output with that on the page.

In a fenced block `console`, lines that begin with `$ ` are commands, and the lines after are their output. `...` stands
for any text: alone in a line, for any lines. Where the output ends with `Killed`, the command gets SIGKILL as soon as
it has printed the line before. Decimals, times, sizes, the cut at which a run resumes and those at which `verify` kills
differ from run to run, and are masked. Digests differ from processor to processor: two that are equal on the page must
be equal here, too, and two that differ must differ. If the page leaves out the end of a command's output, the command
must end with status 0.

A block of Python or TOML whose first line is `# PATH` is a file that the commands find there. Packages that a page
installs by `pip install FOLDER` are visible to its commands alone.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.runs import environment

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OF_COMMANDS = ("", "text", "bash", "none", "sh", "shell")
_COMMAND = re.compile(r"(\w+=\S+ )*(detrain|python|pip|git|cd|docker|srun|ssh|rsync|jupyter|torchrun|\./run\.sh)( |$)")
_FILE = re.compile(r"^```(?:python|toml)\n# ([\w./-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_READER = {
    "python": 'exec INTERPRETER "$@"',
    "detrain": 'exec INTERPRETER -m detrain "$@"',
    "pip": 'shift; exec INTERPRETER -m pip install -q --no-deps --no-build-isolation --target "$SITE" "$@"',
}
"""Scripts for the commands that a reader has. `pip install` needs no network, and installs for the page's commands
alone."""
_MASKED = re.compile(
    r"""(?P<any>\.\.\.)
    | (?P<digest>\b(?=[0-9a-f]*[0-9])[0-9a-f]{8,64}\b)
    | (?P<cut>(?<=-e)[0-9]{5}-[elbz][0-9]{6}|\b[0-9]+:[0-9]+(?=[ ]\([0-9]+[ ]s[ ]old)|\b[0-9]+(?=[ ]batches[ ]of[ ]the[ ]epoch))
    | (?P<place>\b[0-9]+:[0-9]+(?=(?:,[ ][0-9]+:[0-9]+)*[ ]+[0-9]+[ ]of[ ][0-9]+[ ]))
    | (?P<decimal>-?[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?)
    | (?P<age>\b[0-9]+[ ]s(?=[ ]old))
    | (?P<amount>\b[0-9]+(?=[ ](?:s|ms|B|KB|MB|GB)\b))
    | (?P<space>[ ]+)""",
    re.VERBOSE,
)
_HERE = {
    "any": ".*?",
    "cut": r"[0-9:elbz-]+",
    "place": r"[0-9]+:[0-9]+",
    "decimal": r"-?(?:[0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?|nan|inf)",
    "age": r"[0-9.]+ (?:s|min|h)",
    "amount": r"[0-9.]+",
    "space": r"\s+",
}


@dataclass(frozen=True)
class Printed:
    """The lines that a command printed, and its exit status."""

    lines: list[str]
    status: int


@dataclass(frozen=True)
class Command:
    """A command of a page, with its output on the page."""

    text: str
    output: list[str]


def commands_of(page: str) -> list[Command]:
    """Return the commands of a page's console blocks."""
    found = []
    for block in _BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            text, *output = part.rstrip("\n").split("\n")
            while text.endswith("\\"):
                text += "\n" + output.pop(0)
            found.append(Command(text, output))
    return found


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page shows, by path."""
    return {path: f"# {path}\n{text}" for path, text in _FILE.findall(page)}


def commands_of_other_blocks(page: str) -> list[str]:
    """Return the commands in a page's other blocks: a reader may type them, and no test runs them."""
    found = []
    for kind, block in _FENCED.findall(page):
        if kind not in _OF_COMMANDS:
            continue
        lines = (line.strip().removeprefix("$ ") for line in block.split("\n"))
        found += [re.split(r"\s{2,}", line)[0] for line in lines if _COMMAND.match(line)]
    return found


def prepare(page: Path, folder: Path) -> None:
    """Make the folder in which a page's commands run, with the files that a reader has."""
    text = page.read_text("utf-8")
    shutil.copytree(ROOT / "examples/digits", folder / "examples/digits")
    if "train.py" not in files_of(text):
        shutil.copy(ROOT / "examples/digits/torch_train.py", folder / "train.py")
    for path, content in files_of(text).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def run_command(command: Command, folder: Path) -> Printed:
    """Run a command in a folder by a shell, and kill it where the page says so."""
    reader, site = folder / ".reader", folder / "site-packages"
    reader.mkdir(exist_ok=True)
    for name, script in _READER.items():
        (reader / name).write_text(f"#!/bin/sh\n{script.replace('INTERPRETER', sys.executable)}\n")
        (reader / name).chmod(0o755)
    known = environment()
    known |= {
        "PATH": f"{reader}:{known['PATH']}",
        "SITE": str(site),
        "PYTHONPATH": f"{site}:{known.get('PYTHONPATH', '')}".strip(":"),
    }
    process = subprocess.Popen(
        ["bash", "-c", command.text],
        cwd=folder,
        env=known,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    is_killed = command.output[-1:] == ["Killed"]
    last = re.compile(_pattern(command.output[-2], [])) if is_killed else None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if last is not None and last.fullmatch(lines[-1]):
            os.killpg(process.pid, signal.SIGKILL)
            last = None
    status = process.wait()
    if is_killed and last is None:  # lines printed between this line and the signal are left out
        end = next(number for number, line in enumerate(lines, 1) if re.fullmatch(_pattern(command.output[-2], []), line))
        lines = [*lines[:end], "Killed"]
    return Printed(lines, status)


def _pattern(line: str, digests: list[str]) -> str:
    """Return the regular expression for a line of a page; the digests in it are groups, and are added to a list."""
    parts, end = [], 0
    for mask in _MASKED.finditer(line.rstrip()):
        parts.append(re.escape(line[end : mask.start()]))
        if mask.lastgroup == "digest":
            digests.append(mask[0])
            parts.append(f"([0-9a-f]{{{len(mask[0])}}})")
        else:
            parts.append(_HERE[str(mask.lastgroup)])
        end = mask.end()
    return "".join(parts) + re.escape(line.rstrip()[end:])


def difference(command: Command, printed: Printed, known: dict[str, str]) -> str:
    """Return how an output differs from the page's; empty if it does not. `known`: digests here, by the page's."""
    if command.output[-1:] in ([], ["..."]) and printed.status != 0:
        return f"$ {command.text}\nended with {printed.status}\n" + "\n".join(printed.lines)
    if not command.output:
        return ""
    digests: list[str] = []
    pattern = "".join("(?:.*\n)*?" if line == "..." else _pattern(line, digests) + "\n" for line in command.output)
    match = re.fullmatch(pattern, "".join(f"{line}\n" for line in printed.lines))
    if match is None:
        return f"$ {command.text}\nprinted\n" + "\n".join(printed.lines) + "\nthe page says\n" + "\n".join(command.output)
    for of_page, here in zip(digests, match.groups(), strict=True):
        if known.setdefault(of_page, here) != here:
            return f"$ {command.text}\n{of_page} was {known[of_page]} before, and is {here}"
    if len(set(known.values())) != len(known):
        return f"$ {command.text}\nequal digests here, others on the page: {known}"
    return ""


def main() -> None:
    """Print the blocks of a page with their output here: `python -m tests.docs.console PAGE FOLDER`. Without a page,
    count the commands that pages show, and those that tests run."""
    if len(sys.argv) < 2:
        _count()
        return
    page, folder = Path(sys.argv[1]), Path(sys.argv[2])
    prepare(page, folder)
    for command in commands_of(page.read_text("utf-8")):
        print(f"$ {command.text}", flush=True)
        print("\n".join(run_command(command, folder).lines), flush=True)


def _count() -> None:
    print("shown  run  page")
    sums = [0, 0]
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text("utf-8")
        run, others = len(commands_of(text)), len(commands_of_other_blocks(text))
        sums = [sums[0] + run + others, sums[1] + run]
        if run + others:
            print(f"{run + others:5} {run:4}  {page.relative_to(ROOT)}")
    print(f"{sums[0]:5} {sums[1]:4}  in all")


if __name__ == "__main__":
    main()
