"""What was added to a source is told from its syntax tree: what is taken out of a program comes out as added to it."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from detrain.base.compiled_sources import parse
from detrain.instrument.additions import Addition, Changed, additions, without

PROGRAMS = sorted((Path(__file__).resolve().parents[1] / "programs").rglob("*.py"))

EARLIER = """\
import os
@cached
def step(x, *, k=1):
    try:
        y = x + k
    except ValueError as error:
        raise
    return y
for epoch in range(3):
    for x in data:
        a = step(x); b = 2
    else:
        match a:
            case 1: b = 3
print(a)
"""


def lists_of(tree: ast.AST) -> list[list[ast.stmt]]:
    """The lists of statements in a tree."""
    values = [value for node in ast.walk(tree) for _name, value in ast.iter_fields(node) if isinstance(value, list)]
    return [value for value in values if value and isinstance(value[0], ast.stmt)]


def without_fillers(tree: ast.Module) -> str:
    """A tree as text, without what stands in the place of what is left out."""
    for each in lists_of(tree):
        kept = [
            node
            for node in each
            if ast.dump(node) not in ("Pass()", "Expr(value=Tuple(ctx=Load()))", "Expr(value=Tuple(elts=[], ctx=Load()))")
        ]
        each[:] = kept
    return ast.dump(tree)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_taken_out_of_a_program_was_added_to_the_rest(seed: int) -> None:
    draw = random.Random(seed)
    for path in draw.sample(PROGRAMS, 12):
        source = path.read_bytes()
        tree = parse(source)
        for each in lists_of(tree):
            if len(each) > 1 and draw.random() < 0.4:
                each.pop(draw.randrange(len(each)))
        earlier = ast.unparse(tree).encode()

        found = additions(earlier, source)

        assert isinstance(found, list), (path, found)
        rest = parse(without(source, found))
        assert without_fillers(rest) == without_fillers(parse(earlier)), path
        assert len(without(source, found).splitlines()) == len(source.splitlines())


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("import os\n", "import os\nimport sys\n", [2]),
        ("    return y", "    print(\n        y)\n    return y", [8]),
        ("        y = x + k", "        y = x + k; print(y)", [5]),
        ("        a = step(x); b = 2", "        if x:\n            print(x)\n        a = step(x); b = 2", [11]),
        ("            case 1: b = 3", "            case 1: b = 3; print(b)", [14]),
        ("        raise", "        print(error)\n        raise", [7]),
        ("print(a)\n", "@cached\ndef show(a):\n    print(a)\nshow(a)\nprint(a)\nassert a, 1\n", [16, 18, 20]),
        ("    return y\n", "    finally:\n        print(1)\n    return y\n", [9]),
        ("", "", []),
    ],
)
def test_statements_that_were_added_are_named_by_their_lines(old: str, new: str, lines: list[int]) -> None:
    found = additions(EARLIER.encode(), EARLIER.replace(old, new, 1).encode())

    assert isinstance(found, list)
    assert [each.line for each in found] == lines


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("k=1", "k=2", 3, "def step(x, *, k=1):"),
        ("@cached\n", "", 3, "def step(x, *, k=1):"),
        ("y = x + k", "y = x - k", 5, "y = x + k"),
        ("except ValueError", "except Exception", 4, "try:"),
        ("range(3)", "range(4)", 9, "for epoch in range(3):"),
        ("; b = 2", "", 11, "a = step(x); b = 2"),
        ("b = 3", "b = 4", 14, "case 1: b = 3"),
        ("print(a)\n", "", 15, "print(a)"),
        ("a = step(x); b = 2", "b = 2; a = step(x)", 11, "a = step(x); b = 2"),
        ("        a = step(x)", "        if x: a = step(x)", 11, "a = step(x); b = 2"),
    ],
)
def test_a_statement_that_was_changed_is_named_with_its_line(old: str, new: str, line: int, text: str) -> None:
    assert additions(EARLIER.encode(), EARLIER.replace(old, new, 1).encode()) == Changed(line, text)


@pytest.mark.parametrize(
    ("text", "is_store"),
    [
        ("print(a)", False),
        ("n = a.norm()", False),
        ("n += 1", True),
        ("model.calls = 1", True),
        ("seen['a'] = 1", True),
        ("del seen", True),
        ("def f():\n    global n", True),
    ],
)
def test_it_is_seen_which_additions_write_where_others_read(text: str, is_store: bool) -> None:
    (found,) = additions(b"a = 1\n", f"a = 1\n{text}\n".encode())

    assert isinstance(found, Addition)
    assert found.is_store == is_store


def test_a_source_keeps_its_encoding_without_what_was_added() -> None:
    earlier = "# coding: latin-1\na = 'é'\n".encode("latin-1")
    now = "# coding: latin-1\na = 'é'; print('ü')\nb = 'é'\n".encode("latin-1")
    found = additions(earlier, now)

    assert isinstance(found, list)
    assert without(now, found[:1]) == "# coding: latin-1\na = 'é'; pass\nb = 'é'\n".encode("latin-1")
