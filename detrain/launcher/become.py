"""The last step of the launcher: replace this process by the program's."""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

import msgspec

from detrain.base import PACKAGE, messages, timing
from detrain.base.config import VARIABLE, Config
from detrain.base.errors import StoreError, UsageError
from detrain.python.process.environment import options_of_python, variables
from detrain.store import Meta

_INSTEAD: Final[dict[str, tuple[str, ...]]] = {"-I": ("-s", "-P"), "-E": ()}


def become(config: Config, meta: Meta | None) -> NoReturn:
    """Replace this process by the program's: same pid, same signals, same exit status.

    `meta` is that of the checkpoint from which the run goes on, if there is one: it decides about the environment.
    Raises UsageError for text that no environment can hold, StoreError where Python cannot be started.
    """
    settings = variables(config.threads, meta.environment if meta else None)
    inherited = {name: value for name, value in os.environ.items() if not (sys.flags.ignore_environment and name[:6] == "PYTHON")}
    timing.enter("start of detrain in the process")
    config = msgspec.structs.replace(config, start=timing.so_far())
    try:
        environment = {**inherited, **settings, VARIABLE: config.hand_over()}
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r} is not text in UTF-8", "rename the file or folder, or give another argument") from error
    folder = str(PACKAGE.parent)
    known = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in sys.path and folder not in known:  # run from a source tree that is not installed
        environment["PYTHONPATH"] = os.pathsep.join([folder, *known])
    messages.flush_output()
    # The hash seed comes from the environment, so what -I and -E do is done without them: above, and by -s and -P.
    options = [again for option in options_of_python() for again in _INSTEAD.get(option, (option,))]
    try:
        os.execve(sys.executable, [sys.executable, *options, str(PACKAGE / "runtime" / "session" / "start.py")], environment)
    except OSError as error:
        raise StoreError(f"cannot start {sys.executable!r}: {error}", "the arguments may be too long") from error
