"""The cells of a notebook as one file that grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.compiled_sources import source_of
from detrain.base.errors import UsageError
from detrain.instrument.find_loops import analyse
from detrain.instrument.rewriter import edits_for
from detrain.notebook.run import Cells, _has_only_magics, _parsed

TRAINING = """\
for epoch in range(2):
    for x in loader:
        optimizer.apply_gradients(x)
        raise KeyError(epoch)
"""


def test_cells_stand_one_behind_another_and_code_has_the_lines_of_the_file(tmp_path: Path) -> None:
    cells = Cells(tmp_path / ".notebook.cells.py")
    cells.add("loader = [1, 2]\nlimit = 3")
    cells.add("1 / 0")

    with pytest.raises(ZeroDivisionError) as failed:
        exec(cells.code([]), {})

    assert list(cells.lines) == [3]
    assert failed.traceback[-1].lineno + 1 == 3
    assert source_of(str(cells.path)) == cells.path.read_bytes() == b"loader = [1, 2]\nlimit = 3\n1 / 0\n"


@pytest.mark.parametrize("source", ["for", "return 1", "break"])
def test_a_cell_that_python_cannot_compile_is_not_added(source: str, tmp_path: Path) -> None:
    cells = Cells(tmp_path / ".notebook.cells.py")
    cells.add("x = 1")

    with pytest.raises(SyntaxError):
        cells.add(source)

    assert cells.path.read_text() == "x = 1\n"


@pytest.mark.parametrize("source", ["await sleep(0)", "from __future__ import annotations"])
def test_a_cell_that_is_valid_alone_spoils_no_later_one(source: str, tmp_path: Path) -> None:
    cells = Cells(tmp_path / ".notebook.cells.py")
    cells.add("x = 1")
    cells.edit([])
    cells.add(source)
    cells.edit([])
    cells.add("y = 2")

    assert cells.edit([]) == []
    exec(cells.code([]), names := {})
    assert names["y"] == 2


def test_probes_go_into_the_last_cell_alone_with_their_import(tmp_path: Path) -> None:
    cells = Cells(tmp_path / ".notebook.cells.py")
    cells.add("def earlier(loader, optimizer):\n" + "".join(f"    {line}\n" for line in TRAINING.splitlines()))
    cells.add("loader, optimizer = [1], None\n" + TRAINING)
    data = cells.path.read_bytes()

    edits = cells.edit(edits_for(data, analyse(cells.path).nests, str(cells.path)))
    inserted = "".join(text for _first, _last, text in edits)

    assert inserted.count("epoch_loop(") == inserted.count("batch_loop(") == 1
    assert inserted.startswith("from detrain import ")
    assert cells.code(edits).co_names[:1] == ("detrain",)


@pytest.mark.parametrize(
    ("source", "is_magic"),
    [
        ("get_ipython().run_line_magic('load_ext', 'detrain')", True),
        ("# a comment", True),
        ("import torch", False),
        ("get_ipython().run_line_magic('load_ext', 'detrain')\nx = 1", False),
    ],
)
def test_only_magics_may_run_before_detrain_comes(source: str, is_magic: bool) -> None:
    assert _has_only_magics(source) == is_magic


@pytest.mark.parametrize("options", ["--every 0", "--keep 0", "--keep x", "--every 5b more", "--ke 3"])
def test_options_that_cannot_be_taken_are_refused(options: str) -> None:
    with pytest.raises(UsageError):
        _parsed(options)


def test_options_are_those_of_the_run() -> None:
    found = _parsed("--every 50b --keep 2 --keep-best max:score")

    assert (str(found["every"]), found["keep"], found["keep_every"], found["keep_best"]) == ("50b", 2, None, "max:score")
