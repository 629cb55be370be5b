"""Progress bars: what they count is exact where the program reads it; what no resumed run has is refused in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.errors import NotCapturable
from tests.e2e.forkserver import Server
from tests.e2e.programs import PRELUDE
from tests.e2e.runs import Run, bare_python, compared

BARS = PRELUDE("""
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
""")


@pytest.mark.parametrize("every", ["1", "2b"])
def test_bars_of_tqdm_that_choose_themselves(every: str, tmp_path: Path, detrain: Run) -> None:
    whole, _, last = compared(detrain, tmp_path, BARS, "--strict", every=every, at="2:2", whole="run", is_tail=True)

    assert "not captured" not in whole.err + last.err


LEFT = PRELUDE("""
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
""")


@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize("over", [pytest.param("bar", marks=pytest.mark.fast), "(step for step, _ in enumerate(bar))"])
def test_a_bar_that_a_break_leaves_has_counted_what_it_counts_under_plain_python(
    over: str, every: str, tmp_path: Path, detrain: Run
) -> None:
    """A whole run printed 0 as well: the bar's iterator was let go of later."""
    (tmp_path / "program.py").write_text(LEFT.format(over=over))
    plain = bare_python(tmp_path / "program.py")
    whole = detrain("run", "--ckpt", "whole", "--every", every, "program.py", cwd=tmp_path).ok()
    detrain("run", "--every", every, "program.py", cwd=tmp_path, DIE_AT="2:2")
    last = detrain("run", "--every", every, "program.py", cwd=tmp_path).ok()

    assert whole.out == plain.out
    assert plain.out.startswith("0 2 True")
    assert last.out == whole.out[-len(last.out) :]


KEPT = PRELUDE("""
{imported}
class Box:
    bar = None
optimizer, bars, box, late = Optimizer(np.ones(3)), {{}}, Box(), None
for epoch in range(4):
    {made}
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
        {used}
        die(f"{{epoch}}:{{step}}")
    print(epoch, {shown}, flush=True)
show(optimizer.weights)
""")
MADE = {
    "in a dictionary": ("bars.setdefault(epoch % 2, {bar})", "bars[epoch % 2]"),
    "under a name that was None": ("late = late or {bar}", "late"),
    "under a name that was not there": ("first = {bar} if epoch == 0 else first", "first"),
    "on an object": ("box.bar = box.bar or {bar}", "box.bar"),
}


@pytest.mark.parametrize("every", ["1", "2b"])
@pytest.mark.parametrize("where", [pytest.param(each, marks=[pytest.mark.fast] * (each[0] == "i")) for each in MADE])
def test_a_bar_that_the_loop_makes_and_keeps_is_exact(where: str, every: str, tmp_path: Path, detrain: Run) -> None:
    made, place = MADE[where]
    text = KEPT.format(
        imported="from tqdm import tqdm",
        made=made.format(bar="tqdm(total=12, file=sys.stdout if epoch else None)"),
        used=f"{place}.update()",
        shown=f"{place}.n, len(bars)",
    )
    whole, died, last = compared(detrain, tmp_path, text, every=every, at="2:1", whole="run")

    assert "not captured" not in died.err
    lines = [line.rpartition("\r")[2] for line in last.out.splitlines() if line[:1].isdigit() or line.startswith("weights")]
    assert lines
    assert all(line in whole.out for line in lines)


@pytest.mark.parametrize(
    ("where", "is_refused"),
    [
        pytest.param("in a dictionary", True, marks=pytest.mark.fast),
        pytest.param("under a name that was None", False, marks=pytest.mark.fast),
        ("under a name that was not there", True),
        ("on an object", False),
    ],
)
def test_what_shows_and_is_not_there_in_a_resumed_run_is_refused_where_nothing_is_in_its_place(
    where: str, is_refused: bool, tmp_path: Path, detrain: Run
) -> None:
    """A progress of rich's has locks. It was called harmless, and the resumed program ended with an error."""
    made, place = MADE[where]
    (tmp_path / "program.py").write_text(
        KEPT.format(
            imported="from rich.progress import Progress",
            made=made.format(bar="Progress()"),
            used="pass",
            shown=f"len({place}.tasks)",
        )
    )
    whole = detrain("run", "--ckpt", "whole", "program.py", cwd=tmp_path)
    died = detrain("run", "program.py", cwd=tmp_path, DIE_AT="2:1")
    last = detrain("run", "program.py", cwd=tmp_path)

    assert ("REFUSED from here on" in died.err) is is_refused
    assert ("harmless" in died.err) is not is_refused
    assert last.status == (NotCapturable.exit_code if is_refused else 0), last.err
    assert is_refused or whole.out.endswith(last.out)


LOGGERS = PRELUDE("""
import logging, time
logging.basicConfig(stream=sys.stdout, format="%(name)s %(message)s")
class Part:
    def __init__(self, number):
        self.log, self.clock, self.out = logging.getLogger(f"part {number}"), time.time, sys.stdout
optimizer, parts = Optimizer(np.ones(3)), []
for epoch in range(4):
    parts.append(Part(epoch))
    for step in range(3):
        optimizer.apply_gradients(np.random.normal(size=3))
        die(f"{epoch}:{step}")
    for part in parts:
        part.log.warning(epoch)
        print(part.clock() > 0, file=part.out)
show(optimizer.weights)
""")


def test_loggers_clocks_and_streams_that_objects_of_the_loop_hold_are_found_by_their_names(tmp_path: Path, detrain: Run) -> None:
    _, died, _ = compared(detrain, tmp_path, LOGGERS, at="2:1", whole="run", is_tail=True)

    assert "not captured" not in died.err


SLOW_OR_NOT = """
import os, time, torch
from tqdm import tqdm
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for epoch in range(2):
    bar = tqdm(list(torch.arange(48.0).reshape(8, 2, 3)))
    for x in bar:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        bar.set_postfix(epoch=epoch)
        time.sleep(float(os.environ["NAP"]))
"""


def test_counts_that_tqdm_sets_by_the_clock_are_no_difference(torch_server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SLOW_OR_NOT)
    for home, nap in (("a", "0"), ("b", "0.15")):
        torch_server.detrain("run", "--every", "3b", "--keep", "9", "--ckpt", home, "program.py", cwd=tmp_path, NAP=nap).ok()

    run = torch_server.detrain("diff", "a", "b", cwd=tmp_path)

    assert run.status == 0, run.out
