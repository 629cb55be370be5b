"""A sample of a kind of objects: the objects, the changes by a loop, and the comparison afterwards."""

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
    """Change nothing, and show nothing."""


@dataclass(frozen=True)
class Sample:
    """Names of a program: their values at the entry of the loop, and the changes that a loop makes."""

    make: Callable[[], World]
    change: Change
    see: Change = nothing
    """Returns a value to compare besides `state_compare.difference`; it may use the objects up."""
    lost: tuple[str, ...] = ()
    """Places that the codec names because it cannot restore them."""
    remade: tuple[str, ...] = ()
    """Names whose objects come back as new, equal ones: these objects cannot be set in place."""
    is_makeable: bool = True
    """True if a process without such an object can make it."""
    left: tuple[str, ...] = ()
    """Names whose objects a way back within the process does not set: its caller has to."""
    is_returned: bool = True
    """True if a way back within the process puts it back, and does not name it as missing."""
    is_seen_only: bool = False
    """True if only `see` compares: for classes that each process makes, and objects that record others."""
    is_kept: bool = False
    """True if it is large, and not stored as long as it does not change."""


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
    """Return a sample of immutable objects: the loop binds the name to another one, and sets an attribute if it can."""

    def change(world: World) -> None:
        world["value"] = make(2)
        if type(world["kept"]).__module__.startswith("tests.") and hasattr(world["kept"], "__dict__"):
            world["kept"].seen = [1]

    seen = nothing if see is None else (lambda world: (see(world["value"]), see(world["kept"])))
    return Sample(lambda: {"value": make(1), "kept": make(3)}, change, seen, **more)


def places(said: list[str]) -> list[str]:
    """Return the places of the lost objects, from the codec's texts about them."""
    return [each.partition(" (")[0].partition(":")[0] for each in said]


def changed(sample: Sample) -> tuple[World, Baseline]:
    """Return a sample's world after its loop, and the baseline of its entry."""
    world = sample.make()
    baseline = baseline_of(world)
    sample.change(world)
    return world, baseline


def resumed(after: World, before: World, lost: tuple[str, ...] = (), baseline: Baseline | None = None) -> World:
    """Restore a state into the world of a process that has reached the loop; only the places in `lost` may be lost."""
    encoded = encode(after, baseline_of(before) if baseline is None else baseline)
    assert places(encoded.not_captured) == list(lost)
    assert restore(encoded, before, baseline_of(before)) == []
    return before


def run_twice(make: Callable[[], World], change: Change) -> tuple[World, World]:
    """Return (the world that a loop changed, another world into which its state was restored)."""
    after, baseline = changed(Sample(make, change))
    return after, resumed(after, make(), baseline=baseline)


def into(encoded: Encoded, before: World) -> World:
    """Restore a state into a world; no value of it may be missing."""
    assert restore(encoded, before, baseline_of(before)) == []
    return before


def made_anew(make: Callable[[], Any]) -> Any:
    """Return the object that a resumed process has in place of one that the loop has made."""
    return run_twice(lambda: {"value": None}, lambda world: world.update(value=make()))[1]["value"]


def lost_of(make: Callable[[], Any]) -> list[str]:
    """Return the codec's texts about lost parts of an object that the loop has made."""
    return encode({"value": make()}, baseline_of({"value": None})).not_captured


def there_and_back(make: Callable[[], Any], change: Callable[[Any], object]) -> tuple[Any, Any]:
    """Return (the object that a loop has changed, the one of a resumed process, which must be the one it had)."""
    before = {"value": make()}
    held, (after, baseline) = before["value"], changed(one(make, change))
    assert resumed(after, before, baseline=baseline)["value"] is held
    return after["value"], held


def hold(world: Mapping[str, object], baseline: Baseline | None = None) -> Live:
    """Return the state of a world, to go back to within the process."""
    encoder = LiveEncoder(NO_FRAMEWORK, baseline or Baseline())
    return encoder.finish_live({name: encoder.encode(value, name) for name, value in world.items()})


def put_back(live: Live, baseline: Baseline | None = None) -> tuple[World, list[str]]:
    """Put a state back; return the values that the names then have, and the parts that could not be put back."""
    decoder = LiveDecoder(live, NO_FRAMEWORK, baseline or Baseline())
    return {name: decoder.decode(item, ABSENT, name) for name, item in decoder.roots.items()}, decoder.missing
