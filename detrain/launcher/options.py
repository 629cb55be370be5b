"""What a run is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from detrain.base.config import Every, JitPlan, Mode

_EACH_EPOCH: Final = Every(1, "epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run is asked for. The fields are those of `Config` of the same names."""

    every: Every = _EACH_EPOCH
    """In a program without a loop over epochs, a distance in epochs becomes 10 minutes."""
    keep: int = 3
    seed: int | None = None
    """None: that of the run to resume, or else `DEFAULT_SEED`."""
    keep_every: int | None = None
    keep_best: str = ""
    starts_anew: bool = False
    """Checkpoints that are there are not resumed from; they stay."""
    goes_on_from: str = ""
    """The cursor of the checkpoint to go on from; empty: the newest."""
    is_strict: bool = False
    stops_on_save_error: bool = True
    saves_on_sigterm: bool = True
    allows_environment: bool = False
    maps_to_cpu: bool = False
    allowed_losses: tuple[str, ...] = ()
    loader: Mode = "auto"
    guard: str = ""
    guards_gradients: bool = False
    ring: str = "device"
    goes_on_after_repeat: bool = False
    jit: JitPlan | None = None
    command: tuple[str, ...] = ()
