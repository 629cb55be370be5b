"""Where weights change: the step of an optimizer, whatever the program calls it by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


def watch_updates(on_update: Callable[[int], None]) -> None:
    """Have each step of an optimizer told, with a number of the optimizer.

    PyTorch calls the hook also for derived classes, steps in hooks of `backward`, and compiled steps
    (`torch/optim/optimizer.py`, `profile_hook_step`); not where a `GradScaler` skips a step.
    """

    def stepped(optimizer: Any, _args: object, _kwargs: object) -> None:
        on_update(id(optimizer))

    register_optimizer_step_post_hook(stepped)
