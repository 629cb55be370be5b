"""The promises of every adapter, tried on a small training of its framework: `python -m tests.adapters.contract NAME`
prints {promise: traceback, or null} as JSON. An adapter changes its framework for the whole process, so it needs
one of its own.

To try another adapter, write a `Subject` for it, and a line in `SUBJECTS`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol

import msgspec
import numpy as np

from detrain.adapters.api import Adapter
from detrain.adapters.group import Adapters
from detrain.base.array_memory import writing
from detrain.base.digest import Array
from detrain.faults.drawing import draw_injection
from detrain.faults.experiment import Experiment
from detrain.faults.models import model_named
from detrain.faults.plan import trial_rng
from detrain.python.codec.in_process import encode_value, restore_value
from detrain.python.loaders.generator_replay import LoopGenerators
from detrain.python.outside.open_files import Files
from detrain.runtime.state.codec_hooks import ProgramHooks
from tests.adapters.trial import Trial

SUBJECTS = {"tensorflow": "tests.adapters.of_tensorflow", "torch": "tests.adapters.of_torch", "jax": "tests.adapters.of_jax"}
"""The module with the function `subject(experiment)` of each adapter."""


class Subject(Protocol):
    """A training in one framework: a model of a few weights, an optimizer with slots, dropout,
    shuffled data.
    """

    adapter: Adapter

    def step(self) -> None:
        """Train for one batch of the loader."""

    def state(self) -> Mapping[str, Array]:
        """Return all weights, slots and seeds as the framework itself reads them, without the adapter."""

    def constants(self) -> list[Any]:
        """Return immutable tensors of all dtypes that checkpoints hold; some of their values are NaN."""

    def tensors(self) -> list[Any]:
        """Return mutable tensors of all dtypes and strides; some are views of others."""

    def bytes_of(self, value: Any) -> bytes:
        """Return dtype, shape and content of a tensor as the framework itself reads them."""

    def change(self, value: Any) -> None:
        """Flip a bit of the memory of a mutable tensor, if it has memory."""

    def draw(self) -> bytes:
        """Draw from each global stream of the framework."""

    def generator(self) -> tuple[object, Callable[[], bytes]] | None:
        """Return a generator of the program's own and a function that draws from it; None if the framework has none."""

    def loader(self) -> Iterator[Any]:
        """Return the iterator that `step` draws from; it gives tensors."""

    def objects(self) -> list[object]:
        """Return the Python objects that hold tensors which are state."""

    def watched(self) -> Mapping[str, Array]:
        """Return the values that the guard looks at, by the guard's keys."""

    def spoil(self) -> None:
        """Train for one batch of NaNs."""


class Moment:
    """A state in memory, as the ring holds it: the framework's, its streams, and the objects' contents."""

    def __init__(self, subject: Subject, *, on_host: bool = False) -> None:
        adapters = Adapters()
        adapters.add(subject.adapter)
        assert subject.adapter.rollback is not None
        self._hooks = ProgramHooks(adapters, Files(), LoopGenerators(lambda: (0, 0, 0), str, lambda _old, _new: None, None))  # type: ignore[arg-type, return-value]
        self._streams = subject.adapter.random.streams() if subject.adapter.random is not None else {}
        self._objects = encode_value(subject.objects(), self._hooks)
        self._put_back = subject.adapter.rollback.hold(on_host=on_host)
        self._packed = {name: stream.pack() for name, stream in self._streams.items()}

    def put_back(self) -> list[str]:
        """Put the state back; return why that was not exact. Raises CannotGoBackError."""
        self._put_back()
        missing = restore_value(self._objects, self._hooks)
        for name, packed in self._packed.items():
            self._streams[name].unpack(packed)
        return missing


def variables_are_told_as_they_are(subject: Subject) -> None:
    """`tensors` has every value that the framework has, under a key of its own."""
    subject.step()
    found = sorted(array.tobytes() for array in registry(subject).tensors().values())
    for name, array in subject.state().items():
        assert array.tobytes() in found, f"{name} is not among the tensors"


def keys_are_the_same_at_each_look(subject: Subject) -> None:
    """Training renames no tensor."""
    subject.step()
    before = list(registry(subject).tensors())
    subject.step()
    assert list(registry(subject).tensors()) == before


def save_then_restore_is_the_identity(subject: Subject) -> None:
    """The saved values are restored from arrays that `new_array` made: the registry takes over their memory."""
    subject.step()
    before, held = state(subject), registry(subject).tensors()
    saved = {key: array.copy() for key, array in held.items()}
    subject.step()
    assert state(subject) != before, "the step changes nothing"
    taken = {}
    for key, array in saved.items():
        taken[key] = registry(subject).new_array(array.shape, array.dtype)
        taken[key][...] = array
    registry(subject).restore(taken)
    assert state(subject) == before
    subject.step()
    assert {key: array.tobytes() for key, array in saved.items()} == {key: held[key].tobytes() for key in saved}


def what_is_held_does_not_change_while_training_goes_on(subject: Subject) -> None:
    """`tensors` may share memory with the framework: no code writes into it as long as it is held."""
    subject.step()
    held = registry(subject).tensors()
    before = {key: array.tobytes() for key, array in held.items()}
    for _ in range(3):
        subject.step()
    assert {key: array.tobytes() for key, array in held.items()} == before


def a_variable_is_found_by_its_description(subject: Subject) -> None:
    """`find_variable` returns the very object that was described."""
    subject.step()
    described = [(value, registry(subject).describe_variable(value)) for value in vars(subject).values()]
    known = [(value, each) for value, each in described if each is not None]
    assert known, "the subject holds no variable itself"
    for value, each in known:
        assert registry(subject).find_variable(json.loads(json.dumps(each)), makes=False) is value
    assert registry(subject).describe_variable(object()) is None


def a_constant_read_and_made_again_is_the_same(subject: Subject) -> None:
    """The same bit for bit: NaN payloads, zeros with a sign, text that ends in zeros."""
    leaves = subject.adapter.leaves
    for value in subject.constants():
        assert leaves.constant_type is not None
        assert isinstance(value, leaves.constant_type)
        array = leaves.constant(value)
        assert array is not None
        form = json.loads(json.dumps(leaves.form(value)))
        made = leaves.make_constant(array.copy(), form)
        assert subject.bytes_of(made) == subject.bytes_of(value), value
        assert leaves.form(made) == form
        assert leaves.make_constant(array, ["another's"]) is None
    assert leaves.constant(np.ones(2)) is None
    assert leaves.to_array(object()) is None
    assert leaves.parts(object()) is None


def a_tensor_put_back_is_the_same_in_place(subject: Subject) -> None:
    """The same bit for bit, and the very object; without an object, an equal new one. Reading changes nothing."""
    shared = subject.adapter.shared
    assert shared is not None
    assert shared.look(object()) is None
    assert not shared.is_shared(object())
    for value in subject.tensors():
        before, look = subject.bytes_of(value), shared.look(value)
        assert look is not None
        assert shared.is_shared(value)
        held, form = shared.read(look.memory, holds=True), json.loads(json.dumps(look.form))
        kept = held.copy()
        subject.change(value)
        assert (held == kept).all(), "what is held has changed"
        assert shared.fill(look.memory, *writing(kept))
        assert shared.put(form, look.memory, value, look.base) is value
        shared.set_parts(value, look.parts)
        assert subject.bytes_of(value) == before, form
        made = shared.put(form, shared.new_memory(*writing(kept), form), None, None)
        shared.set_parts(made, look.parts)
        assert made is not value
        assert subject.bytes_of(made) == before, form


def each_part_is_there_or_none(subject: Subject) -> None:
    """An adapter is found by name, so that no type checker sees its missing parts."""
    parts = Adapter.__annotations__
    assert len(parts) > 8
    assert [part for part in parts if not hasattr(subject.adapter, part)] == []


def a_stream_read_and_written_gives_the_same_draws(subject: Subject) -> None:
    """Both the framework's own streams, at a moment that is put back, and a generator that the program holds."""
    rollback = subject.adapter.rollback
    assert subject.adapter.random is not None
    streams = subject.adapter.random.streams()
    before = {name: stream.pack() for name, stream in streams.items()}
    put_back = None if rollback is None else rollback.hold(on_host=False)
    first, other = subject.draw(), subject.draw()
    assert first != other, "nothing is drawn"
    if put_back is not None:
        put_back()
    for name, stream in streams.items():
        stream.unpack(before[name])
    assert subject.draw() == first
    held = subject.generator()
    if held is not None:
        generator, draw = held
        stream_of = subject.adapter.random.held_generator(generator)
        assert stream_of is not None
        packed = stream_of.pack()
        first = draw()
        assert draw() != first
        stream_of.unpack(packed)
        assert draw() == first
    assert subject.adapter.random.held_generator(object()) is None


def a_loader_has_a_name_and_a_position(subject: Subject) -> None:
    """A loader keeps its position until the program draws from it, and then has another one."""
    loaders = subject.adapter.loaders
    assert loaders is not None
    assert loaders.is_loader(subject.loader())
    assert loaders.loader_key(subject.loader())
    assert not loaders.is_loader(iter([]))
    assert not loaders.loader_key(iter([]))
    first, again = (loaders.positions("seek")[0] for _ in range(2))
    assert first, loaders.positions("seek")[1]
    assert {key: array.tobytes() for key, array in first.items()} == {key: array.tobytes() for key, array in again.items()}
    next(subject.loader())
    later = loaders.positions("seek")[0]
    assert {key: array.tobytes() for key, array in first.items()} != {key: array.tobytes() for key, array in later.items()}


def a_loader_set_to_its_position_goes_on_with_the_same_batches(subject: Subject) -> None:
    """The position is set together with the adapter's other state, as in a resumed process."""
    loaders = subject.adapter.loaders
    assert loaders is not None
    positions, state_then = loaders.positions("seek")[0], subject.adapter.state()
    first = [subject.bytes_of(next(subject.loader())) for _ in range(3)]
    subject.adapter.set_state(state_then, positions, "seek")
    assert [subject.bytes_of(next(subject.loader())) for _ in range(3)] == first


def what_else_is_state_is_json_and_the_same_twice(subject: Subject) -> None:
    """Equal states give equal bytes."""
    one, other = subject.adapter.state(), subject.adapter.state()
    assert one == other
    json.loads(one, parse_constant=no_json)


def the_environment_is_told_in_texts(subject: Subject) -> None:
    """Each call returns the same texts."""
    found = subject.adapter.environment()
    assert found
    assert all(isinstance(text, str) for pair in found.items() for text in pair)
    assert subject.adapter.environment() == found


def rollback_is_the_identity(subject: Subject) -> None:
    """A state is put back once, twice, and from copies in the host's memory; the steps after it give the same results
    again.
    """
    rollback = subject.adapter.rollback
    assert rollback is not None
    subject.step()
    for on_host in (False, True):
        rollback.begin_load()()
        before, held = state(subject), Moment(subject, on_host=on_host)
        after = []
        for _ in range(2):
            for _ in range(2):
                subject.step()
            after.append(state(subject))
            assert held.put_back() == []
            assert state(subject) == before
        assert after[0] == after[1] != before


def norms_are_those_of_the_values(subject: Subject) -> None:
    """The norms are compared with NumPy's in float64; a norm that is NaN is seen."""
    norms = subject.adapter.norms
    assert norms is not None
    subject.step()
    watched, found = norms.norms()
    assert watched
    values = {key: array.copy() for key, array in subject.watched().items()}
    assert {each.key for each in watched} <= values.keys(), sorted(values)
    held = Moment(subject)
    for each, norm in zip(watched, found, strict=True):
        expected = float(np.linalg.norm(values[each.key].astype(np.float64).reshape(-1)))
        np.testing.assert_allclose(norm, expected, rtol=1e-5, err_msg=each.key)
    assert norms.norms()[0] is watched, "another sequence, though nothing has changed"
    subject.spoil()
    assert not np.isfinite(norms.norms()[1]).all()
    assert held.put_back() == []
    np.testing.assert_array_equal(norms.norms()[1], found)


def a_plain_training_is_captured(subject: Subject) -> None:
    """The adapter names no uncaptured part, and the framework's output can be flushed at any time."""
    subject.step()
    subject.adapter.flush()
    assert subject.adapter.uncaptured() == []


def the_sites_of_a_step_have_names_of_their_own(subject: Subject) -> None:
    """No two sites have the same name."""
    sites = profiled(subject)
    assert len({site.name for site in sites}) == len(sites) > 3


def a_variable_in_memory_that_is_struck_differs_in_the_bit_that_is_said(subject: Subject) -> None:
    """The struck variable is of the kind of its site; no other variable changes."""
    instruments = trial.instruments
    subject.step()
    sites = [site for site in instruments.memory() if site.operands["output"].dtype == "float32"]
    for kind in ("weight", "slot", "statistic"):
        of_kind = [site for site in sites if site.op == kind and site.operands["output"].shape]
        assert of_kind, kind
        site = of_kind[-1]
        drawn = draw_injection(site, model_named("BIT:20"), 0, trial_rng(7, 0))
        before = {name: array.copy() for name, array in subject.state().items()}
        firing = instruments.strike(drawn)
        changed = {name: array for name, array in subject.state().items() if array.tobytes() != before[name].tobytes()}
        assert len(changed) == 1, (site.name, list(changed))
        ((name, array),) = changed.items()
        assert kind == (
            "slot" if name.partition(" ")[0].isdigit() or name.endswith("of Adam") else "statistic" if "ing_" in name else "weight"
        )
        differing = array.view(np.uint32).ravel() ^ before[name].view(np.uint32).ravel()
        (place,) = drawn.array("positions").tolist()
        assert differing[place] == 1 << 20 == differing.sum()
        assert firing is not None
        golden, injected = (np.frombuffer(data, np.uint32)[0] for data in (firing.golden, firing.injected))
        assert (golden, injected) == (before[name].view(np.uint32).ravel()[place], array.view(np.uint32).ravel()[place])


def a_fault_at_a_site_does_what_its_plan_says_and_again(subject: Subject) -> None:
    """One bit of each hit value is flipped; the same fault gives the same state, bit for bit; an unarmed site changes
    nothing.
    """
    instruments = trial.instruments
    for _ in range(2):
        subject.step()  # the first steps build graphs and slots
    held = Moment(subject)
    after = []
    for is_armed in (False, True, True, False):
        if is_armed:
            instruments.arm(0)
        subject.step()
        if is_armed:
            instruments.disarm()
        after.append(state(subject))
        assert held.put_back() == []
    assert after[0] == after[3], "the step is not repeatable"
    assert after[1] == after[2] != after[0]
    firing = instruments.firing()
    assert firing is not None
    assert firing.count == 2
    golden, injected = (np.frombuffer(data, np.uint32) for data in (firing.golden, firing.injected))
    assert injected.tolist() == [value ^ (1 << 20) for value in golden.tolist()]


def registry(subject: Subject) -> Any:
    """Return the adapter's variables."""
    assert subject.adapter.variables is not None
    return subject.adapter.variables


def state(subject: Subject) -> dict[str, bytes]:
    """Return the state's arrays as bytes, as the framework itself reads them."""
    return {name: array.tobytes() for name, array in subject.state().items()}


def profiled(subject: Subject) -> list[Any]:
    """Return the sites of a step."""
    trial.instruments.begin_step()
    subject.step()
    return trial.instruments.sites()


def no_json(name: str) -> None:
    """Raise an error that says that a state is no JSON."""
    raise AssertionError(f"{name} is no JSON")


NEEDS = {
    **dict.fromkeys(
        (
            variables_are_told_as_they_are,
            keys_are_the_same_at_each_look,
            save_then_restore_is_the_identity,
            what_is_held_does_not_change_while_training_goes_on,
            a_variable_is_found_by_its_description,
        ),
        "variables",
    ),
    a_constant_read_and_made_again_is_the_same: "leaves",
    a_tensor_put_back_is_the_same_in_place: "shared",
    a_stream_read_and_written_gives_the_same_draws: "random",
    a_loader_has_a_name_and_a_position: "loaders",
    a_loader_set_to_its_position_goes_on_with_the_same_batches: "loaders",
    what_else_is_state_is_json_and_the_same_twice: "name",
    each_part_is_there_or_none: "name",
    the_environment_is_told_in_texts: "name",
    rollback_is_the_identity: "rollback",
    norms_are_those_of_the_values: "norms",
    a_plain_training_is_captured: "name",
    the_sites_of_a_step_have_names_of_their_own: "instruments",
    a_variable_in_memory_that_is_struck_differs_in_the_bit_that_is_said: "instruments",
    a_fault_at_a_site_does_what_its_plan_says_and_again: "instruments",
}
"""The promises, each with the part of an adapter that makes it. An adapter without the part does not make it."""
trial = Trial()


def main(name: str, plan: str = "") -> None:
    """Try an adapter and print the tracebacks; with a plan of a fault, try only the promise about that."""
    if plan:
        trial.plans = [msgspec.json.decode(plan, type=Experiment)]
    subject = import_module(SUBJECTS[name]).subject(trial)
    found: dict[str, str | None] = {}
    for promise, part in NEEDS.items():
        is_of_faults = promise is a_fault_at_a_site_does_what_its_plan_says_and_again
        has_part = trial.instruments is not None if part == "instruments" else getattr(subject.adapter, part) is not None
        if not has_part or is_of_faults != bool(plan):
            continue
        try:
            promise(subject)
            found[promise.__name__] = None
        except Exception:
            found[promise.__name__] = traceback.format_exc()
    if not plan and trial.instruments is not None:
        found_sites = [
            each for each in profiled(subject) if each.stage == "forward" and each.operands.keys() >= {"output", "weight"}
        ]
        site = found_sites[-1]  # the output of the last layer reaches the loss in any case
        drawn = draw_injection(site, model_named("BIT:20"), 0, trial_rng(7, 0))
        plan = msgspec.json.encode(Experiment(log="", injection=drawn)).decode()
    print(json.dumps([found, plan]))


if __name__ == "__main__":
    main(*sys.argv[1:])
