"""What PyTorch keeps for the whole process, where no name leads to it: how many hooks were made, which keys them; those
that are called for every module and optimizer; weights in other forms.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn.modules import module as modules
from torch.nn.utils import parametrize
from torch.optim import optimizer as optimizers
from torch.utils.hooks import RemovableHandle

_GLOBAL: Final[dict[str, Any]] = {
    **{f"module {name}": vars(modules)[name] for name in vars(modules) if name.startswith("_global_") and name.endswith("_hooks")},
    **{f"optimizer {name}": vars(optimizers)[name] for name in vars(optimizers) if name.startswith("_global_optimizer_")},
}


class GlobalHooks:
    """The count of hooks, which is state, and hooks of the process, which are named where a loop changes them."""

    def __init__(self) -> None:
        self._before = _global()

    def begin_phase(self) -> None:
        """What there is now, a resumed process has, too."""
        self._before = _global()

    def count(self) -> int:
        """Return the number of the next hook: two of one number would be one."""
        return int(RemovableHandle.next_id)

    def set_count(self, count: int) -> None:
        """Set it; hooks that were made to come here have lower numbers."""
        RemovableHandle.next_id = count

    def uncaptured(self) -> list[str]:
        """Return what the loop has registered or removed for all modules or optimizers, in words."""
        now = _global()
        return [*_kept(), *(f"hooks of every {name.partition(' ')[0]}" for name, held in now.items() if held != self._before[name])]


def _kept() -> list[str]:
    """Return what weights in other forms PyTorch keeps as long as a loop is inside of a `with`: a resumed run would
    make them anew, of weights that have been trained since.
    """
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    found = []
    if depth and torch.is_autocast_cache_enabled():
        found.append("weights that `torch.autocast` around the loop has converted and keeps")
    if parametrize._cache:
        found.append("what `parametrize.cached` around the loop keeps")
    return found


def _global() -> dict[str, list[tuple[int, int]]]:
    return {name: [(key, id(hook)) for key, hook in held.items()] for name, held in _GLOBAL.items() if isinstance(held, dict)}
