"""Modules that the loop imports before a checkpoint: a resumed run imports those that the program's own source asks
for, and no other.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detrain.runtime.state.late_imports import LateModules, import_late

LAZY = """\
import importlib
def __getattr__(name):
    return getattr(importlib.import_module("lazylib.modes"), name)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry of a program, beside a package that imports its modules when their classes are first used."""
    package = tmp_path / "site-packages" / "lazylib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LAZY)
    (package / "modes.py").write_text("import enum\nclass Mode(enum.Enum):\n    FAST = 1\n")
    (package / "other.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "program.py"), raising=False)
    for name in ("lazylib", "lazylib.modes", "lazylib.other"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "program.py"


@pytest.mark.parametrize(
    "source", ["import lazylib\nmode = lazylib.Mode.FAST\n", "from lazylib import Mode\n", "import lazylib as lib\nlib.Mode\n"]
)
def test_a_class_that_the_source_uses_has_its_module_imported(source: str, program: Path) -> None:
    program.write_text(source)
    import_late(["lazylib.modes:Mode"])
    assert "lazylib.modes" in sys.modules


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import lazylib\n", "lazylib.modes:Mode"),
        ("import other\nother.Mode\n", "lazylib.modes:Mode"),
        ("import lazylib\nlazylib.Mode\n", "lazylib.other:Other"),
        ("import lazylib\nlazylib.Mode\n", "lazylib.other"),
    ],
)
def test_a_file_cannot_have_another_module_imported(source: str, name: str, program: Path) -> None:
    program.write_text(source)
    import_late([name])
    assert not {"lazylib.modes", "lazylib.other"} & set(sys.modules)


def test_what_loops_import_is_there_for_no_resumed_run_and_what_others_import_is(program: Path) -> None:
    program.write_text("import lazylib\n")
    modules = LateModules()
    import lazylib.modes  # noqa: F401 - as code before the loop does

    modules.enter()
    assert modules.not_imported(["lazylib.modes:Mode", "builtins:dict"]) == []
    sys.modules["lazylib.other"] = sys.modules["lazylib.modes"]
    for _loop in range(2):
        assert modules.not_imported(["lazylib.modes:Mode", "lazylib.other:Other"]) == ["lazylib.other:Other"]
        modules.enter()  # of the second loop: the first one's body does not run again
