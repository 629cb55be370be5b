"""The inputs and outputs of PyTorch's ops: outputs by the op's schema, operands by name, and the dtypes that may have
faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

import torch

from detrain.faults.experiment import BITS
from detrain.faults.sites import CONTRACTIONS, INDEX_PLACES, Role, places_of

_NAMES: Final = {getattr(torch, name): name for name in BITS if not name.endswith("int4")}
"""The dtypes whose values PyTorch can hold in a tensor: of those of four bits it has the names alone."""
INTEGERS: Final = {dtype: getattr(torch, BITS[name].__name__) for dtype, name in _NAMES.items()}
"""The integer dtype that holds the bit patterns of each dtype."""
_NO_ARITHMETIC: Final = frozenset(
    {
        *("clone", "contiguous", "copy", "copy_", "detach", "detach_", "lift", "lift_fresh", "set_", "resize_", "alias"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "ones", "ones_like", "new_ones"),
        *("zeros", "zeros_like", "new_zeros", "zero_", "full", "full_like", "new_full", "scalar_tensor", "arange"),
        *(
            "_unsafe_view",
            "_reshape_copy",
            "_local_scalar_dense",
            "inductor_lookup_seed",
            "is_pinned",
            "_pin_memory",
            "is_same_size",
        ),
    }
)
"""Ops that compute nothing: they hand values on, or write the same values each time."""
LOAD: Final = "load"
"""The word in names of sites where an op reads a tensor that outlives the step."""
_BY_FORM: Final = ("empty*", "zeros*", "ones*", "full*", "new_*", "rand*_like", "is_*", "_pin_memory", "resize_")
"""Ops that need the form of an argument, and not its values."""
LITERALS: Final = ("lift", "lift_fresh")
"""Ops by which a value of the program's text comes in."""
DECIDES: Final = "_local_scalar_dense"
"""The op that hands a value over to Python, which may branch on it (`.item()`, `bool()`)."""
COPY: Final = "copy_"
"""The op that stores the output of another op."""
_ALSO_WRITTEN: Final = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), ("running_mean", "running_var")
)
"""Arguments that an op writes although its schema does not say so."""
BACKWARD_OF_CONVOLUTION: Final = "convolution_backward"
_ITS_OPERANDS: Final[tuple[tuple[Role, Mapping[str, int]], ...]] = (
    ("grad_in", {"input": 0, "weight": 2}),
    ("grad_wt", {"input": 1, "weight": 0}),
    ("", {}),
)
"""For the three outputs of a convolution's gradient (dX, dW and the gradient of the bias): the role, and the operands'
places. dY is place 0, X place 1, W place 2.
"""


@lru_cache(maxsize=4096)
def name_of(func: Any) -> str:
    """Return the name of an op, as it stands in the names of sites: without `aten::` and without the overload."""
    space, _, name = str(func._schema.name).partition("::")
    return name if space in ("aten", "prims") else f"{space}.{name}"


@lru_cache(maxsize=4096)
def is_pure(func: Any) -> bool:
    """Return whether an op writes into none of its arguments, so that it can run once more."""
    return not func._schema.is_mutable


@lru_cache(maxsize=4096)
def _written(func: Any) -> tuple[tuple[int, ...], tuple[tuple[int, str], ...]]:
    """Return the places of results that are new or written tensors, and the place and name of each written argument
    that is no result.
    """
    schema = func._schema
    results = tuple(place for place, each in enumerate(schema.returns) if each.alias_info is None or each.alias_info.is_write)
    returned = {name for each in schema.returns if each.alias_info is not None for name in each.alias_info.after_set}
    also = _ALSO_WRITTEN.get(name_of(func), ())
    arguments = tuple(
        (place, each.name)
        for place, each in enumerate(schema.arguments)
        if each.name in also
        or (each.alias_info is not None and each.alias_info.is_write and not returned & set(each.alias_info.after_set))
    )
    return results, arguments


@lru_cache(maxsize=4096)
def computes(func: Any) -> bool:
    """Return whether an op computes values: it is no view, and not in `_NO_ARITHMETIC`."""
    is_view = torch.Tag.inplace_view in func.tags  # as `squeeze_` is
    return not is_view and name_of(func) not in _NO_ARITHMETIC and any(_written(func))


def tensors_in(values: Any) -> Iterator[Any]:
    """Yield the tensors among arguments or results, also those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def outputs_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> list[Any]:
    """Return the outputs of an op: its results that are no views, then other tensors that it has written; None for an
    output that was not wanted, or that lies in an argument's memory although the schema does not say so.
    """
    results, arguments = _written(func)
    values = result if isinstance(result, list | tuple) and len(func._schema.returns) != 1 else [result]
    found = [values[place] for place in results if place < len(values)]
    found += [args[place] if place < len(args) else kwargs.get(name) for place, name in arguments]
    flat = [part for value in found for part in (value if isinstance(value, list | tuple) else [value])]
    if not is_pure(func) or arguments:
        return flat
    given = {id(each.untyped_storage()) for each in tensors_in((*args, *kwargs.values())) if dtype_of(each)}
    return [None if dtype_of(each) and id(each.untyped_storage()) in given else each for each in flat]


def dtype_of(tensor: Any) -> str:
    """Return the dtype of a plain tensor that can have a fault; empty for any other value."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not is_plain or tensor.is_quantized or tensor.is_nested or tensor.device.type == "meta" or tensor.is_neg():
        return ""
    return _NAMES.get(tensor.dtype, "")


@lru_cache(maxsize=4096)
def reads(func: Any) -> bool:
    """Return whether an op reads the values of its arguments: it is no view, and needs more than their form."""
    is_view = torch.Tag.inplace_view in func.tags
    return not is_view and any(_written(func)) and not any(fnmatchcase(name_of(func), each) for each in _BY_FORM)


def read_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that an op reads: its arguments except those that it writes, each once, in order."""
    if not reads(func):
        return []
    written = _written_places(func)
    schema = func._schema.arguments
    names = [each.name for each in schema]
    positional = [value for place, value in enumerate(args) if place not in written]
    by_name = [value for name, value in kwargs.items() if names.index(name) not in written]
    stored = {id(each) for each in tensors_in(value for place, value in enumerate(args) if place in written)}
    return [each for each in {id(each): each for each in tensors_in((*positional, *by_name))}.values() if id(each) not in stored]


@lru_cache(maxsize=4096)
def _written_places(func: Any) -> frozenset[int]:
    schema = func._schema
    return frozenset(
        place for place, each in enumerate(schema.arguments) if each.alias_info is not None and each.alias_info.is_write
    )


def with_another(values: Any, old: Any, new: Any) -> Any:
    """Return arguments with one tensor exchanged for another, also in lists."""
    if values is old:
        return new
    if isinstance(values, list | tuple):
        return type(values)(with_another(each, old, new) for each in values)
    return {name: with_another(each, old, new) for name, each in values.items()} if isinstance(values, dict) else values


def operands_of(func: Any, args: Sequence[Any], number: int, role: Role, *, is_turned: bool) -> dict[str, tuple[int, Any]]:
    """Return the operands (input and weight, or index) of one output of an op, if they are known, with their places
    among its arguments. `is_turned`: its weight comes before its input.
    """
    name = name_of(func)
    if name in INDEX_PLACES and not number and is_pure(func) and dtype_of(args[INDEX_PLACES[name]]):
        return {"index": (INDEX_PLACES[name], args[INDEX_PLACES[name]])}
    if name not in CONTRACTIONS or not is_pure(func):
        return {}
    places: Mapping[str, int]
    if name == BACKWARD_OF_CONVOLUTION:
        places = _ITS_OPERANDS[number][1] if number < len(_ITS_OPERANDS) else {}
    elif number:
        return {}
    else:
        places = dict(zip(("input", "weight"), places_of(name)[:: -1 if is_turned else 1], strict=True))
    return {operand: (place, args[place]) for operand, place in places.items() if place < len(args) and dtype_of(args[place])}


def role_of_output(func: Any, number: int) -> Role:
    """Return the role of an output of a convolution's gradient, which has several; empty for other ops."""
    if name_of(func) == BACKWARD_OF_CONVOLUTION and number < len(_ITS_OPERANDS):
        return _ITS_OPERANDS[number][0]
    return ""


_ATTRIBUTES: Final = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


_WHOLE: Final = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
"""Convolutions that PyTorch does not split into other ops, each with the number of its axes."""


def _as_list(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)


def attributes_of(func: Any, args: Sequence[Any]) -> dict[str, list[int] | str | bool]:
    """Return the arguments of a convolution that determine which outputs an operand reaches."""
    found: dict[str, list[int] | str | bool] = {}
    if name_of(func) in _WHOLE:  # in inference mode
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
        if isinstance(given.get("padding", 0), str):
            return found  # only the op knows the size of the padding
        axes = _WHOLE[name_of(func)]
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1)):
            value = list(_as_list(given.get(name, usual)))
            found[name] = value * axes if len(value) == 1 else value
        return found | {"groups": _as_list(given.get("groups", 1)), "transposed": False}
    if name_of(func) in ("convolution", BACKWARD_OF_CONVOLUTION):
        for place, each in enumerate(func._schema.arguments):
            if each.name in _ATTRIBUTES and place < len(args):
                value = args[place]
                found[each.name] = value if isinstance(value, bool) else [value] if isinstance(value, int) else list(value)
    return found
