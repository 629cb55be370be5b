"""From simulated events the loops come out that the simulation was made with."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from detrain.tracer.inference import Inference, LoopKey, nested

SEED, EPOCH, BATCH, STEP, OTHER = (("train.py", line) for line in (1, 2, 3, 4, 9))
Event = tuple[str, object]


def turns(key: LoopKey, count: int) -> Iterator[tuple[list[Event], bool]]:
    """Yield what is seen at each turn of a loop, and at last what is seen when it has run out."""
    for _turn in range(count):
        yield [("turn", key)], True
    yield [("turn", key)], False


def run(
    seeds: int, epochs: int, batches: int, *, optimizers: int = 1, accumulate: int = 1, inner: bool = False, tries: int = 1
) -> list[Event]:
    """Return the events of a program: seeds (none if 0) > epochs > batches > step, which updates with each optimizer.

    `inner`: the optimizers are in a loop of their own; `tries` updates are made in one run of an inner loop of a WGAN.
    """
    events: list[Event] = []
    for seed_events, is_seed in turns(SEED, seeds) if seeds else [([], True)]:
        events += seed_events
        for epoch_events, is_epoch in turns(EPOCH, epochs) if is_seed else []:
            events += epoch_events
            micro = 0
            for batch_events, is_batch in turns(BATCH, batches) if is_epoch else []:
                events += batch_events
                micro += 1
                if not is_batch or micro % accumulate:
                    continue
                nest = (SEED, EPOCH, BATCH) if seeds else (EPOCH, BATCH)
                if inner:
                    for number, (step_events, is_step) in enumerate(turns(STEP, optimizers)):
                        events += step_events
                        events += [("update", ((*nest, STEP), number))] if is_step else []
                elif tries > 1:
                    for step_events, is_step in turns(STEP, tries):
                        events += [*step_events, *([("update", ((*nest, STEP), 0))] if is_step else [])]
                    events.append(("update", (nest, 1)))
                else:
                    events += [("update", (nest, number)) for number in range(optimizers)]
    return events


def infer(events: list[Event]) -> Inference:
    inference = Inference()
    for kind, value in events:
        if kind == "turn":
            inference.turn(value)  # type: ignore[arg-type]
        else:
            inference.update(*value)  # type: ignore[misc]
    return inference


@given(
    seeds=st.integers(0, 3),
    epochs=st.integers(2, 4),
    batches=st.integers(2, 6),
    optimizers=st.integers(1, 3),
    inner=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_epoch_and_batch_loops_are_found(seeds: int, epochs: int, batches: int, optimizers: int, inner: bool) -> None:
    inference = infer(run(seeds, epochs, batches, optimizers=optimizers, inner=inner and optimizers > 1))

    (phase,) = inference.phases()
    assert (phase.batch, phase.epoch) == (BATCH, EPOCH)


@given(epochs=st.integers(2, 4), accumulate=st.integers(1, 4), groups=st.integers(2, 4))
@settings(deadline=None)
def test_an_update_each_k_batches_does_not_confuse(epochs: int, accumulate: int, groups: int) -> None:
    (phase,) = infer(run(0, epochs, accumulate * groups, accumulate=accumulate)).phases()

    assert (phase.batch, phase.epoch) == (BATCH, EPOCH)


def test_a_critic_that_is_trained_more_often_is_a_part_of_the_body() -> None:
    (phase,) = infer(run(0, 3, 4, tries=5)).phases()

    assert (phase.batch, phase.epoch) == (BATCH, EPOCH)


def test_it_is_not_sure_before_the_loop_has_been_run_again() -> None:
    events = run(0, 2, 3)
    verdicts = [infer(events[:count]).is_sure() for count in range(len(events) + 1)]

    first_of_second = [index for index, (kind, _value) in enumerate(events) if kind == "update"][3]
    assert verdicts.index(True) == first_of_second + 1
    assert not infer(run(0, 1, 5)).is_sure()


def test_updates_without_a_loop_around_them_are_no_phase() -> None:
    inference = infer([("update", ((), 1)), ("update", ((), 1))])

    assert inference.phases() == []
    assert inference.updates == 2


def test_two_batch_loops_of_one_epoch_loop_are_two_phases() -> None:
    events = []
    for _epoch in range(3):
        events.append(("turn", EPOCH))
        for key, what in ((BATCH, 1), (OTHER, 2)):
            for _batch in range(3):
                events += [("turn", key), ("update", ((EPOCH, key), what))]
            events.append(("turn", key))

    assert [(phase.batch, phase.epoch) for phase in infer(events).phases()] == [(BATCH, EPOCH), (OTHER, EPOCH)]


@given(st.lists(st.sampled_from([SEED, EPOCH, BATCH, STEP]), max_size=8))
def test_a_nest_has_each_loop_once_the_innermost_occurrence_kept(keys: list[LoopKey]) -> None:
    once = nested(keys)

    assert len(set(once)) == len(once)
    assert set(once) == set(keys)
    assert list(once) == sorted(once, key=lambda key: len(keys) - keys[::-1].index(key))


def test_updates_that_are_only_counted_change_no_answer() -> None:
    inference = infer(run(0, 2, 3, optimizers=2, inner=True))
    before = [(phase.batch, phase.epoch, phase.is_sure) for phase in inference.phases()]
    nest = (EPOCH, BATCH, STEP)

    for _turn in range(30):
        inference.count(nest)

    assert [(phase.batch, phase.epoch, phase.is_sure) for phase in inference.phases()] == before
    assert inference.epochs() == (12 + 30) // 6


@given(data=st.data(), epochs=st.integers(1, 3), batches=st.integers(1, 6), optimizers=st.integers(1, 2))
@settings(deadline=None)
def test_updates_that_only_repeat_may_be_told_together(data: st.DataObject, epochs: int, batches: int, optimizers: int) -> None:
    events = run(0, epochs, batches, optimizers=optimizers)
    at = data.draw(st.sampled_from([index for index, (kind, _value) in enumerate(events) if kind == "update"]))
    one_by_one, together = infer(events[: at + 1]), infer(events[: at + 1])
    nest, what = events[at][1]
    times = data.draw(st.integers(1, 20))

    if not together.is_repeating(nest, what):
        return
    together.has_news = False
    together.update(nest, what, times)
    for _update in range(times):
        one_by_one.update(nest, what)

    assert not together.has_news
    assert together.records == one_by_one.records
    assert together.phases() == one_by_one.phases()
    assert together.updates == one_by_one.updates
