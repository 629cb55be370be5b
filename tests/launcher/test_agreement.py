"""Ranks agree on where they go on through files, whatever earlier starts have left: threads stand for processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from detrain.base.config import OUTLIVING, Ranks, ended_by_nccl
from detrain.base.errors import CheckpointDamaged, FrameworkUnsupported, RanksDisagree, StoreError, UsageError
from detrain.base.options import Options
from detrain.cli import launch
from detrain.cli.launch import _numbers, _split
from detrain.launcher import own_ranks
from detrain.launcher.ranks import WORLD, Agreement, CommonStart, Offer, _chosen, where_ranks_go_on
from detrain.launcher.resume_point import good_checkpoints
from detrain.store import Catalogue, Entry
from detrain.store.job_home import rank_folder
from tests.store.homes import PROGRAM, epoch, state


def offer_of(rank: int, good: Sequence[str] = (), run: int = 1, asked_for: str = "same") -> Offer:
    return Offer(question="", token=str(rank), asked_for=asked_for, run=run, good=tuple(good))


def start(folder: Path, goods: Sequence[Sequence[str]], only: Sequence[int] | None = None, limit_s: float = 20.0) -> list[object]:
    """Have these ranks agree, in an order of their own; return what each decided, or its error."""
    found: list[object] = [None] * len(goods)

    def run(rank: int) -> None:
        def offer(question: str, token: str) -> Offer:
            return Offer(question=question, token=token, asked_for="same", run=1, good=tuple(goods[rank]))

        try:
            found[rank] = Agreement(folder, rank, len(goods), limit_s).decide(offer, lambda all_: _chosen(all_, fresh=False))
        except RanksDisagree as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in reversed(only or range(len(goods)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_take_the_newest_that_all_have(tmp_path: Path) -> None:
    found = start(tmp_path, [["c", "b", "a"], ["b", "a"], ["c", "b"]])

    assert all(isinstance(each, CommonStart) and each.name == "b" for each in found)
    assert len({each.job for each in found if isinstance(each, CommonStart)}) == 1


def test_an_older_checkpoint_that_cannot_be_read_is_not_offered_and_does_not_refuse_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    catalogue, original = Catalogue(tmp_path), Catalogue.confirm
    for number in (1, 2, 3):
        catalogue.save("train", 1, epoch(number), state(epoch(number)))

    def confirm(self: Catalogue, entry: Entry, *, reads_all: bool = True) -> str:
        if entry.cursor in unreadable:
            raise StoreError("a sector of the disk cannot be read")
        return original(self, entry, reads_all=reads_all)

    monkeypatch.setattr(Catalogue, "confirm", confirm)
    program: Any = SimpleNamespace(name="train", changed_sources=lambda _sources: [])

    unreadable = [epoch(1)]
    assert [choice.entry.cursor for choice in good_checkpoints(catalogue, program, ())] == [epoch(3), epoch(2)]
    assert "cannot be read" in capfd.readouterr().err
    unreadable = [epoch(3)]
    with pytest.raises(StoreError, match="cannot be read"):
        good_checkpoints(catalogue, program, ())


def test_what_an_earlier_start_has_left_is_nobodys_answer(tmp_path: Path) -> None:
    first = start(tmp_path, [["a"], ["a"]])
    start(tmp_path, [["x"], ["x"]], only=[1], limit_s=0.2)  # its rank 0 never came

    second = start(tmp_path, [["b", "a"], ["b", "a"]])

    assert [each.name for each in second if isinstance(each, CommonStart)] == ["b", "b"]
    assert isinstance(first[0], CommonStart)
    assert isinstance(second[0], CommonStart)
    assert first[0].job != second[0].job


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    found = start(tmp_path, [[], [], []], only=[0, 2], limit_s=0.3)

    assert "has waited 0 s for rank 1" in str(found[0])
    assert "for rank 0" in str(found[2]), "it has not decided"


def test_without_a_common_checkpoint_the_run_begins_anew_or_something_is_lost() -> None:
    assert _chosen([offer_of(0, run=0), offer_of(1, run=0)], fresh=False) == (1, "")
    assert _chosen([offer_of(0, ["a"]), offer_of(1, [])], fresh=False) == (1, "")
    assert _chosen([offer_of(0), offer_of(1)], fresh=True) == (2, "")
    assert _chosen([offer_of(0, ["a"]), offer_of(1, [])], fresh=True) == (2, ""), "begun by this job, and only one rank has a part"
    with pytest.raises(CheckpointDamaged, match="rank 1 has none of up to 2"):
        _chosen([offer_of(0, ["b", "a"]), offer_of(1, [])], fresh=False)
    with pytest.raises(RanksDisagree, match="rank 1 was started with other arguments"):
        _chosen([offer_of(0), offer_of(1, asked_for="other")], fresh=False)


OF_JOBS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
)
LAUNCHED = {
    "srun, two machines": (
        "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=4(x2)",
        ("srun", Ranks(5, 8, 1, 4)),
    ),
    "a batch script of Slurm, itself": ("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=8", None),
    "srun, one task": (
        "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1",
        None,
    ),
    "torchrun in a task of srun": (
        "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2",
        ("torchrun", Ranks(3, 4, 1, 2)),
    ),
    "srun, where the job script has set the world's size": (
        "WORLD_SIZE=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2)",
        ("srun", Ranks(1, 2, 0, 1)),
    ),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
        ("mpirun", Ranks(1, 2, 1, 2)),
    ),
    "MPICH": ("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2", ("mpiexec", Ranks(0, 2, 0, 2))),
}


@pytest.mark.parametrize("by", LAUNCHED)
def test_launchers_say_which_rank_this_is(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """With an address they start one job; without one, each process is a run of its own."""
    for name in (*OF_JOBS, "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    variables, found = LAUNCHED[by]
    for each in variables.split():
        monkeypatch.setenv(*each.split("="))
    assert Ranks.launched() == found
    assert Ranks.of_environment() is None
    monkeypatch.setenv("MASTER_ADDR", "node-1")
    assert Ranks.of_environment() == (found[1] if found else None)


def test_a_fresh_job_goes_on_with_its_own_run_when_its_launcher_starts_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`detrain launch --max-restarts 3 --fresh` began anew after each failure."""
    program: Any = SimpleNamespace(name=PROGRAM, changed_sources=lambda _sources: [])
    homes = [Catalogue(rank_folder(tmp_path, PROGRAM, rank)) for rank in range(2)]

    def started(count: int) -> list[tuple[int, bool, str]]:
        monkeypatch.setenv(own_ranks.RESTARTS, str(count))

        def run(rank: int) -> tuple[int, bool, str]:
            found = where_ranks_go_on(homes[rank], program, (), Options(fresh=True), Ranks(rank, 2))
            return found[1], found[2], "" if found[3] is None else str(found[3][0].entry.cursor)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(run, range(2)))

    def save(run: int, number: int, *ranks: int) -> None:
        for rank in ranks:
            state_of = state(epoch(number))
            meta = msgspec.structs.replace(state_of.meta, run=run, environment={WORLD: "2"})
            homes[rank].save(PROGRAM, run, epoch(number), dataclasses.replace(state_of, meta=meta))

    for home in homes:
        home.create()
    save(1, 7, 0, 1)
    assert started(0) == [(2, True, "")] * 2
    assert started(1) == [(2, True, "")] * 2, "it has no checkpoint yet: those of run 1 are not its own"
    save(2, 3, 0, 1)
    save(2, 4, 0)
    assert started(2) == [(2, False, "3:0")] * 2
    assert started(0) == [(3, True, "")] * 2, "a new launch"


def test_the_environment_says_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OF_JOBS, "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert Ranks.of_environment() is None
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert Ranks.of_environment() is None, "no job without an address"
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert Ranks.of_environment() == Ranks(2, 3)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert Ranks.of_environment() is None


@pytest.mark.parametrize(
    ("words", "launcher", "run", "program"),
    [
        ("--nproc-per-node 4 train.py -x", "--standalone --nproc-per-node 4", "", "train.py -x"),
        ("--every 5b --nproc-per-node=2 --jit train.py", "--standalone --nproc-per-node=2", "--every 5b --jit", "train.py"),
        ("--nnodes 2 --no-jit --rdzv-backend c10d train.py", "--nnodes 2 --rdzv-backend c10d", "--no-jit", "train.py"),
        ("--standalone --nproc_per_node 2 -m pack.train", "--standalone --nproc_per_node 2", "-m", "pack.train"),
    ],
)
def test_options_of_torchrun_and_of_run_are_told_apart(words: str, launcher: str, run: str, program: str) -> None:
    assert [" ".join(part) for part in _split(tuple(words.split()))] == [launcher, run, program]


def test_what_ranks_cannot_do_together_is_refused() -> None:
    from detrain.base.options import Every, Options
    from detrain.launcher.ranks import require_for_ranks

    with pytest.raises(UsageError, match="--every 5min: the clocks of the ranks differ"):
        require_for_ranks(Options(every=Every(5, "minutes")))


# Over NCCL, PyTorch's watchdog ends the ranks that are left.


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0 TORCH_NCCL_ENABLE_MONITORING=0", ""),
        ("NCCL_ASYNC_ERROR_HANDLING=0 TORCH_NCCL_ENABLE_MONITORING=False", ""),
        ("", "TORCH_NCCL_ASYNC_ERROR_HANDLING is not set, TORCH_NCCL_ENABLE_MONITORING is not set"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TORCH_NCCL_ENABLE_MONITORING=0", "TORCH_NCCL_ASYNC_ERROR_HANDLING is 1"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0 TORCH_NCCL_ENABLE_MONITORING=1", "TORCH_NCCL_ENABLE_MONITORING is 1"),
        (
            "TORCH_NCCL_ASYNC_ERROR_HANDLING=0 TORCH_NCCL_ENABLE_MONITORING=0 TORCH_NCCL_DESYNC_DEBUG=1 "
            "TORCH_DISTRIBUTED_DEBUG=detail",
            "TORCH_NCCL_DESYNC_DEBUG is 1, TORCH_DISTRIBUTED_DEBUG is DETAIL",
        ),
    ],
)
def test_what_ends_a_rank_whose_peer_is_gone_over_nccl_is_named(settings: str, found: str) -> None:
    assert ended_by_nccl(dict(each.split("=") for each in settings.split())) == found


@pytest.mark.parametrize(
    ("words", "is_set"), [("--jit", True), ("--jit-every 5", True), ("--jit-every=5", True), ("", False), ("--no-jit", False)]
)
def test_launch_has_ranks_outlive_each_other_where_just_in_time_checkpoints_are_asked_for(
    words: str, is_set: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default there are none over NCCL, and a job must not wait for ever then."""
    for name in OUTLIVING:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    seen: list[dict[str, str | None]] = []
    monkeypatch.setattr(launch, "_become", lambda _words: seen.append({name: os.environ.get(name) for name in OUTLIVING}))

    assert launch.command.callback is not None
    launch.command.callback(("--nproc-per-node", "2", *words.split(), "train.py"))

    assert seen == [OUTLIVING if is_set else dict.fromkeys(OUTLIVING)]


def test_just_in_time_checkpoints_over_nccl_are_refused_where_they_could_not_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    from detrain.runtime.session.parts import Parts

    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    config = SimpleNamespace(jit=True)
    parts: Any = SimpleNamespace(
        config=config, adapters=SimpleNamespace(environment=lambda: {"torch distributed": "nccl"}), _has_met=False
    )

    with pytest.raises(FrameworkUnsupported, match=r"PyTorch ends a rank whose peer has died.*ERROR_HANDLING is 1"):
        Parts.meet(parts)


# Where PyTorch is not installed.

_RANK = """
import os, pathlib, signal, sys, time
rank, folder = os.environ["RANK"], pathlib.Path(sys.argv[1])
starts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
(folder / f"{rank}-{starts}").write_text(" ".join(os.environ[name] for name in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")))
if rank == "1" and starts < int(sys.argv[2]):
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60 if starts < int(sys.argv[2]) else 0)
"""


@pytest.mark.parametrize(("failures", "restarts", "status"), [(0, 0, 0), (1, 1, 0), (2, 1, 128 + 9)])
def test_ranks_are_told_apart_ended_together_and_started_again(failures: int, restarts: int, status: int, tmp_path: Path) -> None:
    assert own_ranks.run([sys.executable, "-c", _RANK, str(tmp_path), str(failures)], 3, restarts) == status

    said = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert [name for name in sorted(said) if name.startswith("1-")] == [f"1-{start}" for start in range(restarts + 1)]
    assert said["1-0"] == "1 3 127.0.0.1"
    assert status or {name[0] for name in said} == {"0", "1", "2"}


def test_ranks_that_are_asked_to_end_are_not_started_again(tmp_path: Path) -> None:
    """A job that a cluster took back began anew."""
    asks = "import os, pathlib, signal, sys, time; rank = os.environ['RANK']; log = pathlib.Path(sys.argv[1], rank)\n"
    asks += "log.write_text('x' * (log.exists() + 1)); rank == '1' and os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"

    assert own_ranks.run([sys.executable, "-c", asks, str(tmp_path)], 2, restarts=1) == 128 + signal.SIGTERM

    assert (tmp_path / "1").read_text() == "x"


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("--standalone --nproc-per-node 4", (4, 0)),
        ("--nproc_per_node=2 --max-restarts 3", (2, 3)),
        ("--standalone", None),
        ("--nnodes 2 --nproc-per-node 2", None),
        ("--nproc-per-node gpu", None),
    ],
)
def test_without_torchrun_only_numbers_of_processes_and_starts_are_known(words: str, numbers: tuple[int, int] | None) -> None:
    if numbers is None:
        with pytest.raises(UsageError, match="torchrun, is not installed"):
            _numbers(words.split())
    else:
        assert _numbers(words.split()) == numbers
