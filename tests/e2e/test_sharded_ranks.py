"""Programs whose state is spread over the ranks of a job (FSDP2, tensor parallelism, ZeroRedundancyOptimizer): one rank
or all are killed, the job is run again, and each rank's shards are compared bit for bit with those of the job that was
never killed, and its output with that of one that knows nothing of detrain.

A process is what is killed, and a job has several, so each case takes some; a server forks them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.runs import ROOT, detrain
from tests.e2e.test_ranks import BATCHES, assert_ends_as_if_never_killed, last_of, run

PROGRAM = ROOT / "tests" / "programs" / "ranks" / "sharded.py"
CASES = (
    *(
        ("fsdp2", 2),
        ("fsdp2", 3),
        ("fsdp2 kept mixed", 3),
        ("fsdp2 grouped mixed", 2),
        ("fsdp2 recomputed", 2),
        ("fsdp2 compiled", 2),
    ),
    *(("fsdp2 accumulated unreduced clipped", 3), ("fsdp2 regrouped", 4), ("fsdp2 hybrid accumulated partly", 4)),
    *(("fsdp2 deferred best", 3), ("fsdp2 offloaded manual", 2), ("tensors", 2), ("zero", 3), ("zero views", 3)),
)
"""Words for the program, and numbers of ranks."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "world"),
    # First a root that a validation has left whole, gradients that are not reduced yet, norms over ranks.
    [("fsdp2 accumulated unreduced clipped", 2), *CASES],
)
def test_killed_at_random_batches_a_job_ends_as_if_never_killed(
    words: str, world: int, ranks_server: Server, tmp_path: Path
) -> None:
    draw = random.Random(f"{words} {world}")
    distances = ["1b", "2b"] if "accumulated" in words else ["1b", "2b", "1"]
    assert_ends_as_if_never_killed(ranks_server, tmp_path, world, draw, distances, PROGRAM, *words.split())


REFUSED = {
    "FSDP": (("--every", "2b"), "fsdp1", "the program trains with FSDP:"),
    "just-in-time checkpoints of shards": (("--jit",), "fsdp2", "--jit in a program that trains with DTensor (FSDP2"),
    "just-in-time checkpoints of ZeRO": (("--jit",), "zero", "--jit in a program that trains with ZeroRedundancyOptimizer"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_is_not_exact_is_refused_before_it_trains(what: str, ranks_server: Server, tmp_path: Path) -> None:
    options, words, message = REFUSED[what]

    results = ranks_server.job("run", *options, PROGRAM, words, cwd=tmp_path, ranks=[{}] * 2)

    assert [each.status for each in results] == [80, 80], [each.err for each in results]
    assert message in results[0].err
    assert "epoch 0" not in results[0].out


@pytest.mark.slow
def test_weights_that_were_gathered_before_they_changed_are_named_and_no_run_resumes(ranks_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "stale.py"
    text = PROGRAM.read_text()
    program.write_text(text.replace("loss.backward()", "loss.backward() or model.set_reshard_after_backward(False)"))
    kill = [{"DETRAIN_TRIAL": json.dumps({"states": f"{tmp_path}/states-{rank}", "kill_at": 5})} for rank in range(2)]
    command = ("run", "--every", "2b", "--ckpt", tmp_path / "home", program, "fsdp2")

    died = ranks_server.job(*command, cwd=tmp_path, ranks=kill)
    again = ranks_server.job(*command, cwd=tmp_path, ranks=[{}] * 2)

    assert "weights of FSDP2 (gathered before they changed" in died[0].err
    assert [each.status for each in again] == [79, 79], [each.err for each in again]


@pytest.mark.slow
def test_verify_kills_ranks_and_compares_their_shards(tmp_path: Path) -> None:
    result = detrain("verify", "--nproc", 2, "--kills", 1, "--every", "3b", "--json", PROGRAM, "fsdp2", cwd=tmp_path).ok()

    found = json.loads(result.out)
    assert found["exact"]
    assert [rank["runs"][2]["comparison"]["batches"] for rank in found["ranks"]] == [BATCHES] * 2


@pytest.mark.slow
def test_shards_are_shown_by_the_names_of_the_weights(ranks_server: Server, tmp_path: Path) -> None:
    run(ranks_server, tmp_path / "job", 2, [], "--every", "1", PROGRAM, "fsdp2")

    shown = ranks_server.detrain("ckpt", "show", "--json", last_of(tmp_path / "job.home", 1), cwd=tmp_path)

    rows = {row["name"]: row for row in json.loads(shown.out)["tensors"]}
    assert rows["model.blocks.0.first.weight.shard"]["shape"] == [24, 24]
    assert rows["optimizer.state.model.leave.weight.exp_avg.shard"]["shape"] == [2, 24]
    assert rows["model.leave.weight.shard"]["spread"] == "[5, 24] by S(0) over 2"
