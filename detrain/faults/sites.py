"""Sites: the places in a program's compiled step where a value can be corrupted, and the patterns that select them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

import msgspec

from detrain.base.errors import SiteUnknown
from detrain.faults.experiment import BITS

Stage = Literal["forward", "backward", "optimizer", "memory"]
Role = Literal["", "grad_in", "grad_wt"]
STAGES: Final[tuple[Stage, ...]] = ("forward", "backward", "optimizer", "memory")
MEMORY: Final = "memory/"
"""Prefix of the names of sites in memory: variables that outlive a step, hit before the step's body runs."""
Use = Literal["", "store", "predicate"]
"""The use of an output, if it decides the group: stored in memory that outlives the step, or read by control flow."""
MemoryKind = Literal["weight", "slot", "statistic", "stream"]
"""The kind of a variable in memory: trained; kept by an optimizer; any other variable; the state of random numbers."""

CONTRACTIONS: Final = frozenset(
    {
        "Conv2D",
        "Conv2DBackpropInput",
        "Conv2DBackpropFilter",
        "Conv3D",
        "Conv3DBackpropInputV2",
        "Conv3DBackpropFilterV2",
        "DepthwiseConv2dNative",
        "DepthwiseConv2dNativeBackpropInput",
        "DepthwiseConv2dNativeBackpropFilter",
        "MatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Einsum",
        *("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm", "mv", "addmv"),  # PyTorch's
        *("conv1d", "conv2d", "conv3d", "linear", "matmul"),  # its ops in inference mode, which does not split them
        *("dot_general", "conv_general_dilated"),  # JAX's
    }
)
"""Ops that multiply an input by a weight: the work of an accelerator's arrays, and the artifact's targets."""

_PLACES: Final = {
    "Conv2DBackpropInput": (2, 1),
    "Conv2DBackpropFilter": (0, 2),
    "Conv3DBackpropInputV2": (2, 1),
    "Conv3DBackpropFilterV2": (0, 2),
    "DepthwiseConv2dNativeBackpropInput": (2, 1),
    "DepthwiseConv2dNativeBackpropFilter": (0, 2),
    "convolution_backward": (1, 2),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "addmv": (1, 2),
}

INDEX_PLACES: Final = {
    **{"GatherV2": 1, "GatherNd": 1, "ResourceGather": 1, "ResourceGatherNd": 1},
    **{"embedding": 1, "index_select": 2, "gather": 2},  # PyTorch's
}
"""Ops that read at indices, and the number of the input that holds these."""


def places_of(op: str) -> tuple[int, int]:
    """Return the numbers of the inputs that are a contraction's first and second factor: mostly input and weight."""
    return _PLACES.get(op, (0, 1))


def output_name(name: str, number: int) -> str:
    """Return the name of the site of an op's output."""
    return f"{name}:{number}" if number else name


def op_and_output(site: str) -> tuple[str, int]:
    """Return the name of a site's op, and the number of the op's output at the site."""
    op, _, number = site.rpartition(":")
    return (op, int(number)) if op and number.isdecimal() else (site, 0)


class OperandShape(msgspec.Struct, frozen=True):
    """One tensor at a site."""

    index: int
    """Its number among the op's inputs (or outputs)."""
    shape: tuple[int, ...]
    """Axes as in the framework (TensorFlow: NHWC, HWIO; PyTorch: NCHW, OIHW); per replica. A dimension that was not
    seen is -1."""
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements; 0 if a dimension is unknown."""
        count = 1
        for size in self.shape:
            count *= max(size, 0)
        return count


class Access(msgspec.Struct, frozen=True):
    """The first access of a step to a variable's elements: the number of elements for each kind of access."""

    read: int
    """They are read first, or their new values depend on them (`w -= g`); or the access is unknown."""
    overwritten: int
    """They are overwritten before anyone reads them: a fault in them before the step is masked."""
    untouched: int
    """The step neither reads nor writes them."""


class Site(msgspec.Struct, frozen=True):
    """An op of a step, or one output of an op that has several.

    Its name is the same in every run of the program and on every replica; also in every trace, unless a trace makes
    other ops.
    """

    name: str
    """FUNCTION/STAGE/LAYER/OP (PyTorch: without a function), with #k for the k-th op of that name in the layer, and :n
    for the op's n-th output behind the first."""
    layer: str
    """Path of the Keras layer that made the op, or else of TensorFlow's name scope; in PyTorch the name by which the
    module or optimizer is reached."""
    op: str
    """The op's type; for a site in memory, the variable's `MemoryKind`."""
    stage: Stage
    role: Role
    """Of a backward op: the gradient of the layer's input, or of its weight."""
    operands: dict[str, OperandShape]
    """`output`, and `input` and `weight` if they can be distinguished; also `index` for an op that reads at indices."""
    executions: int
    """How often it ran in the step that was watched."""
    is_alive: bool
    """True if a value that the step returns or stores depends on it."""
    replicas: int = 1
    attributes: dict[str, list[int] | str | bool] = {}
    """Strides, padding, dilations, data format, transpositions: they decide which outputs an operand reaches."""
    signature: str = ""
    """Digest of the ops that its inputs come from. It distinguishes ops that have one name in several traces."""
    use: Use = ""
    """The use of the output, if the op's name does not tell it."""
    access: Access | None = None
    """Of a site in memory: the first access of the watched step; None if it is unknown."""

    @property
    def label(self) -> str:
        """The artifact's name for the site: the layer's own name (or the op's, without a layer), with `_grad_in` or
        `_grad_wt` behind it. For a variable in memory, its kind.
        """
        if self.stage == "memory":
            return self.op
        leaf = self.layer.rpartition("/")[2] or self.op
        return f"{leaf}_{self.role}" if self.role else leaf

    @property
    def is_contraction(self) -> bool:
        """True for a convolution or a matrix product, forward or backward."""
        return self.op in CONTRACTIONS and "input" in self.operands

    @property
    def is_turned(self) -> bool:
        """True if its weight is the first factor, as in gradients of products with a transposed matrix."""
        return "weight" in self.operands and self.operands["weight"].index == places_of(self.op)[0]

    def fits(self, pattern: str) -> bool:
        """Return whether a shell-style pattern fits the name, the layer's path or its last part, or the label."""
        parts = (self.layer, self.layer.rpartition("/")[2], self.layer.rpartition(".")[2])
        names = (self.name, *parts, self.label, self.label.rpartition(".")[2])
        return any(fnmatchcase(name, pattern) for name in names)


def memory_site(name: str, kind: MemoryKind, shape: tuple[int, ...], dtype: str, access: Access | None = None) -> Site:
    """Return the site of a variable in memory."""
    operand = OperandShape(0, shape, dtype)
    return Site(
        name=f"{MEMORY}{name}",
        layer=name,
        op=kind,
        stage="memory",
        role="",
        operands={"output": operand},
        executions=1,
        is_alive=access is None or not operand.elements or access.overwritten < operand.elements,
        access=access,
    )


def _of_stage(sites: Iterable[Site], pattern: str | None, stage: str | None) -> list[Site]:
    """Return the sites of a stage; without a stage, those of ops, unless the pattern names memory."""
    if stage is None and not (pattern or "").startswith(MEMORY):
        return [site for site in sites if site.stage != "memory"]
    return [site for site in sites if stage in (None, site.stage)]


def matching(sites: list[Site], pattern: str | None, stage: str | None) -> list[Site]:
    """Return the sites, dead ones too, that fit a pattern and are of a stage; None for either admits all.

    Raises SiteUnknown if there are none.
    """
    fitting = [site for site in _of_stage(sites, pattern, stage) if site.fits(pattern or "*")]
    if not fitting:
        what = " and ".join([*([f"fits {pattern!r}"] if pattern else []), *([f"is of the stage {stage}"] if stage else [])])
        todo = "`detrain sites --all PROGRAM` lists them" if what else "give another step with --at: the first may not train"
        raise SiteUnknown(f"none of {len(sites)} sites {what or 'is an op: the step runs none'}", todo)
    return fitting


def select(
    sites: Sequence[Site],
    pattern: str,
    *,
    stage: str | None = None,
    operand: str = "output",
    role: str | None = None,
) -> list[Site]:
    """Return the live sites that fit a pattern and have the operand.

    If contractions fit, other ops of the same layers (bias, activation) are left out, unless the pattern names an op
    (has a `/`). Raises SiteUnknown, with the nearest names, if no site is left.
    """
    known = sites if stage is not None else _of_stage(sites, pattern, None)
    fitting = [site for site in known if site.fits(pattern)]
    if not fitting:
        near = _nearest(pattern, sites)
        raise SiteUnknown(
            f"no site is named {pattern!r}" + (f"; the nearest are {', '.join(near)}" if near else ""),
            f"`detrain sites PROGRAM` lists the sites of the program's step: values of {', '.join(BITS)}, no others",
        )
    chosen = [
        site
        for site in fitting
        if (stage is None or site.stage == stage) and operand in site.operands and (role is None or site.role == role)
    ]
    if "/" not in pattern and any(site.is_contraction for site in chosen):
        chosen = [site for site in chosen if site.is_contraction]
    if not chosen:
        have = sorted({f"{site.stage} {'/'.join(site.operands)}" for site in fitting})
        raise SiteUnknown(
            f"{pattern!r} names no site in the {stage or 'whole'} step with {operand!r}; it has {', '.join(have[:4])}",
            "choose another --stage, or a model for another operand",
        )
    alive = [site for site in chosen if site.is_alive and site.executions]
    if not alive:
        raise SiteUnknown(
            f"site {chosen[0].name!r} is dead: nothing that the step returns or stores depends on it",
            "a fault there cannot matter; choose another site",
        )
    return alive


def _nearest(pattern: str, sites: Iterable[Site]) -> list[str]:
    """Return up to three labels near a pattern, or else names: the user may have meant a part of a name (a scope, an
    op).
    """
    wanted = pattern.strip("*").rpartition("/")[2].lower()
    words: dict[str, str] = {}
    for site in sites:
        words[site.label.lower()] = site.label
        for part in site.name.lower().split("/"):
            words.setdefault(part, site.name)
    near = [word for word in words if wanted and wanted in word] or difflib.get_close_matches(wanted, words, 3, 0.4)
    return list(dict.fromkeys(words[word] for word in near))[:3]


def site_named(sites: Sequence[Site], name: str, signature: str = "") -> Site:
    """Return the site with a name and, if it is known, a signature. Raises SiteUnknown."""
    of_name = [site for site in sites if site.name == name]
    for site in of_name:
        if signature in ("", site.signature):
            return site
    if of_name:
        raise SiteUnknown(
            f"{name!r} is another op in this step than the one that the fault is of",
            "the function was traced with other Python values; list the step's own sites with `detrain sites --at`",
        )
    raise SiteUnknown(f"there is no site {name!r}", "the fault is of another program, or of other arguments")
