"""What `detrain at` asks of the run that it starts, and what that answers: data alone, read without NumPy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from detrain.base.config import MOMENT
from detrain.base.cursor import Address

Prompt = Literal["pdb", "shell", "debugpy"]
"""What the user gets at a step, to look around."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is to stand, and what is wanted of it there."""

    at: Address
    until: Address
    """The last batch at which something is wanted."""
    when: str = ""
    """Only the first batch is meant at which this expression is true; it is not where a name in it is not bound yet."""
    within: str = ""
    """Not the loop's frame is meant, but that of the first call of this function in the body: its name, or with its
    class (`Net.training_step`)."""
    answers: str = ""
    """File that takes what is there: a `Found` as JSON a line."""
    expressions: tuple[str, ...] = ()
    """What the user has asked for; nothing: the names of the function that trains."""
    opens: Prompt | None = None
    port: int = 0
    """With debugpy: the one of this machine at which it waits; 0: one that is free."""
    saved: str = ""
    """File (.npz) that takes all tensors that training changes, by their keys."""
    values: str = ""
    """File (.npz) that takes what is shown, as far as it is an array, a number or a text, by its number."""

    @classmethod
    def of_environment(cls) -> Moment | None:
        """Return the moment that this process is to stand at, if there is one."""
        text = os.environ.get(MOMENT, "")
        return msgspec.json.decode(text, type=cls) if text else None

    def hand_over(self, answers: Path) -> dict[str, str]:
        """Return the environment variable that hands it to a run, which is to answer into a file."""
        return {MOMENT: msgspec.json.encode(msgspec.structs.replace(self, answers=str(answers))).decode()}


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an expression or a name stands for."""

    name: str
    kind: str
    """Its class; of a tensor dtype and shape, too."""
    value: str = ""
    """As Python writes it, cut off where it is long; of a number also its bits, in hexadecimal."""
    digest: str = ""
    """xxh3-128, hex, of a tensor's dtype, shape and bytes."""
    dtype: str = ""
    """Of a tensor, as files have it; empty for one whose bytes are not its value."""
    error: str = ""
    """What came of an expression that failed."""


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is there before the body of a batch."""

    at: Address
    shown: tuple[Shown, ...] = ()
    error: str = ""
    """How the condition failed."""
    back: int = 0
    """By how many steps the user has gone back from there."""
    is_over: bool = False
    """Whether that ended the search: a name that is not bound yet does not."""
