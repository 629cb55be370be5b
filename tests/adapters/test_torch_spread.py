"""Tensors that are spread over processes: a training that is resumed goes on as the one that was never cut, bit for
bit, in place, and no process is asked. The group of processes is a stand-in that sends nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from tests.adapters.cut_world import assert_exact, packed  # noqa: E402
from tests.adapters.torch_resume import World  # noqa: E402
from tests.adapters.torch_spread import CASES, spread, start  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def world() -> Iterator[World]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield World()
    torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", CASES)
def test_a_training_that_is_resumed_goes_on_as_the_whole_one(world: World, name: str) -> None:
    assert_exact(world.run(CASES[name]), CASES[name])


def test_a_tensor_of_another_mesh_is_not_made_again(world: World) -> None:
    start()
    over = torch.distributed.device_mesh.init_device_mesh("cpu", (6,), mesh_dim_names=("all",))
    names = {"moment": spread(over, [torch.distributed.tensor.Shard(0)], 2)}
    file = packed(world.encode(names, world.baseline({})))
    del names, over
    gc.collect()
    start()
    other = torch.distributed.device_mesh.init_device_mesh("cpu", (3, 2))
    resumed: dict[str, object] = {"moment": None}

    missing = world.restore(file, resumed, world.baseline(resumed))

    assert other.ndim == 2
    assert any("torch.mesh" in each for each in missing), missing
