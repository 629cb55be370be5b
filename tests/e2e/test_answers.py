"""Programs that look, before they train, at what an earlier run has left: resumed, they see what the first run saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.e2e.forkserver import Server
from tests.e2e.programs import PRELUDE
from tests.e2e.runs import Run, after_deaths, compared, library, plain

RESULTS = PRELUDE("""
import glob, pathlib, shutil
assert all(os.path.exists(".") for _ in range(12_000))  # as many files of data
for ask in (lambda: os.listdir("tries"), lambda: [each.name for each in os.scandir(pathlib.Path("tries"))]):
    try:
        print(ask())
    except FileNotFoundError as error:
        print(error)
os.makedirs(f"tries/{len(glob.glob('tries/*'))}")
os.makedirs("runs", exist_ok=True)
folder = f"runs/exp{len(os.listdir('runs'))}"
os.makedirs(folder)
assert len([each for _folder, folders, _files in os.walk("runs") for each in folders]) == int(folder[-1]) + 1
if os.path.exists("plots"):
    shutil.rmtree("plots")
os.makedirs("plots")
if pathlib.Path("notes.txt").exists():
    os.remove("notes.txt")
try:
    os.unlink("lock")
except FileNotFoundError:
    print("no lock")
if os.path.isfile("last.txt"):
    os.rename("last.txt", "before.txt")
with open("config.tmp", "w") as file:
    file.write(folder)
os.replace("config.tmp", "config.txt")
try:
    start = int(np.load("state.npy")[0])
    with open("notes.txt") as notes:
        assert len(notes.readlines()) == start
except FileNotFoundError:
    start = 0
found = sorted(glob.glob("weights-*.npy"))
optimizer = Optimizer(np.load(found[-1]) if found else np.ones(3))
for epoch in range(start, 4):
    for step in range(5):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    with open(f"{folder}/log.txt", "a") as log, open("notes.txt", "a") as notes:
        print(epoch, optimizer.weights, file=log)
        print(epoch, file=notes)
    for name in (f"plots/{epoch}.txt", "lock", "last.txt"):
        with open(name, "w") as file:
            file.write(f"{epoch} {optimizer.weights}")
    np.save("state.npy", np.array([epoch + 1]))
    np.save(f"weights-{epoch}.npy", optimizer.weights)
    print(epoch, optimizer.weights, flush=True)
print(sorted(os.listdir("runs")), sorted(os.listdir("plots")), os.listdir(folder), os.path.exists("lock"))
""")


def tree(folder: Path) -> dict[str, bytes]:
    """All files and folders, and what is in them."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b"a folder"
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("is_used", [False, True], ids=["an empty folder", "results of earlier runs"])
@pytest.mark.parametrize("places", [["1:1"], ["0:1"], ["0:1", "0:0", "3:4"], ["1:4", "2:0", "3:4"]])
def test_a_folder_of_results_is_the_one_that_the_first_run_took(
    places: list[str], is_used: bool, tmp_path: Path, detrain: Run
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        (folder / "train.py").write_text(RESULTS)
        if is_used:
            for name in ("runs/exp0", "plots/old"):
                (folder / name).mkdir(parents=True)
            for name in ("notes.txt", "lock", "last.txt", "plots/7.txt"):
                (folder / name).write_text("of an earlier run")
    options = ("run", "--ckpt", tmp_path / "ckpt", "--every", "2b", "train.py")

    expected = detrain("run", "--ckpt", tmp_path / "other", "--every", "2b", "train.py", cwd=whole)
    died = [detrain(*options, cwd=killed, DIE_AT=place).status for place in places]
    again = detrain(*options, cwd=killed).ok()

    assert (expected.status, died) == (0, [-9] * len(places)), expected.err
    lines = again.out.splitlines()
    assert lines[-2:] == expected.out.splitlines()[-2:]
    assert tree(killed) == tree(whole)
    assert "not captured" not in again.err


PREPARING = PRELUDE("""
if not os.path.isfile("data.npy"):
    print("preparing")
    np.save("data.npy", np.random.default_rng(1).normal(size=(4, 3)))
if not os.path.isdir("cache"):
    print("filling")
    os.makedirs("cache")
    with open("cache/large.bin", "wb") as file:
        file.write(bytes(2 << 20))
if "small" not in os.listdir("."):
    print("settings")
    os.makedirs("small")
    with open("small/settings.txt", "w") as file:
        file.write("rate 0.01")
data, optimizer = np.load("data.npy"), Optimizer(np.ones(3))
for epoch in range(3):
    for x in data:
        optimizer.apply_gradients(x + np.random.normal(size=3))
    die(f"{epoch}")
print(optimizer.weights)
""")


def test_data_that_were_prepared_before_the_loop_are_not_prepared_again(tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "train.py").write_text(PREPARING)
    expected = detrain("run", "--ckpt", tmp_path / "other", "train.py", cwd=made_in(tmp_path / "whole", PREPARING))
    detrain("run", "train.py", cwd=tmp_path, DIE_AT="1").died()
    again = detrain("run", "train.py", cwd=tmp_path).ok()

    lines = expected.out.splitlines()
    assert lines[:3] == ["preparing", "filling", "settings"]
    assert again.out.splitlines() == lines[2:]  # so small a folder may be that of the results
    assert "'data.npy' was made by the first run before its loop, and not touched since: it is taken as data" in again.err
    assert "'cache' was made" in again.err


TURNS = PRELUDE("""
before = os.path.exists("weights.txt")
if before:
    os.rename("weights.txt", "weights.old")
print(before, os.path.exists("weights.txt"), flush=True)
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    with open("weights.txt", "w") as file:
        file.write(repr(optimizer.weights))
print(open("weights.old").read())
""")


def test_each_turn_of_a_question_has_its_own_answer(tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "weights.txt").write_text("of an earlier run")
    first, again = after_deaths(detrain, tmp_path, TURNS, at="2:1", name="train.py")

    assert again.status == 0, again.err
    assert first.out == "True False\n"
    assert again.out == "True False\nof an earlier run\n"


def made_in(folder: Path, program: str) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(program)
    return folder


def test_outside_of_detrain_the_program_is_as_it_was(tmp_path: Path, detrain: Run) -> None:
    """What detrain does to `os` and `shutil` is gone with its process, and one uninterrupted run does what plain Python
    does.
    """
    trees = []
    for name, runs in (("bare", [plain]), ("run", [lambda *command, cwd: detrain("run", *command, cwd=cwd)])):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(f"import numpy as np\nnp.random.seed(0)\n{RESULTS}")
        for run in runs:
            assert run("train.py", cwd=folder).status == 0
        trees.append({key: value for key, value in tree(folder).items() if not key.startswith("ckpt")})
    assert trees[0] == trees[1]


RESTARTING = """
import tensorflow as tf, keras, hashlib
import numpy as np
x = np.random.normal(size=(32, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(32).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.02)
saved = tf.train.Checkpoint(model=model, optimizer=optimizer)
manager = tf.train.CheckpointManager(saved, "own", max_to_keep=2)
start = 0
if manager.latest_checkpoint:
    start = int(manager.latest_checkpoint.split("-")[-1])
    saved.restore(manager.latest_checkpoint)
if tf.io.gfile.exists("logs"):
    tf.io.gfile.rmtree("logs")
tf.io.gfile.makedirs("logs")
print(tf.io.gfile.exists("own"), tf.io.gfile.isdir("own"), tf.io.gfile.glob("own/*"), tf.train.latest_checkpoint("own"))
for epoch in range(start, 4):
    for a, b in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    manager.save()
    with tf.io.gfile.GFile(f"logs/{epoch}.txt", "w") as log:
        log.write(f"{float(loss)!r}")
    print(f"epoch {epoch} loss {float(loss)!r} kept {manager.latest_checkpoint}", flush=True)
print(sorted(tf.io.gfile.listdir("logs")), sorted(tf.io.gfile.listdir("own")))
print("weights", hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.variables)).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1", "3"])
@pytest.mark.parametrize("is_used", [False, True], ids=["an empty folder", "checkpoints of an earlier run"])
def test_a_program_that_goes_on_from_its_own_checkpoints_leaves_that_to_detrain(
    every: str, is_used: bool, server: Server, tmp_path: Path
) -> None:
    """With `--every 3` it is killed before the first checkpoint of detrain, and has some of its own by then."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        if is_used:
            made_in(folder, RESTARTING.replace("range(start, 4)", "range(start, 1)"))
            assert server.bare("train.py", cwd=folder).status == 0
            (folder / "train.py").write_text(RESTARTING.replace("range(start, 4)", "range(start, 5)"))
        else:
            made_in(folder, RESTARTING)

    options = ("run", "--every", every, "train.py")
    expected = server.detrain(*options, cwd=whole)
    died = [server.detrain(*options, cwd=killed, DETRAIN_TRIAL=kill_at(folder, at)).status for at in (7, 14)]
    again = server.detrain(*options, cwd=killed)

    assert (expected.status, died, again.status) == (0, [-9, -9], 0), again.err
    lines = again.out.splitlines()
    assert lines[0] == expected.out.splitlines()[0]
    assert lines[0] == "False False [] None" or is_used
    assert lines[1:] == expected.out.splitlines()[-len(lines) + 1 :]
    assert lines[1].startswith("epoch 4" if is_used else "epoch 3")
    logs = [{key: value for key, value in tree(each).items() if key.startswith("logs")} for each in (whole, killed)]
    assert logs[0] == logs[1]


CACHING = """
import tensorflow as tf, keras, os, hashlib
import numpy as np
x = np.random.normal(size=(48, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(48).batch(8).cache("cached").prefetch(2)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.02)
for epoch in range(3):
    for a, b in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
print("weights", hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.variables)).hexdigest())
"""


@pytest.mark.slow
def test_a_cache_that_a_killed_run_has_left_half_filled_and_locked_is_filled(server: Server, tmp_path: Path) -> None:
    whole, killed = made_in(tmp_path / "whole", CACHING), made_in(tmp_path / "killed", CACHING)

    expected = server.detrain("run", "--every", "4b", "train.py", cwd=whole)
    died = [server.detrain("run", "--every", "4b", "train.py", cwd=killed, DETRAIN_TRIAL=kill_at(killed, at)) for at in (2, 9)]
    locks = [*killed.glob("*.lockfile")]
    again = server.detrain("run", "--every", "4b", "train.py", cwd=killed)

    assert [each.status for each in (expected, *died, again)] == [0, -9, -9, 0], again.err
    assert locks == []
    assert again.out == expected.out


LOOPING = PRELUDE("""
optimizer = Optimizer(np.load("start.npy"))
for epoch in range(6):
    os.mkdir(f"epoch{epoch}")
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    with open(f"epoch{epoch}/log.txt", "a") as log:
        print(epoch, optimizer.weights, file=log)
    np.save(f"epoch{epoch}/weights.npy", optimizer.weights)
    if epoch == 1:
        os.remove("start.npy")
    if epoch >= 2:
        os.remove(f"epoch{epoch - 2}/weights.npy")
    os.rename(f"epoch{epoch}/log.txt", f"epoch{epoch}/done.txt")
    die(f"{epoch} done")
try:
    os.remove("start.npy")
except FileNotFoundError:
    show(optimizer.weights)
""")


@pytest.mark.parametrize("places", [["1 done"], ["1:2", "2 done"], ["3 done"], ["1 done", "3 done", "4:0", "5 done"]])
def test_what_the_loop_makes_and_clears_away_is_made_and_cleared_away_again(
    places: list[str], tmp_path: Path, detrain: Run
) -> None:
    whole, killed = made_in(tmp_path / "whole", LOOPING), made_in(tmp_path / "killed", LOOPING)
    for folder in (whole, killed):
        np.save(folder / "start.npy", np.array([1.0, 2.0, 3.0]))
    options = ("run", "--every", "2", "--ckpt", tmp_path / "ckpt", "train.py")

    expected = plain("-m", "detrain", "run", "--bare", "train.py", cwd=whole)
    died = [detrain(*options, cwd=killed, DIE_AT=place).status for place in places]
    again = detrain(*options, cwd=killed).ok()

    assert (expected.status, died) == (0, [-9] * len(places)), expected.err
    assert again.out == expected.out
    assert tree(killed) == tree(whole)


NUMBERING_IN_LOOP = """
optimizer = Optimizer(np.ones(3))
os.makedirs("out", exist_ok=True)
numbers = []
for epoch in range(4):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3))
        if step % 2:
            numbers.append(len(os.listdir("out")))
            os.makedirs(f"out/{numbers[-1]}/deeper")
            np.save(f"out/{numbers[-1]}/deeper/weights.npy", optimizer.weights)
        die(f"{epoch}:{step}")
print(numbers)
"""


@pytest.mark.parametrize("deaths", [["1:3"], ["0:1"], ["0:1", "1:1", "2:3"]])
def test_a_loop_that_numbers_its_folders_goes_on_with_the_next_number(deaths: list[str], tmp_path: Path, detrain: Run) -> None:
    """The folders that the killed run had made behind its checkpoint were there, empty, and were counted."""
    compared(detrain, tmp_path, PRELUDE + NUMBERING_IN_LOOP, at=deaths, every="3b", is_apart=True)

    assert tree(tmp_path / "killed" / "out") == tree(tmp_path / "whole" / "out")


STUMBLING = PRELUDE("""
optimizer = Optimizer(np.load("start.npy") if os.path.exists("start.npy") else None)
for epoch in range(2):
    for step in range(2):
        optimizer.apply_gradients(np.ones(3))
print(optimizer.steps)
""")


def test_a_run_that_ended_by_an_error_before_its_first_checkpoint_begins_as_any_does(tmp_path: Path, detrain: Run) -> None:
    folder = made_in(tmp_path / "here", STUMBLING)
    first = detrain("run", "train.py", cwd=folder)
    np.save(folder / "start.npy", np.ones(3))
    again = detrain("run", "train.py", cwd=folder)

    assert first.status == 1
    assert "TypeError" in first.err
    assert (again.status, again.out) == (0, "4\n"), again.err


def kill_at(folder: Path, batches: int) -> str:
    return f'{{"states": "{folder}.states", "kill_at": {batches}}}'


RECORDING = """
import os, uuid
class Run:
    def __init__(self, folder):
        self.id = uuid.uuid4().hex
        open(os.path.join(folder, self.id), "x").close()  # it is there already: an error
        self.folder = folder
    def log(self, value):
        with open(os.path.join(self.folder, self.id), "a") as file:
            file.write(f"{value!r}\\n")
def start(folder):
    os.makedirs(folder, exist_ok=True)
    return Run(folder)
"""
DATING = """
import datetime, os, time
def folder():
    made = os.path.join("outputs", time.strftime("%H-%M-%S") + datetime.datetime.now().strftime("-%f"))
    os.makedirs(made, exist_ok=True)
    return made
"""
RECORDED = """
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import dating, mlflow
optimizer = Optimizer(np.ones(3))
mlflow.start("runs").log("before")
log = open(os.path.join(dating.folder(), "log"), "a")
for epoch in range(4):
    for step in range(5):
        optimizer.apply_gradients(np.random.normal(size=3))
        log.write(f"{optimizer.weights.sum()!r}\\n")
        die(f"{epoch}:{step}")
    mlflow.start("runs").log(float(optimizer.weights.sum()))
show(optimizer.weights)
"""


@pytest.mark.fast
def test_what_a_library_dates_is_found_again_and_its_records_have_new_names(tmp_path: Path, detrain: Run) -> None:
    """A folder named by the date was another one. A record had the name of one that was there, and the library died.

    What is killed is a process.
    """
    library(tmp_path, {"mlflow/__init__.py": RECORDING, "dating/__init__.py": DATING})
    compared(detrain, tmp_path, PRELUDE + RECORDED, at="2:3", every="2b", whole="run", is_apart=True)

    [one], [another] = (tmp_path.glob(f"{each}/outputs/*/log") for each in ("whole", "killed"))
    assert another.read_text() == one.read_text()


LOOKING = """
import os
def get_last_checkpoint(folder):
    names = [name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))]
    return os.path.join(folder, max(names)) if names else None
"""
ASKING = """
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
from transformers.trainer_utils import get_last_checkpoint
optimizer, first = Optimizer(np.ones(3)), 0
os.makedirs("out", exist_ok=True)
last = get_last_checkpoint("out")
if last is not None:
    optimizer.weights[:] = np.load(os.path.join(last, "weights.npy"))
    first = int(last[-1]) + 1
for epoch in range(first, 4):
    for step in range(5):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    os.makedirs(f"out/{epoch}", exist_ok=True)
    np.save(f"out/{epoch}/weights.npy", optimizer.weights)
show(optimizer.weights)
"""


def test_a_library_that_looks_for_checkpoints_of_the_programs_own_sees_what_it_saw(tmp_path: Path, detrain: Run) -> None:
    """The program went on by itself, and the resume was refused. What is killed is a process."""
    library(tmp_path, {"transformers/__init__.py": "", "transformers/trainer_utils.py": LOOKING})
    compared(detrain, tmp_path, PRELUDE + ASKING, at="2:3", every="2b", whole="run", is_apart=True)


NUMBERING = """
import glob, itertools, os, pathlib

def by_list(root):
    try:
        return max((int(name[4:]) for name in os.listdir(root)), default=-1) + 1
    except FileNotFoundError:
        return 0

def by_scan(root):
    return len([each for each in os.scandir(root) if each.is_dir()]) if os.path.isdir(root) else 0

def by_glob(root):
    return len(glob.glob(f"{root}/try-*"))

def by_asking(root):
    return next(number for number in itertools.count() if not os.path.exists(f"{root}/try-{number}"))

def by_path(root):
    return next(number for number in itertools.count() if not (pathlib.Path(root) / f"try-{number}").exists())

def by_state(root):
    for number in itertools.count():
        try:
            os.stat(f"{root}/try-{number}")
        except FileNotFoundError:
            return number

def new_folder(root, how):
    folder = os.path.join(root, f"try-{globals()[how](root)}")
    if not os.path.exists(folder):
        os.makedirs(folder)
    assert os.path.isdir(folder)
    with open(os.path.join(folder, "settings.txt"), "w") as file:
        file.write(how)
    return folder
"""
NUMBERED = """
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import numbering
folders = [numbering.new_folder(how, how) for how in ("by_list", "by_scan", "by_glob", "by_asking", "by_path", "by_state")]
folders += [numbering.new_folder("there", how) for how in ("by_list", "by_asking")]
folders += [numbering.new_folder("made/deeper", how) for how in ("by_list", "by_asking")]
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(5):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    for folder in folders:
        with open(f"{folder}/log.txt", "a") as log:
            print(epoch, optimizer.weights, file=log)
print(folders)
show(optimizer.weights)
"""


@pytest.mark.parametrize("deaths", [["2:3"], ["0:1", "1:1", "3:0"]])
def test_a_library_that_numbers_its_folders_takes_the_number_of_the_first_run(
    deaths: list[str], tmp_path: Path, detrain: Run
) -> None:
    """What it had made before the loop it found there, and made another: a stray folder, and nothing said so."""
    library(tmp_path, {"numbering/__init__.py": NUMBERING})
    for name in ("whole", "killed"):
        (tmp_path / name / "there" / "try-0").mkdir(parents=True)
        (tmp_path / name / "there" / "try-0" / "settings.txt").write_text("an earlier one")
    whole, _, run = compared(detrain, tmp_path, PRELUDE + NUMBERED, at=deaths, every="3b", is_apart=True)

    assert run.out.splitlines()[-2:] == whole.out.splitlines()[-2:]
    found = [
        {path.relative_to(folder): path.read_text() for path in folder.rglob("*.txt") if "ckpt" not in path.parts}
        for folder in (tmp_path / "whole", tmp_path / "killed")
    ]
    assert found[1] == found[0]


OPENING = """
def read(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return "none"
"""
OPENED = """
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import opening
print("found", [opening.read(name) for name in ("made.txt", "whole.txt", "log.txt")], flush=True)
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(5):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    for name, mode in (("made.txt", "w"), ("whole.txt", "w"), ("log.txt", "a")):
        with open(name, mode) as file:
            print(epoch, optimizer.weights, file=file)
show(optimizer.weights)
"""


@pytest.mark.parametrize("at", ["2:3", "3:0"])
def test_a_library_that_opens_files_reads_what_it_read(at: str, tmp_path: Path, detrain: Run) -> None:
    """It read what the killed run had written: a program that asks through a library went on by itself."""
    library(tmp_path, {"opening/__init__.py": OPENING})
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
        for name in ("whole.txt", "log.txt"):
            (tmp_path / folder / name).write_text("before\n")
    _, _, run = compared(detrain, tmp_path, PRELUDE + OPENED, at=at, every="2b", whole="run", is_apart=True)

    assert "found ['none', 'before\\n', 'before\\n']" in run.out.splitlines()
    for name in ("made.txt", "whole.txt", "log.txt"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()


BETWEEN = PRELUDE("""
import contextlib, shutil, tempfile
@contextlib.contextmanager
def removed():
    os.makedirs("best")
    yield "best"
    shutil.rmtree("best")

@contextlib.contextmanager
def kept():
    os.makedirs("best", exist_ok=True)
    yield "best"

def train(name):
    optimizer, best = Optimizer(np.ones(3)), 9.0
    with FOLDER() as folder:
        path = os.path.join(folder, FILE)
        IS_SAVED_FIRST and np.save(path, optimizer.weights)
        for epoch in range(4):
            for step in range(4):
                optimizer.apply_gradients(np.random.normal(size=3))
                die(f"{name}:{epoch}:{step}")
            if epoch < 2 and abs(optimizer.weights[0]) < best:
                best = abs(optimizer.weights[0])
                np.save(path, optimizer.weights)
        if IS_MOVED:
            os.replace(path, path + ".best")
            path += ".best"
        print(name, best, np.load(path), flush=True)
for name in "abc":
    train(name)
""")
BETWEENS = {
    "a folder in common": ("kept", "'best.npy'", False, False),
    "a file of its own": ("kept", "f'{name}.npy'", True, False),
    "a file in common": ("kept", "'best.npy'", True, False),
    "a folder that is removed": ("removed", "'best.npy'", True, False),
    "a folder for a time": ("tempfile.TemporaryDirectory", "'best.npy'", True, False),
    "a file that is renamed": ("kept", "'best.npy'", True, True),
}
"""The folder of best weights, their file, whether the first weights are saved there, and whether they are renamed."""


@pytest.mark.parametrize("name", BETWEENS)
@pytest.mark.parametrize("deaths", [["b:1:2"], ["a:3:1", "c:0:1"], ["b:0:1", "b:3:0", "c:1:2"]], ids=str)
def test_code_between_two_loops_reads_what_it_read(name: str, deaths: list[str], tmp_path: Path, detrain: Run) -> None:
    """It read what code before the loop or a later loop had written, and printed other results, without a word."""
    folder, file, is_first, is_moved = BETWEENS[name]
    replaced = {"FOLDER": folder, "FILE": file, "IS_SAVED_FIRST": str(is_first), "IS_MOVED": str(is_moved)}
    text = BETWEEN
    for word, value in replaced.items():
        text = text.replace(word, value)
    whole, _, last = compared(detrain, tmp_path, text, at=deaths, every="3b", is_apart=True)

    assert last.out == whole.out


OWN = """
import glob, json, pathlib
optimizer = Optimizer(np.ones(3))
os.makedirs("out", exist_ok=True)
WAY
first = 0
if found:
    optimizer.weights[:] = np.load(found[-1])
    first = int(found[-1][-5]) + 1
    print("goes on at", first, flush=True)
for epoch in range(first, 4):
    for step in range(5):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    print(epoch, optimizer.weights, flush=True)
    np.save(f"out/{epoch}.npy", optimizer.weights)
    os.path.lexists("out/last.npy") and os.remove("out/last.npy")
    os.symlink(f"{epoch}.npy", "out/last.npy")
    open("out/last.txt", "w").write(f"out/{epoch}.npy")
show(optimizer.weights)
"""
_LAST = "pathlib.Path('out/last.npy')"
_TRY = "try:\n    ASKED\n    found = [os.path.realpath('out/last.npy')]\nexcept OSError:\n    found = []"
WAYS = {
    "glob": "found = sorted(glob.glob('out/?.npy'))",
    "iglob": "found = sorted(glob.iglob('**/?.npy', recursive=True))",
    "exists": "found = [os.path.realpath('out/last.npy')] if os.path.exists('out/last.npy') else []",
    "isfile": "found = [os.path.realpath('out/last.npy')] if os.path.isfile('out/last.npy') else []",
    "islink": "found = [os.path.realpath('out/last.npy')] if os.path.islink('out/last.npy') else []",
    "access": "found = [os.path.realpath('out/last.npy')] if os.access('out/last.npy', os.R_OK) else []",
    "pathlib's exists": f"found = [str({_LAST}.resolve())] if {_LAST}.exists() else []",
    "pathlib's is_symlink": f"found = [str({_LAST}.resolve())] if {_LAST}.is_symlink() else []",
    "pathlib's stat": _TRY.replace("ASKED", f"{_LAST}.stat()"),
    "iterdir": "found = sorted(str(each) for each in pathlib.Path('out').iterdir() if each.stem.isdigit())",
    "pathlib's glob": "found = sorted(map(str, pathlib.Path('out').glob('?.npy')))",
    "rglob": "found = sorted(map(str, pathlib.Path('.').rglob('out/?.npy')))",
    "scandir": "found = sorted((each.path for each in os.scandir('out') if each.name[0].isdigit()), key=os.path.getmtime)",
    "listdir": "names = [each for each in os.listdir('out') if each[0].isdigit()]; found = ['out/' + max(names)] if names else []",
    "walk": "found = sorted(f'{top}/{each}' for top, _, names in os.walk('out') for each in names if each[0].isdigit())",
    "load": _TRY.replace("ASKED", "np.load('out/last.npy')"),
    "open": _TRY.replace("ASKED", "open('out/last.npy', 'rb').close()"),
    "stat": _TRY.replace("ASKED", "os.stat('out/last.npy')"),
    "lstat": _TRY.replace("ASKED", "os.lstat('out/last.npy')"),
    "readlink": _TRY.replace("ASKED", "os.readlink('out/last.npy')"),
    "getsize": _TRY.replace("ASKED", "os.path.getsize('out/last.npy')"),
    "getmtime": _TRY.replace("ASKED", "os.path.getmtime('out/last.npy')"),
    "a file that tells": "found = [open('out/last.txt').read()] if os.path.exists('out/last.txt') else []",
}
"""Ways to ask for the checkpoints of the program's own."""


@pytest.mark.parametrize("is_used", [False, True], ids=["an empty folder", "checkpoints of an earlier run"])
@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_asks_for_its_own_checkpoints_hears_what_it_heard(
    way: str, is_used: bool, tmp_path: Path, detrain: Run
) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name / "out").mkdir(parents=True)
        if is_used:
            np.save(tmp_path / name / "out" / "0.npy", np.zeros(3))
            (tmp_path / name / "out" / "last.npy").symlink_to("0.npy")
            (tmp_path / name / "out" / "last.txt").write_text("out/0.npy")
    compared(detrain, tmp_path, PRELUDE + OWN.replace("WAY", WAYS[way]), at="2:3", every="2b", is_apart=True)


WHILE_LOOPS = PRELUDE("""
def train(number, epochs):
    optimizer, epoch, path = Optimizer(np.ones(3) * number), 0, f"{number}.txt"
    if os.path.exists(path):
        epoch = int(open(path).read())
    LOOP
    return optimizer.weights.sum()

show(np.array([train(1, 3), train(2, 3), train(3, 3), train(4, 3)]))
""")
WHILES = {
    "over epochs": """while epoch < epochs:
        for step in range(4):
            optimizer.apply_gradients(np.random.normal(size=3))
            die(f"{number}/{epoch}:{step}")
        epoch += 1
        with open(path, "w") as file:
            file.write(str(epoch))""",
    "over batches alone": """while True:
        optimizer.apply_gradients(np.random.normal(size=3))
        epoch += 1
        with open(path, "w") as file:
            file.write(str(epoch))
        die(f"{number}/{epoch // 4}:{epoch % 4}")
        if epoch >= 4 * epochs:
            break""",
}


@pytest.mark.parametrize("name", WHILES)
def test_code_between_while_loops_hears_what_it_heard(name: str, tmp_path: Path, detrain: Run) -> None:
    """It went on by itself from what the killed run had written, and later loops got another's values, in silence."""
    text = WHILE_LOOPS.replace("LOOP", WHILES[name])

    compared(detrain, tmp_path, text, every="3b", at="3/1:2", is_apart=True)


def test_a_run_that_goes_on_by_itself_past_its_checkpoint_is_refused(tmp_path: Path, detrain: Run) -> None:
    """What another program says is not heard again. The epochs that were left were passed over, and nothing was set."""
    way = "import subprocess; found = subprocess.run('ls out/?.npy', shell=True, capture_output=True, text=True).stdout.split()"

    _, again = after_deaths(detrain, tmp_path, PRELUDE + OWN.replace("WAY", way), at="2:3", every="2b")

    assert again.status == 78
    assert "the epoch loop ended after 2 epochs; the checkpoint was taken at 2:" in again.err


def test_a_run_that_does_not_come_to_its_checkpoint_is_refused(tmp_path: Path, detrain: Run) -> None:
    """It took what another program says for a reason not to train, and ended with status 0."""
    made = """
import subprocess
def train():
    optimizer = Optimizer(np.ones(3))
    for epoch in range(4):
        open("begun", "w").close()
        for step in range(5):
            optimizer.apply_gradients(np.random.normal(size=3))
            die(f"{epoch}:{step}")
    show(optimizer.weights)
if not subprocess.run("ls begun", shell=True, capture_output=True, text=True).stdout:
    train()
"""

    _, again = after_deaths(detrain, tmp_path, PRELUDE + made, at="2:3", every="2b")

    assert again.status == 78
    assert "the program has ended, and has not come to where the checkpoint at 2:" in again.err
