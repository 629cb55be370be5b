"""The profile of a program that is run: counts against those of its layers by hand; trials that are drawn from it fire.

In processes, as a user's: the profile is of what the program does there, and trials start from its golden run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detrain.campaign.batch_of_trials import run_together
from detrain.campaign.subject import Subject
from detrain.faults.population.frame import Selection
from detrain.faults.population.groups import SASSIFI_MODELS, Group
from detrain.faults.population.plan import sampled_plan
from detrain.faults.population.profile import read_profile
from detrain.launcher.program import Program
from tests.e2e.runs import detrain

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=5, shuffle=True)
for epoch in range(2):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
BATCHES = (5, 5, 2)
PARAMETERS = 6 * 3 + 3


def test_a_profile_counts_what_the_layers_compute_and_its_trials_fire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = detrain("profile", "--out", "profile.json", "--json", "train.py", cwd=tmp_path).ok()
    found = {each["group"]: each for each in json.loads(done.out)["totals"]}
    profile = read_profile(tmp_path / "profile.json")

    # addmm gives batch × 3, the gradient of the weight 3 × 6, in each step.
    assert found[Group.FFMA_OP]["in_all"] == 2 * (3 * sum(BATCHES) + 18 * len(BATCHES))
    # The gradient of the bias has 3; the update is one addition in the first step (its momentum is a copy), then three.
    assert found[Group.FADD_FMUL_OP]["in_all"] == 6 * 3 + PARAMETERS + 5 * 3 * PARAMETERS
    assert found[Group.STORE_OP]["in_all"] == PARAMETERS + 5 * 3 * PARAMETERS
    assert [kind.steps for kind in profile.kinds] == [1, 3, 2]

    monkeypatch.chdir(tmp_path)
    subject = Subject(Program.find("train.py", is_module=False), (), Path("ckpt"))
    golden = subject.whole()
    for choice in (Selection(models=SASSIFI_MODELS), Selection(modes=("IOA",), models=("FLIP:1", "ADJ:2"), groups=("GPR",))):
        plan = sampled_plan(profile, choice, 16, after=1)
        trials = {number: plan.trial(number) for number in range(plan.count)}
        # What stays in one process today: a step that is neither an epoch's first nor its last.
        inner = {number: experiment for number, (_, experiment) in trials.items() if experiment.at[2] == 1}
        results = dict(run_together(subject, inner, golden))
        assert len(results) == len(inner) >= 2
        for number, result in results.items():
            fired, drawn = result.fired, inner[number].injection
            assert fired is not None
            assert drawn is not None
            assert fired.count == 1
            if choice.modes == ("IOA",):
                half = len(fired.golden) // 2
                landed = int(drawn.array("positions")[0] == trials[number][0].position)  # the other one of the two
                meant = fired.golden[(1 - landed) * half :][:half]
                assert fired.injected[landed * half :][:half] == meant
                assert set(fired.injected[(1 - landed) * half :][:half]) == {0}


FILLS_A_BUFFER = """
import random
import torch
torch.manual_seed(0)
random.seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
memory = []
for episode in range(5):
    for step in range(4):
        memory.append([random.random() for _ in range(3)])
        if len(memory) > 6:
            rows = torch.tensor(random.sample(memory, 5))
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
"""Its first six steps do not train."""


def test_steps_that_fill_a_buffer_are_not_taken_for_those_that_train(tmp_path: Path) -> None:
    """`random` found no site in the first step; a profile took all steps for steps like the second, which has none."""
    (tmp_path / "train.py").write_text(FILLS_A_BUFFER)
    none = detrain("sites", "train.py", cwd=tmp_path)
    done = detrain("profile", "--json", "train.py", cwd=tmp_path).ok()
    found = {each["group"]: each for each in json.loads(done.out)["totals"]}
    trials = json.loads(detrain("random", "-n", "4", "--after", "2", "--json", "train.py", cwd=tmp_path).ok().out)

    assert "the step runs none" in none.err
    assert found[Group.FFMA_OP]["in_all"] == 14 * (5 * 2 + 2 * 3)  # the outputs of addmm, and the gradient of the weight
    assert len(trials) == 4
    assert all(tuple(trial["experiment"]["at"]) >= (0, 1, 2) for trial in trials)
