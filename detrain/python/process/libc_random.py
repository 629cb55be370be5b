"""The stream of C's `rand` and `random`, from which libraries of C draw (and programs, by `ctypes`): glibc's, which can
be read.

`setstate` and `initstate` of the C library exchange the state that it draws from; the one that is put aside lies in
memory of the library or of its user, with its kind and its place in its first word (stdlib/random_r.c).
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Final

_DEGREES: Final = (0, 7, 15, 31, 63)
"""Words of a state of each kind, besides the first one."""


_drawn_by_time: Final[set[str]] = set()
"""Who draws from it at moments that no program decides."""


def leave_out(by: str) -> None:
    """Take the stream for no state from here on: `by` draws from it at moments that no program decides."""
    _drawn_by_time.add(by)


def state() -> bytes | None:
    """Return the state, or None where the C library is another one, or it is no state."""
    library, spare = _library()
    if library is None or _drawn_by_time:
        return None
    address = library.initstate(1, spare, len(spare))
    content = ctypes.string_at(address, _size(address))
    library.setstate(address)
    return content


def set_state(content: bytes | None) -> None:
    """Set what `state` returned, if the stream is of the same kind."""
    library, spare = _library()
    if library is None or content is None:
        return
    address = library.initstate(1, spare, len(spare))
    if _size(address) == len(content):
        ctypes.memmove(address, content, len(content))
    library.setstate(address)


def _size(address: int) -> int:
    return 4 * (1 + _DEGREES[ctypes.c_int32.from_address(address).value % len(_DEGREES)])


@functools.cache
def _library() -> tuple[Any, Any]:
    """Return the C library and room for a state to draw from meanwhile; (None, None) if it is not glibc."""
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return None, None
    library = ctypes.CDLL(None)
    library.initstate.restype = ctypes.c_void_p
    library.initstate.argtypes = [ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t]
    library.setstate.argtypes = [ctypes.c_void_p]
    return library, ctypes.create_string_buffer(128)
