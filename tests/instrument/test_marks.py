"""Marks in loops change nothing that a program does.

That they tell when a loop is entered is in tests/tracer/test_events.py.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.instrument.loop_marks import MARK, edits_for_marks
from detrain.instrument.text_edits import apply, compile_edited, decode_source
from tests.instrument.loop_programs import FILE, LoopProgram, execute, loop_programs


@pytest.fixture(autouse=True, scope="module")
def entered() -> Iterator[list[int]]:
    """The numbers of the marks that are reached."""
    numbers: list[int] = []

    def enter(iterable: object, number: int) -> object:
        numbers.append(number)
        return iterable

    setattr(builtins, MARK, enter)
    yield numbers
    delattr(builtins, MARK)


@given(loop_programs(), st.integers(0, 25))
def test_a_marked_program_does_what_it_did_and_fails_where_it_failed(program: LoopProgram, limit: int) -> None:
    edits, _lines = edits_for_marks(program.data, 0)

    assert execute(compile_edited(program.data, edits, FILE), limit) == execute(program.data, limit)


@given(loop_programs(), st.integers(0, 5))
def test_each_loop_that_calls_something_has_one_mark(program: LoopProgram, first: int) -> None:
    edits, lines = edits_for_marks(program.data, first)

    marked = ast.parse(apply(decode_source(program.data)[0].encode(), edits).decode())
    calls = [node for node in ast.walk(marked) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == MARK]
    numbers = sorted(ast.literal_eval(call.args[1]) for call in calls)
    assert numbers == list(range(first, first + len(lines)))
    assert lines == sorted(node.lineno for node in ast.walk(ast.parse(program.data)) if isinstance(node, ast.For | ast.While))


def test_a_mark_is_reached_each_time_a_loop_is_entered_and_not_when_it_turns(entered: list[int]) -> None:
    source = b"for i in range(3):\n    n = 0\n    while n < 2:\n        n += len('x')\n"
    edits, lines = edits_for_marks(source, 0)
    entered.clear()

    exec(compile_edited(source, edits, FILE), {})

    assert lines == [1, 3]
    assert entered == [0, 1, 1, 1]


@pytest.mark.parametrize("source", [
    "for i in range(3):\n    x = i\n",
    "import numba\n@numba.njit\ndef f(x):\n    for i in range(3):\n        g(x)\n",
    "for i in range(3)\n",
])  # fmt: skip
def test_loops_that_cannot_train_those_of_decorated_functions_and_of_no_python_have_none(source: str) -> None:
    assert edits_for_marks(source.encode(), 0) == ([], [])
