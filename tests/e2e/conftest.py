"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import xxhash

from tests.e2e.forkserver import Server
from tests.e2e.runs import Run


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name under which all processes of the tests share servers: importing a framework takes seconds."""
    folder = tmp_path_factory.getbasetemp()
    return xxhash.xxh64_hexdigest(str(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder).encode())


@pytest.fixture(scope="session")
def server(shared: str) -> Iterator[Server]:
    """Yield a server with TensorFlow; the first test that asks for it starts it."""
    made = Server(name=shared)
    yield made
    made.close()


@pytest.fixture(scope="session")
def torch_server(shared: str) -> Iterator[Server]:
    """Yield a server with PyTorch."""
    made = Server("torch", shared)
    yield made
    made.close()


@pytest.fixture(scope="session")
def ranks_server(shared: str) -> Iterator[Server]:
    """Yield a server with PyTorch in one thread, as under torchrun: it forks all processes of a job."""
    made = Server("torch", shared, OMP_NUM_THREADS="1")
    yield made
    made.close()


@pytest.fixture(scope="session")
def jax_server(shared: str) -> Iterator[Server]:
    """Yield a server with JAX, flax, optax and equinox."""
    made = Server("jax", shared)
    yield made
    made.close()


@pytest.fixture
def detrain(server: Server) -> Run:
    """Return a function that runs the command `detrain` in a process forked by the server. Tests of an interpreter's
    start need a real one.
    """
    return server.detrain
