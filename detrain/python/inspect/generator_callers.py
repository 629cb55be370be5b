"""Training loops in generators: a resumed run does not yield again what the first run had, so nobody must keep count of
that.
"""

from __future__ import annotations

import ast
import inspect
from types import FrameType, GeneratorType

from detrain.instrument.loop_positions import SourceFile, position, read_source
from detrain.python.inspect.frames import is_user_file, names_of

COUNTED = "how much was drawn from"
"""How the names of these losses begin. Without them the run would go on wrong."""


def counted_draws(frame: FrameType) -> list[str]:
    """Name the generators that a loop trains in, where more than the values that it has yielded depends on their
    number.

    It is so for all that stands between the generator and the statement that draws from it (`enumerate`, `zip`, a
    progress bar, `list`), and for a `for` around `next`: their places have no names. A `for` over the generator itself
    has no place of its own.
    """
    found = []
    inner: FrameType | None = frame
    while inner is not None:
        outer = inner.f_back
        is_generator = bool(inner.f_code.co_flags & inspect.CO_GENERATOR) and is_user_file(inner.f_code.co_filename)
        if is_generator and outer is not None and not _draws_uncounted(inner, outer):
            found.append(f"{COUNTED} {inner.f_code.co_name}(), which trains")
        inner = outer
    return found


def _draws_uncounted(generator: FrameType, frame: FrameType) -> bool:
    source = read_source(frame.f_code.co_filename) if is_user_file(frame.f_code.co_filename) else None
    if source is None:
        return False
    place = position(frame)
    loops = (node for node in ast.walk(source.tree) if isinstance(node, ast.For))
    drawing = next((loop for loop in loops if (loop.lineno, loop.col_offset) == place.start), None)
    if drawing is not None:
        return _is_itself(drawing.iter, generator, frame)
    around = source.loops_around(place.line, place.column)
    return _is_next(source, frame) and not any(isinstance(loop, ast.For) for loop in around)


def _is_next(source: SourceFile, frame: FrameType) -> bool:
    call = next(iter(source.calls_at(position(frame))), None)
    return call is not None and isinstance(call.func, ast.Name) and call.func.id == "next"


def _is_itself(header: ast.expr, generator: FrameType, frame: FrameType) -> bool:
    """Return whether what a header goes over is the generator that runs in a frame."""
    if isinstance(header, ast.Call):
        called = header.func
        return generator.f_code.co_name in (getattr(called, "id", None), getattr(called, "attr", None))
    value = names_of(frame).get(header.id) if isinstance(header, ast.Name) else None
    return isinstance(value, GeneratorType) and value.gi_frame is generator
