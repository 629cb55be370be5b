"""Programs of tensors, views and arrays drawn at random: what is read at the cut and put back into a process that has
come to the loop is what it was, and goes on so: which objects and memories are one, and what autograd knows of views.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.adapters.cut_world import packed  # noqa: E402
from tests.adapters.torch_describe import describe  # noqa: E402
from tests.adapters.torch_resume import World  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int32, torch.float8_e5m2)
SHAPES = ((2, 3), (4,), (), (1, 2, 2), (0, 2), (3, 3))


def picked(pool: list[Any], number: int, kind: Any = torch.Tensor) -> Any:
    """Return one of the pool of a kind."""
    found = [each for each in pool if isinstance(each, kind)]
    return found[number % len(found)]


def make(w: Any, a: int, b: int) -> None:
    shape = SHAPES[b % len(SHAPES)]
    w.pool.append((torch.arange(int(np.prod(shape))).reshape(shape) + a).to(DTYPES[a % len(DTYPES)]))


def make_large(w: Any, a: int, b: int) -> None:
    w.pool.append(torch.full((20_000,), float(a)))


def take_part(w: Any, a: int, b: int) -> None:
    w.pool.append(picked(w.pool, a)[b % 2 :: 2])


def turn(w: Any, a: int, b: int) -> None:
    w.pool.append(picked(w.pool, a).transpose(0, -1))


def flatten(w: Any, a: int, b: int) -> None:
    w.pool.append(picked(w.pool, a).view(-1))


def widen(w: Any, a: int, b: int) -> None:
    tensor = picked(w.pool, a)
    w.pool.append(tensor.expand(2, *tensor.shape))


def stride(w: Any, a: int, b: int) -> None:
    w.pool.append(picked(w.pool, a).as_strided((2, 2), (b % 3, 1), 1))


def see_otherwise(w: Any, a: int, b: int) -> None:
    w.pool.append(picked(w.pool, a).view((torch.int32, torch.float64, torch.uint8, torch.float32)[b % 4]))


def see_bits(w: Any, a: int, b: int) -> None:
    tensor = picked([each for each in w.pool if isinstance(each, torch.Tensor) and each.is_complex()], a)
    w.pool.append((tensor.conj, lambda: tensor.conj().imag, lambda: torch.view_as_real(tensor))[b % 3]())


def let_go(w: Any, a: int, b: int) -> None:
    tensor = picked(w.pool, a)
    w.pool.append((tensor.detach(), tensor.data, tensor.clone())[b % 3])


def view_without_gradients(w: Any, a: int, b: int) -> None:
    with torch.no_grad():
        w.pool.append(picked(w.pool, a)[..., b % 2 :])


def alias(w: Any, a: int, b: int) -> None:
    w.pool.append(picked(w.pool, a, object))


def array(w: Any, a: int, b: int) -> None:
    w.pool.append(picked(w.pool, a).detach().numpy())


def part_of_array(w: Any, a: int, b: int) -> None:
    w.pool.append(picked(w.pool, a, np.ndarray)[b % 2 :])


def new_array(w: Any, a: int, b: int) -> None:
    w.pool.append(np.arange(6.0).reshape(2, 3).T if b % 2 else np.arange(4, dtype=np.float32) + a)


def tensor_of_array(w: Any, a: int, b: int) -> None:
    w.pool.append(torch.from_numpy(picked(w.pool, a, np.ndarray)))


def parameter(w: Any, a: int, b: int) -> None:
    w.pool.append(torch.nn.Parameter(picked(w.pool, a)))


def want_gradient(w: Any, a: int, b: int) -> None:
    picked(w.pool, a).requires_grad_(b % 3 != 0)


def note(w: Any, a: int, b: int) -> None:
    picked(w.pool, a).note = [picked(w.pool, b, object)]


def give_gradient(w: Any, a: int, b: int) -> None:
    picked(w.pool, a).grad = picked(w.pool, b)


def nest(w: Any, a: int, b: int) -> None:
    value = picked(w.pool, a, object)
    w.tree[f"k{b % 3}"] = ([value], (value, a), {"x": value, 2: deque([value], 2)}, SimpleNamespace(t=value))[b % 4]


def swap(w: Any, a: int, b: int) -> None:
    one, other = a % len(w.pool), b % len(w.pool)
    w.pool[one], w.pool[other] = w.pool[other], w.pool[one]


def drop(w: Any, a: int, b: int) -> None:
    del w.pool[a % len(w.pool)]


def bind(w: Any, a: int, b: int) -> None:
    w.pool[a % len(w.pool)] = picked(w.pool, b).detach().clone()


def write(w: Any, a: int, b: int) -> None:
    with torch.no_grad():
        picked(w.pool, a).add_(b)


def write_array(w: Any, a: int, b: int) -> None:
    picked(w.pool, a, np.ndarray)[...] += 1


def give_data(w: Any, a: int, b: int) -> None:
    picked(w.pool, a).data = picked(w.pool, b).data


def set_storage(w: Any, a: int, b: int) -> None:
    with torch.no_grad():
        picked(w.pool, a).set_(picked(w.pool, b).detach())


def resize(w: Any, a: int, b: int) -> None:
    tensor = picked(w.pool, a)
    if tensor.untyped_storage().resizable():  # else PyTorch gives it the shape, and then raises
        with torch.no_grad():  # what no tensor looks at then is no state
            torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).zero_()
            tensor.resize_(b % 7).fill_(1)


def train(w: Any, a: int, b: int) -> None:
    leaves = [each for each in w.pool if isinstance(each, torch.Tensor) and each.is_leaf and each.requires_grad]
    sum(each.abs().float().square().sum() * (n + 1) for n, each in enumerate(leaves)).backward()


def write_with_gradient(w: Any, a: int, b: int) -> None:
    """Write what was computed into a tensor, and train by all that look at it."""
    weight = torch.ones((), requires_grad=True)
    picked(w.pool, a).copy_(weight * b)
    computed = [each for each in w.pool if isinstance(each, torch.Tensor) and each.grad_fn is not None]
    sum(each.abs().float().sum() for each in computed).backward()
    w.pool.append(weight.grad)
    w.pool[:] = [each.detach() if isinstance(each, torch.Tensor) and each.grad_fn is not None else each for each in w.pool]


Op = Callable[[Any, int, int], None]
BEFORE: tuple[Op, ...] = (
    *(make, make_large, take_part, turn, flatten, widen, stride, see_otherwise, see_bits, let_go, view_without_gradients),
    *(alias, array, part_of_array, new_array, tensor_of_array, parameter, want_gradient, note, give_gradient, nest),
)
LOOP: tuple[Op, ...] = (*BEFORE, swap, drop, bind, write, write_array, give_data, set_storage, resize, train)
BEHIND: tuple[Op, ...] = (*(op for op in LOOP if op not in (want_gradient, resize)), write_with_gradient, write_with_gradient)
"""A tensor that wants a gradient only now gives it to views or not by how often its memory was written into; one that
an array of NumPy looked at is not resized any more."""


def programs(ops: tuple[Op, ...], size: int) -> st.SearchStrategy[list[tuple[Op, int, int]]]:
    return st.lists(st.tuples(st.sampled_from(ops), st.integers(0, 9), st.integers(0, 9)), max_size=size)


def do(w: Any, program: list[tuple[Op, int, int]]) -> list[bool]:
    """Run a program; return which of its steps PyTorch takes."""
    taken = []
    for op, a, b in program:
        taken.append(False)
        with contextlib.suppress(RuntimeError, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError):
            op(w, a, b)
            taken[-1] = True
    return taken


def came_to_the_loop(program: list[tuple[Op, int, int]]) -> Any:
    w = SimpleNamespace(pool=[torch.arange(6.0).reshape(2, 3), torch.ones(3)], tree={})
    do(w, program)
    return w


def assert_goes_on(w: Any, resumed: Any, behind: list[tuple[Op, int, int]]) -> None:
    """Assert that a world that was resumed is as the whole one, and stays so in a program behind."""
    assert describe(vars(resumed)) == describe(vars(w))
    whole, again = do(w, behind), do(resumed, behind)
    if any(further and not taken for taken, further in zip(whole, again, strict=True)):
        return  # how often memory was written into is counted with its tensors: PyTorch refuses some uses by that
    assert whole == again
    assert describe(vars(resumed), of_graphs=False) == describe(vars(w), of_graphs=False)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield World()
    torch.set_num_threads(threads)


@given(programs(BEFORE, 8), programs(LOOP, 10), programs(BEHIND, 6))
@settings(max_examples=150)
def test_a_program_that_is_resumed_goes_on_as_the_whole_one(world: World, before: Any, loop: Any, behind: Any) -> None:
    w, resumed = came_to_the_loop(before), came_to_the_loop(before)
    baseline = world.baseline(vars(w))
    do(w, loop)
    encoded = world.encode(vars(w), baseline)

    missing = world.restore(packed(encoded), vars(resumed), world.baseline(vars(resumed)))

    if encoded.not_captured:
        return
    assert missing == []
    assert_goes_on(w, resumed, behind)


@given(programs(LOOP, 12), programs(BEHIND, 6))
@settings(max_examples=60)
def test_a_world_comes_back_where_nothing_is(world: World, loop: Any, behind: Any) -> None:
    w, resumed = came_to_the_loop(loop), SimpleNamespace()
    encoded = world.encode(vars(w), world.baseline({}))

    assert world.restore(packed(encoded), vars(resumed), world.baseline({})) == []

    if not encoded.not_captured:
        assert_goes_on(w, resumed, behind)


@given(programs(LOOP, 12))
@settings(max_examples=40)
def test_reading_changes_nothing(world: World, loop: Any) -> None:
    w, unread = came_to_the_loop(loop), came_to_the_loop(loop)
    encoded = world.encode(vars(w), world.baseline(vars(w)))

    held = packed(encoded)

    assert describe(vars(w)) == describe(vars(unread))
    do(w, [(write, number, 3) for number in range(8)])
    assert packed(encoded) == held


def test_an_array_that_outlives_its_tensor_is_written_alike_in_a_resumed_run(world: World) -> None:
    """A program keeps `sample.numpy()` of each epoch; with another form in its checkpoints, `detrain verify` told of a
    difference where there is none.
    """
    tensor = torch.arange(6.0)
    w, resumed = SimpleNamespace(sample=tensor, frames=[tensor.numpy()]), SimpleNamespace()
    encoded = world.encode(vars(w), world.baseline({}))
    world.restore(packed(encoded), vars(resumed), world.baseline({}))

    later = []
    for each in (w, resumed):
        each.sample = torch.ones(2)
        later.append(packed(world.encode(vars(each), world.baseline({}))))

    assert later[0] == later[1]
    assert resumed.frames[0].flags.writeable


def test_two_views_of_one_memory_stay_two_where_the_resumed_process_has_one(world: World) -> None:
    """They came back as one object: setting a flag of one, or asking `is`, told of both."""
    tensor = torch.arange(6.0)
    w, resumed = SimpleNamespace(pool=[tensor, None, None]), SimpleNamespace(pool=[torch.arange(6.0), None, None])
    resumed.pool[1:] = [resumed.pool[0].numpy()] * 2
    w.pool[1:] = [tensor.numpy()] * 2
    baseline, there = world.baseline(vars(w)), world.baseline(vars(resumed))
    w.pool[1:] = [tensor.numpy(), tensor.numpy()]
    encoded = world.encode(vars(w), baseline)

    assert world.restore(packed(encoded), vars(resumed), there) == []

    assert resumed.pool[1] is not resumed.pool[2]
    assert describe(vars(resumed)) == describe(vars(w))
