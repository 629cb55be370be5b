"""A checkpoint whose tensors were on a card, resumed where there is none. There is none here: the record of a real run
is changed to what a run on a card would have written.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from detrain.base import errors
from detrain.store import Snapshot, read, write
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.refused import assert_refused
from tests.e2e.runs import ran

# A command is what is tested, so each case takes processes.
PROGRAM = DIE("""\
import torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
place = torch.device(device)
net = nn.Linear(3, 1).to(place)
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for epoch in range(3):
    for batch in range(5):
        die(f"{epoch}:{batch}")
        rows = torch.randn(4, 3).to(device)
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()
    print(epoch, net.weight.tolist())
""")
ALLOWED = ("--allow-environment", "--map-device", "cpu")


@pytest.fixture
def home(tmp_path: Path, torch_server: Server) -> Path:
    """A folder with the program and checkpoints that seem to be of a run on a card, killed in its second epoch."""
    assert ran(torch_server, tmp_path, PROGRAM, DIE_AT="1:3").status == -9
    for path in sorted((tmp_path / "ckpt").glob("*.h5")):
        _as_on_a_card(path)
    return tmp_path


def _as_on_a_card(path: Path) -> None:
    snapshot = read(path)
    graph = msgspec.msgpack.decode(snapshot.python)
    for node in graph["nodes"]:
        if node[0] == "shared":
            node[1][1][2] = "cuda:0"
        elif node[0] == "torch.device":
            node[2] = ["cuda:0"]
    roots = {name: "cuda" if item == "cpu" else item for name, item in graph["roots"].items()}
    assert "cuda" in roots.values()
    state = {**msgspec.json.decode(snapshot.meta.frameworks["torch"]), "devices": ["cuda:0"]}
    meta = msgspec.structs.replace(
        snapshot.meta,
        environment={**snapshot.meta.environment, "torch devices": "NVIDIA H100", "torch cuda": "12.8 cudnn 91002"},
        frameworks={"torch": msgspec.Raw(msgspec.json.encode(state))},
    )
    path.with_name("program-r1.manifest").unlink(missing_ok=True)  # it would tell that this is not the file that was written
    path.unlink()
    rng = {**snapshot.rng, "torch.cuda": b"\x10\0\0\0" + bytes(16)}
    python = msgspec.msgpack.encode({**graph, "roots": roots})
    write(path, Snapshot(meta, snapshot.tensors, rng, python, snapshot.arrays))


@pytest.mark.parametrize("allowed", [(), ("--allow-environment",)])
def test_it_is_refused_before_the_program_asks_for_the_card(allowed: tuple[str, ...], home: Path, torch_server: Server) -> None:
    run = torch_server.detrain("run", *allowed, "program.py", cwd=home)

    assert_refused(run, errors.EnvironmentChanged, "tensors on cuda:0", "--allow-environment --map-device cpu")
    assert run.out == ""


def test_it_goes_on_on_the_cpu_where_that_is_allowed(home: Path, torch_server: Server) -> None:
    run = torch_server.detrain("run", *ALLOWED, "program.py", cwd=home).ok()

    assert "what was on cuda:0 goes on on the CPU" in run.err
    assert "other bits" in run.err
    assert "CUDA's random streams are left out" in run.err
    whole = torch_server.bare("program.py", cwd=home)
    assert run.out.splitlines() == whole.out.splitlines()[1:], "it was a CPU that computed what the record says of a card"

    again = torch_server.detrain("run", "program.py", cwd=home)
    assert again.status == 0, "what it has saved is of the CPU"


def test_a_checkpoint_of_the_cpu_stays_as_it_is(tmp_path: Path, torch_server: Server) -> None:
    assert ran(torch_server, tmp_path, PROGRAM, DIE_AT="1:3").status == -9

    run = torch_server.detrain("run", *ALLOWED, "program.py", cwd=tmp_path).ok()

    assert "nothing is moved" in run.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--map-device", "cpu"), "without --allow-environment"),
        (("--allow-environment", "--map-device", "cuda:1"), "--map-device cuda:1"),
    ],
)
def test_the_option_alone_or_with_another_device_is_refused(
    options: tuple[str, ...], said: str, tmp_path: Path, torch_server: Server
) -> None:
    run = ran(torch_server, tmp_path, PROGRAM, *options)

    assert_refused(run, errors.UsageError, said)
    assert run.out == ""
