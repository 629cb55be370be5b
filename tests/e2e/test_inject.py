"""`detrain sites`, `inject`, `replay` and `random`: faults in whole programs, replayed to the bit, refused where they
cannot be.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.runs import ORACLES, ROOT, Result, detrain, environment

pytest.importorskip("tensorflow")

pytestmark = pytest.mark.slow  # several minutes: with `./run.sh test --slow`

PROGRAM = """
import sys
import numpy as np, keras, tensorflow as tf

replicas, is_xla, kind = int(sys.argv[1]), sys.argv[2] == "xla", sys.argv[3]
if replicas > 1:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * replicas)
    strategy = tf.distribute.MirroredStrategy()
else:
    strategy = tf.distribute.get_strategy()
rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 6, 6, 2)).astype("float32"), rng.integers(0, 3, 64)
with strategy.scope():
    model = keras.Sequential([
        keras.Input((6, 6, 2)), keras.layers.Conv2D(4, 3, name="conv1"), keras.layers.BatchNormalization(), keras.layers.Flatten(),
        keras.layers.Dropout(0.2), keras.layers.Dense(3, name="fc"), keras.layers.Dense(3, name="last")])
    optimizer = keras.optimizers.Adam(1e-2)
    loss = keras.losses.SparseCategoricalCrossentropy(True)
if kind == "fit":
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=16, epochs=3, verbose=0)
else:
    @tf.function(jit_compile=is_xla)
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
        return value
    for epoch in range(3):
        for batch in range(4):
            value = step(tf.constant(x[batch * 16:][:16]), tf.constant(y[batch * 16:][:16]))
        print(epoch, float(value))
    np.save("kernel.npy", model.layers[-1].kernel.numpy())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inject")
    (folder / "program.py").write_text(PROGRAM)
    return folder


def _command(folder: Path, *command: object) -> Result:
    return detrain(*command, cwd=folder)


def _injected(folder: Path, kind: tuple[object, ...], *options: object) -> dict[str, object]:
    run = _command(folder, "inject", "--json", *options, "program.py", *kind)
    assert run.status == 0, run.err
    record: dict[str, object] = json.loads(run.out)
    return record


def _number(pattern: str) -> np.float32:
    return np.array([int(pattern, 16)], np.uint32).view(np.float32)[0]


PLAIN, FIT, XLA, MANY = (1, "no", "loop"), (1, "no", "fit"), (1, "xla", "loop"), (2, "no", "fit")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (
            FIT,
            (
                "--model",
                "WT",
                "--site",
                "conv1",
                "--stage",
                "forward",
                "--at",
                "2:0",
                "--seed",
                5,
                "--threshold",
                "masked_within=.5",
            ),
        ),
        (XLA, ("--model", "N16_RD", "--site", "fc_grad_wt", "--at", "1:3")),
        (MANY, ("--model", "N16_RD", "--site", "fc_grad_in", "--at", "1:2", "--worker", 1)),
    ],
)
def test_a_fault_does_something_once_and_replays_to_the_bit(
    folder: Path, kind: tuple[object, ...], options: tuple[object, ...]
) -> None:
    record = _injected(folder, kind, "--out", "record.json", *options)

    assert record["fired"] == 1
    element = record["elements"][0]
    assert element["golden"] != element["injected"]
    steps = record["steps"]
    assert len(steps) == 12 - (4 * steps[0]["at"][1] + steps[0]["at"][2]) + sum(step["at"][2] < 0 for step in steps)
    golden = next((folder / "ckpt").glob("program.faults/*/golden/log")).parent
    assert golden.is_dir()

    replay = _command(folder, "replay", "record.json", "program.py", *kind)

    assert replay.status == 0, replay.err
    assert replay.out.startswith("IDENTICAL")
    assert "masked_within" not in options or record["thresholds"]["masked_within"] == 0.5


BY_HAND = """
class Put(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        put(self.epoch, batch)

def put(epoch, batch):
    if (epoch, batch) == AT:
        values = WAY.numpy()
        values[PLACE] = np.array(PATTERN, np.uint32).view(np.float32)
        WAY.assign(values)
"""


@pytest.mark.parametrize(
    ("kind", "site", "way", "at"),
    [
        (FIT, "memory/Dense.1/kernel", "model.layers[-1].kernel", (1, 2)),
        (XLA, "memory/BatchNormalization/moving_variance", "model.layers[1].moving_variance", (2, 0)),
        (PLAIN, "memory/Adam/*last_kernel_velocity", "optimizer.variables[-3]", (0, 3)),
    ],
)
def test_bits_of_memory_are_the_programs_own_line_that_writes_them(
    tmp_path: Path, kind: tuple[object, ...], site: str, way: str, at: tuple[int, int]
) -> None:
    """In the state before a step, whatever it is: a weight, a statistic, a slot."""
    text = PROGRAM.replace("verbose=0)", "verbose=0, callbacks=CALLBACKS)")
    text += '\nnp.savez("all.npz", *[value.numpy() for value in [*model.variables, *optimizer.variables]])\n'
    (tmp_path / "program.py").write_text(text.replace(", callbacks=CALLBACKS", ""))
    where = ("--model", "BIT:28", "--stage", "memory", "--site", site, "--at", f"{at[0]}:{at[1]}", "--seed", 1)
    record = _injected(tmp_path, kind, *where)
    faulty = {name: each.tobytes() for name, each in np.load(tmp_path / "all.npz").items()}
    (element,) = record["elements"]
    assert int(element["injected"], 16) == int(element["golden"], 16) ^ 1 << 28

    by_hand = BY_HAND.replace("AT:", f"{at}:").replace("WAY", way).replace("PLACE", repr(tuple(element["position"])))
    text = text.replace('if kind == "fit":', by_hand.replace("PATTERN", f"0x{element['injected']}") + 'if kind == "fit":')
    text = text.replace("CALLBACKS", "[Put()]").replace(
        "            value = step", "            put(epoch, batch)\n            value = step"
    )
    (tmp_path / "program.py").write_text(text)
    command = [sys.executable, "-c", ORACLES["tensorflow"], "program.py", *map(str, kind)]
    subprocess.run(command, check=True, env=environment(), cwd=tmp_path)

    assert faulty == {name: each.tobytes() for name, each in np.load(tmp_path / "all.npz").items()}


@pytest.mark.parametrize("kind", [XLA, (8, "no", "fit")], ids=["xla", "8 replicas"])
def test_commands_killed_in_between_change_no_bit(folder: Path, kind: tuple[object, ...]) -> None:
    command = ("--model", "N16_RD_CORRECT", "--site", "conv1_grad_wt", "--at", "2:1", "--worker", int(kind[0]) - 1, "--out")
    _injected(folder, kind, "--ckpt", "whole", *command, "whole.json")
    program = ("program.py", *kind)

    _killed(folder, "killed", 5, "golden/log", "inject", *command, "killed.json", *program)
    _killed(folder, "killed", 1, "trial-*/log", "inject", *command, "killed.json", *program)
    assert not (folder / "killed.json").exists()
    _injected(folder, kind, "--ckpt", "killed", *command, "killed.json")
    assert (folder / "killed.json").read_bytes() == (folder / "whole.json").read_bytes()

    _killed(folder, "killed", 1, "trial-*/log", "replay", "killed.json", *program)
    for _ in range(2):
        replay = _command(folder, "replay", "--ckpt", "killed", "killed.json", *program)
        assert replay.out.startswith("IDENTICAL"), replay.err
    (folder / "killed.json").unlink()


def _killed(folder: Path, home: str, lines: int, log: str, command: str, *arguments: object) -> None:
    """Run a command and kill it, and what it has begun, once a log of its experiments has so many lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "detrain", command, "--ckpt", home, *map(str, arguments)],
        cwd=folder,
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not any(len(path.read_bytes().splitlines()) >= lines for path in (folder / home).glob(f"*.faults/*/{log}")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_the_fault_of_a_record_is_put_in_again_as_it_was(folder: Path) -> None:
    options = ("--model", "ZERO", "--site", "last", "--stage", "forward", "--at", "2:0", "--ckpt", "again", "--until", "2:3")
    first = _injected(folder, PLAIN, *options, "--permanent", "--out", "permanent.json")
    again = _command(
        folder, "inject", "permanent.json", "--json", "--ckpt", "again", "--until", "2:3", "--out", "b.json", "program.py", *PLAIN
    )

    assert again.status == 0, again.err
    assert first["experiment"]["steps"] == 0
    assert json.loads(again.out) == first


RAGGED = """
import numpy as np, tensorflow as tf
x, y = np.random.default_rng(0).normal(size=(2, 20, 4)).astype("float32")
w = tf.Variable(tf.ones((4, 4)))
@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
for epoch in range(2):
    for a, b in tf.data.Dataset.from_tensor_slices((x, y)).batch(8):
        step(a, b)
"""


def test_a_fault_of_several_steps_is_in_all_of_them_or_the_others_are_named(folder: Path) -> None:
    (folder / "ragged.py").write_text(RAGGED)
    options = ("inject", "--ckpt", "ragged", "--model", "SET:5", "--site", "*/MatMul", "--stage", "forward", "--out", "ragged.json")
    smaller = _command(folder, *options, "--at", "0:1", "--steps", 2, "ragged.py")
    beyond = _command(folder, *options, "--at", "1:1", "--steps", 3, "ragged.py")
    permanent = _command(folder, *options, "--at", "0:1", "--permanent", "ragged.py")
    record = json.loads((folder / "ragged.json").read_text())
    replay = _command(folder, "replay", "--ckpt", "ragged", "ragged.json", "ragged.py")

    assert (smaller.status, "0:2 has another shape" in smaller.err) == (92, True), smaller.err
    assert (beyond.status, "in 3 steps from 1:1 on, and the run has 2 of them" in beyond.err) == (82, True), beyond.err
    assert (permanent.status, record["fired"], record["missed"]) == (0, 3, [[0, 0, 2], [0, 1, 2]]), permanent.err
    assert "had another shape: 0:2, 1:2" in permanent.out
    assert replay.status == 0, replay.err


LAZY = """
import numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
w, u = (tf.Variable(np.random.default_rng(seed).normal(size=(4, 4)).astype("float32") * 0.3) for seed in (1, 2))
@tf.function
def step(a, regularize):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.tanh(a @ u) @ w) ** 2)
        if regularize:
            loss += tf.reduce_mean((w @ u) ** 2)
    for variable, gradient in zip((w, u), tape.gradient(loss, (w, u))):
        variable.assign_sub(0.1 * gradient)
for epoch in range(2):
    for i, a in enumerate(tf.data.Dataset.from_tensor_slices(x).batch(4)):
        step(a, i % 2 == 0)
"""


def test_a_fault_is_put_into_no_other_op_that_has_its_name_in_another_trace(folder: Path) -> None:
    """In the first step MatMul#2 is the gradient of an input, in the next that of a weight."""
    (folder / "lazy.py").write_text(LAZY)
    sites = {at: json.loads(_command(folder, "sites", "--json", "--at", at, "lazy.py").out) for at in ("0:0", "0:1")}
    roles = [
        {site["name"]: site["role"] for site in listed if site["op"] == "MatMul" and site["stage"] == "backward"}
        for listed in sites.values()
    ]
    other = [name for name, role in roles[0].items() if role == "grad_in" and roles[1].get(name) == "grad_wt"]
    options = ("inject", "--ckpt", "lazy", "--json", "--model", "SET:5", "--site", "*_grad_in", "--at", "0:1", "--until", "+1")
    records = [_command(folder, *options, "--seed", seed, "lazy.py") for seed in range(4)]

    assert other
    assert [run.status for run in records] == [0] * 4, records[0].err
    hit = {json.loads(run.out)["experiment"]["injection"]["site"] for run in records}
    assert {roles[1][name] for name in hit} == {"grad_in"}


REFETCH = """
import keras, numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
rows = iter(tf.data.Dataset.from_tensor_slices(x).shuffle(64, seed=1).repeat().batch(4))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="fc")])
optimizer = keras.optimizers.SGD(1e-3)
optimizer.build(model.trainable_variables)
@tf.function
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - 1.0) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
for epoch in range(2):
    for step in range(8):
        if not float(train(next(rows))) < 100.0:  # a bad batch: another one
            train(next(rows))
"""


def test_a_fault_that_changes_what_is_fetched_from_then_on_has_an_outcome(folder: Path) -> None:
    (folder / "refetch.py").write_text(REFETCH)
    run = _command(
        folder,
        "inject",
        "--ckpt",
        "refetch",
        "--model",
        "SET:1e9",
        "--site",
        "fc",
        "--stage",
        "forward",
        "--at",
        "1:2",
        "refetch.py",
    )

    assert run.status == 0, run.err
    assert "outcome: " in run.out


AS_TRACED = """
import runpy
import tensorflow as tf
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
runpy.run_path("program.py", run_name="__main__")
"""


def test_the_golden_run_is_the_program_without_faults_and_without_grappler(folder: Path) -> None:
    (folder / "as_traced.py").write_text(AS_TRACED)
    bare = _command(folder, "run", "--bare", "as_traced.py", *PLAIN)
    options = ("--model", "ZERO", "--site", "last", "--stage", "forward", "--at", "2:1", "--until", "2:3", "--ckpt", "alone")
    record = _injected(folder, PLAIN, *options)
    log = next((folder / "alone").glob("program.faults/*/golden/log"))
    steps = [line["step"] for line in map(json.loads, log.open()) if "step" in line]
    losses = {(step["epoch"], step["batch"]): step["series"]["loss"] for step in steps}

    assert record["elements"][0]["injected"] == "00000000"
    assert len(bare.out.splitlines()) == 3, bare.err
    for line in bare.out.splitlines():
        epoch, value = line.split()
        assert np.float32(losses[int(epoch), 3]) == np.float32(value)


@pytest.mark.parametrize("at", ["1:0", "1:1"])
def test_files_that_the_program_writes_are_the_trials(at: str, folder: Path) -> None:
    """At the first step of an epoch a run without the fault is made, too: it comes first."""
    assert _command(folder, "run", "--bare", "program.py", *PLAIN).status == 0
    golden = (folder / "kernel.npy").read_bytes()
    _injected(folder, PLAIN, "--model", "SET:100", "--site", "fc", "--stage", "forward", "--at", at, "--ckpt", "files")

    assert (folder / "kernel.npy").read_bytes() != golden


def test_an_infinite_value_in_the_forward_pass_shows_in_the_same_step(folder: Path) -> None:
    record = _injected(folder, PLAIN, "--model", "SET:inf", "--site", "fc", "--stage", "forward", "--at", "1:0", "--until", "+3")
    first = record["steps"][0]

    assert _number(record["elements"][0]["injected"]) == np.float32("inf")
    assert first["series"]["loss"] in ("inf", "nan")
    assert record["outcome"] == "immediate INF/NaN"
    assert [step["at"] for step in record["steps"]] == [[0, 1, 0], [0, 1, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--model", "RD", "--site", "conv2", "--at", "1:0"), 90, ("no site is named 'conv2'", "conv1", "float32, float16")),
        (("--model", "RD", "--site", "conv1_grad_in", "--at", "1:0"), 90, ("dead",)),
        (("--model", "RD", "--site", "fc", "--at", "7:0"), 82, ("there is no step 7:0 that trains: the last is 2:3",)),
        (("--model", "RD", "--site", "fc", "--at", "early"), 82, ("'early' is not a step",)),
        (("--model", "N64_WT", "--site", "last", "--stage", "forward", "--at", "1:0"), 82, ("64 consecutive", "9")),
        (("--model", "RD", "--site", "fc", "--at", "1:0", "--worker", 1), 82, ("no replica 1: the step runs on 1",)),
        (("--model", "BIT:40", "--site", "fc", "--at", "1:0"), 82, ("no bit 40",)),
        (
            ("--model", "RD", "--site", "fc", "--stage", "forward", "--at", "1:0", "--occurrence", 1),
            90,
            ("no run 1 of", "MatMul' in a step: it has 1"),
        ),
        (("--model", "NONE", "--site", "fc", "--at", "1:0"), 82, ("no fault model 'NONE'",)),
        (("--model", "RD", "--at", "1:0"), 64, ("--site",)),
        (("--model", "RD", "--site", "fc", "--at", "1:0", "--until", "0:3"), 64, ("before the fault", "1:0")),
        (("--model", "RD", "--site", "fc", "--at", "1:0", "--steps", 2, "--permanent"), 64, ("--permanent", "--steps 2")),
    ],
)
def test_a_fault_that_cannot_be_is_refused_with_the_reason(
    folder: Path, options: tuple[object, ...], code: int, words: tuple[str, ...]
) -> None:
    run = _command(folder, "inject", *options, "program.py", *PLAIN)

    assert run.status == code, run.err
    assert all(word in run.err for word in words), run.err
    assert len([line for line in run.err.splitlines() if line.startswith("detrain: error")]) == 1


def test_a_record_of_another_program_is_refused(folder: Path) -> None:
    _injected(
        folder, PLAIN, "--model", "RD", "--site", "fc", "--stage", "forward", "--at", "1:0", "--until", "+1", "--out", "r.json"
    )
    (folder / "other.py").write_text(PROGRAM + "# other\nprint()\n")

    late = _command(folder, "inject", "r.json", "--occurrence", 1, "program.py", *PLAIN)
    assert (late.status, "did not run, or not 2 times" in late.err) == (92, True), late.err
    run = _command(folder, "replay", "r.json", "other.py", *PLAIN)
    again = _command(folder, "inject", "r.json", "other.py", *PLAIN)
    altered = json.loads((folder / "r.json").read_text())
    altered["steps"][0]["state"] = "0" * 32
    (folder / "r.json").write_text(json.dumps(altered))
    differs = _command(folder, "replay", "r.json", "program.py", *PLAIN)

    assert (run.status, again.status) == (76, 76), run.err + again.err
    assert (differs.status, "1:0" in differs.err, "variables" in differs.err) == (93, True, True), differs.err


def test_sites_have_the_same_names_in_a_resumed_process(folder: Path) -> None:
    """A trial that starts at a checkpoint builds its functions in another order than a fresh run; the site must be
    found.
    """
    record = _injected(
        folder,
        FIT,
        "--model",
        "ZERO",
        "--site",
        "*optimizer*Sqrt*",
        "--at",
        "2:1",
        "--until",
        "+1",
    )

    assert record["fired"] == 1
