"""The vote: of all that might be saved, the newest point that exists whole."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from detrain.runtime.ranks.vote import Decision, NoPoint, StatePoint, Vote, decide


def c(step: int) -> StatePoint:
    return StatePoint(step, step, "c")


def d(step: int) -> StatePoint:
    return StatePoint(step, step, "d")


def vote(
    done: int,
    *points: StatePoint,
    rank: int,
    state: bytes | None = b"",
    others: tuple[tuple[int, tuple[StatePoint, ...]], ...] = (),
) -> Vote:
    return Vote(done, state, ((rank, points), *others))


def decided(votes: dict[int, Vote], world: int, unable: tuple[int, ...] = ()) -> Decision:
    decision = decide(votes, world, unable)
    assert isinstance(decision, Decision), decision
    return decision


def refused(votes: dict[int, Vote], world: int, unable: tuple[int, ...] = ()) -> str:
    decision = decide(votes, world, unable)
    assert isinstance(decision, NoPoint), decision
    return decision.reason


def test_a_death_before_the_step_saves_the_cut() -> None:
    found = decided({rank: vote(7, c(7), d(6), c(6), rank=rank, others=((1, (c(7),)),)) for rank in (0, 2)}, 3)

    assert (found.point, found.base, found.saver) == (c(7), c(7), 0)
    assert found.writers == ((c(7), (0, 0, 2)),)


def test_a_death_in_the_step_saves_its_entry_and_the_cut_before_it() -> None:
    lost = (1, (c(6), d(6)))

    found = decided({rank: vote(7, c(7), d(6), c(6), rank=rank, others=(lost,)) for rank in (0, 2)}, 3)

    assert (found.point, found.base) == (d(6), c(6))
    assert found.writers == ((c(6), (0, 0, 2)), (d(6), (0, 0, 2)))


def test_the_buddy_writes_where_the_owner_is_gone() -> None:
    found = decided({0: vote(7, c(7), rank=0), 2: vote(7, c(7), rank=2, others=((1, (c(7),)),))}, 3)

    assert found.writers == ((c(7), (0, 2, 2)),)


def test_the_saver_is_the_lowest_clean_rank_of_the_most_steps() -> None:
    points = (c(7), d(6), c(6))
    votes = {
        0: vote(6, d(6), c(6), rank=0),
        1: vote(7, *points, rank=1, state=None),
        2: vote(7, *points, rank=2),
        3: vote(7, *points, rank=3),
    }

    assert (decided(votes, 4).saver, decided(votes, 4).point) == (2, d(6))


def test_a_rank_whose_disk_has_failed_writes_nothing() -> None:
    votes = {rank: vote(7, c(7), rank=rank, others=((1 - rank, (c(7),)),)) for rank in (0, 1)}

    found = decided(votes, 2, unable=(0,))

    assert found.all_writers() == {1}
    assert refused(votes, 2, unable=(0, 1)) == "no rank that is left can write"


def test_without_a_point_for_the_newest_state_the_one_before_it_is_saved() -> None:
    votes = {0: vote(7, c(7), c(6), rank=0), 1: vote(6, c(6), rank=1)}

    assert (decided(votes, 2).point, decided(votes, 2).saver) == (c(6), 1)


def test_a_replica_that_differs_from_the_others_does_not_save() -> None:
    votes = {rank: vote(7, c(7), rank=rank, state=b"bad" if rank == 0 else b"good") for rank in range(3)}

    assert decided(votes, 3).saver == 1
    assert refused({rank: votes[rank] for rank in (0, 1)} | {2: votes[2]}, 3, unable=(1, 2)).startswith(
        "no rank can write the state"
    )
    tie = {rank: vote(7, c(7), rank=rank, state=bytes([rank])) for rank in range(2)}
    assert refused(tie, 2) == "replicas differ, and none has the majority, after 7 steps"


def test_what_is_missing_is_named() -> None:
    assert refused({0: vote(0, rank=0)}, 2) == "no small state of any rank after 0 steps: the first cut has not been reached"
    assert refused({0: vote(7, c(7), rank=0)}, 3) == "after 7 steps, the small states of ranks 1, 2 are lost"
    assert refused({0: vote(7, c(7), rank=0, state=None)}, 1) == "no rank that is left has a state that is the end of a step"


def test_the_entry_of_the_second_step_of_a_batch_rests_on_the_batchs_cut() -> None:
    base, first, second = StatePoint(4, 2, "c"), StatePoint(4, 2, "d"), StatePoint(5, 2, "d")

    found = decided({rank: vote(6, base, first, second, rank=rank) for rank in range(2)}, 2)

    assert (found.point, found.base) == (second, base)


def test_among_the_cuts_between_two_steps_the_newest_that_all_have_is_taken() -> None:
    early, late = StatePoint(4, 8, "c"), StatePoint(4, 9, "c")

    found = decided({0: vote(4, early, late, rank=0), 1: vote(4, early, rank=1)}, 2)

    assert found.point == early


_POINTS = st.builds(lambda step, kind: StatePoint(step, step, kind), st.integers(0, 2), st.sampled_from("cd"))
_VOTES = st.integers(1, 4).flatmap(
    lambda world: st.tuples(
        st.just(world),
        st.dictionaries(
            st.integers(0, world - 1),
            st.builds(
                Vote,
                st.integers(0, 3),
                st.sampled_from([None, b"", b"x"]),
                st.dictionaries(st.integers(0, world - 1), st.sets(_POINTS).map(lambda s: tuple(sorted(s)))).map(
                    lambda each: tuple(each.items())
                ),
            ),
            min_size=1,
        ),
        st.sets(st.integers(0, world - 1)),
    )
)


@given(_VOTES)
def test_what_is_decided_exists_and_does_not_depend_on_the_order_of_votes(case: tuple[int, dict[int, Vote], set[int]]) -> None:
    world, votes, unable = case

    decision = decide(votes, world, unable)

    assert decision == decide(dict(reversed(votes.items())), world, unable)
    if isinstance(decision, NoPoint):
        assert not _exists(votes, world, unable)
        return
    saver = votes[decision.saver]
    assert decision.saver not in unable
    assert saver.state is not None
    assert saver.done == decision.point.done
    assert {decision.point, decision.base} == {point for point, _ in decision.writers}
    for point, writers in decision.writers:
        for owner, writer in enumerate(writers):
            assert writer not in unable
            assert point in dict(votes[writer].holds)[owner]


def _exists(votes: dict[int, Vote], world: int, unable: set[int]) -> bool:
    """By brute force: is there a state, with its point, that could be saved?"""
    able = {rank: vote for rank, vote in votes.items() if rank not in unable}
    held = {(owner, point) for vote in able.values() for owner, points in vote.holds for point in points}
    for step, kind in itertools.product(range(4), "cd"):
        point = StatePoint(step, step, kind)
        needed = itertools.product(range(world), {point, StatePoint(step, step, "c")})
        same = [vote.state for vote in votes.values() if vote.done == point.done and vote.state is not None]
        counts = sorted((same.count(state) for state in set(same)), reverse=True)
        if not counts or (len(counts) > 1 and counts[0] == counts[1]):
            continue
        state = max(set(same), key=same.count)
        can = any(vote.done == point.done and vote.state == state for vote in able.values())
        if can and all(each in held for each in needed):
            return True
    return False


def test_votes_and_decisions_survive_the_way_over_the_wire() -> None:
    votes = {rank: vote(7, c(7), d(6), c(6), rank=rank) for rank in range(3)}
    decision = decided(votes, 3)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(votes[1]), type=Vote) == votes[1]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(decision), type=Decision) == decision
