"""The probes for a program that is instrumented on disk: the import makes plain `python program.py` a detrain run.

The environment that decides about bits must be settled before the interpreter starts. So if no session is active, this
module replaces the process, once, by `detrain run` on the same program (same pid). Options come from the environment:
`$CKPT_DIR`, `$DETRAIN_RUN_EVERY`, `$DETRAIN_RUN_KEEP`, `$DETRAIN_RUN_SEED`, ... as `detrain run --help` names its
options.
"""

from __future__ import annotations

import os
import sys
import threading

from detrain.base import messages
from detrain.runtime.session.probes import (
    batch_loop,
    epoch_loop,
    has_session,
    record_batch,
    record_end,
    record_epoch,
    record_load,
    record_phase,
)

__all__ = ["batch_loop", "epoch_loop", "record_batch", "record_end", "record_epoch", "record_load", "record_phase"]

_GUARD = "DETRAIN_REPLACED"


def _replace_process() -> None:
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    is_first = _GUARD not in os.environ and threading.current_thread() is threading.main_thread()
    if has_session() or path is None or not is_first:
        os.environ.pop(_GUARD, None)
        return
    spec = getattr(main, "__spec__", None)
    target = ["-m", spec.name.removesuffix(".__main__")] if spec is not None else [sys.argv[0]]
    messages.flush_output()
    os.environ[_GUARD] = "1"
    from detrain.python.process.environment import options_of_python

    os.execv(sys.executable, [sys.executable, *options_of_python(), "-m", "detrain", "run", *target, *sys.argv[1:]])


_replace_process()
