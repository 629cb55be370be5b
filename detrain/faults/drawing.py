"""Drawing: from a site and a model to the numbers for the compiled step, on the host, before the run."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from detrain.base.errors import FaultInvalid
from detrain.faults.bits import Positions, dtype_named, little_endian
from detrain.faults.experiment import Injection
from detrain.faults.isca2023_csv import ArtifactFault, plan_of
from detrain.faults.limits import ChannelsFirst, Convolution, ConvPass, LinearOp, MatMul, limited_outputs
from detrain.faults.models import FaultModel
from detrain.faults.plan import Kind, Operand, Plan
from detrain.faults.sites import Site

_DRAWS: Final = 100
"""The most draws of a limited fault, or of one of several faults at once, until it hits usable elements."""


def draw_injection(site: Site, model: FaultModel, worker: int, rng: np.random.Generator, at_once: int = 1) -> Injection:
    """Draw a fault of a model at a site, or several `at_once`, each in other elements.

    Raises FaultInvalid if the model, or so many faults, do not fit the site.
    """
    if at_once > 1:
        return _together(site, model, worker, rng, at_once)
    operand = _operand(site, model.operand)
    for _ in range(_DRAWS if model.is_limited else 1):
        plan = model.plan(operand.shape, dtype_named(operand.dtype), rng)
        limited = _limited(site, model.operand, plan.positions, rng) if model.is_limited else None
        if limited is None or len(limited):
            return injection(site, plan, model.operand, worker, limited)
    raise FaultInvalid(
        f"no output of {site.name!r} reads what {model.name} has hit in {_DRAWS} draws",
        "choose another site or a model without _16",
    )


def at_element(fault: Injection, element: str) -> Injection:
    """Return a fault of one element, moved to the element with the given index on each axis of the operand: `0,3,1,1`.
    `*` for an axis hits all elements along it alike: `*,3,1,1` hits a neuron in each example of a batch.

    Raises FaultInvalid for an element outside of the operand, and for a fault of several elements or of copied values.
    """
    if len(fault.array("positions")) != 1 or fault.limited or fault.array("sources")[0] != fault.array("positions")[0]:
        raise FaultInvalid(
            f"--element {element} of a model that draws several, or where they come from itself",
            "give a model of one: FLIP, ADJ, RANDOM, BIT:30, SET:1e18",
        )
    words = [word.strip() for word in element.split(",")]
    shape = list(fault.shape)
    fits = len(words) == len(shape) and all(word == "*" or word.isdecimal() for word in words)
    if not fits or any(word != "*" and int(word) >= size for word, size in zip(words, shape, strict=True)):
        raise FaultInvalid(
            f"--element {element} is none of the {fault.operand} of {fault.site!r}, which is {shape}",
            "give an index from 0 for each axis, or * for all along it",
        )
    along = [np.arange(size) if word == "*" else np.array([int(word)]) for word, size in zip(words, shape, strict=True)]
    positions = np.ravel_multi_index(np.ix_(*along), fault.shape).reshape(-1).astype(np.int64)
    same = {name: little_endian(np.repeat(fault.array(name), len(positions))) for name in ("keep", "flip")}
    return msgspec.structs.replace(fault, positions=little_endian(positions), sources=little_endian(positions), **same)


def _together(site: Site, model: FaultModel, worker: int, rng: np.random.Generator, count: int) -> Injection:
    """Return several faults as one: each is drawn again until it hits no element of those before it."""
    parts: list[Injection] = []
    taken: set[int] = set()
    for _ in range(count):
        for _ in range(_DRAWS):
            one = draw_injection(site, model, worker, rng)
            hit = one.array("positions").tolist()
            if taken.isdisjoint(hit):
                break
        else:
            raise FaultInvalid(
                f"{count} faults of {model.name} at once do not fit the {one.elements} elements of {site.name!r}",
                "give a smaller number, or choose larger sites",
            )
        parts.append(one)
        taken.update(hit)
    arrays = {name: np.concatenate([part.array(name) for part in parts]) for name in ("positions", "sources", "keep", "flip")}
    order = np.argsort(arrays["positions"])
    changed = {name: little_endian(array[order]) for name, array in arrays.items()}
    if model.is_limited:
        changed["limited"] = little_endian(np.unique(np.concatenate([part.array("limited") for part in parts])))
    return msgspec.structs.replace(parts[0], **changed)


def _limited(site: Site, operand: Operand, positions: Positions, rng: np.random.Generator) -> Positions:
    """Draw the outputs that see a fault of an operand; empty if there are none."""
    op, factor = linear_op(site), _factor(site, operand)
    if not isinstance(op, ChannelsFirst):
        return limited_outputs(op, factor, positions, rng)
    return op.to_first(Operand.OUTPUT, limited_outputs(op.of_last, factor, op.to_last(factor, positions), rng))


def artifact_injection(site: Site, fault: ArtifactFault, *, takes_nearest: bool) -> Injection:
    """Return the fault of a file of the artifact, at the given site."""
    op = linear_op(site)
    last = op.of_last if isinstance(op, ChannelsFirst) else op
    if not isinstance(last, Convolution):
        raise FaultInvalid(f"{site.name!r} is no convolution, as the artifact's targets are", "choose a site with --site")
    plan = plan_of(fault, last, dtype_named(_operand(site, fault.operand).dtype), takes_nearest=takes_nearest)
    if isinstance(op, ChannelsFirst):
        plan = op.moved(plan, fault.operand)
    return injection(site, plan, fault.operand, fault.worker)


def injection(site: Site, plan: Plan, operand: Operand, worker: int, limited: Positions | None = None) -> Injection:
    """Return a plan as the numbers for the compiled step.

    Raises FaultInvalid for a position outside of the operand, or an unknown replica.
    """
    target = _operand(site, operand)
    if not 0 <= worker < site.replicas:
        raise FaultInvalid(
            f"there is no replica {worker}: the step runs on {site.replicas}, numbered from 0", "give another --worker"
        )
    plan.check(target.elements)
    width = dtype_named(target.dtype).unsigned
    everything = width.type(~width.type(0))
    count = len(plan.positions)
    keep, flip = np.full(count, everything), np.zeros(count, width)
    match plan.kind:
        case Kind.XOR:
            flip = plan.operands.astype(width)
        case Kind.SET:
            keep, flip = np.zeros(count, width), plan.operands.astype(width)
        case Kind.AND:
            keep = plan.operands.astype(width)
        case Kind.OR:
            keep, flip = ~plan.operands.astype(width), plan.operands.astype(width)
    return Injection(
        site=site.name,
        signature=site.signature,
        operand=operand.value,
        index=target.index,
        worker=worker,
        dtype=target.dtype,
        shape=target.shape,
        positions=little_endian(plan.positions),
        sources=little_endian(plan.operands if plan.kind is Kind.COPY else plan.positions),
        keep=little_endian(keep),
        flip=little_endian(flip),
        limited=b"" if limited is None else little_endian(limited),
        outputs=0 if limited is None else site.operands["output"].elements,
    )


def linear_op(site: Site) -> LinearOp | ChannelsFirst:
    """Return the linear operation at a site.

    Raises FaultInvalid for any other op, or an unknown layout.
    """
    shapes = {_factor(site, Operand(name)).value: operand.shape for name, operand in site.operands.items()}
    attributes = site.attributes
    if site.op in _CONVOLUTIONS:
        stage, place = _CONVOLUTIONS[site.op]
        layout = str(attributes.get("data_format", "NHWC"))
        if not layout.endswith("C"):
            raise FaultInvalid(
                f"{site.name!r} has its channels not last ({layout})", "of compiled ones only channels-last convolutions are known"
            )
        x, kernel, y = (shapes[name] for name in place)
        padding = str(attributes["padding"])
        pads = _numbers(attributes.get("explicit_paddings", []))
        return Convolution.of(
            stage,
            x=x,
            kernel=kernel,
            y=y,
            strides=_numbers(attributes["strides"])[1:-1],
            dilations=_numbers(attributes["dilations"])[1:-1],
            padding=list(zip(pads[2:-2:2], pads[3:-2:2], strict=True)) if padding == "EXPLICIT" else padding,
        )
    if site.op in ("convolution", "convolution_backward", "conv1d", "conv2d", "conv3d"):
        return _channels_first(site, shapes)
    if site.op == "linear":
        return MatMul(shapes["input"], shapes["weight"], False, True)
    if site.op in _PRODUCTS and "layout" not in attributes:
        return MatMul(
            shapes["input"],
            shapes["weight"],
            bool(attributes.get("transpose_a") or attributes.get("adj_x")),
            bool(attributes.get("transpose_b") or attributes.get("adj_y")),
        )
    raise FaultInvalid(f"which outputs of {site.op} read an element is not known", "choose a convolution or matrix product")


def _channels_first(site: Site, shapes: dict[str, tuple[int, ...]]) -> ChannelsFirst:
    """Return the op at a site of PyTorch's as a convolution, or as a part of its gradient."""
    stage = ConvPass(site.role or "forward")
    of_y, of_kernel = {
        ConvPass.FORWARD: ("output", "weight"),
        ConvPass.GRAD_IN: ("input", "weight"),
        ConvPass.GRAD_WT: ("weight", "output"),
    }[stage]
    of_x = ({"input", "weight", "output"} - {of_y, of_kernel}).pop()
    attributes = site.attributes
    if attributes.get("transposed") or attributes.get("groups") != [1] or shapes.keys() != {"input", "weight", "output"}:
        raise FaultInvalid(
            f"which outputs of {site.name!r} read an element is not known: it is transposed, or has groups",
            "choose another site, or a model without _16",
        )
    return ChannelsFirst.of(
        stage,
        x=shapes[of_x],
        kernel=shapes[of_kernel],
        y=shapes[of_y],
        strides=_numbers(attributes["stride"]),
        dilations=_numbers(attributes["dilation"]),
        padding=_numbers(attributes["padding"]),
    )


def _factor(site: Site, operand: Operand) -> Operand:
    """Return the factor of the op that an operand is: the input is the first, the weight the second, unless they are
    exchanged.
    """
    if not site.is_turned or operand is Operand.OUTPUT:
        return operand
    return Operand.WEIGHT if operand is Operand.INPUT else Operand.INPUT


_PRODUCTS: Final = ("MatMul", "BatchMatMulV2", "BatchMatMulV3", "mm", "addmm", "bmm", "baddbmm", "dot_general")
_CONVOLUTIONS: Final = {
    "Conv2D": (ConvPass.FORWARD, ("input", "weight", "output")),
    "Conv2DBackpropInput": (ConvPass.GRAD_IN, ("output", "weight", "input")),
    "Conv2DBackpropFilter": (ConvPass.GRAD_WT, ("input", "output", "weight")),
    "conv_general_dilated": (ConvPass.FORWARD, ("input", "weight", "output")),
    "Conv3D": (ConvPass.FORWARD, ("input", "weight", "output")),
    "Conv3DBackpropInputV2": (ConvPass.GRAD_IN, ("output", "weight", "input")),
    "Conv3DBackpropFilterV2": (ConvPass.GRAD_WT, ("input", "output", "weight")),
}
"""The stage of each op, and its operands that hold X, the kernel and Y."""


_LACKS: Final = {Operand.INDEX: "gathers nothing by indices"}


def _operand(site: Site, operand: Operand) -> Any:
    target = site.operands.get(operand.value)
    if target is None:
        raise FaultInvalid(
            f"{site.name!r} has no {operand.value}: it {_LACKS.get(operand, 'is no convolution or matrix product')}",
            "choose another model or site",
        )
    if min(target.shape, default=0) < 0:
        raise FaultInvalid(f"the shape of the {operand.value} of {site.name!r} is not known", "choose another site")
    return target


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(int(number) for number in value) if isinstance(value, list) else ()
