"""What is set for the whole process, and decides about numbers or what is printed: a loop may change it.

NumPy's handling of floating-point errors and its way to print, the context of `decimal`, the locale, Python's own limits, variables
of the environment, levels of loggers. Code before the loop runs again in a resumed process; what the loop has changed since is
state.
"""

from __future__ import annotations

import decimal
import locale
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import numpy as np

_DECIMAL: Final = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
_LOCALES: Final = ("LC_COLLATE", "LC_CTYPE", "LC_MONETARY", "LC_NUMERIC", "LC_TIME")
_LOGGER: Final = ("level", "disabled", "propagate")
_LOGGER_AS_MADE: Final = (logging.NOTSET, False, True)
_ENVIRON: Final = "os.environ."


class ProcessSettings:
    """The settings of this process, compared with what they were when the loop was entered."""

    def __init__(self) -> None:
        self._before: dict[str, object] = {}

    def begin(self) -> None:
        """The program enters a training loop: what is set from here on is state."""
        self._before = _read()

    def changed(self) -> dict[str, object]:
        """Return what the loop has set, by name; None for a variable of the environment that it has removed."""
        now = _read()
        return {name: now.get(name) for name in {**self._before, **now} if now.get(name) != self._before.get(name)}

    def set(self, changed: Mapping[str, object]) -> None:
        """Set what `changed` returned, and all else as it was when the loop was entered."""
        wanted, now = {**self._before, **changed}, _read()
        for name in {**now, **wanted}:
            if now.get(name) != wanted.get(name):
                _write(name, wanted.get(name))


def _read() -> dict[str, object]:
    context = decimal.getcontext()
    found: dict[str, object] = {f"decimal.{name}": getattr(context, name) for name in _DECIMAL}
    for kind, signals in (("traps", context.traps), ("flags", context.flags)):
        found[f"decimal.{kind}"] = tuple(sorted(signal.__name__ for signal, is_set in signals.items() if is_set))
    found |= {f"locale.{name}": locale.setlocale(getattr(locale, name)) for name in _LOCALES}
    found |= {f"numpy.errors.{name}": value for name, value in np.geterr().items()}
    found |= {f"numpy.print.{name}": value for name, value in np.get_printoptions().items() if name != "override_repr"}
    found |= {"sys.recursionlimit": sys.getrecursionlimit(), "sys.int_max_str_digits": sys.get_int_max_str_digits()}
    found |= {f"logging.{name}": state for name, each in _loggers().items() if (state := _state_of(each)) != _LOGGER_AS_MADE}
    return found | {_ENVIRON + name: value for name, value in os.environ.items()}


def _loggers() -> dict[str, logging.Logger]:
    """Return the root, which has the empty name, and all loggers that have been made."""
    made = {name: each for name, each in list(logging.root.manager.loggerDict.items()) if isinstance(each, logging.Logger)}
    return {"": logging.root, **made}


def _state_of(logger: logging.Logger) -> tuple[object, ...]:
    return tuple(getattr(logger, name) for name in _LOGGER)


def _write(name: str, value: Any) -> None:
    if name.startswith(_ENVIRON):
        _write_variable(name.removeprefix(_ENVIRON), value)
        return
    owner, _, key = name.partition(".")
    if owner == "logging":
        _write_logger(logging.getLogger(key), _LOGGER_AS_MADE if value is None else value)
    elif owner == "decimal":
        _write_decimal(key, value)
    elif owner == "locale":
        locale.setlocale(getattr(locale, key), value)
    elif owner == "numpy":
        kind, _, option = key.partition(".")
        setter = cast("Callable[..., object]", np.seterr if kind == "errors" else np.set_printoptions)
        setter(**{option: value})
    else:
        getattr(sys, f"set{key}" if key == "recursionlimit" else f"set_{key}")(value)


def _write_logger(logger: logging.Logger, state: tuple[Any, ...]) -> None:
    level, logger.disabled, logger.propagate = state
    logger.setLevel(level)  # which also forgets what other loggers have looked up


def _write_decimal(key: str, value: Any) -> None:
    context = decimal.getcontext()
    if key in _DECIMAL:
        setattr(context, key, value)
    else:
        signals = getattr(context, key)
        for signal in signals:
            signals[signal] = signal.__name__ in value


def _write_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
    if name == "TZ":
        time.tzset()
