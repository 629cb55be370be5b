"""`detrain trace` finds in each program of the corpus what a person would write down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detrain.base import errors
from detrain.instrument.find_loops import analyse
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.runs import Result, Run, compared, library, ran
from tests.programs_marks import PROGRAMS, command, marks, phases, programs

TRAINING = [path for path in programs() if marks(path)]
SET = ("evolution.py",)
"""Programs without an optimizer: any setting of weights in the batch loop may be named as the update."""
FRESH = ("split_package", "train_on_batch.py")
"""Programs in processes that are not forked: a package as a module, and one that imports first what draws random
numbers then."""


def trace(tmp_path: Path, *words: str) -> Result:
    path = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "detrain", "trace", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(path)},
    )
    return Result(done.returncode, done.stdout, done.stderr)


def trace_forked(server: Server, tmp_path: Path, *words: str) -> Result:
    return server.detrain("trace", *words, cwd=tmp_path, PYTHONPATH=str(PROGRAMS))


def found(tmp_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tmp_path / "ckpt" / "inst.info").read_text())
    return content


def place(base: str, loop: dict[str, Any] | None, root: Path) -> tuple[str, int] | None:
    return None if loop is None else (os.path.relpath(os.path.join(base, loop["file"]), root), loop["line"])


SLOW = {"eight_replicas.py"}
"""Run by `test_exactness.py`, too."""


@pytest.mark.parametrize(
    "path", [pytest.param(each, marks=[pytest.mark.slow] if each.name in SLOW else [], id=each.name) for each in TRAINING]
)
def test_the_loops_the_load_and_the_update_are_found(path: Path, server: Server, tmp_path: Path) -> None:
    words = ("--epochs", "1000", *command(path))
    run = trace(tmp_path, *words) if path.name in FRESH else trace_forked(server, tmp_path, *words)

    assert run.status == 0, run.err
    info, root = found(tmp_path), path if path.is_dir() else path.parent
    nests = [(place(info["base"], n["epoch_loop"], root), place(info["base"], n["batch_loop"], root), n) for n in info["nests"]]
    expected = {((p.epoch.file, p.epoch.line) if p.epoch else None, (p.batch.file, p.batch.line)) for p in phases(path)}
    assert {(epoch, batch) for epoch, batch, _nest in nests} == expected
    lines = {role: {(m.file, m.line) for m in marks(path) if m.role == role} for role in ("load", "update")}
    files = {batch[0] for _epoch, batch, _nest in nests if batch}
    assert {(f, n["load_line"]) for _e, (f, _l), n in nests if n["load_line"]} <= lines["load"]  # type: ignore[misc]
    assert bool(lines["load"]) == any(n["load_line"] for *_loops, n in nests)
    assert path.name in SET or {(f, n["update_line"]) for _e, (f, _l), n in nests if n["update_line"]} <= lines["update"]  # type: ignore[misc]
    assert files


@pytest.mark.parametrize(("name", "status", "said"), [
    ("inference_only.py", errors.NoStructure.exit_code, "ended without an update of weights"),
    ("fit_only.py", 0, "trains through fit (fit_only.py:"),
    ("fit_folds.py", 0, "trains through fit (fit_folds.py:"),
])  # fmt: skip
def test_programs_without_a_loop_of_their_own_are_answered(
    name: str, status: int, said: str, server: Server, tmp_path: Path
) -> None:
    run = trace_forked(server, tmp_path, str(PROGRAMS / name))

    assert run.status == status
    assert said in run.err


@pytest.mark.slow
def test_a_program_that_trains_through_fit_is_told_which_call_for_how_long_and_how_it_comes_back(
    tmp_path: Path, detrain: Run
) -> None:
    run = trace(tmp_path, str(PROGRAMS / "fit_only.py"))
    shown = detrain("show", "ckpt/inst.info", cwd=tmp_path).out
    before = detrain("info", str(PROGRAMS / "fit_only.py"), cwd=tmp_path, CKPT_DIR=str(tmp_path / "none")).out

    # 300 rows, a tenth of them for validation, 50 a batch.
    assert "fit_only.py:14: 3 epochs of 6 batches, from arrays" in run.err
    assert "  3 epochs of 6 batches, from arrays\n  fit_only.py:14         model.fit\n" in shown
    for argument in ("x                    x", "batch_size           50", "validation_split     0.1"):
        assert argument in shown
        assert argument in before
    assert "a run that resumes   epochs before the checkpoint are passed over" in shown
    assert "not seen to train in a run" in before


@pytest.mark.parametrize(("name", "loader"), [("named_range.py", ""), ("next_argument.py", "next(source)")])
def test_the_load_is_named_as_a_person_would(name: str, loader: str, server: Server, tmp_path: Path) -> None:
    """In both programs the observed run and the source alone must agree."""
    trace_forked(server, tmp_path, str(PROGRAMS / name))

    (seen,) = found(tmp_path)["nests"]
    (read,) = analyse(PROGRAMS / name).nests
    assert (seen["loader"], seen["load_line"]) == (read.loader, read.load_line)
    assert seen["loader"] == loader


HIDDEN = DIE("""
import hashlib
import keras, numpy as np, tensorflow as tf
x, y = np.random.normal(size=(40, 4)).astype("float32"), np.random.normal(size=(40, 1)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.01)
handlers = {}
def on(name):
    return lambda function: handlers.setdefault(name, function)
@on("batch")
def work(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(a) - b) ** 2)
    apply = getattr(optimizer, "app" + "ly_gradients")
    apply(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return float(loss)
for epoch in range(3):
    total = 0.0
    for i in range(0, 40, 8):
        total += handlers["batch"](x[i:i + 8], y[i:i + 8])
        die(f"{epoch}:{i}")
    print("epoch", epoch, repr(total), flush=True)
print(hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.variables + optimizer.variables)).hexdigest())
""")


RETURNED = DIE("""
import hashlib
import numpy as np, tensorflow as tf
x, y = np.random.normal(size=(40, 4)).astype("float32"), np.random.normal(size=(40, 1)).astype("float32")
w, b = tf.Variable(tf.ones((4, 1))), tf.Variable(tf.zeros(1))
@tf.function
def both(a, c):
    return inner(a, c)
@tf.function
def inner(a, c):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w + b - c) ** 2)
    return loss, tape.gradient(loss, (w, b))
@tf.function
def saliency(a):
    with tf.GradientTape() as tape:
        tape.watch(a)
        total = tf.reduce_sum(a @ w)
    return tape.gradient(total, a)
for epoch in range(3):
    for i in range(0, 40, 8):
        loss, gradients = both(x[i:i + 8], y[i:i + 8])
        saliency(tf.constant(x[i:i + 8]))  # between gradients and what is set by them
        w.assign_sub(0.1 * gradients[0])
        b.assign(b - 0.1 * gradients[1])
        die(f"{epoch}:{i}")
    print("epoch", epoch, float(loss).hex(), flush=True)
print(hashlib.sha256(w.numpy().tobytes() + b.numpy().tobytes()).hexdigest())
""")


@pytest.mark.slow
@pytest.mark.parametrize("text", [HIDDEN, RETURNED], ids=["called by name", "gradients that a compiled function returns"])
def test_a_loop_that_static_analysis_does_not_see_is_found_in_the_run_that_trains(text: str, tmp_path: Path, detrain: Run) -> None:
    whole, killed, resumed = compared(detrain, tmp_path, text, at="2:16")
    assert "starting again with probes there" in killed.err

    assert "resuming program at 2:0" in resumed.err
    assert resumed.out.splitlines() == whole.out.splitlines()[-2:]


CLOCK = """
import datetime, time
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def one_epoch():
    for batch in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        inside = time.time(), datetime.datetime.now().timestamp()
        getattr(optimizer, "st" + "ep")()
    return inside
for epoch in range(2):
    inside = one_epoch()
print(inside[0] <= time.time() <= time.clock_gettime(time.CLOCK_REALTIME))
print(inside[1] <= datetime.datetime.now().timestamp())
"""


@pytest.mark.slow
def test_a_clock_that_is_read_inside_a_loop_found_in_the_run_is_not_heard_behind_it(tmp_path: Path, detrain: Run) -> None:
    """The process that found the loop had no probes yet, so what it read there was handed out behind the loop."""
    run = ran(detrain, tmp_path, CLOCK)

    assert "starting again with probes there" in run.err
    assert run.out.splitlines() == ["True", "True"]


ELSEWHERE = """
import keras
import tensorflow as tf

def train():
    weights, optimizer = tf.Variable(tf.ones([4])), keras.optimizers.SGD(0.1)
    for epoch in range(3):
        for batch in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((weights - batch) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        print(epoch, float(loss), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", ["PYTHONPATH", "a path that it adds"])
def test_a_package_that_lies_elsewhere_is_left_to_the_run(by: str, tmp_path: Path, detrain: Run) -> None:
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(ELSEWHERE)
    adds = "" if by == "PYTHONPATH" else f"import sys\nsys.path.append({str(package.parent)!r})\n"
    (tmp_path / "program.py").write_text(f"{adds}from package.model import train\ntrain()\n")
    path = {"PYTHONPATH": str(package.parent)} if by == "PYTHONPATH" else {}

    run = detrain("run", "program.py", cwd=tmp_path, **path).ok()

    assert "model.py:" in run.err
    assert [line.split()[0] for line in run.out.splitlines()] == ["0", "1", "2"]
    assert len(list((tmp_path / "ckpt").glob("program-*.h5"))) > 1


def test_the_first_run_confirms_what_static_analysis_proposes(tmp_path: Path, detrain: Run) -> None:
    detrain("run", str(PROGRAMS / "nested_for.py"), cwd=tmp_path)

    info = found(tmp_path)
    assert [nest["is_confirmed"] for nest in info["nests"]] == [True]
    assert info["program"] == "nested_for"


@pytest.mark.slow
def test_a_structure_that_a_run_wrote_does_not_outlive_an_edit_of_the_loop(tmp_path: Path, detrain: Run) -> None:
    program = tmp_path / "program.py"
    program.write_text(HIDDEN)
    detrain("run", "program.py", cwd=tmp_path)
    program.write_text(HIDDEN.replace("range(3)", "range(2)"))

    again = detrain("run", "--fresh", "program.py", cwd=tmp_path).ok()

    assert "finding the loops anew" in again.err
    assert len(again.out.splitlines()) == 3


def test_tracing_ends_as_soon_as_it_is_sure(tmp_path: Path, server: Server) -> None:
    (tmp_path / "program.py").write_text(HIDDEN.replace("range(3)", "range(10**9)"))

    run = trace_forked(server, tmp_path, "program.py")

    assert run.status == 0
    assert "(sure)" in run.err
    assert "epoch 0" in run.out


def test_the_second_round_names_what_changed_with_the_dataset(tmp_path: Path, server: Server) -> None:
    program = "import sys\n" + HIDDEN.replace("size=(40", "size=(int(sys.argv[1])").replace(
        "range(0, 40, 8)", "range(0, len(x), 8)"
    )
    (tmp_path / "program.py").write_text(program)

    assert trace_forked(server, tmp_path, "program.py", "40").status == 0
    assert trace_forked(server, tmp_path, "--second", "--diff-size", "8", "program.py", "48").status == 0

    (nest,) = found(tmp_path)["nests"]
    assert nest["loader"] == "x[i:i + 8]"
    assert "second round: x changed its size from 40 to 48" in nest["evidence"]
    assert "the loader is among them" in nest["evidence"]


def test_show_lists_the_loops_in_their_source(tmp_path: Path, server: Server, detrain: Run) -> None:
    (tmp_path / "program.py").write_text(HIDDEN)
    trace_forked(server, tmp_path, "program.py")

    shown = detrain("show", "ckpt/inst.info", cwd=tmp_path).out

    lines = {line.partition("<-")[2].strip(): line for line in shown.splitlines() if "<-" in line}
    assert "for epoch in range(3):" in lines["epoch loop"]
    assert "for i in range(0, 40, 8):" in lines["batch loop"]
    assert "sure" in shown.splitlines()[1]


def test_a_program_that_fails_keeps_its_traceback_and_status(tmp_path: Path, server: Server) -> None:
    (tmp_path / "program.py").write_text(HIDDEN.replace('print("epoch"', "raise ValueError('mine')\n    print(\"epoch\""))

    run = trace_forked(server, tmp_path, "program.py")

    assert run.status == 1
    assert run.err.rstrip().endswith("ValueError: mine")
    assert len(found(tmp_path)["nests"]) == 1


BESIDE_FIT = """
import keras, numpy as np, tensorflow as tf
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
value = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
value.compile("sgd", "mse")
def assign(vector):
    start = 0
    for variable in model.trainable_variables:
        size = int(np.prod(variable.shape))
        variable.assign(tf.reshape(vector[start : start + size], variable.shape))
        start += size
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    new = [np.ravel(v - 0.01 * g) for v, g in zip(model.trainable_variables, grads)]
    assign(np.concatenate(new))
    value.fit(x, np.ones(len(x)), epochs=3, verbose=0)
    print(float(loss), flush=True)
for episode in range(4):
    step(np.random.normal(size=(16, 4)).astype("float32"))
"""


@pytest.mark.slow
def test_once_there_is_a_checkpoint_a_run_does_not_start_again(tmp_path: Path, detrain: Run) -> None:
    """It began anew with other probes, took the checkpoint that it found for one of theirs, and ended before it had
    trained.
    """
    whole = ran(detrain, tmp_path, BESIDE_FIT, "--bare")
    run = detrain("run", "program.py", cwd=tmp_path)

    assert "has no probes" in run.err
    assert run.out == whole.out


TRAINER = """
import tensorflow as tf
class Regressor:
    def __init__(self):
        self.w, self.optimizer = tf.Variable(1.0), tf.keras.optimizers.Adam(0.1)
    def fit(self, x, epochs):
        for epoch in range(epochs):
            for batch in tf.data.Dataset.from_tensor_slices(x).batch(4):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self.w * batch - 0.3) ** 2)
                self.optimizer.apply_gradients([(tape.gradient(loss, self.w), self.w)])
            print(epoch, float(loss), flush=True)
"""


def test_a_loop_of_a_library_that_cannot_get_probes_any_more_is_said_while_it_trains(tmp_path: Path, detrain: Run) -> None:
    """It was said when the program had ended. Here there is a checkpoint of the program's own loop already."""
    text = OWN_LOOP + "Regressor().fit(np.ones(40, 'f4'), 4)\nraise SystemExit(3)\n"
    run = ran(detrain, tmp_path, text, "--every", "1b", **library(tmp_path, {"trainer.py": TRAINER}))

    assert run.status == 3
    assert "updated 20 times, in no loop of the program's own (trainer's, trainer.py:8 in Regressor.fit()," in run.err


OWN_LOOP = """
import numpy as np, tensorflow as tf
from trainer import Regressor
w, optimizer = tf.Variable(1.0), tf.keras.optimizers.SGD(0.1)
for batch in range(3):
    with tf.GradientTape() as tape:
        loss = w * w
    optimizer.apply_gradients([(tape.gradient(loss, w), w)])
"""
ENGINE = {
    "engine/__init__.py": "from engine.loops import Engine\n",
    "engine/data.py": """
import torch
def batches(rows, size):
    order = torch.randperm(len(rows))
    for at in range(0, len(rows), size):
        yield rows[order[at : at + size]]
""",
    "engine/loops.py": """
import torch
from engine import data
steps = []
class Engine:
    def __init__(self, model, rate):
        self.model, self.seen = model, 0
        self.optimizer = torch.optim.Adam(model.parameters(), rate)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
    def fit(self, rows, epochs, heard):
        best = 9e9
        for epoch in range(epochs):
            mean = self.run(rows, epoch, heard)
            best = min(best, mean)
            self.schedule.step()
            print(epoch, mean, best, self.seen, len(steps), flush=True)
        return best
    def run(self, rows, epoch, heard):
        total, self.count = 0.0, 0
        def inner(chunks):
            nonlocal total
            for number, chunk in enumerate(chunks):
                total += self.step(chunk)
                heard(f"{epoch}:{number}")
        inner(data.batches(rows, 8))
        return total / self.count
    def step(self, chunk):
        loss = (self.model(chunk) - chunk.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seen, self.count = self.seen + len(chunk), self.count + 1
        steps.append(loss.item())
        return loss.item()
""",
}


OF_TORCH = """
import torch
from engine import Engine
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
print(Engine(model, 0.01).fit(torch.randn(64, 3), 6, die))
print([float(each.sum()) for each in model.parameters()])
"""


@pytest.mark.parametrize(("every", "is_linked"), [("2b", True), ("1", False)])
def test_loops_of_a_library_that_no_table_names_get_probes(
    every: str, is_linked: bool, tmp_path: Path, torch_server: Server
) -> None:
    """Such a program had no checkpoints. Sums in frames and names of the library's modules are state."""
    path = library(tmp_path, ENGINE)
    if is_linked:
        (tmp_path / "real").mkdir()
        (tmp_path / "site-packages").rename(tmp_path / "real" / "site-packages")
        (tmp_path / "site-packages").symlink_to("real/site-packages")

    _whole, _died, last = compared(torch_server, tmp_path, DIE(OF_TORCH), at=["3:5", "5:2"], every=every, is_tail=True, **path)

    assert "starting again with probes there" not in last.err, "the first run has written it down"
    assert "resuming program at" in last.err


THEN_ITS_OWN = (
    OF_TORCH
    + """
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(3):
    for number in range(4):
        loss = (model(torch.randn(8, 3)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        die(f"own {epoch}:{number}")
    print(epoch, loss.item(), flush=True)
print([float(each.sum()) for each in model.parameters()])
"""
)


@pytest.mark.slow
def test_loops_of_a_library_and_the_programs_own_get_probes(tmp_path: Path, torch_server: Server) -> None:
    """Code between the loops runs again, and prints what it printed."""
    path, text = library(tmp_path, ENGINE), DIE(THEN_ITS_OWN)

    whole, _died, last = compared(torch_server, tmp_path, text, at=["3:5", "own 0:3", "own 2:1"], every="2b", **path)

    assert set(last.out.splitlines()) <= set(whole.out.splitlines())
    assert "resuming program at 1/2:" in last.err


STEPS = {
    "tensorflow": """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(0)
class Learner:
    def __init__(self):
        self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.Adam(0.01)
    def step(self, chunk):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(chunk, training=True) - tf.reduce_sum(chunk, 1, True)) ** 2)
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return float(loss)
    def shown(self):
        return [float(np.sum(each)) for each in self.model.get_weights()]
""",
    "jax": """
import jax, jax.numpy as jnp, numpy as np, optax
class Learner:
    def __init__(self):
        self.weights, self.optimizer = {"a": jnp.full((3, 4), 0.1), "b": jnp.full((4, 1), 0.2)}, optax.adam(0.01)
        self.state, self.key = self.optimizer.init(self.weights), jax.random.key(0)
    def step(self, chunk):
        self.key, key = jax.random.split(self.key)
        self.weights, self.state, loss = self.made(self.weights, self.state, key, chunk)
        return float(loss)
    @property
    def made(self):
        return _step
    def shown(self):
        return [float(each.sum()) for each in jax.tree.leaves(self.weights)]
@jax.jit
def _step(weights, state, key, chunk):
    def loss_of(weights):
        inside = (chunk @ weights["a"]) * jax.random.bernoulli(key, 0.8, (len(chunk), 4))
        return ((inside @ weights["b"] - chunk.sum(1, keepdims=True)) ** 2).mean()
    loss, gradients = jax.value_and_grad(loss_of)(weights)
    updates, state = optax.adam(0.01).update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state, loss
""",
}
LEARNING = """
import numpy as np
def fit(learner, rows, epochs, heard):
    history = []
    for epoch in range(epochs):
        order, total = np.random.permutation(len(rows)), 0.0
        for number in range(len(rows) // 8):
            total += learner.step(rows[order[8 * number : 8 * number + 8]])
            heard(f"{epoch}:{number}")
        history.append(total)
        print(epoch, total, flush=True)
    return history
"""


@pytest.mark.slow
@pytest.mark.parametrize("framework", sorted(STEPS))
def test_loops_of_a_library_over_another_framework_get_probes(framework: str, tmp_path: Path, detrain: Run) -> None:
    text = DIE(
        f"{STEPS[framework]}\nfrom learning import fit\nlearner = Learner()\n"
        "print(fit(learner, np.random.normal(size=(64, 3)).astype('f4'), 6, die), learner.shown())\n"
    )
    path = library(tmp_path, {"learning.py": LEARNING})

    _whole, _died, last = compared(detrain, tmp_path, text, at=["3:5", "5:2"], every="2b", is_tail=True, **path)

    assert "resuming program at" in last.err


@pytest.mark.slow
def test_a_checkpoint_is_not_taken_for_one_of_another_loop(tmp_path: Path, detrain: Run) -> None:
    assert ran(detrain, tmp_path, BESIDE_FIT).status == 0
    assert detrain("trace", "program.py", cwd=tmp_path).status == 0
    run = detrain("run", "program.py", cwd=tmp_path)

    assert run.status == errors.Diverged.exit_code
    assert "the checkpoint was taken in another, of trainer.py " in run.err


@pytest.mark.slow
def test_a_loop_over_weights_that_is_also_used_elsewhere_is_a_part_of_the_step(tmp_path: Path, detrain: Run) -> None:
    """Its next call was taken for a turn, and the loop around it was watched no more: weights counted as batches."""
    text = BESIDE_FIT.replace("    value.fit(x, np.ones(len(x)), epochs=3, verbose=0)\n", "    assign(value, np.ones(5))\n")
    text = text.replace("assign(vector)", "assign(model, vector)").replace("assign(np.conc", "assign(model, np.conc")
    whole = ran(detrain, tmp_path, text, "--bare")
    run = detrain("run", "program.py", cwd=tmp_path)

    line = text.splitlines().index("for episode in range(4):") + 1
    assert [nest["batch_loop"]["line"] for nest in found(tmp_path)["nests"]] == [line]
    assert run.out.splitlines()[-4:] == whole.out.splitlines()
