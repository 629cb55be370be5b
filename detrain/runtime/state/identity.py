"""The identity of a checkpoint's program and environment: digests of source files, versions and settings."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from detrain.adapters.group import Adapters
from detrain.base.added_statements import added_before, as_it_was
from detrain.base.byte_digests import digest_source
from detrain.base.compiled_sources import is_executed, parse, parts, source_of
from detrain.base.errors import Diverged, EnvironmentChanged
from detrain.python.inspect.named import main_module, user_modules
from detrain.store import Meta

_CONTENT: Final = "the content of "
"""Begins the names of files with settings."""


class Identity:
    """The identity of this process's program and environment."""

    def __init__(
        self,
        environment: Mapping[str, str],
        adapters: Adapters,
        probed: Iterable[str] = (),
        settings: Callable[[], Mapping[str, str]] = dict,
        *,
        may_differ: bool,
    ) -> None:
        """`probed` are the files with probes, also those of libraries; `settings` returns the digests of the files with
        settings that the program has read. With `may_differ`, another environment is no error.
        """
        self._settings = settings
        self._environment, self._adapters, self._may_differ = environment, adapters, may_differ
        self._probed = tuple(probed)
        self._sources: dict[str, tuple[str, bytes]] = {}

    def sources(self) -> dict[str, str]:
        """Return the digest of each source file of the program, as executed, by its path relative to the entry's
        folder, and of each cell of a notebook.
        """
        return {name: digest for name, (digest, _data) in self.files().items()} | {
            name: digest_source(data) for name, data in parts.items()
        }

    def files(self) -> dict[str, tuple[str, bytes]]:
        """Return the digest and the bytes of each source file of the program, as executed, by its relative path."""
        files = [module.__file__ or "" for module in user_modules().values()]
        main = getattr(main_module(), "__file__", None)
        base = os.path.dirname(os.path.realpath(main)) if main else os.getcwd()
        found = {}
        for file in dict.fromkeys([*files, *filter(is_executed, self._probed)]):
            path = os.path.realpath(file)
            source = self._source(file) if path.endswith(".py") else None
            if source is not None:
                found[os.path.relpath(path, base)] = source
        return found

    def _source(self, file: str) -> tuple[str, bytes] | None:
        """Return the digest and the bytes of a source file, None if it cannot be read."""
        try:
            data = source_of(file)
        except OSError:
            return None
        if file not in self._sources or self._sources[file][1] is not data:  # imported anew
            self._sources[file] = as_it_was(digest_source(data)), data
        return self._sources[file]

    def environment(self) -> dict[str, str]:
        """Return the settings and versions outside of the program that decide about bits."""
        read = {f"{_CONTENT}{name}": digest for name, digest in self._settings().items()}
        return {**self._environment, **self._adapters.environment(), **read}

    def check(self, meta: Meta) -> None:
        """Raise EnvironmentChanged if a checkpoint is from another environment, Diverged if it is from other source."""
        now = self.environment()
        differing = {name: value for name, value in meta.environment.items() if now.get(name) != value}
        settings = [name.removeprefix(_CONTENT) for name in differing if name.startswith(_CONTENT) and name in now]
        changed = [
            f"{name} was {value!r}, is {now.get(name, 'not there')!r}"
            for name, value in differing.items()
            if not name.startswith(_CONTENT)
        ]
        if changed and not self._may_differ:
            raise EnvironmentChanged(
                f"the environment differs from the checkpoint's: {'; '.join(changed)}",
                "resume where it is the same, or go on, perhaps with other bits, with --allow-environment",
            )
        if settings and not self._may_differ:
            raise EnvironmentChanged(
                f"{', '.join(settings)} has changed since the run began, and code before the loop reads it",
                "bring it back, or start anew with --fresh; with --allow-environment the run goes on with its first settings",
            )
        sources = self.sources()
        edited = sorted(name for name, digest in meta.sources.items() if sources.get(name, digest) != digest)
        if edited:
            raise changed_source(edited)


def changed_source(names: list[str]) -> Diverged:
    """Return the error for source files that differ from the checkpoint's."""
    if parts:  # of a notebook
        return Diverged(
            f"the cells that have run are not those of the checkpoint: {', '.join(names)}",
            "run the same cells in the same order, or start anew: `%env DETRAIN_RUN_FRESH=1` in a cell before `%load_ext detrain`",
            may_go_back=False,
        )
    return Diverged(
        f"source has changed since the checkpoint was taken: {', '.join(names)}",
        "bring the source back, or start anew with --fresh (the old checkpoints stay)",
        may_go_back=False,
    )


@functools.cache
def statements_before(file: str, line: int) -> int:
    """Return how many statements of a file begin before a line. Unlike a line number, comments do not change it."""
    try:
        tree = parse(source_of(file))
    except (OSError, SyntaxError, ValueError):
        return 0
    before = sum(isinstance(node, ast.stmt) and node.lineno < line for node in ast.walk(tree))
    return before - added_before(file, line)
