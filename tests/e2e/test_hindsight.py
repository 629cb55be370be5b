"""What `detrain hindsight` prints is what a program prints that had the added statements from its start, was never
interrupted, and knows nothing of detrain; or it is said which statement changes the training, and where.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from detrain.base.errors import AdditionChanges, AnotherProgram, Diverged, StoreError
from detrain.campaign.engine.api import TrialLease
from detrain.campaign.engine.local import Local
from detrain.launcher.program import Program
from detrain.moments.hindsight import Span, hindsight
from detrain.moments.past_run import PastRun
from tests.e2e.forkserver import Server
from tests.e2e.runs import Result, detrain, environment, ran
from tests.e2e.test_at import digests

pytest.importorskip("torch")

PROGRAM = """
import random, sys
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
data = TensorDataset(torch.randn(40, 4), torch.arange(40) % 2)
history = []
print("begin")
with open("log.txt", "a") as log:
    for epoch in range(4):
        for step, (x, y) in enumerate(DataLoader(data, 8, shuffle=True)):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item() + random.random())
        print(epoch, history[-1], file=log, flush=True)
        print("epoch", epoch, history[-1])
print("end", sum(history), len(open("log.txt").readlines()))
"""
BEFORE_LOOP, AT_EPOCH = 'print("begin")\n', "        for step"
IN_BODY, BEHIND_STEP, BEHIND_BATCHES = "            optimizer.zero", "            history.append", "        print(epoch"


class Addition(NamedTuple):
    """Text that is put before a place of the program, each pair."""

    added: tuple[tuple[str, str], ...]
    is_parallel: bool = True
    """Whether stretches can be run side by side with it."""


HARMLESS = {
    "a print in the body": Addition(((BEHIND_STEP, "            print(step, model[0].weight.grad.norm().item())\n"),)),
    "a name of its own and an assertion": Addition(
        (
            (IN_BODY, "            n = float(loss); assert n < 100, n\n            if step == 3:\n                print(n)\n"),
            (AT_EPOCH, "        print('here', len(history))\n"),
        )
    ),
    "a logger": Addition(
        (
            (
                BEFORE_LOOP,
                "import logging\nlogger = logging.getLogger('own')\nlogger.addHandler(logging.StreamHandler(sys.stdout))\n",
            ),
            (BEFORE_LOOP, "logger.setLevel(logging.INFO)\n"),
            (BEHIND_STEP, "            logger.info('%d %r', step, loss.item())\n"),
        )
    ),
    "a function": Addition(
        (
            (BEFORE_LOOP, "def norms():\n    return [p.norm().item() for p in model.parameters()]\n"),
            (BEHIND_BATCHES, "        print(norms())\n"),
        )
    ),
    "a hook on a module": Addition(
        ((BEFORE_LOOP, "model[0].register_forward_hook(lambda m, i, o: print(o.norm().item()))\n"),), is_parallel=False
    ),
    "a list that grows": Addition(
        ((BEFORE_LOOP, "seen = []\n"), (BEHIND_BATCHES, "        seen.append(len(history)); print(seen)\n")), is_parallel=False
    ),
    "what the epoch before has left": Addition(((AT_EPOCH, "        if epoch: print(loss.item())\n"),), is_parallel=False),
}
HARMFUL = {
    "a draw": (IN_BODY, "            if (epoch, step) == (2, 1): torch.rand(1)\n", "at 2:1: stream torch"),
    "a draw before the loop": (BEFORE_LOOP, "torch.rand(1)\n", "at 0:0, or before it"),
    "a gradient": (BEHIND_STEP, "            if (epoch, step) == (1, 3): model[0].weight.data.mul_(2)\n", "at 1:3: tensor model"),
    "a rate": (
        BEHIND_STEP,
        "            if (epoch, step) == (1, 2): optimizer.param_groups[0]['lr'] = 1.\n",
        "at 1:3: tensor model",
    ),
    "a forward pass with dropout": (BEHIND_BATCHES, "        print(model(x).sum().item())\n", "at 0:4: stream torch"),
    "a break": (IN_BODY, "            if (epoch, step) == (1, 3): break\n", "batch 1:4 is not loaded any more"),
    "a loader that is gone over": (
        BEHIND_BATCHES,
        "        print(len([*DataLoader(data, 8, shuffle=True)]))\n",
        "at 0:4: stream torch",
    ),
    "Python's stream": (AT_EPOCH, "        if epoch == 1: print(random.random())\n", "stream python"),
}


def with_added(*added: tuple[str, str]) -> str:
    """The program with text before places of it."""
    text = PROGRAM
    for place, more in added:
        assert text.count(place) == 1, place
        text = text.replace(place, more + place)
    return text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run is over."""
    folder = tmp_path_factory.mktemp("hindsight") / "work"
    folder.mkdir()
    ran(detrain, folder, PROGRAM, "--keep", "100").ok()
    return folder


@pytest.fixture
def bare(torch_server: Server, tmp_path: Path) -> Callable[[str], Result]:
    """Runs a program in a folder of its own, and nothing of detrain."""

    def run_bare(text: str) -> Result:
        folder = tmp_path / "bare"
        folder.mkdir(exist_ok=True)
        (folder / "program.py").write_text(text)
        (folder / "log.txt").unlink(missing_ok=True)
        return torch_server.bare("program.py", cwd=folder)

    return run_bare


def look_back(run: Path, text: str, *options: object) -> Result:
    """The run seen with another text of its program; nothing in its folder is changed by that."""
    (run / "program.py").write_text(text)
    before = digests(run)
    done = detrain("hindsight", *options, "program.py", cwd=run)
    assert digests(run) == before
    return done


@pytest.mark.parametrize("kind", list(HARMLESS))
def test_what_is_printed_a_program_prints_that_had_the_statements_from_its_start(
    run: Path, bare: Callable[[str], Result], kind: str
) -> None:
    text = with_added(*HARMLESS[kind].added)

    done = look_back(run, text, "--jobs", 2)

    assert done.status == 0, done.err
    assert done.out == bare(text).out
    assert ("from its start, in one process" not in done.err) == HARMLESS[kind].is_parallel, done.err
    assert "20 batches and 4 checkpoints are the same" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a print in the body", "a hook on a module"])
def test_the_number_of_jobs_does_not_change_what_is_printed(run: Path, kind: str) -> None:
    text = with_added(*HARMLESS[kind].added)

    outs = [look_back(run, text, "--jobs", jobs).out for jobs in (1, 2, 4)]

    assert len(set(outs)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(HARMFUL))
def test_a_statement_that_changes_the_training_is_named_with_its_step(run: Path, kind: str) -> None:
    place, added, where = HARMFUL[kind]
    text = with_added((IN_BODY, "            looked_at = loss.item()\n")) if place != IN_BODY else PROGRAM
    text = text.replace(place, added + place)
    line = text.splitlines().index(added.rstrip("\n")) + 1

    done = look_back(run, text, "--jobs", 2)

    assert done.status == AdditionChanges.exit_code, done.err
    assert f"`program.py:{line}: {added.strip()}` changes the training, first " in done.err
    assert where in done.err


@pytest.mark.slow
def test_the_number_of_jobs_does_not_change_what_is_refused(run: Path) -> None:
    place, added, _where = HARMFUL["a draw"]

    found = [look_back(run, with_added((place, added)), "--jobs", jobs) for jobs in (1, 2, 4)]

    assert len({(each.out, each.err.splitlines()[-3]) for each in found}) == 1


@pytest.mark.slow
def test_nothing_is_printed_behind_a_change_and_all_before_the_checkpoint_before_it(
    run: Path, bare: Callable[[str], Result]
) -> None:
    text = with_added((BEHIND_STEP, "            print(step)\n            if (epoch, step) == (2, 1): torch.rand(1)\n"))

    done = look_back(run, text, "--jobs", 1)

    whole = bare(with_added((BEHIND_STEP, "            print(step)\n"))).out
    assert done.out == whole[: whole.index("epoch 1")] + whole[whole.index("epoch 1") :].splitlines(keepends=True)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "first", "behind"),
    [("2:3", "epoch 1", "epoch 2"), ("1:", "epoch 0", None), (":2", None, "epoch 1"), ("2:4", "epoch 1", "epoch 3")],
)
@pytest.mark.parametrize("kind", ["a print in the body", "a hook on a module", "what the epoch before has left"])
def test_epochs_can_be_asked_for(
    run: Path, bare: Callable[[str], Result], epochs: str, first: str | None, behind: str | None, kind: str
) -> None:
    text = with_added(*HARMLESS[kind].added)
    lines = bare(text).out.splitlines(keepends=True)
    start = 0 if first is None else next(at for at, line in enumerate(lines) if line.startswith(first)) + 1
    end = len(lines) if behind is None else next(at for at, line in enumerate(lines) if line.startswith(behind)) + 1

    done = look_back(run, text, "--epochs", epochs, "--jobs", 2)

    assert (done.status, done.out) == (0, "".join(lines[start:end])), done.err


@pytest.mark.slow
def test_an_assertion_that_fails_ends_it_as_it_ends_the_program(run: Path, bare: Callable[[str], Result]) -> None:
    text = with_added((BEHIND_STEP, "            print(step)\n            assert (epoch, step) != (3, 2), 'here'\n"))

    done = look_back(run, text, "--jobs", 2)

    oracle = bare(text)
    assert (done.status, done.out) == (oracle.status, oracle.out) == (1, oracle.out)
    assert "AssertionError: here" in done.err
    assert f'File "{run}/program.py", line 20' in done.err


@pytest.mark.slow
def test_one_that_was_killed_is_run_again(run: Path, bare: Callable[[str], Result]) -> None:
    text = with_added(*HARMLESS["a print in the body"].added)
    (run / "program.py").write_text(text)
    before = digests(run)
    process = subprocess.Popen(
        [sys.executable, "-m", "detrain", "hindsight", "--jobs", "2", "program.py"],
        cwd=run,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(4)
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert digests(run) == before
    assert look_back(run, text, "--jobs", 2).out == bare(text).out


OUTSIDE = {
    "a function": HARMLESS["a function"].added,
    "a list that grows": HARMLESS["a list that grows"].added,
    "what the epoch before has left": ((AT_EPOCH, "        if epoch: print(history[-1])\n"),),
    "a name that is bound anew": ((BEHIND_BATCHES, "        x = torch.ones(1, 4)\n        print(model[0](x).sum().item())\n"),),
    "a logger": (*HARMLESS["a logger"].added[:2], (BEHIND_BATCHES, "        logger.info('%d %r', epoch, history[-1])\n")),
    "behind the loop": (('print("end"', "print(model[2].training, [p.norm().item() for p in model.parameters()])\n"),),
}


@pytest.fixture(scope="module")
def kept_after_batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run is over that has kept the states behind the batches of all epochs."""
    folder = tmp_path_factory.mktemp("after") / "work"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    done = detrain("run", "--after-batches", "--keep-every", "1", "program.py", cwd=folder)
    assert done.status == 0, done.err
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if at == 1 else pytest.mark.slow) for at, kind in enumerate(OUTSIDE)])
def test_bodies_are_not_run_again_for_what_is_said_outside_of_them(
    kept_after_batches: Path, bare: Callable[[str], Result], kind: str
) -> None:
    text = with_added(*OUTSIDE[kind])

    done = look_back(kept_after_batches, text, "--no-bodies")

    assert (done.status, done.out) == (0, bare(text).out), done.err
    assert "without the bodies of 4 epochs" in done.err
    assert "running the bodies, too" not in done.err
    assert "4 checkpoints are the same" in done.err


@pytest.mark.slow
def test_bodies_of_a_first_epoch_are_run_where_its_length_is_not_known(tmp_path: Path, bare: Callable[[str], Result]) -> None:
    unsized = PROGRAM.replace("in enumerate(DataLoader(data, 8, shuffle=True))", "in enumerate(filter(None, range(7)))").replace(
        "(model(x), y)", "(model(data[:][0]), data[:][1])"
    )
    unsized = unsized.replace("for step, (x, y)", "for step, x")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "program.py").write_text(unsized)
    assert detrain("run", "--after-batches", "--keep-every", "1", "program.py", cwd=folder).status == 0
    text = unsized.replace(BEHIND_BATCHES, "        print(len(history))\n" + BEHIND_BATCHES)

    done = look_back(folder, text, "--no-bodies")

    assert (done.status, done.out) == (0, bare(text).out), done.err
    assert "without the bodies of 3 epochs" in done.err
    assert "running the bodies, too" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize("epochs", ["2:3", ":2", "3:"])
def test_epochs_can_be_asked_for_without_bodies(kept_after_batches: Path, epochs: str) -> None:
    text = with_added(*OUTSIDE["a list that grows"])
    whole = look_back(kept_after_batches, text, "--epochs", epochs, "--jobs", 2)

    done = look_back(kept_after_batches, text, "--epochs", epochs, "--no-bodies")

    assert (done.status, done.out) == (0, whole.out), done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "added"),
    [
        HARMFUL["a draw before the loop"][:2],
        (BEHIND_BATCHES, "        print(model(torch.ones(1, 4)).sum().item())\n"),
        HARMFUL["Python's stream"][:2],
        (AT_EPOCH, "        if epoch == 2: model[0].weight.data.mul_(2)\n"),
        (AT_EPOCH, "        if epoch == 2: optimizer.param_groups[0]['lr'] = 1.\n"),
    ],
)
def test_what_changes_the_training_is_found_without_bodies(kept_after_batches: Path, place: str, added: str) -> None:
    done = look_back(kept_after_batches, with_added((place, added)), "--no-bodies")

    assert done.status == AdditionChanges.exit_code, done.err
    assert "running the bodies, too" in done.err
    assert f"{added.strip()}` changes the training, first " in done.err


@pytest.mark.parametrize(
    ("place", "added", "said"),
    [
        (BEHIND_STEP, "            print(step)\n", "stands in the body of a batch"),
        (BEFORE_LOOP, "model.apply(lambda module: None)\n", "makes what bodies may call"),
        (BEFORE_LOOP, "def act(module): ...\nmodel.apply(act)\n", "makes what bodies may call"),
        (BEHIND_BATCHES, "        print(loss.item())\n", "reads 'loss', which bodies bind"),
        (AT_EPOCH, "        if epoch: print(x)\n", "reads 'x', which bodies bind"),
    ],
)
def test_what_bodies_have_a_part_in_is_refused_without_them(kept_after_batches: Path, place: str, added: str, said: str) -> None:
    done = look_back(kept_after_batches, with_added((place, added)), "--no-bodies")

    assert done.status == 64, done.err
    assert said in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "added", ["history.clear()", "model[0].register_forward_hook(print)", "torch.set_float32_matmul_precision('medium')"]
)
def test_bodies_are_run_where_what_they_see_is_another(kept_after_batches: Path, bare: Callable[[str], Result], added: str) -> None:
    text = with_added((AT_EPOCH, f"        if epoch == 2: {added}\n"))

    done = look_back(kept_after_batches, text, "--no-bodies")

    assert "running the bodies, too" in done.err
    assert (done.out if done.status == 0 else bare(text).out) == bare(text).out


@pytest.mark.slow
def test_files_are_longer_by_what_bodies_have_written(tmp_path: Path, bare: Callable[[str], Result]) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    writes = (BEHIND_STEP, "            print(step, file=log)\n")
    (folder / "program.py").write_text(with_added(writes))
    assert detrain("run", "--after-batches", "--keep-every", "1", "program.py", cwd=folder).status == 0
    text = with_added(writes, (BEHIND_BATCHES, "        log.flush(); print(len(open('log.txt').read()))\n"))

    done = look_back(folder, text, "--no-bodies")

    assert (done.status, done.out) == (0, bare(text).out), done.err


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "submitit-local"])
def test_an_engine_of_campaigns_runs_the_same(run: Path, bare: Callable[[str], Result], engine: str) -> None:
    pytest.importorskip(engine.partition("-")[0])
    text = with_added(*HARMLESS["a print in the body"].added)

    done = look_back(run, text, "--engine", engine, "--jobs", 2)

    assert (done.status, done.out) == (0, bare(text).out), done.err
    assert "20 batches and 4 checkpoints are the same" in done.err


def test_a_worker_that_does_not_see_the_folder_is_said(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Elsewhere(Local):
        def submit(self, lease: TrialLease) -> None:
            self._work.known[lease.identity][4] = str(tmp_path / "there")  # type: ignore[attr-defined]
            super().submit(lease)

    monkeypatch.chdir(run)
    past = PastRun.of(Program.find("program.py", is_module=False), (), Path("ckpt"))

    with pytest.raises(StoreError, match=r"could not begin in .*: .*cd"):
        hindsight(past, Span(None, None), lambda _folder: Elsewhere(1))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run was killed at 2:3."""
    folder = tmp_path_factory.mktemp("killed") / "work"
    folder.mkdir()
    text = PROGRAM.replace(
        IN_BODY, "            if (epoch, step) == (2, 3) and DIES: import os; os.kill(os.getpid(), 9)\n" + IN_BODY
    )
    (folder / "program.py").write_text(text.replace("history = []", "history = []; DIES = len(sys.argv) > 1"))
    assert detrain("run", "--keep", "100", "program.py", "dies", cwd=folder).status == -signal.SIGKILL
    return folder


def look_back_at_killed(killed: Path, place: str, added: str) -> Result:
    """The killed run seen with text before a place of its program. What kills it does it again."""
    text = (killed / "program.py").read_text()
    try:
        (killed / "program.py").write_text(text.replace(place, added + place))
        return detrain("hindsight", "--jobs", "2", "program.py", "dies", cwd=killed)
    finally:
        (killed / "program.py").write_text(text)


@pytest.mark.slow
def test_a_run_that_was_killed_is_looked_back_at_up_to_its_last_batch(killed: Path, bare: Callable[[str], Result]) -> None:
    done = look_back_at_killed(killed, IN_BODY, "            print(step, loss.item(), flush=True)\n")

    whole = bare(with_added((IN_BODY, "            print(step, loss.item())\n"))).out
    assert whole.startswith(done.out)
    assert len(done.out.splitlines()) == 1 + 6 + 6 + 3
    assert done.status == -signal.SIGKILL % 256


@pytest.mark.slow
def test_a_change_behind_the_last_checkpoint_of_a_killed_run_is_found(tmp_path: Path, run: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(run, work)
    for path in (work / "ckpt").glob("*-e0000[34]-*.h5"):  # as if it had been killed in its third epoch
        path.unlink()
    added = "            if (epoch, step) == (2, 2): model[0].weight.data.mul_(2)\n            print(step)\n"

    done = detrain_with(work, with_added((BEHIND_STEP, added)))

    assert done.status == AdditionChanges.exit_code, done.err
    assert "first at 2:2: tensor model" in done.err
    assert [line for line in done.out.splitlines() if line.startswith("epoch")] != []
    assert "epoch 2" not in done.out


def detrain_with(work: Path, text: str) -> Result:
    """As `look_back`, where the folder need not stay as it is."""
    (work / "program.py").write_text(text)
    return detrain("hindsight", "--jobs", "2", "program.py", cwd=work)


@pytest.mark.parametrize(
    ("old", "new", "words", "status", "said"),
    [
        ("0.01", "0.02", (), AnotherProgram.exit_code, "`optimizer = torch.optim.Adam(model.parameters(), 0.01)`, line 8"),
        ("history.append(", "print(", (), AnotherProgram.exit_code, "was changed or is gone"),
        ("history = []", "history = [", (), 1, "SyntaxError"),
        ("", "", ("--no-bodies",), 64, "the run has kept no checkpoint behind the batches of epoch 0"),
        ("", "", ("--epochs", "5:6"), 64, "the run has no epoch 5; it has 0 to 3"),
        ("", "", ("--epochs", "2:2"), 64, "holds no epoch"),
        ("", "", ("--epochs", "2"), 64, "is not a range of epochs"),
        ("", "", ("--epochs", "1/0:"), 64, "the run has no epoch 1/0"),
        ("", "", ("--ckpt", "nowhere"), 73, "has no checkpoint of program"),
        ("", "", ("--jobs", "0"), 64, "--jobs"),
    ],
)
def test_bad_input_is_refused_before_anything_is_run(
    run: Path, old: str, new: str, words: tuple[str, ...], status: int, said: str
) -> None:
    done = look_back(run, PROGRAM.replace(old, new, 1), *words)

    assert (done.status, done.out, said in done.err) == (status, "", True), done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_it", "status", "said"),
    [
        (lambda work: next((work / "ckpt").glob("*.chronicle")).unlink(), 73, "its text at the time of the run is not kept"),
        (lambda work: (work / "beside.py").unlink(), AnotherProgram.exit_code, "beside.py is gone, which the run had"),
        (
            lambda work: (work / "data.txt").write_text("2"),
            Diverged.exit_code,
            "without what was added, too, the program does other",
        ),
    ],
)
def test_what_is_missing_or_has_changed_is_said(tmp_path: Path, break_it: Callable[[Path], None], status: int, said: str) -> None:
    text = PROGRAM.replace("torch.manual_seed(0)", "import beside; torch.manual_seed(int(open('data.txt').read()))")
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "beside.py").write_text("x = 1\n")
    (tmp_path / "data.txt").write_text("1")
    assert detrain("run", "--keep", "100", "program.py", cwd=tmp_path).status == 0
    break_it(tmp_path)

    done = detrain("hindsight", "--jobs", "1", "program.py", cwd=tmp_path)
    text = text.replace(BEFORE_LOOP, "print(1)\n" + BEFORE_LOOP)
    (tmp_path / "program.py").write_text(text)
    done = detrain("hindsight", "--jobs", "1", "program.py", cwd=tmp_path)

    assert (done.status, said in done.err) == (status, True), done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("dropout_layers.py", "tensorflow"),
        ("nested_for.py", "tensorflow"),
        ("torch/gan.py", "torch"),
        ("torch/phases.py", "torch"),
        ("torch/trainer_class.py", "torch"),
        ("torch/early_stopping.py", "torch"),
        ("jax/digits_mlp.py", "jax"),
        ("jax/two_phases.py", "jax"),
        ("csv_log.py", "tensorflow"),
    ],
)
def test_programs_of_all_frameworks_are_looked_back_at(tmp_path: Path, name: str, framework: str) -> None:
    pytest.importorskip(framework)
    source = Path(__file__).resolve().parents[1] / "programs" / name
    work, oracle = tmp_path / "work", tmp_path / "oracle"
    work.mkdir()
    oracle.mkdir()
    (work / source.name).write_text(source.read_text())
    assert detrain("run", "--keep", "100", source.name, cwd=work).status == 0
    text = printing_in_loops(source.read_text())
    (oracle / source.name).write_text(text)

    found = [look_back_at(work, source.name, text, "--jobs", jobs) for jobs in (2, 1)]

    server = Server(framework)
    whole = server.bare(source.name, cwd=oracle)
    server.close()
    assert [each.status for each in found] == [0, 0], found[0].err
    assert [each.out for each in found] == [whole.out] * 2


def look_back_at(work: Path, name: str, text: str, *options: object) -> Result:
    """As `look_back`, of another program."""
    (work / name).write_text(text)
    return detrain("hindsight", *options, name, cwd=work)


def printing_in_loops(text: str) -> str:
    """A program whose marked loops, and those over `range` and `enumerate`, print at the head of each turn."""
    lines, is_head = list[str](), False
    for line in text.splitlines():
        if is_head and line.strip():
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}print('added', {len(lines)}, sorted(k for k, v in globals().items() if isinstance(v, float)))")
            is_head = False
        lines.append(line)
        is_head = is_head or (line.strip().startswith("for ") and line.partition("#")[0].rstrip().endswith(":") and " loop" in line)
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_a_folder_is_as_it_was_where_a_run_is_looked_back_at_from_its_start(run: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(run, work)
    (work / "program.py").write_text(PROGRAM)

    done = look_back(work, PROGRAM, "--jobs", 1, "--epochs", ":1")

    assert done.status == 0, done.err
    assert "nothing was added since the run" in done.err
