"""Records the demo of the README: a real run, killed and resumed, as an SVG of a terminal.

`python docs/demo/record.py`, from the root of the repository with `.[torch,examples]` installed, writes
`docs/_static/demo.svg`. The commands and the output are those of the PyTorch tutorial; nothing is written by hand.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "examples/digits/torch_train.py --epochs 3"
COMMANDS = f"""```console
$ detrain run --every 10b {PROGRAM}
epoch 1 step 15 loss 0.1
Killed
$ detrain run --every 10b {PROGRAM}
$ detrain run --ckpt whole {PROGRAM} | tail -1
$ detrain diff ckpt whole
```
"""
COLUMNS = 96


def main() -> None:
    """Run the commands, and write the picture."""
    sys.path.insert(0, str(ROOT))
    from tests.docs.console import commands_of, run_command

    screen = Console(record=True, width=COLUMNS, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        for command in commands_of(COMMANDS):
            screen.print(Text(f"$ {command.text}", "bold"))
            for line in run_command(command, Path(folder)).lines:
                style = "red" if line == "Killed" else "cyan" if line.startswith("detrain:") else ""
                screen.print(Text(line, "bold green" if line.startswith("weights") else style))
    svg = screen.export_svg(title="detrain")
    # Fonts of the system: the picture must not ask the network for any.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")
    (ROOT / "docs" / "_static" / "demo.svg").write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
