"""Devices beside the CPU: what is copied there, and what becomes of tensors of a device that is not here.

There is no card where these tests run. `Card` stands for one: its streams do what they are given when somebody waits
for them, in the order that events say, and its memory is the host's. That PyTorch's own streams, events and pinned
memory keep what the documentation says of them can only be seen on a card: `benchmarks/gpu.sh` looks there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from detrain.adapters.torch import devices as of_devices  # noqa: E402
from detrain.adapters.torch.devices import TorchDevices  # noqa: E402
from detrain.adapters.torch.streams import GeneratorStream, TorchStreams  # noqa: E402
from detrain.base.errors import FrameworkUnsupported  # noqa: E402
from detrain.python.codec.graph_files import unpack  # noqa: E402
from detrain.python.inspect.object_graph import FORMAT, Graph  # noqa: E402
from detrain.store import LateArrays  # noqa: E402
from tests.adapters.cut_world import packed  # noqa: E402
from tests.adapters.torch_resume import World  # noqa: E402

BYTES = 1 << 17


class Card:
    """A device whose work is done when it is waited for."""

    def __init__(self, free: int = 1 << 30, peak: int = 0) -> None:
        self.free, self.peak, self.is_full = free, peak, False
        self.log: list[str] = []

    def storage(self, number: float) -> Any:
        """Return what looks like a storage there."""
        content = torch.full((BYTES,), int(number), dtype=torch.uint8)
        device = SimpleNamespace(type="cuda", index=0)
        return SimpleNamespace(
            is_cuda=True, nbytes=lambda: BYTES, device=device, cpu=content.clone().untyped_storage, content=content
        )

    def do(self, name: str, act: Callable[[], object]) -> None:
        self.log.append(name)
        act()


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()

    class Event:
        def __init__(self) -> None:
            self.is_reached = False

        def record(self, stream: object) -> None:
            card.do(f"event recorded on {stream}", lambda: setattr(self, "is_reached", True))

    class Stream:
        def __init__(self, _device: int, priority: int) -> None:
            assert priority == 5, "the lowest"
            self.waits: list[Any] = []

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 5, -5

        def wait_event(self, event: Any) -> None:
            self.waits.append(event)
            card.log.append("side stream waits")

        def synchronize(self) -> None:
            assert all(event.is_reached for event in self.waits)
            card.log.append("side stream is done")

    @contextmanager
    def on(_stream: object) -> Iterator[None]:
        card.log.append("side stream")
        yield

    class Empty:
        """A tensor without bytes, which is set to a storage and copied."""

        def set_(self, storage: Any) -> Any:
            if card.is_full:
                raise torch.OutOfMemoryError
            card.log.append("copied on the device")
            return storage.content

    host = torch.empty

    def empty(size: int, **kinds: Any) -> Any:
        if not size:
            return Empty()
        if kinds.pop("pin_memory", False):
            card.log.append("pinned")
        return host(size, **kinds)

    cuda = SimpleNamespace(
        Event=Event,
        Stream=Stream,
        stream=on,
        current_stream=lambda _device: "the program's",
        mem_get_info=lambda _device: (card.free, 1 << 40),
        memory_reserved=lambda _device: 0,
        max_memory_allocated=lambda _device: card.peak,
    )
    names = ("uint8", "no_grad", "inference_mode", "OutOfMemoryError")
    monkeypatch.setattr(
        of_devices, "torch", SimpleNamespace(cuda=cuda, empty=empty, **{name: getattr(torch, name) for name in names})
    )
    monkeypatch.setattr(of_devices, "has_stepped", lambda: True)
    return card


def test_a_storage_is_copied_on_its_device_and_comes_over_when_it_is_asked_for(card: Card) -> None:
    storage, held = card.storage(1), of_devices.Copies()

    with held.later():
        found = held.hold(storage)
    assert card.log == ["copied on the device", "event recorded on the program's"], "training waits for nothing else"
    storage.content.fill_(7)  # the next step

    arrays = LateArrays({"00000": found, "00001": np.zeros(3)})
    assert arrays.nbytes == BYTES + 24
    assert "pinned" not in card.log, "to know their size, none is fetched"
    assert arrays["00000"].tolist() == [1] * BYTES
    assert card.log[2:] == ["pinned", "side stream", "side stream waits", "side stream is done"]
    assert arrays["00000"] is arrays["00000"], "it is fetched once"


def test_elsewhere_its_bytes_come_over_at_once(card: Card) -> None:
    found = of_devices.Copies().hold(card.storage(2))

    assert found.tolist() == [2] * BYTES
    assert card.log == []


@pytest.mark.parametrize("why", ["no room beside the peak", "the device says that it is full", "no step was made", "it is small"])
def test_its_bytes_come_over_at_once(card: Card, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "no room beside the peak":
        card.free, card.peak = BYTES + 100, BYTES
    elif why == "the device says that it is full":
        card.is_full = True
    elif why == "no step was made":
        monkeypatch.setattr(of_devices, "has_stepped", lambda: False)
    else:
        monkeypatch.setattr(of_devices, "_SMALL_BYTES", BYTES + 1)
    held = of_devices.Copies()

    with held.later():
        found = held.hold(card.storage(3))

    assert isinstance(found, np.ndarray)
    assert found.tolist() == [3] * BYTES


def test_copies_take_no_more_than_the_program_leaves_free(card: Card) -> None:
    card.free = 3 * BYTES
    held = of_devices.Copies()

    with held.later():
        kinds = [type(held.hold(card.storage(number))) for number in range(4)]

    assert kinds == [of_devices.HeldBytes, of_devices.HeldBytes, np.ndarray, np.ndarray]


def test_a_peak_that_the_program_has_set_back_counts(card: Card) -> None:
    card.free, card.peak = 4 * BYTES, 4 * BYTES
    held = of_devices.Copies()
    with held.later():
        held.hold(card.storage(1))

    card.peak = 0
    with held.later():
        assert isinstance(held.hold(card.storage(1)), np.ndarray)


# Tensors of a device that is not here.


class Config(dict[str, Any]):
    """A dictionary with a class of its own."""


def _names() -> dict[str, Any]:
    weight = torch.nn.Parameter(torch.arange(4.0))
    return {
        "weight": weight,
        "view": weight.detach()[1:3],
        "device": torch.device("cpu"),
        "text": "cpu",
        "several": ["cpu", 3],
        "config": Config(device="cpu"),
        "choices": {"cpu", "cuda"},
        "table": {"cuda": 1, "cpu": "cpu"},
        "space": SimpleNamespace(cuda=True, device="cpu"),
        "generator": torch.Generator().manual_seed(4),
    }


def _as_on_a_card(file: bytes) -> bytes:
    """Return a state as it would have been taken of the same program on a card: the same, with other devices."""
    graph, arrays = msgspec.msgpack.decode(file)
    content = msgspec.msgpack.decode(graph)
    for node in content["nodes"]:
        if node[0] == "shared":
            node[1][1][2] = "cuda:0"
        elif node[0] == "torch.Generator":
            node[2] = [bytes(16), "cuda:0"]
        elif "." in node[0] or node[0] in ("list", "dict", "object"):
            text = msgspec.json.encode(node).replace(b'"cpu"]', b'"cuda:0"]').replace(b'["cpu",3]', b'["cuda:0",3]')
            node[:] = msgspec.json.decode(text)
    content["roots"]["text"] = "cuda"
    return msgspec.msgpack.encode((msgspec.msgpack.encode(content), arrays))


def test_what_was_on_a_card_goes_to_the_cpu_where_that_is_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    world, names = World(), _names()
    baseline = world.baseline(names)
    with torch.no_grad():
        names["weight"] += 1
    file = _as_on_a_card(packed(world.encode(names, baseline)))
    assert b"cuda:0" in file

    again = _names()
    weight, generator = again["weight"], again["generator"].get_state()
    world.devices.map_to_cpu()
    graph, arrays = msgspec.msgpack.decode(file)
    mapped = msgspec.msgpack.encode((world.devices.mapped(unpack(graph)).pack(), arrays))
    assert world.restore(mapped, again, world.baseline(again)) == []

    assert again["weight"] is weight
    assert weight.tolist() == [1, 2, 3, 4]
    assert again["view"].tolist() == [2, 3]
    assert again["view"].untyped_storage()._cdata == weight.untyped_storage()._cdata
    assert again["device"] == torch.device("cpu")
    assert (again["text"], again["several"], again["config"]) == ("cpu", ["cpu", 3], {"device": "cpu"})
    assert again["choices"] == {"cpu", "cuda"}
    assert again["table"] == {"cuda": 1, "cpu": "cpu"}
    assert vars(again["space"]) == {"cuda": True, "device": "cpu"}
    assert torch.equal(again["generator"].get_state(), generator), "a card's generator has no state that a CPU's could have"
    assert "a generator is left out" in capfd.readouterr().err


def test_only_where_it_is_wanted_is_anything_mapped() -> None:
    graph = Graph(FORMAT, [], {"a": "cuda"})
    assert TorchDevices().mapped(graph).roots == {"a": "cuda"}


def test_devices_that_are_not_here_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = TorchDevices()
    for name in ("cpu", "meta", "cuda:1", "cuda:0"):
        devices.note(name)
    assert devices.seen() == ["cuda:0", "cuda:1"]
    state = msgspec.json.encode({"devices": devices.seen()})

    assert devices.missing(b"{}") == []
    assert devices.missing(state) == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert devices.missing(state) == ["cuda:1"]
    devices.forget()
    assert devices.seen() == []


def test_a_generator_takes_its_own_state() -> None:
    generator = torch.Generator().manual_seed(3)
    state = GeneratorStream(generator).pack()
    expected = torch.rand(3, generator=generator)
    GeneratorStream(generator).unpack(state)
    assert torch.equal(torch.rand(3, generator=generator), expected)


# Other devices than CUDA's. None of them is here either.


def test_the_generator_of_an_apple_gpu_is_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a resumed run would draw other dropout masks there, and nothing would say so."""
    generator = torch.Generator().manual_seed(1)  # stands for the GPU's own
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    monkeypatch.setattr(torch.mps, "_get_default_mps_generator", lambda: generator)
    stream = TorchStreams().streams()["torch.mps"]

    packed = stream.pack()
    drawn = torch.rand(3, generator=generator)
    stream.unpack(packed)

    assert torch.rand(3, generator=generator).tolist() == drawn.tolist()
    assert "torch.mps" not in (monkeypatch.undo() or TorchStreams().streams())


def test_a_device_whose_generators_are_not_known_is_refused() -> None:
    devices = TorchDevices()
    for known in ("cpu", "meta", "cuda", "cuda:1", "mps:0", "xpu:3"):
        devices.note(known)
    assert devices.seen() == ["cuda", "cuda:1", "mps:0", "xpu:3"]

    with pytest.raises(FrameworkUnsupported, match=r"(?s)a tensor on 'hpu:0'.*cuda, mps, xpu"):
        devices.note("hpu:0")


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_tensors_of_another_device_that_is_not_here_go_on_on_the_cpu(kind: str) -> None:
    devices = TorchDevices()
    state = msgspec.json.encode({"devices": [f"{kind}:0"]})

    assert devices.missing(state) == [f"{kind}:0"]
    devices.map_to_cpu()
    assert devices.mapped(Graph(FORMAT, [], {"device": kind, "other": "mpsx"})).roots == {"device": "cpu", "other": "mpsx"}
