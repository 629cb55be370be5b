"""Ordinary programs, killed at the starts of epochs, inside them, and in later passes over the data, end as if nothing
had been.

The proof of `fit`, `train_on_batch` and plain loops rests on these tables. A process is what is killed, so each row
takes some.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.choices import ends_as_if_never_killed
from tests.e2e.forkserver import Server
from tests.e2e.ordinary import BY_PYTHON, ENDLESS, FIT, PRELUDE, fits, loops, name_of, text
from tests.e2e.runs import compared

LENGTHS = [
    {name: values[0] for name, values in FIT.items()}
    | {"data": data, "steps_per_epoch": steps, "every": every, "draws": data in BY_PYTHON}
    for data in FIT["data"]
    for steps in FIT["steps_per_epoch"]
    for every in FIT["every"]
    if steps or data not in ENDLESS
]
"""`steps_per_epoch` absent, below, equal to, above and no divisor of the length of all kinds of data: whole, not in
pairs.

Callbacks draw from the streams of what loads, where that is Python.
"""
LOOPS = loops()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=name_of(row), marks=[] if row == LOOPS[0] else [pytest.mark.slow])
        for table in (LENGTHS, fits(), LOOPS)
        for row in table
    ],
)
def test_an_ordinary_program_killed_again_and_again_ends_as_one_that_never_was(
    row: dict[str, object], server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (program := tmp_path / "program.py").write_text(text(row))
    ends_as_if_never_killed(
        server, program, row["every"], request, lambda folder: server.detrain("run", "--bare", program, cwd=folder)
    )


CHANGED = """
if os.environ.get("CHANGED"):
    x[:20] += 1  # the first two batches: those behind the cut are what they were
"""
OF_FIT = """
def some_rows():
    for number in range(46):
        yield x[number], y[number]

model.compile("adam", loss_of)
data = tf.data.Dataset.from_generator(some_rows, output_signature=spec).batch(10)
model.fit(data, steps_per_epoch=3, epochs=3, verbose=0, callbacks=[Die()])
"""
OF_A_LOOP = """
model.compile("adam", loss_of)
for epoch in range(2):
    for a, b in [(x[start : start + 10], y[start : start + 10]) for start in range(0, 46, 10)]:
        die()
        model.train_on_batch(a, b)
"""
OF_AN_ITERATOR = """
model.compile("adam", loss_of)
data = iter(rows.map(lambda a, b: (a + tf.random.normal([6]), b)).repeat().batch(10))
for epoch in range(3):
    for step in range(2):
        a, b = next(data)
        die()
        model.train_on_batch(a, b)
"""
OF_A_LINE = """
def load(step):
    return x[step * 9 : step * 9 + 9] + bool(os.environ.get("CHANGED")), y[step * 9 : step * 9 + 9]

model.compile("adam", loss_of)
for step in range(5):
    die()
    model.train_on_batch(*load(step))
"""


@pytest.mark.fast
@pytest.mark.parametrize(
    ("program", "options", "death", "said"),
    [
        (OF_FIT, ("--every", "1"), "4", "batch 0:0 has digest"),
        (OF_A_LOOP, ("--every", "2b", "--loader", "forward"), "3", "batch 0:0 has digest"),
        (OF_AN_ITERATOR, ("--every", "1"), "3", "element 1 of"),
        (OF_A_LINE, ("--every", "2b"), "4", "batch 0:2 has digest"),
    ],
    ids=["fit", "a loop", "an iterator that lives on", "in the line of the update"],
)
def test_batches_that_tell_that_data_are_others_are_compared(
    program: str, options: tuple[str, ...], death: str, said: str, server: Server, tmp_path: Path
) -> None:
    """Those before the cut, where it was killed before that behind it was on record; and that which no name is bound
    to.

    What is killed is a process.
    """
    path = tmp_path / "program.py"
    head, _, tail = PRELUDE.partition("rows = ")
    path.write_text(f"{head}{'' if 'CHANGED' in program else CHANGED}rows = {tail}{program}")
    server.detrain("run", *options, path, cwd=tmp_path, DIE_AT=death).died()
    run = server.detrain("run", *options, path, cwd=tmp_path, CHANGED="1")

    assert run.status == 78, run.err
    assert said in run.err


MOVED_BY_BODIES = """
import sklearn  # it may keep a state: batches are loaded again

model.compile("adam", loss_of)
for epoch in range(2):
    order, i = np.random.permutation(46), 0
    while i < 46:
        a, b = x[order[i : i + 10]], y[order[i : i + 10]]
        die()
        loss = model.train_on_batch(a, b)
        i += 10
    print(epoch, float(loss))
show()
"""


@pytest.mark.slow
def test_loads_by_names_that_bodies_move_on_are_no_error(server: Server, tmp_path: Path) -> None:
    """Loaded again without the bodies, batches are others on the way, and the right one at the cut.

    A process is killed.
    """
    _, _, run = compared(server, tmp_path, PRELUDE + MOVED_BY_BODIES, every="2b", at="9")

    assert "loaded again" in run.err
