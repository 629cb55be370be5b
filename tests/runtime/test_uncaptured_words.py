"""Three words for what no checkpoint holds: harmless, may differ, refused; each said once."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base import messages
from detrain.runtime.state.uncaptured import is_refused, may_differ

PROGRAM = """
writer.add_scalar("loss", loss)
log.write("x")
if tuner.best > 3:
    stop()
"""


@pytest.mark.parametrize(
    ("loss", "differs"),
    [
        ("writer (torch.utils.tensorboard.writer.SummaryWriter: it has moved on)", False),
        ("log in main() (_io.TextIOWrapper: open for writing)", False),
        ("optimizer.log (_io.TextIOWrapper)", False),
        ("tuner (somelib.Tuner: it has moved on)", True),
        ("writer (function: its code is not in the source)", True),
        ("state.json (file: the loop changes it in place)", True),
        ("what the thread worker holds", True),
        ("figures of matplotlib.pyplot that stay open (drawn into in the loop)", False),
    ],
)
def test_only_what_the_program_tells_things_is_called_harmless(loss: str, differs: bool, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    assert may_differ(loss, [str(program)]) == differs
    assert not is_refused(loss)


def test_a_warning_is_said_once_in_a_process(capfd: pytest.CaptureFixture[str]) -> None:
    for text in ("one for this test", "another for this test", "one for this test"):
        messages.warn(text)

    assert capfd.readouterr().err.splitlines() == [
        "detrain: warning: one for this test",
        "detrain: warning: another for this test",
    ]
