"""The states of a folder that a power cut may leave: made from the recorded system calls of the store, one by one.

The model is the weakest that POSIX allows, weaker than any file system in use. A file's bytes are on the disk once the
file was flushed; a change of its name (made, renamed, deleted) is there once the folder was flushed. Of all later calls
any part may have reached the disk, in any order; of a single write nothing, all, the first half, or the length alone
with zeros in it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Files = dict[str, bytes]
FOLDER = -1
"""The number of the folder itself."""


@dataclass(frozen=True)
class Call:
    """One call that changes the folder. `file` is the number of a file; a name may later belong to another file."""

    kind: str
    file: int = -1
    name: str = ""
    other: str = ""
    offset: int = 0
    data: bytes = b""


class Recorder:
    """A recorder of each call of Python's os module that changes files of one folder; it passes the calls on."""

    def __init__(self, folder: Path) -> None:
        self.calls: list[Call] = []
        self._folder = folder
        self._names: dict[str, int] = {}
        self._descriptors: dict[int, int] = {}
        self._numbers = itertools.count()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the functions of the os module by recording ones."""
        for name in ("open", "close", "pwrite", "write", "ftruncate", "fsync", "replace", "unlink"):
            patch.setattr(os, name, getattr(self, f"_for_{name}")(getattr(os, name)))
        # The store uses none of these; if it ever does, the model must learn it.
        for name in ("rename", "remove", "truncate", "link", "symlink"):
            patch.setattr(os, name, None)

    def _mine(self, path: Any) -> str | None:
        parent, name = os.path.split(os.fspath(path))
        return name if parent == str(self._folder) else None

    def _for_open(self, call: Any) -> Any:
        def recorded(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            descriptor: int = call(path, flags, *rest, **more)
            name = self._mine(path)
            if os.fspath(path) == str(self._folder):
                self._descriptors[descriptor] = FOLDER
            elif name is not None:
                if name not in self._names:
                    assert flags & os.O_CREAT, f"{name} was not made through the os module"
                    self._names[name] = next(self._numbers)
                    self.calls.append(Call("make", self._names[name], name))
                self._descriptors[descriptor] = self._names[name]
            return descriptor

        return recorded

    def _for_close(self, call: Any) -> Any:
        def recorded(descriptor: int) -> None:
            self._descriptors.pop(descriptor, None)
            call(descriptor)

        return recorded

    def _for_pwrite(self, call: Any) -> Any:
        def recorded(descriptor: int, data: Any, offset: int) -> int:
            done: int = call(descriptor, data, offset)
            if descriptor in self._descriptors:
                self.calls.append(Call("write", self._descriptors[descriptor], offset=offset, data=bytes(data)[:done]))
            return done

        return recorded

    def _for_write(self, call: Any) -> Any:
        def recorded(descriptor: int, data: Any) -> int:
            end = os.fstat(descriptor).st_size if descriptor in self._descriptors else 0  # the store only appends by it
            done: int = call(descriptor, data)
            if descriptor in self._descriptors:
                self.calls.append(Call("write", self._descriptors[descriptor], offset=end, data=bytes(data)[:done]))
            return done

        return recorded

    def _for_ftruncate(self, call: Any) -> Any:
        def recorded(descriptor: int, length: int) -> None:
            call(descriptor, length)
            if descriptor in self._descriptors:
                self.calls.append(Call("cut", self._descriptors[descriptor], offset=length))

        return recorded

    def _for_fsync(self, call: Any) -> Any:
        def recorded(descriptor: int) -> None:
            if descriptor in self._descriptors:
                self.calls.append(Call("flush", self._descriptors[descriptor]))
            else:
                call(descriptor)

        return recorded

    def _for_replace(self, call: Any) -> Any:
        def recorded(path: Any, other: Any, **more: Any) -> None:
            call(path, other, **more)
            name, new = self._mine(path), self._mine(other)
            if name is not None and new is not None:
                self._names[new] = self._names.pop(name)
                self.calls.append(Call("rename", self._names[new], name, new))

        return recorded

    def _for_unlink(self, call: Any) -> Any:
        def recorded(path: Any, **more: Any) -> None:
            call(path, **more)
            name = self._mine(path)
            if name is not None:
                self.calls.append(Call("delete", self._names.pop(name), name))

        return recorded


@contextlib.contextmanager
def recording(folder: Path) -> Iterator[list[Call]]:
    """Record the calls that change a folder, which must be empty at the start."""
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(folder)
        recorder.install(patch)
        yield recorder.calls


def made(calls: list[Call], outcomes: dict[int, str]) -> Files:
    """Return the files that are left if calls have these outcomes, by index; calls without one were done."""
    names: dict[str, int] = {}
    content: dict[int, bytearray] = {}
    for index, call in enumerate(calls):
        outcome = outcomes.get(index, "done")
        if outcome == "lost":
            continue
        if call.kind == "make":
            names[call.name] = call.file
        elif call.kind == "rename":
            # The file gets its new name even if the call that gave it its old one was lost.
            names[call.other] = call.file
            if names.get(call.name) == call.file:
                del names[call.name]
        elif call.kind == "delete" and names.get(call.name) == call.file:
            del names[call.name]
        elif call.kind == "cut":
            data = content.setdefault(call.file, bytearray())
            del data[call.offset :]
            data.extend(bytes(call.offset - len(data)))
        elif call.kind == "write":
            data = content.setdefault(call.file, bytearray())
            piece = {"done": call.data, "half": call.data[: len(call.data) // 2], "zeros": bytes(len(call.data))}[outcome]
            data.extend(bytes(max(0, call.offset + len(piece) - len(data))))
            data[call.offset : call.offset + len(piece)] = piece
    return {name: bytes(content.get(file, b"")) for name, file in names.items()}


def pending(calls: list[Call]) -> list[int]:
    """Return the indices of the calls that need not have reached the disk."""
    flushed: dict[int, int] = {}
    for index, call in enumerate(calls):
        if call.kind == "flush":
            flushed[call.file] = index
    found = []
    for index, call in enumerate(calls):
        of = call.file if call.kind in ("write", "cut") else FOLDER
        if call.kind != "flush" and index > flushed.get(of, -1):
            found.append(index)
    return found


def crash_states(calls: list[Call], draw: random.Random, most: int) -> Iterator[Files]:
    """Yield every state that a power cut after these calls may leave; if there are more than `most`, the extremes and
    some others.
    """
    loose = pending(calls)
    choices = [("done", "lost", "half", "zeros") if calls[index].kind == "write" else ("done", "lost") for index in loose]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count <= most:
        for outcomes in itertools.product(*choices):
            yield made(calls, dict(zip(loose, outcomes, strict=True)))
        return
    for end in range(len(loose) + 1):  # calls in order, then all but one and only one
        yield made(calls, dict.fromkeys(loose[end:], "lost"))
    for index in loose:
        yield made(calls, {index: "lost"})
        yield made(calls, dict.fromkeys((other for other in loose if other != index), "lost"))
    for _ in range(most // 10):
        yield made(calls, {index: draw.choice(choice) for index, choice in zip(loose, choices, strict=True)})
