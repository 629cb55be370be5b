"""Any moment of a run that is over: what `detrain at` shows there, an uninterrupted run without detrain had there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from detrain.base.errors import AnotherProgram, Diverged, EnvironmentChanged, UsageError
from tests.e2e.forkserver import Server
from tests.e2e.runs import detrain, ran

pytest.importorskip("torch")

PROGRAM = """
import os, random
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
class Rows(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.from_numpy(np.load("data.npy")[index]), index % 2
data, history = Rows(), []
with open("log.txt", "a") as log:
    for epoch in range(3):
        for step, (x, y) in enumerate(DataLoader(data, 8, shuffle=True)):
            if os.environ.get("DUMP"):
                had = {"x": x.numpy(), "weight": model[0].weight.detach().numpy(), "n": len(history)}
                np.savez(f"{os.environ['DUMP']}-{epoch}-{step}", **had)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item() + random.random())
        print(epoch, history[-1], file=log, flush=True)
"""


DATA = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)


def digests(folder: Path) -> dict[str, str]:
    """Of all files in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, torch_server: Server) -> Path:
    """A folder in which a run is over, and beside it what one without detrain had before each step."""
    folder = tmp_path_factory.mktemp("at") / "work"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    np.save(folder / "data.npy", DATA)
    detrain("run", "--every", "2b", "--keep", "100", "program.py", cwd=folder).ok()
    bare = folder.parent / "bare"
    bare.mkdir()
    (bare / "program.py").write_text(PROGRAM)
    np.save(bare / "data.npy", DATA)
    assert torch_server.bare("program.py", cwd=bare, DUMP=str(folder.parent / "had")).status == 0
    return folder


@pytest.mark.parametrize("at", ["1:3", "0:1", "2:0", "2:4"])
def test_what_is_shown_and_saved_is_what_an_uninterrupted_run_had(run: Path, at: str) -> None:
    before = digests(run)
    had = np.load(run.parent / f"had-{at.replace(':', '-')}.npz")
    saved = run.parent / f"saved-{at.replace(':', '-')}.npz"

    done = detrain("at", "--print", "len(history)", "--print", "x", "--save", saved, "--json", at, "program.py", cwd=run).ok()

    count, batch = json.loads(done.out)
    assert (count["kind"], int(count["value"])) == ("int", int(had["n"]))
    assert batch["kind"] == "torch.Tensor float32 [8, 4]"
    assert batch["value"].startswith(", ".join(map(str, had["x"].ravel()[:4])))
    with np.load(saved) as found:
        names = [name for name in found.files if name.partition(" ")[0].endswith("0.weight")]
        weights = [found[name] for name in names]
    assert [each.tobytes() for each in weights] == [had["weight"].tobytes()]
    assert digests(run) == before


@pytest.mark.slow
def test_all_names_are_shown_where_nothing_is_asked_for(run: Path) -> None:
    done = detrain("at", "1:3", "program.py", cwd=run).ok()

    names = [line.split()[0] for line in done.out.splitlines()[1:-1]]
    assert {"epoch", "step", "x", "y", "loss", "model", "optimizer", "history"} <= set(names)
    assert not {"execute", "torch", "np", "os"} & set(names)
    assert re.search(r"^step +int +3 *$", done.out, re.MULTILINE)
    assert done.out.endswith("1:3, as the run was there: gone to from the checkpoint 1:1\n")


@pytest.mark.slow
def test_a_debugger_stands_at_the_first_line_of_the_body(run: Path) -> None:
    commands = "p epoch, step\nn\nn\np history[-1] == history[7], loss.item() < 9\nq\n"
    done = detrain("at", "--pdb", "1:3", "program.py", cwd=run, given=commands).ok()

    lines = PROGRAM.splitlines()
    assert f"-> {next(line.strip() for line in lines if 'DUMP' in line)}" in done.out
    assert "(1, 3)" in done.out
    assert "(True, True)" in done.out


@pytest.mark.slow
@pytest.mark.parametrize(("at", "said"), [("1:3", "batch 1:1 has digest"), ("0:1", "batch 0:0 is another one than the run had")])
def test_other_data_than_the_run_had_are_no_moment_of_it(run: Path, tmp_path: Path, at: str, said: str) -> None:
    work = tmp_path / "work"
    shutil.copytree(run, work)
    np.save(work / "data.npy", DATA + np.float32(1))
    shutil.copystat(run / "data.npy", work / "data.npy")  # a file of now is refused as one that the run has written later

    done = detrain("at", at, "program.py", cwd=work)

    assert (done.status, done.out, said in done.err) == (Diverged.exit_code, "", True), done.err


@pytest.mark.parametrize(("at", "status"), [("0:1", AnotherProgram.exit_code), ("1:3", UsageError.exit_code)])
def test_another_program_than_the_run_was_has_no_moment_of_it(at: str, status: int, run: Path, tmp_path: Path) -> None:
    """Gone to from the start, its values were shown as the run's."""
    work = tmp_path / "work"
    shutil.copytree(run, work)
    (work / "program.py").write_text(PROGRAM.replace("0.01", "0.02"))

    done = detrain("at", at, "program.py", cwd=work)

    assert (done.status, done.out) == (status, ""), done.err
    assert "source has changed since the checkpoint was taken: program.py" in done.err


def test_other_versions_than_the_run_had_have_no_moment_of_it(run: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(run, work)
    chronicle = work / "ckpt" / "program-r1.chronicle"
    chronicle.write_text(re.sub(r'"numpy":"[^"]*"', '"numpy":"1.0"', chronicle.read_text()))

    done = detrain("at", "0:1", "program.py", cwd=work)

    assert (done.status, done.out) == (EnvironmentChanged.exit_code, ""), done.err
    assert "numpy was '1.0', is" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("command", [("at", "1:3"), ("hindsight",), ("verify",)])
def test_what_variables_ask_of_the_users_own_runs_is_not_asked_of_these(
    run: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    work, mirror = tmp_path / "work", tmp_path / "mirror"
    shutil.copytree(run, work)
    asked = {"DETRAIN_RUN_FRESH": "1", "DETRAIN_RUN_MIRROR": str(mirror), "DETRAIN_RUN_EVERY": "1"}
    if command[0] != "verify":
        np.save(work / "data.npy", DATA + np.float32(1))
        shutil.copystat(run / "data.npy", work / "data.npy")

    done = detrain(*command, "program.py", cwd=work, **asked)

    assert done.status == (0 if command[0] == "verify" else Diverged.exit_code), done.err  # a fresh run would compare nothing
    assert not mirror.exists()


def bits(run: Path, name: str) -> dict[str, bytes]:
    """What the bare run had under a name, by cursor."""
    return {
        f"{epoch}:{step}": np.load(run.parent / f"had-{epoch}-{step}.npz")[name].tobytes()
        for epoch in range(3)
        for step in range(5)
    }


@pytest.mark.slow
@pytest.mark.parametrize(("at", "is_at"), [(("step", "8"), "1:3"), (("last",), "2:4"), (("crash",), "2:4"), (("step 0",), "0:0")])
def test_a_step_can_be_named_by_its_number_or_as_the_last(run: Path, at: tuple[str, ...], is_at: str) -> None:
    done = detrain("at", "--print", "(epoch, step)", "--json", *at, "program.py", cwd=run).ok()

    assert json.loads(done.out)[0]["value"] == f"({is_at.replace(':', ', ')})"


@pytest.mark.slow
def test_each_step_up_to_another_is_printed(run: Path) -> None:
    before = digests(run)
    had = bits(run, "weight")

    done = detrain("at", "--print", "model[0].weight", "--until", "2:1", "--json", "1:3", "program.py", cwd=run).ok()

    found = {each["at"]: each["shown"][0] for each in json.loads(done.out)}
    assert list(found) == ["1:3", "1:4", "2:0", "2:1"]
    for at, shown in found.items():
        first = np.frombuffer(had[at], np.float32)[:4]
        assert shown["value"] == ", ".join(map(str, first)) + ", …"
    assert digests(run) == before


@pytest.mark.parametrize(("start", "since"), [((), "the start"), (("--from", "1:2"), "the checkpoint 1:1")])
def test_the_first_step_is_found_at_which_an_expression_is_true(run: Path, start: tuple[str, ...], since: str) -> None:
    had = {at: np.frombuffer(each, np.float32).sum() for at, each in bits(run, "x").items()}
    behind = [at for at in had if not start or at >= start[1]]
    bound = sorted(had[at] for at in behind)[-2]
    first = next(at for at in behind if had[at] >= bound)

    done = detrain("at", "--when", f"x.numpy().sum() >= {bound!r}", *start, "--print", "step", "program.py", cwd=run).ok()

    assert done.out.splitlines()[-1].startswith(f"{first}, as the run was there")
    assert f"from {since}" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "words", "most"),
    [
        *((f"len(history) >= {count}", (), 4) for count in (0, 3, 10, 14, 16)),
        ("len(history) >= 9", ("--from", "1:2"), 4),
        ("len(history) >= 9", ("--from", "0:3", "--until", "1:3"), 4),
        ("len(history) >= 9 and loss.item() < 9", (), 4),
        ("'y' in locals() and epoch * 5 + step > 6", (), 4),
    ],
)
def test_what_stays_true_is_found_by_few_steps(run: Path, when: str, words: tuple[str, ...], most: int) -> None:
    plain = detrain("at", "--when", when, *words, "--print", "x", "--json", "program.py", cwd=run)

    done = detrain("at", "--bisect", "--when", when, *words, "--print", "x", "--json", "program.py", cwd=run)

    assert (done.status, done.out) == (plain.status, plain.out), done.err
    assert done.err.count("detrain: going to") <= most + 1, done.err


def test_how_far_the_steps_are_from_checkpoints_is_said_beforehand(run: Path, tmp_path: Path) -> None:
    done = detrain("info", "--json", "program.py", cwd=run)

    told = json.loads(done.out)["at"]
    assert told["reach"] == [
        {"first": "0", "last": "0", "since": "", "steps": 1},  # 0:1; there are checkpoints at 0:2, 0:4, 1:0, 1:1, 1:3, ...
        {"first": "0", "last": "2", "since": None, "steps": 2},
    ]
    assert 0 < told["costs"]["step_s"] < 60
    work = tmp_path / "work"
    shutil.copytree(run, work)
    for path in (work / "ckpt").glob("*-p0-e0000[01]-*.h5"):
        path.unlink()
    said = detrain("info", "program.py", cwd=work).out
    assert "  epochs 0 to 1: from the start, at most 9 steps, " in said
    assert "  epoch 2: from its own checkpoints, at most 2 steps, " in said


@pytest.mark.slow
def test_a_name_that_no_checkpoint_has_is_looked_for_at_each_step(run: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    np.save(work / "data.npy", DATA)
    (work / "program.py").write_text(
        PROGRAM.replace("            loss = nn", "            if epoch == 0 and step == 2: seen = 1\n            loss = nn")
    )
    assert detrain("run", "--every", "2b", "--keep", "100", "program.py", cwd=work).status == 0

    done = detrain("at", "--bisect", "--when", "seen == 1", "--print", "x", "program.py", cwd=work).ok()

    assert done.out.splitlines()[-1].startswith("0:3, as the run was there"), done.out
    assert "NameError: name 'seen' is not defined at 1:" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "status", "out", "said"),
    [
        ("step > 7", 1, "at no step from 0:0 to the last is step > 7", ""),
        ("nothing_such > 7", 64, "", "--when 'nothing_such > 7' fails at each step: NameError"),
        ("step > 'a'", 64, "", "fails at 0:0: TypeError"),
    ],
)
def test_an_expression_that_is_nowhere_true_or_fails_says_so(run: Path, when: str, status: int, out: str, said: str) -> None:
    done = detrain("at", "--when", when, "program.py", cwd=run)

    assert (done.status, done.out.strip(), said in done.err) == (status, out, True), done.err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("7:0", "program.py"), 64, "the run has no step 7:0: its last is 2:4, step 14"),
        (("1:99", "program.py"), 64, "the run has no step 1:99"),
        (("step", "15", "program.py"), 64, "the run has no step 15: its last is 2:4, step 14"),
        (("--until", "1:1", "1:2", "program.py"), 64, "--until 1:1 is before 1:2"),
        (("--from", "1:1", "1:2", "program.py"), 64, "--from 1:1 without --when"),
        (("--until", "1:3", "--pdb", "1:2", "program.py"), 64, "--until with --pdb"),
        (("--bisect", "1:2", "program.py"), 64, "--bisect without --when"),
        (("program.py",), 64, "a step, or a program, is missing beside 'program.py'"),
        (("x", "program.py"), 82, "'x' is not a step"),
        (("--ckpt", "nowhere", "1:0", "program.py"), 73, "has no checkpoint of program"),
    ],
)
def test_what_is_not_there_is_said(run: Path, words: tuple[str, ...], status: int, said: str) -> None:
    done = detrain("at", *words, cwd=run)

    assert (done.status, said in done.err, done.out) == (status, True, ""), done.err


@pytest.mark.slow
def test_an_expression_that_fails_says_how(run: Path) -> None:
    done = detrain("at", "--print", "nothing_such", "--print", "step", "--json", "1:3", "program.py", cwd=run).ok()

    assert [each.get("error", "") for each in json.loads(done.out)] == ["NameError: name 'nothing_such' is not defined", ""]


LARGE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
padding = torch.zeros(5_000_000)
for epoch in range(3):
    for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(8, 4)), 4, shuffle=True)):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open("log.txt", "a") as log:
            log.write(f"{epoch} {step} {loss.item()}\\n" * 300_000)
    torch.save({"weights": model.state_dict(), "padding": padding}, "model.pt")  # opens the file by itself
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [("at", "1:1"), ("at", "0:1"), ("hindsight",), ("verify", "--kills", "1")])
def test_large_files_that_the_program_writes_stay_as_the_run_has_left_them(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "program.py").write_text(LARGE)
    (tmp_path / "latest.pt").symlink_to("model.pt")
    assert detrain("run", "program.py", cwd=tmp_path).status == 0
    before = digests(tmp_path)
    assert all((tmp_path / name).stat().st_size > 16 << 20 for name in ("log.txt", "model.pt"))
    if command == ("hindsight",):
        (tmp_path / "program.py").write_text(
            LARGE.replace("        optimizer.step()", "        optimizer.step()\n        print(loss)")
        )
        before = digests(tmp_path)

    detrain(*command, "program.py", cwd=tmp_path).ok()

    assert digests(tmp_path) == before


FETCHED = """
import torch
from loops import train
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train(model, optimizer, DataLoader(TensorDataset(torch.randn(40, 4)), 8, shuffle=True))
"""
LOOPS = """
def endless(loader):
    while True:
        yield from loader

def train(model, optimizer, loader):
    batches = endless(loader)
    for epoch in range(3):
        for step in range(5):
            (x,) = next(batches)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
INFO = {
    "nests": [
        {
            name: {"file": "../../b/library/loops.py", "line": line, "column": column, "kind": "for", "function": "train"}
            for name, line, column in (("epoch_loop", 8, 4), ("batch_loop", 9, 8))
        }
        | {"load_line": 10, "update_line": 14, "loader": "batches"}
    ],
    "source": "written by hand",
}
"""The loop lies where no path from a copy of the folder leads to, but one with the folders above it, too."""


@pytest.mark.slow
@pytest.mark.parametrize("command", [("at", "0:2"), ("hindsight",)])
def test_a_loop_of_another_folder_that_loads_in_its_body_is_gone_back_to(tmp_path: Path, command: tuple[str, ...]) -> None:
    work, library = tmp_path / "a" / "work", tmp_path / "b" / "library"
    for each, name, text in ((work, "program.py", FETCHED), (library, "loops.py", LOOPS), (work, "inst.info", json.dumps(INFO))):
        each.mkdir(parents=True, exist_ok=True)
        (each / name).write_text(text)
    paths = os.pathsep.join(filter(None, [str(library), os.environ.get("PYTHONPATH", "")]))
    assert detrain("run", "--every", "2b", "program.py", cwd=work, PYTHONPATH=paths).status == 0

    done = detrain(*command, "program.py", cwd=work, PYTHONPATH=paths).ok()

    assert command[0] != "at" or f"{command[1]}, as the run was there" in done.out


@pytest.mark.slow
def test_checkpoints_within_a_number_of_bytes_are_spread_over_the_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("range(3)", "range(8)"))
    np.save(tmp_path / "data.npy", DATA)

    detrain("run", "--every", "1b", "--keep", "2", "--keep-size", "450kB", "program.py", cwd=tmp_path).ok()

    files = sorted((tmp_path / "ckpt").glob("*.h5"))
    assert 350_000 < sum(path.stat().st_size for path in files) <= 450_000
    assert len({path.name.partition("-e")[2][:5] for path in files}) >= 6  # epochs


STEPS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
class Steps:
    count = 0
    def training_step(self, batch):
        self.count += 1
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
steps = Steps()
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(torch.randn(20, 4)), 4, shuffle=True):
        steps.training_step(x)
"""


@pytest.mark.slow
def test_a_function_that_the_step_calls_is_stood_in(tmp_path: Path) -> None:
    assert ran(detrain, tmp_path, STEPS, "--every", "2b").status == 0
    loop = json.loads(detrain("at", "--print", "x", "--json", "1:3", "program.py", cwd=tmp_path).out)[0]["digest"]
    at = ("at", "--in", "training_step", "--print", "batch", "--print", "self.count", "--json")

    found = json.loads(detrain(*at, "1:3", "program.py", cwd=tmp_path).out)
    searched = detrain(*at, "--when", "self.count == 8", "program.py", cwd=tmp_path)
    several = json.loads(detrain(*at, "--until", "last", "1:2", "program.py", cwd=tmp_path).out)
    stepped = "p 'count', self.count\nn\np 'count', self.count\nq\n"
    debugged = detrain("at", "--in", "Steps.training_step", "--pdb", "1:3", "program.py", cwd=tmp_path, given=stepped)
    nowhere = detrain("at", "--in", "no_such", "last", "program.py", cwd=tmp_path)

    assert (found[0]["digest"], found[1]["value"]) == (loop, "8")
    assert json.loads(searched.out) == [{"at": "1:3", "shown": found}], searched.err
    assert [(each["at"], each["shown"][1]["value"]) for each in several] == [("1:2", "7"), ("1:3", "8"), ("1:4", "9")]
    assert "-> self.count += 1" in debugged.out, debugged.err
    assert re.findall(r"'count', \d", debugged.out) == ["'count', 8", "'count', 9"]
    assert (nowhere.status, "no function 'no_such' is called at 1:4" in nowhere.err) == (64, True), nowhere.err
