"""A sampler that is not known is watched as it draws: what it says may then follow from what it held as it began, and
from nothing else.

That is so where its draws behind the first move none of the streams that bodies draw from, and all that it leads to is
at a cut what it was. A resumed process has it draw again, and compares.
"""

from __future__ import annotations

import collections
import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
import xxhash

from detrain.python.inspect.names import is_own_class, own_attributes
from detrain.python.inspect.user_modules import is_hidden

_SCALARS: Final = (type(None), bool, int, float, complex, str, bytes, range, np.generic, torch.dtype, torch.device, torch.Size)
_BY_NAME: Final = (type, types.ModuleType, types.BuiltinFunctionType)
_CONTAINERS: Final = (list, tuple, set, frozenset, collections.deque)
_MOST: Final = 100_000
_MOST_BYTES: Final = 1 << 26


class Watch:
    """What is seen of a sampler as it draws."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._before: str | None = None
        self._left: list[bytes] = []
        self._stirs = False
        self._digest = xxhash.xxh3_128()

    def draw(self, source: Iterator[Any], read: Callable[[], list[bytes]], *, is_first: bool) -> Any:
        """Return what the sampler's iterator hands out next. `read` reads the streams: three of the process, and those
        that the sampler has to itself unless bodies move them, too.
        """
        streams = read()
        if is_first:
            self._before = leads_to(self._sampler)
        self._stirs |= not is_first and streams[3:] != self._left
        index = next(source)
        after = read()
        self._stirs |= not is_first and streams[:3] != after[:3]
        self._left = after[3:]
        self._digest.update(repr(index).encode())
        return index

    @property
    def drawn(self) -> str:
        """A digest of all that was drawn."""
        return self._digest.hexdigest()

    def is_closed(self) -> bool:
        """Return whether all that the sampler has drawn follows from what it held as it began."""
        return not self._stirs and self._before is not None and self._before == leads_to(self._sampler)


def leads_to(sampler: Any) -> str | None:
    """Return a digest of all that an object's attributes and the code of its classes lead to; None where that cannot be
    told. Generators of PyTorch count by themselves."""
    state, seen, left = xxhash.xxh3_128(), set[int](), [sampler]
    read = 0
    while left:
        item = left.pop()
        cls = type(item)
        state.update(cls.__name__.encode())
        if isinstance(item, _SCALARS):
            state.update(repr(item).encode("utf-8", "surrogatepass"))
            continue
        if id(item) in seen or isinstance(item, torch.Generator):
            continue
        seen.add(id(item))
        content = _content(item)
        read += 0 if content is None else content.nbytes
        if content is not None:
            state.update(f"{content.dtype}{content.shape}".encode())
            state.update(np.ascontiguousarray(content).data)
            continue
        parts = _parts(item)
        if parts is None or len(seen) > _MOST or read > _MOST_BYTES:
            return None
        state.update(str(len(parts)).encode())
        left += parts
    return state.hexdigest()


def _content(item: Any) -> np.ndarray[Any, Any] | None:
    if type(item) is np.ndarray and not item.dtype.hasobject and item.nbytes <= _MOST_BYTES:
        return item
    is_small = isinstance(item, torch.Tensor) and item.layout is torch.strided and item.nbytes <= _MOST_BYTES
    return item.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy() if is_small else None


def _parts(item: Any) -> list[Any] | None:
    """Return what an object leads to, None for one of a kind that is not known."""
    cls = type(item)
    if cls in (dict, collections.OrderedDict, collections.defaultdict):
        return [*item.keys(), *item.values()]
    if cls in _CONTAINERS:
        return list(item) if cls not in (set, frozenset) else sorted(map(repr, item))
    if isinstance(item, _BY_NAME):
        return [item.__name__]
    if isinstance(item, types.FunctionType):
        return _read_by(item)
    if isinstance(item, types.MethodType):
        return [item.__self__, item.__func__]
    if isinstance(item, functools.partial):
        return [item.func, item.args, item.keywords]
    own = own_attributes(item)
    is_torch = cls.__module__.startswith("torch.utils.data.")
    if own is None or not (is_torch or is_own_class(cls)):
        return None
    functions = [each for base in cls.__mro__ if is_own_class(base) for each in vars(base).values()]
    return [own, *(each for each in functions if isinstance(each, types.FunctionType))]


def _read_by(function: types.FunctionType) -> list[Any]:
    """Return what a function reads besides its arguments: defaults, closure, globals."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_bound(cell)]
    named = [function.__globals__[name] for name in _globals_of(function.__code__) if name in function.__globals__]
    return [function.__qualname__, function.__defaults__, function.__kwdefaults__, *cells, *named]


def _is_bound(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading it is the test
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=1 << 10)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    return tuple(sorted({name for name in _names(code) if not is_hidden(name)}))


def _names(code: types.CodeType) -> Iterator[str]:
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_GLOBAL":
            yield each.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
