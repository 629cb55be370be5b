"""One writer a home; large states are written in the background; errors of it surface;

SIGTERM ends with a checkpoint.
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detrain.base import errors
from detrain.base.errors import StoreError
from detrain.store import read, read_meta
from detrain.store.background_writer import Writer
from detrain.store.catalogue import parse_name
from tests.e2e.programs import FOR_LOOPS, PRELUDE
from tests.e2e.runs import Run, compared, environment

SLOW = FOR_LOOPS.replace('die(f"{epoch}:{step}")', "import time; time.sleep(0.05)")
LARGE = PRELUDE("""
optimizer = Optimizer(np.ones(700_000))
for epoch in range(5):
    for step in range(4):
        x = np.random.normal(size=700_000)
        optimizer.apply_gradients(x)
        die(f"{epoch}:{step}")
    print(epoch, optimizer.weights.sum().hex(), flush=True)
""")


def started(folder: Path, text: str, *options: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(text)
    command = [sys.executable, "-m", "detrain", "run", *options, "program.py"]
    return subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob(pattern)) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_second_run_of_the_program_is_refused_while_the_first_runs(tmp_path: Path, detrain: Run) -> None:
    detrain("--help", cwd=tmp_path)  # starting the server may take longer than the first run does
    first = started(tmp_path, SLOW)
    wait_for(tmp_path, "ckpt/*.h5")
    second = detrain("run", "program.py", cwd=tmp_path)
    out, err = first.communicate()
    third = detrain("run", "program.py", cwd=tmp_path)

    assert second.status == errors.HomeInUse.exit_code
    assert f"process {first.pid} on" in second.err
    assert (first.returncode, third.status) == (0, 0), err
    assert out.splitlines()[-1] == third.last_line()


def test_a_killed_run_leaves_no_lock_behind(tmp_path: Path, detrain: Run) -> None:
    first = started(tmp_path, SLOW)
    wait_for(tmp_path, "ckpt/*.h5")
    first.kill()
    first.communicate()

    assert detrain("run", "program.py", cwd=tmp_path).status == 0


COUNTING = """
import keras
import tensorflow as tf
counts = [tf.Variable(tf.zeros([1_000_000])) for _ in range(4)]
optimizer = keras.optimizers.SGD(1.0)
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = -sum(map(tf.reduce_sum, counts))
    optimizer.apply_gradients(zip(tape.gradient(loss, counts), counts))
for epoch in range(3):
    for batch in tf.data.Dataset.range(8):
        step()
"""


def test_a_large_state_is_that_of_its_cut_though_training_goes_on_while_it_is_written(tmp_path: Path, detrain: Run) -> None:
    detrain("run", "--every", "1b", "--keep", "100", _program(tmp_path, COUNTING), cwd=tmp_path).ok()
    saved = [read(path) for path in sorted((tmp_path / "ckpt").glob("*.h5"))]

    assert {snapshot.meta.batches_done for snapshot in saved} == set(range(1, 25))
    for snapshot in saved:
        counts = [array for array in snapshot.tensors.values() if array.size == 1_000_000]
        assert len(counts) == 4
        assert all((array == snapshot.meta.batches_done).all() for array in counts)


def test_large_states_resume_to_the_bit(tmp_path: Path, detrain: Run) -> None:
    _, _, resumed = compared(detrain, tmp_path, LARGE, at="3:1", whole="run", is_tail=True)

    assert "resuming" in resumed.err


def _program(folder: Path, text: str) -> Path:
    (folder / "program.py").write_text(text)
    return folder / "program.py"


@pytest.mark.parametrize("text", [FOR_LOOPS, LARGE], ids=["small", "large"])
def test_a_home_that_goes_away_while_training(text: str, tmp_path: Path, detrain: Run) -> None:
    gone = text.replace("for epoch in range(", "import shutil\nfor epoch in range(", 1) if text is LARGE else text
    gone = gone.replace('die(f"{epoch}:{step}")', 'shutil.rmtree("ckpt", ignore_errors=True)').replace(
        "import os,", "import shutil, os,"
    )
    stopped = detrain("run", _program(tmp_path, gone), cwd=tmp_path)
    warned = detrain("run", "--on-save-error", "warn", "program.py", cwd=tmp_path).ok()

    assert stopped.status == StoreError.exit_code
    assert "cannot write journal" in stopped.err
    assert "No such file or directory" in stopped.err
    assert "training goes on without this checkpoint" in warned.err


@pytest.mark.parametrize("metric", ["total", "min:history.-1", "max:counts.batches", "max:optimizer.steps", "nothing"])
def test_the_best_by_a_number_of_the_program_is_kept(metric: str, tmp_path: Path, detrain: Run) -> None:
    program = _program(tmp_path, FOR_LOOPS)
    run = detrain("run", "--keep", "1", "--keep-best", metric, program, cwd=tmp_path).ok()
    metrics = {parse_name(path).cursor.epoch: read_meta(path).metric for path in (tmp_path / "ckpt").glob("*.h5")}  # type: ignore[union-attr]
    printed = [(float(m[2]), int(m[1]) + 1) for m in re.finditer(r"epoch (\d) loss (\S+)", run.out)]

    if metric in ("total", "min:history.-1"):
        loss, best = min(printed)
        assert metrics == {best: loss, 4: printed[3][0]}
    elif metric == "nothing":
        assert metrics == {4: None}
        assert run.err.count("the program has no number 'nothing' at 0:1".replace("0:1", "1:0")) == 1
    else:
        assert metrics == {4: 32.0}


AT_EXIT = """
import atexit, os, threading, time
import h5py
import numpy as np
class Optimizer:
    def __init__(self):
        self.weights = [np.ones(20_000) for _ in range(40)]
    def apply_gradients(self, x):
        for each in self.weights:
            each -= x
optimizer = Optimizer()
for epoch in range(3):
    for step in range(3):
        optimizer.apply_gradients(np.random.normal())
pwrite = os.pwrite
def slow(*arguments):
    time.sleep(0.002)
    return pwrite(*arguments)
os.pwrite = slow
atexit.register(lambda: print([each.name for each in threading.enumerate() if each is not threading.current_thread()]))
"""


def test_a_save_in_the_background_is_over_before_h5py_leaves(tmp_path: Path, detrain: Run) -> None:
    """At its exit h5py calls HDF5 without its lock: a save that was under way ended the run with an error, or a broken
    process.
    """
    program = _program(tmp_path, AT_EXIT)
    run = detrain("run", "--keep", "9", program, cwd=tmp_path).ok()

    assert run.out == "[]\n"
    assert len([read_meta(path) for path in (tmp_path / "ckpt").glob("*.h5")]) == 3


FIT = """
import keras, numpy as np
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.normal(size=(64, 4))
history = model.fit(x, x.sum(1), validation_split=0.25, epochs=3, verbose=0)
print([value for value in history.history["val_loss"]])
"""


def test_a_metric_of_keras_by_its_name(tmp_path: Path, detrain: Run) -> None:
    run = detrain("run", "--keep-best", "val_loss", _program(tmp_path, FIT), cwd=tmp_path).ok()
    metrics = [read_meta(path).metric for path in sorted((tmp_path / "ckpt").glob("*.h5"))]

    assert metrics == ast.literal_eval(run.out)


FULL = """
            if os.environ.get("FULL") == f"{epoch}:{step}":
                pwrite = os.pwrite
                def refuse(*arguments):
                    raise OSError(28, "No space left on device")
                os.pwrite = refuse
            if os.environ.get("FULL") and epoch == 2 and step == 7:
                os.pwrite = pwrite
"""


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, detrain: Run) -> None:
    program = _program(tmp_path, FOR_LOOPS.replace('            die(f"{epoch}:{step}")\n', FULL))
    whole = detrain("run", "--ckpt", "whole", program, cwd=tmp_path)
    stopped = detrain("run", "--ckpt", "stopped", program, cwd=tmp_path, FULL="0:3")
    resumed = detrain("run", "--ckpt", "stopped", program, cwd=tmp_path)
    warned = detrain("run", "--ckpt", "warned", "--on-save-error", "warn", program, cwd=tmp_path, FULL="1:3")
    kept = sorted(path.name for path in (tmp_path / "warned").glob("*.h5"))
    again = detrain("run", "--ckpt", "warned", program, cwd=tmp_path)

    assert stopped.status == StoreError.exit_code
    assert "No space left on device" in stopped.err
    assert stopped.err.count("detrain: error") == 1
    assert (resumed.status, resumed.out) == (0, whole.out)  # nothing had been saved: it began anew
    assert (warned.status, warned.out) == (0, whole.out)
    assert warned.err.count("training goes on without this checkpoint") == 1
    assert [name[-17:-11] for name in kept] == ["e00001", "e00003", "e00004"]
    assert again.last_line() == whole.last_line()


BREAKING = """
import time
fsync = os.fsync
def refuse(*_):
    raise OSError(28, "No space left on device")
for epoch"""
LARGE_FULL = (
    LARGE.replace("        x = np", "        time.sleep(0.1)\n        if step == 2: os.fsync = fsync\n        x = np")
    .replace("\nfor epoch", BREAKING, 1)
    .replace("    print(epoch", "    if os.environ.get('FULL') == str(epoch): os.fsync = refuse\n    print(epoch")
)


def test_a_background_save_that_fails_ends_the_run_at_the_next_probe(tmp_path: Path, detrain: Run) -> None:
    run = detrain("run", _program(tmp_path, LARGE_FULL), cwd=tmp_path, FULL="0")

    assert run.status == StoreError.exit_code
    assert "No space left on device" in run.err
    assert [line[0] for line in run.out.splitlines()] == ["0"]


def test_a_background_save_that_fails_costs_only_itself_if_that_is_asked(tmp_path: Path, detrain: Run) -> None:
    program = _program(tmp_path, LARGE_FULL)
    run = detrain("run", "--keep", "9", "--on-save-error", "warn", program, cwd=tmp_path, FULL="0").ok()
    epochs = sorted(parse_name(path).cursor.epoch for path in (tmp_path / "ckpt").glob("*.h5"))  # type: ignore[union-attr]

    assert run.err.count("training goes on without this checkpoint") == 1
    assert epochs == [2, 3, 4, 5]


def test_sigterm_ends_with_a_checkpoint_at_the_next_cut(tmp_path: Path, detrain: Run) -> None:
    run = started(tmp_path, SLOW, "--every", "100b")
    wait_for(tmp_path, "ckpt/*e00001-e*.h5")
    time.sleep(0.12)
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate()
    in_epoch = list((tmp_path / "ckpt").glob("*-l0*.h5"))
    resumed = detrain("run", "--every", "100b", "program.py", cwd=tmp_path)
    whole = detrain("run", "--ckpt", "whole", "program.py", cwd=tmp_path)

    assert run.returncode == -signal.SIGTERM
    assert "ended by SIGTERM with a checkpoint" in err
    assert in_epoch
    assert whole.out.startswith(out)
    assert resumed.out == whole.out[len(out) :]


def test_sigterm_is_the_programs_if_it_says_so(tmp_path: Path) -> None:
    run = started(tmp_path, SLOW, "--on-sigterm", "ignore")
    wait_for(tmp_path, "ckpt/*.h5")
    run.send_signal(signal.SIGTERM)
    _out, err = run.communicate()

    assert run.returncode == -signal.SIGTERM
    assert "SIGTERM" not in err


def test_the_writer_waits_and_hands_errors_on() -> None:
    writer, done = Writer(), list[int]()

    def slow() -> None:
        time.sleep(0.2)
        done.append(1)

    def fails() -> None:
        raise StoreError("the disk is full", "make room")

    writer.write(slow, is_large=True)
    assert done == []
    writer.write(lambda: done.append(2), is_large=True)
    writer.drain()
    assert done == [1, 2]
    writer.write(fails, is_large=True)
    with pytest.raises(StoreError, match="disk is full"):
        writer.drain()
    assert not writer.has_failed
    writer.drain()

    def has_a_defect() -> None:
        raise ZeroDivisionError

    writer.write(has_a_defect, is_large=True)
    with pytest.raises(ZeroDivisionError):
        writer.drain()
    with pytest.raises(StoreError, match="disk is full"):
        writer.write(fails, is_large=False)


FORKING = PRELUDE("""
import multiprocessing, time
optimizer = Optimizer(np.ones(3))
for epoch in range(2):
    for step in range(2):
        x = np.ones(3)
        optimizer.apply_gradients(x)
        for _ in range(40):  # the signal often comes before the worker has come to itself
            worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            worker.start()
            worker.terminate()
            worker.join(20)
            assert worker.exitcode == -signal.SIGTERM, worker.exitcode
show(optimizer.weights)
""")


def test_forked_workers_end_by_sigterm_as_ever(tmp_path: Path, detrain: Run) -> None:
    run = detrain("run", _program(tmp_path, FORKING), cwd=tmp_path).ok()

    assert "SIGTERM" not in run.err


FORKS = """
import os, signal, sys, time
from detrain.store.background_writer import Writer
writer, done = Writer(), []
writer.write(lambda: time.sleep(0.5) or done.append(1), is_large=True)
child = os.fork()
if not child:
    signal.alarm(20)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), done)
"""


def test_a_forked_child_does_not_wait_for_the_thread_of_its_parent() -> None:
    quiet = [sys.executable, "-W", "ignore::DeprecationWarning"]  # of forks beside threads, from Python 3.12 on
    run = subprocess.run([*quiet, "-c", FORKS], capture_output=True, text=True, timeout=60, env=environment(), check=False)

    assert run.stderr == ""
    assert run.stdout == "7 []\n"
