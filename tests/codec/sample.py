"""A sample of a kind of objects: what is there, how a loop changes it, and what is seen of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from detrain.python.codec.baseline import Baseline
from detrain.python.codec.in_process import Live, LiveDecoder, LiveEncoder
from detrain.python.inspect.object_graph import ABSENT, Encoded
from tests.runtime.state_values import NO_FRAMEWORK, World, baseline_of, encode, restore

Change = Callable[[World], object]


def nothing(_world: World) -> None:
    """No change, or nothing to see."""


@dataclass(frozen=True)
class Sample:
    """Names of a program: what they hold as the loop is entered, and how a loop changes that."""

    make: Callable[[], World]
    change: Change
    see: Change = nothing
    """Returns what is to be compared beside `state_compare.difference`; it may use the objects up."""
    lost: tuple[str, ...] = ()
    """Places that are named as they are no more what they were."""
    remade: tuple[str, ...] = ()
    """Names whose objects come back as others, equal ones: nothing sets these in place."""
    is_makeable: bool = True
    """Whether a process that has no such object can make it."""
    left: tuple[str, ...] = ()
    """Names whose objects a way back within the process leaves to whoever goes back."""
    is_returned: bool = True
    """Whether a way back within the process puts it back, and does not name it as missing."""
    is_seen_only: bool = False
    """Whether `see` alone compares: classes that each process makes, or objects that keep account of others."""
    is_kept: bool = False
    """Whether it is large, and not stored as long as it is as it was."""


def one(
    make: Callable[[], Any], change: Callable[[Any], object], see: Callable[[Any], object] | None = None, **more: Any
) -> Sample:
    """Return a sample of a single object."""
    return Sample(
        lambda: {"value": make()},
        lambda world: change(world["value"]),
        nothing if see is None else lambda world: see(world["value"]),
        **more,
    )


def replaced(make: Callable[[int], Any], see: Callable[[Any], object] | None = None, **more: Any) -> Sample:
    """Return a sample of what cannot change: the loop binds the name to another. One with attributes gets one more."""

    def change(world: World) -> None:
        world["value"] = make(2)
        if type(world["kept"]).__module__.startswith("tests.") and hasattr(world["kept"], "__dict__"):
            world["kept"].seen = [1]

    seen = nothing if see is None else (lambda world: (see(world["value"]), see(world["kept"])))
    return Sample(lambda: {"value": make(1), "kept": make(3)}, change, seen, **more)


def places(said: list[str]) -> list[str]:
    """Return where it is that something is lost."""
    return [each.partition(" (")[0].partition(":")[0] for each in said]


def changed(sample: Sample) -> tuple[World, Baseline]:
    """Return what a loop leaves, and what was there as it was entered."""
    world = sample.make()
    baseline = baseline_of(world)
    sample.change(world)
    return world, baseline


def resumed(after: World, before: World, lost: tuple[str, ...] = (), baseline: Baseline | None = None) -> World:
    """Restore a state into the world of a process that has come to the loop; nothing else may be lost."""
    encoded = encode(after, baseline_of(before) if baseline is None else baseline)
    assert places(encoded.not_captured) == list(lost)
    assert restore(encoded, before, baseline_of(before)) == []
    return before


def run_twice(make: Callable[[], World], change: Change) -> tuple[World, World]:
    """Return (the world that a loop changed, another one that its state was restored into)."""
    after, baseline = changed(Sample(make, change))
    return after, resumed(after, make(), baseline=baseline)


def into(encoded: Encoded, before: World) -> World:
    """Restore a state where all that it holds must be found."""
    assert restore(encoded, before, baseline_of(before)) == []
    return before


def made_anew(make: Callable[[], Any]) -> Any:
    """Return what a resumed process has of an object that the loop has made."""
    return run_twice(lambda: {"value": None}, lambda world: world.update(value=make()))[1]["value"]


def lost_of(make: Callable[[], Any]) -> list[str]:
    """Return what is named of an object that the loop has made."""
    return encode({"value": make()}, baseline_of({"value": None})).not_captured


def there_and_back(make: Callable[[], Any], change: Callable[[Any], object]) -> tuple[Any, Any]:
    """Return (what a loop has changed, what a resumed process has of it: the object that it had)."""
    before = {"value": make()}
    held, (after, baseline) = before["value"], changed(one(make, change))
    assert resumed(after, before, baseline=baseline)["value"] is held
    return after["value"], held


def hold(world: Mapping[str, object], baseline: Baseline | None = None) -> Live:
    """Return the state of a world, to go back to within the process."""
    encoder = LiveEncoder(NO_FRAMEWORK, baseline or Baseline())
    return encoder.finish_live({name: encoder.encode(value, name) for name, value in world.items()})


def put_back(live: Live, baseline: Baseline | None = None) -> tuple[World, list[str]]:
    """Put a state back; return what the names are bound to then, and what could not be put back."""
    decoder = LiveDecoder(live, NO_FRAMEWORK, baseline or Baseline())
    return {name: decoder.decode(item, ABSENT, name) for name, item in decoder.roots.items()}, decoder.missing
