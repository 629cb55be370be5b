"""Memory that is free: that of the machine, or of the smallest group around the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base.free_memory import free_bytes

MACHINE = {"proc/meminfo": "MemTotal: 64 kB\nMemAvailable:       40 kB\n"}
NEW = {
    "proc/self/cgroup": "0::/jobs/one\n",
    "sys/fs/cgroup/jobs/memory.max": "30000\n",
    "sys/fs/cgroup/jobs/memory.current": "25000\n",
    "sys/fs/cgroup/jobs/memory.stat": "anon 7\ninactive_file 4000\nactive_file 9\n",
    "sys/fs/cgroup/jobs/one/memory.max": "max\n",
    "sys/fs/cgroup/jobs/one/memory.current": "25000\n",
    "sys/fs/cgroup/jobs/one/memory.stat": "inactive_file 4000\n",
}
IN_CONTAINER = {
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/memory.max": "20000\n",
    "sys/fs/cgroup/memory.current": "15000\n",
    "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
}
OLD = {
    "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/elsewhere\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "10000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "9000\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 2000\n",
}
CASES = {
    "no groups": ({}, 40 * 1024),
    "the group around that of the process has a limit": (NEW, 9000),
    "a container": (IN_CONTAINER, 5000),
    "the first version": (OLD, 3000),
    "more than the machine has": (NEW | {"sys/fs/cgroup/jobs/memory.max": "3000000\n"}, 40 * 1024),
}


@pytest.mark.parametrize("case", CASES)
def test_the_smallest_limit_counts(tmp_path: Path, case: str) -> None:
    files, expected = CASES[case]
    for name, text in (MACHINE | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert free_bytes(tmp_path) == expected


def test_this_machine_has_some() -> None:
    assert 0 < free_bytes() < 1 << 50
