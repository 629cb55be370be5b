"""Dynamo's knowledge of the sizes of a frame's inputs ("automatic dynamic"): a size that it has met with two values may
be any from then on.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from types import CodeType
from typing import Any, Final

from detrain.base.byte_digests import digest_bytes
from detrain.base.in_place import in_place_of

Known = dict[str, dict[str, Any]]
"""By frame and by the source of an input: Dynamo's knowledge of the input's size, as data."""
_ANY: Final = "any"
_UNSET: Final = "unset"
_PGO: Final = "torch._dynamo.pgo"


class Sizes:
    """Records Dynamo's knowledge of sizes, and gives Dynamo the knowledge that it had in the first run."""

    def __init__(self) -> None:
        self._now: Known = {}
        self._noting: Known | None = None
        self._forced: Known | None = None
        """The first run's knowledge, while a frame is compiled as it was there."""
        self._before: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._told: set[tuple[str, str]] = set()
        """(frame, input) of the entries of `_now` that Dynamo has been told in this process."""

    def known(self) -> Known:
        """Return the present knowledge about all frames."""
        return self._now

    def restore(self, known: Known) -> None:
        """Give Dynamo this knowledge from here on."""
        self._now, self._told = copy.deepcopy(known), set()

    @contextmanager
    def noted(self) -> Iterator[Known]:
        """Inside, a frame is compiled; yield a dictionary that fills with the knowledge about its inputs."""
        before, self._noting = self._noting, {}
        try:
            yield self._noting
        finally:
            self._noting = before

    @contextmanager
    def as_known(self, known: Known) -> Iterator[None]:
        """Inside, Dynamo has this knowledge alone."""
        self._forced, self._before = known, {}
        try:
            yield
        finally:
            self._forced = None
            for held, name, value in self._before.values():
                if value is None:
                    held.pop(name, None)
                else:
                    held[name] = value

    def watch(self) -> None:
        """Hook each look of Dynamo at a size."""
        pgo: Any = sys.modules[_PGO]
        original = pgo.update_automatic_dynamic

        @in_place_of(pgo, "update_automatic_dynamic")
        def update(tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            frame = _frame(tx.f_code, tx.closure)
            held = pgo.get_code_state()[_code_id(pgo, tx)].automatic_dynamic
            if self._forced is not None:
                self._before.setdefault((id(held), name), (held, name, copy.copy(held.get(name))))
                held[name] = _entry(pgo, self._forced.get(frame, {}).get(name))
                return original(tx, name, *args, **kwargs)
            if (frame, name) not in self._told and name in self._now.get(frame, {}):
                held[name] = _entry(pgo, self._now[frame][name])
            result = original(tx, name, *args, **kwargs)
            self._told.add((frame, name))
            self._now.setdefault(frame, {})[name] = _data(pgo, result)
            if self._noting is not None:
                self._noting.setdefault(frame, {})[name] = _data(pgo, result)
            return result


def has_any(known: Known) -> bool:
    """Return whether a size, a stride or a number is known to be any.

    A tensor's entry also says "any" for the number, and a number's entry for the size: neither of these counts.
    """
    return any(_is_any(entry) for frame in known.values() for entry in frame.values())


def _is_any(entry: Mapping[str, Any]) -> bool:
    sizes = [entry["size"], entry["stride"]]
    return any(_ANY in each for each in sizes if isinstance(each, list)) or (_ANY in sizes and entry["scalar"] == _ANY)


def code_text(code: CodeType) -> str:
    """Return the code of a function as a text that is the same in every process."""
    constants = [code_text(each) if isinstance(each, CodeType) else repr(type(each)) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _frame(code: CodeType, closure: Any) -> str:
    inside = [getattr(_content(cell), "__code__", None) for cell in closure or ()]
    texts = [code_text(each) for each in (code, *inside) if isinstance(each, CodeType)]
    return f"{code.co_name}:{code.co_firstlineno} {digest_bytes(repr(texts).encode())[:16]}"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _code_id(pgo: Any, tx: Any) -> Any:
    makes = pgo.CodeId.make
    return makes(tx.f_code, tx.closure) if len(inspect.signature(makes).parameters) > 1 else makes(tx.f_code)


def _data(pgo: Any, entry: Any) -> dict[str, Any]:
    return {each.name: _atom(pgo, getattr(entry, each.name)) for each in fields(entry)}


def _atom(pgo: Any, value: Any) -> Any:
    if value is pgo.auto_dynamic:
        return _ANY
    if value is pgo.auto_unset:
        return _UNSET
    if isinstance(value, pgo.InferStride):
        return {"dim": value.dim}
    return [_atom(pgo, each) for each in value] if isinstance(value, tuple) else value


def _entry(pgo: Any, data: Mapping[str, Any] | None) -> Any:
    return pgo.FrameStateSizeEntry(**{name: _value(pgo, each) for name, each in (data or {}).items()})


def _value(pgo: Any, data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_value(pgo, each) for each in data)
    if isinstance(data, dict):
        return pgo.InferStride(data["dim"])
    return {_ANY: pgo.auto_dynamic, _UNSET: pgo.auto_unset}.get(data, data) if isinstance(data, str) else data
