"""Iterators of torchdata's StatefulDataLoader that have ended, which their loader keeps.

An iterator that goes on is only loaded again (`iterations.py`). One that has ended is asked for nothing but its state,
which is data: a resumed run puts an ended iterator with the same state in its place.
"""

from __future__ import annotations

import copy
import sys
from typing import Any, Final

KIND: Final = "torch.ended"
_MODULE: Final = "torchdata.stateful_dataloader.stateful_dataloader"
_STATE: Final = "_detrain_state"
_NO_STATE: Final = ("state_dict", "load_state_dict")


def is_stateful(iterator: object) -> bool:
    """Return whether an iterator is a StatefulDataLoader's."""
    return type(iterator).__module__ == _MODULE


def hands_over_state(source: object) -> bool:
    """Return whether an iterator over a sampler returns and takes its state, as torchdata's do."""
    return all(callable(getattr(source, name, None)) for name in _NO_STATE)


def parts_of_ended(iterator: Any, loader: Any) -> tuple[str, list[object]] | None:
    """Return the kind and parts (loader, state) of an ended iterator; None for one that goes on, or may begin again."""
    own = vars(iterator)
    if _STATE in own:
        return KIND, own[_STATE]
    if loader is None or not own.get("_finished") or iterator._persistent_workers:
        return None
    return KIND, [loader, iterator.state_dict()]


def remake(parts: list[Any], current: Any) -> object:
    """Return an ended iterator from the parts of one, a loader and a state: `current` if that has ended, too."""
    loader, state = parts
    told = {"state_dict": lambda: copy.deepcopy(state), _STATE: parts}
    if is_stateful(current) and parts_of_ended(current, loader) is not None:
        vars(current).update(told)
        return current
    cls = sys.modules[_MODULE]._StatefulSingleProcessDataLoaderIter
    made = cls.__new__(cls)  # no worker: none will be asked
    vars(made).update(
        _sampler_iter=iter(()),
        _index_sampler=loader._index_sampler,
        _dataset_kind=loader._dataset_kind,
        _finished=True,
        _persistent_workers=False,
        _profile_name="an iterator that has ended",
        _sampler_iter_yielded=0,
        **told,
    )
    return made
