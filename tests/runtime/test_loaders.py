"""When a seek to a cut is exact: rules that an end-to-end run shows one at a time."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from detrain.base.errors import CannotSeek
from detrain.python.inspect.object_graph import Encoded
from detrain.python.inspect.progress import stands_still
from detrain.python.loaders import strategy
from detrain.python.loaders.strategy import Entered, reason_to_load, reasons_to_load
from detrain.python.process.loading_threads import LoadingThreads


@dataclass
class Loop:
    iterator: Any = None
    names: tuple[str, ...] = ()
    iterable: Any = None
    is_fetched_in_body: bool = False
    iteration_id: object = None


def here() -> FrameType:
    return sys._getframe(1)


NOTHING_LOST = Encoded(b"", {}, [])


def test_one_run_of_a_loop_is_the_first_and_a_second_run_is_not() -> None:
    entered, one, other = Entered(LoadingThreads(dict)), Loop(iteration_id=object()), Loop(iteration_id=object())
    entered.begin(here())
    for _turn in range(3):
        entered.note(one, here(), 0)
        assert entered.is_first(one, here())
    entered.note(other, here(), 0)

    assert not entered.is_first(other, here())
    entered.begin(here())
    entered.note(other, here(), 0)
    assert entered.is_first(other, here())


def goes_through(entered: Entered, iterator: Any, first: int) -> list[int]:
    """Return the batches of an epoch, of which the loop's is the first, before which it is said that no more come."""
    loop, found, batch = Loop(iterator, iteration_id=object()), [], first
    while True:
        entered.note(loop, here(), batch)
        found += [batch] if entered.is_behind_last(batch) else []
        if next(iterator, None) is None:
            entered.end(batch)
            return found
        batch += 1


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("around", [iter, enumerate, lambda values: zip(range(100), values, strict=False)])
def test_the_end_of_a_loop_is_told_by_its_loader_or_by_the_epoch_before(around: Any, is_known: bool) -> None:
    entered = Entered(LoadingThreads(dict), foresees_end=True)
    for epoch in range(2):
        entered.begin(here())
        for run, count in enumerate((4, 3)):
            values = range(count) if is_known else (value for value in range(count))
            expected = [4 * run + count] if is_known or epoch else []
            assert goes_through(entered, around(values), 4 * run) == expected, (epoch, run)


class Own:
    """A loader of the program's, and its iterator, that count how often they are asked for a length."""

    asked = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        raise StopIteration

    def __len__(self) -> int:
        type(self).asked += 1
        return 3


def test_no_code_of_the_program_runs_to_tell_a_length_and_nobody_is_asked_unless_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strategy, "is_own_class", lambda cls: cls is Own)
    asked: list[object] = []
    for source, is_wanted in ((Own(), True), (enumerate(Own()), True), (Own(), False), (iter([1, 2]), False)):
        loop, entered = Loop(iter(source), (), source, False, object()), Entered(LoadingThreads(dict), foresees_end=is_wanted)
        with monkeypatch.context() as patched:
            if not is_wanted:
                patched.setattr(strategy, "_length_of", asked.append)
            entered.note(loop, here(), 0)
        assert not any(entered.is_behind_last(batch) for batch in range(5))

    assert (Own.asked, asked) == (0, [])


def test_an_iterator_without_a_length_leaves_it_to_what_it_was_made_from() -> None:
    """As those of tf.data. One that has a length speaks for its loader: to ask that may change it."""
    unsized, hinting = (value for value in range(3)), iter([1, 2, 3, 4])
    for iterator, iterable, last in ((unsized, np.zeros(3), 3), (hinting, np.zeros(9), 4)):
        entered = Entered(LoadingThreads(dict), foresees_end=True)
        entered.note(Loop(iterator, (), iterable, False, object()), here(), 0)
        assert [batch for batch in range(12) if entered.is_behind_last(batch)] == [last]


WHILE = """
def train(entered, loop, here, begin):
    found = []
    for epoch in range(2):
        begin(here())
        {around}
            turn = 0
            while turn < 2:
                entered.note(loop, here(), 0); found.append(entered.is_first(loop, here()))
                turn += 1
    return found
"""


@pytest.mark.parametrize(("around", "expected"), [("if True:", [True] * 4), ("for shard in (0, 1):", [False] * 8)])
def test_a_while_loop_is_the_first_only_where_no_other_loop_is_around_it(around: str, expected: list[bool], tmp_path: Path) -> None:
    path = tmp_path / "whiles.py"
    path.write_text(WHILE.format(around=around))
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    entered = Entered(LoadingThreads(dict))

    assert space["train"](entered, Loop(), here, entered.begin) == expected


def test_a_loop_over_data_needs_no_knowledge_of_what_else_there_is() -> None:
    assert reasons_to_load(Loop(zip(range(3), [1, 2], strict=False)), NOTHING_LOST, [__file__], is_first=True) == []


@pytest.mark.parametrize(
    "loop", [Loop(iter([1]), names=("x",)), Loop(map(len, [])), Loop(object())], ids=["in the body", "a map", "an object"]
)
def test_code_that_loads_is_not_trusted_beside_libraries(loop: Loop) -> None:
    [reason] = reasons_to_load(loop, NOTHING_LOST, [__file__], is_first=True)

    assert "imports pytest, which may keep a state" in reason


def test_libraries_that_show_configure_or_train_are_none_that_keep_a_state_behind_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorboardX", "timm", "hydra", "evaluate"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    program = tmp_path / "program.py"
    program.write_text("import tensorboardX, timm, hydra\nfrom evaluate import load\n")

    assert reasons_to_load(Loop(map(len, [])), Encoded(b"", {}, []), [str(program)], is_first=True) == []


def test_a_library_that_was_not_imported_keeps_no_state(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("if False:\n    import apex_that_nobody_has\n")

    assert reasons_to_load(Loop(map(len, [])), NOTHING_LOST, [str(program)], is_first=True) == []


def test_a_folder_of_the_program_without_an_init_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rows").mkdir()
    (tmp_path / "own_rows" / "rows.py").write_text("")
    program = tmp_path / "program.py"
    program.write_text("import own_rows.rows\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("own_rows.rows")

    assert reasons_to_load(Loop(map(len, [])), NOTHING_LOST, [str(program)], is_first=True) == []


def test_a_pattern_of_regex_stands_still_and_a_loader_of_torchdatas_nodes_does_not() -> None:
    regex = pytest.importorskip("regex")

    assert stands_still(regex.compile(r"\p{L}+"))
    assert not stands_still(type("Loader", (), {"__module__": "torchdata.nodes.loader"})())


def test_standard_output_stands_still_and_standard_input_does_not() -> None:
    assert stands_still(sys.__stderr__)
    assert not stands_still(sys.__stdin__)


DRAWS = """
def train(header, iterator, numbers, other, rows, turn=0):
    for turn in header:
        {draw}
        {more}
"""


class Header:
    """Asks at the head of the loop, as the probe does, and gives nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reasons: list[str] = []

    def __iter__(self) -> Header:
        return self

    def __next__(self) -> None:
        loop = Loop(iter(range(2)), ("x", "y"))
        self.reasons += reasons_to_load(loop, NOTHING_LOST, [str(self.path)], sys._getframe(1), is_first=True)
        raise StopIteration


@pytest.mark.parametrize(
    ("draw", "more", "is_plain"),
    [
        ("x, y = next(iterator)", "pass", True),
        ("x, y = next(numbers)", "pass", True),
        ("x, y = next(numbers, None)", "pass", True),
        ("if turn > 5: break", "x, y = next(iterator)", True),
        ("turn += 1", "x, y = next(iterator)", True),
        ("x, y = next(other)", "pass", False),
        ("x, y = next(mapped := iterator)", "pass", False),
        ("x, y = next(iterator), len(rows)", "pass", False),
        ("x, y = next(iterator)", "x, y = y, rows.pop()", False),
        ("rows.pop()", "x, y = next(iterator)", False),
        ("rows + 1", "x, y = next(iterator)", False),
    ],
)
def test_a_body_that_only_draws_from_iterators_runs_nothing_else(draw: str, more: str, is_plain: bool, tmp_path: Path) -> None:
    path = tmp_path / "draws.py"
    path.write_text("import pytest\n" + DRAWS.format(draw=draw, more=more))
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    header = Header(path)

    space["train"](header, zip([1], [2], strict=True), iter([(1, 2)]), map(len, [""]), object())

    assert (header.reasons == []) == is_plain


@pytest.mark.parametrize(
    ("name", "is_trusted"), [("json", True), ("threading", False), ("multiprocessing", False), ("numpy", True)]
)
def test_modules_behind_which_something_may_go_on_are_known(name: str, is_trusted: bool, tmp_path: Path) -> None:
    path = tmp_path / "loads.py"
    path.write_text(f"import {name}\n")
    importlib.import_module(name)

    assert (reasons_to_load(Loop(names=("x",)), NOTHING_LOST, [str(path)], is_first=True) == []) == is_trusted


def test_what_was_lost_or_moved_is_a_reason_and_so_is_another_loop_before() -> None:
    encoded = Encoded(b"", {}, ["a (A)"], moved=["b (B)"])

    assert reasons_to_load(Loop(), encoded, [], is_first=True) == ["a (A)", "b (B)"]
    assert len(reasons_to_load(Loop(), NOTHING_LOST, [], is_first=False)) == 1
    assert len(reasons_to_load(None, NOTHING_LOST, [], is_first=False)) == 1


def test_a_seek_that_was_asked_for_is_refused_with_the_reasons() -> None:
    assert reason_to_load([], "seek") == reason_to_load([], "auto") == ""
    assert reason_to_load(["a", "b", "c", "d"], "auto") == "a; b; c and 1 more"
    assert reason_to_load([], "forward") == "--loader forward"
    with pytest.raises(CannotSeek, match="would not be exact: a; b"):
        reason_to_load(["a", "b"], "seek")
