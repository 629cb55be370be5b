"""A campaign comes to the same table whoever ran it, and whatever was killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detrain.base.errors import LedgerInvalid
from detrain.campaign.engine.ledger import Ledger, Ledgers
from detrain.faults.population.trial_row import TrialRow
from tests.e2e.runs import detrain, environment

PROGRAM = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(1)
count = 44 if "short" in sys.argv else 40
data = TensorDataset(torch.randn(count, 12, generator=generator), torch.randint(0, 3, (count,), generator=generator))
loader, held_out = DataLoader(data, 8, shuffle=True), DataLoader(data, 22)
net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
for epoch in range(3):
    net.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        if not torch.isfinite(loss) and "die" in sys.argv:
            os.kill(os.getppid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
        if "stop" in sys.argv and not torch.isfinite(loss):
            sys.exit()
    net.eval()
    with torch.no_grad():
        accuracy = sum(float((net(x).argmax(1) == y).float().sum()) for x, y in held_out) / count
    print(epoch, accuracy)
"""


def row(number: int, **changes: object) -> TrialRow:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(TrialRow):
        kinds: dict[object, object] = {str: "s", int: 1, float: 0.5, bool: True, tuple[int, ...]: (3, 30)}
        values[field.name] = kinds.get(field.type)
    values |= {"number": number, "mode": "IOV", "loss": None, **changes}
    return TrialRow(**values)


def ledgers(folder: Path, **rows: list[TrialRow]) -> Ledgers:
    for name, each in rows.items():
        ledger = Ledger(folder / f"{name}.sqlite", "plan")
        for one in each:
            ledger.note_running(one.number)
            ledger.add(one)
        ledger.close()
    return Ledgers(folder, "plan")


def test_rows_come_back_as_they_were_written_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    odd, even = [row(1, loss=float(2**-1074)), row(3)], [row(0, bits=()), row(2, weight=1 / 3)]

    assert list(ledgers(tmp_path, a=odd, b=even).rows()) == [even[0], odd[0], even[1], odd[1]]


def test_the_digest_is_of_what_trials_came_to_and_not_of_who_did_them(tmp_path: Path) -> None:
    one = ledgers(tmp_path / "one", a=[row(0), row(1)])
    two = ledgers(tmp_path / "two", a=[row(1, seconds=9.0, host="other")], b=[row(0), row(1)])
    other = ledgers(tmp_path / "other", a=[row(0), row(1, outcome="masked")])

    assert one.digest() == two.digest() != other.digest()


def test_two_rows_of_a_number_that_differ_stop_the_campaign(tmp_path: Path) -> None:
    found = ledgers(tmp_path, a=[row(4)], b=[row(4, outcome="masked", host="other")])

    with pytest.raises(LedgerInvalid, match="trial 4 came out in two ways: outcome"):
        list(found.rows())


def test_a_damaged_ledger_is_set_aside_and_the_others_stay(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = ledgers(tmp_path, a=[row(0)], b=[row(1)])
    (tmp_path / "a.sqlite").write_bytes(b"no database at all" * 1000)

    assert found.set_damaged_aside() == ["a.sqlite"]
    assert found.known() == {1}
    assert "a.sqlite is damaged" in capfd.readouterr().err


def test_a_ledger_of_another_plan_is_refused(tmp_path: Path) -> None:
    ledgers(tmp_path, a=[row(0)])

    with pytest.raises(LedgerInvalid, match="is of the plan plan, this one is other"):
        Ledger(tmp_path / "a.sqlite", "other")
    with pytest.raises(LedgerInvalid, match="is of the plan plan"):
        Ledgers(tmp_path, "other").set_damaged_aside()


def test_what_a_worker_was_in_when_it_was_killed_is_known(tmp_path: Path) -> None:
    writes = (
        "import os, signal, sys; from pathlib import Path; from detrain.campaign.engine.ledger import Ledger\n"
        "from tests.campaign.test_engine import row\n"
        "ledger = Ledger(Path(sys.argv[1]), 'plan')\n"
        "for number in (5, 3): ledger.note_running(number); ledger.add(row(number))\n"
        "ledger.note_running(7); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", writes, str(tmp_path / "w.sqlite")], cwd=root, env=environment(), check=False)

    found = Ledgers(tmp_path, "plan")
    assert (found.known(), found.running("w")) == ({3, 5}, 7)


def planned(folder: Path, *options: object, arguments: tuple[str, ...] = ()) -> Path:
    pytest.importorskip("torch")
    (folder / "program.py").write_text(PROGRAM)
    detrain("campaign", "plan", "--mode", "ISCA", "--after", 3, *options, "--json", "program.py", *arguments, cwd=folder).ok()
    return next(folder.glob("ckpt/program.faults/*/campaign-campaign"))


def run(folder: Path, *options: object, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
    done = detrain("campaign", "run", *options, "--json", "program.py", *arguments, cwd=folder).ok()
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.mark.slow
def test_a_campaign_runs_to_its_end_and_a_second_driver_is_refused(tmp_path: Path) -> None:
    """Whole commands: that workers are processes which outlive nothing is what is shown."""
    folder = planned(tmp_path, "-n", 20)
    command = [sys.executable, "-m", "detrain", "campaign", "run", "--json", "--workers", "1", "program.py"]
    first = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE)
    while not list(folder.glob("ledger/*")) and first.poll() is None:
        time.sleep(0.05)

    second = detrain("campaign", "run", "program.py", cwd=tmp_path)
    out = json.loads(first.communicate()[0])
    found = Ledgers(folder / "ledger", out["plan"])

    assert (second.status, "this campaign has a driver" in second.err) == (81, True), second.err
    assert (out["done"] + out["unfired"], out["digest"]) == (20, found.digest())
    assert not any(one.seconds == 0 for one in found.rows())
    (tmp_path / "program.py").write_text(PROGRAM + "\n")
    other = detrain("campaign", "run", "program.py", cwd=tmp_path)
    assert (other.status, "source program.py" in other.err) == (96, True), other.err


@pytest.mark.slow
def test_the_table_is_the_same_for_all_workers_engines_and_kills(tmp_path: Path) -> None:
    short = ("short",)  # a short last batch: some faults are drawn again
    folder = planned(tmp_path, "-n", 120, arguments=short)
    whole = run(tmp_path, "--workers", 1, arguments=short)
    (folder / "ledger").rename(folder / "of-one")
    rng = random.Random(5)
    killed = 0
    for workers in (2, 3):
        driver = [sys.executable, "-m", "detrain", "campaign", "run", "--json", "--workers", str(workers), "program.py", *short]
        process = subprocess.Popen(driver, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
        for _ in range(4):
            time.sleep(rng.uniform(2, 5))
            of_driver = workers_of(process.pid)
            if of_driver:
                os.kill(rng.choice(of_driver), signal.SIGKILL)
                killed += 1
        process.kill()
        process.wait()
    finished = run(tmp_path, "--workers", 2, arguments=short)
    assert killed >= 3
    assert (finished["done"], finished["digest"]) == (whole["done"], whole["digest"])


@pytest.mark.slow
@pytest.mark.parametrize(("how", "model"), [("short", ()), ("stop", ("--models", "SET:nan"))])
def test_trials_in_processes_of_their_own_give_the_same_rows(how: str, model: tuple[str, ...], tmp_path: Path) -> None:
    """Also of a program that ends where its loss is no number."""
    folder = planned(tmp_path, "-n", 8, *model, arguments=(how,))
    whole = run(tmp_path, "--workers", 1, arguments=(how,))
    (folder / "ledger").rename(folder / "of-one")
    assert run(tmp_path, "--workers", 2, "--engine", "process", arguments=(how,))["digest"] == whole["digest"]


@pytest.mark.slow
def test_a_trial_in_which_workers_die_twice_is_a_crash(tmp_path: Path) -> None:
    options = ("-n", 3, "--models", "SET:nan", "--site", "0", "--stage", "forward")
    folder = planned(tmp_path, *options, arguments=("die",))
    found = run(tmp_path, "--workers", 1, arguments=("die",))
    rows = list(Ledgers(folder / "ledger", found["plan"]).rows())
    assert [(one.outcome, one.category, one.end) for one in rows] == [("crash", 5, "crash: its worker died twice")] * 3


def workers_of(driver: int) -> list[int]:
    """The processes that a driver has started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(driver)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "library"), [("ray", "ray"), ("submitit-local", "submitit")])
def test_a_campaign_that_was_begun_here_goes_on_elsewhere(engine: str, library: str, tmp_path: Path) -> None:
    """The library starts processes of its own; nothing less would show that its workers are ours."""
    pytest.importorskip(library)
    planned(tmp_path, "-n", 6)
    run(tmp_path, "--workers", 1)
    folder = planned(tmp_path, "-n", 16)
    gone_on = run(tmp_path, "--workers", 1, "--engine", engine)
    (folder / "ledger").rename(folder / "of-both")

    assert (gone_on["done"] + gone_on["unfired"], gone_on["digest"]) == (16, run(tmp_path, "--workers", 1)["digest"])


def whole_way(folder: Path, mode: str, count: int, name: str) -> dict[str, Any]:
    """Plan, run, report, record and replay; return what `run` has said."""
    options = ("--name", name)
    detrain("campaign", "plan", "--mode", mode, "-n", count, "--after", 2, *options, "program.py", cwd=folder).ok()
    found = run(folder, "--workers", 1, *options)
    assert found["done"] + found["unfired"] == count
    status = json.loads(detrain("campaign", "status", "--json", *options, "program.py", cwd=folder).out)
    assert (status["done"], status["shares"]) == (found["done"], found["shares"])
    return found


@pytest.mark.slow
def test_a_sampled_campaign_is_planned_and_run(tmp_path: Path) -> None:
    """Whole commands: that they hand their options and files on to one another is what is shown."""
    short = PROGRAM.replace("range(3)", "range(1)").replace("else 40", "else 16")  # two steps: each kind is listed once
    (tmp_path / "program.py").write_text(short)
    found = whole_way(tmp_path, "IOV", 6, "campaign")
    rows = list(Ledgers(next(tmp_path.glob("ckpt/*/*/campaign-campaign/ledger")), found["plan"]).rows())
    assert {row.mode for row in rows} == {"IOV"}
    assert rows
    # The program prints the losses.
    assert all(row.stdout == "differs" for row in rows if row.loss != row.golden_loss)
    assert all((row.stdout, row.stderr, row.category) == ("equal", "equal", 3) for row in rows if row.is_equal)
    assert {row.files for row in rows} == {"not judged"}
    assert all(int(row.golden, 16) ^ int(row.injected, 16) == sum(1 << bit for bit in row.bits) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["IOV", "RF", "IOA"])
def test_a_sampled_campaign_is_reported_recorded_and_exported(mode: str, tmp_path: Path) -> None:
    """The record is made in a process of its own, and replayed without the campaign's number of threads being said."""
    (tmp_path / "program.py").write_text(PROGRAM)
    found = whole_way(tmp_path, mode, 12, "c")
    row = next(Ledgers(next(tmp_path.glob("ckpt/*/*/campaign-c/ledger")), found["plan"]).rows())
    for command in (
        ("report", "--html", "report.html"),
        ("record", "--number", row.number, "--out", "record.json"),
        *([("export", "--tool", "sassifi", "--out", "tree")] if mode != "RF" else []),
    ):
        name, *options = command
        done = detrain("campaign", name, "--name", "c", *options, "program.py", cwd=tmp_path)
        assert done.status == 0, done.err
    again = detrain("replay", "record.json", "program.py", cwd=tmp_path)
    assert (again.status, "IDENTICAL" in again.out) == (0, True), again.err
    assert json.loads((tmp_path / "record.json").read_bytes())["outcome"] == row.outcome
    assert "<svg" in (tmp_path / "report.html").read_text()
    if mode == "RF":
        refused = detrain("campaign", "export", "--name", "c", "--out", "tree", "program.py", cwd=tmp_path)
        assert (refused.status, "memory" in refused.err) == (64, True), refused.err


WRITES = PROGRAM.replace("for epoch in range(3):", "log = open('log.txt', 'w')\nfor epoch in range(2):").replace(
    "    print(epoch, accuracy)",
    "    print(epoch, accuracy, os.getpid())\n    log.write(f'{epoch} {loss.item()}\\n')",
)
WRITES += """
torch.save(net.state_dict(), "model.pt")
with open("pid.txt", "w") as file:
    file.write(str(os.getpid()))
if net[0].weight.abs().max() > 1e4:
    sys.exit(3)
"""
JUDGES = """
import os, sys
import numpy, torch

state = torch.load("model.pt")
with numpy.load(os.environ["DETRAIN_VARIABLES"]) as file:
    same = sum(numpy.array_equal(file[name], value.numpy()) for name in file.files for value in state.values())
sys.exit(0 if same >= 4 and all(value.abs().max() < 2 for value in state.values()) else 1)
"""


@pytest.mark.slow
def test_a_trial_to_the_end_is_judged_by_status_files_and_the_users_check(tmp_path: Path) -> None:
    """The oracle is the program itself, run by Python alone, and the check, run by hand on what a trial has left."""
    pytest.importorskip("torch")
    alone, folder = tmp_path / "alone", tmp_path / "trials"
    for each in (alone, folder):
        each.mkdir()
        (each / "program.py").write_text(WRITES)
        (each / "judges.py").write_text(JUDGES)
    threads = {**environment(), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    subprocess.run([sys.executable, "program.py"], cwd=alone, env=threads, check=True, stdout=subprocess.DEVNULL)
    options = ("--models", "FLIP:1,SET:1e6", "--stage", "optimizer", "--check", "python judges.py", "--seed", "3")
    found = set()
    for count in (1, 2, 3, 4):
        done = detrain("campaign", "plan", "-n", count, *options, "program.py", cwd=folder)
        assert done.status == 0, done.err
        told = run(folder, "--workers", 1)
        row = list(Ledgers(next(folder.glob("ckpt/*/*/campaign-campaign/ledger")), told["plan"]).rows())[-1]
        left = {name: (folder / name).read_bytes() == (alone / name).read_bytes() for name in ("model.pt", "log.txt")}
        if row.end == "program":
            assert (row.number, row.files) == (count - 1, "equal" if all(left.values()) else "differs")
            if row.check == "fails" or row.files == "differs":
                assert row.category == (17 if row.check == "fails" else 16)
            assert row.check in ("passes", "fails")
        else:
            assert (row.category, row.status) in ((5, 3), (17, 0)), row
        found.add((row.category, row.files))
    assert len(found) > 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["IOV", "IOA"])
def test_an_exported_list_is_taken_again_and_does_the_same_faults(mode: str, tmp_path: Path) -> None:
    """Whole commands, since files are handed over: plan, run, export, plan by the list, run, export again."""
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    models = ("--models", "FLIP:1") if mode == "IOV" else ("--models", "ADJ:2")
    given = ("-n", 40, "--mode", mode, *models, "--groups", "GPR", "--after", 2, "--name", "first")
    detrain("campaign", "plan", *given, "program.py", cwd=tmp_path).ok()
    told = run(tmp_path, "--workers", 1, "--name", "first")
    rows = list(Ledgers(next(tmp_path.glob("ckpt/*/*/campaign-first/ledger")), told["plan"]).rows())
    export = ("campaign", "export", "--tool", "sassifi")
    assert detrain(*export, "--out", "tree", "--name", "first", "program.py", cwd=tmp_path).status == 0
    (listed,) = (path for path in (tmp_path / "tree").rglob("mode*.txt") if path.read_text().count("\n") == len(rows))
    more = listed.with_name(listed.name.replace(".txt", "").rpartition(".")[0] + ".41.txt")
    line = listed.read_text().splitlines()[0].split()
    more.write_text(listed.read_text() + " ".join([line[0], line[1], "99999999", *line[3:]]) + "\n")

    refused = detrain("campaign", "plan", "--list", more, "--after", 2, "--name", "more", "program.py", cwd=tmp_path)
    detrain("campaign", "plan", "--list", listed, "--after", 2, "--name", "again", "program.py", cwd=tmp_path).ok()

    assert (refused.status, "got number 99999999" in refused.err) == (82, True), refused.err
    told = run(tmp_path, "--workers", 1, "--name", "again")
    found = list(Ledgers(next(tmp_path.glob("ckpt/*/*/campaign-again/ledger")), told["plan"]).rows())
    what = ("site", "epoch", "batch", "position", "bits", "golden", "injected", "outcome", "category", "stdout", "digest")
    assert [[getattr(row, name) for name in what] for row in found] == [[getattr(row, name) for name in what] for row in rows]
    assert detrain(*export, "--out", "second", "--name", "again", "program.py", cwd=tmp_path).status == 0
    assert (tmp_path / "second" / listed.relative_to(tmp_path / "tree")).read_bytes() == listed.read_bytes()
    report = detrain("campaign", "report", "--name", "again", "program.py", cwd=tmp_path)
    assert (report.status, "trials" in report.out) == (0, True), report.err
