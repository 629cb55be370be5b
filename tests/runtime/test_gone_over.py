"""What a source goes over: the order of a set of objects matters there."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.python.inspect.code_reads import is_gone_over


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("for each in active: pass", "active"),
        ("total = sum(self.active)", "agent.active"),
        ("found = [each.x for each in self.active]", "agent.active"),
        ("first = next(iter(active))", "active in main()"),
        ("first = active.pop()", "active"),
        ("f(*active)", "active"),
        ("for each in set(active): active.discard(each)", "active"),
        ("for each in copy.copy(self.active): pass", "agent.active"),
        ("best = max(self.active, key=score)", "agent.active"),
        ("rows.extend(active)", "active"),
        ("rows += active", "active"),
        ("one, other = active", "active"),
        ("def go():\n    yield from active", "active"),
        ("for each in itertools.chain(active, rest): pass", "active"),
        ("for each in self.by_kind['a'].copy(): pass", "agent.by_kind['a']"),
        ("for each in old | new: pass", "new"),
        ("now = self.active\nfor each in now: pass", "agent.active"),
        ("def walk(items):\n    for each in items: pass\nwalk(active)", "active"),
    ],
)
def test_a_set_that_is_gone_over(source: str, path: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(source)

    assert is_gone_over(path, [str(tmp_path / "program.py")])


@pytest.mark.parametrize(
    "source",
    [
        "found = x in active",
        "active.add(x)",
        "for each in sorted(active, key=name): pass",
        "count = len(active)",
        "kept = active - other",
        "now = set(active)",
        "for each in sorted(set(active), key=name): pass",
        "a, b = len(active), 2",
        "active.discard(x)",
        "for each in active_list: pass",
        "last = items.pop(3)",
    ],
)
def test_a_set_that_is_only_asked_what_is_in_it(source: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(source)

    assert not is_gone_over("agent.active", [str(tmp_path / "program.py")])
