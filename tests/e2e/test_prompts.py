"""What opens at a moment of a run that is over, tried as a person would: through a terminal, and by the protocol that
editors speak with debuggers. What is there is compared with what an uninterrupted run without detrain had.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detrain.base.errors import UsageError
from detrain.cli import main
from tests.e2e.runs import TIMEOUT_S, detrain, environment
from tests.e2e.test_at import PROGRAM, digests, run

pytest.importorskip("torch")
__all__ = ["run"]
WEIGHT = "model[0].weight.detach().numpy().tobytes().hex()"
FIRST_LINE = next(line.strip() for line in PROGRAM.splitlines() if "DUMP" in line)


class Terminal:
    """A process in a terminal of its own."""

    def __init__(self, *command: object, cwd: Path, **changes: str) -> None:
        self.file, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        words = [sys.executable, "-m", "detrain", *map(str, command)]
        env = environment(TERM="dumb", **changes)
        self.process = subprocess.Popen(words, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)

    def read_to(self, end: str) -> str:
        """Return what is printed up to a prompt; of a process that ends, all."""
        said = ""
        while not said.endswith(end):
            try:
                data = os.read(self.file, 4096)
            except OSError:  # it has ended
                break
            if not data:
                break
            said += data.decode(errors="replace")
        return said.replace("\r\n", "\n")

    def ask(self, line: str, prompt: str) -> str:
        """Give it a line, and return what it says."""
        os.write(self.file, f"{line}\n".encode())
        return self.read_to(prompt).removesuffix(prompt).strip()

    def end(self) -> int:
        """Return its exit status."""
        self.read_to("nothing more")
        return self.process.wait(TIMEOUT_S)


def had(run: Path, at: str, name: str) -> str:
    """What the bare run had there, as hexadecimal bytes."""
    return np.load(run.parent / f"had-{at.replace(':', '-')}.npz")[name].tobytes().hex()


@pytest.mark.slow
def test_a_debugger_in_a_terminal_goes_back_step_by_step(run: Path) -> None:
    before, prompt = digests(run), "(Pdb) "
    terminal = Terminal("at", "--pdb", "1:3", "program.py", cwd=run)

    assert f"-> {FIRST_LINE}" in terminal.read_to(prompt)
    assert had(run, "1:3", "x") in terminal.ask("p x.numpy().tobytes().hex()", prompt)
    terminal.ask("n", prompt)
    assert "there are 8 steps before this one" in terminal.ask("back 9", prompt)
    assert "no number of steps" in terminal.ask("back -1", prompt)
    os.killpg(terminal.process.pid, signal.SIGINT)  # Ctrl-C
    assert "KeyboardInterrupt" in terminal.read_to(prompt)
    for command, at, cursor in (("back 2", "1:1", "(1, 1)"), ("back", "1:0", "(1, 0)"), ("back 5", "0:0", "(0, 0)")):
        assert f"-> {FIRST_LINE}" in terminal.ask(command, prompt)
        assert terminal.ask("p epoch, step", prompt) == cursor
        assert had(run, at, "x") in terminal.ask("p x.numpy().tobytes().hex()", prompt)
        assert had(run, at, "weight") in terminal.ask(f"p {WEIGHT}", prompt)
    os.write(terminal.file, b"q\n")

    assert terminal.end() == 0
    assert digests(run) == before


@pytest.mark.slow
def test_it_is_ipythons_where_the_user_takes_that(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    prompt, ways = "ipdb> ", {"PYTHONBREAKPOINT": "ipdb.set_trace", "IPYTHONDIR": str(tmp_path), "IPY_TEST_SIMPLE_PROMPT": "1"}
    terminal = Terminal("at", "--pdb", "1:3", "program.py", cwd=run, **ways)

    assert FIRST_LINE.partition(" ")[0] in terminal.read_to(prompt)
    assert had(run, "1:3", "x") in terminal.ask("p x.numpy().tobytes().hex()", prompt)
    assert FIRST_LINE.partition(" ")[0] in terminal.ask("back 2", prompt)
    assert terminal.ask("p epoch, step", prompt) == "(1, 1)"
    os.write(terminal.file, b"q\n")
    assert terminal.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("has_ipython", [True, False])
def test_a_shell_has_the_names_of_the_run(run: Path, tmp_path: Path, *, has_ipython: bool) -> None:
    if has_ipython:
        pytest.importorskip("IPython")
    else:
        (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['IPython'] = None")
    lines = ["print('at', epoch, step)", "print([len(history) for _ in range(2)])", f"print({WEIGHT})", "exit()"]
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    changes = {"PYTHONPATH": paths, "IPYTHONDIR": str(tmp_path)}
    done = detrain("at", "--shell", "1:3", "program.py", cwd=run, given="\n".join(lines) + "\n", **changes).ok()

    assert ("In [1]:" in done.out) is has_ipython
    assert re.search(r"\bat 1 3\n", done.out)
    assert "[8, 8]" in done.out
    assert had(run, "1:3", "weight") in done.out


class Client:
    """Speaks the Debug Adapter Protocol."""

    def __init__(self, port: int) -> None:
        self._file = socket.create_connection(("127.0.0.1", port), timeout=60).makefile("rwb")
        self._count = 0

    def send(self, command: str, **arguments: Any) -> None:
        self._count += 1
        body = json.dumps({"seq": self._count, "type": "request", "command": command, "arguments": arguments}).encode()
        self._file.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._file.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        while line := self._file.readline():
            length = int(line.partition(b":")[2])
            self._file.readline()
            yield json.loads(self._file.read(length))

    def event(self, name: str) -> dict[str, Any]:
        return next(each.get("body", {}) for each in self.messages() if each.get("event") == name)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.send(command, **arguments)
        answer = next(each for each in self.messages() if each.get("command") == command and each["type"] == "response")
        assert answer["success"], answer
        return answer.get("body", {})


@pytest.fixture
def listening(run: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that waits for a debugger before 1:3."""
    words = ["at", "--listen", "0", "1:3", "program.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "detrain", *words], cwd=run, env=environment(), stderr=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("debugpy") is None, reason="debugpy is not installed")
def test_an_editor_stands_in_the_programs_own_frame(run: Path, listening: subprocess.Popen[str]) -> None:
    before, said = digests(run), listening.stderr or ()
    port = next(int(found[1]) for line in said if (found := re.search(r"debugger at 127\.0\.0\.1:(\d+)", line)))
    client = Client(port)
    client.ask("initialize", adapterID="test", pathFormat="path")
    client.send("attach", justMyCode=True)
    client.event("initialized")
    client.ask("configurationDone")
    thread = client.event("stopped")["threadId"]

    frame = client.ask("stackTrace", threadId=thread)["stackFrames"][0]
    (scope, *_) = client.ask("scopes", frameId=frame["id"])["scopes"]
    variables = client.ask("variables", variablesReference=scope["variablesReference"])["variables"]
    weight = client.ask("evaluate", expression=WEIGHT, frameId=frame["id"])["result"]
    client.ask("next", threadId=thread)
    client.event("stopped")
    following = client.ask("stackTrace", threadId=thread)["stackFrames"][0]
    client.ask("continue", threadId=thread)
    client.event("terminated")

    lines = PROGRAM.splitlines()
    assert (Path(frame["source"]["path"]).name, lines[frame["line"] - 1].strip()) == ("program.py", FIRST_LINE)
    assert {each["name"]: each["value"] for each in variables if each["name"] in ("epoch", "step")} == {"epoch": "1", "step": "3"}
    assert weight.strip("'") == had(run, "1:3", "weight")
    assert lines[following["line"] - 1].strip().startswith("loss = ")
    assert listening.wait(TIMEOUT_S) == 0
    assert digests(run) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pdb", "--shell"), "--pdb with --shell"),
        (("--listen", "0", "--pdb"), "--pdb with --listen"),
        (("--listen", "0"), "--listen needs debugpy, which is not installed"),
        (("--shell", "--until", "1:3"), "--until with --shell"),
    ],
)
def test_what_cannot_be_opened_is_refused_before_anything_is_run(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "debugpy", None)

    assert main(["at", *words, "1:2", "program.py"]) == UsageError.exit_code
    assert said in capsys.readouterr().err
