"""Words before it is too late: what a run says, and finds, where people would otherwise learn of it at the resume.

What is killed is a process; a server that has imported the framework forks it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import last_printed
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE, PRELUDE
from tests.e2e.refused import Twice, goes_back
from tests.e2e.runs import after_deaths, compared, library, ran


@pytest.fixture
def server(server: Server) -> Server:
    """Each start that is refused is made twice, and the ways out that it names are taken."""
    return Twice(server)


@pytest.fixture
def torch_server(torch_server: Server) -> Server:
    """The same, with PyTorch."""
    return Twice(torch_server)


TENSORS = DIE("""\
import hashlib
import tensorflow as tf

made = tf.random.Generator.from_seed(3)
x = made.normal((96, 3))
y = tf.sin(x @ tf.constant([[1.0], [-0.5], [0.3]]))
weights = {"inner": 0.5 * made.normal((3, 8)), "outer": 0.5 * made.normal((8, 1))}
speed = {name: tf.zeros_like(value) for name, value in weights.items()}

STEP
def step(weights, speed, x, y):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_mean((tf.tanh(x @ weights["inner"]) @ weights["outer"] - y) ** 2)
    gradients = tape.gradient(loss, weights)
    speed = {name: 0.9 * speed[name] + gradients[name] for name in speed}
    return {name: weights[name] - 0.05 * speed[name] for name in weights}, speed, loss

for epoch in range(5):
    order = tf.argsort(made.uniform((96,)))
    for start in range(0, 96, 32):
        chosen = order[start : start + 32]
        weights, speed, loss = step(weights, speed, tf.gather(x, chosen), tf.gather(y, chosen))
        die(f"{epoch}:{start}")
    print(f"epoch {epoch} {float(loss):.8f}", flush=True)
print("final", hashlib.sha256(b"".join(each.numpy().tobytes() for _, each in sorted(weights.items()))).hexdigest())
""")


@pytest.mark.slow
def test_the_loop_of_weights_that_are_plain_tensors_is_found(server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TENSORS.replace("STEP", "@tf.function"))

    found = server.detrain("trace", "program.py", cwd=tmp_path).ok()

    assert f"program.py:{TENSORS[: TENSORS.index('for start')].count(chr(10)) + 1}" in found.err


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_weights_that_are_plain_tensors_are_found_and_exact(compiled: bool, server: Server, tmp_path: Path) -> None:
    _, _, resumed = compared(
        server, tmp_path, TENSORS.replace("STEP", "@tf.function" if compiled else ""), every="2b", at="3:64", whole="bare"
    )

    assert "resuming program at 3:" in resumed.err


GENERATOR = PRELUDE(
    DIE("""
rows = np.random.default_rng(0).normal(size=(6, 3))
importance = np.ones(6)

def batches():
    while True:
        for at in range(0, 6, 2):
            yield (rows[at : at + 2] * importance[at : at + 2, None]).sum(0)

def reweigh(weights):
    CHANGE

source = batches()
optimizer = Optimizer(np.ones(3))
for epoch in range(5):
    for step in range(3):
        x = next(source)
        optimizer.apply_gradients(x)
        die(f"{epoch}:{step}")
    reweigh(optimizer.weights)
show(optimizer.weights)
""")
)
CHANGE = "importance[:] = 1 + np.abs(rows @ weights)"


def test_a_generator_that_reads_what_the_loop_changes_is_named_in_time_and_a_way_back_stays(server: Server, tmp_path: Path) -> None:
    whole = ran(server, tmp_path, GENERATOR.replace("CHANGE", CHANGE), "--bare")

    foreseen = server.detrain("info", "program.py", cwd=tmp_path)
    died = server.detrain("run", "--every", "1", "--keep", "1", "program.py", cwd=tmp_path, DIE_AT="4:1")
    refused = server.detrain("run", "program.py", cwd=tmp_path)
    again = server.detrain("run", "program.py", cwd=tmp_path)
    back = goes_back(server.detrain, refused, cwd=tmp_path)

    assert (again.status, last_printed(again.err)) == (refused.status, last_printed(refused.err))
    assert back is not None
    assert "batches() reads importance, which reweigh() writes" in foreseen.out
    assert died.err.count("importance, which batches() reads and the loop has changed") == 1
    assert refused.status == 78, refused.err
    assert "`detrain run --from 1:0 program.py`" in refused.err
    assert "kept aside as NAME.stranded" in back.err
    assert back.last_line() == whole.last_line()


OF_FIT = """
import keras, numpy as np
keras.utils.set_random_seed(1)
rows, importance = np.random.default_rng(0).normal(size=(8, 3)).astype("float32"), np.ones(8, "float32")

def batches():
    while True:
        for at in range(0, 8, 2):
            yield rows[at : at + 2], rows[at : at + 2, :1], importance[at : at + 2]

class Reweigh(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        importance[:] = 1 + np.abs(self.model.predict(rows, verbose=0)[:, 0])

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(), steps_per_epoch=4, epochs=3, verbose=0, callbacks=[Reweigh()])
"""


@pytest.mark.slow
def test_a_generator_of_fit_that_reads_what_a_callback_changes_is_named_in_time(server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OF_FIT)

    foreseen = server.detrain("info", "program.py", cwd=tmp_path)
    done = server.detrain("run", "--every", "1", "program.py", cwd=tmp_path)

    assert "batches() reads importance, which on_epoch_end() writes" in foreseen.out
    assert done.err.count("importance, which batches() reads and the loop has changed") == 1


def test_from_a_place_without_a_checkpoint_names_those_that_there_are(server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GENERATOR.replace("CHANGE", "pass"))
    server.detrain("run", "program.py", cwd=tmp_path, DIE_AT="3:1")

    run = server.detrain("run", "--from", "9:9", "program.py", cwd=tmp_path)
    both = server.detrain("run", "--from", "2:0", "--fresh", "program.py", cwd=tmp_path)

    assert run.status == both.status == 64
    assert "there are 1:0, 2:0, 3:0" in run.err


LIBRARY = """\
import threading

class Guide:
    def __init__(self):
        self.thread, self.asked = threading.Thread(), 0

    def ask(self):
        self.asked += 1
        return self.asked
"""
LATE = PRELUDE("""
import guide
advisor = guide.Guide()
optimizer = Optimizer(np.ones(3))
for epoch in range(6):
    for step in range(3):
        rate = advisor.ask() if epoch >= 2 else 1
        optimizer.apply_gradients(np.random.normal(size=3) * rate)
        die(f"{epoch}:{step}")
show(optimizer.weights)
""")


def test_a_run_goes_back_by_itself_before_what_no_checkpoint_holds(server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LATE)
    path = library(tmp_path, {"guide.py": LIBRARY})
    whole = server.detrain("run", "--bare", "program.py", cwd=tmp_path, **path)

    died = server.detrain("run", "--keep", "1", "program.py", cwd=tmp_path, DIE_AT="5:1", **path)
    resumed = server.detrain("run", "program.py", cwd=tmp_path, **path)

    assert "REFUSED from here on: advisor (guide.Guide" in died.err
    assert "going back from 5:0 to 2:0: later ones lack advisor (guide.Guide" in resumed.err
    assert resumed.last_line() == whole.last_line()


HARD = DIE("""\
import hashlib
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset

class Hard(torch.utils.data.Sampler):
    def __init__(self, losses):
        self.losses = losses

    def __iter__(self):
        for _ in range(12):
            p = self.losses / self.losses.sum()
            yield np.random.choice(96, 8, replace=False, p=p).tolist()

losses, x = np.ones(96), torch.randn(96, 3)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(4):
    for batch, (which, rows) in enumerate(DataLoader(TensorDataset(torch.arange(96), x), batch_sampler=Hard(losses))):
        each = (model(rows)[:, 0] - rows[:, 0].sin()) ** 2
        optimizer.zero_grad()
        each.mean().backward()
        optimizer.step()
        losses[which.numpy()] = 0.001 if batch % 2 else 5 + each.detach().numpy()
        die(f"{epoch}:{batch}")
print("final", hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest())
""")


def test_a_sampler_that_draws_by_what_the_loop_has_learned_is_named_in_time(torch_server: Server, tmp_path: Path) -> None:
    """What it drew before the cut is loaded again with the losses of the epoch's start, and was refused without a
    word."""
    (tmp_path / "program.py").write_text(HARD)
    whole = torch_server.bare("program.py", cwd=tmp_path)

    before = torch_server.detrain("info", "program.py", cwd=tmp_path)
    died = torch_server.detrain("run", "--every", "5b", "program.py", cwd=tmp_path, DIE_AT="1:9")
    foreseen = torch_server.detrain("info", "program.py", cwd=tmp_path)
    resumed = torch_server.detrain("run", "--every", "5b", "program.py", cwd=tmp_path)
    done = resumed if resumed.status == 0 else goes_back(torch_server.detrain, resumed, cwd=tmp_path)

    assert "Hard holds losses, which <module>() writes" in before.out
    assert died.err.count("Hard.losses: loads read it, and bodies change it") == 1
    assert "Hard.losses (loads read it, and bodies change it): to resume from 1:8 will be REFUSED" in foreseen.out
    assert resumed.status in (0, 78), resumed.err
    assert done is not None
    assert done.last_line() == whole.last_line()


LEVELS = DIE("""\
import hashlib
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    level = 0

    def __len__(self):
        return 48

    def __getitem__(self, at):
        return torch.sin(torch.arange(3.0) + at) + self.level

model, rows = torch.nn.Linear(3, 1), Rows()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(rows, 8, shuffle=True, num_workers=1, persistent_workers=True)
for epoch in range(3):
    rows.level = LEVEL
    for batch, x in enumerate(loader):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        die(f"{epoch}:{batch}")
print("final", hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest())
""")


def test_a_data_set_that_persistent_workers_have_an_older_copy_of_is_named_in_time(torch_server: Server, tmp_path: Path) -> None:
    """Workers of a resumed run would copy it as it is by then."""
    (tmp_path / "calm.py").write_text(LEVELS.replace("LEVEL", "2"))

    died, resumed = after_deaths(torch_server, tmp_path, LEVELS.replace("LEVEL", "epoch"), at="1:3", every="4b")
    calm = torch_server.detrain("run", "--every", "4b", "calm.py", cwd=tmp_path)

    assert died.err.count("REFUSED from here on: the data set of persistent workers") == 1
    assert "going back from 1:2 to 1:0" in resumed.err
    assert resumed.status == 0, resumed.err
    assert "persistent workers" not in calm.err


GROUP = PRELUDE("""
class Unit:
    def __init__(self, at):
        self.at = at

optimizer, group, seen = Optimizer(np.ones(3)), set(), set()
for epoch in range(3):
    for step in range(3):
        group.add(Unit(step))
        seen.add(optimizer)
        optimizer.apply_gradients(np.random.normal(size=3) * (len(group) + (optimizer in seen)))
        die(f"{epoch}:{step}")
    GOES
show(optimizer.weights)
""")


@pytest.mark.parametrize("goes", ["optimizer.weights += sum(1e-9 * unit.at for unit in group)", "pass"])
def test_a_set_of_objects_that_the_program_goes_over_is_refused_and_said(goes: str, server: Server, tmp_path: Path) -> None:
    """Its order is that of addresses, others in each process; who only asks what is in it, sees none of it."""

    died, resumed = after_deaths(server, tmp_path, GROUP.replace("GOES", goes), at="1:1")

    is_refused = goes != "pass"
    named = "REFUSED from here on: group (set: its order is that of addresses, and the program goes over it)"
    assert (named in died.err) == is_refused, died.err
    assert (resumed.status == 79) == is_refused, resumed.err
