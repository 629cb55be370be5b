"""Which names code of the program reads that is still to run: behind its frames' places, and in functions so named.

A name says not of which object: what is found may be of another one.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable
from types import CodeType, FrameType

from detrain.base.compiled_sources import by_file, source_of
from detrain.python.inspect.held import walk
from detrain.python.inspect.live_names import codes_in, successors


def names_ahead(frames: Iterable[FrameType], files: Iterable[str]) -> frozenset[str]:
    """Return the names of globals, attributes and methods that code behind the frames' places reads, or a function of
    the files that such a name may lead to. Python calls methods such as `__getitem__` by itself: they count.
    """
    found = set().union(*(_behind(frame.f_code, frame.f_lasti) for frame in frames))
    functions = [each for file in files for each in _functions(file)]
    while True:
        reached = [each for each in functions if each.co_name in found or _is_called_by_python(each.co_name)]
        functions = [each for each in functions if each not in reached]
        if not reached:
            return frozenset(found)
        found.update(*(code.co_names for code in reached))


def _behind(code: CodeType, offset: int) -> set[str]:
    instructions = list(dis.get_instructions(code))
    position = {instruction.offset: index for index, instruction in enumerate(instructions)}
    following = successors(code, instructions, position)
    first = max((index for at, index in position.items() if at <= offset), default=0)
    found: set[str] = set()
    for index in walk([first], following.__getitem__, lambda index: index):
        value = instructions[index].argval
        if isinstance(value, CodeType):
            found.update(*(each.co_names for each in codes_in(value)))
        elif isinstance(value, str) and value in code.co_names:
            found.add(value)
    return found


@by_file
def _functions(file: str) -> list[CodeType]:
    try:
        whole = compile(source_of(file), file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return []
    return list(codes_in(whole))[1:]


def _is_called_by_python(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name != "__init__"
