"""Ranks that are gone: those that are left save, and the job goes on with the same bits as if nothing had happened.

Signals come at random moments, by the batches in a rank's journal and some milliseconds later. Each case is a job of
three processes, started again as often as it takes; a server forks them.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detrain.runtime.ranks.watcher import EXIT_CODE
from detrain.store.lock import holder_of
from tests.e2e.forkserver import Server
from tests.e2e.runs import ROOT, TIMEOUT_S, Result, environment
from tests.e2e.test_ranks import BATCHES, PROGRAM, assert_equal_states

WORLD = 3
KINDS = ("KILL", "SEGV", "STOP", "TERM", "ABRT", "TERM to all", "KILL to all")


def job(server: Server, folder: Path, mode: str, faults: dict[int, object], *options: object) -> list[Result]:
    folder.mkdir(exist_ok=True)
    command = ("run", "--jit-every", "1", *options, "--ckpt", f"{folder}.home", PROGRAM, mode)
    return server.job(*command, cwd=folder, ranks=[{}] * WORLD, faults=faults)


def journal(folder: Path, rank: int) -> Path:
    return Path(f"{folder}.home") / "modes" / f"rank-{rank}" / "modes-r1.journal"


@pytest.fixture(scope="module")
def wholes(ranks_server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[str]]]:
    """By mode: a job that nothing disturbs, without just-in-time checkpoints, and how its ranks end."""
    return {}


def whole_of(
    server: Server, wholes: dict[str, tuple[Path, list[str]]], mode: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    if mode not in wholes:
        folder = tmp_path_factory.mktemp(mode) / "whole"
        folder.mkdir()
        command = ("run", "--ckpt", f"{folder}.home", PROGRAM, mode)
        results = server.job(*command, cwd=folder, ranks=[{}] * WORLD)
        with_jit = job(server, folder.with_name("with-jit"), mode, {})
        lasts = [result.out.splitlines()[-1] for result in results]
        assert [result.status for result in (*results, *with_jit)] == [0] * 2 * WORLD
        assert [result.out.splitlines()[-1] for result in with_jit] == lasts
        assert journal(folder.with_name("with-jit"), 0).stat().st_size < 60 * BATCHES  # no random streams
        wholes[mode] = Path(f"{folder}.home"), lasts
    return wholes[mode]


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param("default", 0, marks=pytest.mark.fast),
        *(pytest.param("default", seed, marks=pytest.mark.slow) for seed in range(1, 13)),
        *(pytest.param(mode, seed, marks=pytest.mark.slow) for mode in ("views", "static", "accumulated") for seed in range(4)),
    ],
)
def test_a_job_whose_ranks_are_gone_at_random_moments_ends_as_if_nothing_had_happened(
    mode: str,
    seed: int,
    ranks_server: Server,
    wholes: dict[str, tuple[Path, list[str]]],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home, lasts = whole_of(ranks_server, wholes, mode, tmp_path_factory)
    draw, folder = random.Random(f"{mode} {seed}"), tmp_path / "job"
    kinds = [draw.choice(KINDS) for _ in range(2)] if seed else ["KILL", "TERM"]
    results: list[Result] = []
    for turn, kind in enumerate([*kinds, ""]):
        faults: dict[int, object] = {}
        ranks = range(WORLD) if kind.endswith("all") else [draw.randrange(WORLD)]
        batches = draw.randrange(BATCHES // 4, BATCHES // 2) + turn * (BATCHES // 2 - BATCHES // 8)
        later = draw.random() * 0.03
        for rank in ranks if kind else ():
            number = getattr(signal, f"SIG{kind.split()[0]}")
            faults[rank] = {"journal": str(journal(folder, rank)), "batches": batches, "later_s": later, "signal": number}
        results = job(ranks_server, folder, mode, faults)
        statuses = [result.status for result in results]
        if kind in ("KILL", "SEGV", "STOP", "ABRT") and statuses != [0] * WORLD:
            others = [status for rank, status in enumerate(statuses) if rank not in faults]
            assert set(others) <= {EXIT_CODE}, (kinds, [each.err for each in results])
        if kind.startswith("TERM") and EXIT_CODE in statuses:
            assert statuses == [EXIT_CODE] * WORLD, [each.err for each in results]

    if not kinds[1].startswith("KILL to"):  # else none was left to save
        assert re.search("just-in-time checkpoint at|resuming", results[0].err) or results[0].err == ""
    assert [result.out.splitlines()[-1] for result in results] == lasts, kinds
    assert_equal_states(home, Path(f"{folder}.home"), WORLD)


@pytest.mark.slow
def test_no_more_is_lost_than_the_batch_that_was_under_way(ranks_server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    fault = {"journal": str(journal(folder, 1)), "batches": 8, "later_s": 0.01, "signal": signal.SIGKILL}

    died = job(ranks_server, folder, "default", {1: fault})
    batches = journal(folder, 1).read_bytes().count(b"\xa1b")
    again = job(ranks_server, folder, "default", {})

    assert [result.status for result in died] == [EXIT_CODE, -9, EXIT_CODE]
    at = re.search(r"resuming modes at (\d+):(\d+)", again[0].err)
    assert at is not None, again[0].err
    assert batches - (6 * int(at[1]) + int(at[2])) <= 1


@pytest.mark.slow
def test_a_program_that_catches_errors_never_sees_the_death_of_a_peer(ranks_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "modes.py"
    text = PROGRAM.read_text()
    text = text.replace(
        "            is_last = ",
        "            if rank == 1:  # the others are in their collective\n                time.sleep(0.3)\n            is_last = ",
    ).replace("import sys\n", "import sys\nimport time\n")
    text = text.replace(
        "    main(sys.argv[1])",
        "    try:\n        main(sys.argv[1])\n    except RuntimeError:\n        print('caught')\n"
        "    finally:\n        print('finally')",
    )
    program.write_text(text)
    fault = {"journal": str(journal(tmp_path / "job", 1)), "batches": 8, "later_s": 0.15, "signal": signal.SIGKILL}
    command = ("run", "--jit-every", "1", "--ckpt", tmp_path / "job.home", program, "default")

    died = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD, faults={1: fault})
    again = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)

    assert [result.status for result in died] == [EXIT_CODE, -9, EXIT_CODE]
    assert not any(word in result.out for result in died for word in ("caught", "finally"))
    assert [result.out.splitlines()[-1] for result in again] == ["finally"] * WORLD


@pytest.mark.slow
def test_an_error_of_one_rank_is_shown_once_and_the_others_save(ranks_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "modes.py"
    program.write_text(
        PROGRAM.read_text()
        .replace(
            "            total += ",
            "            if rank == 1 and epoch == 1 and step == 3 and FAULT.exists():\n"
            "                raise ZeroDivisionError('a defect')\n            total += ",
        )
        .replace("MODES = {", f"from pathlib import Path\n\nFAULT = Path({str(tmp_path / 'fault')!r})\nMODES = {{")
    )
    (tmp_path / "fault").touch()
    command = ("run", "--jit-every", "1", "--ckpt", tmp_path / "home", program, "default")

    failed = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)
    (tmp_path / "fault").unlink()
    again = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)
    shutil.rmtree(tmp_path / "home")
    whole = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)

    assert [result.status for result in failed] == [EXIT_CODE] * WORLD
    assert ["Traceback" in result.err for result in failed] == [False, True, False]
    assert "ZeroDivisionError: a defect" in failed[1].err
    assert "resuming modes at 1:3" in again[0].err
    assert [result.out.splitlines()[-1] for result in again] == [result.out.splitlines()[-1] for result in whole]


@pytest.mark.slow
def test_torchrun_starts_the_job_again_that_has_saved(ranks_server: Server, tmp_path: Path) -> None:
    whole = ranks_server.job("run", "--ckpt", tmp_path / "whole", PROGRAM, "default", cwd=tmp_path, ranks=[{}] * WORLD)
    folder = tmp_path / "home" / "modes" / "rank-1"
    options = ("--nproc-per-node", str(WORLD), "--max-restarts", "2", "--jit-every", "1", "--ckpt", str(tmp_path / "home"))
    command = [sys.executable, "-m", "detrain", "launch", *options, str(PROGRAM), "default"]

    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=err, env=environment())
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            if (folder / "modes-r1.journal").is_file() and (folder / "modes-r1.journal").read_bytes().count(b"\xa1b") >= 8:
                pid = holder_of(folder, "modes")
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.001)
        status = process.wait(TIMEOUT_S)

    said = (tmp_path / "err").read_text()
    assert status == 0, said
    assert "just-in-time checkpoint at" in said
    last = sorted(line for line in (tmp_path / "out").read_text().splitlines() if line.startswith("rank"))
    assert last == sorted(result.out.splitlines()[-1] for result in whole)


DYING = """
import os, signal
from detrain.store.catalogue import Catalogue

save = Catalogue.save

def dying(catalogue, program, run, cursor, snapshot):
    if os.environ.get("FAULT") and (cursor.epoch, cursor.cut) == (1, "epoch"):
        os.kill(os.getpid(), signal.SIGKILL)
    return save(catalogue, program, run, cursor, snapshot)

Catalogue.save = dying
"""


@pytest.mark.slow
def test_a_rank_dies_where_only_the_others_have_saved_the_start_of_an_epoch(ranks_server: Server, tmp_path: Path) -> None:
    """They have a newer checkpoint than what is saved just in time, and it does not count."""
    program = tmp_path / "modes.py"
    program.write_text(PROGRAM.read_text().replace("\nMODES = {", f"{DYING}\nMODES = {{"))
    command = ("run", "--jit-every", "1", "--ckpt", tmp_path / "home", program, "default")
    whole = ranks_server.job("run", "--ckpt", tmp_path / "whole", program, "default", cwd=tmp_path, ranks=[{}] * WORLD)

    died = ranks_server.job(*command, cwd=tmp_path, ranks=[{}, {"FAULT": "1"}, {}])
    again = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)

    assert [each.status for each in died] == [EXIT_CODE, -signal.SIGKILL, EXIT_CODE]
    assert "resuming modes at 0:6" in again[0].err
    assert [result.out.splitlines()[-1] for result in again] == [result.out.splitlines()[-1] for result in whole]
    assert_equal_states(tmp_path / "whole", tmp_path / "home", WORLD)


STUCK = {
    "it sleeps in its forward": ("time.sleep(1000)", ("--jit-hang", "2"), "no progress for", EXIT_CODE),
    "it computes for ever": ("[0 for _ in iter(int, 1)]", ("--jit-hang", "2"), "no progress for", EXIT_CODE),
    "it is stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", (), "the process is stopped", -signal.SIGKILL),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", sorted(STUCK))
def test_a_rank_that_does_nothing_any_more_is_noticed_and_the_job_goes_on(what: str, ranks_server: Server, tmp_path: Path) -> None:
    act, options, said, status = STUCK[what]
    fault = f"            if rank == 1 and epoch == 2 and step == 3 and os.path.exists({str(tmp_path / 'fault')!r}):\n"
    text = PROGRAM.read_text().replace("            is_last = ", f"{fault}                {act}\n            is_last = ")
    program = tmp_path / "modes.py"
    program.write_text(text.replace("import sys\n", "import os\nimport signal\nimport sys\nimport time\n"))
    command = ("run", "--jit-every", "1", *options, "--ckpt", tmp_path / "home", program, "default")
    (tmp_path / "fault").touch()

    stuck = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)
    (tmp_path / "fault").unlink()
    again = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)
    shutil.rmtree(tmp_path / "home")
    whole = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)

    assert [result.status for result in stuck] == [EXIT_CODE, status, EXIT_CODE], [result.err for result in stuck]
    assert any(said in result.err for result in stuck), [result.err for result in stuck]
    assert "resuming modes at 2:3" in again[0].err
    assert [result.out.splitlines()[-1] for result in again] == [result.out.splitlines()[-1] for result in whole]


@pytest.mark.slow
def test_a_job_that_is_asked_for_nothing_saves_just_in_time_what_it_held_last(ranks_server: Server, tmp_path: Path) -> None:
    """Also a state of some batches before, and one of an epoch before that: what came behind is done again."""
    whole = ranks_server.job("run", "--ckpt", tmp_path / "whole", PROGRAM, "default", cwd=tmp_path, ranks=[{}] * WORLD)
    folder = tmp_path / "job"
    command = ("run", "--ckpt", f"{folder}.home", PROGRAM, "default")
    for batches in (6, 12):
        faults: dict[int, object] = {
            1: {"journal": str(journal(folder, 1)), "batches": batches, "later_s": 0.0, "signal": signal.SIGKILL}
        }
        died = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD, faults=faults)
        assert [result.status for result in died] == [EXIT_CODE, -9, EXIT_CODE], [result.err for result in died]
        assert "saved, see" in "".join(result.err for result in died)
        assert not list((tmp_path / "job.home" / "modes" / "jit").glob("jit-*"))[1:], "one start's alone is there"
    again = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * WORLD)

    assert [result.out.splitlines()[-1] for result in again] == [result.out.splitlines()[-1] for result in whole]
    assert_equal_states(tmp_path / "whole", tmp_path / "job.home", WORLD)


EXAMPLE = ROOT / "examples" / "just_in_time" / "train.py"
INJECTED = """
import os, signal, torch.optim.sgd as _sgd
_steps, _whole = iter(range(10**9)), _sgd._single_tensor_sgd

def _failing(parameters, gradients, momentums, **options):
    kind, place, step = os.environ.get("FAULT", "none before -1").split()  # not the program's state
    if next(_steps) != int(step):
        return _whole(parameters, gradients, momentums, **options)
    if place == "during":
        _whole(parameters[:9], gradients[:9], momentums[:9], **options)
    if kind == "error":
        raise RuntimeError("injected")
    os.kill(os.getpid(), getattr(signal, kind))
    return _whole(parameters, gradients, momentums, **options)

_sgd._single_tensor_sgd = _failing
"""
"""What a test puts before the program's text; the program itself is plain."""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before", "during"])
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGSEGV", "error"])
def test_vgg_fails_before_and_in_the_step_of_its_optimizer_and_goes_on(
    kind: str, place: str, ranks_server: Server, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(INJECTED + EXAMPLE.read_text())
    ranks = [{}, {"FAULT": f"{kind} {place} 10"}, {}]

    failed = ranks_server.job("run", "--jit-every", "1", program, cwd=tmp_path, ranks=ranks)
    again = ranks_server.job("run", "--jit-every", "1", program, cwd=tmp_path, ranks=[{}] * WORLD)
    whole = ranks_server.job(program, cwd=tmp_path, ranks=[{}] * WORLD, is_bare=True)

    assert [failed[rank].status for rank in (0, 2)] == [EXIT_CODE] * 2, [result.err for result in failed]
    assert "resuming train at 1:4" in again[0].err
    assert [result.out.splitlines()[-1] for result in again] == [result.out.splitlines()[-1] for result in whole]


OWN_LOOP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(4, 4)
rank = dist.get_rank()
MODEL
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(2):
    LOOP
    dist.barrier()
print("rank", rank, float(net.weight.detach().sum()))
dist.destroy_process_group()
"""
STEP = "model(batch).sum().backward(); AVERAGE; optimizer.step(); optimizer.zero_grad()"
ODD = {
    "batches of unequal number": (
        OWN_LOOP.replace("MODEL", "model = DistributedDataParallel(net)")
        .replace(
            "LOOP", "with model.join():\n        for batch in [torch.rand(2, 4) for _ in range(6 + 3 * rank)]:\n            STEP"
        )
        .replace("STEP", STEP.replace("AVERAGE", "None")),
        (),
        "unequal numbers of batches from here on (`join`)",
    ),
    "a loop that sums gradients itself": (
        OWN_LOOP.replace("MODEL", "model = net")
        .replace("LOOP", "for batch in [torch.rand(2, 4) for _ in range(8)]:\n        STEP")
        .replace("STEP", STEP.replace("AVERAGE", "[dist.all_reduce(each.grad) for each in net.parameters()]")),
        (),
        "no just-in-time checkpoints: no weights are found that DistributedDataParallel keeps alike",
    ),
    "epochs without a checkpoint": (PROGRAM.read_text(), ("--every", "2"), "--every 2 leaves epochs without a checkpoint"),
    "it is not to be": (PROGRAM.read_text(), ("--no-jit",), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", sorted(ODD))
def test_where_no_state_can_be_held_the_job_runs_on_and_says_why(what: str, ranks_server: Server, tmp_path: Path) -> None:
    text, options, said = ODD[what]
    program = tmp_path / "train.py"
    program.write_text(text)

    results = ranks_server.job("run", *options, program, "default", cwd=tmp_path, ranks=[{}] * 2)
    bare = ranks_server.job(program, "default", cwd=tmp_path, ranks=[{}] * 2, is_bare=True)

    assert [result.status for result in (*results, *bare)] == [0] * 4, [result.err for result in results]
    assert [result.out for result in results] == [result.out for result in bare]
    assert said in results[0].err
    assert results[0].err.count("just-in-time") == (said != "")
    assert not list((tmp_path / "ckpt" / "train" / "jit").glob("every"))
