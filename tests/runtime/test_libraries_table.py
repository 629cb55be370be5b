"""What is known of libraries is one table, of which the longest name answers; a package adds to it by a file."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from detrain.base import libraries
from detrain.base.errors import FrameworkUnsupported
from detrain.base.libraries import said
from detrain.python.inspect.output_only import is_output_only

PAGE = Path(__file__).parents[2] / "docs/reference/libraries.md"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package `told_lib` with a class `Board`, not yet imported, whose own file a test writes."""
    folder = tmp_path / "site-packages" / "told_lib"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("class Board:\n    pass\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(libraries, "_table", dict(libraries._table))
    monkeypatch.setattr(libraries, "_asked", set(libraries._asked))
    yield folder
    sys.modules.pop("told_lib", None)


def board() -> object:
    """A new object of the package's."""
    import told_lib  # type: ignore[import-not-found]

    return told_lib.Board()


@pytest.mark.parametrize(
    ("module", "fact", "found"),
    [
        ("mlflow", "output", "records"),
        ("mlflow.pytorch.callback", "output", "records"),
        ("mlflow.tracking.client", "output", False),
        ("mlflow_extra", "output", None),
        ("torch.profiler.profiler", "output", True),
        ("torch.nn", "output", None),
        ("numba.core.registry", "compiled", True),
        ("numba.typed", "compiled", None),
        ("grain._src.python.data_loader", "computed", True),
        ("", "output", None),
    ],
)
def test_the_longest_name_answers(module: str, fact: str, found: object) -> None:
    assert said(module, fact) == found


def test_a_package_without_a_file_says_nothing(package: Path) -> None:
    assert not is_output_only(board())


def test_a_package_says_what_its_objects_are(package: Path) -> None:
    (package / "detrain.toml").write_text("[told_lib]\noutput = true\n")

    assert is_output_only(board())


def test_a_class_that_derives_from_a_reader_is_one_unless_its_module_says_otherwise(package: Path) -> None:
    (package / "detrain.toml").write_text('[told_lib]\nreaders = ["Board"]\n["told_lib.memory"]\noutput = false\n')
    read = type(board())
    in_memory = type("InMemory", (read,), {"__module__": "told_lib.memory"})

    assert is_output_only(read())
    assert is_output_only(type("Remote", (read,), {"__module__": "other_lib"})())
    assert not is_output_only(in_memory())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[told_lib]\nouptut = true\n", "'told_lib' has 'ouptut', which is none of its words"),
        ("[told_lib]\nstill = 3\n", "Expected `bool | null`, got `int`"),
        ("[told_lib\n", "Expected ']' at the end of a table declaration"),
        ("[torch]\noutput = true\n", "it speaks of 'torch', which is not of the package 'told_lib'"),
    ],
)
def test_a_package_that_says_something_else_is_refused(package: Path, text: str, reason: str) -> None:
    (package / "detrain.toml").write_text(text)

    with pytest.raises(FrameworkUnsupported, match=re.escape(reason)) as caught:
        is_output_only(board())

    assert str(package / "detrain.toml") in str(caught.value)


def test_detrains_own_table_is_in_its_form() -> None:
    for name, each in libraries.libraries().items():
        assert msgspec.convert(dataclasses.asdict(each), libraries.Library).output == each.output, name


def test_the_page_has_each_word() -> None:
    words = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    comments = re.findall(r"^# (\w+) {2,}\S", Path(libraries.__file__).with_suffix(".toml").read_text(), re.MULTILINE)

    assert sorted(words) == sorted(comments) == sorted(libraries._WORDS)
