"""What belongs to a command and what to the program behind it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import click
import msgspec
import pytest

from detrain.base import PACKAGE
from detrain.base.errors import DetrainError
from detrain.base.options import EACH_EPOCH, Every, Option
from detrain.campaign import subject
from detrain.cli import COMMANDS, main
from detrain.cli import detrain as group
from detrain.cli.faults.inject import command as inject
from detrain.cli.faults.replay import command as replay
from detrain.cli.shared.options import program_command
from detrain.launcher.program import Program
from tests.e2e.runs import detrain

CLI = PACKAGE / "cli"
BEHIND = ["train.py", "--model", "resnet18", "--at", "9"]


def test_the_help_lists_each_file_that_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    modules = {path.stem for path in [*CLI.glob("*.py"), *CLI.glob("faults/*.py")] if "\ndef command(" in path.read_text()}
    modules |= {path.parent.name for path in CLI.glob("*/__init__.py") if "\ndef command(" in path.read_text()}

    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Train:\n")[2].splitlines()
    assert [line.split()[0] for line in listed if line.startswith("  ")] == list(COMMANDS)
    assert modules - {"export"} == set(COMMANDS)  # it is one of ckpt


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("ls", "`detrain ckpt ls`"),
        ("verfy", "is it `detrain verify`?"),
        ("train.py", "`detrain run train.py`"),
        ("qqq", "`detrain --help`"),
    ],
)
def test_a_command_that_is_not_there_is_answered_with_what_was_meant(
    given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([given, "x.py"]) == 64

    said = capsys.readouterr().err
    assert f"there is no command {given!r}" in said
    assert meant in said


def test_the_help_imports_no_command() -> None:
    """A process, as this one has imported them all: each costs its imports, a second together."""
    loaded = "import sys; from detrain.cli import main; main(['--help']); print([n for n in sys.modules if 'detrain.cli.' in n])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--at", "0:5", "--ckpt", "home", "f.csv"],
        ["f.csv", "--at", "0:5", "--ckpt", "home"],
        ["--at", "0:5", "f.csv", "--ckpt", "home"],
    ],
)
def test_options_of_inject_stand_before_or_behind_the_file_of_the_fault(arguments: list[str]) -> None:
    found = inject.make_context("inject", [*arguments, *BEHIND]).params

    assert (found["at"], found["home"], found["model"]) == ("0:5", "home", None)
    assert (found["program"], *found["arguments"]) == ("f.csv", *BEHIND)


def test_with_a_model_there_is_no_file_and_options_behind_the_program_are_its_own() -> None:
    found = inject.make_context("inject", ["--model", "RD", "--site", "fc", *BEHIND]).params

    assert (found["at"], found["model"], found["site"]) == (None, "RD", "fc")
    assert (found["program"], *found["arguments"]) == tuple(BEHIND)


def test_options_of_replay_stand_before_or_behind_the_record() -> None:
    for arguments in (["--ckpt", "home", "r.json"], ["r.json", "--ckpt", "home"]):
        found = replay.make_context("replay", [*arguments, *BEHIND]).params
        assert (str(found["record"]), found["program"], *found["arguments"]) == ("r.json", *BEHIND)
        assert found["home"] == "home"


class Wishes(msgspec.Struct, kw_only=True):
    often: Annotated[Every, Option("How often.", type=Every.parse)] = EACH_EPOCH
    tries: Annotated[bool | None, Option("Tried by default.")] = None
    names: Annotated[tuple[str, ...], Option("Some names.", "NAME", flag="--name")] = ()


@program_command
def wish(
    *,
    wishes: Wishes,
    kind: Annotated[Literal["a", "b"] | None, Option("Which.")] = None,
    count: Annotated[int, Option("How many.", "N", least=1, most=9)] = 3,
    out: Annotated[Path, Option("Where to.")],
    arguments: tuple[str, ...],
) -> int:
    """Wish."""
    click.echo(f"{wishes.often} {wishes.tries} {wishes.names} {kind} {count} {out} {arguments}")
    return 0


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("--out f", "1 None () None 3 f ()"),
        ("--kind c --out f", "'c' is not one of 'a', 'b'"),
        (
            "--often 5b --no-tries --name a --name b --kind b --count 9 --out f x --kind c",
            "5b False ('a', 'b') b 9 f ('x', '--kind', 'c')",
        ),
        ("--count 10 --out f", "10 is not in the range 1<=x<=9"),
        ("--count 2", "Missing parameter: out"),
        ("--often 0 --out f", "--every '0' is not a distance between checkpoints"),
    ],
)
def test_a_command_takes_its_options_from_annotations(given: str, taken: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        wish.main(shlex.split(given), standalone_mode=False)
    except (click.UsageError, DetrainError) as error:
        click.echo(error)

    assert taken in capsys.readouterr().out


def test_golden_runs_of_another_detrain_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an upgrade had mended was still wrong in the series that trials were compared with."""
    (tmp_path / "train.py").write_text("x = 1\n")
    folders = []
    for text in ("y = 1\n", "y = 1\n", "y = 2\n"):
        (tmp_path / "detrain").mkdir(exist_ok=True)
        (tmp_path / "detrain" / "engine.py").write_text(text)
        monkeypatch.setattr(subject, "PACKAGE", tmp_path / "detrain")
        folders.append(subject.Subject(Program.find(str(tmp_path / "train.py"), is_module=False), (), tmp_path / "ckpt").folder)

    assert folders[0] == folders[1] != folders[2]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "--guard-ring", "host"), 64, "--guard-ring host without --guard recover"),
        (("run", "--guard", "detect", "--on-repeat", "continue"), 64, "--on-repeat continue without --guard recover"),
        (("inject", "--model", "RD", "--site", "fc", "--at", "0:0", "--time-limit", "nan"), 64, "'nan' is no number of seconds"),
        (("inject", "--at", "0:1", "train.py", "--rate"), 64, "there is no fault"),
        (("replay", "--time-limit", "inf", "r.json"), 64, "'inf' is no number of seconds"),
        (("campaign", "plan", "--permanent", "--steps", "2"), 64, "--permanent hits all steps, --steps 2 not"),
        (("campaign", "plan", "--duty", "1"), 64, "--duty 1.0 is no chance of a step"),
        (("campaign", "plan", "--steps", "4", "--after", "3"), 64, "--steps 4 hits more than the 3 steps of a trial"),
        (("campaign", "plan", "--at-once", "2", "--mode", "IOA"), 64, "--at-once is of values"),
        (("campaign", "plan", "--groups", "FFMA,FOO"), 64, "there is no group 'FOO'"),
        (("campaign", "plan", "--models", "NOVEL"), 82, "there is no fault model 'NOVEL'"),
        (("campaign", "plan", "--metric", "loss"), 64, "add --spread 8"),
        (("campaign", "plan", "--spread", "8", "--metric", "("), 64, "--metric '(' is no regular expression"),
        (("campaign", "plan", "--spread", "8", "--spread-with", "--seed"), 64, "has no place for a seed"),
        (("random", "--among", "step"), 64, "--among step is of several faults"),
        (("random", "--models", ""), 82, "'' is not a fault model"),
    ],
)
def test_options_without_effect_or_sense_are_refused(arguments: tuple[str, ...], code: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('it has run')\n")

    run = detrain(*arguments, "train.py", cwd=tmp_path)

    assert (run.status, words in run.err, run.out) == (code, True, ""), run.err


@pytest.mark.parametrize("edited", ["model", "data"])
def test_a_golden_run_is_that_of_each_file_by_its_path(tmp_path: Path, edited: str) -> None:
    for package in ("model", "data"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "utils.py").write_text("X = 1\n")
    (tmp_path / "train.py").write_text("import model.utils, data.utils\n")
    program = Program.find(str(tmp_path / "train.py"), is_module=False)
    before = subject.Subject(program, (), tmp_path / "ckpt")

    (tmp_path / edited / "utils.py").write_text("X = 2\n")
    now = subject.Subject(program, (), tmp_path / "ckpt")

    assert now.key != before.key
    assert [name for name, digest in now.sources().items() if before.sources()[name] != digest] == [f"{edited}/utils.py"]


def _examples(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Each example in the help of a command and of those below it, with the command that it calls."""
    for line in (command.help or "").splitlines():
        if line.strip().startswith(f"{context.command_path} "):
            yield line.strip().removeprefix(f"{context.command_path} "), command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _examples(below, click.Context(below, info_name=name, parent=context))


def test_each_example_in_the_help_is_a_command_with_options_that_it_has() -> None:
    """They are parsed, not run: a campaign of 20,000 trials is among them."""
    found = list(_examples(group, click.Context(group, info_name="detrain")))

    assert len(found) > 25
    for text, command, context in found:
        words, called = shlex.split(text), command
        if context.info_name == "launch":  # hands torchrun's on
            continue
        if isinstance(command, click.Group):
            below = command.get_command(context, words[0])
            assert below is not None, text
            words, called = words[1:], below
        program = max((at for at, word in enumerate(words) if word.endswith(".py")), default=len(words))
        called.make_parser(click.Context(called)).parse_args(words[:program])  # raises NoSuchOption
