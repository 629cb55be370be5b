"""The instruction groups of SASSIFI and NVBitFI, for ops: they sort the outputs of ops into groups.

A group stands for the instructions that its ops mostly run. SASSIFI: Hari et al., ISPASS 2017, and
`scripts/common_params.py` of NVlabs/sassifi; NVBitFI: Tsai et al., DSN 2021, and `scripts/params.py` of NVlabs/nvbitfi.
The tables of ops are ours. Groups GPR, CC, PR and STORE overlap the others; each output has exactly one *own* group
(`own_group`), so that the own groups divide a step.
"""

from __future__ import annotations

from enum import IntEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from detrain.faults.sites import Site, Use, op_and_output


class Group(IntEnum):
    """SASSIFI's groups, by its numbers."""

    GPR = 0  # any value but a bool
    CC = 1  # values that control flow reads
    PR = 2  # any bool
    STORE_OP = 3  # values written into memory that outlives the op
    IADD_IMUL_OP = 4
    FADD_FMUL_OP = 5
    DADD_DMUL_OP = 6
    MAD_OP = 7
    FFMA_OP = 8
    DFMA_OP = 9
    SETP_OP = 10
    LDS_OP = 11  # moves inside of the step
    LD_OP = 12  # reads of memory that outlives the step
    MISC_OP = 13

    @property
    def label(self) -> str:
        """The group's name in tables."""
        return self.name.removesuffix("_OP")


class NvbitfiGroup(IntEnum):
    """NVBitFI's groups, by its numbers."""

    FP64 = 0
    FP32 = 1
    LD = 2
    PR = 3
    NODEST = 4
    OTHERS = 5
    GPPR = 6
    GP = 7


OWN: Final = tuple(Group(number) for number in range(Group.STORE_OP, Group.MISC_OP + 1))
"""Groups that an output can have as its own: together they are all outputs, each once."""

_HALF: Final = ("float16", "bfloat16")
_FLOATS: Final = ("float32", *_HALF, "float8_e5m2", "float8_e4m3fn")

_STORES: Final = (
    *("Assign*", "Resource*Apply*", "ResourceScatter*", "ResourceStridedSliceAssign", "TensorScatter*", "TensorStridedSliceUpdate"),
    *("Scatter*", "TensorListSetItem", "TensorListPushBack*", "InplaceUpdate"),
    *("copy", "index_put", "_index_put_impl", "scatter*", "index_copy", "index_add", "index_fill", "masked_scatter", "put"),
)
_ADDS: Final = (
    *("Add", "AddV2", "AddN", "AccumulateNV2", "Sub", "Mul", "MulNoNan", "Neg", "BiasAdd*", "Sum", "Mean", "Prod", "Cumsum"),
    *("Cumprod", "Square", "SquaredDifference", "L2Loss", "AvgPool*", "Segment*", "UnsortedSegment*", "SparseSegment*"),
    *("EuclideanNorm",),
    *("add", "sub", "rsub", "mul", "neg", "sum", "mean", "prod", "cumsum", "cumprod", "square", "nansum", "*avg_pool*"),
    *("add_any", "reduce_sum", "reduce_prod", "reduce_window_sum", "integer_pow", "cumlogsumexp", "psum*"),  # JAX's
    *("mse_loss*", "embedding_dense_backward", "dot", "var", "var_mean", "norm", "linalg_vector_norm", "segment_reduce"),
)
_INTEGER_ADDS: Final = (*("Range", "FloorDiv", "FloorMod", "Mod"), *("floor_divide", "remainder", "fmod", "arange"))
"""Further ops of this kind, for integers only."""
_MADS: Final = (
    *("Conv2D*", "Conv3D*", "DepthwiseConv2dNative*", "MatMul", "BatchMatMul*", "SparseMatMul", "Einsum", "XlaDot*", "XlaConv*"),
    *("SparseTensorDenseMatMul", "_Fused*", "FusedBatchNorm*", "LRN*", "Resize*", "*LSTM*", "*RNN*", "*GRU*", "Quantized*"),
    *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "addbmm", "addr", "ger", "outer", "matmul", "linear", "_int_mm"),
    *("_addmm_activation", "*convolution*", "conv1d", "conv2d", "conv3d", "*batch_norm*", "*layer_norm*", "*group_norm*"),
    *("*instance_norm*", "*rms_norm*", "*attention*", "addcmul", "addcdiv", "lerp", "*lstm*", "*gru*", "*rnn*", "upsample*"),
    *("dot_general", "conv_general_dilated", "ragged_dot*", "scaled_matmul", "scaled_dot"),  # JAX's
    *("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad", "einsum", "_upsample*"),
)
_COMPARES: Final = (
    *("Greater*", "Less*", "Equal", "NotEqual", "ApproximateEqual", "Logical*"),
    *("gt", "ge", "lt", "le", "eq", "ne", "isclose", "logical_*"),
)
_MOVES: Final = (
    *("Gather*", "Slice", "StridedSlice*", "Split*", "Pack", "Unpack", "Concat*", "Transpose", "ConjugateTranspose", "Tile"),
    *("BroadcastTo", "Pad*", "MirrorPad*", "Reverse*", "Roll", "SpaceToBatch*", "BatchToSpace*", "SpaceToDepth", "DepthToSpace"),
    *("TensorListGetItem", "TensorListStack", "TensorListGather", "TensorListConcat*", "TensorListFromTensor", "DynamicStitch"),
    *("DynamicPartition", "ParallelDynamicStitch", "MatrixDiag*", "Diag*", "ExtractImagePatches", "OneHot"),
    *("index_select", "gather", "cat", "stack", "clone", "contiguous", "expand_copy", "permute_copy", "index", "take", "flip"),
    *("roll", "repeat", "repeat_interleave", "*pad*d", "constant_pad_nd", "slice_backward", "select_backward", "unfold_backward"),
    *("im2col", "col2im", "tril", "triu", "one_hot", "masked_select", "slice_scatter", "select_scatter", "_to_copy_layout"),
    *("transpose", "concatenate", "dynamic_slice", "dynamic_update_slice", "slice", "rev", "select_n", "pad"),  # JAX's
    *("split_with_sizes_copy", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "diag_embed", "diagonal_backward"),
)
_LOADS: Final = (
    *("ReadVariableOp", "ResourceGather*", "IteratorGetNext*", "LookupTableFind*", "OptionalGetValue", "ParseExample*"),
    *("load", "embedding", "embedding_renorm", "_embedding_bag*"),
)
_GRADIENT: Final = ("_backward_data", "_backward")


def own_group(op: str, dtype: str, use: Use = "") -> Group:
    """Return the own group of an output, by its op (TensorFlow's type or PyTorch's name), its dtype and its use."""
    if use == "predicate":
        return Group.CC
    name = _plain(op)
    if _is_one_of(name, _STORES):
        return Group.STORE_OP
    if _is_one_of(name, _COMPARES):
        return Group.SETP_OP
    if dtype == "bool":
        return Group.LDS_OP if _is_one_of(name, _MOVES) else Group.LD_OP if _is_one_of(name, _LOADS) else Group.MISC_OP
    if _is_one_of(name, _LOADS):
        return Group.LD_OP
    if _is_one_of(name, _MADS):
        return Group.FFMA_OP if dtype in _FLOATS else Group.DFMA_OP if dtype == "float64" else Group.MAD_OP
    if _is_one_of(name, _ADDS):
        return Group.FADD_FMUL_OP if dtype in _FLOATS else Group.DADD_DMUL_OP if dtype == "float64" else Group.IADD_IMUL_OP
    if _is_one_of(name, _INTEGER_ADDS) and dtype not in (*_FLOATS, "float64"):
        return Group.IADD_IMUL_OP
    return Group.LDS_OP if _is_one_of(name, _MOVES) else Group.MISC_OP


def groups_of(op: str, dtype: str, use: Use = "") -> frozenset[Group]:
    """Return all groups of an output of an op."""
    own = own_group(op, dtype, use)
    found = {own}
    if dtype == "bool":
        found.add(Group.PR)
    elif own is not Group.CC and not (own is Group.STORE_OP and op.startswith(("Assign", "Resource"))):  # which have no output
        found.add(Group.GPR)
    if use == "store":
        found.add(Group.STORE_OP)
    return frozenset(found)


def nvbitfi_groups(op: str, dtype: str, use: Use = "") -> frozenset[NvbitfiGroup]:
    """Return NVBitFI's groups of an output: one of the first six, and the unions that contain it.

    Narrow floats are in `others`, as HMMA is in NVBitFI.
    """
    own = own_group(op, dtype, use)
    if own in (Group.STORE_OP, Group.CC):
        return frozenset({NvbitfiGroup.NODEST})
    if dtype == "bool":
        return frozenset({NvbitfiGroup.PR, NvbitfiGroup.GPPR})
    if own in (Group.DADD_DMUL_OP, Group.DFMA_OP):
        first = NvbitfiGroup.FP64
    elif own in (Group.FADD_FMUL_OP, Group.FFMA_OP) and dtype == "float32":
        first = NvbitfiGroup.FP32
    elif own in (Group.LDS_OP, Group.LD_OP):
        first = NvbitfiGroup.LD
    else:
        first = NvbitfiGroup.OTHERS
    return frozenset({first, NvbitfiGroup.GPPR, NvbitfiGroup.GP})


def use_of(site: Site) -> Use:
    """Return the use of the output at a site, as far as the site, or its op, tells it.

    Values that PyTorch's optimizers write in place are stored, and so are the moving statistics of a normalisation.
    """
    if site.use:
        return site.use
    if site.op in _DECIDING:
        return "predicate"
    is_in_place = site.op.endswith("_") and not site.op.startswith("__")
    if is_in_place and (site.stage == "optimizer" or site.op.startswith(("_foreach_", "_fused_"))):
        return "store"
    is_statistic = (
        site.op in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
        and op_and_output(site.name)[1] >= _RESULTS_OF_NORM
    )
    return "store" if is_statistic else ""


_DECIDING: Final = ("If", "StatelessIf", "Case", "StatelessCase", "While", "_local_scalar_dense")
"""Ops whose sites are the values that decide branches and loops, or that are handed over to Python."""
_RESULTS_OF_NORM: Final = 3
"""The number of results of PyTorch's batch normalisation; its outputs behind these are the statistics that it wrote."""


def _plain(op: str) -> str:
    """Return an op's name without parts that only mean in place, of many tensors, a copy, or a gradient."""
    if op[:1].isupper() or op.startswith("_Fused"):  # TensorFlow's
        return op
    name = op.removeprefix("_foreach_")
    if name.endswith("_") and not name.startswith("__"):
        name = name[:-1]
    for ending in _GRADIENT:
        if name.endswith(ending) and not _is_one_of(name, (*_MADS, *_MOVES, *_ADDS)):
            return name.removesuffix(ending)
    return name


@lru_cache(maxsize=8192)
def _is_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


SASSIFI_MODELS: Final = ("FLIP:1", "ADJ:2", "RANDOM", "ZERO", "N32_FLIP:1", "N32_ADJ:2", "N32_RANDOM", "N32_ZERO")
"""SASSIFI's bit-flip models 0 to 7, by our names."""


def allowed_models(group: Group | None, mode: str = "IOV") -> tuple[int, ...]:
    """Return the numbers of SASSIFI's bit-flip models for a group, in a mode; None: for memory."""
    if mode in ("IOA", "RF"):
        return (0, 1)
    if group in (Group.CC, Group.PR):
        return (0,)
    return (0, 4) if group is Group.SETP_OP else tuple(range(len(SASSIFI_MODELS)))


def group_named(text: str) -> Group:
    """Return a group by its name or number. Raises ValueError."""
    if text.isdecimal():
        return Group(int(text))
    for group in Group:
        if text.upper() in (group.name, group.label):
            return group
    raise ValueError(text)
