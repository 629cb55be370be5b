"""IOA, a wrong address: a value lands at another index of the tensor that its op writes, one or two address bits away.

The element at the intended address becomes 0, as if it had never been written. The index is flat and row-major. An
address behind the tensor's end is *outside*: nothing here can tell what a device does there, so no trial is made of it,
and its share is counted exactly.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import dtype_named, little_endian
from detrain.faults.experiment import Injection
from detrain.faults.models import Rng
from detrain.faults.sites import Site

ADDRESS_MODELS: Final = {"FLIP:1": 1, "ADJ:2": 2}
"""SASSIFI's models of addresses: the number of adjacent address bits that are flipped."""
_DRAWS: Final = 10_000


def masks(elements: int, bits: int) -> list[int]:
    """Return the masks that can change an address in a tensor of so many elements: adjacent bits within its width."""
    width = max(elements - 1, 0).bit_length()
    return [((1 << bits) - 1) << first for first in range(width - bits + 1)]


def inside(elements: int, bits: int) -> tuple[int, int]:
    """Return the number of pairs of an address and a mask whose new address is in the tensor, and of all pairs."""
    each = masks(elements, bits)
    return sum(_staying(elements, mask) for mask in each), elements * len(each)


def _staying(elements: int, mask: int) -> int:
    """Return how many addresses below `elements` stay below it: pairs i and i ^ mask, by blocks of the higher bits."""
    low = mask & -mask
    block = 1 << mask.bit_length()
    whole, rest = divmod(elements, block)
    if mask == low:  # halves of a block change places
        return whole * block + 2 * max(rest - low, 0)
    # Quarters change places: the first with the last, the second with the third.
    return whole * block + 2 * (max(rest - 3 * low, 0) + min(max(rest - 2 * low, 0), low))


def draw_address(site: Site, model: str, worker: int, rng: Rng) -> Injection:
    """Draw an element of a site's output and a mask, uniformly from the pairs that stay inside of the tensor.

    Raises FaultInvalid for a model that is none of SASSIFI's two, and if no address stays inside.
    """
    target = site.operands["output"]
    bits = ADDRESS_MODELS.get(model)
    if bits is None:
        raise FaultInvalid(f"{model} is no model of addresses", f"give one of {', '.join(ADDRESS_MODELS)}")
    if not 0 <= worker < site.replicas:
        raise FaultInvalid(f"there is no replica {worker}: the step runs on {site.replicas}, numbered from 0")
    elements = target.elements
    if min(target.shape, default=1) < 1 or not inside(elements, bits)[0]:
        raise FaultInvalid(
            f"no address in a tensor of shape {list(target.shape)} has {bits} bits that can be flipped", "choose a larger site"
        )
    each = masks(elements, bits)
    for _ in range(_DRAWS):  # at least a quarter stays inside
        meant = int(rng.integers(elements))
        landed = meant ^ each[int(rng.integers(len(each)))]
        if landed < elements:
            return misplaced(site, meant, landed, worker)
    raise FaultInvalid(f"no address inside of {site.name!r} in {_DRAWS} draws")


def misplaced(site: Site, meant: int, landed: int, worker: int) -> Injection:
    """Return a fault by which the value for one index lands at another; its intended place is 0."""
    target = site.operands["output"]
    width = dtype_named(target.dtype).unsigned
    everything = int(width.type(~width.type(0)))
    positions = np.array(sorted((meant, landed)), np.int64)
    keep = np.array([everything if position == landed else 0 for position in positions], width)
    return Injection(
        site=site.name,
        signature=site.signature,
        operand="output",
        index=target.index,
        worker=worker,
        dtype=target.dtype,
        shape=target.shape,
        positions=positions.astype("<i8").tobytes(),
        sources=np.full(2, meant, "<i8").tobytes(),
        keep=little_endian(keep.astype(width)),
        flip=np.zeros(2, width).tobytes(),
    )
