"""Under `detrain run` a program looks to itself and to others as under plain `python`."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.programs import PRELUDE
from tests.e2e.runs import Result, after_deaths, compared, detrain, environment, plain, ran

LOOP = """
optimizer = Optimizer(np.ones(3))
for epoch in range(2):
    for step in range(3):
        optimizer.apply_gradients(np.ones(3))
"""

PROGRAMS = {
    "what it sees of itself": PRELUDE
    + LOOP
    + """
print(__name__, __file__, __doc__, __spec__, __package__, type(__loader__).__name__, sys.argv, sys.path[0])
print(sorted(name for name in globals() if not name.startswith(("exec", "record_", "epoch_loop", "batch_loop"))))
print(sys.modules["__main__"].__file__, [name for name in os.environ if "DETRAIN" in name])
""",
    "what its functions took of their locals": PRELUDE
    + """
def train(rate, epochs=3):
    given = locals()
    optimizer = Optimizer(np.ones(3))
    for epoch in range(epochs):
        for step in range(3):
            optimizer.apply_gradients(np.ones(3))
        print(epoch, given)
    return given
print(train(0.5))
""",
    "when an iterator of an epoch goes": PRELUDE
    + """
class Batches:
    def __init__(self, epoch): self.epoch, self.left = epoch, 3
    def __iter__(self): return self
    def __next__(self):
        self.left -= 1
        if self.left < 0: raise StopIteration
        return self.left
    def __del__(self): print("gone", self.epoch)
def train():
    optimizer = Optimizer(np.ones(3))
    for epoch in range(3):
        batches = Batches(epoch)
        for batch in batches:
            optimizer.apply_gradients(np.ones(3))
        print(epoch)
train()
""",
    "exit status": PRELUDE + LOOP + "sys.exit(3)\n",
    "exit message": PRELUDE + LOOP + "sys.exit('no')\n",
    "standard error": PRELUDE + LOOP + "print('hey', file=sys.stderr)\n",
    "an exception in the loop": PRELUDE
    + LOOP
    + """
        # a comment
        if epoch == 1:
            values = {"a": 1}
            print(values["a"] + values["b"])
""",
    "an exception in the loop's header": PRELUDE
    + """
optimizer = Optimizer(np.ones(3))
for epoch in range(2):
    for step in [1, 2, 3 // (1 - epoch)]:
        optimizer.apply_gradients(np.ones(3))
""",
    "an exception in a loader": PRELUDE
    + """
def load():
    yield 1
    raise RuntimeError("no more")
optimizer = Optimizer(np.ones(3))
for epoch in range(2):
    for x in load():
        optimizer.apply_gradients(np.ones(3))
""",
    "a chained exception": PRELUDE
    + LOOP
    + """
def first():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise ValueError("outer") from error
first()
""",
    "exit handlers": PRELUDE + LOOP + "import atexit\natexit.register(print, 'bye')\n",
}


def _last_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("detrain:")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_output_status_and_traceback_are_those_of_plain_python(name: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAMS[name])

    expected = plain("program.py", "-x", "--every", "7", cwd=tmp_path)
    run = detrain("run", "--ckpt", tmp_path / "home", "program.py", "-x", "--every", "7", cwd=tmp_path)

    assert run.out == expected.out
    assert run.status == expected.status
    assert _last_lines(run.err) == _last_lines(expected.err)


@pytest.mark.slow
def test_errors_of_compiled_code_say_the_same_places(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    (tmp_path / "program.py").write_text("""
import keras
import tensorflow as tf
weights = tf.Variable(tf.ones(3))
@tf.function
def step(i):
    weights.assign_sub(0.1 * tf.random.stateless_normal([3], [1, 2]))
    return tf.strings.to_number(tf.gather(["1", "2", "three"], i))
class Odd(keras.layers.Layer):
    def call(self, x):
        return tf.reshape(x, [3, 7])
def fails():
    keras.Sequential([keras.layers.Dense(3), Odd()])(tf.ones([4, 4]))
try:
    for epoch in range(2):
        for i in range(3):
            step(i)
except tf.errors.InvalidArgumentError as error:
    print(str(error).rpartition("[[")[0])  # numbers of functions follow
for epoch in range(2):
    fails()
""")
    expected = plain("program.py", cwd=tmp_path)
    run = detrain("run", "--ckpt", tmp_path / "home", "program.py", cwd=tmp_path)

    assert 'program.py", line 8, in step' in expected.out
    assert run.out == expected.out
    assert run.status == expected.status == 1
    assert _traceback(run.err) == _traceback(expected.err)


def _traceback(text: str) -> str:
    return text[text.index("Traceback") :]


def test_a_syntax_error_is_reported_as_python_reports_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("for epoch in range(3):\n    print(epoch\n")

    expected = plain("program.py", cwd=tmp_path)
    run = detrain("run", "program.py", cwd=tmp_path)

    assert (run.out, run.err, run.status) == (expected.out, expected.err, expected.status)


@pytest.fixture
def in_the_foreground() -> Iterator[None]:
    """Undo what a shell does to what it starts in the background: there SIGINT is ignored, and so it is in all
    children.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_the_foreground")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_program_as_it_ends_plain_python(number: signal.Signals, tmp_path: Path) -> None:
    # Many short sleeps: a signal that comes just before one long sleep is only heard behind it, in plain Python, too.
    asleep = "import time\nprint('ready', flush=True)\nfor _ in range(6000):\n    time.sleep(0.01)\n"
    (tmp_path / "program.py").write_text(PRELUDE + LOOP + asleep)
    process = subprocess.Popen(
        [sys.executable, "-m", "detrain", "run", "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()

    started = time.monotonic()
    process.send_signal(number)

    assert process.wait(timeout=20) == -number
    assert time.monotonic() - started < 20


def test_a_module_runs_with_dash_m_and_its_submodules_are_instrumented(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "optimizer.py").write_text(PRELUDE)
    (package / "training.py").write_text(
        "from pack.optimizer import Optimizer, die, np, show\n"
        "def train_one_epoch(optimizer, epoch):\n"
        "    for step in range(4):\n"
        "        optimizer.apply_gradients(np.random.normal(size=3))\n"
        "        die(f'{epoch}:{step}')\n"
        "    return float(optimizer.weights.sum())\n"
    )
    (package / "__main__.py").write_text(
        "import sys\n"
        "from pack.optimizer import Optimizer, np, show\n"
        "from pack.training import train_one_epoch\n"
        "print(__name__, __package__, __spec__.name, sys.argv[1:])\n"
        "optimizer = Optimizer(np.ones(3))\n"
        "for epoch in range(3):\n"
        "    print('loss', train_one_epoch(optimizer, epoch))\n"
        "show(optimizer.weights)\n"
    )

    whole = detrain("run", "--ckpt", "one", "-m", "pack", "-a", cwd=tmp_path).ok()
    detrain("run", "--ckpt", "two", "-m", "pack", "-a", cwd=tmp_path, DIE_AT="1:2").died()
    again = detrain("run", "--ckpt", "two", "-m", "pack", "-a", cwd=tmp_path)

    assert whole.out.startswith("__main__ pack pack.__main__ ['-a']")
    assert again.out.splitlines()[1:] == whole.out.splitlines()[-3:]
    assert not list(tmp_path.rglob("*.pyc")) or all(plain("-m", "pack", cwd=tmp_path).status == 0 for _ in range(1))


def test_bytecode_files_stay_those_of_the_original_source(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(
        PRELUDE + "def train(optimizer):\n    for x in range(3):\n        optimizer.apply_gradients(x)\n"
    )
    ran(detrain, tmp_path, "import steps\no = steps.Optimizer(steps.np.ones(3))\nfor e in range(2):\n    steps.train(o)\n").ok()
    code = plain("-c", "import steps; print(steps.train.__code__.co_names)", cwd=tmp_path)

    assert "record_batch" not in code.out


def _instrumented(tmp_path: Path) -> tuple[Path, Result]:
    from tests.e2e.programs import FOR_LOOPS

    (tmp_path / "program.py").write_text(FOR_LOOPS)
    detrain("instrument", "--write", "probed.py", "program.py", cwd=tmp_path).ok()
    return tmp_path / "probed.py", detrain("run", "--ckpt", "whole", "program.py", cwd=tmp_path)


SOURCE = PRELUDE + LOOP
BYTES = {
    "lines of windows": SOURCE.replace("\n", "\r\n").encode(),
    "no end of the last line": SOURCE.rstrip("\n").encode(),
    "a mark of the byte order": b"\xef\xbb\xbf" + SOURCE.encode(),
    "latin-1": b"# coding: latin-1\n# caf\xe9\n" + SOURCE.encode(),
    "a form feed": SOURCE.replace("    for", "    text = 'a\x0cb\x1cc\u2028d'\n    for").encode(),
}


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch on this machine")
@pytest.mark.parametrize("source", BYTES.values(), ids=BYTES.keys())
def test_the_diff_of_instrument_is_one_that_patch_applies(source: bytes, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_bytes(source)
    command = [sys.executable, "-m", "detrain", "instrument", "program.py"]
    diff = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, check=True).stdout
    detrain("instrument", "--write", "probed.py", "program.py", cwd=tmp_path)

    subprocess.run(["patch", "--binary", "program.py"], cwd=tmp_path, input=diff, capture_output=True, check=True)

    assert (tmp_path / "program.py").read_bytes() == (tmp_path / "probed.py").read_bytes() != source


def test_a_program_instrumented_on_disk_resumes_under_plain_python(tmp_path: Path) -> None:
    path, whole = _instrumented(tmp_path)

    plain(path, cwd=tmp_path, DIE_AT="2:3", CKPT_DIR=str(tmp_path / "home")).died()
    again = plain(path, cwd=tmp_path, CKPT_DIR=str(tmp_path / "home")).ok()

    assert "resuming probed at 2:0" in again.err
    assert again.out.splitlines() == whole.out.splitlines()[-len(again.out.splitlines()) :]


def test_in_place_and_remove_undo_each_other(tmp_path: Path) -> None:
    from tests.e2e.programs import FOR_LOOPS

    path = tmp_path / "program.py"
    path.write_bytes(FOR_LOOPS.encode())

    detrain("instrument", "--in-place", "program.py", cwd=tmp_path)
    probed = path.read_text()
    original = (tmp_path / "program.py.orig").read_text()
    detrain("instrument", "--remove", "program.py", cwd=tmp_path)

    assert re.search(r"execute = record_batch\(step\)\n\s+if not execute:\n\s+continue\n", probed)
    assert original == FOR_LOOPS
    assert path.read_bytes() == FOR_LOOPS.encode()
    assert not (tmp_path / "program.py.orig").exists()


BY_HAND = PRELUDE("""
from detrain import record_batch, record_epoch
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    record_epoch(epoch)
    for batch in range(5):
        x = np.random.normal(size=3)
        execute = record_batch(batch)
        if not execute:
            continue
        optimizer.apply_gradients(x)
        die(f"{epoch}:{batch}")
show(optimizer.weights)
""")


@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize("program", [BY_HAND, BY_HAND.replace("apply_gradients", "learn")], ids=["known update", "unknown update"])
def test_probes_put_in_by_hand_resume_to_the_bit(program: str, every: str, tmp_path: Path) -> None:
    """Of an update that static analysis does not know, too: checkpoints came each ten minutes then, whatever was asked
    for.
    """
    whole = ran(detrain, tmp_path, program, "--ckpt", "one")
    _, again = after_deaths(detrain, tmp_path, None, "--ckpt", "two", at="2:3", every=every)

    assert again.status == 0, again.err
    assert "resuming program at 2:" in again.err
    assert again.out == whole.out


def test_probes_put_in_by_hand_do_nothing_under_plain_python(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BY_HAND)
    (tmp_path / "bare.py").write_text(re.sub(r".*record_epoch.*\n|.*execute.*\n|            continue\n", "", BY_HAND))

    seeded = ["-c", "import numpy, runpy, sys; numpy.random.seed(0); runpy.run_path(sys.argv[1])"]

    assert plain(*seeded, "program.py", cwd=tmp_path).out == plain(*seeded, "bare.py", cwd=tmp_path).out


REPLACED = PRELUDE("""
import types
optimizer, means = Optimizer(np.ones(3)), []
def train(epoch):
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    means.append(float(optimizer.weights.mean()))
sys.modules["__main__"] = types.ModuleType("__main__")  # as IPython's shell does, which matplotlib_inline starts
for epoch in range(4):
    train(epoch)
    print(epoch, means, optimizer.steps, flush=True)
show(optimizer.weights)
""")


@pytest.mark.parametrize("at", ["1:1", "2:0"])
def test_a_library_that_puts_another_module_in_the_place_of_the_programs_hides_no_state(at: str, tmp_path: Path) -> None:
    """A resumed run went on with the first weights, and said nothing."""
    _whole, _died, resumed = compared(detrain, tmp_path, REPLACED, at=at, every="2b")

    assert "resuming program at" in resumed.err
    assert "warning" not in resumed.err
