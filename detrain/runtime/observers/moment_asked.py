"""The questions that `detrain at` hands to the run that it starts, and the run's answers: plain data, without NumPy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from detrain.base.config import MOMENT
from detrain.base.cursor import Address

Prompt = Literal["pdb", "shell", "debugpy"]
"""The prompt at which the user can look around at a step."""


class AskedMoment(msgspec.Struct, frozen=True, kw_only=True):
    """The moment at which a run is to stop, and the questions about it."""

    at: Address
    until: Address
    """The last batch that the questions are about."""
    when: str = ""
    """Answer only at the first batch where this expression is true; a name that is not bound yet makes it false."""
    within: str = ""
    """Answer in the first call of this function in the body instead of the loop's frame: its name, or with its class
    (`Net.training_step`)."""
    answers: str = ""
    """File for the answers: each line is a `Found` as JSON."""
    expressions: tuple[str, ...] = ()
    """The expressions that the user has asked for; if there are none, show the names of the function that trains."""
    opens: Prompt | None = None
    port: int = 0
    """With debugpy: the port of this machine at which it waits; 0: a free one."""
    saved: str = ""
    """File (.npz) for all tensors that training changes, by their keys."""
    values: str = ""
    """File (.npz) for the shown values that are arrays, numbers or text, by their place in the answer."""

    @classmethod
    def of_environment(cls) -> AskedMoment | None:
        """Return the moment at which this process is to stop, if there is one."""
        text = os.environ.get(MOMENT, "")
        return msgspec.json.decode(text, type=cls) if text else None

    def hand_over(self, answers: Path) -> dict[str, str]:
        """Return the environment variable that hands the moment to a run; the run answers into the file `answers`."""
        return {MOMENT: msgspec.json.encode(msgspec.structs.replace(self, answers=str(answers))).decode()}


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of an expression or a name, described as text."""

    name: str
    kind: str
    """The value's class; for a tensor, also its dtype and shape."""
    value: str = ""
    """The value as Python writes it, cut off if it is long; for a number, also its bits in hexadecimal."""
    digest: str = ""
    """xxh3-128, hex, of a tensor's dtype, shape and bytes."""
    dtype: str = ""
    """A tensor's dtype, as files name it; empty if its bytes are not its value."""
    error: str = ""
    """The error of an expression that failed."""


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer before the body of a batch."""

    at: Address
    shown: tuple[Shown, ...] = ()
    error: str = ""
    """The error of the condition (`when`)."""
    back: int = 0
    """Number of steps by which the user goes back from there."""
    is_over: bool = False
    """Whether that error ended the search; a name that is not bound yet does not end it."""
