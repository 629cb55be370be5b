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
        ("walk = lambda items: list(items)\nwalk(active)", "active"),
        ("nn.utils.clip_grad_norm_(self.active, 1.0)", "agent.active"),
        ("random.choices(population=tuple(active))", "active"),
        ("print(active)", "active"),
        ("def update(self, items):\n    for each in items: pass\nagent.update(active)", "active"),
        ("class Group(Library): pass\nGroup(active)", "active"),
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
        "seen.append(active)",
        "other.update(active)",
        "def visit(x, seen): return x in seen\nvisit(x, active)",
        "class Group:\n    def __init__(self, members): self.size = len(members)\nGroup(active)",
        "@dataclass\nclass Group:\n    members: set\nGroup(members=active)",
    ],
)
def test_a_set_that_is_only_asked_what_is_in_it(source: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(source)

    assert not is_gone_over("agent.active", [str(tmp_path / "program.py")])


def test_a_function_of_another_file_is_the_programs_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("from tools import visit\nvisit(x, active)\nshow(rows)")
    (tmp_path / "tools.py").write_text("def visit(x, seen):\n    return x in seen\ndef show(items): return [*items]")
    files = [str(tmp_path / name) for name in ("program.py", "tools.py")]

    assert not is_gone_over("active", files)
    assert is_gone_over("rows", files)
