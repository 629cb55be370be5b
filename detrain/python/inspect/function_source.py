"""Code of functions that the loop has made: a resumed run finds it in the source by its content, not by its line.

A file of detrain holds no code, only a name and a digest. The code itself comes from the source of the program, or of a
library that it has imported, compiled anew.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Final

import msgspec
import xxhash

from detrain.base.compiled_sources import source_of
from detrain.python.inspect.frames import has_user_code, is_user_file, outwards
from detrain.python.inspect.names import is_user_module

_SUSPENDED: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class FunctionSource(msgspec.Struct, frozen=True):
    """A code object from the program's source."""

    code: CodeType
    key: tuple[str, str, str]
    """(module, qualified name, digest): the arguments of `find`."""
    around: tuple[CodeType, ...]
    """The code objects that contain it, outermost first."""


_Index = dict[tuple[str, str], FunctionSource]
_compiled: dict[str, CodeType] = {}
_indices: dict[str, _Index] = {}


def remember(code: CodeType) -> None:
    """Keep the code of a program file that runs with probes: compiling the file would give other code."""
    _compiled[code.co_filename] = code
    _indices.clear()


def source(function: FunctionType) -> FunctionSource | None:
    """Return the code of a function if the source of its module contains it; None if the program made it otherwise."""
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    is_of_module = module is not None and vars(module) is function.__globals__
    return find(str(name), function.__code__.co_qualname, _digest(function.__code__)) if is_of_module else None


def find(module_name: str, name: str, digest: str) -> FunctionSource | None:
    """Return the code of a function of an imported module, or None if none has this qualified name and digest. In a
    library, only functions made by another function are found, and none in Python's own: a file may name any.
    """
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    is_made = "<locals>" in name and module_name.partition(".")[0] not in sys.stdlib_module_names
    if not isinstance(file, str) or not (is_made or is_user_module(module)):
        return None
    if module_name not in _indices:
        _indices[module_name] = _index(module_name, file)
    return _indices[module_name].get((name, digest))


def holds_state(value: object) -> bool:
    """Return whether a function's closure is state: the program's, or a library's that rebinds it (`nonlocal`)."""
    return has_user_code(value) or (isinstance(value, FunctionType) and _binds_anew(value.__code__))


@lru_cache(maxsize=4096)
def _binds_anew(code: CodeType) -> bool:
    """Return whether a code object, or one inside of it, binds a variable of the function around it."""
    if not code.co_freevars:
        return False
    binds = {each.argval for each in dis.get_instructions(code) if each.opname in ("STORE_DEREF", "DELETE_DEREF")}
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return not binds.isdisjoint(code.co_freevars) or any(map(_binds_anew, inner))


def may_go_on(source: FunctionSource, variable: str) -> bool:
    """Return whether a closure variable may belong to a call that still runs out of sight of the program's frames in
    this thread: in a generator, in another thread, or in a library."""
    owner = next((code for code in reversed(source.around) if variable in code.co_cellvars), None)
    if owner is None or owner.co_flags & _SUSPENDED:
        return True
    return any(_is_like(frame.f_code, owner) for frame in _frames(is_here=not is_user_file(owner.co_filename)))


def _is_like(code: CodeType, other: CodeType) -> bool:
    return code.co_qualname == other.co_qualname and code.co_filename == other.co_filename


def _frames(*, is_here: bool) -> Iterator[FrameType]:
    """Yield the frames of the other threads, and with `is_here` of this one, too."""
    for thread, innermost in sys._current_frames().items():
        if is_here or thread != threading.get_ident():
            yield from outwards(innermost)


def _index(module_name: str, file: str) -> _Index:
    whole = _compiled.get(file)
    if whole is None:
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            whole = compile(source_of(file), file, "exec", dont_inherit=True)
    found: _Index = {}
    waiting: list[tuple[CodeType, ...]] = [] if whole is None else [(whole,)]
    while waiting:
        around = waiting.pop()
        for code in [each for each in around[-1].co_consts if isinstance(each, CodeType)]:
            name, digest = code.co_qualname, _digest(code)
            found.setdefault((name, digest), FunctionSource(code, (module_name, name, digest), around))
            waiting.append((*around, code))
    return found


@lru_cache(maxsize=4096)
def _digest(code: CodeType) -> str:
    """Return the digest of a code object's content, without its file and lines."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_stacksize)
    names = (code.co_name, code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
    content = (counts, names, code.co_code, code.co_exceptiontable, tuple(map(_constant, code.co_consts)))
    return xxhash.xxh3_128_hexdigest(repr(content).encode("utf-8", "surrogatepass"))


def _constant(value: object) -> object:
    """Return a key of a constant of a code object: differs for other constants, and is the same in each process."""
    if isinstance(value, CodeType):
        return "code", _digest(value)
    if isinstance(value, tuple):
        return "tuple", tuple(map(_constant, value))
    if isinstance(value, frozenset):
        return "frozenset", tuple(sorted(repr(_constant(item)) for item in value))
    return type(value).__name__, repr(value)
