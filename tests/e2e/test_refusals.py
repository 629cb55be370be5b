"""Bad input: one clear message of two lines at most, the right exit code, nothing lost and nothing overwritten."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from detrain.base import errors
from detrain.cli import main
from detrain.python.process.environment import threads_here
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE, FOR_LOOPS, PRELUDE
from tests.e2e.refused import assert_refused, starting_twice
from tests.e2e.runs import Run, after_deaths, compared, ran
from tests.e2e.runs import detrain as in_a_new_process
from tests.store.forging import with_version


@pytest.fixture
def detrain(server: Server) -> Run:
    """Each start that is refused is made twice, and the ways out that it names are taken."""
    return starting_twice(server.detrain)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Path:
    """A folder with a program and checkpoints of a run of it that was killed in its third epoch."""
    folder = tmp_path_factory.mktemp("trained")
    assert ran(server, folder, FOR_LOOPS, DIE_AT="2:3").status == -9
    return folder


@pytest.fixture
def home(tmp_path: Path, trained: Path) -> Path:
    """The same, for a test alone."""
    return Path(shutil.copytree(trained, tmp_path, dirs_exist_ok=True, symlinks=True))


def contents(folder: Path) -> dict[str, bytes]:
    """All but who holds the home, and what its processes have said of themselves."""
    return {path.name: path.read_bytes() for path in (folder / "ckpt").iterdir() if path.suffix not in (".lock", ".chronicle")}


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "run --keep 0 program.py",
        "run --nonsense program.py",
        "ckpt nothing",
        "diff a",
        "frobnicate",
        "verify --kills x p.py",
        "verify --nonsense p.py",
    ],
)
def test_a_command_line_that_cannot_be_taken(command: str, tmp_path: Path, detrain: Run) -> None:
    assert_refused(detrain(*command.split(), cwd=tmp_path), errors.UsageError, "--help")


@pytest.mark.parametrize("every", ["0", "-1", "3x", "0b", "1.5", "", "10sec"])
def test_a_distance_between_checkpoints_that_is_none(every: str, home: Path, detrain: Run) -> None:
    assert_refused(detrain("run", "--every", every, "program.py", cwd=home), errors.UsageError, "--every", repr(every), "10min")


@pytest.mark.parametrize("scaler", ["", "import torch\nclass Scaler:\n    def fit(self, x): return self\nScaler().fit([1])\n"])
def test_a_distance_in_epochs_of_a_program_without_them(scaler: str, tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text(
        PRELUDE + scaler + "optimizer = Optimizer(np.ones(3))\nfor step in range(6):\n    optimizer.apply_gradients(1)\n"
    )

    run = detrain("run", "--every", "2", "program.py", cwd=tmp_path).ok()

    assert "no loop over epochs: a checkpoint each 10 minutes" in run.err


def test_no_such_program(tmp_path: Path, detrain: Run) -> None:
    assert_refused(detrain("run", "nope.py", cwd=tmp_path), errors.ProgramNotFound, "'nope.py'")
    assert_refused(detrain("run", "-m", "nope", cwd=tmp_path), errors.ProgramNotFound, "'nope'")


@pytest.mark.parametrize("command", [["prog\udcff.py"], ["program.py", "\udcff"], ["--ckpt", "h\udcff", "program.py"]])
def test_a_name_that_is_no_text(command: list[str], tmp_path: Path, detrain: Run) -> None:
    for name in ("program.py", "prog\udcff.py"):
        (tmp_path / name).write_text(FOR_LOOPS)

    assert_refused(detrain("run", *command, cwd=tmp_path), errors.UsageError, "\\udcff", "UTF-8")


def test_no_training_loop(tmp_path: Path, detrain: Run) -> None:
    run = ran(detrain, tmp_path, "for i in range(3):\n    print(i)\n")

    assert_refused(run, errors.NoStructure, "program.py", "inst.info")
    assert run.out == ""


def test_no_training_loop_of_a_framework_that_is_known(tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text("import mlx.core as mx\nfor i in range(3):\n    state = train(state)\n")

    assert_refused(
        detrain("run", "program.py", cwd=tmp_path), errors.NoStructure, "it imports mlx", "train with PyTorch, TensorFlow or JAX"
    )


FOREIGN = PRELUDE("""
import mlx
optimizer = Optimizer(np.ones(3))
for epoch in range(2):
    for batch in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
""")


def test_a_loop_that_trains_with_another_framework(tmp_path: Path) -> None:
    """Its weights were in no checkpoint, and a run that was killed went on with new ones, in silence."""
    (tmp_path / "program.py").write_text(FOREIGN)
    (tmp_path / "mlx.py").write_text("")

    assert_refused(in_a_new_process("run", "program.py", cwd=tmp_path), errors.FrameworkUnsupported, "uses mlx", "--bare")
    assert not list(tmp_path.glob("ckpt/*.h5"))
    assert in_a_new_process("run", "--bare", "program.py", cwd=tmp_path).status == 0


IN_SESSION = """
import tensorflow as tf
v1 = tf.compat.v1
HEAD
with tf.Graph().as_default(), v1.Session() as session:
    weight = v1.get_variable("weight", initializer=tf.ones([3]), trainable=TRAINABLE)
    update = v1.assign_add(weight, [1.0, 2.0, 3.0])
    session.run(v1.global_variables_initializer())
    for epoch in range(2):
        for batch in range(3):
            session.run(update)
    print(session.run(weight))
"""
CLUSTER = """
import tensorflow as tf
spec = tf.train.ClusterSpec({"worker": ["localhost:29871", "localhost:29872"], "ps": ["localhost:29873"]})
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=0, rpc_layer="grpc")
"""
KERAS_2 = """
import numpy as np, tf_keras
model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((4, 2)), np.ones((4, 1)), epochs=2)
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (IN_SESSION.replace("HEAD", "").replace("TRAINABLE", "True"), "session of TensorFlow 1 holds weights (weight:0)"),
        (IN_SESSION.replace("HEAD", "v1.disable_v2_behavior()").replace("TRAINABLE", "False"), "disables eager execution"),
        (KERAS_2, "Model.fit of Keras 2"),
        (CLUSTER + "tf.distribute.MultiWorkerMirroredStrategy(resolver)", "one of 2 processes"),
        (CLUSTER + "tf.distribute.ParameterServerStrategy(resolver)", "from other processes"),
    ],
)
def test_training_out_of_sight(program: str, said: str, tmp_path: Path, server: Server) -> None:
    """Weights in sessions were in no checkpoint; that `fit` of Keras 2 had got none was said when the program ended."""
    (tmp_path / "program.py").write_text(program)

    assert_refused(server.detrain("run", "program.py", cwd=tmp_path), errors.FrameworkUnsupported, said, "--bare")


@pytest.mark.slow
def test_a_session_without_weights_runs(tmp_path: Path, server: Server) -> None:
    run = ran(server, tmp_path, IN_SESSION.replace("HEAD", "").replace("TRAINABLE", "False"))

    assert (run.status, run.out) == (0, "[ 7. 13. 19.]\n")


def test_a_run_that_trains_nothing_says_so(tmp_path: Path, detrain: Run) -> None:
    run = ran(detrain, tmp_path, "class Scaler:\n    def fit(self, x):\n        print(x)\n\nScaler().fit(3)\n")

    assert (run.status, run.out) == (0, "3\n")
    assert "no checkpoint was taken" in run.err


def test_a_home_that_cannot_be_written(tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text(FOR_LOOPS)
    (tmp_path / "file").write_text("")

    assert_refused(detrain("run", "--ckpt", "file", "program.py", cwd=tmp_path), errors.StoreError, "file", "--ckpt")


def test_two_programs_share_a_folder(home: Path, detrain: Run) -> None:
    before = contents(home)
    other = ran(detrain, home, FOR_LOOPS, name="other.py")

    assert (other.status, other.out.startswith("epoch 0 ")) == (0, True), other.err
    assert "ckpt holds checkpoints of 'program', none of 'other', which starts beside them" in other.err
    assert {name: data for name, data in contents(home).items() if name in before} == before
    resumed = detrain("run", "program.py", cwd=home)
    assert (resumed.status, "resuming program at" in resumed.err, "beside" in resumed.err) == (0, True, False), resumed.err
    assert resumed.last_line() == other.last_line()  # it is the same program
    again = detrain("run", "other.py", cwd=home)
    assert "beside" not in again.err


def test_fresh_starts_beside_the_checkpoints_of_another_program(home: Path, detrain: Run) -> None:
    before = contents(home)
    ran(detrain, home, FOR_LOOPS, "--fresh", name="other.py").ok()
    after = contents(home)
    again = detrain("run", "program.py", cwd=home)

    assert {name: data for name, data in after.items() if name in before} == before
    assert "resuming program at 2:0" in again.err


def test_fresh_starts_the_same_program_anew_and_keeps_the_old_checkpoints(home: Path, detrain: Run) -> None:
    before = contents(home)

    run = detrain("run", "--fresh", "program.py", cwd=home)

    assert run.out.startswith("epoch 0 ")
    assert {name: data for name, data in contents(home).items() if name in before} == before


@pytest.mark.parametrize("change", ["lr = 2\n", "\ndef helper():\n    pass\n"])
def test_changed_source(change: str, home: Path, detrain: Run) -> None:
    before = contents(home)
    (home / "program.py").write_text(FOR_LOOPS + change)

    assert_refused(detrain("run", "program.py", cwd=home), errors.AnotherProgram, "source", "program.py", "--fresh")
    assert contents(home) == before


def test_a_changed_comment_is_no_changed_source(home: Path, detrain: Run) -> None:
    run = ran(detrain, home, "# said in other words\n" + FOR_LOOPS)

    assert (run.status, "resuming" in run.err) == (0, True), run.err


def test_other_arguments(home: Path, detrain: Run) -> None:
    assert_refused(detrain("run", "program.py", "--lr", "1", cwd=home), errors.AnotherProgram, "arguments", "--lr")


def test_another_seed(home: Path, detrain: Run) -> None:
    assert_refused(detrain("run", "--seed", "7", "program.py", cwd=home), errors.UsageError, "--seed 7")


DATA = PRELUDE("""
data = np.load("data.npy")
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    for step in range(4):
        x = data[epoch * 4 + step]
        optimizer.apply_gradients(x)
        die(f"{epoch}:{step}")
show(optimizer.weights)
""")


TENSOR_DATA = DIE("""
import numpy as np, tensorflow as tf
weight = tf.Variable(tf.zeros(3))
class Optimizer:
    def apply_gradients(self, pairs):
        for gradient, variable in pairs:
            variable.assign_sub(gradient)
optimizer = Optimizer()
for epoch in range(3):
    for step, x in enumerate(tf.data.Dataset.from_tensor_slices(np.load("data.npy")).batch(3)):
        optimizer.apply_gradients([(tf.cast(x[0], "float32"), weight)])
        die(f"{epoch}:{step}")
""")

LAZY_DATA = DATA.replace('data = np.load("data.npy")\n', "").replace("x = data[epoch", 'x = np.load("data.npy")[epoch')


@pytest.mark.parametrize(
    ("program", "said"), [(DATA, "data.base: the array"), (LAZY_DATA, "batch 1:0"), (TENSOR_DATA, "batch 1:0")]
)
def test_another_dataset_is_found_by_its_digest(program: str, said: str, tmp_path: Path, detrain: Run) -> None:
    """One that the loop reads, and that is newer than the checkpoint, might be the loop's own: that must be allowed."""
    (tmp_path / "program.py").write_text(program)
    data = np.random.default_rng(0).normal(size=(12, 3))
    np.save(tmp_path / "data.npy", data)
    detrain("run", "program.py", cwd=tmp_path, DIE_AT="1:2")
    before = contents(tmp_path)

    np.save(tmp_path / "data.npy", data + 1e-9)
    command = ["run", "program.py"]
    if program != DATA:
        assert_refused(detrain(*command, cwd=tmp_path), errors.NotCapturable, "data.npy is read, which was written after")
        command[1:1] = ["--allow-lost", "data.npy"]
    for _ in range(2):
        assert_refused(detrain(*command, cwd=tmp_path), errors.Diverged, said, "digest")
        assert contents(tmp_path) == before
    np.save(tmp_path / "data.npy", data)

    assert detrain(*command, cwd=tmp_path).status == 0


READINGS = PRELUDE("""
optimizer = Optimizer(np.ones(3))
for phase in range(2):
    infos = {"episode": {"t": np.array([os.times().elapsed]), "length": np.zeros(2)}}
    for epoch in range(3):
        for step in range(4):
            optimizer.apply_gradients(np.random.normal(size=3))
            die(f"{phase}:{epoch}:{step}")
        assert infos["episode"]["t"][0] > infos["episode"]["length"].sum()
    print(phase, infos["episode"]["t"].tobytes().hex())
show(optimizer.weights)
""")


@pytest.mark.parametrize("place", ["0:1:2", "1:1:2", "1:0:0"])
def test_a_reading_of_a_clock_that_the_loop_leaves_alone_is_put_back(place: str, tmp_path: Path, detrain: Run) -> None:
    """No checkpoint said that it would be another one, and the resume was refused."""
    _, died, run = compared(detrain, tmp_path, READINGS, every="3b", at=place)

    read = {line for out in (died.out, run.out) for line in out.splitlines() if line.startswith("0 ")}
    assert len(read) == 1
    assert "put back as it was: infos['episode']['t']\n" in run.err


COUNTED = PRELUDE("""
import time
from time import perf_counter_ns
clocks = [time.monotonic(), time.process_time(), time.thread_time_ns(), time.clock_gettime(time.CLOCK_MONOTONIC)]
optimizer = Optimizer(np.ones(3))
noise = np.random.default_rng(perf_counter_ns()).normal(size=(9000, 3)) + np.array(clocks)[:3]
for epoch in range(3):
    for step in range(4):
        optimizer.apply_gradients(noise[epoch * 4 + step])
        die(f"{epoch}:{step}")
    print(epoch, noise.sum().hex(), flush=True)
show(optimizer.weights)
""")


@pytest.mark.parametrize("every", ["1", "3b"])
def test_a_large_array_that_is_made_of_a_clock_before_the_loop_is_exact(every: str, tmp_path: Path, detrain: Run) -> None:
    """It was kept by its digest, and the resume was refused unsaid."""
    died, run = after_deaths(detrain, tmp_path, COUNTED, at="1:2", every=every)

    assert run.status == 0, run.err
    assert {line.split()[1] for line in (died.out + run.out).splitlines() if line[0].isdigit()} == {died.out.split()[1]}


def test_a_large_array_that_is_not_the_first_runs_is_named(tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text(DATA)
    np.save(tmp_path / "data.npy", np.zeros((10000, 3)))
    detrain("run", "program.py", cwd=tmp_path, DIE_AT="1:2")

    np.save(tmp_path / "data.npy", np.ones((10000, 3)))

    assert_refused(detrain("run", "program.py", cwd=tmp_path), errors.Diverged, "data", "digest")


def newest(home: Path) -> Path:
    return sorted((home / "ckpt").glob("*.h5"))[-1]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _flip_in_the_weights(path: Path) -> None:
    with h5py.File(path) as file:
        offset = file["python/graph"].id.get_offset() + 3
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_truncate, _flip_in_the_weights, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(damage: Callable[[Path], None], home: Path, detrain: Run) -> None:
    whole = detrain("run", "--ckpt", "elsewhere", "program.py", cwd=home)
    path = newest(home)
    damage(path)
    bytes_before = path.read_bytes()

    verdict = detrain("ckpt", "verify", "ckpt", cwd=home)
    run = detrain("run", "--every", "10", "program.py", cwd=home)

    assert verdict.status == errors.CheckpointDamaged.exit_code
    assert "BAD" in verdict.out
    assert path.name in run.err
    assert "resuming program at 1:0" in run.err
    assert run.out == "".join(line + "\n" for line in whole.out.splitlines()[1:])
    aside = path.with_name(f"{path.name}.bad")
    assert aside.read_bytes() == bytes_before
    assert f"kept aside as {aside.name}" in run.err


def test_when_no_checkpoint_is_good_nothing_is_started_over_silently(home: Path, detrain: Run) -> None:
    for path in (home / "ckpt").glob("*.h5"):
        _truncate(path)
    before = contents(home)

    assert_refused(detrain("run", "program.py", cwd=home), errors.CheckpointDamaged, "--fresh")
    assert contents(home) == before


def test_a_checkpoint_of_a_newer_format(home: Path, detrain: Run) -> None:
    with_version(newest(home), 99)
    before = contents(home)

    assert_refused(detrain("run", "program.py", cwd=home), errors.CheckpointTooNew, "99", "update")
    assert contents(home) == before


def _with_environment(path: Path, **changes: str) -> None:
    """Write a checkpoint anew, with other entries in its environment."""
    import msgspec

    from detrain.store import Snapshot, read, write

    snapshot = read(path)
    meta = msgspec.structs.replace(snapshot.meta, environment={**snapshot.meta.environment, **changes})
    path.with_name("program-r1.manifest").unlink()  # it would tell that this is not the file that was written
    path.unlink()
    write(path, Snapshot(meta, snapshot.tensors, snapshot.rng, snapshot.python, snapshot.arrays))


def test_another_environment_is_refused_by_name_and_may_be_allowed(home: Path, detrain: Run) -> None:
    _with_environment(newest(home), numpy="1.0.0", cpu="abacus")

    assert_refused(detrain("run", "program.py", cwd=home), errors.EnvironmentChanged, "numpy was '1.0.0'", "abacus")
    assert detrain("run", "--allow-environment", "program.py", cwd=home).status == 0


@pytest.mark.parametrize(
    ("first", "then", "again"),
    [
        ({"TF_ENABLE_ONEDNN_OPTS": "0"}, {"TF_ENABLE_ONEDNN_OPTS": "1"}, "0"),
        ({"PYTHONHASHSEED": "5"}, {"PYTHONHASHSEED": "7"}, "5"),
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": ""}, "1"),
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "7"}, "1"),
        ({"OMP_NUM_THREADS": ""}, {"OMP_NUM_THREADS": "7"}, str(threads_here())),
    ],
)
def test_threads_and_settings_of_the_first_run_are_set_again(
    first: dict[str, str], then: dict[str, str], again: str, home: Path, detrain: Run
) -> None:
    shown = f"main()\nprint('again', os.environ.get({next(iter(first))!r}))\n"
    (home / "program.py").write_text(FOR_LOOPS.replace("main()\n", shown))
    shutil.rmtree(home / "ckpt")
    whole = detrain("run", "--ckpt", "other", "program.py", cwd=home, **first).ok()
    detrain("run", "program.py", cwd=home, DIE_AT="2:3", **first).died()

    run = detrain("run", "program.py", cwd=home, **then).ok()

    assert run.last_line() == f"again {again}"
    assert run.matching("^weights") == whole.matching("^weights")


STRICT = PRELUDE("""
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    log = open(os.devnull, "a")
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3))
    optimizer.log = log
show(optimizer.weights)
""")


def test_what_cannot_be_captured_is_named_and_refused_when_strict(tmp_path: Path, detrain: Run) -> None:
    run = ran(detrain, tmp_path, STRICT, "--ckpt", "one").ok()
    strict = detrain("run", "--ckpt", "two", "--strict", "program.py", cwd=tmp_path)

    assert "optimizer.log (_io.TextIOWrapper)" in run.err
    assert_refused(strict, errors.NotCapturable, "optimizer.log")


@pytest.mark.parametrize("inside", [False, True])
def test_an_inst_info_whose_epoch_loop_is_not_around_the_batch_loop(inside: bool, tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text("for epoch in (0, 1):\n    for x in (1, 2):\n        print(x)\n")
    loops = {"epoch_loop": 2, "batch_loop": 1 if inside else 2}
    nest = {name: {"file": "program.py", "line": line, "column": 0, "kind": "for"} for name, line in loops.items()}
    (tmp_path / "inst.info").write_text(json.dumps({"format": 1, "source": "by hand", "nests": [{**nest, "update_line": 3}]}))

    run = detrain("run", "program.py", cwd=tmp_path)

    assert_refused(run, errors.StructureInvalid, "program.py:2", "not around")
    assert run.out == ""


def test_a_file_that_may_not_be_looked_at_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def denied(_path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", "home/inst.info")

    (tmp_path / "program.py").write_text("import tensorflow\n")
    monkeypatch.setattr(Path, "is_dir", denied)

    assert main(["info", str(tmp_path / "program.py")]) == errors.StoreError.exit_code
    assert capsys.readouterr().err.splitlines()[0] == "detrain: error: Permission denied: 'home/inst.info'"


OPENCV = PRELUDE("""
import cv2
optimizer = Optimizer(np.ones(3))
noise = np.zeros((3, 1), np.float32)
cv2.randn(noise, 0.0, 1.0)
for epoch in range(4):
    for batch in range(5):
        gradient = np.full(3, 0.1)
        cv2.randn(noise, 0.0, 1.0)
        optimizer.apply_gradients(gradient + noise[:, 0])
        die(f"{epoch}:{batch}")
show(optimizer.weights)
""")


def test_a_generator_that_cannot_be_read_is_named_where_the_loop_draws_from_it(tmp_path: Path) -> None:
    """OpenCV's began anew in a resumed run, in silence."""
    (tmp_path / "program.py").write_text(OPENCV)
    before = OPENCV.replace("        cv2.randn(noise, 0.0, 1.0)\n", "")
    (tmp_path / "before.py").write_text(before)

    inside = in_a_new_process("run", "program.py", cwd=tmp_path)
    outside = in_a_new_process("run", "--fresh", "before.py", cwd=tmp_path)
    strict = in_a_new_process("run", "--ckpt", "other", "--strict", "program.py", cwd=tmp_path)

    assert "not captured" in inside.err
    assert "the generator of cv2.randn" in inside.err
    assert (outside.status, outside.err) == (0, "")
    assert_refused(strict, errors.NotCapturable, "cv2.randn")


def test_a_training_loop_in_the_body_of_a_class(tmp_path: Path, server: Server) -> None:
    """The program got a ValueError of detrain's, which it could have caught."""
    (tmp_path / "program.py").write_text(
        "import tensorflow as tf\nw = tf.Variable(1.0)\noptimizer = tf.keras.optimizers.SGD(0.1)\nclass Training:\n"
        "    for epoch in range(2):\n        for step in range(3):\n"
        "            try:\n                optimizer.apply([tf.constant(1.0)], [w])\n"
        "            except Exception:\n                print('caught')\n"
    )

    run = server.detrain("run", "program.py", cwd=tmp_path)

    assert_refused(run, errors.CannotRewrite, "program.py:6", "body of a class")
    assert run.out == ""


CHILDREN = PRELUDE("""
import multiprocessing, subprocess, threading, time

def serve():
    threading.Event().wait()

def rest():
    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()

def noisy(gradient):
    return gradient + np.random.normal(size=3)

optimizer = Optimizer(np.ones(3))
context = multiprocessing.get_context("fork")
ended = subprocess.Popen(["true"])
shared = multiprocessing.get_context("spawn").Semaphore()  # starts Python's resource tracker
thread = threading.Thread(target=serve, name="server", daemon=True)
numbered = threading.Thread(target=serve, daemon=True)
cat = lambda: subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
kinds = {"pool": lambda: context.Pool(1), "idle": cat, "asked": cat}
pool = {**kinds, "thread": thread.start, "numbered": numbered.start, "none": rest}[sys.argv[1]]()
for epoch in range(2):
    for batch in range(3):
        gradient = np.full(3, 0.1)
        if sys.argv[1] == "asked":
            pool.stdin.write(b"a line\\n"), pool.stdin.flush(), pool.stdout.readline()
        optimizer.apply_gradients(pool.apply(noisy, (gradient,)) if sys.argv[1] == "pool" else gradient)
""")


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("pool", "child process python"),
        ("asked", "child process cat"),
        ("idle", ""),
        ("thread", "what the thread server holds"),
        ("numbered", "what the thread Thread (serve) holds"),
        ("none", ""),
    ],
)
def test_child_processes_and_threads_are_named(kind: str, named: str, tmp_path: Path, detrain: Run) -> None:
    """A worker's random streams began anew in a resumed run, in silence. What has ended, and what is not in the
    program's own code, hold nothing."""
    (tmp_path / "program.py").write_text(CHILDREN)

    run = detrain("run", "program.py", kind, cwd=tmp_path).ok()

    assert (named in run.err) if named else (run.err == "")


IN_TASKS = PRELUDE("""
import asyncio

async def train(queue, optimizer):
    for epoch in range(3):
        for batch in range(4):
            gradient = await queue.get()
            optimizer.apply_gradients(gradient)

async def produce(queue):
    for _ in range(12):
        await queue.put(np.random.normal(size=3))

class Ready:
    async def get(self):
        return np.random.normal(size=3)

async def main():
    queue = asyncio.Queue(3)
    MAIN

asyncio.run(main())
""")


@pytest.mark.parametrize(
    ("main", "named"),
    [
        ("await asyncio.gather(produce(queue), train(queue, Optimizer(np.ones(3))))", "what the task produce of asyncio holds"),
        ("await train(Ready(), Optimizer(np.ones(3)))", ""),
        ("queue._maxsize = 0; await produce(queue); await train(queue, Optimizer(np.ones(3)))", "queue in train()"),
    ],
)
def test_tasks_beside_the_one_that_trains_are_named(main: str, named: str, tmp_path: Path, detrain: Run) -> None:
    """A task that had made batches beforehand began anew in a resumed run, which trained on others: in silence, killed
    at a cut.
    """
    run = ran(detrain, tmp_path, IN_TASKS.replace("MAIN", main), "--every", "3b").ok()

    assert (named in run.err) if named else (run.err == "")


def test_an_inst_info_with_a_wrong_line(home: Path, detrain: Run) -> None:
    info = {
        "format": 1,
        "source": "by hand",
        "nests": [{"batch_loop": {"file": "program.py", "line": 3, "column": 0, "kind": "for"}}],
    }
    (home / "inst.info").write_text(json.dumps(info))

    assert_refused(detrain("run", "program.py", cwd=home), errors.StructureInvalid, "program.py:3", "loops start at lines")


def test_the_commands_help_shows_an_example(detrain: Run) -> None:
    for command in (["run"], ["instrument"], ["info"], ["ckpt", "ls"], ["ckpt", "show"], ["ckpt", "verify"]):
        assert f"detrain {' '.join(command)}" in detrain(*command, "--help").out


def test_ckpt_ls_and_show_print_tables_and_json(home: Path, detrain: Run) -> None:
    rows = json.loads(detrain("ckpt", "ls", "--json", "ckpt", cwd=home).out)
    shown = json.loads(detrain("ckpt", "show", "--json", "ckpt", cwd=home).out)

    assert [row["cursor"] for row in rows] == ["1:0", "2:0"]
    assert shown["meta"]["epoch"] == 2
    assert {"python", "numpy"} <= set(shown["rng"])
    assert any("best" in name for name in shown["python"])
    assert "2:0" in detrain("ckpt", "ls", "ckpt", cwd=home).out
    assert "random stream" in detrain("ckpt", "show", "ckpt", cwd=home).out


def test_tables_show_text_that_looks_like_markup_as_it_is(tmp_path: Path, detrain: Run) -> None:
    program = "program-of-a-long-name.py"
    words = 'words = ["[/INST]", "[bold]"]\n'
    (tmp_path / program).write_text(
        PRELUDE + words + FOR_LOOPS.removeprefix(PRELUDE).replace("die(", "words.append(':smile:'); die(")
    )
    assert detrain("run", program, "--token", "[/INST]", "[bold]", cwd=tmp_path, DIE_AT="2:3").status == -9

    shown = detrain("ckpt", "show", cwd=tmp_path).ok()

    assert "--token [/INST] [bold]" in shown.out
    assert "'[/INST]', '[bold]', ':smile:'" in shown.out


def test_a_table_that_goes_to_a_file_breaks_no_names(home: Path, detrain: Run) -> None:
    program = "program_" + "of_a_long_name_" * 5
    (home / f"{program}.py").write_text(FOR_LOOPS)
    assert detrain("run", "--ckpt", "other", f"{program}.py", cwd=home).status == 0

    listed = detrain("ckpt", "ls", "other", cwd=home).out.splitlines()

    assert sum(line.split()[-1:] == [f"{program}-r1-p0-e00003-e000000.h5"] for line in listed) == 1


def test_verify_of_no_program(tmp_path: Path, detrain: Run) -> None:
    assert_refused(detrain("verify", "nothing.py", cwd=tmp_path), errors.ProgramNotFound, "nothing.py")


def test_ckpt_ls_says_what_is_wrong_with_a_damaged_file(home: Path, detrain: Run) -> None:
    newest = max((home / "ckpt").glob("*.h5"))
    newest.write_bytes(newest.read_bytes()[:-10])

    listed = detrain("ckpt", "ls", cwd=home).out.splitlines()

    assert [line.split()[-1] for line in listed if "unreadable" in line] == [newest.name]
    assert listed[-1].startswith(newest.name)
    assert "not a whole checkpoint" in listed[-1]


def test_a_command_without_its_sub_command_shows_the_help(detrain: Run) -> None:
    run = detrain("ckpt")

    assert run.status == errors.UsageError.exit_code
    assert run.err.startswith("Usage: detrain")
    assert run.err.splitlines()[-2:] == ["detrain: error: no command", "  give one of these"]


@pytest.mark.parametrize("command", [["run", "program.py"], ["info", "program.py"], ["instrument", "program.py"]])
def test_a_checkpoint_home_without_a_name(command: list[str], home: Path, detrain: Run) -> None:
    name, program = command

    assert_refused(detrain(name, "--ckpt", "", program, cwd=home), errors.UsageError, "--ckpt ''", "--ckpt DIR")
    assert not list(home.glob("*.h5"))


WORKERS = PRELUDE("""
import threading

optimizer = Optimizer(np.ones(3))
turn = threading.Barrier(2 if sys.argv[1] == "at-once" else 1)

class Worker(threading.Thread):
    def run(self):
        steps = 0
        HEAD
            turn.wait(timeout=5)
            optimizer.apply_gradients(np.full(3, 0.1))
            steps += 1

first, second = Worker(), Worker()
first.start()
if sys.argv[1] == "in-turn":
    first.join()
second.start()
first.join()
second.join()
show(optimizer.weights)
""")


@pytest.mark.parametrize("head", ["while steps < 4:", "for x in range(4):"])
def test_training_loops_in_several_threads_at_once(head: str, tmp_path: Path, detrain: Run) -> None:
    """Their batches were counted as those of one loop, and a killed run hung, or went on from a state that was none, in
    silence.
    """
    (tmp_path / "train.py").write_text(WORKERS.replace("HEAD", head))

    in_turn = detrain("run", "--every", "1b", "--ckpt", "in-turn", "train.py", "in-turn", cwd=tmp_path).ok()
    at_once = detrain("run", "--every", "1b", "train.py", "at-once", cwd=tmp_path)

    assert in_turn.out.startswith("weights")
    assert (at_once.status, "Traceback" in at_once.err) == (errors.NotCapturable.exit_code, False), at_once.err
    assert all(said in at_once.err for said in ("several threads", "--bare")), "the other thread may write behind it"


BEST_IS_GONE = """
import subprocess
def train(name):
    optimizer = Optimizer(np.ones(3))
    os.makedirs("best")
    for epoch in range(3):
        for step in range(4):
            optimizer.apply_gradients(np.random.normal(size=3))
            die(f"{name}:{epoch}:{step}")
        np.save("best/weights.npy", optimizer.weights)
    show(np.load("best/weights.npy"))
    subprocess.run(["rm", "-r", "best"], check=True)
train("first")
train("second")
"""


def test_a_program_that_fails_on_its_way_to_the_checkpoint_is_told_why(tmp_path: Path, detrain: Run) -> None:
    """What the first training had saved, it reads again behind it; another program has deleted it there."""
    _, run = after_deaths(detrain, tmp_path, PRELUDE + BEST_IS_GONE, at="second:0:2", every="1b")

    assert run.status == 1
    assert "FileNotFoundError" in run.err
    assert "failed on its way to the checkpoint" in run.err.splitlines()[-1]
