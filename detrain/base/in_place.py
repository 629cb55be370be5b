"""Functions of detrain in the place of functions of a framework or of Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def in_place_of(holder: Any, name: str, *others: Any) -> Callable[[F], F]:
    """Return a decorator that puts a function in the place of `holder.name`, and gives it that function's name and
    signature. Keep the replaced function beforehand: `original = holder.name`.

    `others`: further classes or modules that may hold the function under that name.
    """

    def put(function: F) -> F:
        functools.update_wrapper(function, getattr(holder, name))
        for each in (holder, *(other for other in others if hasattr(other, name))):
            setattr(each, name, function)
        return function

    return put
