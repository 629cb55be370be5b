"""Op groups: each output has one that is its own, and the tables are those of the page of definitions."""

from __future__ import annotations

import pytest

from detrain.faults.models import model_named
from detrain.faults.population.groups import (
    OWN,
    SASSIFI_MODELS,
    Group,
    NvbitfiGroup,
    allowed_models,
    group_named,
    groups_of,
    nvbitfi_groups,
    own_group,
    use_of,
)
from tests.population import made

# own group: ops of TensorFlow, then of PyTorch; op@dtype where it is not float32
PAGE = """
STORE     AssignAddVariableOp ResourceApplyAdam ResourceScatterAdd TensorScatterUpdate ScatterNd TensorListSetItem
STORE     copy_ index_put_ scatter_add
IADD_IMUL AddV2@int32 Mul@int64 Range@int32 FloorMod@int32 Sum@int32 add@int64 mul@int32 sum@int8 _foreach_add_@int64
FADD_FMUL AddV2 AddN Sub Mul Neg BiasAdd BiasAddGrad Sum Mean Prod Cumsum Square SquaredDifference L2Loss AvgPool AvgPoolGrad
FADD_FMUL UnsortedSegmentSum AddV2@bfloat16 add sub mul neg sum mean cumsum avg_pool2d avg_pool2d_backward add_ _foreach_add_
FADD_FMUL _foreach_mul_ mul_@float16
DADD_DMUL AddV2@float64 Mean@float64 add_@float64
MAD       MatMul@int32 QuantizedConv2D@int32 _int_mm@int32
FFMA      Conv2D Conv2DBackpropInput Conv3DBackpropFilterV2 DepthwiseConv2dNative MatMul BatchMatMulV2 Einsum FusedBatchNormV3
FFMA      FusedBatchNormGradV3 _FusedConv2D LRN ResizeBilinear CudnnRNNV3 MatMul@float16 mm addmm bmm convolution
FFMA      convolution_backward native_batch_norm native_layer_norm_backward addcmul_ lerp _foreach_lerp_ _fused_adamw_
FFMA      _scaled_dot_product_flash_attention_for_cpu addcdiv_
DFMA      MatMul@float64 Conv2D@float64 mm@float64
SETP      Greater@bool LessEqual@bool Equal@bool NotEqual@bool ApproximateEqual@bool LogicalAnd@bool gt@bool eq@bool isclose@bool
SETP      logical_not@bool
LDS       GatherV2 Slice StridedSlice StridedSliceGrad SplitV Pack Unpack ConcatV2 Transpose Tile BroadcastTo PadV2 ReverseV2 Roll
LDS       SpaceToBatchND TensorListStack index_select gather cat stack constant_pad_nd slice_backward
LD        ReadVariableOp ResourceGather IteratorGetNext LookupTableFindV2@int64 embedding
MISC      Relu ReluGrad MaxPool MaxPoolGrad Maximum Exp Log Sqrt Rsqrt RealDiv Pow Tanh Sigmoid Softmax SelectV2 Cast ArgMax@int64
MISC      TopKV2 RandomUniform relu threshold_backward max_pool2d_with_indices div tanh_backward _softmax _softmax_backward_data
MISC      bernoulli_ _foreach_sqrt IsNan@bool Any@bool isnan@bool where
"""
CASES = [
    (op.partition("@")[0], op.partition("@")[2] or "float32", line.split()[0])
    for line in PAGE.strip().splitlines()
    for op in line.split()[1:]
]


@pytest.mark.parametrize(("op", "dtype", "group"), CASES)
def test_an_output_has_the_group_of_the_page(op: str, dtype: str, group: str) -> None:
    assert own_group(op, dtype).label == group
    assert own_group(op, dtype) in OWN


@pytest.mark.parametrize(("op", "dtype", "group"), CASES)
def test_a_value_is_in_one_of_the_two_register_files(op: str, dtype: str, group: str) -> None:
    found = groups_of(op, dtype)

    has_value = not op.startswith(("Assign", "ResourceApply", "ResourceScatter"))
    assert (Group.GPR in found, Group.PR in found) == (has_value and dtype != "bool", dtype == "bool")
    assert len(found & set(OWN)) == 1


def test_what_an_optimizer_writes_in_place_is_stored_too() -> None:
    moved = made.site("add_", (3,), stage="optimizer")
    relu = made.site("relu_", (3,))

    assert groups_of(moved.op, "float32", use_of(moved)) == {Group.GPR, Group.FADD_FMUL_OP, Group.STORE_OP}
    assert groups_of(relu.op, "float32", use_of(relu)) == {Group.GPR, Group.MISC_OP}
    assert groups_of("If", "bool", "predicate") == {Group.CC, Group.PR}


@pytest.mark.parametrize(
    ("op", "dtype", "first"),
    [
        ("MatMul", "float32", NvbitfiGroup.FP32),
        ("MatMul", "float16", NvbitfiGroup.OTHERS),
        ("AddV2", "float64", NvbitfiGroup.FP64),
        ("AddV2", "int32", NvbitfiGroup.OTHERS),
        ("GatherV2", "float32", NvbitfiGroup.LD),
        ("embedding", "float32", NvbitfiGroup.LD),
        ("Exp", "float32", NvbitfiGroup.OTHERS),
        ("Greater", "bool", NvbitfiGroup.PR),
        ("ResourceApplyAdam", "float32", NvbitfiGroup.NODEST),
    ],
)
def test_nvbitfis_unions_are_its_own(op: str, dtype: str, first: NvbitfiGroup) -> None:
    found = nvbitfi_groups(op, dtype)

    assert found & set(list(NvbitfiGroup)[:6]) == {first}
    assert (NvbitfiGroup.GPPR in found) == (first is not NvbitfiGroup.NODEST)
    assert (NvbitfiGroup.GP in found) == (first not in (NvbitfiGroup.NODEST, NvbitfiGroup.PR))


def test_the_models_of_a_group_are_sassifis() -> None:
    assert allowed_models(Group.CC) == allowed_models(Group.PR) == (0,)
    assert allowed_models(Group.SETP_OP) == (0, 4)
    assert allowed_models(Group.GPR, "IOA") == allowed_models(Group.GPR, "RF") == (0, 1)
    assert allowed_models(Group.GPR) == tuple(range(8))
    assert [model_named(name).name for name in SASSIFI_MODELS] == list(SASSIFI_MODELS)


@pytest.mark.parametrize(("text", "group"), [("FFMA", Group.FFMA_OP), ("ffma_op", Group.FFMA_OP), ("3", Group.STORE_OP)])
def test_a_group_is_named_by_name_or_number(text: str, group: Group) -> None:
    assert group_named(text) is group
