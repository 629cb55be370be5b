"""Every command that the documentation shows is run, and prints what its page says; not_run.py lists the others.

Each page has one folder, with the examples in it, the files that it shows, and `train.py` where it names one and shows
none. The pages train with PyTorch, TensorFlow and JAX as a reader would, so each command is a process: cheaper tests of
the same promises are elsewhere.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.docs.console import Command, Printed, commands_of, commands_of_other_blocks, difference, files_of, prepare, run_command
from tests.docs.not_run import NOT_RUN

ROOT = Path(__file__).resolve().parents[2]
FAST = ROOT / "docs/tutorials/index.md"
ALL = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in ALL if commands_of(page.read_text())]
FRAMEWORKS = {
    "import lightning": "lightning",
    "import transformers": "transformers",
    "from transformers": "transformers",
    "import keras": "tensorflow",
} | {
    "torch_": "torch",
    "jax_train": "jax",
    "digits/train.py": "tensorflow",
    " train.py": "torch",
    "torch.utils.tensorboard": "tensorboard",
}


def _run_page(page: Path, folder: Path) -> None:
    text = page.read_text()
    shown = "".join(command.text for command in commands_of(text)) + "".join(files_of(text).values())
    for sign, framework in FRAMEWORKS.items():
        if sign in shown and importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    prepare(page, folder)
    known: dict[str, str] = {}
    for command in commands_of(text):
        wrong = difference(command, run_command(command, folder), known)
        assert not wrong, wrong


def test_the_commands_of_the_first_page_print_what_it_says(tmp_path: Path) -> None:
    _run_page(FAST, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != FAST], ids=lambda page: page.stem)
def test_the_commands_of_a_page_print_what_it_says(page: Path, tmp_path: Path) -> None:
    _run_page(page, tmp_path)


def test_what_an_output_leaves_out_is_three_dots() -> None:
    """Another sign for it stands for itself, and only the slow test above would see that."""
    assert {
        page.name for page in PAGES for command in commands_of(page.read_text()) for line in command.output if "…" in line
    } == set()


def test_what_is_shown_and_not_run_is_listed_with_its_reason() -> None:
    shown = {str(page.relative_to(ROOT)): commands_of_other_blocks(page.read_text()) for page in ALL}

    assert {page: sorted(commands) for page, commands in shown.items() if commands} == {
        page: sorted(reasons) for page, reasons in NOT_RUN.items()
    }


def test_each_tutorial_and_most_how_to_have_commands_that_are_run() -> None:
    without = {page.stem for part in ("tutorials", "how-to") for page in (ROOT / "docs" / part).glob("*.md")}
    without -= {page.stem for page in PAGES}

    assert without == {"index", "docker", "notebooks", "read-a-warning", "write-an-adapter"} - {FAST.stem}


@pytest.mark.parametrize(
    ("printed", "is_right"),
    [
        (["loss 0.250000", "anything", "weights 00ff00ff1 of 00ff00ff1", "9 s"], True),
        (["loss 0.250000", "weights 00ff00ff1 of 00ff00ff1", "12.5 s"], True),
        (["loss 0.250000", "weights 00ff00ff1 of 00ff00ff2", "9 s"], False),  # equal on the page
        (["loss of 0.25", "weights 00ff00ff1 of 00ff00ff1", "9 s"], False),
        (["loss 0.250000", "weights 00ff00ff1 of 00ff00ff1"], False),
    ],
)
def test_times_are_masked_and_digests_are_compared_with_each_other(printed: list[str], *, is_right: bool) -> None:
    (command,) = commands_of("```console\n$ train\nloss 1.5\n...\nweights 123456789 of 123456789\n3 s\n```\n")

    assert (difference(command, Printed(printed, 0), {}) == "") is is_right


def test_digests_that_differ_on_the_page_must_differ() -> None:
    command = Command("train", ["12345678", "87654321"])

    assert difference(command, Printed(["00000001", "00000002"], 0), {}) == ""
    assert "equal digests here" in difference(command, Printed(["00000001", "00000001"], 0), {})


def test_a_command_without_output_must_succeed() -> None:
    assert difference(Command("train", []), Printed(["whatever"], 0), {}) == ""
    assert "ended with 3" in difference(Command("train", []), Printed([], 3), {})


def test_a_command_is_killed_behind_the_line_that_the_page_ends_with(tmp_path: Path) -> None:
    script = "import time; print('step 1', flush=True); print('step 2', flush=True); time.sleep(600)"
    (command,) = commands_of(f'```console\n$ python -c "{script}"\nstep 1\nstep 2\nKilled\n```\n')

    printed = run_command(command, tmp_path)

    assert printed.lines == ["step 1", "step 2", "Killed"]
    assert difference(command, printed, {}) == ""


def test_commands_in_the_how_to_name_options_that_exist() -> None:
    from click import Context, Group

    from detrain.cli import detrain

    pages = [*(ROOT / "docs/how-to").glob("*.md"), *(ROOT / "docs/tutorials").glob("*.md"), ROOT / "README.md"]
    for page in pages:
        for name, rest in re.findall(r"\bdetrain (\w+) ([^\n`|]*)", page.read_text()):
            command = detrain.get_command(Context(detrain), name)
            known = set() if command is None else {option for each in command.params for option in each.opts if option[0] == "-"}
            if isinstance(command, Group) or not known:  # launch hands its options on
                continue
            given = re.split(r"[\w/]+\.py", rest)[0]
            assert [option for option in re.findall(r"(?<!\S)--[\w-]+", given) if option not in known] == [], (page.name, rest)
