"""The commands on pages that no test runs, each with the reason. Tests run all others."""

from __future__ import annotations

from typing import Final

_INSTALLS: Final = "an installation: tests/test_packaging.py builds the wheel and runs its command"
_ANOTHER_TERMINAL: Final = "one rank is killed from another terminal: tests/e2e/test_just_in_time.py does so"
_NO_SCHEDULER: Final = "needs Slurm, which is not here; the page shows the same signal by `timeout`"
_IN_RANKS: Final = "several processes: tests/e2e/test_jax_ranks.py starts and kills such"
_A_TPU: Final = "needs TPUs, which are not here; the page says so, and runs the example on devices of a CPU"
_NO_DOCKER: Final = "needs Docker, which is not here; the page says so"
_A_SYNOPSIS: Final = "names a program, layer or file of the reader's; further down the page the same commands are run"
_THE_TESTS: Final = "the tests themselves"
_THE_GATE: Final = "the gate builds the site, and the tests of examples run what it runs"

NOT_RUN: Final[dict[str, dict[str, str]]] = {
    "README.md": {
        "pip install '.[torch]'": _INSTALLS,
        "detrain doctor --quick": "run in tutorials/index.md",
    },
    "docs/tutorials/index.md": {
        "git clone REPOSITORY detrain": _INSTALLS,
        "cd detrain": _INSTALLS,
        "pip install '.[torch,examples]'": _INSTALLS,
    },
    "docs/tutorials/three-ranks.md": {
        "detrain launch --nproc-per-node 3 --max-restarts 4 --jit-every 1 examples/digits/torch_ddp_train.py --epochs 12": (
            _ANOTHER_TERMINAL
        ),
    },
    "docs/how-to/docker.md": {
        "docker build -t detrain --build-arg EXTRA=torch .": _NO_DOCKER,
        'docker run --rm -v "$PWD:/work" detrain run train.py': _NO_DOCKER,
    },
    "docs/how-to/notebooks.md": {
        "PYTHONHASHSEED=0 jupyter lab": "a window: tests/e2e/test_notebook.py runs the page's cells in a kernel",
    },
    "docs/how-to/slurm-and-preemption.md": {
        "srun --kill-on-bad-exit=0 detrain run --every 500b train.py": _NO_SCHEDULER,
        "srun detrain run --every 500b --ckpt $SCRATCH/ckpt-train train_ddp.py": _NO_SCHEDULER,
    },
    "docs/explanation/guard.md": {
        "detrain launch --nproc-per-node 2 --guard recover train.py": "struck by itself: tests/programs/ranks/struck.py",
        "detrain run --guard recover train.py": "the fault came by chance; in tutorials/nan-of-yesterday.md one comes each time",
    },
    "docs/explanation/six-networks.md": {
        "python benchmarks/campaign_networks.py --home campaigns --report pages": "takes a day",
    },
    "docs/explanation/testing.md": {
        "./run.sh test": _THE_TESTS,
        "./run.sh test --slow --slice 3/90": _THE_TESTS,
        "./run.sh test --slow": _THE_TESTS,
        './run.sh test tests/e2e/test_ordinary.py --slow -k "PyDataset"': _THE_TESTS,
    },
    "docs/reference/distributed.md": {
        "detrain launch --nproc-per-node 3 --max-restarts 4 examples/digits/torch_ddp_train.py --epochs 4": _ANOTHER_TERMINAL,
        "detrain status": _ANOTHER_TERMINAL,
        "detrain ckpt show --rank 1 ckpt": "of an FSDP2 job: tests/e2e/test_sharded_ranks.py makes such",
    },
    "docs/reference/jax.md": {
        "detrain launch --nproc-per-node 2 --every 50b train.py": _IN_RANKS,
    },
    "docs/how-to/tpu.md": {
        "detrain run --every 100b train.py": _A_TPU,
        "RANK=0 WORLD_SIZE=4 MASTER_ADDR=host0 MASTER_PORT=29500 detrain run --every 100b --ckpt /shared/ckpt train.py": _A_TPU,
    },
    "docs/reference/messages.md": {
        "detrain explain in-use": "tests/test_first_contact.py calls it for all errors",
    },
    "docs/reference/faults.md": {
        "detrain sites --match 'conv*' train.py": _A_SYNOPSIS,
        "detrain inject --model RD --site 'conv2d_1*' --stage backward --at 3:17 --seed 7 train.py": _A_SYNOPSIS,
        "detrain inject fault.csv train.py": _A_SYNOPSIS,
        "detrain replay fault.json train.py": _A_SYNOPSIS,
        "detrain random -n 50 --seed 1 --after 100 train.py": _A_SYNOPSIS,
    },
}
