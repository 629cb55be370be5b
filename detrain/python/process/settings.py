"""Settings of the whole process that decide about numbers or printed text, and that a loop may change.

They are NumPy's handling of floating-point errors and its way to print, the context of `decimal`, the locale, Python's
limits, variables of the environment, levels of loggers, whether anything is logged, filters of warnings, handlers of
signals, the garbage collector, the folder that the process is in, its umask, where Python looks for modules. Code
before the loop runs again in a resumed process; the settings that the loop has changed since are state.

So is the stream of C's `rand` and `random`, from which libraries of C draw (and programs, by `ctypes`): glibc's, which
can be read. `setstate` and `initstate` of glibc exchange the state that it draws from; the old state lies in memory of
the library or of its user, with its kind and its position in its first word (stdlib/random_r.c).
"""

from __future__ import annotations

import ctypes
import decimal
import functools
import gc
import locale
import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import numpy as np

from detrain.base.errors import Diverged
from detrain.base.framework_names import MODULES
from detrain.python.inspect.names import class_name, find_warning

_DECIMAL: Final = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
_LOCALES: Final = ("LC_COLLATE", "LC_CTYPE", "LC_MONETARY", "LC_NUMERIC", "LC_TIME")
_LOGGER_AS_MADE: Final = (logging.NOTSET, False, True)
_ENVIRON: Final = "os.environ."
_SIGNALS: Final = tuple(map(int, signal.valid_signals()))

_DEGREES: Final = (0, 7, 15, 31, 63)
"""Words of a state of each kind, besides the first one."""
_drawn_by_time: Final[set[str]] = set()
"""Names of code that draws from it at moments that no program decides."""


class ProcessSettings:
    """The settings of this process, compared with those from when the loop was entered."""

    def __init__(self) -> None:
        self._before: dict[str, object] = {}
        self._base = os.getcwd()
        """The folder that the program was started in."""

    def begin(self) -> None:
        """Note the settings as the program enters a training loop: later changes are state."""
        self._before = self._read()

    def changed(self) -> dict[str, object]:
        """Return the settings that the loop has changed, by name; None for an environment variable that it removed."""
        now = self._read()
        return {name: now.get(name) for name in {**self._before, **now} if now.get(name) != self._before.get(name)}

    def set(self, changed: Mapping[str, object]) -> None:
        """Restore the settings that `changed` returned, and all others as they were when the loop was entered."""
        wanted, now = {**self._before, **changed}, self._read()
        for name in {**now, **wanted}:
            if now.get(name) != wanted.get(name):
                self._write(name, wanted.get(name))

    def _read(self) -> dict[str, object]:
        return _read() | {"folder": os.path.relpath(os.getcwd(), self._base)}

    def _write(self, name: str, value: Any) -> None:
        if name != "folder":
            _write(name, value)
            return
        try:
            os.chdir(os.path.join(self._base, value))
        except OSError as error:
            raise Diverged(
                f"the program was in the folder {value!r} at the checkpoint, which cannot be entered: {error.strerror}",
                "put it back, or begin anew with --fresh",
            ) from error


def _read() -> dict[str, object]:
    context = decimal.getcontext()
    found: dict[str, object] = {f"decimal.{name}": getattr(context, name) for name in _DECIMAL}
    for kind, signals in (("traps", context.traps), ("flags", context.flags)):
        found[f"decimal.{kind}"] = tuple(sorted(signal.__name__ for signal, is_set in signals.items() if is_set))
    found |= {f"locale.{name}": locale.setlocale(getattr(locale, name)) for name in _LOCALES}
    found |= {f"numpy.errors.{name}": value for name, value in np.geterr().items()}
    found |= {"numpy.call": np.geterrcall(), "sys.path": tuple(sys.path), "umask": _umask(), "warnings": _filters()}
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    # A framework's own handler counts as none: PyTorch's loaders look after their workers.
    found |= {f"signal.{number:d}": each if _is_programs(each) else signal.SIG_DFL for number, each in handlers.items()}
    found |= {"libc.rand": libc_state()}
    found |= {"logging disabled": logging.root.manager.disable, "gc": (gc.isenabled(), *gc.get_threshold())}
    found |= {"sys.switchinterval": sys.getswitchinterval()}
    found |= {f"numpy.print.{name}": value for name, value in np.get_printoptions().items() if name != "override_repr"}
    found |= {"sys.recursionlimit": sys.getrecursionlimit(), "sys.int_max_str_digits": sys.get_int_max_str_digits()}
    found |= {f"logging.{name}": state for name, each in _loggers().items() if (state := _state_of(each)) != _LOGGER_AS_MADE}
    return found | _environ()


class _EnvironmentVariables:
    """The variables of the environment as they were read last: reading each anew takes longer than comparing them."""

    raw: dict[object, object] | None = None
    found: dict[str, object] = {}  # noqa: RUF012 - replaced, not filled


def _environ() -> dict[str, object]:
    raw: Any = os.environ._data  # type: ignore[attr-defined]
    if _EnvironmentVariables.raw != raw:
        _EnvironmentVariables.found = {_ENVIRON + name: value for name, value in os.environ.items()}
        _EnvironmentVariables.raw = dict(raw)
    return _EnvironmentVariables.found


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _is_programs(handler: object) -> bool:
    module = getattr(handler, "__module__", "") or ""
    return handler is not None and not module.startswith("detrain.") and module.partition(".")[0] not in MODULES


def _filters() -> tuple[object, ...]:
    """Return the filters of warnings as data."""
    return tuple(
        (action, _pattern(message), class_name(cast("type", category)), _pattern(module), line)
        for action, message, category, module, line in warnings.filters
    )


def _pattern(pattern: Any) -> object:
    return (pattern.pattern, pattern.flags) if isinstance(pattern, re.Pattern) else pattern


def _write_filters(filters: tuple[Any, ...]) -> None:
    """Set the filters, except those of warnings that this process does not know, and so cannot give."""
    warnings.resetwarnings()
    for action, message, name, module, line in filters:
        category = find_warning(name)
        if category is not None:
            text, place = (re.compile(*each) if isinstance(each, tuple) else each for each in (message, module))
            cast("list[Any]", warnings.filters).append((action, text, category, place, line))


def _loggers() -> dict[str, logging.Logger]:
    """Return the root, which has the empty name, and all loggers that have been made."""
    made = {name: each for name, each in list(logging.root.manager.loggerDict.items()) if isinstance(each, logging.Logger)}
    return {"": logging.root, **made}


def _state_of(logger: logging.Logger) -> tuple[object, ...]:
    return logger.level, logger.disabled, logger.propagate


def _write(name: str, value: Any) -> None:
    if name.startswith(_ENVIRON):
        _write_variable(name.removeprefix(_ENVIRON), value)
        return
    owner, _, key = name.partition(".")
    if owner == "logging":
        _write_logger(logging.getLogger(key), _LOGGER_AS_MADE if value is None else value)
    elif owner == "logging disabled":
        logging.disable(value)
    elif owner == "gc":
        (gc.enable if value[0] else gc.disable)()
        gc.set_threshold(*value[1:])
    elif owner == "decimal":
        _write_decimal(key, value)
    elif owner == "warnings":
        _write_filters(value)
    elif owner == "signal" and value is not None:  # None could not be put back, as was reported
        signal.signal(int(key), value)
    elif owner == "umask":
        os.umask(value)
    elif owner == "libc":
        set_libc_state(value)
    elif name == "sys.path":
        sys.path[:] = value
    elif name == "numpy.call":
        np.seterrcall(value)
    elif owner == "locale":
        locale.setlocale(getattr(locale, key), value)
    elif owner == "numpy":
        kind, _, option = key.partition(".")
        setter = cast("Callable[..., object]", np.seterr if kind == "errors" else np.set_printoptions)
        setter(**{option: value})
    else:
        getattr(sys, f"set{key}" if key in ("recursionlimit", "switchinterval") else f"set_{key}")(value)


def _write_logger(logger: logging.Logger, state: tuple[Any, ...]) -> None:
    level, logger.disabled, logger.propagate = state
    logger.setLevel(level)  # this also clears the levels that other loggers have looked up


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


def leave_libc_out(by: str) -> None:
    """Count C's random stream as no state from here on: `by` draws from it at moments that no program decides."""
    _drawn_by_time.add(by)


def libc_state() -> bytes | None:
    """Return the state of C's random stream; None if the C library is not glibc, or the stream is no state."""
    library, spare = _libc()
    if library is None or _drawn_by_time:
        return None
    address = library.initstate(1, spare, len(spare))
    content = ctypes.string_at(address, _libc_size(address))
    library.setstate(address)
    return content


def set_libc_state(content: bytes | None) -> None:
    """Restore the state that `libc_state` returned, if the stream is of the same kind."""
    library, spare = _libc()
    if library is None or content is None:
        return
    address = library.initstate(1, spare, len(spare))
    if _libc_size(address) == len(content):
        ctypes.memmove(address, content, len(content))
    library.setstate(address)


def _libc_size(address: int) -> int:
    return 4 * (1 + _DEGREES[ctypes.c_int32.from_address(address).value % len(_DEGREES)])


@functools.cache
def _libc() -> tuple[Any, Any]:
    """Return the C library and room for a state to draw from meanwhile; (None, None) if it is not glibc."""
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return None, None
    library = ctypes.CDLL(None)
    library.initstate.restype = ctypes.c_void_p
    library.initstate.argtypes = [ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t]
    library.setstate.argtypes = [ctypes.c_void_p]
    return library, ctypes.create_string_buffer(128)
