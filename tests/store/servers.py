"""Servers on this machine for the tests of mirrors: S3, SFTP, and one that never answers."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest


class S3Server:
    """A server of S3 with its buckets in memory, among them one named `runs`."""

    def __init__(self) -> None:
        self.port = 0
        self.is_full = False
        self.begin()

    def begin(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port)
        self._server.start()
        _host, self.port = self._server.get_host_and_port()
        serves: Any = self._server._server
        app = serves.app

        def answer(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
            if self.is_full and environ["REQUEST_METHOD"] == "PUT":
                start("507 Insufficient Storage", [])
                return []
            served: Iterable[bytes] = app(environ, start)
            return served

        serves.app = answer

    @property
    def url(self) -> str:
        return "s3://runs/deep"

    def stop(self) -> None:
        self._server.stop()

    def lose_all(self) -> None:
        """Delete all objects; the bucket is made again."""
        from moto.backends import get_backend

        get_backend("s3")["123456789012"]["aws"].reset()
        self.client().create_bucket(Bucket="runs")

    def client(self) -> Any:
        return pytest.importorskip("boto3").client("s3")

    def objects(self) -> dict[str, bytes]:
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="runs")
        names = [each["Key"] for page in pages for each in page.get("Contents", [])]
        return {name: client.get_object(Bucket="runs", Key=name)["Body"].read() for name in names}


@pytest.fixture
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name in ("moto.server", "boto3", "s3fs"):
        pytest.importorskip(name)
    made = S3Server()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{made.port}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    made.lose_all()
    yield made
    made.stop()


class SilentServer:
    """A server that accepts connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        held = []
        with contextlib.suppress(OSError):  # closed
            while True:
                held.append(self._socket.accept())

    def stop(self) -> None:
        self._socket.close()


class SshServer:
    """An SSH daemon for this user alone, with keys of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / ".ssh").mkdir()
        for key in (folder / "host", folder / ".ssh" / "id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (folder / "settings").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/.ssh/id_ed25519.pub\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nSubsystem sftp internal-sftp\n"
        )
        if os.getuid() == 0:  # as root, sshd needs this folder as its jail
            Path("/run/sshd").mkdir(exist_ok=True)
        self.begin()

    @property
    def url(self) -> str:
        return f"sftp://{getpass.getuser()}@127.0.0.1:{self.port}{self.folder}/mirror"

    def begin(self) -> None:
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        self._process = subprocess.Popen(
            [str(program), "-D", "-e", "-f", self.folder / "settings"], stderr=subprocess.DEVNULL, start_new_session=True
        )
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
                if link.recv(3) == b"SSH":
                    return
            time.sleep(0.05)
        raise AssertionError("sshd does not answer")

    def stop(self) -> None:
        """End the daemon, and all connections to it."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        """Stop the daemon and all connections to it until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        pids = [self._process.pid]
        for pid in pids:
            with contextlib.suppress(OSError):  # the process has ended
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                os.kill(pid, number)


@pytest.fixture
def ssh_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    pytest.importorskip("paramiko")
    if shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("no sshd on this machine")
    (tmp_path / "shell").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "shell"))
    made = SshServer(tmp_path / "shell")
    yield made
    made.stop()
