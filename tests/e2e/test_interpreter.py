"""What the interpreter was told reaches the program, and nothing else does: its options, and no module of the current folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.runs import ROOT, plain

PROGRAM = """
import sys
if not sys.argv:
    import tensorflow
flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != "_" and name != "hash_randomization"}
shown = {name: value for name, value in flags.items() if not callable(value)}
print(shown, sys.argv, sys.path, sys._xoptions, sys.warnoptions, __debug__, sys.stdout.write_through)
"""


def both(folder: Path, options: str, *arguments: str, **changes: str) -> tuple[str, str]:
    """What the program prints under plain Python, and under `python -m detrain run`, with options of the interpreter."""
    changes = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])), **changes}
    run = plain(*options.split(), "-m", "detrain", "run", "program.py", *arguments, cwd=folder, **changes)
    bare = plain(*options.split(), "program.py", *arguments, cwd=folder, **changes)
    assert (run.status, bare.status) == (0, 0), run.err + bare.err
    return run.out, bare.out


@pytest.mark.parametrize("options", ["", "-O", "-Bu -OO", "-X dev", "-W ignore -bb", "-P", "-s -q"])
def test_options_of_the_interpreter_are_the_programs(options: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    run, bare = both(tmp_path, options)

    assert run == bare


@pytest.mark.parametrize("argument", ["-O", "-I", "-u"])
def test_arguments_of_the_program_are_no_options_of_the_interpreter(argument: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    run, bare = both(tmp_path, "", argument)

    assert run == bare


def test_a_safe_path_by_the_environment_keeps_what_it_begins_with(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    run, bare = both(tmp_path, "", PYTHONSAFEPATH="1")

    assert run == bare


def test_an_isolated_interpreter_has_the_hash_seed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\nif not sys.argv:\n    import tensorflow\nprint(hash('a'), 'PYTHONHOME' in __import__('os').environ)\n"
    )
    start = f"import sys; sys.path.insert(1, {str(ROOT)!r}); from detrain.cli import main; sys.exit(main(sys.argv[1:]))"

    runs = [plain("-I", "-c", start, "run", "program.py", cwd=tmp_path) for _ in range(2)]

    assert runs[0].out == runs[1].out != ""
    assert runs[0].status == runs[1].status == 0, runs[0].err


def test_modules_of_the_current_folder_do_not_hide_those_of_detrain(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "program.py").write_text(PROGRAM)
    for name in ("msgspec", "numpy", "random", "types"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    start = f"import sys; sys.path[0] = {str(ROOT)!r}; from detrain.cli import main; sys.exit(main())"

    run = plain("-c", start, "run", "src/program.py", cwd=tmp_path)

    assert run.status == 0, run.err
    assert str(tmp_path / "src") in run.out
