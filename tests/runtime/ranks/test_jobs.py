"""Real processes: whatever befalls a rank, the job is started again and ends with the bits of one that nothing befell.

Processes are needed: a signal, a stopped thread, an end of a connection, a file that outlives its writer are what is
tried. They are forked from one server without a framework, 0.1 s each.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detrain.runtime.ranks.manifest import FoundCheckpoint, find
from tests.runtime.ranks.job import EXIT_CODE, Server, expected

KILLED, SEGV = -9, -11


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def fault(kind: str, place: str = "body", rank: int | str = 1, step: int | None = 9, **more: Any) -> dict[str, Any]:
    """Without a step, at each: for the second of two failures."""
    return {"kind": kind, "place": place, "rank": rank} | ({} if step is None else {"step": step}) | more


def saved(folder: Path, world: int) -> FoundCheckpoint | None:
    return find(folder / "home", "toy", world)[0]


def said(folder: Path, world: int) -> list[str]:
    """What the ranks have printed, all lines."""
    return [line for rank in range(world) for line in (folder / f"err-{rank}").read_text().splitlines()]


def goes_on(server: Server, folder: Path, world: int, **more: Any) -> None:
    """Start the job again, and compare with a training that was never disturbed."""
    assert server.run(folder, world, **more) == [0] * world, said(folder, world)
    finals = [json.loads((folder / f"final-{rank}").read_text()) for rank in range(world)]
    weights, streams = expected(world)
    assert finals == [[weights, stream] for stream in streams]


def is_exact(
    server: Server, folder: Path, world: int, statuses: list[int], *faults: dict[str, Any], **more: Any
) -> FoundCheckpoint:
    """A job that fails at step 9 saves what it has after 9 or 10 steps, says so once, and goes on to the same bits."""
    assert server.run(folder, world, *faults, **more) == statuses, said(folder, world)
    found = saved(folder, world)
    assert found is not None, said(folder, world)
    assert found.manifest.done in {9, 10}
    lines = said(folder, world)
    assert len([line for line in lines if "saved, see" in line]) == 1, lines
    goes_on(server, folder, world, nodes=more.get("nodes", ""))
    return found


_STATUS = {"kill": KILLED, "segv": SEGV, "stop": KILLED, "raises": EXIT_CODE, "sigterm": EXIT_CODE}
_POINT = {"cut": "d8-8", "body": "c9-9", "gate": "c9-9", "step": "d9-9", "tail": "d9-9"}
_FAST = {("kill", "step", 0), ("raises", "tail", 2), ("stop", "gate", 2)}
_CASES = [
    pytest.param(*case, marks=[] if case in _FAST else pytest.mark.slow) for case in itertools.product(_STATUS, _POINT, (0, 2))
]


@pytest.mark.parametrize(("kind", "place", "rank"), _CASES)
def test_a_failure_of_one_rank(server: Server, tmp_path: Path, kind: str, place: str, rank: int) -> None:
    status = _STATUS[kind]
    statuses = [status if each == rank else EXIT_CODE for each in range(3)]

    found = is_exact(server, tmp_path, 3, statuses, fault(kind, place, rank))

    assert found.manifest.extra == b"order of buckets"
    assert found.manifest.dead == ((rank,) if status != EXIT_CODE else ())
    if kind != "sigterm":  # its program goes on to its next place of rest
        assert found.manifest.point.name == _POINT[place]


@pytest.mark.slow
def test_a_rank_that_hangs_is_found_by_its_pace(server: Server, tmp_path: Path) -> None:
    is_exact(server, tmp_path, 3, [EXIT_CODE] * 3, fault("hang"))

    assert any("no progress for" in line for line in said(tmp_path, 3))


@pytest.mark.slow
def test_a_rank_that_hangs_as_it_publishes_while_the_others_wait_for_it(server: Server, tmp_path: Path) -> None:
    found = is_exact(server, tmp_path, 3, [EXIT_CODE] * 3, fault("hang_publishing", "gate"))

    assert found.manifest.point.name == "c9-9"
    assert found.manifest.dead == (), "its watcher has voted"


@pytest.mark.slow
def test_a_rank_that_hangs_among_the_first_batches(server: Server, tmp_path: Path) -> None:
    assert server.run(tmp_path, 3, fault("hang", step=3)) == [EXIT_CODE] * 3, said(tmp_path, 3)

    assert any("by the last 3 of its kind" in line for line in said(tmp_path, 3))
    goes_on(server, tmp_path, 3)


def test_a_job_that_is_asked_to_end_saves(server: Server, tmp_path: Path) -> None:
    is_exact(server, tmp_path, 4, [EXIT_CODE] * 4, fault("sigterm", rank="all"))


@pytest.mark.slow
def test_a_second_death_while_voting(server: Server, tmp_path: Path) -> None:
    found = is_exact(
        server, tmp_path, 4, [KILLED, KILLED, EXIT_CODE, EXIT_CODE], fault("kill", rank=1), fault("kill", "vote", rank=0, step=None)
    )

    assert found.manifest.dead == (0, 1)


@pytest.mark.slow
def test_a_saver_that_dies_while_it_saves(server: Server, tmp_path: Path) -> None:
    found = is_exact(
        server, tmp_path, 3, [KILLED, KILLED, EXIT_CODE], fault("kill", rank=1), fault("kill", "save", rank=0, step=None)
    )

    assert found.manifest.round == "lost-0-1"


def test_a_saver_whose_disk_is_full_leaves_it_to_the_next(server: Server, tmp_path: Path) -> None:
    found = is_exact(
        server, tmp_path, 3, [EXIT_CODE, KILLED, EXIT_CODE], fault("kill"), fault("disk_full", "save", rank=0, step=None)
    )

    assert found.manifest.round == "lost-1-failed-0"


@pytest.mark.slow
def test_a_saver_that_hangs_leaves_it_to_the_next(server: Server, tmp_path: Path) -> None:
    is_exact(
        server, tmp_path, 3, [EXIT_CODE, KILLED, EXIT_CODE], fault("kill"), fault("hang", "save", rank=0, step=None), save_s=0.5
    )


@pytest.mark.slow
def test_a_rank_whose_device_does_not_answer_saves_no_big_state(server: Server, tmp_path: Path) -> None:
    is_exact(
        server, tmp_path, 3, [EXIT_CODE, KILLED, EXIT_CODE], fault("kill"), fault("hang", "vote", rank=0, step=None), vote_s=0.5
    )


@pytest.mark.slow
def test_where_no_disk_can_be_written_to_nothing_is_saved_and_it_is_said_why(server: Server, tmp_path: Path) -> None:
    statuses = server.run(tmp_path, 3, fault("kill"), fault("disk_full", "save", rank="all", step=None))

    assert statuses == [EXIT_CODE, KILLED, EXIT_CODE]
    assert saved(tmp_path, 3) is None
    (line,) = said(tmp_path, 3)
    assert "no rank that is left can write: nothing was saved" in line
    goes_on(server, tmp_path, 3)


def test_a_death_before_the_first_cut_saves_nothing(server: Server, tmp_path: Path) -> None:
    statuses = server.run(tmp_path, 3, fault("kill", "cut", step=0))

    # One that has not met all others yet, when another is through and dead, ends with RanksApart: 1 in this job.
    assert statuses[1] == KILLED
    assert {statuses[0], statuses[2]} <= {EXIT_CODE, 1}
    assert saved(tmp_path, 3) is None
    if statuses == [EXIT_CODE, KILLED, EXIT_CODE]:
        (line,) = said(tmp_path, 3)
        assert "the small states of rank 1 are lost: nothing was saved" in line or "the first cut has not been reached" in line
    goes_on(server, tmp_path, 3)


@pytest.mark.slow
def test_when_all_ranks_die_nothing_is_saved_and_an_older_checkpoint_stands(server: Server, tmp_path: Path) -> None:
    server.run(tmp_path, 3, fault("kill", step=5))
    before = saved(tmp_path, 3)

    assert server.run(tmp_path, 3, fault("kill", dead=(0, 1, 2))) == [KILLED] * 3

    assert before is not None
    assert saved(tmp_path, 3) == before
    goes_on(server, tmp_path, 3)


@pytest.mark.slow
def test_a_rank_that_was_taken_for_dead_and_wakes_ends_with_the_checkpoint_of_the_others(server: Server, tmp_path: Path) -> None:
    """On another node it cannot be seen that a process is stopped, and it cannot be ended."""
    statuses = server.run(tmp_path, 3, fault("sleep_deeply", rank=2), nodes="AAB", silence_s=0.6)

    assert statuses == [EXIT_CODE] * 3
    found = saved(tmp_path, 3)
    assert found is not None
    assert found.manifest.dead == (2,)
    goes_on(server, tmp_path, 3, nodes="AAB")


def test_of_a_node_that_dies_the_buddies_have_the_states(server: Server, tmp_path: Path) -> None:
    found = is_exact(
        server,
        tmp_path,
        4,
        [EXIT_CODE, EXIT_CODE, KILLED, KILLED],
        fault("kill", "step", 2, dead=(2, 3)),
        nodes="AABB",
    )

    assert found.manifest.dead == (2, 3)


@pytest.mark.slow
def test_a_rank_that_dies_with_its_buddy_leaves_nothing(server: Server, tmp_path: Path) -> None:
    statuses = server.run(tmp_path, 3, fault("kill", rank=1), fault("kill", rank=2), nodes="ABC")

    assert statuses == [EXIT_CODE, KILLED, KILLED]
    assert saved(tmp_path, 3) is None
    (line,) = said(tmp_path, 3)
    assert "the small states of rank 1 are lost: nothing was saved" in line
    goes_on(server, tmp_path, 3, nodes="ABC")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_any_failures_of_any_ranks(server: Server, tmp_path: Path, seed: int) -> None:
    """Up to three failures in a job, and the same again in the one that goes on: it ends with the right bits."""
    draw = random.Random(seed)
    nodes = draw.choice(["AAA", "AAB", "ABC", "AAAA", "AABB", "ABCD"])
    world = len(nodes)
    for is_first in (True, False):
        faults = []
        for _ in range(draw.randint(1, 3)):
            kind = draw.choice(["kill", "segv", "stop", "raises", "sigterm", "hang", "sleep_deeply"])
            place = draw.choice(["cut", "body", "gate", "step", "tail"] + (["vote", "save"] if kind in {"kill", "stop"} else []))
            step = None if place in {"vote", "save"} else draw.randrange(14)
            if kind == "hang":  # seen once eight batches have been: not soon after a restart
                kind, step = ("hang", draw.randrange(9, 14)) if is_first else ("kill", step)
            if kind == "stop" and len({*nodes}) > 1:  # nobody of another node could end it; it would stay stopped
                kind = "kill" if step is None else "sleep_deeply"
            faults.append(fault(kind, place, draw.randrange(world), step))
        faults += [fault("disk_full", "save", draw.randrange(world), None)] * draw.randint(0, 1)
        statuses = server.run(tmp_path, world, *faults, nodes=nodes, silence_s=0.6)
        assert {*statuses} <= {0, 1, EXIT_CODE, KILLED, SEGV}, (faults, nodes, statuses, said(tmp_path, world))
        assert not any("defect" in line for line in said(tmp_path, world)), said(tmp_path, world)
    goes_on(server, tmp_path, world, nodes=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", ["AAB", "AABB", "ABC"])
def test_a_node_that_is_cut_off_and_the_rest_commit_one_checkpoint(server: Server, tmp_path: Path, nodes: str) -> None:
    world, last = len(nodes), nodes[-1]
    sides = [[rank for rank in range(world) if (nodes[rank] == last) == is_last] for is_last in (False, True)]
    cuts = [fault("cut_off", rank=rank, others=other) for side, other in (sides, sides[::-1]) for rank in side]

    statuses = server.run(tmp_path, world, *cuts, fault("hang", rank=sides[1][0]), nodes=nodes, silence_s=0.6)

    assert statuses == [EXIT_CODE] * world
    found = saved(tmp_path, world)
    assert found is not None
    assert found.manifest.done == 9
    assert len(list((tmp_path / "home").glob("jit-*/manifest.json"))) == 1
    goes_on(server, tmp_path, world, nodes=nodes)
