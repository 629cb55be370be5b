"""Generators that live on from epoch to epoch: a resumed run has them where they were, or stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detrain.base.errors import NotCapturable
from detrain.instrument.text_edits import apply
from detrain.instrument.value_probes import BEGUN, PASS_ON, YIELD, edits_for_yields
from detrain.python.inspect.progress import PassedOn
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE, PRELUDE
from tests.e2e.runs import Run, after_deaths, compared, ran

LOOP = """
optimizer = Optimizer(np.ones(3))
{before}
for epoch in range(4):
    for step in range(6):
        {load}
        optimizer.apply_gradients(np.asarray(x) * 1e-2 + np.random.normal() * 1e-3)
        {after}
        die(f"{{epoch}}:{{step}}")
    print(epoch, optimizer.weights.sum().hex(), np.random.rand(), flush=True)
show(optimizer.weights)
"""
FROM_GLOBAL = """
def batches():
    while True:
        yield np.random.normal(size=3)
"""
OWN = """
def batches(rng=np.random.default_rng(4)):
    total = 0.0
    while True:
        total += rng.normal()
        yield [total, *rng.normal(size=2)]
"""
POOL = """
def batches():
    pool = []
    while True:
        if not pool:
            pool = list(range(10))
            random.shuffle(pool)
        yield np.full(3, pool.pop(), float)
"""

PASSED_ON = """
def batches():
    while True:
        rows = list(range(5))
        random.shuffle(rows)
        yield from rows
        yield from (np.random.normal() for _ in range(2))
source = batches()
"""

PROGRAMS = {
    "next, drawing from the global stream": (FROM_GLOBAL + "source = batches()", "x = next(source)", "pass"),
    "next, with a stream of its own": (OWN + "source = batches()", "x = next(source)", "pass"),
    "a pool without replacement": (POOL + "source = batches()", "x = next(source)", "pass"),
    "zipped": (FROM_GLOBAL + OWN.replace("batches", "others") + "source = zip(batches(), others())", "x, y = next(source)", "pass"),
    "a chain of generators": (
        FROM_GLOBAL + "def halved(source):\n    for x in source:\n        yield x / 2\nsource = halved(batches())",
        "x = next(source)",
        "pass",
    ),
    "pulled in the setup too": (OWN + "source = batches()\nfirst = next(source)", "x = next(source)", "pass"),
    "an expression": ("source = (np.random.normal(size=3) * turn for turn in range(99))", "x = next(source)", "pass"),
    "an expression that a function returns, numbered": (
        "def scaled(rng):\n    return ((turn, rng.normal(size=3)) for turn in range(9) for _ in range(turn))\n"
        "source = enumerate(scaled(np.random.default_rng(4)))",
        "n, (turn, x) = next(source)",
        "pass",
    ),
    "pulled now and then": (
        OWN + "source = batches()\nx = [1.0, 2.0, 3.0]",
        "y = step",
        "x = next(source) if step % 3 == 1 else x",
    ),
    "what it passes on": (PASSED_ON, "x = np.full(3, next(source), float)", "pass"),
    "what it passes on, drawn by bodies": (PASSED_ON + "x = np.ones(3)\n", "y = step", "x = np.full(3, next(source), float)"),
}


@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_generator_goes_on_where_it_was(name: str, every: str, tmp_path: Path, detrain: Run) -> None:
    before, load, after = PROGRAMS[name]
    text = PRELUDE + LOOP.format(before=before, load=load, after=after)
    _, _, last = compared(detrain, tmp_path, text, every=every, at=("1:4", "2:3"), whole="run", is_tail=True)

    assert "not captured" not in last.err


SHARED = {
    "numpy, global": ("np.random", "np.random.normal()", "np.random.normal(size=3)"),
    "numpy": ("np.random.default_rng(4)", "rng.normal()", "rng.normal(size=3)"),
    "numpy, legacy": ("np.random.RandomState(4)", "rng.normal()", "rng.normal(size=3)"),
    "numpy, an attribute": ("Source()", "rng.own.normal()", "rng.own.normal(size=3)"),
    "python": ("random.Random(4)", "rng.gauss(0, 1)", "np.array([rng.random() for _ in range(3)])"),
    "python, derived": ("Dice(4)", "rng.gauss(0, 1)", "np.array([rng.twice() for _ in range(3)])"),
}


@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize("name", SHARED)
def test_a_generator_and_bodies_that_draw_from_one_generator_of_random_numbers(
    name: str, every: str, tmp_path: Path, detrain: Run
) -> None:
    """Each pull is repeated from the state that it had: what bodies have drawn in between counts.

    It was refused at the resume.
    """
    made, drawn, yielded = SHARED[name]
    before = "class Source:\n    def __init__(self):\n        self.own = np.random.default_rng(4)\n"
    before += "class Dice(random.Random):\n    def twice(self):\n        return 2 * self.random()\n"
    before += f"rng = {made}\ndef batches():\n    while True:\n        yield {yielded}\nsource = batches()"
    after = f"optimizer.weights[0] += {drawn}"
    text = PRELUDE + LOOP.format(before=before, load="x = next(source)", after=after).replace(", np.random.rand()", "")
    compared(detrain, tmp_path, text, at=("1:4", "2:3"), every=every, whole="run", is_tail=True)


def test_a_generator_beside_which_loading_draws_too(tmp_path: Path, detrain: Run) -> None:
    """Only what bodies drew was on record, and the generator was refused at the resume."""
    load = "x = next(source)\n        x = x + np.random.normal(size=3)"
    program = PRELUDE + LOOP.format(before=FROM_GLOBAL + "source = batches()", load=load, after="pass")
    text = program.replace("+ np.random.normal() * 1e-3", "")
    compared(detrain, tmp_path, text, every="2b", at=("1:4", "2:3"), whole="run", is_tail=True)


@pytest.mark.parametrize(("header", "is_exact"), [("x in training()", True), ("n, x in enumerate(training())", False)])
def test_a_generator_that_trains(header: str, is_exact: bool, tmp_path: Path, detrain: Run) -> None:
    """Who draws from it was taken for the epoch loop: a resumed run went on for ever, or counted from 0 again, in
    silence.
    """
    program = f"""{PRELUDE}
def training():
    while True:
        optimizer.apply_gradients(np.random.normal(size=3))
        yield optimizer.weights.sum()

optimizer, seen = Optimizer(np.ones(3)), []
for {header}:
    seen.append(x)
    die(str(len(seen)))
    if len(seen) == 9:
        break
show(np.asarray(seen))
"""
    if is_exact:
        whole, killed, last = compared(detrain, tmp_path, program, every="2b", at="5", whole="run")
        assert last.out == whole.out
    else:
        killed, last = after_deaths(detrain, tmp_path, program, every="2b", at="5")
        assert (last.status, last.out) == (79, "")

    assert ("how much was drawn from training(), which trains" in killed.err) is not is_exact


def test_a_for_loop_over_slices_of_a_generator(tmp_path: Path, detrain: Run) -> None:
    text = PRELUDE + FROM_GLOBAL + "import itertools\nsource = batches()\n" + LOOP.format(before="", load="pass", after="pass")
    text = text.replace("for step in range(6):", "for step, x in enumerate(itertools.islice(source, 6)):")
    compared(detrain, tmp_path, text, at="2:3", whole="run", is_tail=True)


def test_a_generator_that_reads_what_the_loop_changes_is_refused(tmp_path: Path, detrain: Run) -> None:
    before = "def batches():\n    while True:\n        yield optimizer.weights * 0.5\nsource = batches()"
    _, last = after_deaths(detrain, tmp_path, PRELUDE + LOOP.format(before=before, load="x = next(source)", after="pass"), at="2:3")

    assert last.status == 78
    assert "does not yield again what it did" in last.err


LOGGED = """
import logging
to_stdout = logging.StreamHandler(sys.stdout)
logging.basicConfig(level="INFO", handlers=[logging.StreamHandler(), to_stdout, logging.FileHandler("log.txt")])
losses = [0.0]
class Every:
    count = 0
    def filter(self, record):
        self.count += 1
        return self.count % 2
every = Every()
to_stdout.addFilter(every)
def logged(epoch):
    for step in range(6):
        yield np.random.normal(size=3)
        logging.info("%d:%d %r", epoch, step, losses[-1])
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    for x in logged(epoch):
        optimizer.apply_gradients(x)
        losses.append(float(optimizer.weights.sum()))
        die(f"{epoch}:{len(losses)}")
    logging.info("epoch %d %d", epoch, every.count)
show(optimizer.weights)
"""


def test_what_a_generator_logs_is_not_logged_twice(tmp_path: Path, detrain: Run) -> None:
    """Handlers of `logging` wrote again what the first run had written, of the losses at the cut."""
    whole = ran(detrain, tmp_path, PRELUDE + LOGGED, "--ckpt", "whole")
    log = (tmp_path / "log.txt").read_text().splitlines()
    (tmp_path / "log.txt").unlink()
    detrain("run", "--every", "4b", "program.py", cwd=tmp_path, DIE_AT="1:13")
    last = detrain("run", "--every", "4b", "program.py", cwd=tmp_path).ok()

    told = [line for line in last.err.splitlines() if not line.startswith("detrain: ")]
    assert (tmp_path / "log.txt").read_text().splitlines() == log
    assert told == log[-len(told) :]
    assert "1:1" in told[0]
    assert last.out == whole.out[-len(last.out) :]


COROUTINE = """
def averages():
    total = 0.0
    while True:
        total += yield total
means = averages()
next(means)
def shuffled():
    return (np.random.normal(size=3) for _ in range(99))
def batches():
    _ = yield from shuffled()
source = batches()"""


def test_what_was_sent_to_a_generator_is_named_though_batches_are_loaded_again(tmp_path: Path, detrain: Run) -> None:
    """Loading the same batches does not send it again: a mean over batches began anew, in silence."""
    text = LOOP.format(before=COROUTINE, load="x = next(source)", after="x = means.send(float(optimizer.weights.sum()))")
    killed = ran(detrain, tmp_path, PRELUDE + text, "--every", "1b", DIE_AT="0:3")

    assert "not captured, a resumed run will be REFUSED from here on: means (generator: it has moved on)" in killed.err


def test_a_generator_that_bodies_draw_from_is_refused_and_that_is_said_beforehand(tmp_path: Path, detrain: Run) -> None:
    before = "def turns():\n    turn = 0\n    while True:\n        turn += 1\n        _ = yield from [turn]\nticket = turns()\n"
    loop = LOOP.format(before=before + COROUTINE.partition("next(means)")[2], load="x = next(source)", after="y = next(ticket)")
    killed, last = after_deaths(detrain, tmp_path, PRELUDE + loop, at="0:3", every="1b")

    assert "a resumed run will be REFUSED from here on: ticket (generator: it has moved on)" in killed.err
    assert last.status == NotCapturable.exit_code


YIELDS = st.sampled_from(
    ["yield", "yield 1", "yield 1, 2", "yield (1, 2)", "x = yield 3", "x = (yield)", "yield {'a': 1}['a']",
     "yield [\n        1,\n    ]",
     "yield from [8, 9]", "yield from (n for n in (8, 9))", "yield from echoes()", "x = yield from echoes()",
     "yield 'ä', 5", "print((yield 7), (yield))", "yield lambda: (yield 3)", "yield (yield 4)", "yield  # comment", "y = yield x"]
)  # fmt: skip


def echoes() -> Iterator[object]:
    sent = None
    for _ in range(3):
        try:
            sent = yield "echo", sent
        except KeyError as error:
            sent = error.args


@given(st.lists(YIELDS, min_size=1, max_size=5))
def test_probes_change_nothing_that_a_generator_yields(lines: list[str]) -> None:
    source = "def values():\n    x = 0\n" + "".join(f"    {line}\n" for line in lines)
    edited = apply(source.encode(), edits_for_yields(source.encode())).decode()
    found = []
    for text in (source, edited):
        seen: list[object] = []
        space: dict[str, object] = {
            YIELD: lambda value: value,
            BEGUN: lambda value=None: value,
            PASS_ON: lambda values: PassedOn(values, list, print, list),
            "echoes": echoes,
            "print": lambda *values, seen=seen: seen.append(values),
        }
        exec(compile(text, "values.py", "exec"), space)
        made = space["values"]()  # type: ignore[operator]
        values = [next(made)]
        try:
            while True:
                values.append(made.throw(KeyError(3)) if len(values) == 4 else made.send(len(values)))
        except (StopIteration, KeyError, AttributeError) as error:  # a list takes nothing in
            values.append(type(error).__name__)
        found.append([value if not callable(value) else "function" for value in values] + seen)
    assert found[0] == found[1]


def test_only_generators_that_take_nothing_in_are_followed() -> None:
    assert edits_for_yields(b"def values():\n    yield 1\n    yield\n") != []
    assert edits_for_yields(b"def values():\n    x = yield 1\n    yield x\n") == []
    assert edits_for_yields(b"def values():\n    yield 1\n    yield from [2]\n") != []
    assert edits_for_yields(b"def values():\n    x = yield from [2]\n") == []


AHEAD = {
    "torch": """
import random, torch
from torch.utils.data import DataLoader, IterableDataset
torch.manual_seed(0)
class Rows(IterableDataset):
    def __iter__(self):
        rng = random.Random(42)
        while True:
            yield from (torch.tensor([row / 40.0, 1.0]) for row in rng.sample(range(40), 40))
MAP_STYLE = [torch.tensor([row / 200.0, 1.0]) for row in range(200)]
def batches():
    for batch in DataLoader({rows}, batch_size=4, {more}):
        yield batch
weights = torch.ones(2, requires_grad=True)
def step(rows):
    loss = (rows @ weights).pow(2).mean()
    loss.backward()
    with torch.no_grad(): weights.sub_(weights.grad * 0.1)
    weights.grad = None
""",
    "tensorflow": """
import tensorflow as tf
def batches():
    for batch in tf.data.Dataset.range(200).shuffle(50, seed=3).batch(4):
        yield batch
weights = tf.Variable([1.0, 2.0])
optimizer = tf.keras.optimizers.SGD(0.1)
def step(rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.cast(rows, tf.float32) / 200 * weights[0] - weights[1]) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
""",
}
PULLED = DIE("""
stream = batches()
rows = next(stream)
turn = 0
while True:
    for half in range(2):
        step(rows)
        rows = next(stream)
    die(f"{turn}")
    turn += 1
    if turn > 15: break
print(weights.tolist() if hasattr(weights, "tolist") else weights.numpy().tolist())
""")
LOADED = [("Rows()", ""), ("Rows()", "num_workers=2"), ("MAP_STYLE", "shuffle=True"), ("tf.data", "")]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "more"), LOADED)
def test_a_generator_over_a_loader_whose_first_batch_is_drawn_before_the_loop(
    rows: str, more: str, server: Server, torch_server: Server, tmp_path: Path
) -> None:
    """Its iterator was brought to its place, and then drawn from again: each resume was refused, unsaid beforehand."""
    framework = "tensorflow" if rows == "tf.data" else "torch"
    program = AHEAD[framework].replace("{rows}", rows).replace("{more}", more) + PULLED
    chosen = server if framework == "tensorflow" else torch_server
    _, died, _ = compared(chosen, tmp_path, program, every="4b", at="9", whole="bare")

    assert "REFUSED" not in died.err


ENDLESS = DIE("""
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
labelled = DataLoader(TensorDataset(torch.randn(32, 3)), 8, shuffle=True)
other = DataLoader(TensorDataset(torch.randn(40, 3)), 12, shuffle=True{own})
def endless(loader):
    {head}
        for batch in loader: yield batch
stream = endless(other)
weights = torch.zeros(3, requires_grad=True)
optimizer = torch.optim.SGD([weights], 0.05)
for epoch in range(5):
    {each}
    for step, {loads}
        loss = (weights - rows).pow(2).mean() + (weights - more).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        die(f"{{epoch}}:{{step}}")
    print(epoch, loss.item(), flush=True)
print(weights.tolist())
""")
LOADS = {
    "zip": "((rows,), (more,)) in enumerate(zip(labelled, stream)):",
    "next": "(rows,) in enumerate(labelled):\n        (more,) = next(stream)",
}
HEADS = {"while": "while True:", "for": "for turn in range(99):"}
EACH = {"once": "pass", "each epoch": "stream = endless(other); more = next(stream)"}
OWN = {"global": "", "own": ", generator=torch.Generator().manual_seed(5)"}


@pytest.mark.parametrize(("every", "death"), [("3b", "2:3"), ("1", "3:2"), ("3b", "1:2")])
@pytest.mark.parametrize(
    ("loads", "head", "own", "made"),
    [
        ("next", "while", "global", "once"),
        ("zip", "for", "global", "once"),
        ("next", "for", "own", "once"),
        ("next", "while", "global", "each epoch"),
    ],
)
def test_an_endless_generator_over_one_loader_beside_another(
    loads: str, head: str, own: str, made: str, every: str, death: str, torch_server: Server, tmp_path: Path
) -> None:
    """What the other loader drew between the batch's head and the pull was not drawn when it was pulled again."""
    program = ENDLESS.format(loads=LOADS[loads], head=HEADS[head], own=OWN[own], each=EACH[made])
    _, died, _ = compared(torch_server, tmp_path, program, every=every, at=death, whole="bare")

    assert "REFUSED" not in died.err
