"""Pass a cloud's notice that it takes this machine away on to the run as SIGTERM.

A process beside the run asks the cloud's metadata service about this machine every five seconds. It is no child of the
program, and ends with it.

Sources: Amazon EC2 User Guide, "Spot Instance interruption notices", and "Use IMDSv2"; Google Compute Engine, "Create
and use Spot VMs", "Detect preemption"; Azure, "Scheduled Events for Linux VMs".
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

from detrain.base import messages
from detrain.base.child_processes import start_apart
from detrain.base.errors import UsageError

Cloud = Literal["aws", "gcp", "azure"]
_POLL_S: Final = 5.0
_ANSWER_S: Final = 2.0
_ADDRESSES: Final[dict[Cloud, tuple[str, str]]] = {
    "aws": ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254"),
    "gcp": ("GCE_METADATA_HOST", "http://metadata.google.internal"),
    "azure": ("AZURE_METADATA_ENDPOINT", "http://169.254.169.254"),
}
"""The environment variable with another address, and the usual address."""
_WITHOUT_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _asked(cloud: Cloud, path: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
    """Return the text of the machine's metadata at a path, None if the path does not exist (404). Raises OSError."""
    variable, usual = _ADDRESSES[cloud]
    address = os.environ.get(variable) or usual
    address = address if "://" in address else f"http://{address}"
    request = urllib.request.Request(f"{address.rstrip('/')}{path}", headers=dict(headers), method=method)
    try:
        with _WITHOUT_PROXY.open(request, timeout=_ANSWER_S) as answer:
            text: str = answer.read().decode(errors="replace")
            return text
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    except http.client.HTTPException as error:  # an answer that is none, as from a service that is just being restarted
        raise OSError(f"no answer of HTTP ({error!r})") from error


def _by_aws() -> bool:
    token = _asked("aws", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    return _asked("aws", "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token or ""}) is not None


def _by_gcp() -> bool:
    return (_asked("gcp", "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}) or "").strip() == "TRUE"


def _by_azure() -> bool:
    said = _asked("azure", "/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    events = json.loads(said or "{}").get("Events", [])
    return any(event.get("EventType") in ("Preempt", "Terminate") for event in events)


_NOTICES: Final[dict[Cloud, Callable[[], bool]]] = {"aws": _by_aws, "gcp": _by_gcp, "azure": _by_azure}


def watch(cloud: Cloud) -> None:
    """Have SIGTERM sent to this process, which becomes the program, when its machine is taken away. Raises UsageError
    if the machine's metadata service does not answer.
    """
    try:
        _NOTICES[cloud]()
    except (OSError, ValueError) as error:
        variable, usual = _ADDRESSES[cloud]
        raise UsageError(
            f"--preemption {cloud}: the metadata of this machine do not answer ({error})",
            f"is it a machine of {cloud}? The address is {usual}, or what ${variable} says",
        ) from error
    start_apart("detrain.launcher.preemption", cloud, str(os.getpid()))


def main(cloud: Cloud, pid: int) -> None:
    """Ask until the run is over, or until the notice has come and SIGTERM is sent."""
    try:
        process = os.pidfd_open(pid)
    except OSError:  # the run is over already
        return
    while not select.select([process], [], [], _POLL_S)[0]:
        with contextlib.suppress(OSError, ValueError):  # on an error, the next turn asks again
            if _NOTICES[cloud]():
                messages.say(f"{cloud} takes this machine away: the run is told to end")
                signal.pidfd_send_signal(process, signal.SIGTERM)
                return


if __name__ == "__main__":
    main(next(each for each in get_args(Cloud) if each == sys.argv[1]), int(sys.argv[2]))
