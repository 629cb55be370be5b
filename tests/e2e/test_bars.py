"""Progress bars: what they count is exact where the program reads it; what no resumed run has is refused in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.programs import PRELUDE
from tests.e2e.runs import Run, bare_python

BARS = (
    PRELUDE
    + """
from tqdm.auto import tqdm
optimizer, outer = Optimizer(np.ones(3)), tqdm(total=99)
for epoch in (bar := tqdm(range(4))):
    for step in tqdm(range(3), leave=False):
        optimizer.apply_gradients(np.random.normal(size=3))
        outer.update()
        die(f"{epoch}:{step}")
    bar.set_postfix(weights=optimizer.weights.sum())
    print(epoch, bar.postfix, outer.n, type(bar.iterable_next()), flush=True)
show(optimizer.weights)
"""
)


@pytest.mark.parametrize("every", ["1", "2b"])
def test_bars_of_tqdm_that_choose_themselves(every: str, tmp_path: Path, detrain: Run) -> None:
    (tmp_path / "program.py").write_text(BARS)
    whole = detrain("run", "--ckpt", "whole", "program.py", cwd=tmp_path)
    detrain("run", "--every", every, "program.py", cwd=tmp_path, DIE_AT="2:2")
    last = detrain("run", "--every", every, "--strict", "program.py", cwd=tmp_path)

    assert (whole.status, last.status) == (0, 0), last.err
    assert "not captured" not in whole.err + last.err
    assert last.out == whole.out[-len(last.out) :]


LEFT = (
    PRELUDE
    + """
from tqdm import tqdm
optimizer = Optimizer(np.ones(3))
for epoch in range(4):
    bar = tqdm(range(5))
    for step in {over}:
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{{epoch}}:{{step}}")
        if step == 2:
            break
    print(epoch, bar.n, bar.disable, flush=True)
print(bar.n)
show(optimizer.weights)
"""
)


@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize("over", [pytest.param("bar", marks=pytest.mark.fast), "(step for step, _ in enumerate(bar))"])
def test_a_bar_that_a_break_leaves_has_counted_what_it_counts_under_plain_python(
    over: str, every: str, tmp_path: Path, detrain: Run
) -> None:
    """A whole run printed 0 as well: the bar's iterator was let go of later."""
    (tmp_path / "program.py").write_text(LEFT.format(over=over))
    plain = bare_python(tmp_path / "program.py")
    whole = detrain("run", "--ckpt", "whole", "--every", every, "program.py", cwd=tmp_path)
    detrain("run", "--every", every, "program.py", cwd=tmp_path, DIE_AT="2:2")
    last = detrain("run", "--every", every, "program.py", cwd=tmp_path)

    assert (whole.status, last.status) == (0, 0), last.err
    assert whole.out == plain.out
    assert plain.out.startswith("0 2 True")
    assert last.out == whole.out[-len(last.out) :]
