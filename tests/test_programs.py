"""The corpus of training programs: what its marks say fits the programs."""

from __future__ import annotations

import ast

from tests.programs_marks import LOOPS, MARK, PROGRAMS, marks, phases, programs, sources


def test_every_mark_is_on_a_loop_header_or_on_a_statement_of_a_marked_batch_loop() -> None:
    corpus = programs()
    assert len(corpus) >= 30
    table = (PROGRAMS / "README.md").read_text(encoding="utf-8")
    for path in corpus:
        files = {source.relative_to(path if path.is_dir() else path.parent).as_posix(): source for source in sources(path)}
        texts = {name: source.read_text(encoding="utf-8") for name, source in files.items()}
        nodes = {(name, node) for name, text in texts.items() for node in ast.walk(ast.parse(text))}
        bodies = {  # of each loop, the lines on which statements of its body start
            (name, loop.lineno): {s.lineno for part in loop.body for s in ast.walk(part) if isinstance(s, ast.stmt)}
            for name, loop in nodes
            if isinstance(loop, LOOPS)
        }
        found = marks(path)

        assert f"`{path.name}`" in table, path.name
        assert 15 <= sum(len(text.splitlines()) for text in texts.values()) <= 60, path.name
        assert sum(bool(MARK.search(line)) for text in texts.values() for line in text.splitlines()) == len({m[1:] for m in found})
        assert len(set(found)) == len(found), path.name
        for mark in found:
            where = (path.name, *mark)
            if mark.role.endswith("loop"):
                assert mark[1:] in bodies, where
            else:
                assert any(b.role == "batch loop" and b.file == mark.file and mark.line in bodies[b[1:]] for b in found), where
        pairs = phases(path)
        assert {p.batch for p in pairs} == {m for m in found if m.role == "batch loop"}, path.name
        assert {p.epoch for p in pairs if p.epoch} == {m for m in found if m.role == "epoch loop"}, path.name
        for batch in (p.batch for p in pairs):
            assert any(m.role == "update" and m.file == batch.file and m.line in bodies[batch[1:]] for m in found), path.name
