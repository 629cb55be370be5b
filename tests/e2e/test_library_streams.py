"""What a library keeps for itself and no name of the program leads to: generators of random numbers, counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.runs import after_deaths, compared, library

LIBRARY = """
import random
import numpy as np
import torch

_python = random.Random(1)
_torch = torch.Generator().manual_seed(2)
_late = None


class Noise:
    legacy = np.random.RandomState(3)

    def __init__(self):
        self.new = np.random.default_rng(4)


_noise = Noise()


def late():
    global _late
    if _late is None:
        _late = random.Random(5)
    return _late.random()


_calls, _ready, _function = 0, 0, None


class Counted:
    made = 0.0


def count():
    global _calls
    _calls += 1
    return 1 / _calls


def count_in_class():
    Counted.made += 0.5
    return 1 / Counted.made


def set_up():
    global _ready, _function
    if not _ready:
        _ready, _function = 7, lambda: 0.25
    return _function()


DRAWS = {
    "a counter in a module": count,
    "a counter in a class": count_in_class,
    "what is set up once": set_up,
    "of Python in a module": _python.random,
    "of NumPy in a class": Noise.legacy.rand,
    "of NumPy in an object": lambda: float(_noise.new.random()),
    "of PyTorch in a module": lambda: torch.rand((), generator=_torch).item(),
    "that is made when it is first asked for": late,
}
"""
PROGRAM = DIE("""
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import torch
import noises

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.ones(16, 3), 4)
for epoch in range(4):
    for batch, x in enumerate(data):
        optimizer.zero_grad()
        (model(x).square().sum() * noises.DRAWS[NAME]()).backward()
        optimizer.step()
        die(f"{epoch}:{batch}")
    print(epoch, [each.hex() for each in model.weight.detach().flatten().tolist()], flush=True)
""")
EXACT = ("of Python in a module", "of NumPy in a class", "of NumPy in an object", "of PyTorch in a module", "a counter in a module")
EXACT += ("a counter in a class", "what is set up once")
LATE = "that is made when it is first asked for"


def program(name: str, folder: Path) -> str:
    """Return a program that draws by the library, which is written into a folder."""
    library(folder, {"noises.py": LIBRARY})
    return PROGRAM.replace("NAME", repr(name))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("every", "death"), [("1", "2:2"), ("3b", "1:1"), ("1b", "2:1")])
def test_what_a_library_keeps_for_itself_is_state(name: str, every: str, death: str, torch_server: Server, tmp_path: Path) -> None:
    """A resumed run went on from where that had begun, in silence.

    What a library has set up once, it sets up again: a number that tells of that stays as it is.
    """
    whole, died, again = compared(torch_server, tmp_path, program(name, tmp_path), every=every, at=death, whole="run")

    lines = again.out.splitlines()
    assert len(lines) == 4 - int(death[0])
    assert lines == whole.out.splitlines()[-len(lines) :]
    assert "REFUSED" not in died.err + again.err


def test_a_generator_that_a_library_makes_in_the_loop_is_named(torch_server: Server, tmp_path: Path) -> None:
    died, again = after_deaths(torch_server, tmp_path, program(LATE, tmp_path), at="2:2")

    said = "noises._late (a generator that a library has made since)"
    assert f"not captured, a resumed run will be REFUSED from here on: {said}" in died.err
    assert again.status == 79, again.out
    assert said in again.err
