"""Edits: insertions into UTF-8 text, and code whose positions are those of the text before them."""

from __future__ import annotations

import contextlib
import dis
import sys
from collections.abc import Iterator
from types import CodeType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.structure import Loop, Nest
from detrain.instrument.rewriter import edits_for
from detrain.instrument.text_edits import apply, compile_edited, decode_source
from tests.instrument.loop_programs import FILE, LoopProgram, execute, loop_programs

MAY_RAISE = {"PRECALL", "CALL", "BINARY_OP", "BINARY_SUBSCR", "GET_ITER", "FOR_ITER", "LOAD_NAME"}


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def positions(code: CodeType) -> set[tuple[object, ...]]:
    """Return the positions of the calls and other instructions that may raise (jumps are laid out as the compiler
    likes): from Python 3.13 on, which marks less of a loop's head, their lines.
    """
    return {
        (part.co_name, part.co_firstlineno, *instruction.positions[: 4 if sys.version_info < (3, 13) else 2])
        for part in codes(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname
        in ("PRECALL", "CALL", "CALL_FUNCTION", "BINARY_OP", "BINARY_SUBSCR", "GET_ITER", "FOR_ITER", "LOAD_NAME")
    }


@given(loop_programs(), st.integers(1, 25))
def test_an_error_anywhere_is_shown_where_plain_python_shows_it(program: LoopProgram, limit: int) -> None:
    edits = edits_for(program.data, program.nests, FILE)

    bare = execute(program.data, limit)
    instrumented = execute(compile_edited(program.data, edits, FILE), limit)

    assert instrumented == bare


@given(loop_programs())
def test_every_position_of_the_plain_code_is_one_of_the_edited_code(program: LoopProgram) -> None:
    edits = edits_for(program.data, program.nests, FILE)

    edited = positions(compile_edited(program.data, edits, FILE))

    assert positions(compile(program.data, FILE, "exec", dont_inherit=True)) <= edited


def test_a_call_at_the_end_of_a_file_without_a_line_end_keeps_its_positions() -> None:
    """A probe follows it at once: the call ended where its argument does."""
    source = b"done = 0\nwhile done < 2:\n    done += 1\n    for _ in range(2): print(done)\nelse: print('else')"
    nest = Nest(Loop(FILE, 4, 4, "for"), Loop(FILE, 2, 0, "while"))

    edited = positions(compile_edited(source, edits_for(source, [nest], FILE), FILE))

    assert positions(compile(source, FILE, "exec", dont_inherit=True)) <= edited


@given(loop_programs())
def test_without_edits_the_code_is_that_of_plain_python(program: LoopProgram) -> None:
    plain = compile(program.data, FILE, "exec", dont_inherit=True)

    assert compile_edited(program.data, (), FILE) == plain


@given(st.binary(max_size=30), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.text("ab", max_size=3)), max_size=4))
def test_apply_replaces_each_range_as_replacing_from_the_end_does(source: bytes, drawn: list[tuple[int, int, str]]) -> None:
    edits, end = [], 0
    for gap, length, text in drawn:
        first = min(end + gap, len(source))
        end = min(first + length, len(source))
        edits.append((first, end, text))
    edits = sorted(edits)
    expected = source
    for first, last, text in reversed(edits):
        expected = expected[:first] + text.encode() + expected[last:]

    assert apply(source, edits[::-1]) == expected


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"x\r\n", "x\r\n", "utf-8"),
        (b"\xef\xbb\xbfx", "x", "utf-8-sig"),
        (b"# coding: latin-1\n'\xe9'", "# coding: latin-1\n'é'", "iso-8859-1"),
        (b"#!/bin/sh\n# vim: set fileencoding=cp1252 :\n'\x80'", "#!/bin/sh\n# vim: set fileencoding=cp1252 :\n'€'", "cp1252"),
        (b"", "", "utf-8"),
    ],
)
def test_a_source_is_decoded_as_its_cookie_says(data: bytes, text: str, encoding: str) -> None:
    assert decode_source(data) == (text, encoding)


def test_a_string_in_latin_1_keeps_its_value_through_edits() -> None:
    data = b"# coding: latin-1\nx = '\xe9'\nprint(len(x), ord(x), y)\n"
    start = data.index(b"x = ")
    ran = execute(compile_edited(data, [(start, start, "y = 1\n")], FILE))

    assert (ran.output, ran.error) == ("1 233 1\n", "")


def test_a_cookie_that_lies_is_reported_as_plain_python_reports_it() -> None:
    data = b"x = 1\ny = 2\nz = '\xe9'\n"
    with pytest.raises(SyntaxError) as plain:
        compile(data, FILE, "exec")

    with pytest.raises(SyntaxError) as ours:
        compile_edited(data, (), FILE)

    assert str(ours.value) == str(plain.value)


def test_a_syntax_error_is_reported_where_plain_python_reports_it() -> None:
    data = "x = 1\r\nwhile é ü:\r\n    pass\r\n".encode()
    with pytest.raises(SyntaxError) as plain:
        compile(data, FILE, "exec")

    with pytest.raises(SyntaxError) as ours:
        compile_edited(data, (), FILE)

    assert (ours.value.lineno, ours.value.offset, ours.value.text) == (plain.value.lineno, plain.value.offset, plain.value.text)


def test_a_header_on_many_lines_with_text_before_the_edit_keeps_its_columns() -> None:
    data = 'for é in {"ü—": (\n    "é", 1 /\n    0)}["ü—"]: print(é)\n'.encode()
    head = data.index(b"{")
    tail = data.index(b": print")
    edits = [(head, head, "iter(list("), (tail, tail, "))")]

    plain = list(compile(data, FILE, "exec").co_positions())
    edited = set(compile_edited(data, edits, FILE).co_positions())

    assert set(plain) <= edited


def test_an_error_in_a_string_of_many_lines_is_shown_where_plain_python_shows_it() -> None:
    data = 'x = 0\nfor y in [1]: z = f"""é\n  {y} {\n  1 / x} """\n'.encode()
    start = data.index(b"[1]")
    edits = [(start, start, "iter("), (start + 3, start + 3, ")")]

    bare = execute(data)
    edited = execute(compile_edited(data, edits, FILE))

    assert "ZeroDivisionError" in bare.error
    assert edited == bare


def test_futures_of_the_program_hold_and_those_of_detrain_do_not_leak() -> None:
    with_future = b"from __future__ import annotations\ndef f(x: unknown): pass\n"
    without = b"def f(x: unknown): pass\n"

    execute(compile_edited(with_future, [(len(with_future), len(with_future), "x = 1\n")], FILE))
    with pytest.raises(NameError) if sys.version_info < (3, 14) else contextlib.nullcontext():  # nobody asks for it
        execute(compile_edited(without, [(0, 0, "x = 1\n")], FILE))
