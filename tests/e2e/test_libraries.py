"""Trainings that a library runs in the program's place, killed and resumed.

A process is what is killed. The libraries are large, and not installed for the tests: with them, run
`./run.sh test tests/e2e/test_libraries.py --slow`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from detrain.base.errors import Diverged, NotCapturable
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.runs import after_deaths, compared, detrain, library, plain

TRAINER = DIE("""
import hashlib
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(3)

class Rows(Dataset):
    def __init__(self):
        self.rows = torch.randint(0, 50, (44, 12))
    def __len__(self):
        return 44
    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}

class Die(TrainerCallback):
    def on_step_begin(self, args, state, control, **_others):
        die(str(state.global_step))

model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
args = TrainingArguments("out", num_train_epochs=3, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    learning_rate=5e-3, report_to=[], use_cpu=True, save_strategy="no", logging_steps=3, disable_tqdm=True, seed=3)
trainer = Trainer(model=model, args=args, train_dataset=Rows(), callbacks=[Die()])
trainer.train()
print([(row["step"], row.get("loss"), row.get("grad_norm")) for row in trainer.state.log_history])
print(hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest())
""")


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "2b"])
def test_a_trainer_of_transformers_killed_mid_epoch_ends_as_one_that_never_was(every: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    program = tmp_path / "program.py"
    program.write_text(TRAINER)
    whole = plain(program, cwd=tmp_path).ok()
    for death in ("9", "15", "") if every == "1" else ("4", "9", "15", ""):
        last = detrain("run", "--every", every, program, cwd=tmp_path, DIE_AT=death)
        assert last.status == (0 if not death else -9), last.err
        assert "REFUSED" not in last.err
    assert f"at 2:{0 if every == '1' else 2}" in last.err
    assert last.out.splitlines()[-2:] == whole.out.splitlines()[-2:]


LIGHTNING = DIE("""
import hashlib, random
import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

MANUAL, WORKERS = "{manual}" == "True", {workers}
L.seed_everything(3)

class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(44, 6)
    def __len__(self):
        return 44
    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(6) + random.random() * 0.01, (self.x[index].sum() > 0).long()

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2))
        self.automatic_optimization = not MANUAL
        self.seen = []
    def training_step(self, batch, index):
        die(str(self.trainer.fit_loop.epoch_loop.total_batch_idx))
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True, on_epoch=True)
        self.seen.append(loss.item())
        if not MANUAL:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
    def validation_step(self, batch, index):
        self.log("val", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]

model, rows = Net(), Rows()
accumulated = 1 if MANUAL else 2
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
model.save_hyperparameters({"workers": WORKERS})
loggers = [CSVLogger("logs"), TensorBoardLogger("boards")]
trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=loggers, log_every_n_steps=2, accumulate_grad_batches=accumulated,
    callbacks=[EarlyStopping("val", patience=3), ModelCheckpoint("out", monitor="val", save_last=True)], val_check_interval=0.5)
trainer.fit(model, DataLoader(rows, 4, shuffle=True, num_workers=WORKERS), DataLoader(rows, 4))
print()
print(sum(model.seen).hex(), len(model.seen), [(key, float(each).hex()) for key, each in trainer.callback_metrics.items()])
print(hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.state_dict().values())).hexdigest())
for root in ("logs", "boards"):
    print([(folder, sorted(name for name in names if "tfevents" not in name)) for folder, _, names in sorted(os.walk(root))])
for path in ("logs/lightning_logs/version_0/metrics.csv", "boards/lightning_logs/version_0/hparams.yaml"):
    print(hashlib.sha256(open(path, "rb").read()).hexdigest())
""")


@pytest.mark.slow
@pytest.mark.parametrize(("manual", "workers", "every"), [(False, 0, "1"), (False, 2, "2b"), (True, 2, "3b")])
def test_a_trainer_of_lightning_killed_mid_epoch_ends_as_one_that_never_was(
    manual: bool, workers: int, every: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    program = tmp_path / "program.py"
    program.write_text(LIGHTNING.replace("{manual}", str(manual)).replace("{workers}", str(workers)))
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = plain(program, cwd=tmp_path / "whole").ok()
    for death in ("14", "25", ""):
        last = detrain("run", "--every", every, program, cwd=tmp_path / "killed", DIE_AT=death)
        assert last.status == (0 if not death else -9), last.err
    assert "resuming" in last.err
    assert "starting again" not in last.err  # its loops are found without a run
    assert last.out.splitlines()[-6:] == whole.out.splitlines()[-6:]


STREAM = DIE("""
import random
import lightning as L
import torch
from torch.utils.data import DataLoader, IterableDataset

L.seed_everything(3)

class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(8):
            yield torch.randn(6) + random.random()

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 2)
    def training_step(self, batch, index):
        die(str(self.trainer.fit_loop.epoch_loop.total_batch_idx))
        return self.net(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

model = Net()
L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False).fit(model, DataLoader(Stream(), 2))
print()
print([float(each).hex() for each in model.net.weight.reshape(-1)])
""")


@pytest.mark.slow
def test_a_stream_that_lightning_draws_from_is_refused_inside_an_epoch_and_that_is_said_beforehand(tmp_path: Path) -> None:
    """Lightning loads ahead where a data set has no length, and a resumed run does not load again what lies before."""
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    program = tmp_path / "program.py"
    program.write_text(STREAM)
    died = detrain("run", "--every", "2b", program, cwd=tmp_path, DIE_AT="3").died()
    assert "a resumed run will be REFUSED from here on" in died.err
    assert "an IterableDataset has no positions" in died.err
    assert detrain("run", "--every", "2b", program, cwd=tmp_path).status == NotCapturable.exit_code

    (tmp_path / "epochs").mkdir()
    for death in ("7", ""):  # which goes back to the epoch's start
        last = detrain("run", "--every", "1", program, cwd=tmp_path / "epochs", DIE_AT=death)
        assert last.status == (0 if not death else -9), last.err
        assert "REFUSED" not in last.err
    assert last.out.splitlines()[-1] == plain(program, cwd=tmp_path).out.splitlines()[-1]


FABRIC = DIE("""
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

L.seed_everything(3)
fabric = L.Fabric(accelerator="cpu")
net = torch.nn.Linear(6, 2)
net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(40, 6)), 4, shuffle=True))
seen = 0
for epoch in range(3):
    for batch, in loader:
        die(str(seen))
        seen += 1
        output = net(batch)  # lives on to the next batch, with a hook of Fabric's
        fabric.backward(output.square().mean())
        optimizer.step()
        optimizer.zero_grad()
print([float(each).hex() for each in net.weight.reshape(-1)])
""")


@pytest.mark.slow
def test_a_program_of_fabric_killed_mid_epoch_ends_as_one_that_never_was(tmp_path: Path) -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    program = tmp_path / "program.py"
    _, last = after_deaths(detrain, tmp_path, FABRIC, at=("7", "25"), every="2b")
    assert last.status == 0, last.err
    assert "resuming" in last.err
    assert last.out.splitlines()[-1] == plain(program, cwd=tmp_path).out.splitlines()[-1]


BASELINES = DIE("""
import hashlib
import gymnasium as gym
from stable_baselines3 import {algorithm}
from stable_baselines3.common.callbacks import BaseCallback

class Die(BaseCallback):
    def _on_step(self):
        die(str(self.n_calls))
        return True

env = gym.make("CartPole-v1")
model = {algorithm}("MlpPolicy", env, seed=3, {arguments})
model.learn(160, callback=Die())
tensors = model.policy.state_dict()
print(hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in tensors)).hexdigest())
""")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "arguments"),
    [
        ("PPO", "n_steps=16, batch_size=8, n_epochs=2"),
        ("DQN", "learning_starts=20, buffer_size=90, batch_size=8, target_update_interval=30"),
    ],
)
def test_an_agent_that_learns_in_stable_baselines_killed_ends_as_one_that_never_was(
    algorithm: str, arguments: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec("stable_baselines3") is None:
        pytest.skip("stable_baselines3 is not installed")
    program = tmp_path / "program.py"
    program.write_text(BASELINES.format(algorithm=algorithm, arguments=arguments))
    for death in ("60", "110", ""):
        last = detrain("run", "--every", "1b", program, cwd=tmp_path, DIE_AT=death)
        assert last.status == (0 if not death else -9), last.err
        assert "not captured" not in last.err
    assert "resuming" in last.err
    assert last.out.splitlines()[-1] == plain(program, cwd=tmp_path).out.splitlines()[-1]


ALGO = """
import threading
import torch
class Algo:
    def __init__(self, model, callback):
        self.thread = threading.Thread()  # stands for what is no data: pipes to environments in other processes
        self.model, self.callbacks, self.place, self.seen = model, {"each": [callback]}, 0, torch.zeros(4, 3)
        self.optimizer = torch.optim.Adam(model.parameters(), 0.01)
        self.update = closure(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    def collect(self):
        self.place += 1
        return torch.randn(4, 3) + self.place
    def collect_by_policy(self):
        with torch.no_grad():
            self.seen = self.seen * 0.5 + torch.randn(4, 3) + self.model(self.seen)
        return self.seen
    def learn(self, rows):
        self.optimizer.zero_grad()
        loss = self.model(rows).square().mean()
        loss.backward()
        self.optimizer.step()
        for callback in self.callbacks["each"]:
            callback(loss.item())
        return {"loss": loss.item()}
def closure(model, optimizer):
    def update(rows):
        optimizer.zero_grad()
        loss = model(rows).abs().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}
    return update
"""
TRAINS = DIE("""
import torch
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import algolib
class Mean:
    value = 0.0
    def __init__(self):
        self.value = 0.0
    def __call__(self, loss):
        self.value = 0.9 * self.value + 0.1 * loss
    def __repr__(self):
        return repr(self.value)
torch.manual_seed(1)
algo = algolib.Algo(torch.nn.Linear(3, 1), Mean())
learn = algo.{learn}
done = 0
{loop}:
    die(str(done))
    rows = {collect}
    logs = learn(rows)
    done += 1
    print(done, logs["loss"], algo.callbacks)
""")


@pytest.mark.parametrize("loop", ["while done < 9", "for turn in range(9)"])
@pytest.mark.parametrize(
    ("collect", "learn"), [("algo.collect()", "learn"), ("torch.randn(4, 3)", "learn"), ("torch.ones(4, 3)", "update")]
)
def test_what_only_a_librarys_object_leads_to_comes_back(
    collect: str, learn: str, loop: str, torch_server: Server, tmp_path: Path
) -> None:
    """It has a thread, so it is not captured as a whole: an optimizer that it made began anew in silence."""
    library(tmp_path, {"algolib.py": ALGO})
    whole, _, last = compared(
        torch_server, tmp_path, TRAINS.format(collect=collect, learn=learn, loop=loop), every="2b", at=("3", "7"), whole="bare"
    )

    assert last.out.splitlines() == whole.out.splitlines()[-len(last.out.splitlines()) :]
    assert len(last.out.splitlines()) < 5


@pytest.mark.parametrize("loop", ["while done < 9", "for turn in range(9)"])
def test_loads_through_an_object_that_holds_what_is_trained_are_named_beforehand(
    loop: str, torch_server: Server, tmp_path: Path
) -> None:
    library(tmp_path, {"algolib.py": ALGO})

    first, second = after_deaths(
        torch_server, tmp_path, TRAINS.format(collect="algo.collect_by_policy()", learn="learn", loop=loop), at="5", every="2b"
    )

    assert "algo: loads move it on, and it holds what bodies train: a run that resumes inside an epoch loads" in first.err
    assert second.status == Diverged.exit_code
    assert "algo.seen" in second.err


IGNITE = """
import hashlib, os
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss, RunningAverage
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(44, 6)
y = (x.sum(1) > 0).long()
train, val = DataLoader(TensorDataset(x, y), 4, shuffle=True), DataLoader(TensorDataset(x[:20], y[:20]), 5)
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
loss_of = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(net, torch.optim.Adam(net.parameters(), 0.01), loss_of)
RunningAverage(output_transform=lambda out: out).attach(trainer, "loss")
evaluator = create_supervised_evaluator(net, metrics={"accuracy": Accuracy(), "nll": Loss(loss_of)})
@trainer.on(Events.ITERATION_STARTED)
def die(engine):
    if os.environ.get("DIE_AT") == str(engine.state.iteration):
        os.kill(os.getpid(), 9)
@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    evaluator.run(val)
    print(engine.state.epoch, engine.state.output, engine.state.metrics, evaluator.state.metrics, flush=True)
trainer.run(train, max_epochs=4)
print(hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in net.parameters())).hexdigest())
"""


FASTAI = """
import hashlib, os
import numpy as np, pandas as pd
from fastai.tabular.all import *
set_seed(3)
rng = np.random.default_rng(0)
rows = pd.DataFrame({"a": rng.normal(size=200), "b": rng.normal(size=200), "c": rng.choice(["x", "y", "z"], 200)})
rows["y"] = np.where(rows.a + (rows.c == "x") > 0.3, "hi", "lo")
dls = TabularDataLoaders.from_df(rows, procs=[Categorify, FillMissing, Normalize], cat_names=["c"], cont_names=["a", "b"],
    y_names="y", bs=16, valid_idx=list(range(160, 200)), num_workers=0)
class Die(Callback):
    def before_batch(self):
        if self.training and os.environ.get("DIE_AT") == str(self.learn.train_iter):
            os.kill(os.getpid(), 9)
class Say(Callback):
    order = 70
    def after_epoch(self):
        print(self.epoch, [float(each) for each in self.recorder.log[1:4]], flush=True)
learn = tabular_learner(dls, n_out=2, layers=[16, 8], metrics=accuracy, cbs=[Die(), Say()])
with learn.no_bar(), learn.no_logging():
    learn.fit_one_cycle(4, 1e-2)
print(hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in learn.model.state_dict().values())).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize(
    ("library", "text", "deaths"),
    [("ignite", IGNITE, ("16", "38")), ("fastai", FASTAI, ("14", "35"))],
    ids=["ignite", "fastai"],
)
def test_the_loop_of_a_library_killed_mid_epoch_ends_as_one_that_never_was(
    library: str, text: str, deaths: tuple[str, ...], every: str, tmp_path: Path
) -> None:
    """ignite's loops are generators, and another engine validates in each epoch; fastai has a loader of its own."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    program = tmp_path / "program.py"
    program.write_text(text)
    whole = plain(program, cwd=tmp_path)
    for death in (*deaths, ""):
        last = detrain("run", "--every", every, program, cwd=tmp_path, DIE_AT=death)
    assert "resuming program at 3:" in last.err
    assert last.out.splitlines() == whole.out.splitlines()[-len(last.out.splitlines()) :]


AVERAGE = """
import copy, torch
class Average:
    def __init__(self, parameters):
        self.shadow, self.steps = [each.clone().detach() for each in parameters], 0
    def state_dict(self):
        return {"shadow": self.shadow, "steps": self.steps}
    def load_state_dict(self, state):
        state = copy.deepcopy(state)
        self.shadow, self.steps = state["shadow"], state["steps"]
    @torch.no_grad()
    def step(self, parameters):
        self.steps += 1
        for mine, theirs in zip(self.shadow, parameters):
            mine.sub_(0.1 * (mine - theirs))
"""
AVERAGED = DIE("""
import torch
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import averages
torch.manual_seed(1)
model = torch.nn.Linear(3, 2)
average = averages.Average(model.parameters())
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for epoch in range(3):
    for batch in range(5):
        die(f"{epoch}:{batch}")
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        average.step(model.parameters())
    print(epoch, [each.tolist() for each in average.shadow], average.steps, flush=True)
""")


def test_an_average_of_a_library_that_takes_its_state_back_itself_comes_back(torch_server: Server, tmp_path: Path) -> None:
    """diffusers' `EMAModel` is such a one: what it holds is what `load_state_dict` has put there."""
    library(tmp_path, {"averages.py": AVERAGE})
    whole, _, last = compared(torch_server, tmp_path, AVERAGED, every="2b", at=("0:3", "2:1"), whole="bare")

    assert last.out.splitlines() == whole.out.splitlines()[-1:]


SWEEP = DIE("""
import optuna, torch

def objective(trial):
    torch.manual_seed(trial.number)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.suggest_float("lr", 1e-3, 1e-1, log=True))
    for epoch in range(3):
        for batch in range(4):
            loss = (model(torch.randn(8, 3)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            die(f"{trial.number}:{epoch}:{batch}")
        trial.report(loss.item(), epoch)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return loss.item()

study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=2))
study.optimize(objective, n_trials=7)
print([(each.number, each.state.name, each.params, each.intermediate_values) for each in study.trials])
""")


@pytest.mark.slow
def test_a_sweep_in_memory_that_is_killed_goes_on_with_its_trials(tmp_path: Path) -> None:
    """The study held a lock and what is a thread's own, and each resume behind the first report was refused."""
    if importlib.util.find_spec("optuna") is None:
        pytest.skip("optuna is not installed")
    program = tmp_path / "program.py"
    program.write_text(SWEEP)
    whole = plain(program, cwd=tmp_path).ok()
    for death in ("1:1:2", "3:2:1", ""):
        last = detrain("run", "--every", "3b", program, cwd=tmp_path, DIE_AT=death)
        assert last.status == (0 if not death else -9), last.err
        assert "REFUSED" not in last.err
    assert last.last_line() == whole.last_line()
