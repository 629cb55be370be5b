"""The names of a suspended frame that can still be read, found by a backward data-flow analysis of its bytecode.

A local that will be assigned before it is read (last iteration's gradients, a tape, a progress bar) is dead at the cut
and need not be captured. The analysis is conservative: closure cells count as live, an instruction in a `try` that can
raise may jump to the handler, a `with` may swallow an exception, and code that looks at its own namespace (`locals()`,
`eval`, ...) keeps every name alive.
"""

from __future__ import annotations

import bisect
import dis
import itertools
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Final

_LOADS: Final = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_BORROW", "DELETE_FAST"})
"""Deleting counts as reading: it fails if the name is not bound."""
_STORES: Final = frozenset({"STORE_FAST", "STORE_FAST_MAYBE_NULL"})
_NAME_LOADS: Final = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_NAME", "DELETE_GLOBAL"})
_CELLS: Final = frozenset({"LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLOSURE", "MAKE_CELL", "COPY_FREE_VARS"})
_GLOBALS: Final = _NAME_LOADS | {"STORE_GLOBAL"}
_NO_FALL_THROUGH: Final = frozenset(
    {
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
    }
)
_NEVER_RAISES: Final = frozenset(
    {"STORE_FAST", "STORE_FAST_STORE_FAST", "STORE_NAME", "POP_TOP", "LOAD_CONST", "COPY", "SWAP", "PUSH_NULL", "NOP"}
)
"""Instructions that cannot jump from a `try` to its handler: else `tape` would be live before `with ... as tape`."""
_BUILT_INS: Final = frozenset({"locals", "globals", "vars", "dir", "eval", "exec"})
_OF_FRAMES: Final = frozenset({"_getframe", "currentframe", "f_locals", "f_globals", "__dict__"})
_OF_TABLES: Final = frozenset({"eval", "query"})
"""Methods that look up the names in a text in the frame that calls them: `table.query("x > @limit")`."""
_LOOKS_AT_ITSELF: Final = _BUILT_INS | _OF_FRAMES | _OF_TABLES
_OF_AN_ARGUMENT: Final = frozenset({"vars", "dir"})
"""Those of these functions that look at their argument if they have one: `vars(args)`."""
_LEADS_TO_MODULES: Final = frozenset({"modules", "__main__", "import_module", "__import__"})
_PLAIN_LOADS: Final = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_NAMED: Final = _NAME_LOADS | {"IMPORT_NAME", "IMPORT_FROM"}
_BETWEEN: Final = frozenset({"PUSH_NULL", "PRECALL", "CACHE"})
_MOST_MODULES: Final = 1 << 14
_FAST: Final = "fast "
"""Prefix of the names of fast locals: in a module's code, the variable of an inlined comprehension is not the global
with the same name."""


@lru_cache(maxsize=_MOST_MODULES)
def live_names(code: CodeType, offset: int) -> frozenset[str]:
    """Return the names that may still be read in a frame of `code` that is suspended in the instruction at `offset`."""
    offsets, live = _flow(code)
    # The offset of a frame that waits for a call may lie in the inline cache after the call's instruction.
    at_cut = live[bisect.bisect_right(offsets, offset) - 1] if offset >= 0 else code.co_varnames + code.co_names
    names = {name.removeprefix(_FAST) for name in at_cut}
    names.update(code.co_cellvars, code.co_freevars)
    if _looks_at_itself(code):
        names.update(code.co_varnames, code.co_names)
    return frozenset(names)


@lru_cache(maxsize=_MOST_MODULES)
def names_read_by_functions(code: CodeType) -> frozenset[str]:
    """Return the global names that functions and classes defined in a module's code may read, write or delete."""
    names: set[str] = set()
    for inner in itertools.islice(codes_in(code), 1, None):
        names.update(i.argval for i in dis.get_instructions(inner) if i.opname in _GLOBALS)
        if _looks_at_itself(inner, code):
            names.update(code.co_names)
    return frozenset(names)


@lru_cache(maxsize=_MOST_MODULES)
def may_read_any_global(code: CodeType) -> bool:
    """Return whether a module's code may read globals under names that are not in its text:

    `globals()[f"best_{fold}"]`.
    """
    return any(_looks_at_itself(each, code) for each in codes_in(code))


@lru_cache(maxsize=_MOST_MODULES)
def _looks_at_itself(code: CodeType, module: CodeType | None = None) -> bool:
    """Return whether code may read names that are not in its text. `vars(args)` does not, if no module is at hand."""
    if not _LOOKS_AT_ITSELF & set(code.co_names):
        return False
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _BETWEEN]
    looks = [index for index in range(len(instructions)) if _is_look(instructions, index, code)]
    if not looks or any(instructions[index].argval not in _OF_AN_ARGUMENT for index in looks):
        return bool(looks)
    family = [each for root in (code, module) if root is not None for each in codes_in(root)]
    if any(map(_leads_to_modules, family)):
        return True
    imported = set().union(*map(_imported, family))
    for index in looks:
        given, call = [*instructions[index + 1 : index + 3], None, None][:2]
        is_of_argument = given is not None and given.opname in _PLAIN_LOADS and given.argval not in imported
        if not is_of_argument or call is None or call.opname != "CALL" or call.arg != 1:
            return True
    return False


def _leads_to_modules(code: CodeType) -> bool:
    """Return whether code may get module objects. `net.modules()` does not, as `sys.modules` is never called."""
    if not _LEADS_TO_MODULES & set(code.co_names):
        return False
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _BETWEEN]
    for each, following in itertools.pairwise([*instructions, None]):
        assert each is not None
        is_called = each.opname in _ATTRIBUTES and following is not None and following.opname == "CALL" and not following.arg
        if each.opname != "LOAD_CONST" and each.argval in _LEADS_TO_MODULES and not is_called:
            return True
    return False


def _is_look(instructions: list[dis.Instruction], index: int, code: CodeType) -> bool:
    """Return whether an instruction loads a function that looks at namespaces, not a namesake: `model.eval()`."""
    name, argument = instructions[index].opname, instructions[index].argval
    if name in _ATTRIBUTES:
        call = instructions[index + 1] if index + 1 < len(instructions) else None
        is_given = call is None or call.opname != "CALL" or call.arg != 0
        known = _OF_FRAMES | (_OF_TABLES if is_given else set()) | (_BUILT_INS if "builtins" in code.co_names else set())
        return argument in known
    return name in _NAMED and argument in _BUILT_INS | _OF_FRAMES


def _imported(code: CodeType) -> set[str]:
    """Return the names that imports in a code object bind."""
    names, is_importing = set(), False
    for each in dis.get_instructions(code):
        if is_importing and each.opname.startswith("STORE_"):
            names.add(str(each.argval))
            is_importing = False
        is_importing |= each.opname in ("IMPORT_NAME", "IMPORT_FROM")
    return names


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and those of the functions and classes in it, however deep."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


@lru_cache(maxsize=64)
def _flow(code: CodeType) -> tuple[list[int], list[frozenset[str]]]:
    """Return the offsets of the instructions, and the names that are live after each."""
    instructions = list(dis.get_instructions(code))
    position = {instruction.offset: index for index, instruction in enumerate(instructions)}
    following = successors(code, instructions, position)
    effects = [_effect(instruction) for instruction in instructions]
    live_in: list[frozenset[str]] = [frozenset()] * len(instructions)
    live_out: list[frozenset[str]] = [frozenset()] * len(instructions)
    changed = True
    while changed:
        changed = False
        for index in range(len(instructions) - 1, -1, -1):
            out = frozenset().union(*(live_in[successor] for successor in following[index]))
            used, defined = effects[index]
            before = used | (out - defined)
            if before != live_in[index] or out != live_out[index]:
                live_in[index], live_out[index], changed = before, out, True
    return [instruction.offset for instruction in instructions], live_out


def successors(code: CodeType, instructions: list[dis.Instruction], position: dict[int, int]) -> list[list[int]]:
    """Return, for each instruction of a code object, the instructions that may run next, as places in the list.
    `position` has the places by offset.
    """
    jumps = set(dis.hasjrel) | set(dis.hasjabs)
    handlers = getattr(dis.Bytecode(code), "exception_entries", ())
    result: list[list[int]] = []
    for index, instruction in enumerate(instructions):
        following = [] if instruction.opname in _NO_FALL_THROUGH or index + 1 == len(instructions) else [index + 1]
        if instruction.opcode in jumps and instruction.argval in position:
            following.append(position[instruction.argval])
        for entry in handlers if instruction.opname not in _NEVER_RAISES else ():
            if entry.start <= instruction.offset < entry.end and entry.target in position:
                following.append(position[entry.target])
        result.append(following)
    return result


def _effect(instruction: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """Return (names that one instruction reads before any write, names that it writes)."""
    name, value = instruction.opname, instruction.argval
    if name in _LOADS:
        return _fast(value), frozenset()
    if name in _STORES:
        return frozenset(), _fast(value)
    if name in _NAME_LOADS:
        return frozenset({value}), frozenset()
    if name == "STORE_NAME":
        return frozenset(), frozenset({value})
    if name in ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"):
        return _fast(*value), frozenset()
    if name == "STORE_FAST_STORE_FAST":
        return frozenset(), _fast(*value)
    if name == "STORE_FAST_LOAD_FAST":
        stored, loaded = value
        return _fast(loaded) - _fast(stored), _fast(stored)
    if name in _CELLS and isinstance(value, str):
        return frozenset({value}), frozenset()
    return frozenset(), frozenset()


def _fast(*names: str) -> frozenset[str]:
    return frozenset(_FAST + name for name in names)
