"""Checkpoints whose graph of Python objects somebody has written who knows the format: all digests right. Each is one
clear error; nothing is run, nothing changed.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detrain.base.cursor import Cursor
from detrain.base.errors import CheckpointDamaged, Diverged
from detrain.store import Catalogue, read
from tests.e2e.runs import Run, ran

PROGRAM = """
import sys
import torch
class Own:
    pass
own = Own()
own.n, own.seen = 0, []
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], 1.0)
for epoch in range(4):
    for turn in range(3):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
        own.n += 1
        own.seen.append(turn)
    print(epoch, own.n, weight.item(), flush=True)
"""

Nodes = list[list[Any]]


def _deep(nodes: Nodes, own: int) -> None:
    first = len(nodes)
    nodes += [["list", None, [[first + level + 1]], [], None] for level in range(10_000)] + [["list", None, [], [], None]]
    nodes[own][3].append(["deep", [first]])


def _put(*node: Any) -> Callable[[Nodes, int], None]:
    def put(nodes: Nodes, own: int) -> None:
        nodes[own] = list(node)

    return put


def _class(nodes: Nodes, own: int) -> None:
    nodes[own][1][0] = "__main__:Gone"


def _reference(nodes: Nodes, own: int) -> None:
    nodes[own][3][0][1] = [99_999]


FORGED: dict[str, tuple[Callable[[Nodes, int], None], type[Exception], str]] = {
    "a class that the process has not": (_class, Diverged, "own: class '__main__:Gone' is not there"),
    "a constructor that is not on the list": (
        _put("os.system", None, ["touch run"], [], None),
        Diverged,
        "own: this Python cannot make os.system",
    ),
    "a function of Python": (_put("static", "os:system", [], [], None), Diverged, "own"),
    "data of another form": (_put("object", None, [], [], None), CheckpointDamaged, "('object') has data of another form: None"),
    "a node of another form": (_put("object", 5, [7], "x", None), CheckpointDamaged, "cannot be read: Expected `array`, got `str`"),
    "an unknown kind": (_put("reduce", "os:system", [], [], None), CheckpointDamaged, "('reduce') is of an unknown kind"),
    "a way that leads nowhere": (_reference, CheckpointDamaged, "leads to [99999], which is not there"),
    "a tuple in itself": (
        lambda nodes, own: nodes.__setitem__(own, ["tuple", None, [[own]], [], None]),
        CheckpointDamaged,
        "own is nested too deeply, or lies in itself",
    ),
    "a value of itself": (
        lambda nodes, own: nodes.__setitem__(own, ["fractions.Fraction", None, [[own], [own]], [], None]),
        CheckpointDamaged,
        "own is nested too deeply, or lies in itself",
    ),
    "a depth of 10,000": (_deep, CheckpointDamaged, "own is nested too deeply, or lies in itself"),
}


def forge(home: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Let the newest checkpoint have another graph, with right digests."""
    path = max((home / "ckpt").glob("*-e00003-*.h5"))
    snapshot = read(path)
    graph = msgspec.msgpack.decode(snapshot.python)
    change(graph)
    forged = dataclasses.replace(
        snapshot, python=msgspec.msgpack.encode(graph), arrays=dict(snapshot.arrays), tensors=dict(snapshot.tensors)
    )
    path.unlink()
    Catalogue(home / "ckpt").save("program", 1, Cursor(0, 3, 0, "epoch"), forged)


@pytest.fixture(scope="module")
def trained(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that ended at its last but one epoch."""
    home = tmp_path_factory.mktemp("trained")
    assert ran(server, home, PROGRAM, "--keep", "9").status == 0
    for path in (home / "ckpt").glob("*-e00004-*"):
        path.unlink()
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def detrain(server: Any) -> Run:
    run: Run = server.detrain
    return run


def test_a_graph_that_is_written_as_it_was_is_gone_on_from(home: Path, detrain: Run) -> None:
    forge(home, lambda _: None)
    assert detrain("run", "program.py", cwd=home).out == "3 12 -12.0\n"


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_node_is_one_clear_error(name: str, home: Path, detrain: Run) -> None:
    change, error, said = FORGED[name]

    def in_place_of_own(graph: dict[str, Any]) -> None:
        nodes = graph["nodes"]
        change(nodes, next(n for n, node in enumerate(nodes) if node[0] == "object" and node[1][0] == "__main__:Own"))

    forge(home, in_place_of_own)
    before = {path.name: path.read_bytes() for path in (home / "ckpt").glob("*.h5")}
    run = detrain("run", "program.py", cwd=home)

    assert (run.status, run.out) == (error.exit_code, ""), run.err  # type: ignore[attr-defined]
    assert said in run.err
    assert "Traceback" not in run.err
    assert not (home / "run").exists()
    assert {path.name: path.read_bytes() for path in (home / "ckpt").glob("*.h5")} == before


@pytest.mark.parametrize("root", ["module|sys|path", "attributes|__main__|sys|path", "module|torch.serialization|LOADS"])
def test_a_file_gives_nothing_of_python_or_a_library_another_value(root: str, home: Path, detrain: Run) -> None:
    """It could name folders from which Python imports."""

    def named(graph: dict[str, Any]) -> None:
        graph["nodes"].append(["list", None, ["/tmp/evil"], [], None])
        graph["roots"][root] = [len(graph["nodes"]) - 1]

    forge(home, named)
    run = detrain("run", "program.py", cwd=home)
    assert (run.status, run.out) == (Diverged.exit_code, ""), run.err


@pytest.mark.parametrize("command", ["run program.py", "ckpt show NEWEST", "ckpt export --to npz NEWEST"])
def test_a_later_format_is_one_clear_error(command: str, home: Path, detrain: Run) -> None:
    forge(home, lambda graph: graph.update(format=9))
    newest = str(max((home / "ckpt").glob("*.h5")))
    run = detrain(*command.replace("NEWEST", newest).split(), cwd=home)

    assert run.status == CheckpointDamaged.exit_code, run.err
    assert "it is of format 9; this detrain reads up to 4" in run.err
