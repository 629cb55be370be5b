"""Fresh processes at a second each: a server that has imported a framework, and made nothing with it, forks one for
every run.

Several processes of the tests may share a server: each has a fork of it, which forks its runs. Each run is a process of
its own, with the environment, the folder and the output asked for; it is killed, and dies, as any process does. Such a
run does not test the start of an interpreter: `tests/e2e/runs.py` starts real ones. Nor does it draw the random numbers
of imports that the server has done before (rich draws one): its weights may differ from those of a fresh process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.runs import ORACLES, ROOT, TIMEOUT_S, Result, environment

_SERVER: Final = Path(__file__).with_name("forking.py")
_START: Final = "import sys; exec(compile(open(sys.argv[1]).read(), '<forking>', 'exec'))"
"""The server's frames are on the stack of each run: without a file, no run takes them for the user's program."""


def _asks_for_tensorflow(cwd: Path, words: Sequence[str]) -> bool:
    """Return True if a program that a command may run contains the name of TensorFlow or Keras."""
    folders = {Path(cwd, word).parent for word in words if word.endswith(".py")} | ({cwd} if cwd != ROOT else set())
    files = [file for folder in folders for file in (folder.rglob("*.py") if folder == cwd else folder.glob("*.py"))]
    return any(name in file.read_bytes() for file in files if file.is_file() for name in (b"tensorflow", b"keras"))


class Server:
    """A server that starts runs. Servers of the same name share one process that has imported the framework: the first
    of them starts it.
    """

    def __init__(self, framework: str = "tensorflow", name: str = "", **changes: str) -> None:
        self._framework, self._changes, self._name = framework, changes, name
        self._without: Server | None = None
        self._process: subprocess.Popen[bytes] | None = None
        address = f"\0detrain-tests-{name or f'{os.getpid()}-{id(self)}'}-{framework}"  # abstract: no file is left
        self._connection = self._connected(address)
        self._file = self._connection.makefile("rw")

    def _connected(self, address: str) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(address)
            except ConnectionRefusedError:
                connection.close()
                self._start(address)
            else:
                return connection

    def _start(self, address: str) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(address)
            except OSError:  # another process is starting it, and does not listen yet
                time.sleep(0.01)
                return
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(_SERVER), str(3 * TIMEOUT_S), self._framework, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                env=environment(PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))),
                pass_fds=[listener.fileno()],
            )

    def detrain(self, *command: object, cwd: Path = ROOT, **changes: str) -> Result:
        """Run the command `detrain`. If the program does not use TensorFlow, it runs in a process that has not imported
        it and has fewer modules to look at.
        """
        words = [*map(str, command)]
        if self._framework != "tensorflow" or _asks_for_tensorflow(cwd, words):
            return self._run("", words, cwd, changes)
        self._without = self._without or Server("numpy", self._name, **self._changes)
        return self._without._run("", words, cwd, changes)

    def bare(self, *command: object, cwd: Path, **changes: str) -> Result:
        """Run a program with the same determinism settings and without detrain."""
        return self._run(ORACLES[self._framework], [*map(str, command)], cwd, changes)

    def job(
        self,
        *command: object,
        cwd: Path,
        ranks: Sequence[dict[str, str]],
        is_bare: bool = False,
        faults: Mapping[int, object] = {},
    ) -> list[Result]:
        """Run a command in several processes of one job, each with its own changes of the environment. `faults`: the
        signals to send, by rank (see `forking.py`).
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        job = {"WORLD_SIZE": str(len(ranks)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        each = [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank), **changes} for rank, changes in enumerate(ranks)]
        return self._run_all(ORACLES[self._framework] if is_bare else "", [*map(str, command)], cwd, each, faults)

    def _run(self, code: str, command: Sequence[str], cwd: Path, changes: dict[str, str]) -> Result:
        return self._run_all(code, command, cwd, [changes])[0]

    def _run_all(
        self,
        code: str,
        command: Sequence[str],
        cwd: Path,
        each: Sequence[dict[str, str]],
        faults: Mapping[int, object] = {},
    ) -> list[Result]:
        with tempfile.TemporaryDirectory() as folder:
            same = {"code": code, "command": command, "cwd": str(cwd)}
            requests = [
                {**same, "changes": changes, "out": f"{folder}/out{n}", "err": f"{folder}/err{n}", "fault": faults.get(n)}
                for n, changes in enumerate(self._changes | own for own in each)
            ]
            self._file.write(json.dumps(requests) + "\n")
            self._file.flush()
            answer = self._file.readline()
            assert answer, "the server has died"
            paths = [[Path(str(request[kind])) for kind in ("out", "err")] for request in requests]
            # A run that was killed at its start has made no files.
            texts = [[path.read_text(errors="replace") if path.is_file() else "" for path in each] for each in paths]
            return [Result(status, *text) for status, text in zip(json.loads(answer), texts, strict=True)]

    def close(self) -> None:
        """End the server, if this process has started it; the other processes that share it keep their forks."""
        if self._without is not None:
            self._without.close()
        self._file.close()
        self._connection.close()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
