"""Names that belong to frameworks, for code that imports none: an entry for each framework that has an adapter.
Except for the adapter's room, that entry is all that detrain knows of a framework.

A package may add the entry of a framework, and its adapter, by an entry point of the group `detrain.frameworks`.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from detrain.base.installed import entry_points


class FrameworkNames(msgspec.Struct, frozen=True):
    """Names of one framework and of its modules, classes, functions and settings."""

    modules: frozenset[str]
    """Top-level modules: the adapter handles objects of their classes."""
    name: str = ""
    """The framework's name for people; empty for libraries that are no framework."""
    imported: str = ""
    """The module that a program imports to use it."""
    adapter: tuple[str, str] = ("", "")
    """Module and class of the adapter; detrain imports it when the program imports the framework."""
    versions: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """The first version (major, minor) that the adapter supports, and the first that it no longer supports."""
    followed: tuple[str, ...] = ()
    """Other modules: the adapters are told when the program imports one."""
    has_doctor: bool = False
    """Whether the adapter's room has computations that `detrain doctor --repeat` can repeat."""
    captured: str = ""
    """The objects of the framework that a checkpoint holds, in words."""
    streams: str = ""
    """Its random streams, in words."""
    seeding: tuple[tuple[str, str], ...] = ()
    """(module, function): the functions that a program calls to set a seed."""
    python_loaders: frozenset[str] = frozenset()
    """Those of `modules` whose iterators run Python: the program's own code, or code with a state that the adapter does
    not restore.
    """
    open_modules: frozenset[str] = frozenset()
    """Top-level modules with classes that are written in Python and whose objects consist of their attributes: an
    object of a class that derives from one is captured like the program's own objects.
    """
    closed: tuple[str, ...] = ()
    """Prefixes of the names (`module:class`) of classes in `open_modules` to which that does not apply."""
    open_again: tuple[str, ...] = ()
    """Prefixes of the names of classes under `closed` to which it does apply."""
    hidden: tuple[str, ...] = ()
    """Prefixes of the names of classes with objects that keep state which neither the adapter nor Python sees."""
    named: tuple[str, ...] = ()
    """Prefixes of the names (`module:function`) of functions and classes that a file may name: a file can do no harm
    with them.
    """
    functions_of: tuple[tuple[str, str], ...] = ()
    """(class, module): built-in functions with that class in their qualified names are found in that module."""
    computing: frozenset[str] = frozenset()
    """Modules with functions that only compute."""
    readers: tuple[str, ...] = ()
    """Modules with the framework's own classes of files, which have a position."""
    built_lazily: tuple[tuple[str, str], ...] = ()
    """(module, attribute): the attribute says that an object's variables exist, so it is not restored."""
    logs: tuple[str, ...] = ()
    """Local variables in which a training loop of the framework keeps the metrics of an epoch."""
    packages: tuple[str, ...] = ()
    """Installed packages with versions that affect the bits of results."""
    settings: tuple[str, ...] = ()
    """Environment variables that affect the bits of results."""
    chosen: tuple[tuple[str, str], ...] = ()
    """(variable, value): the variables that a run sets if they are not set."""
    options: tuple[tuple[str, str], ...] = ()
    """(variable, option): the option that a run adds to a variable with options, unless it is there."""


_OPS: Final = ("math", "gen_math", "nn", "gen_nn", "array", "gen_array", "clip", "linalg")
TENSORFLOW: Final = FrameworkNames(
    modules=frozenset({"tensorflow", "keras", "tf_keras"}),
    name="TensorFlow",
    imported="tensorflow",
    adapter=("detrain.adapters.tensorflow.adapter", "TensorFlow"),
    versions=((2, 21), (2, 22)),
    followed=("keras", "tf_keras"),
    has_doctor=True,
    captured="every variable of TensorFlow and Keras alive: weights, optimizer slots, metrics, seed generators",
    streams="TensorFlow's eager seeds; stateful random ops in traced functions are lifted",
    seeding=(("tensorflow.random", "set_seed"),),
    python_loaders=frozenset({"keras", "tf_keras"}),  # over pictures and texts
    computing=frozenset(
        {
            *(f"tensorflow.python.ops.{name}_ops" for name in _OPS),
            *("tensorflow.python.ops.nn_impl", "tensorflow.python.ops.image_ops_impl"),
            *(f"keras.src.{name}" for name in ("activations.activations", "losses.losses")),
            *(f"keras.src.ops.{name}" for name in ("core", "image", "linalg", "math", "nn", "numpy")),
            *(f"keras.src.metrics.{name}_metrics" for name in ("accuracy", "regression")),
            *(f"tf_keras.src.{name}" for name in ("activations", "losses")),
            *(f"tf_keras.src.metrics.{name}_metrics" for name in ("accuracy", "regression")),
        }
    ),
    readers=("tensorflow.python.lib.io",),
    built_lazily=(("keras", "built"),),  # of a layer; a `tf.Module` may give the name any meaning
    logs=("epoch_logs", "logs"),
    packages=("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "keras", "tf_keras"),
    settings=("TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS", "TF_XLA_FLAGS", "KERAS_BACKEND"),
)

_TORCH_FUNCTIONS: Final = ("torch.nn.functional", "torch._C._nn", "torch.functional")
_LIGHTNING: Final = ("lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "torchmetrics")
_TRAINERS: Final = (
    "pytorch_tabnet",
    "stable_baselines3",
    "skorch",
    "ignite",
    "ultralytics",
    "fastai",
    "fastcore",
    "diffusers",
    "timm",
)
TORCH: Final = FrameworkNames(
    name="PyTorch",
    imported="torch",
    adapter=("detrain.adapters.torch.adapter", "Torch"),
    versions=((2, 9), (2, 16)),
    followed=(
        *("torch._dynamo", "torch._inductor.codecache", "torch._functorch.aot_autograd"),
        *("safetensors.torch", "safetensors.numpy"),
    ),
    has_doctor=True,
    captured="PyTorch's tensors that the program can reach: weights, gradients, what optimizers keep, buffers",
    streams="PyTorch's generators, those of workers too",
    seeding=(("torch", "manual_seed"), ("torch.random", "manual_seed")),
    modules=frozenset({"torch", "torchvision", "torchaudio", "torchdata", "transformers", "accelerate", *_LIGHTNING}),
    python_loaders=frozenset({"torch", "torchdata"}),
    open_modules=frozenset({"torch", "torchvision", "torchaudio", "transformers", "accelerate", *_LIGHTNING, *_TRAINERS}),
    closed=(
        *("torch._C", "torch:Tensor", "torch._tensor:", "torch.nn.parameter:", "torch:Generator", "torch._subclasses"),
        *("torch.storage:", "torch:UntypedStorage", "torch.jit", "torch.utils.hooks", "torch.utils.tensorboard"),
        *("torch.utils.data.dataloader:_", "torch._dynamo", "torch._inductor", "torch._functorch", "torch.profiler"),
        *("torch.cuda.streams", "torch.cuda.graphs", "torch.autograd", "torch.package", "torch.distributed", "torch.fx"),
        *("torch.multiprocessing", "torch.futures", "torch.overrides", "torch.utils._python_dispatch", "torch.library"),
        *("torch.sparse", "torch.nested", "torch.masked"),
    ),
    open_again=(
        *("torch.fx.graph_module:", "torch.distributed.algorithms.join:Joinable"),  # a base of DistributedDataParallel
        *("torch.distributed.fsdp._fully_shard._fully_shard:FSDP", "torch.distributed.fsdp:FSDP"),
        "torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer",
        *("torch.distributed.fsdp._fully_shard._fsdp_init:FSDP", "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:"),
    ),
    hidden=("torch.futures:", "torch.jit:Future", "torch.storage:", "torchdata.nodes."),
    named=(
        *("torch:", "torch.nn.", "torch.optim.", "torch.functional:", "torch.utils.data._utils.collate:", "torchmetrics."),
        *("transformers.activations:", "transformers.optimization:", "transformers.trainer_pt_utils:"),
        *("lightning.pytorch.trainer.connectors.", "lightning.pytorch.utilities.", "lightning.fabric.utilities."),
        *("lightning.fabric.wrappers:", "lightning_fabric.wrappers:"),
        *("pytorch_lightning.trainer.connectors.", "pytorch_lightning.utilities.", "lightning_fabric.utilities."),
    ),
    functions_of=(("_VariableFunctionsClass", "torch"),),
    computing=frozenset(_TORCH_FUNCTIONS),
    packages=("torch", "torchvision", "torchaudio", "torchdata"),
    settings=(
        "ATEN_CPU_CAPABILITY",
        "MKL_CBWR",
        "ONEDNN_MAX_CPU_ISA",
        "CUBLAS_WORKSPACE_CONFIG",
        "NVIDIA_TF32_OVERRIDE",
        "TORCHDYNAMO_DISABLE",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
    ),
    chosen=(("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),),  # without it, matrix products of CUDA are not repeatable
)

SHOWING: Final = FrameworkNames(
    modules=frozenset(),
    open_modules=frozenset({"rich"}),  # a loop asks for a bar that it made by its number: a missing one is an error
    closed=("rich.live:_RefreshThread", "rich.console:ConsoleThreadLocals"),
)
"""Libraries that only show progress: their objects consist of their attributes, like the program's own objects."""

JAX: Final = FrameworkNames(
    name="JAX",
    imported="jax",
    adapter=("detrain.adapters.jax.adapter", "Jax"),
    versions=((0, 10), (0, 13)),
    followed=("optax", "equinox"),
    has_doctor=True,
    captured="JAX's arrays and keys that the program can reach: parameters, states of optimizers, modules of flax, equinox",
    seeding=(("jax.random", "key"), ("jax.random", "PRNGKey")),
    modules=frozenset({"jax", "jaxlib", "flax", "optax", "equinox"}),
    open_modules=frozenset({"jax", "flax", "optax", "equinox"}),
    closed=(
        *("jax:", "jax.", "jaxlib"),
        *("flax.linen.module:_Sentinel", "flax.nnx.transforms", "flax.nnx.tracers", "flax.core.tracers"),
        *("flax.metrics", "equinox._jit", "equinox._ad", "equinox.internal"),
    ),
    open_again=("jax.example_libraries",),
    packages=("jax", "jaxlib", "libtpu", "flax", "optax", "equinox"),
    settings=(
        *("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "JAX_ENABLE_X64", "NVIDIA_TF32_OVERRIDE"),
        *("JAX_DEFAULT_MATMUL_PRECISION", "JAX_DEFAULT_PRNG_IMPL", "JAX_THREEFRY_PARTITIONABLE", "JAX_DISABLE_JIT"),
    ),
    options=(("XLA_FLAGS", "--xla_gpu_deterministic_ops=true"),),  # else kernels are chosen by time, and sums are in any order
)


def _of_packages() -> tuple[FrameworkNames, ...]:
    """Return the entries of frameworks that installed packages add."""
    found = [point.load() for point in sorted(entry_points("detrain.frameworks"), key=lambda point: point.name)]
    return tuple(each for each in found if isinstance(each, FrameworkNames))


KNOWN: Final = (TORCH, TENSORFLOW, JAX, *_of_packages(), SHOWING)
FRAMEWORKS: Final = tuple(each for each in KNOWN if each.name)
"""The entries of frameworks that have an adapter."""
_NAMES: Final = [each.name for each in FRAMEWORKS]
NAMES: Final = f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}"
"""The list of frameworks for a message."""


class LibraryTraining(msgspec.Struct, frozen=True):
    """Functions of a library that run a training for the program, each as (file in the library, qualified name). They
    get probes, and their local names are state, as in the program's own functions.
    """

    package: str
    epochs: tuple[str, str] | None
    """The function with the loop over epochs, which calls `batches` or contains its loop; None without epochs."""
    batches: tuple[str, str]
    """The function with the loop over batches, which updates weights."""
    update: str
    """The function that this loop calls to update weights."""
    tried: str
    """The version of the library with which this was tried."""
    backend: str = ""
    """For Keras: the backend under which `fit` is this function."""


_EPOCHS, _BATCHES = ("loops/fit_loop.py", "_FitLoop.run"), ("loops/training_epoch_loop.py", "_TrainingEpochLoop.run")
_YOLO: Final = "engine/trainer.py", "BaseTrainer._do_train"
_KERAS: Final = {
    "torch": ("src/backend/torch/trainer.py", "TorchTrainer.fit"),
    "jax": ("src/backend/jax/trainer.py", "JAXTrainer.fit"),
}
LIBRARY_TRAININGS: Final = (
    LibraryTraining(
        "transformers",
        ("trainer.py", "Trainer._inner_training_loop"),
        ("trainer.py", "Trainer._run_epoch"),
        "training_step",
        "5.24",
    ),
    LibraryTraining("lightning.pytorch", _EPOCHS, _BATCHES, "advance", "2.6"),
    LibraryTraining("pytorch_lightning", _EPOCHS, _BATCHES, "advance", "2.6"),
    *(
        LibraryTraining(
            "stable_baselines3",
            None,
            (f"common/{kind}_policy_algorithm.py", f"{kind.title()}PolicyAlgorithm.learn"),
            "train",
            "2.9",
        )
        for kind in ("on", "off")
    ),
    LibraryTraining("skorch", ("net.py", "NeuralNet.fit_loop"), ("net.py", "NeuralNet.run_single_epoch"), "step_fn", "1.4"),
    LibraryTraining(
        "ignite",
        ("engine/engine.py", "Engine._internal_run_as_gen"),
        ("engine/engine.py", "Engine._run_once_on_dataset_as_gen"),
        "_process_function",
        "0.5",
    ),
    LibraryTraining(
        "pytorch_tabnet",
        ("abstract_model.py", "TabModel.fit"),
        ("abstract_model.py", "TabModel._train_epoch"),
        "_train_batch",
        "4.1",
    ),
    *(LibraryTraining("keras", fit, fit, "train_function", "3.15", backend) for backend, fit in _KERAS.items()),
    LibraryTraining("ultralytics", _YOLO, _YOLO, "optimizer_step", "8.4"),
    LibraryTraining("fastai", ("learner.py", "Learner._do_fit"), ("learner.py", "Learner.all_batches"), "one_batch", "2.8"),
)


@cache
def runs_training(file: str, function: str = "") -> bool:
    """Return whether a file has one of these functions; with a `function` (qualified name), whether it is one."""
    return any(
        function in (name, "") and file.endswith(f"/{each.package.replace('.', '/')}/{end}")
        for each in LIBRARY_TRAININGS
        for end, name in (each.epochs or each.batches, each.batches)
    )


MODULES: Final = frozenset[str]().union(*(each.modules for each in KNOWN))
"""Top-level modules of all entries."""


def has_native_loaders(module: str) -> bool:
    """Return whether a module is a framework's, and its iterators run no Python with a state of its own."""
    top = module.partition(".")[0]
    return any(top in each.modules and top not in each.python_loaders for each in KNOWN)
