"""How much memory is free for this process: on the machine, and in the containers and jobs that it is in."""

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
"""Of the second and the first version of control groups, by the name of the controller: folder, limit, use, and the
part of it that the kernel takes back first (files that have been read or written)."""


def free_bytes(root: Path = Path("/")) -> int:
    """Return how much memory can be had before some must be swapped, or a process is killed. `root` has `proc`, `sys`.

    Sources: proc_meminfo(5), "MemAvailable"; kernel documentation, "Control Group v2", "Memory Resource Controller".
    Raises OSError elsewhere than on Linux.
    """
    free = _entry(root / "proc/meminfo", "MemAvailable:") * 1024
    return min([free, *_free_in_groups(root)])


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield what is free in each group that this process is in, of those that have a limit."""
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
                    with suppress(OSError, ValueError):  # no limit is a word, or there is no such group in a container
                        taken = int(_text(each / used)) - _entry(each / "memory.stat", given_back)
                        yield int(_text(each / limit)) - taken


def _entry(path: Path, name: str) -> int:
    """Return the number behind a name. Raises OSError."""
    return next((int(fields[1]) for line in _text(path).splitlines() if (fields := line.split())[:1] == [name]), 0)


def _text(path: Path) -> str:
    with io.FileIO(path) as file:  # not `open`, by which the program's own files are followed
        return file.readall().decode()
