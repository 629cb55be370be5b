"""Files that the loop keeps its state in are named, those that come back are not; what TensorFlow appends to is set
back.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE, PRELUDE
from tests.e2e.runs import Run, after_deaths, compared, ran

PROGRAM = PRELUDE("""
import json, pathlib, shutil, sqlite3
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
""")
KEPT = {
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
PUT_BACK = {
    "a list written whole": (
        "past = json.load(open('h.json')) if step else []; json.dump([*past, step], open('h.json', 'w')); factor += len(past)"
    ),
    "a file put in the place of another": (
        "factor += float(open('r.txt').read()) if step else 0; open('n', 'w').write(str(step)); os.replace(src='n', dst='r.txt')"
    ),
    "a file in the folder of checkpoints": (
        "factor += float(open('ckpt/r.txt').read()) if step else 0; os.makedirs('ckpt', exist_ok=True); "
        "open('ckpt/r.txt', 'w').write(str(step))"
    ),
    "folders, the oldest of which goes": (
        "import time; time.sleep(0.02); folder = pathlib.Path(f'kept-{step}'); folder.mkdir(); (folder / 'n.txt').write_text('n'); "
        "ages = sorted(pathlib.Path().glob('kept-*'), key=os.path.getmtime); factor += int(ages[0].name[5:]); "
        "len(ages) > 2 and shutil.rmtree(ages[0])"
    ),
    "a file that is not there at first": (
        "factor += float(open('r.txt').read()) if os.path.exists('r.txt') else 0; pathlib.Path('r.txt').write_text(str(step))"
    ),
    "a file that is taken away and made again": (
        "factor += float(open('r.txt').read()) if os.path.exists('r.txt') else 9; "
        "os.remove('r.txt') if step % 3 == 2 else open('r.txt', 'w').write(str(step))"
    ),
    "two files that change places": (
        "last = np.load('last.npy') if step else np.zeros(3); factor += last.sum() if step % 3 == 1 else 0; "
        "shutil.copy('last.npy', 'best.npy') if step % 3 == 2 else np.save('last.npy', optimizer.weights); "
        "factor += np.load('best.npy').sum() if step % 4 == 3 and os.path.exists('best.npy') else 0; "
        "os.rename('best.npy', 'last.npy') if step == 5 else 0"
    ),
    "a folder that is removed, and made again": (
        "factor += float(open('d/r.txt').read()) if os.path.exists('d/r.txt') else 9; "
        "step % 3 == 2 and shutil.rmtree('d'); step % 3 == 0 and (os.mkdir('d'), open('d/r.txt', 'w').write(str(step)))"
    ),
    "folders that are renamed": (
        "os.makedirs('new'); open('new/r.txt', 'w').write(str(step)); shutil.rmtree('old', ignore_errors=True); "
        "os.path.exists('now') and os.rename('now', 'old'); pathlib.Path('new').replace('now'); "
        "factor += float(open('old/r.txt').read()) if os.path.exists('old') else 9"
    ),
    "a file with two names": (
        "open('a.txt', 'w').write(str(step)); os.path.exists('b.txt') or os.link('a.txt', 'b.txt'); "
        "factor += float(open('b.txt').read())"
    ),
    "a link to a file": (
        "os.path.islink('l.txt') or os.symlink('a.txt', 'l.txt'); factor += float(open('a.txt').read()) if step else 0; "
        "open('l.txt', 'w').write(str(step))"
    ),
    "a link that is made anew": (
        "open(f'{step % 2}.txt', 'w').write(str(step)); os.path.islink('l') and os.unlink('l'); "
        "step % 3 and os.symlink('0.txt', 'l'); os.symlink('0.txt', f'l{step}'); "
        "factor += float(open('l').read()) if os.path.exists('l') else 9"
    ),
    "a link in the place of another": (
        "factor += float(open('d/r.txt').read()) if step else 9; os.makedirs(f'd{step % 2}', exist_ok=True); "
        "open(f'd{step % 2}/r.txt', 'w').write(str(step)); os.symlink(f'd{step % 2}', 'e'); os.replace('e', 'd')"
    ),
    "logs that are moved to another folder": (
        "open('a.txt', 'a').write(f'{step} '); os.makedirs(f'n{step}'); open(f'n{step}/b.txt', 'a').write(f'{step} '); "
        "step % 3 == 1 and os.rename('a.txt', f'n{step}/a.txt'); os.rename(f'n{step}', f'm{step}'); "
        "open(f'm{step}/b.txt', 'a').write('x'); factor += len(open('a.txt').read()) if os.path.exists('a.txt') else 9"
    ),
    "a best result": (
        "best = float(open('b.txt').read()) if epoch and os.path.exists('b.txt') else 9.0; "
        "best > step % 3 + 0.5 and open('b.txt', 'w').write(str(step % 3 + 0.5)); factor += best"
    ),
    "a large list": "factor += len(open('l.txt').read()) % 7 if step else 0; open('l.txt', 'w').write('x' * (1 << 25))",
    "a list that the system writes, too": (
        "factor += float(open('o.txt').read()) if step else 0; open('o.txt', 'w').write('1'); "
        "file = os.open('o.txt', os.O_WRONLY | os.O_TRUNC); os.write(file, str(step).encode()); os.close(file)"
    ),
    "HDF5": (
        "factor += float(h5py.File('w.h5', 'r')['x'][0]) if step else 0; "
        "file = h5py.File('w.h5', 'w'); file['x'] = [float(step)]; file.close()"
    ),
}
"""What keeps state in a file that is written as a whole."""
COMES_BACK = {
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
    died = ran(detrain, tmp_path, PROGRAM.replace("BODY", body), "--every", "2b", DIE_AT="1:1").died()

    assert f"not captured, a resumed run will be REFUSED from here on: {named}\n" in died.err


@pytest.mark.parametrize("name", PUT_BACK)
@pytest.mark.parametrize(("every", "die"), [("3b", "1:1"), ("1b", "1:2"), ("2b", "0:3")])
def test_a_file_that_is_written_whole_is_put_back(name: str, every: str, die: str, tmp_path: Path, detrain: Run) -> None:
    text = PROGRAM.replace("BODY", PUT_BACK[name])
    whole, died, again = compared(detrain, tmp_path, text, every=every, at=die, is_apart=True)

    assert "resuming" in again.err
    assert "not captured" not in died.err + again.err
    assert again.out == whole.out
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir() if path.suffix in (".txt", ".json", ".npy")}
    assert {name: (tmp_path / "killed" / name).read_bytes() for name in files} == files


def test_a_file_that_an_epoch_reads_and_its_bodies_write_is_said(tmp_path: Path, detrain: Run) -> None:
    """A run that resumes inside of the epoch reads it again before the batches, as the bodies have left it."""
    body = "factor = first; open('r.txt', 'w').write(str(step))"
    head = "    first = float(open('r.txt').read()) if epoch else 1.0\n    for batch"

    died, again = after_deaths(
        detrain, tmp_path, PROGRAM.replace("    for batch", head).replace("BODY", body), at="1:3", every="3b"
    )

    assert died.err.count("r.txt: loads read it, and bodies change it") == 1
    assert again.status == 0, again.err


@pytest.mark.parametrize("name", COMES_BACK)
def test_a_file_that_no_later_body_lives_on_is_not_named(name: str, tmp_path: Path, detrain: Run) -> None:
    whole = ran(detrain, tmp_path, PROGRAM.replace("BODY", COMES_BACK[name]), "--bare")
    (tmp_path / "log.csv").unlink(missing_ok=True)

    died = detrain("run", "--every", "2b", "program.py", cwd=tmp_path, DIE_AT="1:3").died()
    again = detrain("run", "--every", "2b", "program.py", cwd=tmp_path).ok()

    assert "not captured" not in died.err + again.err
    assert again.out == whole.out
    if name == "a log":
        assert (tmp_path / "log.csv").read_text().split() == [str(step) for step in range(8)]


RELOADED = DIE("""\
import hashlib, pathlib, shutil
import numpy as np, torch

torch.manual_seed(0)
x = torch.randn(96, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    best = float("inf")
    for batch, rows in enumerate(torch.randperm(96).split(8)):
        loss = (model(x[rows])[:, 0] - x[rows].sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best = loss.item()
            SAVE
        elif loss.item() > 1.2 * best:
            LOAD
        die(f"{epoch}:{batch}")
    print(epoch, best, flush=True)
print("final", hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest())
""")
STATE = "model.state_dict()"
SAVES = {
    "torch.save": (f"torch.save({STATE}, 'best.pt')", "model.load_state_dict(torch.load('best.pt'))"),
    "a path": (f"torch.save({STATE}, pathlib.Path('best.pt'))", "model.load_state_dict(torch.load('best.pt', mmap=True))"),
    "replaced": (
        f"torch.save({STATE}, 'tmp.pt'); os.replace('tmp.pt', 'best.pt')",
        "model.load_state_dict(torch.load('best.pt'))",
    ),
    "copied": (
        f"torch.save({STATE}, 'last.pt'); shutil.copy('last.pt', 'best.pt')",
        "model.load_state_dict(torch.load('best.pt'))",
    ),
    "NumPy": (
        f"np.savez('best.npz', **{{name: each.numpy() for name, each in {STATE}.items()}})",
        "model.load_state_dict({name: torch.from_numpy(each) for name, each in np.load('best.npz').items()})",
    ),
    "safetensors": (
        f"import safetensors.torch as st; st.save_file({STATE}, 'best.safetensors')",
        "import safetensors.torch as st; model.load_state_dict(st.load_file('best.safetensors'))",
    ),
}
"""How best weights are saved, and gone back to."""


@pytest.mark.parametrize("name", SAVES)
@pytest.mark.parametrize("death", ["1:9", "2:2"])
def test_best_weights_that_a_loop_goes_back_to_are_those_of_the_cut(
    name: str, death: str, torch_server: Server, tmp_path: Path
) -> None:
    """The file held what a later batch had saved, and the resumed run trained on from that, without a word."""
    if name == "safetensors":
        pytest.importorskip("safetensors")
    save, load = SAVES[name]
    _, died, resumed = compared(
        torch_server, tmp_path, RELOADED.replace("SAVE", save).replace("LOAD", load), every="5b", at=death, whole="bare"
    )

    assert "not captured" not in died.err + resumed.err


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


def test_files_that_are_written_through_tensorflow_come_back(tmp_path: Path, detrain: Run) -> None:

    died, again = after_deaths(detrain, tmp_path, THROUGH_TENSORFLOW, at="1:3", every="2b")

    assert again.status == 0, died.err + again.err
    assert "reads again" not in died.err
    assert "is read, which was written after the checkpoint" not in again.err
    places = [f"{epoch}:{batch}" for epoch in range(2) for batch in range(4)]
    assert (tmp_path / "closed.txt").read_text().split() == places
    assert (tmp_path / "kept.txt").read_text().split() == places
    assert "kept.txt (file" not in again.err


TWO_TRAININGS = PRELUDE("""
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
""")


@pytest.mark.parametrize("death", ["0:2", "1:2"])
@pytest.mark.parametrize("after", ["np.save('best.npy', optimizer.weights)", "pass"])
def test_what_an_earlier_training_has_left_is_there_for_a_later_one_that_writes_it_again(
    after: str, death: str, tmp_path: Path, detrain: Run
) -> None:
    whole = ran(detrain, tmp_path, TWO_TRAININGS.replace("AFTER", after))
    detrain("run", "--fresh", "--every", "1b", "program.py", cwd=tmp_path, DIE_AT=death).died()

    again = detrain("run", "--every", "1b", "program.py", cwd=tmp_path).ok()

    assert again.last_line() == whole.last_line()
    assert "best.npy (file" not in whole.err
