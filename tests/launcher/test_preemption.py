"""A notice of each cloud, from a stand-in of the address at which it tells a machine about itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from detrain.base.errors import UsageError
from detrain.launcher import preemption
from tests.e2e.runs import detrain, environment

PROGRAM = """
import time, torch
weight = torch.nn.Parameter(torch.randn(4))
optimizer = torch.optim.SGD([weight], 0.01)
for epoch in range(400):
    for step in range(4):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
        time.sleep(0.05)
"""
VARIABLES = {"aws": "AWS_EC2_METADATA_SERVICE_ENDPOINT", "gcp": "GCE_METADATA_HOST", "azure": "AZURE_METADATA_ENDPOINT"}


class Metadata:
    """The metadata of a machine of any cloud, by what each documents; `is_noticed`: it is to go."""

    def __init__(self) -> None:
        outer = self
        self.is_noticed = False

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                asked = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                self._answer(200 if asked else 400, "a-token")

            def do_GET(self) -> None:
                noticed = outer.is_noticed
                if self.path == "/latest/meta-data/spot/instance-action":
                    if self.headers["X-aws-ec2-metadata-token"] != "a-token":
                        self._answer(401, "")
                    else:
                        self._answer(200 if noticed else 404, '{"action": "terminate", "time": "2026-11-29T08:22:00Z"}')
                elif self.path == "/computeMetadata/v1/instance/preempted" and self.headers["Metadata-Flavor"] == "Google":
                    self._answer(200, "TRUE" if noticed else "FALSE")
                elif self.path.startswith("/metadata/scheduledevents?api-version=") and self.headers["Metadata"] == "true":
                    events = [{"EventType": "Freeze"}, *([{"EventType": "Preempt"}] if noticed else [])]
                    self._answer(200, json.dumps({"DocumentIncarnation": 1, "Events": events}))
                else:
                    self._answer(403, "")

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    made = Metadata()
    yield made
    made.stop()


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_a_notice_is_one_only_when_the_cloud_says_so(
    cloud: preemption.Cloud, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES[cloud], metadata.address if cloud == "gcp" else f"http://{metadata.address}/")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert not preemption._NOTICES[cloud]()
    metadata.is_noticed = True
    assert preemption._NOTICES[cloud]()


def test_an_answer_that_is_none_is_no_notice_and_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.getsockname()[1]}")

        def answer() -> None:
            link, _ = server.accept()
            with link:
                link.recv(1 << 16)
                link.sendall(b"503\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(OSError, match="no answer of HTTP"):
            preemption._by_gcp()


def test_a_machine_whose_metadata_do_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES["aws"], "http://127.0.0.1:1")

    with pytest.raises(UsageError, match="do not answer"):
        preemption.watch("aws")


@pytest.mark.slow
@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_a_run_on_a_machine_that_is_taken_away_ends_with_a_checkpoint(cloud: str, metadata: Metadata, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["run", "--every", "1000b", "--preemption", cloud, "program.py"]
    known = environment(**{VARIABLES[cloud]: f"http://{metadata.address}"})
    process = subprocess.Popen(
        [sys.executable, "-m", "detrain", *command], cwd=tmp_path, env=known, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not list(tmp_path.glob("ckpt/*.h5")) and time.monotonic() < until:
        time.sleep(0.1)
    metadata.is_noticed = True
    error = process.communicate(timeout=60)[1]

    assert process.returncode == -15, error
    assert f"{cloud} takes this machine away" in error
    assert "ended by SIGTERM with a checkpoint" in error
    assert len(list(tmp_path.glob("ckpt/*-l*.h5"))) == 1


def test_it_is_refused_where_the_notice_would_be_no_use(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = detrain("run", "--preemption", "gcp", "--on-sigterm", "ignore", "program.py", cwd=tmp_path)

    assert done.status == 64
    assert "--on-sigterm ignore" in done.err
