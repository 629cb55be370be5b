"""What names of the program lead to, a step at a time: from frames and modules into collections, objects, functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType, FunctionType, MethodType
from typing import Any, Final

from detrain.python.inspect.frames import is_module_frame, live_locals, names_of
from detrain.python.inspect.names import own_attributes
from detrain.python.inspect.user_modules import user_modules

_MOST_INSIDE: Final = 64
"""In collections of how many values things are looked for."""
_PLAIN: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})


def namespaces(frames: Sequence[FrameType]) -> Iterator[dict[str, object]]:
    """Yield what names are bound to: of the program's frames, the outermost first, then of its other modules."""
    running = set()
    for frame in frames:
        if is_module_frame(frame):
            running.add(id(frame.f_globals))
        live, shared = live_locals(frame), frame.f_code.co_cellvars  # which functions may read that are called later
        yield live if not shared else {name: each for name, each in names_of(frame).items() if name in live or name in shared}
    for module in list(user_modules().values()):
        if id(vars(module)) not in running:
            yield dict(vars(module))


def inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a collection, an object or a function holds, with the step that leads there."""
    if isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # it is empty
                continue
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, partial):
        yield from (("func", value.func), *inside(value.args), *inside(value.keywords))
    elif isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        first = itertools.islice(items, _MOST_INSIDE)
        yield from [(str(key), each) for key, each in first if type(each) not in _PLAIN and isinstance(key, int | str)]
    else:
        yield from list((own_attributes(value) or {}).items())
