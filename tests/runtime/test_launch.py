"""How the training process finds the modules that it follows."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from detrain.base.config import Config
from detrain.base.options import Every
from detrain.runtime.session import launch


class Hook(importlib.abc.MetaPathFinder):
    """One of those that tracers and automatic loggers put among the finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "followed_here":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def after(module: Any) -> None:
            run(module)
            module.heard = True

        spec.loader.exec_module = after
        return spec  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_behind", [True, False])
def test_hooks_of_others_are_asked_and_a_module_is_followed_once(
    is_behind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "followed_here.py").write_text("heard = False\n")
    monkeypatch.setattr(launch, "FOLLOWED", ("followed_here",))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    config = Config(
        target="t", is_module=False, entry="t", shown="t", arguments=(), program="t", run=1, home="h", seed=0, threads=1,
        every=Every(1, "epochs"), keep=1, bare=True,
    )  # fmt: skip
    finder = launch._Finder(config, None, None)
    followed: list[str] = []
    monkeypatch.setattr(finder, "_imported", followed.append)
    sys.meta_path[:0] = [finder, Hook()] if is_behind else [Hook(), finder]

    module = importlib.import_module("followed_here")
    sys.modules.pop("followed_here")

    assert (module.heard, followed) == (True, ["followed_here"])


WITH = """
import contextlib
@contextlib.contextmanager
def closing():
    yield
    raise KeyboardInterrupt
def run():
    with closing(): pass
"""


@pytest.mark.parametrize(("file", "kept"), [("/hidden/x.py", 1), ("/user/x.py", 4)])
def test_a_traceback_shows_no_with_statement_of_ours(file: str, kept: int) -> None:
    space: dict[str, Any] = {}
    exec(compile(WITH, file, "exec"), space)

    with pytest.raises(KeyboardInterrupt) as caught:
        space["run"]()

    trace, frames = launch._without(caught.value.__traceback__, ("/hidden/",)), []
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert len(frames) == kept
    assert frames[0] == __file__
