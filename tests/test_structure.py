"""inst.info: written and read back, followed through edits of the program, and refused where it does not fit."""

from __future__ import annotations

import ast
import json
import linecache
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detrain.base.errors import StructureInvalid
from detrain.base.structure import (
    Structure,
    bound_names,
    loop_digest,
    loop_nodes,
    names_loaded_before,
    read_info,
    write_info,
)
from detrain.instrument.find_loops import analyse

PROGRAM = """\
import tensorflow as tf

for epoch in range(3):
    for i in range(10):
        x, y = next(it)
        # the update
        model.train_on_batch(x, y)
    print(epoch)
"""
MUSIC = Path(__file__).resolve().parents[1] / "examples" / "music_transformer"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def written(program: Path) -> Path:
    """Write the inst.info of a program beside it."""
    info = program.parent / "inst.info"
    write_info(analyse(program), info, program.parent)
    return info


def test_on_a_full_disk_the_file_stays_as_it_was(program: Path) -> None:
    """It was left empty, and each start behind that was refused."""
    info, limits = written(program), resource.getrlimit(resource.RLIMIT_FSIZE)
    before, there = info.read_bytes(), set(program.parent.iterdir())
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        with pytest.raises(OSError):  # noqa: PT011 - EFBIG, as ENOSPC where no file has room
            written(program)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert info.read_bytes() == before
    assert set(program.parent.iterdir()) == there


def lines(structure: Structure) -> list[tuple[int | None, ...]]:
    return [
        (nest.epoch_loop and nest.epoch_loop.line, nest.batch_loop.line, nest.load_line, nest.update_line)
        for nest in structure.nests
    ]


def edited(info: Path, **changes: Any) -> Path:
    """Change keys of the batch loop in an inst.info."""
    plain = json.loads(info.read_text())
    for key, value in changes.items():
        plain["nests"][0]["batch_loop"][key] = value
    info.write_text(json.dumps(plain))
    return info


# Our own form.


def test_what_is_written_is_read_back(program: Path) -> None:
    structure = analyse(program)
    info = written(program)

    back = read_info(info, program.parent)

    assert back.nests == structure.nests
    assert lines(back) == [(3, 4, 5, 7)]
    assert back.source == str(info)


def test_a_structure_without_nests_is_read_back(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("model.fit(x)\n")
    info = written(program)

    back = read_info(info, tmp_path)

    assert (back.nests, [fit.place for fit in back.fits]) == ((), ["train.py:1"])


def test_file_names_are_relative_so_that_the_program_can_move(program: Path, tmp_path: Path) -> None:
    info = written(program)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = program.rename(elsewhere / "train.py")

    back = read_info(info, elsewhere)

    assert str(tmp_path) not in info.read_text()
    assert back.nests[0].batch_loop.file == str(moved.resolve())


def test_the_written_bytes_do_not_depend_on_the_folder(tmp_path: Path) -> None:
    infos = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "train.py"
        program.write_text(PROGRAM)
        infos.append(written(program).read_bytes())

    assert infos[0] == infos[1]
    assert infos[0].endswith(b"}\n")


# Edits of the program.


@pytest.mark.parametrize("above", ["# a comment\n", "import os\n\n\n", "def f():\n    for i in range(10):\n        print(i)\n"])
def test_a_loop_that_moved_is_found_with_its_load_and_update(program: Path, above: str) -> None:
    info = written(program)
    program.write_text(above + PROGRAM)

    back = read_info(info, program.parent)

    moved = above.count("\n")
    assert lines(back) == [(3 + moved, 4 + moved, 5 + moved, 7 + moved)]
    assert lines(back) == lines(analyse(program))


def test_a_loop_that_moved_up_is_found(program: Path) -> None:
    info = written(program)
    program.write_text(PROGRAM.removeprefix("import tensorflow as tf\n\n"))

    assert lines(read_info(info, program.parent)) == [(1, 2, 3, 5)]


def test_of_several_equal_loops_the_nearest_is_meant(program: Path) -> None:
    info = written(program)
    nest = PROGRAM.removeprefix("import tensorflow as tf\n\n")
    program.write_text("import tensorflow as tf\n\n#\n" + nest + nest)

    assert lines(read_info(info, program.parent)) == [(4, 5, 6, 8)]


def test_an_edit_behind_the_loop_and_white_space_inside_a_line_change_nothing(program: Path) -> None:
    info = written(program)
    program.write_text(PROGRAM.replace("next(it)", "next( it )  # why") + "print('end')\n")

    assert lines(read_info(info, program.parent)) == [(3, 4, 5, 7)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range(10)", "range(11)"),
        ("next(it)", "next(iterator)"),
        ("model.train_on_batch(x, y)", "model.train_on_batch(x, y); print(x)"),
        ("        # the update\n", "        print(x)\n"),
        ("        # the update\n", ""),
        ("        x, y", "        # a line that moves the load\n        x, y"),
        ("for i in", "for j in"),
    ],
)
def test_an_edit_of_the_loop_is_refused(program: Path, old: str, new: str) -> None:
    info = written(program)
    program.write_text(PROGRAM.replace(old, new))

    with pytest.raises(StructureInvalid, match=r"inst\.info.* names at train\.py:4 was edited"):
        read_info(info, program.parent)


def test_a_loop_without_a_digest_is_taken_at_its_line(program: Path) -> None:
    info = edited(written(program), digest="", kind="while", column=77)

    back = read_info(info, program.parent)

    assert back.nests == analyse(program).nests


def test_a_line_where_no_loop_starts_is_refused_with_those_where_one_does(program: Path) -> None:
    info = edited(written(program), digest="", line=5)

    with pytest.raises(StructureInvalid, match=r"names a loop at train\.py:5; loops start at lines \[3, 4\]"):
        read_info(info, program.parent)


@pytest.mark.parametrize("name", ["missing.py", ".", "a\0b", "x" * 5000, "../../nowhere.py"])
def test_a_file_that_cannot_be_read_is_refused(program: Path, name: str) -> None:
    info = edited(written(program), file=name)

    with pytest.raises(StructureInvalid, match="cannot be read"):
        read_info(info, program.parent)


def test_a_program_with_a_syntax_error_is_refused(program: Path) -> None:
    info = written(program)
    program.write_text("for\n")

    with pytest.raises(StructureInvalid, match="cannot be read"):
        read_info(info, program.parent)


# Files that are no inst.info.


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"garbage",
        b"\xff\xfe\x00",
        b"[]",
        b"1",
        b"null",
        b'"text"',
        b"{}",
        b'{"nests": 1}',
        b'{"nests": [{}]}',
        b"{'a': 1",
        b"[" * 10**5,
    ],
)
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    info = tmp_path / "inst.info"
    info.write_bytes(content)

    with pytest.raises(StructureInvalid, match=r"inst\.info"):
        read_info(info, tmp_path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "inst.info", tmp_path):
        with pytest.raises(StructureInvalid, match="cannot read"):
            read_info(path, tmp_path)


@pytest.mark.parametrize("plain", [{"nests": [], "source": "", "format": 2}, {"format": 7, "loops": {"in": "another form"}}])
def test_a_newer_format_is_refused_as_such(tmp_path: Path, plain: object) -> None:
    info = tmp_path / "inst.info"
    info.write_text(json.dumps(plain))

    with pytest.raises(StructureInvalid, match="reads up to 1") as error:
        read_info(info, tmp_path)

    assert error.value.todo == "update detrain"


# The form of the original project.


def original(**code: Any) -> dict[str, Any]:
    """Return the dict that the original project writes for PROGRAM."""
    return {
        "dataloader": {"full_name": "data.Data", "module": "data", "init": ("data", "Data.__init__")},
        "loop_type": {"type": "ON_CUSTOM"},
        "code_info": {
            "loop_file_name": "train.py",
            "loop_line_no": "4",
            "epoch_file_name": "train.py",
            "epoch_line_no": "3",
            "dl_call_file_name": "train.py",
            "dl_call_line_no": "5",
            "update_call_file_name": "train.py",
            "update_call_line_no": "7",
            **code,
        },
    }


def test_the_file_of_the_original_names_the_loops_that_the_analysis_finds() -> None:
    (theirs,) = read_info(MUSIC / "inst.info", MUSIC).nests
    (ours,) = analyse(MUSIC / "train.py").nests

    assert (theirs.batch_loop, theirs.epoch_loop, theirs.update_line) == (ours.batch_loop, ours.epoch_loop, ours.update_line)
    assert theirs.loader == "data.Data"
    assert theirs.load_line == ours.load_line


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ({}, (3, 4, 5, 7)),
        ({"loop_line_no": 4, "dl_call_line_no": 5}, (3, 4, 5, 7)),
        ({"loop_file_name": "somewhere/else/train.py"}, (3, 4, 5, 7)),
        ({"epoch_file_name": "", "epoch_line_no": ""}, (None, 4, 5, 7)),
        ({"dl_call_file_name": "data.py"}, (3, 4, None, 7)),
        ({"dl_call_line_no": ""}, (3, 4, None, 7)),
        ({"dl_call_line_no": None, "update_call_line_no": None}, (3, 4, None, None)),
    ],
)
def test_the_lines_of_the_original_are_taken(program: Path, code: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    info = program.parent / "inst.info"
    info.write_text(repr(original(**code)) + "\n")

    assert lines(read_info(info, program.parent)) == [expected]


@pytest.mark.parametrize(
    "info",
    [
        "{}",
        "{'code_info': {}}",
        "{'code_info': {}, 'loop_type': {'type': 'ON_CUSTOM'}}",
        "{'code_info': 'text', 'loop_type': {'type': 'ON_CUSTOM'}}",
        "{'code_info': [], 'loop_type': {'type': 'ON_CUSTOM'}}",
        "{'code_info': {}, 'loop_type': {'type': 'ON_FIT'}}",
        "{'code_info': {}, 'loop_type': {'type': []}}",
        "('code_info',)",
        "b'bytes'",
        "{1, 2}",
        repr({**original(), "dataloader": "data.Data"}),
        repr({**original(), "dataloader": None}),
        repr(original(loop_line_no=None)),
        repr(original(loop_line_no="four")),
        repr(original(loop_line_no="²")),
        repr(original(loop_line_no=[4])),
        repr(original(loop_line_no=1e999)).replace("inf", "1e999"),
        repr(original(loop_line_no="5")),
        repr(original(loop_file_name=7)),
        repr(original(loop_file_name=["train.py"])),
        repr(original(loop_file_name="a\0b")),
        repr(original(loop_file_name=".")),
        repr(original(epoch_file_name="missing.py")),
        repr({key: value for key, value in original()["code_info"].items() if key != "loop_line_no"}),
    ],
)
def test_a_malformed_file_of_the_original_is_refused(program: Path, info: str) -> None:
    path = program.parent / "inst.info"
    path.write_text(info)

    with pytest.raises(StructureInvalid, match=r"inst\.info"):
        read_info(path, program.parent)


@pytest.mark.parametrize("line", ["²", "-5", "5.0", "five", "９" * 5000])
def test_a_load_line_that_is_no_number_is_none(program: Path, line: str) -> None:
    info = program.parent / "inst.info"
    info.write_text(repr(original(dl_call_line_no=line)), "utf-8")

    assert lines(read_info(info, program.parent)) == [(3, 4, None, 7)]


@pytest.mark.parametrize(
    "code",
    [
        "__import__('pathlib').Path('executed').touch()",
        "{'code_info': __import__('pathlib').Path('executed').touch()}",
        "{**open('executed', 'w').__dict__}",
        "[open('executed', 'w') for _ in [1]]",
        'f\'{open("executed", "w")}\'',
    ],
)
def test_code_in_an_info_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.chdir(tmp_path)
    info = tmp_path / "inst.info"
    info.write_text(code)

    with pytest.raises(StructureInvalid):
        read_info(info, tmp_path)

    assert not (tmp_path / "executed").exists()


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(("train.py", "4", 3)))
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3), max_leaves=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(sorted(original()["code_info"])), VALUES, max_size=3), st.data())
def test_whatever_a_file_of_the_original_holds_it_is_read_or_refused(
    tmp_path: Path, code: dict[str, Any], data: st.DataObject
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    plain = original(**code)
    for key in plain:
        if data.draw(st.integers(0, 9)) == 0:
            plain[key] = data.draw(VALUES)
    info = tmp_path / "inst.info"
    info.write_text(repr(plain), "utf-8", "backslashreplace")

    try:
        structure = read_info(info, tmp_path)
    except StructureInvalid:
        return
    assert structure.nests[0].batch_loop.line in (3, 4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(("file", "line", "column", "kind", "function", "digest")), VALUES, max_size=2))
def test_whatever_our_own_file_holds_it_is_read_or_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    info = edited(written(program), **changes)

    try:
        structure = read_info(info, tmp_path)
    except StructureInvalid:
        return
    assert structure.nests[0].batch_loop.line in (3, 4)


# What the source says of loops and names.


def test_every_loop_is_listed_by_its_line() -> None:
    tree = ast.parse("for a in b:\n    while c:\n        pass\nasync def f():\n    async for d in e: pass\n[x for x in y]\n")

    assert sorted(loop_nodes(tree)) == [1, 2, 5]


def test_the_digest_of_a_loop_does_not_depend_on_where_it_stands_or_how_its_lines_are_spaced() -> None:
    first = ast.parse("for a in b:\n    f(a)\n    g(a)\n").body[0]
    second = ast.parse("\n\nif x:\n  for a in( b ):  # why\n     f( a )\n     g(a)\n").body[0]
    other = ast.parse("for a in b:\n    f(a)\n    h(a)\n").body[0]

    assert loop_digest(first) == loop_digest(second.body[0])  # type: ignore[attr-defined]
    assert loop_digest(first) != loop_digest(other)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a, (b, *c) = d", ("a", "b", "c")),
        ("a: int = b", ("a",)),
        ("a = b = a", ("a", "b")),
        ("a.b = c[d] = e", ()),
        ("for a in b:\n    c = d", ("a", "c")),
        ("with a as b, c as (d, e): f = g", ("b", "d", "e", "f")),
        ("if (a := b): pass", ("a",)),
        ("a = [b for b in c if (d := b)]", ("a", "d")),
        ("a = {b: c for b, c in d}; e = {f for f in (g for g in h)}", ("a", "e")),
        ("a = lambda b: (c := b)", ("a",)),
        ("def f():\n    a = 1", ()),
        ("class C:\n    a = 1", ()),
        ("a += 1", ("a",)),
    ],
)
def test_the_names_that_a_statement_binds_are_those_of_its_own_scope(source: str, names: tuple[str, ...]) -> None:
    assert bound_names(ast.parse(source).body) == names


PROBED = """\
for epoch in range(3):
    record_epoch(epoch)
    it = iter(data)
    for i, (x, *y) in enumerate(it):
        z = f(x)
        with lock:
            w = [v for v in z]
        execute = record_batch(i)
        if not execute:
            continue
        u = step(z)
    while True:
        q = next(it)
        record_batch()
record_batch()
"""


@pytest.mark.parametrize(
    ("line", "names"),
    [(2, ("epoch",)), (8, ("i", "x", "y", "z", "w")), (14, ("q",)), (15, ()), (99, ())],
)
def test_the_names_loaded_before_a_probe_by_hand_are_those_bound_since_the_head(
    tmp_path: Path, line: int, names: tuple[str, ...]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROBED)

    assert names_loaded_before(str(path), line) == names


@pytest.mark.parametrize("source", [b"for\n", b"x = '\0'\n", b""])
def test_a_source_that_does_not_parse_has_no_names_before_a_probe(tmp_path: Path, source: bytes) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(source)
    linecache.checkcache()

    assert names_loaded_before(str(path), 1) == ()
    assert names_loaded_before(str(tmp_path / "missing.py"), 1) == ()
