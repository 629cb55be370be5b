"""Functions of ours in the place of others': of a framework's, of Python's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def in_place_of(holder: Any, name: str, *others: Any) -> Callable[[F], F]:
    """Return what puts a function in the place of the one that a class or module holds under a name, whose name and
    signature it then shows. Keep the one that is replaced before: `original = holder.name`.

    `others`: what else may hold it under that name.
    """

    def put(function: F) -> F:
        functools.update_wrapper(function, getattr(holder, name))
        for each in (holder, *(other for other in others if hasattr(other, name))):
            setattr(each, name, function)
        return function

    return put
