"""Trials that end early: their rows are those that they would have had, and none ends early that goes on otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from detrain.campaign.engine.ledger import Ledgers
from detrain.campaign.trial_log import read_log
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import VARIABLE, Experiment, Injection
from detrain.faults.models import model_named
from detrain.faults.population.trial_row import TrialRow
from detrain.faults.sites import Site
from tests.e2e.forkserver import Server
from tests.e2e.runs import detrain
from tests.e2e.test_together import COUNTS, EAGER

TORCH = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(40, 12, generator=generator), torch.randint(0, 3, (40,), generator=generator))
loader = DataLoader(data, 8, shuffle=True)
net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)
most = 0.0
for epoch in range(int(sys.argv[1])):
    for x, y in loader:
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + most / 100)
        optimizer.step()
        most += round(float(out.detach().square().sum()), 1)  # Python state alone, which the next step takes
        print(epoch, loss.item())
    with torch.no_grad():
        accuracy = float((net(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean())
    print(epoch, accuracy)
"""


def rows_of(folder: Path, *options: str) -> list[TrialRow]:
    done = detrain("campaign", "run", "--json", "--workers", "1", *options, "program.py", "2", cwd=folder).ok()
    assert "in a process of its own" not in done.err
    ledger = next(folder.glob("ckpt/*/*/campaign-campaign/ledger"))
    rows = list(Ledgers(ledger, json.loads(done.out)["plan"]).rows())
    ledger.rename(folder / ("early" if not options else "whole"))
    return rows


def same_rows(folder: Path, text: str, *options: object) -> tuple[list[TrialRow], list[TrialRow]]:
    """Return rows of trials that may end early, and of such that do not: of one campaign, and the same ones."""
    (folder / "program.py").write_text(text)
    detrain("campaign", "plan", *options, "program.py", "2", cwd=folder).ok()
    early, whole = rows_of(folder), rows_of(folder, "--no-early-end")

    assert [row.timeless() for row in early] == [row.timeless() for row in whole]
    assert {row.early_after for row in whole} == {-1}
    assert all(row.is_equal and row.equal_after == 1 for row in early if row.early_after >= 0)
    return early, whole


AT = (0, 0, 1)


def experiments(server: Server, folder: Path, *plans: Experiment) -> None:
    """Run experiments one after another in one process of the program."""
    logged = [msgspec.structs.replace(plan, log=str(folder / f"log-{number}")) for number, plan in enumerate(plans)]
    (folder / "plan.json").write_bytes(msgspec.json.encode(logged))
    options = ("--ckpt", folder / "ckpt", "--every", "1000000", "--seed", "0", "--fresh")
    server.detrain("run", *options, "program.py", "2", cwd=folder, **{VARIABLE: str(folder / "plan.json")}).ok()


def trial(injection: Injection) -> Experiment:
    return Experiment(log="", injection=injection, at=AT, count=3, ends_with_loop=True, digests_every=10)


def test_a_trial_ends_where_the_whole_state_is_equal_and_not_where_variables_alone_are(
    torch_server: Server, tmp_path: Path
) -> None:
    """One process does what is looked at: a step without a fault, a fault that changes nothing, one whose step leaves
    the loss alone changed, and one in what Python adds up alone.
    """
    (tmp_path / "program.py").write_text(TORCH)
    experiments(torch_server, tmp_path, Experiment(log="", is_profile=True, at=AT))
    sites = read_log(tmp_path / "log-0").sites
    (tmp_path / "log-0").unlink()

    def fault(op: str, model: str) -> Injection:
        site: Site = next(site for site in sites if site.op == op and (op != "sum" or not site.operands["output"].shape))
        return draw_injection(site, model_named(model), 0, np.random.default_rng(0))

    nothing = fault("sum", "SET:1000")
    nothing = msgspec.structs.replace(nothing, keep=b"\xff" * len(nothing.keep), flip=bytes(len(nothing.flip)))
    plain = Experiment(log="", at=AT, count=1)
    faults = [nothing, fault("nll_loss_forward", "SET:1000"), fault("sum", "SET:1000"), fault("addmm", "SET:1000")]
    experiments(torch_server, tmp_path, plain, *map(trial, faults), Experiment(log="", at=AT, count=3))

    reference, *done, closing = (read_log(tmp_path / f"log-{number}") for number in range(6))
    behind = [each.by_cursor()[AT] for each in done]
    golden = closing.by_cursor()
    assert reference.by_cursor()[AT] == golden[AT] == behind[0]
    assert [each.end for each in done] == ["equal", "equal", "until", "until"]
    assert [each.state == golden[AT].state for each in behind] == [True, True, True, False]
    last = (0, 0, 3)
    assert done[2].by_cursor()[last].state not in ("", golden[last].state)  # it would have gone on otherwise


@pytest.mark.slow
@pytest.mark.parametrize("text", [COUNTS, EAGER, TORCH], ids=["TensorFlow", "eager TensorFlow", "PyTorch"])
@pytest.mark.parametrize("options", [("--after", 12), ("--after", 4, "--mode", "RF")], ids=["over epochs", "memory"])
def test_the_rows_are_the_same_over_the_ends_of_epochs(text: str, options: tuple[object, ...], tmp_path: Path) -> None:
    pytest.importorskip("torch" if text is TORCH else "tensorflow")

    early, _ = same_rows(tmp_path, text, "-n", 150, *options)

    assert any(row.early_after >= 0 for row in early)
