"""What no checkpoint holds: REFUSED in time, or harmless by what it is; and gone on without where the user allows it.

What is killed is a process.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from detrain.base.errors import NotCapturable
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE, PRELUDE
from tests.e2e.runs import after_deaths, compared, library

LIBRARY = """\
import threading

class Schedule:
    def __init__(self, settings):
        self.settings, self.turns, self.thread = settings, 0, threading.Thread()

    def step(self):
        self.turns += 1
        self.settings["rate"] = 1 / self.turns
"""
TOLD = PRELUDE("""
import helper
settings = {"rate": 1.0}
schedule = helper.Schedule(settings)
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3) * settings["rate"])
        schedule.step()
        die(f"{epoch}:{step}")
show(optimizer.weights)
""")


def with_library(folder: Path, program: str, **files: str) -> dict[str, str]:
    (folder / "program.py").write_text(program)
    return library(folder, files or {"helper.py": LIBRARY})


def test_an_object_that_is_only_told_things_is_refused_and_that_is_said_in_time(server: Server, tmp_path: Path) -> None:
    """A schedule that was told `step()` was called harmless, and the resumed run went on with another rate."""
    path = with_library(tmp_path, TOLD)

    died = server.detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1", **path)
    foreseen = server.detrain("info", "program.py", cwd=tmp_path, **path)
    refused = server.detrain("run", "program.py", cwd=tmp_path, **path)

    assert "REFUSED from here on: schedule (helper.Schedule: it has moved on)" in died.err
    assert "schedule (helper.Schedule: it has moved on): to resume from 2:0 will be REFUSED" in foreseen.out
    assert refused.status == NotCapturable.exit_code
    assert "--allow-lost schedule" in refused.err


TOLD_TO_OTHERS = PRELUDE("""
import multiprocessing
class Numbers(enumerate):
    pass
if CASE == "event":
    late = multiprocessing.Event()
    factor = lambda: 1 + late.is_set()
elif CASE == "file of TensorFlow's":
    import tensorflow as tf
    late = tf.io.gfile.GFile("rows.txt")
    factor = lambda: float(late.readline())
else:
    late = Numbers(range(99))
    factor = lambda: next(late)[0]
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3) * factor())
        if CASE == "event" and epoch == 1:
            late.set()
        die(f"{epoch}:{step}")
show(optimizer.weights)
""")


@pytest.mark.parametrize("case", ["event", "file of TensorFlow's", "iterator of a class of the program"])
def test_what_shows_nothing_to_python_is_exact_or_refused_and_said_in_time(server: Server, tmp_path: Path, case: str) -> None:
    """Both stayed as the resumed process had made them, and it ended with other weights, in silence."""
    (tmp_path / "program.py").write_text(f"CASE = {case!r}\n{TOLD_TO_OTHERS}")
    (tmp_path / "rows.txt").write_text("".join(f"{number}\n" for number in range(99)))

    bare = server.bare("program.py", cwd=tmp_path)
    died = server.detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1")
    again = server.detrain("run", "program.py", cwd=tmp_path)

    assert "REFUSED from here on: late (" in died.err
    if case == "event":
        assert "going back from 2:0" in again.err  # to where nothing had set it
        assert again.out == bare.out
    else:
        assert again.status == NotCapturable.exit_code
        assert "--allow-lost late" in again.err


def test_a_run_goes_on_without_what_is_allowed_and_says_so_from_then_on(server: Server, tmp_path: Path) -> None:
    path = with_library(tmp_path, TOLD)
    server.detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1", **path)
    refused = server.detrain("run", "program.py", cwd=tmp_path, **path)
    words = shlex.split(re.findall(r"add `(.*)`", refused.err)[0])

    other = server.detrain("run", "--allow-lost", "shedule", "program.py", cwd=tmp_path, **path)
    allowed, again = after_deaths(server, tmp_path, None, *words, at="3:1", **path)

    assert other.status == NotCapturable.exit_code
    assert "--allow-lost shedule: the checkpoint at 2:0 lacks nothing of that name; it lacks schedule" in other.err
    assert "going on without schedule, by --allow-lost" in allowed.err
    assert again.status == 0, again.err
    assert "this run has gone on without schedule, by --allow-lost" in again.err


def test_the_environment_allows_as_the_option_does(server: Server, tmp_path: Path) -> None:
    path = with_library(tmp_path, TOLD)
    server.detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1", **path)

    allowed = server.detrain("run", "program.py", cwd=tmp_path, DETRAIN_RUN_ALLOW_LOST="schedule", **path).ok()

    assert "going on without schedule, by --allow-lost" in allowed.err


LAZY = DIE("""\
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

if not os.path.exists("rows.bin"):
    np.linspace(-1, 1, 48, dtype="float32").tofile("rows.bin")

class Rows(Dataset):
    def __init__(self):
        self.rows = None
    def __len__(self):
        return 12
    def __getitem__(self, i):
        if self.rows is None:
            self.rows = np.memmap("rows.bin", dtype="float32", mode="r", shape=(12, 4))
        return torch.tensor(self.rows[i])

torch.manual_seed(0)
data = Rows()
loader = DataLoader(data, batch_size=3, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()
        die(f"{epoch}:{step}")
    print(epoch, model.weight.tolist(), flush=True)
""")


@pytest.mark.parametrize("every", ["1", "2b"])
def test_a_file_that_a_data_set_opens_when_it_is_read_is_harmless(every: str, torch_server: Server, tmp_path: Path) -> None:
    """It has two names, and was lost at one and missed at the other."""
    _, died, _ = compared(torch_server, tmp_path, LAZY, every=every, at="2:3")

    assert "REFUSED" not in died.err


HOOKS = (
    """
class Steps:
    def __init__(self):
        self.hooks = []
    def slow_down(self, rate):
        def slower(step):
            nonlocal rate
            rate *= 0.9
            return step * rate
        self.hooks.append(slower)
    def turn(self):
        def turned(step):
            return -step
        self.hooks.append(turned)
    def while_it_lasts(self):
        rate = 1.0
        def slower(step):
            return step * rate
        self.hooks.append(slower)
        while True:
            yield
            rate *= 0.9
""",
    PRELUDE
    + """
import helper

steps, optimizer, waiting = helper.Steps(), Optimizer(np.ones(3)), []
hooks = steps.hooks
steps.slow_down(0.95)
for epoch in range(4):
    {made}
    for step in range(3):
        change = np.random.normal(size=3)
        for hook in hooks:
            change = hook(change)
        optimizer.apply_gradients(change)
        [next(each) for each in waiting]
        die(f"{{epoch}}:{{step}}")
show(optimizer.weights)
""",
)


@pytest.mark.parametrize("made", [pytest.param("steps.turn(); steps.slow_down(0.9)", marks=pytest.mark.fast), "steps.turn()"])
def test_a_function_that_a_library_makes_in_the_loop_is_made_again(made: str, server: Server, tmp_path: Path) -> None:
    path = library(tmp_path, {"helper.py": HOOKS[0]})
    whole, _, last = compared(server, tmp_path, HOOKS[1].format(made=made), every="2b", at=("1:1", "3:2"), whole="run", **path)

    assert last.out == whole.out


def test_a_function_of_a_library_that_shares_a_variable_with_a_call_that_goes_on_is_refused(server: Server, tmp_path: Path) -> None:
    path, text = library(tmp_path, {"helper.py": HOOKS[0]}), HOOKS[1].format(made="waiting.append(steps.while_it_lasts())")
    died, refused = after_deaths(server, tmp_path, text, every="2b", at="1:1", **path)

    assert "REFUSED from here on" in died.err
    assert refused.status == NotCapturable.exit_code


LATE = PRELUDE("""
import helper
optimizer, meter = Optimizer(np.ones(3)), None
for epoch in range(4):
    meter = meter or helper.{made}
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
        meter.add(optimizer.weights.sum())
        die(f"{{epoch}}:{{step}}")
print(meter.total)
show(optimizer.weights)
""")
NAMED = {False: "import helper\n", True: "import helper\nif 0: import helper_meters\n"}
MAKES = """\
def meter():
    from helper_meters import Meter
    return Meter()
def __getattr__(name):
    import helper_meters
    return getattr(helper_meters, name)
"""
METERS = """\
class Meter:
    def __init__(self):
        self.total = 0.0
    def add(self, value):
        self.total += value
"""


@pytest.mark.parametrize(("made", "is_exact"), [("meter()", False), ("Meter()", True)])
def test_a_class_whose_module_the_loop_alone_imports(made: str, is_exact: bool, server: Server, tmp_path: Path) -> None:
    """Where the program names the class, its module is imported again; else that was said by the refused resume."""
    program = LATE.format(made=made).replace("import helper\n", NAMED[is_exact])
    path = with_library(tmp_path, program, **{"helper.py": MAKES, "helper_meters.py": METERS})
    (tmp_path / "whole").mkdir()
    whole = server.detrain("run", tmp_path / "program.py", cwd=tmp_path / "whole", **path).ok()
    died = server.detrain("run", "--every", "2b", "program.py", cwd=tmp_path, DIE_AT="1:1", **path).died()
    foreseen = server.detrain("info", "program.py", cwd=tmp_path, **path)
    resumed = server.detrain("run", "--every", "2b", "program.py", cwd=tmp_path, **path)

    if is_exact:
        assert (resumed.status, resumed.out) == (0, whole.out)
        assert "REFUSED" not in died.err
    else:
        lost = "helper_meters:Meter (class: the loop alone imports its module)"
        assert f"REFUSED from here on: {lost}" in died.err
        assert lost in foreseen.out
        assert resumed.status == NotCapturable.exit_code


LISTED = PRELUDE("""
import helper
keeper, optimizer = helper.Keeper(), Optimizer(np.ones(3))
for epoch in range(4):
    {made} helper.Rows())
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{{epoch}}:{{step}}")
    rows = {kept}
show(optimizer.weights)
""")


@pytest.mark.parametrize(
    ("made", "kept", "is_refused"),
    [
        pytest.param("keeper.keep(", "None", False, marks=pytest.mark.fast),
        pytest.param("rows = keeper.keep(rows if epoch == 3 else", "rows", True, marks=pytest.mark.fast),
    ],
)
def test_what_a_library_only_lists_is_lost_only_if_something_else_leads_there(
    made: str, kept: str, is_refused: bool, server: Server, tmp_path: Path
) -> None:
    helper = {
        "helper/detrain.toml": '[helper]\nlisted = {Keeper = ["given"]}\n',
        "helper/__init__.py": "import threading\n"
        "class Keeper:\n    def __init__(self):\n        self.given = []\n"
        "    def keep(self, rows):\n        self.given.append(rows)\n        return rows\n"
        "class Rows:\n    def __init__(self):\n        self.thread = threading.Thread()\n",
    }
    path = with_library(tmp_path, LISTED.format(made=made, kept=kept), **helper)
    whole = server.detrain("run", "--ckpt", "other", "program.py", cwd=tmp_path, **path).ok()
    died = server.detrain("run", "--every", "2b", "program.py", cwd=tmp_path, DIE_AT="2:2", **path)
    last = server.detrain("run", "--every", "2b", "program.py", cwd=tmp_path, **path)

    assert ("REFUSED from here on" in died.err) is is_refused
    assert last.status == (NotCapturable.exit_code if is_refused else 0), last.err
    assert is_refused or last.out == whole.out


ASKED = PRELUDE("""
import helper
def newest(keeper):
    return keeper.newest()
keeper, optimizer = helper.Keeper(), Optimizer(np.ones(3))
{before}
for epoch in range(4):
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{{epoch}}:{{step}}")
    keeper.put(epoch)
{behind}
show(optimizer.weights)
""")


@pytest.mark.parametrize(
    ("before", "behind", "is_refused"),
    [
        pytest.param("keeper.newest(); newest(keeper)", "", False, marks=pytest.mark.fast),
        pytest.param("", "print(newest(keeper))", True, marks=pytest.mark.fast),
        ("", "    print(keeper.newest())", True),
    ],
)
def test_what_an_output_was_given_is_refused_where_the_program_is_still_to_ask(
    before: str, behind: str, is_refused: bool, server: Server, tmp_path: Path
) -> None:
    """A manager of checkpoints said to a resumed program that it had none."""
    helper = {
        "helper/detrain.toml": '[helper]\noutput = true\nanswers = {Keeper = ["newest"]}\n',
        "helper/__init__.py": "import threading\n"
        "class Keeper:\n    def __init__(self):\n        self.thread, self.steps = threading.Thread(), []\n"
        "    def put(self, step):\n        self.steps.append(step)\n"
        "    def newest(self):\n        return self.steps[-1] if self.steps else None\n",
    }
    path = with_library(tmp_path, ASKED.format(before=before, behind=behind), **helper)
    died = server.detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1", **path)
    foreseen = server.detrain("info", "program.py", cwd=tmp_path, **path)
    last = server.detrain("run", "program.py", cwd=tmp_path, **path)

    assert ("REFUSED from here on: keeper" in died.err) is is_refused
    assert ("REFUSED" in foreseen.out) is is_refused
    assert last.status == (NotCapturable.exit_code if is_refused else 0), last.err
