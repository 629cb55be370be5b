"""What the end-to-end tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import xxhash

from tests.e2e.forkserver import Server
from tests.e2e.runs import Run


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name under which all processes of the tests share servers: an import of a framework takes seconds."""
    folder = tmp_path_factory.getbasetemp()
    return xxhash.xxh64_hexdigest(str(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder).encode())


@pytest.fixture(scope="session")
def server(shared: str) -> Iterator[Server]:
    """It is started by the first test that asks for it."""
    made = Server(name=shared)
    yield made
    made.close()


@pytest.fixture(scope="session")
def torch_server(shared: str) -> Iterator[Server]:
    """The same, with PyTorch."""
    made = Server("torch", shared)
    yield made
    made.close()


@pytest.fixture(scope="session")
def ranks_server(shared: str) -> Iterator[Server]:
    """The same, with PyTorch in one thread, as torchrun has it: it forks all processes of a job."""
    made = Server("torch", shared, OMP_NUM_THREADS="1")
    yield made
    made.close()


@pytest.fixture(scope="session")
def jax_server(shared: str) -> Iterator[Server]:
    """The same, with JAX, flax, optax and equinox."""
    made = Server("jax", shared)
    yield made
    made.close()


@pytest.fixture
def detrain(server: Server) -> Run:
    """Runs the command `detrain` in a process that the server forks; what is about how an interpreter starts needs a
    real one.
    """
    return server.detrain
