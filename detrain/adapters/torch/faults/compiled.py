"""Programs that `torch.compile` is called in: their ops are inside of kernels, where no fault can be put yet.

While ops are watched PyTorch runs such functions op by op, whose bits are others: so they are refused, beforehand.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import Any, Final

import torch

from detrain.adapters.torch.compiler.history import has_compiled
from detrain.base.errors import FaultInvalid
from detrain.python.inspect.frames import is_user_file

_OFF: Final = "TORCHDYNAMO_DISABLE"
"""Set to 1, `torch.compile` returns what it is given."""


def is_off() -> bool:
    """Return whether nothing is compiled in this process."""
    return os.environ.get(_OFF) == "1"


class CompileWatch:
    """Hears of calls of `torch.compile`."""

    def __init__(self) -> None:
        self._where = ""
        original: Any = torch.compile

        @wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            if not self._where and not is_off():
                self._where = _caller()
            return original(*args, **kwargs)

        torch.compile = compile_

    def check(self) -> None:
        """Raise FaultInvalid if something has been compiled."""
        if self._where or has_compiled():
            raise FaultInvalid(
                f"the program uses torch.compile{self._where and f' ({self._where})'}, inside of whose kernels no fault can be put",
                f"set {_OFF}=1 in the environment, for replays too: all steps are eager then, with bits of their own",
            )


def _caller() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "in a library"
