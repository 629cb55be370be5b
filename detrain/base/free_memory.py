"""The memory that is free for this process: on the machine, and in the containers and jobs in which it runs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_GROUPS: Final = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Versions 2 and 1 of control groups, by the controller's name: folder, file with the limit, file with the use, and
field with the part of the use that the kernel takes back first (the cache of files)."""


def free_bytes(root: Path = Path("/")) -> int:
    """Return how many bytes can be used before the kernel swaps or kills a process. `root` holds `proc` and `sys`.

    Sources: proc_meminfo(5), "MemAvailable"; kernel documentation, "Control Group v2", "Memory Resource Controller".
    Raises OSError elsewhere than on Linux.
    """
    free = _entry(root / "proc/meminfo", "MemAvailable:") * 1024
    return min([free, *_free_in_groups(root)])


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield the free bytes of each control group of this process that has a limit."""
    with suppress(OSError):
        for line in _text(root / "proc/self/cgroup").splitlines():
            _number, controller, path = line.split(":", 2)
            if controller not in _GROUPS:
                continue
            below, limit, used, given_back = _GROUPS[controller]
            top = root / "sys/fs/cgroup" / below
            group = top / path.lstrip("/")
            for each in (group, *group.parents):
                if each.is_relative_to(top):
                    with suppress(OSError, ValueError):  # no limit is written as a word; in a container, a group may be missing
                        taken = int(_text(each / used)) - _entry(each / "memory.stat", given_back)
                        yield int(_text(each / limit)) - taken


def _entry(path: Path, name: str) -> int:
    """Return the number after a name in a file, or 0. Raises OSError."""
    return next((int(fields[1]) for line in _text(path).splitlines() if (fields := line.split())[:1] == [name]), 0)


def _text(path: Path) -> str:
    with io.FileIO(path) as file:  # not `open`: detrain follows the program's files by it
        return file.readall().decode()
