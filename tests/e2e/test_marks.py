"""What a library knows by its identity: a mark for "not given", a default that is there once. A loop makes an object
that holds them, dies, and goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.runs import compared, library

LIBRARY = """
_UNSET = object()
DEFAULTS = {"rate": 0.1}
_current = None


class Schedule:
    NEVER = object()

    def __init__(self, rate=_UNSET, until=NEVER):
        self.rate, self.until, self.defaults, self.calls = rate, until, DEFAULTS, 0

    def value(self):
        self.calls += 1
        rate = self.defaults["rate"] if self.rate is _UNSET else self.rate
        return rate / self.calls if self.until is Schedule.NEVER else 0.0


def decay(factor):
    DEFAULTS["rate"] *= factor


def current():
    global _current
    if _current is None:
        _current = Schedule()
    return _current
"""
PROGRAM = DIE("""
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import torch
import schedules

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = places = None
for epoch in range(5):
    if epoch == 1:
        schedule, places = MADE, (..., 0)
    for batch in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 3))[places or 0].square().sum().backward()
        if schedule is not None:
            optimizer.param_groups[0]["lr"] = schedule.value()
        optimizer.step()
        if epoch == 2 and batch == 1:
            schedules.decay(0.5)
        die(f"{epoch}:{batch}")
    print(epoch, schedules.DEFAULTS, schedule and schedule.calls, [each.hex() for each in model.weight.detach().flatten().tolist()])
print(schedule is None or schedules.current() is schedule)
""")
MADE = {"by its class": "schedules.Schedule()", "by the library, when it is first asked": "schedules.current()"}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize(("every", "death"), [("1", "3:2"), ("3b", "2:3"), ("1b", "1:1")])
def test_what_a_library_knows_by_its_identity_is_that(
    name: str, every: str, death: str, torch_server: Server, tmp_path: Path
) -> None:
    """In silence, an object that the loop had made took each of these for a value after a resume."""
    library(tmp_path, {"schedules.py": LIBRARY})
    whole, died, again = compared(torch_server, tmp_path, PROGRAM.replace("MADE", MADE[name]), every=every, at=death, whole="run")

    assert "REFUSED" not in died.err + again.err
    lines = again.out.splitlines()
    assert len(lines) == 6 - int(death[0])
    assert lines == whole.out.splitlines()[-len(lines) :]
