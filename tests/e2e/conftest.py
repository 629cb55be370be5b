"""What the end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.forkserver import Server
from tests.e2e.runs import Run


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One for all tests of a worker: it is started by the first that asks for it."""
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="session")
def torch_server() -> Iterator[Server]:
    """The same, with PyTorch."""
    made = Server("torch")
    yield made
    made.close()


@pytest.fixture(scope="session")
def ranks_server() -> Iterator[Server]:
    """The same, with PyTorch in one thread, as torchrun has it: it forks all processes of a job."""
    made = Server("torch", OMP_NUM_THREADS="1")
    yield made
    made.close()


@pytest.fixture(scope="session")
def jax_server() -> Iterator[Server]:
    """The same, with JAX, flax, optax and equinox."""
    made = Server("jax")
    yield made
    made.close()


@pytest.fixture
def detrain(server: Server) -> Run:
    """Runs the command `detrain` in a process that the server forks; what is about how an interpreter starts needs a
    real one.
    """
    return server.detrain
