"""Files that the loop keeps its state in are named, those that come back are not; what TensorFlow appends to is set
back.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.programs import PRELUDE
from tests.e2e.runs import Run

PROGRAM = (
    PRELUDE
    + """
import json, sqlite3
import h5py
optimizer = Optimizer(np.ones(3))
np.zeros(4).tofile("map.bin")
json.dump([2.0], open("data.json", "w"))
with sqlite3.connect("data.db") as known:
    known.execute("create table if not exists t (x)")
known.close()
for epoch in range(2):
    for batch in range(4):
        step = 4 * epoch + batch
        factor = 1.0
        BODY
        optimizer.apply_gradients(np.full(3, factor))
        die(f"{epoch}:{batch}")
show(optimizer.weights)
"""
)
KEPT = {
    "data in HDF5": (
        "factor += h5py.File('h.h5', 'r')['x'][0] if step else 0; h5py.File('h.h5', 'w')['x'] = [float(step)]",
        "h.h5 (file: the loop reads again what it has written there)",
    ),
    "a large list": (
        "factor += len(open('l.txt').read()) % 7 if step else 0; open('l.txt', 'w').write('x' * (1 << 25))",
        "l.txt (file: the loop reads again what it has written there)",
    ),
    "a list that the system writes, too": (
        "factor += float(open('o.txt').read()) if step else 0; open('o.txt', 'w').write('1'); "
        "file = os.open('o.txt', os.O_WRONLY | os.O_TRUNC); os.write(file, str(step).encode()); os.close(file)",
        "o.txt (file: the loop reads again what it has written there)",
    ),
    "a memory map": (
        "table = np.memmap('map.bin', mode='r+'); table[step % 4] += 1; factor += float(table.sum()); del table",
        "map.bin (file: the loop changes it in place)",
    ),
    "a file of the system": (
        "file = os.open('s.bin', os.O_RDWR | os.O_CREAT); factor += len(os.read(file, 99)); os.write(file, b'x'); os.close(file)",
        "s.bin (file: the loop changes it in place)",
    ),
    "HDF5": (
        "file = h5py.File('x.h5', 'a'); file.attrs['n'] = step; file.close()",
        "x.h5 (file: the loop changes it in place)",
    ),
}
"""What keeps state in a file, and how that is named."""
COMES_BACK = {
    "a list written whole": (
        "past = json.load(open('h.json')) if step else []; json.dump([*past, step], open('h.json', 'w')); factor += len(past)"
    ),
    "a file put in the place of another": (
        "factor += float(open('r.txt').read()) if step else 0; open('n', 'w').write(str(step)); os.replace(src='n', dst='r.txt')"
    ),
    "a file in the folder of checkpoints": (
        "os.makedirs('ckpt', exist_ok=True); "
        "factor += float(open('ckpt/r.txt').read()) if step else 0; open('ckpt/r.txt', 'w').write(str(step))"
    ),
    "a best result": (
        "best = float(open('b.txt').read()) if epoch and os.path.exists('b.txt') else 9.0; "
        "best > step % 3 + 0.5 and open('b.txt', 'w').write(str(step % 3 + 0.5)); factor += best"
    ),
    "what is only read": (
        "factor = json.load(open('data.json'))[0]; known = sqlite3.connect('data.db'); known.execute('select 1'); known.close()"
    ),
    "what is of one body": "open('t.txt', 'w').write('2'); factor = float(open('t.txt').read()); open('t.txt', 'r+').write('3')",
    "a log": "open('log.csv', 'a').write(f'{step}\\n')",
    "results": "np.save('best.npy', optimizer.weights); h5py.File('w.h5', 'w').close(); open(f'{step}.txt', 'w').write('x')",
    "data in HDF5": (
        "rows = h5py.File(__file__ + '.h5', 'w'); rows['x'] = [2.0]; rows.close(); "
        "rows = h5py.File(__file__ + '.h5', 'r'); factor = float(rows['x'][0]); rows.close()"
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_file_that_the_loop_keeps_its_state_in_is_named(name: str, tmp_path: Path, detrain: Run) -> None:
    body, named = KEPT[name]
    (tmp_path / "program.py").write_text(PROGRAM.replace("BODY", body))

    died = detrain("run", "--every", "2b", "program.py", cwd=tmp_path, DIE_AT="1:1")

    assert died.status == -9, died.err
    assert f"not captured, a resumed run will be REFUSED from here on: {named}\n" in died.err


@pytest.mark.parametrize("name", COMES_BACK)
def test_a_file_that_no_later_body_lives_on_is_not_named(name: str, tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("BODY", COMES_BACK[name]))
    whole = detrain("run", "--bare", "program.py", cwd=tmp_path)
    (tmp_path / "log.csv").unlink(missing_ok=True)

    died = detrain("run", "--every", "2b", "program.py", cwd=tmp_path, DIE_AT="1:3")
    again = detrain("run", "--every", "2b", "program.py", cwd=tmp_path)

    assert (died.status, again.status) == (-9, 0), died.err + again.err
    assert "not captured" not in died.err + again.err
    assert again.out == whole.out
    if name == "a log":
        assert (tmp_path / "log.csv").read_text().split() == [str(step) for step in range(8)]


THROUGH_TENSORFLOW = """
import os, signal
import tensorflow as tf
weights = tf.Variable(tf.ones(3))
optimizer = tf.keras.optimizers.SGD(0.1)
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(2)])
checkpoint = tf.train.Checkpoint(weights=weights)
log = tf.io.gfile.GFile("kept.txt", "w")
for epoch in range(2):
    for batch in range(4):
        factor = 1.0
        if batch == 1:
            model.save_weights("best.weights.h5")
            checkpoint.write("best")
            with tf.io.gfile.GFile("best.txt", "w") as file:
                file.write("3")
            tf.io.write_file("op.txt", "3")
        if batch == 3:
            model.load_weights("best.weights.h5")
            checkpoint.read("best")
            factor = float(tf.io.gfile.GFile("best.txt").read()) * int(tf.io.read_file("op.txt").numpy())
        with tf.io.gfile.GFile("closed.txt", "a") as file:
            file.write(f"{epoch}:{batch}\\n")
        log.write(f"{epoch}:{batch}\\n")
        optimizer.apply_gradients([(tf.fill([3], factor), weights)])
        if os.environ.get("DIE_AT") == f"{epoch}:{batch}":
            log.flush()
            os.kill(os.getpid(), signal.SIGKILL)
log.close()
print(weights.numpy().tobytes().hex())
"""


def test_files_that_are_written_through_tensorflow_come_back_or_are_named(tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text(THROUGH_TENSORFLOW)

    died = detrain("run", "--every", "2b", "program.py", cwd=tmp_path, DIE_AT="1:3")
    again = detrain("run", "--every", "2b", "program.py", cwd=tmp_path)

    assert (died.status, again.status) == (-9, 0), died.err + again.err
    for name in ("best.weights.h5", "best.index", "best.txt", "op.txt"):
        assert f"{name} (file: the loop reads again what it has written there)" in died.err
        assert f"{name} is read, which was written after the checkpoint" not in again.err
    places = [f"{epoch}:{batch}" for epoch in range(2) for batch in range(4)]
    assert (tmp_path / "closed.txt").read_text().split() == places
    assert (tmp_path / "kept.txt").read_text().split() == places
    assert "kept.txt (file" not in again.err


TWO_TRAININGS = (
    PRELUDE
    + """
optimizer = Optimizer(np.ones(3))
for epoch in range(2):
    for batch in range(4):
        optimizer.apply_gradients(np.full(3, 1.0))
    np.save("best.npy", optimizer.weights)
for epoch in range(3):
    factor = float(np.load("best.npy").sum()) if epoch == 0 else 1.0
    for batch in range(4):
        optimizer.apply_gradients(np.full(3, factor))
        AFTER
        die(f"{epoch}:{batch}")
show(optimizer.weights)
"""
)


@pytest.mark.parametrize("death", ["0:2", "1:2"])
@pytest.mark.parametrize("after", ["np.save('best.npy', optimizer.weights)", "pass"])
def test_what_an_earlier_training_has_left_is_there_for_a_later_one_that_writes_it_again(
    after: str, death: str, tmp_path: Path, detrain: Run
) -> None:
    (tmp_path / "program.py").write_text(TWO_TRAININGS.replace("AFTER", after))
    whole = detrain("run", "program.py", cwd=tmp_path)
    killed = detrain("run", "--fresh", "--every", "1b", "program.py", cwd=tmp_path, DIE_AT=death)

    again = detrain("run", "--every", "1b", "program.py", cwd=tmp_path)

    assert killed.status == -9
    assert again.status == 0, again.err
    assert again.last_line() == whole.last_line()
    assert "best.npy (file" not in whole.err
