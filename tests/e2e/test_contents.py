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
    "a file that is moved into a folder": (
        "factor += float(open('d/r.txt').read()) if step else 9; open('r.txt', 'w').write(str(step)); "
        "os.makedirs('d', exist_ok=True); step and os.remove('d/r.txt'); factor += len(shutil.move('r.txt', 'd'))"
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
    "files of the system, each new": (
        "os.makedirs('d', exist_ok=True); number = len(os.listdir('d')); factor += number; "
        "os.close(os.open(f'd/{number}', os.O_WRONLY | os.O_CREAT))"
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


THROUGH_GFILE = {
    "a file put in the place of another": (
        "factor += float(open('r.txt').read()) if step else 0; write('n', step); gfile.rename('n', 'r.txt', overwrite=True)"
    ),
    "a copy in the place of another": (
        "factor += float(open('r.txt').read()) if step else 0; write('n', step); gfile.copy('n', 'r.txt', overwrite=True)"
    ),
    "a file that is taken away and made again": (
        "factor += float(open('r.txt').read()) if gfile.exists('r.txt') else 9; "
        "gfile.remove('r.txt') if step % 3 == 2 else write('r.txt', step)"
    ),
    "a file that is taken over": (
        "step and gfile.rename(f'{step - 1}.txt', 'd.txt', True); write(f'{step}.txt', step); "
        "factor += float(open('d.txt').read()) if step else 9"
    ),
    "a folder that is removed, and made again": (
        "factor += float(open('d/r.txt').read()) if gfile.exists('d/r.txt') else 9; "
        "step % 3 == 2 and gfile.rmtree('d'); step % 3 == 0 and (gfile.mkdir('d'), write('d/r.txt', step))"
    ),
    "folders that are renamed": (
        "gfile.makedirs('new'); write('new/r.txt', step); gfile.exists('old') and gfile.rmtree('old'); "
        "gfile.exists('now') and gfile.rename('now', 'old'); gfile.rename('new', 'now'); "
        "factor += float(open('old/r.txt').read()) if gfile.exists('old') else 9"
    ),
    "logs that are renamed": (
        "log = gfile.GFile('a.txt', 'a'); log.write(f'{step} '); log.close(); "
        "step % 3 == 1 and gfile.rename('a.txt', f'b{step}.txt'); "
        "factor += len(open('a.txt').read()) if gfile.exists('a.txt') else 9"
    ),
}
"""What keeps state in files through TensorFlow's functions for them."""
GFILE = """
import tensorflow as tf
from tensorflow.io import gfile

def write(path, step):
    with gfile.GFile(path, "w") as file:
        file.write(str(step))

optimizer ="""


@pytest.mark.parametrize("name", THROUGH_GFILE)
@pytest.mark.parametrize(("every", "die"), [("3b", "1:1"), ("1b", "1:2"), ("2b", "0:3")])
def test_a_file_that_tensorflow_moves_copies_or_removes_is_put_back(
    name: str, every: str, die: str, tmp_path: Path, detrain: Run
) -> None:
    text = PROGRAM.replace("\noptimizer =", GFILE).replace("BODY", THROUGH_GFILE[name])
    whole, died, again = compared(detrain, tmp_path, text, every=every, at=die, is_apart=True)

    assert "resuming" in again.err
    assert "not captured" not in died.err + again.err
    assert again.out == whole.out
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*.txt")}
    assert {path.name: path.read_bytes() for path in (tmp_path / "killed").glob("*.txt")} == files


BEFORE = """
gfile.exists("out") or gfile.mkdir("out")
gfile.exists("old.txt") and gfile.remove("old.txt")
try:
    gfile.remove("log.txt")
except tf.errors.NotFoundError:
    print("no log")
gfile.exists("first.txt") and gfile.rename("first.txt", "moved.txt")
gfile.exists("c.txt") or gfile.copy("moved.txt", "c.txt")
print(sorted(gfile.listdir(".")) == sorted(set(gfile.listdir(".")) - {"b.txt", "log.txt", "old.txt", "first.txt"}))

optimizer ="""


def test_what_tensorflow_does_to_files_before_the_loop_is_done_once(tmp_path: Path, detrain: Run) -> None:
    """A resumed run removed the log that its loop appends to, and failed where a file was there already."""
    body = (
        "log = gfile.GFile('log.txt', 'a'); log.write(f'{step} '); log.close(); write('c.txt', step); write('old.txt', step); "
        "write('out/r.txt', step); factor += len(open('log.txt').read()) + float(open('moved.txt').read())"
    )
    text = PROGRAM.replace("\noptimizer =", GFILE.replace("\noptimizer =", BEFORE)).replace("BODY", body)
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "first.txt").write_text("7")
    whole, _died, again = compared(detrain, tmp_path, text, every="2b", at="1:1", is_apart=True)

    assert "resuming" in again.err
    assert again.out == whole.out
    assert (tmp_path / "killed" / "log.txt").read_text().split() == [str(step) for step in range(8)]


READ = "float(open('r.txt').read())"
WRITTEN_BEFORE = {
    "by open": ("open('r.txt', 'w').write(str(value))", READ),
    "put in the place of another": ("open('n', 'w').write(str(value)); os.replace('n', 'r.txt')", READ),
    "put there anew": (
        "open('n', 'w').write(str(value)); os.path.exists('r.txt') and os.remove('r.txt'); os.rename('n', 'r.txt')",
        READ,
    ),
    "copied": ("open('n', 'w').write(str(value)); shutil.copy('n', 'r.txt')", READ),
    "by the system": (
        "file = os.open('r.txt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC); os.write(file, str(value).encode()); os.close(file)",
        READ,
    ),
    "HDF5": (
        "file = h5py.File('w.h5', 'w'); file['x'] = [float(value)]; file.close()",
        "float(h5py.File('w.h5', 'r')['x'][0])",
    ),
    "by an op": ("import tensorflow as tf; tf.io.write_file('r.txt', str(value))", READ),
    "TensorFlow's checkpoint": (
        "import tensorflow as tf; tf.train.Checkpoint(x=tf.Variable(float(value))).write('w')",
        "float(__import__('tensorflow').train.load_variable('w', 'x/.ATTRIBUTES/VARIABLE_VALUE'))",
    ),
}
"""How a file is written as a whole, and read."""


@pytest.mark.parametrize("name", WRITTEN_BEFORE)
@pytest.mark.parametrize("is_between", [False, True], ids=["before all loops", "between loops"])
def test_a_file_that_is_written_before_the_loop_too_is_put_back(name: str, is_between: bool, tmp_path: Path, detrain: Run) -> None:
    """Code before the loop, which runs again, wrote over the content at the cut, without a word."""
    save, read = WRITTEN_BEFORE[name]
    loop = "for epoch in range(2):\n    for batch in range(4):\n        optimizer.apply_gradients(np.ones(3))\n"
    before = f"{loop}save(9)\n" if is_between else "save(9)\n"
    text = PROGRAM.replace("for epoch", f"def save(value):\n    {save}\n\n{before}for epoch", 1)
    text = text.replace("BODY", f"factor += {read}; save(step)")
    whole, died, again = compared(detrain, tmp_path, text, every="3b", at="1:1", is_apart=True)

    assert "resuming" in again.err
    assert "not captured" not in died.err + again.err
    assert again.out == whole.out


DONE_BEFORE = {
    "a flag that the loop removes": (
        "open('n', 'w').write('1'); os.replace('n', 'flag.txt')",
        "factor += os.path.exists('flag.txt'); step == 1 and os.remove('flag.txt')",
    ),
    "a flag that the loop renames": (
        "open('n', 'w').write('1'); os.replace('n', 'flag.txt')",
        "factor += os.path.exists('flag.txt'); step == 1 and os.rename('flag.txt', 'was.txt')",
    ),
    "an earlier result": (
        "os.makedirs('old', exist_ok=True); os.path.exists('r.txt') and print(shutil.move('r.txt', 'old'))",
        "factor += float(open('r.txt').read()) if os.path.exists('r.txt') else 9; open('r.txt', 'w').write(str(step)); "
        "factor += float(open('old/r.txt').read())",
    ),
    "an earlier log": (
        "os.path.exists('l.txt') and shutil.move('l.txt', 'old.txt')",
        "open('l.txt', 'a').write(f'{step} '); factor += len(open('l.txt').read())",
    ),
    "a log's first line": (
        "open('n', 'w').write('step '); os.replace('n', 'l.txt')",
        "open('l.txt', 'a').write(f'{step} '); factor += len(open('l.txt').read())",
    ),
}
"""What code before the loop does to files, and what the loop does."""


@pytest.mark.parametrize("name", DONE_BEFORE)
def test_what_code_before_the_loop_does_to_files_does_not_change_the_cut(name: str, tmp_path: Path, detrain: Run) -> None:
    """The file at the cut went to the place of the earlier one, was lost to its first line, or was there again."""
    before, body = DONE_BEFORE[name]
    text = PROGRAM.replace("for epoch", f"{before}\nfor epoch", 1).replace("BODY", body)
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
        for file in ("r.txt", "l.txt"):
            (tmp_path / folder / file).write_text("5")
    whole, _died, again = compared(detrain, tmp_path, text, every="3b", at="1:1", is_apart=True)

    assert again.out == whole.out
    files = {path.relative_to(tmp_path / "whole"): path.read_bytes() for path in (tmp_path / "whole").rglob("*.txt")}
    left = [path for path in (tmp_path / "killed").rglob("*.txt") if "ckpt" not in path.parts]
    assert {path.relative_to(tmp_path / "killed"): path.read_bytes() for path in left} == files


AT_HEADS = {
    "renames": (
        "os.path.exists('last.txt') and os.rename('last.txt', f'l{epoch}.txt')",
        "factor += float(open('l1.txt').read()) if epoch else 0; batch % 2 or open('last.txt', 'w').write(str(step)); "
        "factor += float(open('last.txt').read())",
    ),
    "removes": (
        "os.path.exists('r.txt') and os.remove('r.txt')",
        "factor += float(open('r.txt').read()) if os.path.exists('r.txt') else 9; "
        "batch == 0 and open('r.txt', 'w').write(str(step))",
    ),
    "removes a folder": (
        "shutil.rmtree('d', ignore_errors=True); os.mkdir('d')",
        "open(f'd/{batch}.txt', 'w').write(str(step)); "
        "factor += sum(float(open(f'd/{each}.txt').read()) for each in range(batch + 1))",
    ),
    "removes a folder with a log": (
        "shutil.rmtree('d', ignore_errors=True); os.mkdir('d')",
        "open('d/l.txt', 'a').write(f'{step} '); open(f'd/{batch}.txt', 'w').write(str(step)); "
        "factor += len(open('d/l.txt').read()) + len(os.listdir('d'))",
    ),
    "copies": (
        "epoch and shutil.copy('last.txt', 'r.txt')",
        "factor += float(open('r.txt').read()) if epoch else 0; open('last.txt', 'w').write(str(step))",
    ),
    "makes a file for a moment": (
        "open('r.txt', 'w').write('1')",
        "factor += 1 if os.path.exists('r.txt') else 9; step == 4 and os.path.exists('r.txt') and os.rename('r.txt', 'n.txt'); "
        "step == 1 and os.remove('r.txt'); step == 2 and open('n.txt', 'w').write('1')",
    ),
}
"""What code at the head of an epoch, which runs again on the way to a cut inside of it, does to files of bodies."""


@pytest.mark.parametrize("name", AT_HEADS)
@pytest.mark.parametrize("is_between", [False, True], ids=["at the head of epochs", "between loops"])
def test_files_that_code_on_the_way_takes_away_are_back_at_the_cut(
    name: str, is_between: bool, tmp_path: Path, detrain: Run
) -> None:
    """What bodies had written there by the cut was gone, without a word."""
    head, body = AT_HEADS[name]
    if is_between:
        loop = "for epoch in range(2):\n    for batch in range(4):\n        optimizer.apply_gradients(np.ones(3))\n"
        loop += "        open('last.txt', 'w').write('1')\n        open('r.txt', 'w').write('2')\n"
        text = PROGRAM.replace("for epoch", f"{loop}{head}\nfor epoch", 1)
    else:
        text = PROGRAM.replace("    for batch", f"    {head}\n    for batch")
    whole, _died, again = compared(detrain, tmp_path, text.replace("BODY", body), every="3b", at="1:3", is_apart=True)

    assert again.out == whole.out
    files = {path.relative_to(tmp_path / "whole"): path.read_bytes() for path in (tmp_path / "whole").rglob("*.txt")}
    left = [path for path in (tmp_path / "killed").rglob("*.txt") if "ckpt" not in path.parts]
    assert {path.relative_to(tmp_path / "killed"): path.read_bytes() for path in left} == files


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
    "a script": (
        "torch.jit.save(torch.jit.script(model), 'best.pt')",
        "model.load_state_dict(torch.jit.load('best.pt').state_dict())",
    ),
    "a script, by itself": (
        "torch.jit.trace(model.eval(), x[:2]).save('best.pt'); model.train()",
        "model.load_state_dict(torch.jit.load('best.pt').state_dict())",
    ),
    "DCP": (
        f"import torch.distributed.checkpoint as dcp; dcp.save({STATE}, checkpoint_id='best')",
        f"import torch.distributed.checkpoint as dcp; dcp.load({STATE}, checkpoint_id='best')",
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
