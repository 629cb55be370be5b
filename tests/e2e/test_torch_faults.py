"""Faults in whole PyTorch programs: the injected run is the program with the value put in by hand, and replays; what
cannot be is refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.runs import EXAMPLES, ORACLES, detrain, environment, injected, weights

pytest.importorskip("torch")

pytestmark = pytest.mark.slow  # each command starts several processes, as a user's does

PROGRAM = """
import hashlib, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Put(torch.autograd.Function):
    @staticmethod
    def forward(context, value, position, bits):
        value = value.clone()
        value[position] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
        return value

    @staticmethod
    def backward(context, gradient):
        return gradient, None, None

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2))
        self.head = nn.Linear(96, 3)
        self.hand = None

    def forward(self, images):
        first, *rest = self.body
        images = first(images)
        if self.hand is not None:
            images = Put.apply(images, *self.hand)
        for layer in rest:
            images = layer(images)
        return self.head(images)

def main(kind, hand=None):
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(40, 2, 6, 6, generator=generator), torch.randint(0, 3, (40,), generator=generator))
    loader = DataLoader(data, 8, shuffle=True)
    net = Net()
    if kind == "sgd":
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), 0.01, foreach=kind == "foreach")
    backend = {"compiled": "inductor", "aot": "aot_eager", "graph": "eager"}.get(kind)
    step = torch.compile(net, backend=backend) if backend else net
    for epoch in range(3):
        for batch, (images, labels) in enumerate(loader):
            net.hand = hand[2:] if hand is not None and (epoch, batch) == hand[:2] else None
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(step(images), labels)
            if kind == "prod":
                loss = loss + (net.head.weight + 1).prod(1).sum() * 0.1
            loss.backward()
            optimizer.step()
    held = [*net.state_dict().values(), *(each for state in optimizer.state.values() for each in state.values())]
    print("weights", hashlib.sha256(b"".join(value.numpy().tobytes() for value in held)).hexdigest())

if __name__ == "__main__":
    main(sys.argv[1], eval(sys.argv[2]) if len(sys.argv) > 2 else None)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def bare(folder: Path, *arguments: str) -> list[str]:
    """Return what the program says by itself."""
    command = [sys.executable, "-c", ORACLES["torch"], str(folder / "program.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(), cwd=folder)
    return weights(done.stdout)


@pytest.mark.parametrize(("kind", "at"), [("sgd", (1, 3)), ("foreach", (2, 0)), ("for", (0, 2)), ("aot", (2, 0))])
def test_an_injected_run_is_the_program_with_the_value_put_in_by_hand(folder: Path, kind: str, at: tuple[int, int]) -> None:
    where = ("--model", "RD", "--site", "net.body.0", "--stage", "forward", "--at", f"{at[0]}:{at[1]}", "--seed", 5)
    record, said = injected(folder, *where, "program.py", kind)
    element = record["elements"][0]
    pattern = int(element["injected"], 16)
    hand = (*at, tuple(element["position"]), pattern - (1 << 32) * (pattern >> 31))

    assert said[0] == bare(folder, kind)[0], "the golden run is another than the bare program"
    assert said[-1] == bare(folder, kind, repr(hand))[0]
    assert said[-1] != said[0]

    replay = detrain("replay", "record.json", "program.py", kind, cwd=folder).ok()
    assert replay.out.startswith("IDENTICAL")


BY_HAND = """
            if hand is not None and (epoch, batch) == hand[:2]:
                with torch.no_grad():
                    target = eval(hand[2], {"net": net, "slots": list(optimizer.state.values())})
                    target[hand[3]] = torch.tensor(hand[4], dtype=torch.int32).view(torch.float32)
"""


@pytest.mark.parametrize(
    ("site", "way", "at"),
    [
        ("net.head.weight", "net.head.weight", (1, 0)),
        ("net.body.1.running_var", "net.body[1].running_var", (2, 4)),
        ("optimizer.state.4.exp_avg_sq", "slots[4]['exp_avg_sq']", (0, 3)),
    ],
)
def test_bits_of_memory_are_the_programs_own_line_that_writes_them(folder: Path, site: str, way: str, at: tuple[int, int]) -> None:
    """In the state before a step, whatever it is: a weight, a statistic, a slot."""
    text = PROGRAM.replace("net.hand = hand[2:] if hand is not None and (epoch, batch) == hand[:2] else None", "pass")
    (folder / "program.py").write_text(text)
    model = ("--model", "BIT:29", "--stage", "memory", "--site", f"memory/{site}", "--at", f"{at[0]}:{at[1]}", "--seed", 3)
    record, said = injected(folder, *model, "program.py", "foreach")
    replay = detrain("replay", "record.json", "program.py", "foreach", cwd=folder)
    assert replay.out.startswith("IDENTICAL"), replay.err

    element = record["elements"][0]
    pattern = int(element["injected"], 16)
    assert pattern == int(element["golden"], 16) ^ 1 << 29
    (folder / "program.py").write_text(text.replace("            pass\n", BY_HAND))
    hand = (*at, way, tuple(element["position"]), pattern - (1 << 32) * (pattern >> 31))
    assert said[-1] == bare(folder, "foreach", repr(hand))[0]
    assert said[-1] != said[0]


def test_memory_that_is_not_there_yet_cannot_be_hit(folder: Path) -> None:
    where = ("--site", "memory/optimizer.state.4.exp_avg", "--at", "0:0")
    run = detrain("inject", "--model", "FLIP:1", *where, "program.py", "foreach", cwd=folder)
    assert run.status == 92, run.err
    assert "is not there as float32[3, 96]" in run.err
    assert "an optimizer makes its slots in the first step" in run.err


def test_a_fault_in_a_weight_leaves_the_weight_as_it_is(folder: Path) -> None:
    """Nothing follows but by the gradient: where the learning rate is 0, no weight changes."""
    (folder / "program.py").write_text(PROGRAM.replace("0.1, momentum=0.9", "0.0"))
    record, said = injected(folder, "--model", "WT", "--site", "net.head", "--stage", "forward", "--at", "1:1", "program.py", "sgd")
    assert record["fired"] == 1
    assert len(set(said)) == 1


def test_sites_are_the_same_in_two_processes(folder: Path) -> None:
    found = [detrain("sites", "--all", "--json", "--ckpt", home, "program.py", "foreach", cwd=folder) for home in ("a", "b")]
    assert found[0].status == 0, found[0].err
    assert found[0].out == found[1].out
    stages = {site["stage"] for site in json.loads(found[0].out)}
    assert stages == {"forward", "backward", "optimizer"}


def test_where_the_site_alone_changes_bits_of_a_compiled_graph_the_golden_run_has_it(folder: Path) -> None:
    """Inductor lays the images out in another way where the convolution stands apart."""
    where = ("--model", "RD", "--site", "net.body.0", "--stage", "forward", "--at", "1:3", "--seed", 5)
    record, said = injected(folder, *where, "program.py", "compiled")

    assert said[0] == bare(folder, "compiled")[0]
    assert record["is_unarmed_equal"] is False
    assert len(set(said)) == 3  # the program, the fault, the site without it

    replay = detrain("replay", "record.json", "program.py", "compiled", cwd=folder).ok()
    assert replay.out.startswith("IDENTICAL")


@pytest.mark.parametrize("kind", ["for", "compiled"])
@pytest.mark.parametrize("what", [(), ("--stage", "memory", "--models", "FLIP:1")], ids=["ops", "memory"])
def test_trials_in_one_process_are_those_of_a_process_each(folder: Path, what: tuple[str, ...], kind: str) -> None:
    for engine in ("auto", "process"):
        drawn = ("random", "-n", 6, "--seed", 2, "--after", 2, *what, "--engine", engine, "--out", engine)
        run = detrain(*drawn, "program.py", kind, cwd=folder)
        assert run.status == 0, run.err
        assert "each further trial" not in run.err
    names = sorted(path.name for path in (folder / "auto").glob("*.json"))
    assert len(names) == 6
    for name in names:
        assert (folder / "auto" / name).read_bytes() == (folder / "process" / name).read_bytes()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("graph", "its backend (eager) is given no graph of ops by AOTAutograd"),
        ("prod", "step 0:0 gives other bits while its ops are watched"),
    ],
)
def test_what_cannot_be_told_from_a_fault_is_refused(folder: Path, kind: str, why: str) -> None:
    run = detrain("inject", "--model", "RD", "--site", "net.head", "--at", "1:1", "program.py", kind, cwd=folder)
    assert run.status == 82, run.err
    assert why in run.err.replace(f"{os.path.realpath(folder)}/", "")


@pytest.mark.parametrize(("kind", "op"), [("sgd", "forward/net.body.0/convolution"), ("aot", "forward/net/graph:")])
def test_the_first_op_in_which_two_runs_part_is_named(folder: Path, kind: str, op: str) -> None:
    (folder / "program.py").write_text(PROGRAM.replace("torch.randn(40, 2, 6, 6, generator=generator)", "IMAGES"))
    images = "import torch\nIMAGES = torch.arange(2880.0).reshape(40, 2, 6, 6).remainder(7)\n"
    (folder / "program.py").write_text(images + (folder / "program.py").read_text())
    said = []
    for home, most in (("a", "DEFAULT"), ("b", "SSE41")):
        run = detrain("run", "--ckpt", home, "program.py", kind, cwd=folder, ONEDNN_MAX_CPU_ISA=most)
        assert run.status == 0, run.err
        said += weights(run.out)
    if len(set(said)) == 1:
        pytest.skip("this processor has no other instructions than those")
    run = detrain("diff", "--bisect", "a", "b", "program.py", kind, cwd=folder)
    assert f"they part in step 0:0, at {op}" in run.out, run.out + run.err
    assert ": all that it depends on is equal" in run.out


def test_the_example(tmp_path: Path) -> None:
    program = (EXAMPLES / "digits" / "torch_train.py", "--epochs", 2)
    sites = detrain("sites", "--match", "model.4", *program, cwd=tmp_path)
    assert "backward/model.4/convolution_backward:1" in sites.out, sites.err
    options = ("--model", "N64_INPUT_16", "--site", "model.4_grad_wt", "--at", "1:4", "--until", "+3", "--out", "record.json")
    assert detrain("inject", *options, *program, cwd=tmp_path).status == 0
    assert detrain("replay", "record.json", *program, cwd=tmp_path).out.startswith("IDENTICAL")
    detrain("random", "-n", 6, "--after", 3, *program, cwd=tmp_path).ok()
    assert len(list(tmp_path.glob("ckpt/*.faults/*/random-0/trial-*.json"))) == 6


LEFT = """
import torch
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)

for epoch in range(2):
    for number in range(9):
        images = torch.randn(6, 3)
        scores, labels = net(images), (images[:, 0] > 0).long()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
        accuracy = (scores.argmax(1) == labels).float().mean().item()
        print("step", accuracy)
        if number == 3:
            break
"""


ALONE = LEFT.replace("for epoch in range(2):", "if True:")
IN_A_FUNCTION = LEFT.replace("for epoch", "def main():\n  for epoch").replace("\n    ", "\n      ").replace("break", "return")


@pytest.mark.parametrize("text", [LEFT, ALONE, f"{IN_A_FUNCTION}\nmain()\n"], ids=["epochs", "alone", "function"])
def test_the_last_step_of_a_loop_that_is_left_has_its_accuracy(text: str, tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text(text)
    options = ("--model", "BIT:30", "--site", "forward/net/addmm", "--at", "0:1", "--out", "record.json")
    run = detrain("inject", *options, "left.py", cwd=tmp_path)
    assert run.status == 0, run.err
    record = json.loads((tmp_path / "record.json").read_text())
    said = [float(line.split()[1]) for line in run.out.splitlines() if line.startswith("step ") and len(line.split()) == 2]
    found = [step["series"].get("accuracy") for step in record["steps"] if step["at"][2] >= 0]
    assert found == said[-len(found) :]
    assert "no accuracy" not in record["outcome"]
