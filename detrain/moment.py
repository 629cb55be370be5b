"""Any moment of a run that is over, for use in code: the values that `detrain at` shows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detrain.moments.past_run import PastRun


@dataclass(frozen=True)
class Moment:
    """The state of a run before the body of a batch."""

    cursor: str
    """The cursor of the batch: `3:17`, or `1/3:17` if there is more than one loop."""
    step: int
    """The number of the step in the whole run, from 0."""
    since: str
    """The checkpoint from which the program was run again; empty if from its start."""
    shown: Mapping[str, str]
    """The text that `detrain at` shows for each name of the function that trains, or for each expression given."""
    values: Mapping[str, Any]
    """The values in `shown` that are tensors and arrays (as NumPy arrays), numbers or text. Others are only shown."""
    tensors: Mapping[str, Any]
    """All tensors that training changes, as arrays, by their keys in checkpoints."""


def at(
    cursor: str | int,
    program: str,
    arguments: Sequence[str] = (),
    *,
    expressions: Sequence[str] = (),
    within: str = "",
    home: str | os.PathLike[str] = "ckpt",
    is_module: bool = False,
    rank: int | None = None,
) -> Moment:
    """Run a program again, in a process of its own, to a step of its newest run, and return the state there.

    `cursor` is `3:17`, `1/3:17`, `last`, or the number of the step in the whole run. `expressions` are evaluated there
    instead of the names of the function that trains. With `within`, they are evaluated in the step's first call of a
    function of this name, not in the loop. `rank` chooses a rank of a job.

    As with `detrain at`, everything happens in a copy of the current folder, and each batch on the way is compared with
    the run's. The results are plain data: nothing is unpickled. Values of dtypes that NumPy lacks are arrays of
    ml_dtypes, or bytes.

    Raises UsageError for a step that the run does not have, StoreError if there is no run, and Diverged if the program
    no longer does the same.
    """
    run = _run(program, arguments, home, rank, is_module=is_module)
    found = _stand(run, run.address(f"step {cursor}" if isinstance(cursor, int) else cursor), expressions, within)
    assert found is not None
    return found


def first(
    when: str,
    program: str,
    arguments: Sequence[str] = (),
    *,
    since: str | int = 0,
    bisect: bool = False,
    expressions: Sequence[str] = (),
    within: str = "",
    home: str | os.PathLike[str] = "ckpt",
    is_module: bool = False,
    rank: int | None = None,
) -> Moment | None:
    """Return the state at the first step from `since` on at which an expression is true, None if there is no such step.

    With `bisect`, the expression must stay true from there on: most of the steps need not be run then.

    The other arguments and errors are those of `at`. Raises UsageError if the expression fails.
    """
    run = _run(program, arguments, home, rank, is_module=is_module)
    return _stand(run, run.address(f"step {since}" if isinstance(since, int) else since), expressions, within, when, bisects=bisect)


def _run(program: str, arguments: Sequence[str], home: str | os.PathLike[str], rank: int | None, *, is_module: bool) -> PastRun:
    from detrain.launcher.program import Program
    from detrain.moments.past_run import PastRun

    return PastRun.of(Program.find(program, is_module=is_module), arguments, Path(home), rank)


def _stand(
    run: PastRun, address: tuple[int, int, int], expressions: Sequence[str], within: str, when: str = "", *, bisects: bool = False
) -> Moment | None:
    import numpy as np

    from detrain.base.cursor import written
    from detrain.base.dtypes import named_dtype
    from detrain.moments.standing import stand

    with tempfile.TemporaryDirectory(prefix="detrain-moment-") as made:
        saved, values = Path(made, "tensors.npz"), Path(made, "values.npz")
        stood = stand(run, address, when=when, bisects=bisects, within=within, expressions=expressions, saved=saved, values=values)
        if not stood.found:
            return None
        (found,) = stood.found
        with np.load(saved) as file:
            tensors = dict(file)
        with np.load(values) as file:
            arrays = dict(file)
    known: dict[str, Any] = {}
    for number, shown in enumerate(found.shown):
        if (array := arrays.get(str(number))) is not None:
            known[shown.name] = array.view(named_dtype(shown.dtype)) if shown.dtype else array.item()
    return Moment(
        cursor=written(found.at),
        step=list(run.batches).index(found.at),
        since=stood.since,
        shown={each.name: f"{each.kind} {each.value}".strip() if not each.error else each.error for each in found.shown},
        values=known,
        tensors=tensors,
    )
