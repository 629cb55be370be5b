"""The programs of `tests/programs/jax`: killed at random cuts, run again, and compared bit for bit with the whole run
and with the bare program, which knows nothing of detrain. And what is refused.

A process is what is killed, and what JAX is set up for, so each case takes some.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from detrain.base import errors
from tests.e2e.forkserver import Server
from tests.e2e.programs import DIE
from tests.e2e.random_kills import assert_ends_as_if_never_killed, run
from tests.e2e.runs import EXAMPLES, detrain, ran
from tests.programs_marks import JAX

FAST = ("digits_mlp",)
"""The programs that the fast lane tries."""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.fast if path.stem in FAST else pytest.mark.slow])
        for path in sorted(JAX.glob("*.py"))
    ],
)
def test_killed_at_random_cuts_it_ends_as_if_never_killed(program: Path, jax_server: Server, tmp_path: Path) -> None:
    every = ("1b", "2b", "3b")[len(program.stem) % 3]
    _whole, killed = assert_ends_as_if_never_killed(jax_server, program, tmp_path, every, program.name)

    assert "resuming" in killed.err


@pytest.mark.slow
def test_the_example_over_eight_devices_killed_and_run_again_ends_as_if_never_killed(jax_server: Server, tmp_path: Path) -> None:
    example = (EXAMPLES / "digits" / "jax_train.py", "--epochs", 2, "--devices", 8)
    done = run(jax_server, example, tmp_path / "killed", "10b", [58, 71])

    assert "resuming jax_train at 1:" in done.err
    assert done.last_line() == jax_server.bare(*example, cwd=tmp_path).last_line()


IN_TWO_PROCESSES = """
import jax, jax.numpy as jnp, numpy as np, optax
from jax._src import distributed
distributed.global_state.num_processes = 2
params, optimizer = jnp.ones(4), optax.sgd(0.1)
state = optimizer.init(params)
@jax.jit
def step(params, state, rows):
    grads = jax.grad(lambda params: ((rows @ params) ** 2).mean())(params)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state
for epoch in range(3):
    for batch in range(4):
        rows = np.random.normal(size=(8, 4)).astype("float32")
        params, state = step(params, state, rows)
print(params)
"""


def test_processes_that_no_launcher_has_told_of_are_refused(jax_server: Server, tmp_path: Path) -> None:
    done = ran(jax_server, tmp_path, IN_TWO_PROCESSES)

    assert done.status == errors.FrameworkUnsupported.exit_code, done.err
    assert "trains in 2 processes (jax.distributed) that detrain does not know to be one job" in done.err
    assert "--bare" in done.err
    assert not list(tmp_path.glob("ckpt/*.h5"))


SPREAD = DIE("""
import jax, jax.numpy as jnp, numpy as np, optax
jax.config.update("jax_num_cpu_devices", int(os.environ["DEVICES"]))
sizes = tuple(map(int, os.environ["MESH"].split(","))) if os.environ["MESH"] else ()
params = jnp.ones(16)
if sizes:
    mesh = jax.make_mesh(sizes, ("data", "model")[:len(sizes)], axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))
    params = jax.device_put(params, jax.NamedSharding(mesh, jax.P("data")))
for epoch in range(4):
    for batch in range(4):
        die(f"{epoch} {batch}")
        rows = np.random.normal(size=(8, 16)).astype("float32")
        params = params - 0.1 * jax.grad(lambda params: ((rows @ params) ** 2).mean())(params)
print(params, params.sharding)
""")


@pytest.mark.slow
def test_another_mesh_and_another_number_of_devices_are_refused(jax_server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SPREAD)
    command = ("run", "--every", "2b", "program.py")
    assert jax_server.detrain(*command, cwd=tmp_path, DEVICES="8", MESH="8", DIE_AT="2 1").status == -9

    other, fewer = (jax_server.detrain(*command, cwd=tmp_path, DEVICES=n, MESH=mesh) for n, mesh in (("8", "4,2"), ("4", "4")))
    forced = jax_server.detrain("run", "--allow-environment", *command[1:], cwd=tmp_path, DEVICES="4", MESH="4")
    same = jax_server.detrain(*command, cwd=tmp_path, DEVICES="8", MESH="8").ok()
    alone = [jax_server.detrain("run", "--ckpt", "alone", *command[1:], cwd=tmp_path, DEVICES="8", MESH="", DIE_AT="1 1")]
    alone += [jax_server.detrain("run", "--ckpt", "alone", *command[1:], cwd=tmp_path, DEVICES="8", MESH="8")]

    assert other.status == fewer.status == errors.EnvironmentChanged.exit_code
    assert "jax meshes was 'data: 8 of cpu:0-7', is 'data: 4, model: 2 of cpu:0-7'" in other.err
    assert "jax devices was '8 of cpu cpu', is '4 of cpu cpu'" in fewer.err
    assert "resume where it is the same" in other.err
    assert forced.status == errors.FrameworkUnsupported.exit_code
    assert "a mesh (data: 8) of the checkpoint lies over 8 devices, of which cpu:4, cpu:5, cpu:6, cpu:7 are not here" in forced.err
    assert "jax meshes was 'none', is 'data: 8 of cpu:0-7'" in alone[1].err
    assert same.last_line() == jax_server.bare("program.py", cwd=tmp_path, DEVICES="8", MESH="8").last_line()


IMPURE = DIE("""
import jax, jax.numpy as jnp, numpy as np
rate, turn, params = 0.1, 0, jnp.ones(4)
@jax.jit
def step(params, rows):
    return params - rate * jax.grad(lambda params: ((rows @ params) ** 2).mean())(params)
for epoch in range(4):
    for batch in range(3):
        turn += 1
        die(str(turn))
        params = step(params, np.random.normal(size=(8, 4)).astype("float32"))
    RATE
print(params)
""")


def test_a_compiled_function_that_reads_what_the_loop_changes_is_refused_and_one_that_does_not_goes_on(
    jax_server: Server, tmp_path: Path
) -> None:
    """JAX goes on with the value of its trace; a resumed run would trace it with another, in silence."""
    for name, line in (("impure", "rate = rate * 0.5"), ("pure", "pass")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "program.py").write_text(IMPURE.replace("RATE", line))
        assert jax_server.detrain("run", "program.py", cwd=tmp_path / name, DIE_AT="8").status == -9
    whole = jax_server.bare("program.py", cwd=tmp_path / "pure")

    impure, pure = (jax_server.detrain("run", "program.py", cwd=tmp_path / name) for name in ("impure", "pure"))

    assert impure.status == errors.Diverged.exit_code
    assert "the compiled function '__main__:step' is not what the first run had traced" in impure.err
    assert pure.status == 0, pure.err
    assert pure.last_line() == whole.last_line()


EQUINOX_FIRST = """
import equinox as eqx
import jax, jax.numpy as jnp
model = eqx.nn.Linear(3, 1, key=jax.random.key(0))
for epoch in range(2):
    for rows in jnp.ones((3, 4, 3)):
        grads = eqx.filter_grad(lambda model: (jax.vmap(model)(rows) ** 2).mean())(model)
        model = eqx.apply_updates(model, jax.tree.map(lambda grad: -0.1 * grad, grads))
"""


@pytest.mark.slow
def test_a_library_that_is_imported_before_jax_is_heard_once_it_is_done(tmp_path: Path) -> None:
    """The servers import JAX first."""
    (tmp_path / "program.py").write_text(EQUINOX_FIRST)

    done = detrain("trace", "program.py", cwd=tmp_path).ok()

    assert "batch loop program.py:6, epoch loop program.py:5 (sure)" in done.err
