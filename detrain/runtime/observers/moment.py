"""Stops the run before the bodies of batches, and reports the values there (see `moment_asked`)."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import numpy as np

from detrain.base import messages
from detrain.base.cursor import Address
from detrain.base.digest import Array, digest_array
from detrain.base.dtypes import dtype_name
from detrain.base.errors import UsageError
from detrain.base.npz import write_npz
from detrain.python.inspect.names import type_name
from detrain.runtime.observers.moment_asked import AskedMoment, Found, Shown
from detrain.runtime.observers.prompts import open_prompt

if TYPE_CHECKING:
    from detrain.adapters.group import Adapters

_PROBES: Final = "execute"
"""The name that a probe binds in the program."""
_LONGEST: Final = 60
_MOST_SHOWN: Final = 4
"""Number of an array's elements that are written out."""


class MomentReached:
    """Answers the questions of an `AskedMoment` about the state before a body."""

    def __init__(self, moment: AskedMoment, adapters: Adapters, count: Callable[[], int]) -> None:
        """`count` returns how many batches of the run have been loaded."""
        self._moment, self._adapters, self._count = moment, adapters, count
        self._unbound = ""
        """The condition's error, as long as a name in it is not bound."""

    def is_reached(self, address: Address) -> bool:
        """Return whether the run has come to the moment, or past it."""
        return address >= self._moment.at

    def next_body(self, address: Address) -> int:
        """Return the number of the first batch of an epoch, from `address` on, that is the moment's or lies past it."""
        if self.is_reached(address):
            return address[-1]
        return self._moment.at[-1] if address[:2] == self._moment.at[:2] else sys.maxsize

    def stand(self, address: Address, frame: FrameType) -> None:
        """Answer, as the body of a batch is about to run in this frame of the program: here, or in a function that it
        calls. End the process if the moment is past.
        """
        if not self._moment.within:
            self._answer(address, frame)
        elif address <= self._moment.until:
            sys.settrace(partial(self._trace, address))
        else:
            self._end_search(address)

    def _trace(self, address: Address, frame: FrameType, event: str, _arg: Any) -> Any:
        if event != "call" or self._moment.within not in (frame.f_code.co_name, frame.f_code.co_qualname):
            return None
        sys.settrace(None)
        self._answer(address, frame)
        return frame.f_trace  # the trace function of a debugger, if one has been opened

    def _answer(self, address: Address, frame: FrameType) -> None:
        moment = self._moment
        if address <= moment.until and (not moment.when or self._is_true(address, frame)):
            self._note(self._found(address, frame))
            if moment.opens is not None:
                open_prompt(moment.opens, moment.port, frame, _end, partial(self._go_back, address))
                return
            if moment.when:
                _end()
        if address >= moment.until:
            self._end_search(address)

    def _end_search(self, address: Address) -> NoReturn:
        if self._moment.when:
            self._note(Found(address, error=self._unbound) if self._unbound else None)
        _end()

    def _go_back(self, address: Address, steps: int) -> None:
        """End the process, so that another can stop `steps` steps earlier. Raises UsageError if there are too few."""
        if steps >= self._count():
            raise UsageError(f"there are {self._count() - 1} steps before this one")
        self._note(Found(address, back=steps))
        _end()

    def _is_true(self, address: Address, frame: FrameType) -> bool:
        try:
            found = bool(eval(self._moment.when, frame.f_globals, frame.f_locals))
        except NameError as error:
            self._unbound = f"NameError: {error}"
            return False
        except Exception as error:  # the user gets any error of the expression as the answer
            self._note(Found(address, error=f"{type(error).__name__}: {error}", is_over=True))
            _end()
        self._unbound = ""
        return found

    def _found(self, address: Address, frame: FrameType) -> Found:
        names = {name: value for name, value in frame.f_locals.items() if _is_of_program(name, value)}
        if self._moment.expressions:
            found = [self._evaluated(each, frame) for each in self._moment.expressions]
        else:
            found = [(self.shown(name, value), value) for name, value in sorted(names.items())]
        if self._moment.saved:
            self._adapters.look_at_names()
            _write(self._moment.saved, {name: np.asarray(array) for name, array in self._adapters.tensors().items()})
        if self._moment.values:
            held = {str(number): self._as_data(value) for number, (_shown, value) in enumerate(found)}
            _write(self._moment.values, {number: array for number, array in held.items() if array is not None})
        return Found(address, tuple(shown for shown, _value in found))

    def _note(self, found: Found | None) -> None:
        """Add an answer to the file. With None, only make the file: it says that the run has come to the last batch."""
        with io.FileIO(self._moment.answers, "a") as file:
            file.write(msgspec.json.encode(found) + b"\n" if found is not None else b"")

    def _evaluated(self, expression: str, frame: FrameType) -> tuple[Shown, object]:
        try:
            value = eval(expression, frame.f_globals, frame.f_locals)
        except Exception as error:  # the user gets any error of the expression as the answer
            return Shown(expression, "", error=f"{type(error).__name__}: {error}"), None
        return self.shown(expression, value), value

    def _as_array(self, value: object) -> Array | None:
        """Return a tensor or an array as a NumPy array; None for all other values, also Python's own numbers."""
        if isinstance(value, bool | int | float):
            return None
        array = value if isinstance(value, np.ndarray | np.generic) else self._adapters.to_array(value)
        return None if array is None else np.asarray(array)

    def _as_data(self, value: object) -> Array | None:
        """Return an array, number or text as an array that a file gives back unchanged; None for other values."""
        array = self._as_array(value)
        if array is not None:
            return array if dtype_name(array.dtype) else None
        if not isinstance(value, bool | int | float | str):
            return None
        array = np.asarray(value)
        is_same = isinstance(value, float) or (not array.dtype.hasobject and array.item() == value)
        return array if is_same else None  # None: text with zeros at its end, and integers of more than 64 bits

    def shown(self, name: str, value: object) -> Shown:
        """Return the description of a value."""
        held = self._as_array(value)
        if held is not None:
            kind = f"{type_name(value)} {held.dtype} {list(held.shape)}"
            return Shown(name, kind, _numbers(held), digest_array(held), dtype_name(held.dtype) or "")
        if isinstance(value, float):
            return Shown(name, "float", f"{value!r} ({np.float64(value).view(np.uint64):016x})")
        try:
            text = " ".join(repr(value).split())
        except Exception as error:  # of the program's own `__repr__`
            text = f"<{type(error).__name__} in its repr>"
        return Shown(name, type_name(value), text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _write(path: str, arrays: dict[str, Array]) -> None:
    with io.FileIO(path, "w") as file:
        write_npz(file, arrays)


def _numbers(array: Array) -> str:
    """Return an array's first elements as text; if it has only one, also its bits."""
    flat = np.ravel(array)[:_MOST_SHOWN]
    said = ", ".join(map(str, flat)) + (", …" if array.size > _MOST_SHOWN else "")
    return f"{said} ({flat.astype(flat.dtype.newbyteorder('<')).tobytes()[::-1].hex()})" if array.size == 1 else said


def _is_of_program(name: str, value: Any) -> bool:
    is_code = isinstance(value, type | ModuleType | FunctionType)
    return not name.startswith("__") and name != _PROBES and not is_code


def _end() -> NoReturn:
    messages.flush_output()
    os._exit(0)
