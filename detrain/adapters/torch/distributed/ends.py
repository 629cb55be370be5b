"""The end of processes that train together: it comes.

In PyTorch, what sums the gradients of a model (its reducer) may be the last that refers to a process group. It is
deleted with Python's lock held, the group with it, and the group waits for its threads. One of these may wait for that
lock, to let go of the last collective's tensors: then the process stands still behind its last line (seen with 2.13 and
gloo, torch/csrc/distributed/c10d: `~ProcessGroupGloo`, `runLoop`). An object of Python that refers to the group is
deleted without the lock. So here one does, until the reducer is gone; and where that is never, for ever.
"""

from __future__ import annotations

import atexit
import ctypes
import time
import weakref
from typing import Any, Final

from torch.nn.parallel import DistributedDataParallel

_SWITCH_S: Final = 0.02
"""Some times what Python lets a thread wait for its lock (`sys.getswitchinterval`)."""

_kept: set[weakref.finalize[Any, Any]] = set()
"""By object that may delete a group, what refers to the group until that object is gone."""


def have_groups_outlive_reducers() -> None:
    """Have it so for all models that are made distributed from now on."""
    made: Any = DistributedDataParallel._ddp_init_helper
    moved: Any = DistributedDataParallel._update_process_group

    def init(model: Any, *arguments: Any, **named: Any) -> None:
        made(model, *arguments, **named)  # inside of `__init__`, whose caller warnings name
        _keep_group(model)

    def update(model: Any, group: Any) -> None:
        moved(model, group)
        _keep_group(model)

    DistributedDataParallel._ddp_init_helper = init
    DistributedDataParallel._update_process_group = update
    atexit.register(_at_exit)


def _keep_group(model: Any) -> None:
    _kept.difference_update([each for each in _kept if not each.alive])
    for each in (model.reducer, model.logger):  # that refers to the reducer, too
        finalizer = weakref.finalize(each, _let_go, model.process_group)
        finalizer.atexit = False
        _kept.add(finalizer)


def _let_go(_group: object) -> None:
    """The group is deleted when this returns, if nothing else refers to it."""


def _at_exit() -> None:
    """What Python deletes from here on, it deletes in any order: keep the groups that are there for ever, and let the
    threads have the lock that wait for it.
    """
    for found in [each.peek() for each in _kept]:
        if found is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(found[2][0]))
            time.sleep(_SWITCH_S)
