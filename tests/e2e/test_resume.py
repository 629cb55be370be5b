"""Programs without a framework, killed at a cut and run again, end as if they had never been."""

from __future__ import annotations

import os
import random
from pathlib import Path
from textwrap import indent

import pytest

from detrain.base import errors
from tests.e2e.programs import ALL, DIE, PRELUDE
from tests.e2e.runs import Result, Run, after_deaths, bare_python, compared, library, ran

PLACES = {
    "for_loops": ["0:0", "1:0", "1:7", "3:7", "2:3"],
    "while_loops": ["0:0", "1:0", "1:5", "3:2"],
    "try_continue": ["0:0", "1:2", "2:4", "3:5", "1:5", "2:1"],
    "phases": ["fold0:1:0", "fold1:2:4", "fold2:0:0", "fold2:3:4"],
    "one_loop": ["0:7", "0:18", "0:29"],
    "methods": ["0:3", "1:0", "2:5", "3:3"],
    "held_by_c": ["0:3", "1:2"],
    "settings": ["0:3", "1:2"],
}
CASES = [
    (name, every, place)
    for name, places in PLACES.items()
    for place in places
    for every in ("1", "3b")
    if not (name == "one_loop" and every == "1")
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Result]]:
    folder = tmp_path_factory.mktemp("programs")
    found = {}
    for name, text in ALL.items():
        path = folder / f"{name}.py"
        path.write_text(text)
        found[name] = (path, bare_python(path))
        assert found[name][1].status == 0, found[name][1].err
    return found


@pytest.mark.parametrize(("name", "every", "place"), CASES)
def test_killed_at_a_cut_resumes_to_the_bit(
    name: str, every: str, place: str, programs: dict[str, tuple[Path, Result]], tmp_path: Path, detrain: Run
) -> None:
    path, whole = programs[name]
    first = detrain("run", "--ckpt", tmp_path, "--every", every, path, DIE_AT=place)
    again = detrain("run", "--ckpt", tmp_path, "--every", every, path).ok()

    assert first.status in (-9, 0)
    lines, expected = again.out.splitlines(), whole.out.splitlines()
    if name == "phases":  # code between phases runs again, from the exact state, and prints again what it printed
        expected = [line for line in expected if line in lines]
    assert lines == expected[-len(lines) :]
    assert lines[-1].startswith("weights")
    assert "not captured" not in first.err + again.err


@pytest.mark.parametrize("name", sorted(ALL))
def test_an_uninterrupted_run_prints_what_plain_python_prints(
    name: str, programs: dict[str, tuple[Path, Result]], tmp_path: Path, detrain: Run
) -> None:
    path, whole = programs[name]

    assert detrain("run", "--ckpt", tmp_path, "--every", "2b", path).out == whole.out


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again_ends_the_same(
    seed: int, programs: dict[str, tuple[Path, Result]], tmp_path: Path, detrain: Run
) -> None:
    path, whole = programs["for_loops"]
    draw = random.Random(seed)
    places = sorted((draw.randrange(4), draw.randrange(8)) for _ in range(3))

    for epoch, step in places:
        detrain("run", "--ckpt", tmp_path, "--every", "2b", path, DIE_AT=f"{epoch}:{step}")
    last = detrain("run", "--ckpt", tmp_path, "--every", "2b", path).ok()

    assert last.out.splitlines()[-1] == whole.out.splitlines()[-1]


LIBRARY = """
import numpy as np
class Space:
    def __init__(self, size):
        self.size, self.rng = size, None
class Env:
    late = None
    def __init__(self, seed):
        self.rng, self.first = np.random.default_rng(seed), True
        self.turn, self.history, self.space = 0, [], Space(3)
        self.array = np.zeros(3)
    def reset(self):
        self.turn += 1
        if self.late is None:
            self.late = np.random.default_rng(self.turn)
            del self.first
        self.array += self.late.random() + self.rng.normal(size=3)
        self.history.append(float(self.array[0]))
        self.space.size += 1
        return self.array * self.turn + self.space.size
class Half(Env):
    def __init__(self, seed):
        super().__init__(seed)
        self.thread = __import__("threading").Thread()
"""

WITH_LIBRARY = DIE("""
import hashlib
import numpy as np
import someenv
env = someenv.Env(3)
class Optimizer:
    def __init__(self):
        self.weights = np.zeros(3)
    def apply_gradients(self, x):
        self.weights += x
optimizer = Optimizer()
for epoch in range(3):
    for step in range(4):
        optimizer.apply_gradients(env.reset())
        die(f"{epoch}:{step}")
print(env.turn, env.history, hashlib.sha256(optimizer.weights.tobytes()).hexdigest())
""")


@pytest.mark.parametrize("every", ["1", "3b"])
def test_an_object_of_a_library_that_holds_only_data_comes_back(every: str, tmp_path: Path, detrain: Run) -> None:
    path = library(tmp_path, {"someenv.py": LIBRARY})
    whole, first, resumed = compared(detrain, tmp_path, WITH_LIBRARY, at="2:1", every=every, **path)

    assert "not captured" not in first.err + resumed.err
    assert "resuming" in resumed.err
    assert resumed.out == whole.out


def test_an_object_of_a_library_that_holds_more_than_data_is_named_when_it_changes(tmp_path: Path, detrain: Run) -> None:
    path = library(tmp_path, {"someenv.py": LIBRARY})
    run = ran(detrain, tmp_path, WITH_LIBRARY.replace("someenv.Env", "someenv.Half"), **path)
    strict = detrain("run", "--fresh", "--strict", "program.py", cwd=tmp_path, **path)

    assert "REFUSED from here on: env (someenv.Half: it has moved on)" in run.err
    assert strict.status == errors.NotCapturable.exit_code


INSTALLED = {
    "trainer/meter.py": """
class Meter:
    total = 0.0
    def update(self, x):
        self.total += x
""",
    "trainer/task.py": PRELUDE
    + """
from trainer.meter import Meter
import someenv

def main():
    optimizer, meter, seen = Optimizer(np.ones(3)), Meter(), []
    for epoch in range(4):
        for step in range(5):
            optimizer.apply_gradients(np.random.normal(size=3))
            meter.update(optimizer.weights.sum())
            seen.append(step)
            die(f"{epoch}:{step}")
        print(epoch, meter.total, len(seen), flush=True)
    show(optimizer.weights)

main()
""",
}


@pytest.mark.parametrize("every", ["1", "2b"])
def test_a_program_that_is_installed_among_libraries_is_the_users(every: str, tmp_path: Path, detrain: Run) -> None:
    path = library(tmp_path, {"someenv.py": LIBRARY, **INSTALLED})
    whole = detrain("run", "--ckpt", "whole", "-m", "trainer.task", cwd=tmp_path, **path)
    detrain("run", "--every", every, "-m", "trainer.task", cwd=tmp_path, DIE_AT="2:3", **path)
    last = detrain("run", "--every", every, "-m", "trainer.task", cwd=tmp_path, **path).ok()

    assert "resuming" in last.err
    assert last.out == whole.out[-len(last.out) :]


OUTPUT_FILES = PRELUDE("""
import json, os, pathlib

early = open("early.log", "w")
early.write("begun\\n")
raw = open("raw.bin", "wb")
pathlib.Path("best.json").write_text(json.dumps({"best": None, "a long note": "of the beginning"}))
pathlib.Path("config.json").write_text("{}")
optimizer, best = Optimizer(np.ones(3)), 1e9
for epoch in range(4):
    for step in range(5):
        x = np.random.normal(size=3)
        optimizer.apply_gradients(x * 0.1)
        raw.write(x.tobytes())
        if not early.closed:
            early.write(f"{epoch} {step} {x[0]}\\n")
        if (epoch, step) == (0, 3):
            early.close()
        if (epoch, step) in ((0, 1), (1, 2)):
            pathlib.Path("best.json").write_text(json.dumps({"best": [epoch, step]}))
        die(f"{epoch}:{step}")
    print(epoch, x, raw.tell(), flush=True)
raw.close()
show(optimizer.weights)
""")


@pytest.mark.parametrize("deaths", [("2:3",), ("0:2", "0:4", "3:1")])
@pytest.mark.parametrize("every", ["1", "2b"])
def test_files_that_were_opened_before_the_loop(every: str, deaths: tuple[str, ...], tmp_path: Path, detrain: Run) -> None:
    """One that the loop has closed was emptied, one that it writes anew got back what code before the loop writes, and
    one of bytes was refused as changed."""
    found = {}
    for place in ("whole", "killed"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "program.py").write_text(OUTPUT_FILES)
        for death in (*deaths, "") if place == "killed" else ("",):
            last = detrain("run", "--every", every, "program.py", cwd=tmp_path / place, DIE_AT=death)
        assert last.status == 0, last.err
        names = ("early.log", "raw.bin", "best.json", "config.json")
        found[place] = {name: (tmp_path / place / name).read_bytes() for name in names}

    assert found["killed"] == found["whole"]


def test_a_kill_on_the_way_loses_no_file_that_was_put_aside(tmp_path: Path, detrain: Run) -> None:
    text = OUTPUT_FILES.replace("optimizer, best =", 'die("before")\noptimizer, best =').replace("early =", 'die("start")\nearly =')
    (tmp_path / "program.py").write_text(text)
    for death in ("2:3", "before", "before", "start"):
        detrain("run", "program.py", cwd=tmp_path, DIE_AT=death)
    assert (tmp_path / "best.json").read_text() == '{"best": [1, 2]}'
    detrain("run", "program.py", cwd=tmp_path).ok()

    assert (tmp_path / "best.json").read_text() == '{"best": [1, 2]}'


KEEPS = {
    "attributes of a class that only its objects lead to": (
        """
class Schedule:
    rate, turns = 0.1, []
    def step(self):
        type(self).rate *= 0.9
        self.turns.append(len(self.turns))
schedule = Schedule()
""",
        "",
        """
x *= schedule.rate
schedule.step()
""",
        "schedule.rate, len(schedule.turns)",
    ),
    # All of it was left as it was when the loop was entered, and nothing was said.
    "what classes hold in classes, methods and members": (
        """import enum, functools

def counted(function):
    calls = 0
    @functools.wraps(function)
    def wrapper(*arguments):
        nonlocal calls
        calls += 1
        wrapper.last = calls * 0.01
        return function(*arguments) + calls * 0.01
    return wrapper

def rising(start):
    def rise(self):
        nonlocal start
        start += 0.01
        return start
    return rise

class Config:
    class Train:
        rate, turns = 0.1, []
        class Decay:
            rate = 0.99

class Phase(enum.Enum):
    WARM, COLD = 1, 2
    def __init__(self, number):
        self.hits = 0

class Level(enum.IntFlag):
    LOW, HIGH = 1, 2
Level.uses = 0

class Agent:
    @counted
    def act(self): return 1.0
    @staticmethod
    @counted
    def still(): return 1.0
    @classmethod
    @counted
    def of_class(cls): return 1.0
    @property
    @counted
    def seen(self): return 1.0
    def noise(self, memory={"n": 0}):
        memory["n"] += 1
        return memory["n"] * 0.1
    def __call__(self, memory=[0]):
        memory[0] += 1
        return memory[0] * 0.1
    rise = rising(1.0)
    def explore(self): return 1.0
    def marked(self): return 1.0
    def gone(self): return 1.0
Agent.marked.uses = 0

def exploit(self): return 2.0

agent = Agent()
Agent.explore.uses = 0
""",
        "",
        """
values = [agent.act(), agent.still(), agent.of_class(), agent.seen, agent.noise(), agent(), agent.explore()]
values += [Config.Train.rate, Phase.WARM.hits, Level.uses, hasattr(agent, "gone"), type(agent).act.last]
values += [agent.rise(), Agent.marked.uses]
x *= sum(values) * 0.01
Agent.marked.uses += 1
Config.Train.rate *= Config.Train.Decay.rate
Config.Train.Decay.rate -= 0.01
Config.Train.turns.append(step)
Phase.WARM.hits += 1
Level.uses += 1
if (epoch, step) == (1, 2):
    Agent.explore, Agent.still = exploit, staticmethod(exploit.__get__(agent))
    del Agent.gone
""",
        "values, len(Config.Train.turns)",
    ),
    # A resume was refused, as the modules were not there; and what the loop keeps by a key came back as None.
    "modules that are imported and functions that are kept by the loop": (
        """
made = {}
def scaled(number):
    if number not in made:
        made[number] = lambda x: x * number
    return made[number]
""",
        "",
        """
if epoch >= 1:
    from late_package import rates
    import late
    x = x * rates.rate() + late.calls
    late.calls += 1
x = scaled(step % 2)(x)
""",
        "sorted(made)",
    ),
    # What was there was taken for them, in silence.
    "functions that the loop changes": (
        """import functools

class Sampler:
    turns = 0
    def weight(self, step):
        return 1.0 + step
    def bias(self):
        return 0.0
    @staticmethod
    def unit():
        return 1.0

def augment(x):
    return x

def noisy(x):
    return x + 0.1

def scale(step):
    return 1.0

def halved(self):
    return 0.5

sampler = Sampler()
""",
        """
if epoch == 1:
    def patched(self, step):
        self.turns += 1
        return 0.25 * step + self.turns
    Sampler.weight = functools.update_wrapper(patched, Sampler.weight)
    Sampler.bias.__code__ = halved.__code__
    Sampler.unit.__code__ = (lambda: 2.0).__code__
    augment.__code__ = noisy.__code__
    scale.__name__, scale.__doc__ = "scale_v2", "Again."
""",
        "x = augment(x) * sampler.weight(step) + sampler.bias() * Sampler.unit() * scale(step)",
        "scale.__name__, scale.__doc__, sampler.turns, sampler.unit()",
    ),
    # Their globals were those of the start, in silence.
    "modules that are not among the imported": (
        """import importlib.util, types

with open("settings.txt", "w") as file:
    file.write("total = 0.0\\ndef add(x):\\n    global total\\n    total += x\\n    return total\\n")

def load(name):
    loader = importlib.machinery.SourceFileLoader(name, os.path.abspath("settings.txt"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module

outer, inner, made = load("settings"), load("settings"), types.ModuleType("made")
""",
        "",
        """
made.count = getattr(made, "count", 0) + step
x = x * outer.add(0.1) + inner.add(0.2) + made.count
""",
        "outer.total, inner.total",
    ),
    # Its name in the module leads to none in a resumed run, which was refused, or to another, in silence.
    "a function that a body defines": (
        "def scale(x):\n    return x",
        "",
        """
def shifted(x): return scale(x) + step
act = lambda x: shifted(x)
if epoch == step == 0:
    def scale(x): return 2 * x
x = act(x)
""",
        "x",
    ),
}
"""What a program has before the loops, at the start of an epoch and in a body, and what it shows of it in the end."""
KEEPING = """
BEFORE
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
AT_START
    for step in range(5):
        x = np.random.normal(size=3)
BODY
        optimizer.apply_gradients(x)
        die(f"{epoch}:{step}")
    print(epoch, x, SHOWN, flush=True)
show(optimizer.weights)
"""


@pytest.mark.parametrize(
    ("name", "every", "death"),
    [
        pytest.param(name, *how, marks=pytest.mark.fast if how == ("2b", "2:3") else pytest.mark.slow)
        for name in KEEPS
        for how in (("2b", "2:3"), ("1", "2:3"), ("2b", "0:3"))
    ],
)
def test_what_a_loop_keeps_in_classes_functions_and_modules(
    name: str, every: str, death: str, tmp_path: Path, detrain: Run
) -> None:
    (tmp_path / "late.py").write_text("calls = 0\n")
    (tmp_path / "late_package").mkdir()
    (tmp_path / "late_package" / "rates.py").write_text("made = []\ndef rate():\n    made.append(1)\n    return 1 / len(made)\n")
    program = PRELUDE + KEEPING
    for place, depth, text in zip(("BEFORE", "AT_START", "BODY", "SHOWN"), (0, 4, 8, 0), KEEPS[name], strict=True):
        program = program.replace(place, indent(text.strip("\n"), " " * depth))

    whole, died, last = compared(detrain, tmp_path, program, every=every, at=death, whole="run", is_tail=True)

    assert "not captured" not in whole.err + died.err
    assert "resuming" in last.err


MAKES_FUNCTIONS = PRELUDE("""
import functools, types

def make_aug(level):
    seen = [level]
    def aug(x, *, scale=[1.0]):
        seen.append(len(seen))
        scale[0] += 0.5
        return x * level + seen[-1] * scale[0]
    return aug

def counter():
    n = 0
    def up():
        nonlocal n
        n += 1
        return n
    return up, lambda: n

def factory():
    total = 0.0
    def add(x):
        nonlocal total
        total += x
    return add, lambda by: lambda: total / by

def logged(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        wrapper.calls += 1
        return function(*arguments) + 1e-3 * wrapper.calls
    wrapper.calls = 0
    return wrapper

class Model:
    def rate(self):
        return 1.0

@functools.singledispatch
def size(x):
    return 1.0

add, make_mean = factory()
model, optimizer = Model(), Optimizer(np.ones(3))

def train():
    aug = up = read = mean = None
    pipeline, table, shared = [], {}, 0.0
    for epoch in range(4):
        if epoch == 1:
            aug = make_aug(epoch)
            up, read = counter()
            mean = make_mean(2)
            pipeline.append(lambda x: x + shared)
            pipeline.append(functools.partial(lambda by, x: x * by, 0.5))
            table["aug"] = aug
            model.rate = types.MethodType(lambda self: 0.25, model)
            def halve(n: int, unit: np.ndarray = None) -> float:
                "Again and again."
                return 0.0 if n <= 1 else 1 + halve(n / 2)
            table["halve"] = logged(halve)
            table["of a body"] = [lambda x: x + k for k in range(3)]
            size.register(np.ndarray, lambda x: float(len(x)))
        for step in range(5):
            x = np.random.normal(size=3)
            add(float(x[0]))
            shared = shared / 2 + step
            if aug is not None:
                assert table["aug"] is aug and table["halve"].__wrapped__.__annotations__["unit"] is np.ndarray
                x = functools.reduce(lambda value, f: f(value), pipeline, aug(x)) * up() + read() + mean()
                x = x * model.rate() + table["halve"](epoch * 5 + step) + table["of a body"][1](step) + size(x)
            optimizer.apply_gradients(x)
            die(f"{epoch}:{step}")
        print(epoch, x, [f.__qualname__ for f in table.values() if callable(f)], flush=True)
    show(optimizer.weights)
train()
""")


@pytest.mark.parametrize("every", ["1", "2b"])
def test_functions_that_the_loop_makes(every: str, tmp_path: Path, detrain: Run) -> None:
    """They were named, and a resumed run had None in their place."""
    whole, _, last = compared(detrain, tmp_path, MAKES_FUNCTIONS, every=every, at="2:3", whole="run", is_tail=True)

    assert (whole.status, last.status) == (0, 0), last.err
    assert "resuming" in last.err


PASSES = PRELUDE("""
def make_pass(optimizer, factor):
    def one_pass(epoch):
        for step in range(5):
            optimizer.apply_gradients(np.random.normal(size=3) * factor)
            die(f"{epoch}:{step}")
    return one_pass
""")
MAKES_PASSES = """
optimizer = Optimizer(np.ones(3))
one_pass = make_pass(optimizer, 1.0)
for epoch in range(4):
    if epoch == 1:
        one_pass = make_pass(optimizer, 0.5)
    one_pass(epoch)
    print(epoch, optimizer.weights, flush=True)
show(optimizer.weights)
"""


@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize("is_apart", [False, True])
def test_a_function_with_the_batch_loop_that_the_loop_makes(every: str, is_apart: bool, tmp_path: Path, detrain: Run) -> None:
    """Its code has probes, which the source on the disk has not."""
    (tmp_path / "passes.py").write_text(PASSES)
    text = ("from passes import *\n" if is_apart else PASSES) + MAKES_PASSES
    _, _, last = compared(detrain, tmp_path, text, at="2:3", every=every, whole="run", is_tail=True)

    assert "resuming" in last.err
    assert "not captured" not in last.err


OF_OPEN_CALLS = PRELUDE("""
import os, threading
optimizer, kept = Optimizer(np.ones(3)), []

def readers():
    for turn in range(100):
        yield lambda: turn

def work(go, done):
    level = 0
    kept.append(lambda: level)
    done.set()
    while go.wait():
        go.clear()
        level += 1
        done.set()

reading = readers()
go, done = threading.Event(), threading.Event()
for epoch in range(4):
    for step in range(5):
        if epoch == 0 and step == 1:
            if os.environ["WHERE"] == "generator":
                kept.append(next(reading))
            else:
                threading.Thread(target=work, args=(go, done), daemon=True).start()
                done.wait()
        if os.environ["WHERE"] == "generator":
            next(reading)
        else:
            done.clear(), go.set(), done.wait(1)
        optimizer.apply_gradients(np.random.normal(size=3) + (kept[0]() if kept else 0))
        die(f"{epoch}:{step}")
    print(epoch, [f() for f in kept], flush=True)
show(optimizer.weights)
""")


@pytest.mark.parametrize("where", ["generator", "thread"])
def test_a_function_with_variables_of_a_call_that_goes_on_elsewhere_is_named(where: str, tmp_path: Path, detrain: Run) -> None:
    """Its own copy of them would stand still."""
    died, last = after_deaths(detrain, tmp_path, OF_OPEN_CALLS, at="2:3", every="2b", WHERE=where)

    assert "kept[0] (function)" in died.err
    assert last.status != 0


ONE_OF_EACH = PRELUDE("""
from someenv import Env

class Single(type):
    made, turns = {}, 0
    def __call__(cls, *arguments):
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*arguments)
        return cls.made[cls]

class Tracker(metaclass=Single):
    def __init__(self):
        self.values = []

class Rates(Env):
    uses = {}

optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    Tracker().values.append(optimizer.weights.sum())
    Single.turns += 1
    Rates.uses[Tracker] = epoch, type(Rates.uses.get(Tracker))
print(Tracker().values, Single.turns, Rates.uses)
""")


@pytest.mark.parametrize("place", ["1:0", "3:2"])
def test_a_class_of_classes_keeps_the_only_object_of_each(place: str, tmp_path: Path, detrain: Run) -> None:
    path = library(tmp_path, {"someenv.py": LIBRARY})
    whole, _, last = compared(detrain, tmp_path, ONE_OF_EACH, at=place, whole="run", **path)

    assert last.out == whole.out


BY_ITSELF = PRELUDE("""
import subprocess
optimizer = Optimizer(np.ones(3))
start = int(open("epoch.txt").read()) if subprocess.run(["test", "-e", "epoch.txt"]).returncode == 0 else 0
for epoch in range(start, 5):
    for step in range(3):
        x = np.random.normal(size=3)
        optimizer.apply_gradients(x)
        die(f"{epoch}:{step}")
    with open("epoch.txt", "w") as file:
        file.write(str(epoch + 1))
show(optimizer.weights)
""")


UNBOUND = """
class Proxy:
    made = 0

    @property
    def __class__(self):
        raise RuntimeError("unbound")

proxy, held = Proxy(), [Proxy()]
proxy.count = held[0].count = 0
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    for step in range(4):
        optimizer.apply_gradients(np.random.normal(size=3) + proxy.count)
        proxy.count += 1
        held[0].count += 2
        Proxy.made += 3
        die(f"{epoch}:{step}")
print(proxy.count, held[0].count, Proxy.made)
show(optimizer.weights)
"""


@pytest.mark.parametrize("every", ["1", "3b"])
def test_a_file_that_must_be_new_is_new_again(every: str, tmp_path: Path, detrain: Run) -> None:
    """Code before the loop found the file of the process before it, and failed, or went on by that."""
    made = """
import pathlib
pathlib.Path("lock").touch(exist_ok=False)
try:
    with open("settings", "x") as file:
        file.write("new")
    shift = 1.0
except FileExistsError:
    shift = 2.0
"""
    text = PRELUDE + made + UNBOUND.replace("+ proxy.count", "* shift")
    for folder, at in (("first", "0:1"), ("second", "1:2")):
        (tmp_path / folder).mkdir()
        compared(detrain, tmp_path / folder, text, every=every, at=at, is_tail=True, is_apart=True)
        assert (tmp_path / folder / "killed" / "settings").read_text() == "new"


@pytest.mark.parametrize("every", ["1", "3b"])
def test_an_object_that_does_not_tell_its_class(every: str, tmp_path: Path, detrain: Run) -> None:
    """A proxy of a context that is not there (`flask.g`): the run ended with an error."""
    compared(detrain, tmp_path, PRELUDE + UNBOUND, every=every, at="1:2", is_tail=True)


LINKED = """
import pathlib
os.makedirs("runs/1", exist_ok=True)
if os.path.islink("latest"):
    os.unlink("latest")
os.symlink("runs/1", "latest")
if not pathlib.Path("last").exists():
    pathlib.Path("last").symlink_to("runs/1")
with open("latest/settings", "w") as file:
    file.write("1")
if not os.path.exists("runs/settings"):
    os.link("runs/1/settings", "runs/settings")
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
show(optimizer.weights)
"""


@pytest.mark.parametrize("at", ["0:1", "1:2"])
def test_a_link_that_the_run_has_made_is_there_already(at: str, tmp_path: Path, detrain: Run) -> None:
    """The program hears that it is not there, as at its first start, and making it failed."""
    compared(detrain, tmp_path, PRELUDE + LINKED, at=at, is_apart=True)

    assert os.readlink(tmp_path / "killed/latest") == os.readlink(tmp_path / "killed/last") == "runs/1"
    assert (tmp_path / "killed/runs/settings").samefile(tmp_path / "killed/latest/settings")


DELETED = """
optimizer = Optimizer(np.ones(3))
boost, other = 1.5, 0.5

def strength():
    return globals().get("other", 0.125)

for epoch in range(3):
    for step in range(4):
        x = np.random.normal(size=3)
        optimizer.apply_gradients(x * strength())
        if (epoch, step) == (0, 1):
            del boost
        if (epoch, step) == (1, 0):
            del other
        try:
            optimizer.weights += boost
        except NameError:
            optimizer.weights -= 0.25
        die(f"{epoch}:{step}")
show(optimizer.weights)
"""


@pytest.mark.fast
@pytest.mark.parametrize("every", ["1", "3b"])
@pytest.mark.parametrize("is_function", [False, True])
def test_a_name_that_the_loop_deletes_stays_deleted(every: str, is_function: bool, tmp_path: Path, detrain: Run) -> None:
    of_module = DELETED.replace("(1, 0):", "(9, 9):") if is_function else DELETED
    text = PRELUDE + (f"def main():\n{indent(of_module, '    ')}\nmain()\n" if is_function else of_module)
    for folder, at in (("first", "1:2"), ("second", "2:1")):
        (tmp_path / folder).mkdir()
        compared(detrain, tmp_path / folder, text, every=every, at=at)


def test_a_program_that_resumes_by_itself_is_refused_not_passed_over(tmp_path: Path, detrain: Run) -> None:
    _, last = after_deaths(detrain, tmp_path, BY_ITSELF, at="2:1")

    assert last.status == 78
    assert "epoch 2:0 is 4 for the program; it was 2 in the first run" in last.err
    assert last.out == ""


DRAWING = PRELUDE("""
import matplotlib.pyplot as plt
plt.plot([1, 2])
optimizer, kept = Optimizer(np.zeros(3)), []
for epoch in range(3):
    for step in range(4):
        optimizer.apply_gradients(np.random.rand(3))
    kept.append(optimizer.weights[0])
    if sys.argv[1:] == ["new"]:
        plt.figure().gca().plot(kept)
        plt.close()
    else:
        plt.plot(kept)
""")


@pytest.mark.parametrize("figure", ["old", "new"])
def test_a_figure_that_the_loop_goes_on_drawing_into_is_named(figure: str, tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text(DRAWING)
    run = detrain("run", "program.py", figure, cwd=tmp_path, MPLBACKEND="Agg").ok()

    assert ("figures of matplotlib.pyplot" in run.err) == (figure == "old")


ELSEWHERE = PRELUDE("""
import contextlib, logging, time

@contextlib.contextmanager
def noted(what, notes=[]):
    notes.append(what)
    yield notes

folder = time.strftime("run-%Y%m%d-%H%M%S")
os.mkdir(folder)
os.chdir(folder)
log = open("log.txt", "w")
optimizer = Optimizer(np.zeros(3))
for epoch in range(3):
    with noted(epoch) as notes:
        for step in range(4):
            optimizer.apply_gradients(np.random.rand(3))
            die(f"{epoch}:{step}")
    print(epoch, notes, optimizer.weights.tolist(), file=log, flush=True)
log.close()
print(open("log.txt").read())
""")


@pytest.mark.parametrize("every", ["1", "3b"])
def test_a_program_goes_into_its_folder_of_results_again(every: str, tmp_path: Path, detrain: Run) -> None:
    """And a decorated function of a library is looked into: what its default holds is state."""
    # Apart, as both may start in the same second.
    whole, _, resumed = compared(detrain, tmp_path, ELSEWHERE, every=every, at="2:1", whole="run", is_apart=True)

    assert resumed.out == whole.out
    assert "[0, 1, 2]" in whole.out


LEFT = PRELUDE("""
def search(name, rate):
    print("rate", name, rate, flush=True)
    optimizer = Optimizer(np.full(3, 2.0))
    for step in range(8):
        optimizer.apply_gradients(rate * optimizer.weights)
        die(f"{name}{rate}:{step}")
        if rate == 3 and step == 4:
            return []
        if rate == 2 and step == 5:
            break
    return optimizer.weights

first, second, third = {}, {}, {}
for rate in (1, 3, 2):
    first[rate] = search("first", rate)

def others():
    for rate in (1, 3, 2):
        second[rate] = search("second", rate)
    for rate in (1, 3, 2):
        third[rate] = search("third", rate)

others()
print(first, second, third)
""")


@pytest.mark.parametrize("every", ["1", "2b", "3b"])
@pytest.mark.parametrize("places", [["second1:6"], ["third1:3"], ["first3:2", "second2:4", "third3:3"], ["third2:5"]])
def test_a_batch_loop_without_an_epoch_loop_is_over_when_it_is_left(
    places: list[str], every: str, tmp_path: Path, detrain: Run
) -> None:
    """Only the first search has an epoch loop with probes around it; those in another function are phases by
    themselves.
    """
    compared(detrain, tmp_path, LEFT, every=every, at=places, whole="run")


WHILE_LOOPS_ALONE = PRELUDE("""
optimizer = Optimizer(np.zeros(3))

def train(count, rate, name):
    done = 0
    while done < count:
        x = np.random.normal(size=3)
        optimizer.apply_gradients(rate * x)
        done += 1
        die(f"{name}{done}")

step = 0
while step < 5:
    optimizer.apply_gradients(np.random.normal(size=3))
    step += 1
    die(f"a{step}")
train(4, 2.0, "b")
train(4, 3.0, "c")
for number, x in enumerate(np.random.normal(size=(5, 3))):
    optimizer.apply_gradients(x)
    die(f"d{number}")
show(optimizer.weights)
""")


@pytest.mark.parametrize("place", ["a4", "b3", "c3", "d3"])
def test_a_while_loop_without_epochs_does_not_go_on_in_the_next_loop(place: str, tmp_path: Path, detrain: Run) -> None:
    """The state of the second loop was set in the first, which then did one batch more: another result, and exit status
    0.
    """
    whole, _, last = compared(detrain, tmp_path, WHILE_LOOPS_ALONE, every="2b", at=place, whole="run")

    assert last.out == whole.out
    assert "resuming" in last.err


NESTED = PRELUDE("""
optimizer = Optimizer(np.ones(3))

def passes(name, count):
    for step in range(count):
        optimizer.apply_gradients(np.random.normal(size=3) * random.random())
        die(f"{name}{step}")
    return float(np.abs(optimizer.weights).sum())

def search(round_):
    found = []
    for epoch in range(2):
        for step in range(3):
            optimizer.apply_gradients(np.random.normal(size=3))
            die(f"search{round_}:{epoch}:{step}")
        found.append(float(optimizer.weights.max()))
    return found

losses, found = [], {}
for round_ in range(7):
    losses.append(passes(f"first{round_}:", 4))
    if round_ % 3 == 2:
        found[round_] = search(round_)
    if round_ == 3:
        losses.append(passes(f"second{round_}:", 2))
print(losses, found)
show(optimizer.weights)
""")


@pytest.mark.parametrize("every", ["1", "3b"])
@pytest.mark.parametrize("place", ["search2:1:1", "first4:2", "search5:0:2", "second3:1", "first6:1", "end"])
def test_an_epoch_loop_goes_on_after_another_one_inside_it(place: str, every: str, tmp_path: Path, detrain: Run) -> None:
    """Its epochs were counted as those of the loop inside it, whose checkpoints then named epochs that it does not
    have.
    """
    (tmp_path / "train.py").write_text(NESTED)
    options = ("run", "--every", every, "--ckpt", "ckpt", "train.py")
    whole = detrain("run", "--ckpt", "whole", "train.py", cwd=tmp_path)
    killed, again = detrain(*options, cwd=tmp_path, DIE_AT=place), detrain(*options, cwd=tmp_path)

    assert (whole.status, killed.status, again.status) == (0, 0 if place == "end" else -9, 0), again.err
    assert again.out == whole.out
    assert "resuming" in again.err


def test_code_that_is_not_in_the_source_is_named(tmp_path: Path, detrain: Run) -> None:
    program = """
def scale(x):
    return x
optimizer = Optimizer(np.ones(3))
for epoch in range(3):
    if epoch == 1:
        scale.__code__ = eval("lambda x: 2 * x").__code__
    for batch in range(4):
        die(f"{epoch}:{batch}")
        optimizer.apply_gradients(scale(np.full(3, random.random())))
"""
    died = ran(detrain, tmp_path, PRELUDE + program, "--every", "2b", DIE_AT="2:3").died()

    assert "REFUSED from here on: scale (function: its code is not in the source)" in died.err
