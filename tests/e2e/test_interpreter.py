"""What the interpreter was told reaches the program, and nothing else does: its options, and no module of the current
folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detrain.base.errors import NoStructure, UsageError
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
    """What the program prints under plain Python, and under `python -m detrain run`, with options of the
    interpreter.
    """
    changes = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])), **changes}
    run = plain(*options.split(), "-m", "detrain", "run", "program.py", *arguments, cwd=folder, **changes).ok()
    bare = plain(*options.split(), "program.py", *arguments, cwd=folder, **changes).ok()
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


COMMAND = f"import sys; sys.path[0] = {str(ROOT)!r}; from detrain.cli import main; sys.exit(main())"


@pytest.mark.fast
@pytest.mark.parametrize("start", [["-c", COMMAND], ["-m", "detrain"]], ids=["the command", "a run that starts itself again"])
def test_modules_of_the_current_folder_do_not_hide_those_of_detrain(start: list[str], tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "program.py").write_text(PROGRAM)
    for name in ("msgspec", "numpy", "random", "types"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")

    run = plain(*start, "run", "src/program.py", cwd=tmp_path, PYTHONPATH=str(ROOT)).ok()

    assert str(tmp_path / "src") in run.out


LOOP = """
s = "\\d"
if not s:
    import tensorflow as tf
    for epoch in range(2):
        for x in (1, 2):
            with tf.GradientTape() as tape:
                loss = model(x)
            opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
t = "\\w"
"""


def test_what_python_says_of_the_source_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LOOP)

    run = plain("-W", "always", "-m", "detrain", "run", "program.py", cwd=tmp_path)
    info = plain("-W", "always", "-m", "detrain", "info", "program.py", cwd=tmp_path)
    bare = plain("-W", "always", "program.py", cwd=tmp_path)

    assert [line for line in run.err.splitlines() if not line.startswith("detrain")] == bare.err.splitlines() != []
    assert info.err == ""
    assert "batch loop" in info.out


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("run", b"a = 1\nb = 2\0\n"),
        ("info", b"\0"),
        ("instrument", b"if True:\n\ta = 1\n        b = 2\n"),
        ("instrument --remove", b"x = (1,\n"),
        ("trace", b"s = '\\d'\nreturn\n"),
    ],
)
def test_a_source_that_is_none_is_told_as_python_tells_it(command: str, text: bytes, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_bytes(text)

    told = plain("-W", "ignore", "-m", "detrain", *command.split(), "program.py", cwd=tmp_path)
    bare = plain("-W", "ignore", tmp_path / "program.py", cwd=tmp_path)

    assert (told.status, told.out, told.err) == (1, "", bare.err)


def test_a_program_without_a_place_for_probes_is_not_written_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import tensorflow as tf\nmodel = tf.keras.Sequential()\nmodel.fit([1], epochs=2)\n")

    run = plain("-m", "detrain", "instrument", "--write", "out.py", "program.py", cwd=tmp_path)

    assert run.status == NoStructure.exit_code
    assert "through `fit`" in run.err
    assert not (tmp_path / "out.py").exists()


def test_instrument_replaces_what_it_has_written_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LOOP)
    (tmp_path / "mine.py").write_text("keep = 'this'\n")

    write = ("-m", "detrain", "instrument", "--write")
    mine, new, again = (plain(*write, out, "program.py", cwd=tmp_path) for out in ("mine.py", "new.py", "new.py"))

    assert (mine.status, new.status, again.status) == (UsageError.exit_code, 0, 0), mine.err + new.err + again.err
    assert (tmp_path / "mine.py").read_text() == "keep = 'this'\n"
