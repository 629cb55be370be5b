"""Whether a framework traces or transforms the code that runs. What that code computes is no value then, and a loop in
it is a part of one step.
"""

from __future__ import annotations

from collections.abc import Callable

_tests: list[Callable[[], bool]] = []


def add_test(is_traced: Callable[[], bool], *, is_first: bool = False) -> None:
    """Add a framework's test. `is_first`: it is asked before the others, which a compiler of the framework's does not
    know.
    """
    _tests.insert(0 if is_first else len(_tests), is_traced)


def is_traced() -> bool:
    """Return whether a framework traces the code that asks, or runs it inside of a compiled function."""
    for test in _tests:  # noqa: SIM110 - TorchDynamo compiles this loop away, but no generator
        if test():
            return True
    return False
