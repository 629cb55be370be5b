"""Programs of several processes of JAX: one rank or all are killed, the job is run again, and each rank is compared bit
for bit with the job that was never killed, and with one that knows nothing of detrain, which Open MPI seems to start.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from detrain.base import errors
from tests.e2e.forkserver import Server
from tests.e2e.runs import ROOT, Result
from tests.e2e.test_ranks import assert_equal_states, run

PROGRAMS = ROOT / "tests" / "programs" / "ranks"
BATCHES = 15


def bare(server: Server, folder: Path, program: Path, world: int) -> list[Result]:
    """Run the program with nothing of detrain: JAX finds the processes by the variables of Open MPI."""
    folder.mkdir()
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    each = {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": str(world), "JAX_COORDINATOR_PORT": port}
    ranks = [{**each, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)} for rank in range(world)]
    return server.job(program, cwd=folder, ranks=ranks, is_bare=True)


def said(results: list[Result]) -> list[list[str]]:
    """Return what the ranks have printed, without what gloo says of itself."""
    return [[line for line in each.out.splitlines() if line.startswith("rank ")] for each in results]


@pytest.mark.parametrize(
    ("name", "seed", "world"),
    [
        ("jax_spread", 0, 2),
        pytest.param("jax_spread", 1, 2, marks=pytest.mark.slow),
        pytest.param("jax_spread", 2, 3, marks=pytest.mark.slow),
        pytest.param("jax_pmap", 3, 2, marks=pytest.mark.slow),
        pytest.param("jax_replicas", 4, 2, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_batches_a_job_of_jax_ends_as_if_never_killed(
    name: str, seed: int, world: int, jax_server: Server, tmp_path: Path
) -> None:
    program = PROGRAMS / f"{name}.py"
    draw = random.Random(seed)
    one, everyone = sorted(draw.sample(range(2, BATCHES), 2))
    kills = [*([{draw.randrange(world): one}] if seed else []), dict.fromkeys(range(world), everyone)]
    every = draw.choice(["1b", "2b", "3b"])

    killed = run(jax_server, tmp_path / "killed", world, kills, "--every", every, program)
    plain = said(bare(jax_server, tmp_path / "bare", program, world))

    assert [each[-1] for each in said(killed)] == [each[-1] for each in plain], (every, kills)
    assert "resuming" in killed[0].err
    assert "not captured" not in "".join(each.err for each in killed)
    if seed:  # the fast lane has no third job
        whole = run(jax_server, tmp_path / "whole", world, [], "--every", every, program)
        assert said(whole) == plain
        assert_equal_states(tmp_path / "whole.home", tmp_path / "killed.home", world)


NUMBERED = """
import os
import jax, jax.numpy as jnp, optax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(process_id=1 - int(os.environ["RANK"]), num_processes=2)
params = jnp.ones(4)
for epoch in range(2):
    for batch in range(3):
        params = params - 0.1 * jax.grad(lambda params: (params ** 2).sum())(params)
print(params)
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--jit",)])
def test_other_numbers_than_the_launchers_and_just_in_time_are_refused(
    options: tuple[str, ...], jax_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(NUMBERED.replace("1 - int", "int") if options else NUMBERED)

    done = jax_server.job("run", *options, "program.py", cwd=tmp_path, ranks=[{}, {}])

    refused = [each for each in done if each.status == errors.FrameworkUnsupported.exit_code]
    message = "no other rank has those of one that dies" if options else "for JAX, and rank"
    assert refused, [each.err for each in done]
    assert all(message in each.err for each in refused)
