"""The process behind `tests/e2e/forkserver.py`: it forks a process for each connection, which reads requests (a line of
JSON each), forks a run for each, and answers with its status.

It imports no module of the tests, and has no file name: a run must not take it for the user's program.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

_GRACE_S = 10.0
_BESIDE = {
    "numpy": ("h5py", "concurrent.futures.process", "email.parser"),
    "torch": ("torch._dynamo", "h5py", "concurrent.futures.process"),
    "jax": ("optax", "flax.linen", "flax.nnx", "flax.training.train_state", "equinox", "h5py"),
}
"""Other modules to import, by framework (NumPy stands for none). They must make no arrays, as none outlives a fork.
Unused modules cost each run time: it looks at all modules."""


def serve() -> None:
    """Accept connections until the standard input ends, and then those that already wait."""
    import importlib
    import select
    import socket

    import detrain.cli.run
    import detrain.instrument.rewriter
    import detrain.runtime.session.launch  # noqa: F401

    framework = sys.argv[3]
    importlib.import_module(framework)
    for library in _BESIDE.get(framework, ()):
        importlib.import_module(library)
    if framework != "numpy":
        importlib.import_module(f"detrain.adapters.{framework}.adapter")

    listener, is_over = socket.socket(fileno=int(sys.argv[4])), False
    while True:
        ready, _, _ = select.select([listener] if is_over else [listener, 0], [], [], 0 if is_over else None)
        if listener in ready:
            connection = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                _answer(connection)
            connection.close()
        elif is_over:
            listener.close()
            return
        is_over = is_over or 0 in ready


def _answer(connection: Any) -> NoReturn:
    """Answer the requests of one process of the tests until it closes the connection."""
    lines = connection.makefile("rw")
    for line in lines:
        requests = json.loads(line)
        children = []
        for request in requests:
            child = os.fork()
            if child == 0:
                _become_a_run(request)
            children.append(child)
        lines.write(f"{json.dumps(_wait_for_ranks(children, requests))}\n")
        lines.flush()
    os._exit(0)


def _signalled(child: int, fault: dict[str, Any]) -> bool:
    """Send a process the fault's signal, some seconds after its journal has the fault's number of batches."""
    try:
        with open(fault["journal"], "rb") as file:
            if file.read().count(b"\xa1b") < fault["batches"]:
                return False
    except OSError:
        return False
    time.sleep(fault["later_s"])
    os.kill(child, fault["signal"])
    return True


def _wait_for_ranks(children: list[int], requests: list[dict[str, Any]]) -> list[int]:
    """Return the statuses of processes. If one fails, the others are ended soon after, as launchers of jobs do."""
    left, found = dict(enumerate(children)), {}
    faults = {rank: request["fault"] for rank, request in enumerate(requests) if request.get("fault")}
    deadline = time.monotonic() + float(sys.argv[2])
    while left:
        for rank in [rank for rank, fault in faults.items() if rank not in left or _signalled(left[rank], fault)]:
            del faults[rank]
        for rank, child in list(left.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del left[rank]
                found[rank] = os.waitstatus_to_exitcode(status)
                if found[rank]:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        if time.monotonic() > deadline:
            for child in left.values():
                os.kill(child, signal.SIGKILL)
            found |= {rank: _wait(child) for rank, child in left.items()}
            break
        time.sleep(0.0005 if faults else 0.005)
    return [found[rank] for rank in range(len(children))]


def _wait(child: int) -> int:
    deadline = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124  # as the command `timeout` does


def _become_a_run(request: dict[str, Any]) -> NoReturn:
    import atexit
    import threading

    status = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(request["cwd"])
        os.environ.update(request["changes"])
        if "torch" in sys.modules and "OMP_NUM_THREADS" in request["changes"]:
            sys.modules["torch"].set_num_threads(int(request["changes"]["OMP_NUM_THREADS"]))
        sys.path[1:1] = filter(None, request["changes"].get("PYTHONPATH", "").split(os.pathsep))
        _forget_frameworks()
        status = _bare(request["code"], request["command"]) if request["code"] else _detrain(request["command"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)


class _Become(BaseException):
    """The command replaces itself by the program."""


def _detrain(command: list[str]) -> int:
    from detrain.cli import main
    from detrain.runtime.session import launch

    replaced = os.execve

    def become(_path: str, _command: list[str], variables: dict[str, str]) -> NoReturn:
        os.environ.update(variables)
        raise _Become

    os.execve = become
    sys.argv = ["detrain", *command]
    try:
        return main()
    except _Become:
        os.execve = replaced
        del sys.path[0]  # as `start.py` does
        launch.main()
    return 0


def _bare(code: str, command: list[str]) -> int:
    sys.argv = ["-c", *command]
    exec(compile(code, "<oracle>", "exec"), {"__name__": "__main__"})
    return 0


def _forget_frameworks() -> None:
    """Make the next imports of the frameworks look like the first ones, at no cost."""
    import importlib.abc
    import importlib.machinery

    names = {
        "tensorflow": ("tensorflow", "keras"),
        "torch": ("torch",),
        "jax": ("jax", "optax", "flax", "equinox"),
    }.get(sys.argv[3], ())
    known = {name: sys.modules.pop(name) for name in names}
    find = importlib.machinery.PathFinder.find_spec

    class Again(importlib.abc.Loader):
        def create_module(self, spec: Any) -> Any:
            return known[spec.name]

        def exec_module(self, module: Any) -> None:
            if module is known.get("tensorflow"):  # imports Keras
                sys.modules.setdefault("keras", known["keras"])
            elif module is known.get("keras"):
                import tensorflow  # noqa: F401
            elif "jax" in known:
                import jax  # noqa: F401

    def found(name: str, *arguments: Any) -> Any:
        spec = find(name, *arguments)
        if name in known and spec is not None:
            spec.loader = Again()
        return spec

    importlib.machinery.PathFinder.find_spec = found  # type: ignore[method-assign]


if __name__ == "__main__":
    serve()
