"""What a resumed run goes on without: objects that show or record what a program does, and readers of files.

What they are decides, never how the program uses them: a schedule that is only told `step()` sets the learning rate. A
reader is one that gives for each question what lies in a file; it does not matter how often it was asked.
"""

from __future__ import annotations

import logging.handlers
import sys
import zipfile
from typing import Any, Final

import numpy as np

from detrain.python.inspect.names import module_of

RECORDS: Final = (
    *("aim", "clearml", "codecarbon", "comet_ml", "dvclive", "lightning.pytorch.loggers", "mlflow", "neptune", "sacred", "swanlab"),
    *("accelerate.tracking", "pytorch_lightning.loggers", "tensorboard", "tensorboardX", "tensorflow.python.ops.summary_ops_v2"),
    *("torch.utils.tensorboard", "wandb"),
)
"""Those that keep records of experiments."""
_OUTPUT: Final = (
    # bars, figures, tables, texts
    *(
        "alive_progress",
        "bokeh",
        "colorlog",
        "fastprogress",
        "IPython",
        "ipywidgets",
        "keras.src.utils.progbar",
        "logging",
        "loguru",
    ),
    *("matplotlib", "plotly", "prettytable", "progressbar", "rich", "seaborn", "structlog", "tabulate", "tqdm", "visdom"),
    *RECORDS,
    # measurements
    *("cProfile", "_lsprof", "pynvml", "torch.autograd.profiler", "torch.profiler", "torch._C._profiler"),
)
"""Where the classes of such objects are defined: what their modules begin with. What they answer (the line that was
drawn) does not go into training."""
_READ_BACK: Final = ("mlflow.entities", "mlflow.store", "mlflow.tracking", "wandb.apis", "wandb.sdk.wandb_config")
"""Parts of them that a program asks for what it then trains with: settings, earlier runs."""
_READERS: Final = (
    *(("lmdb", "Environment"), ("numpy.lib.npyio", "NpzFile")),
    *(("pyarrow.parquet", "ParquetFile"), ("safetensors", "safe_open")),
)
PROCESSES: Final = frozenset({"git", "mlflow", "nvidia-smi", "tensorboard", "wandb-core", "wandb-service"})
"""Programs that record or show, by their names."""


def is_output_only(value: Any) -> bool:
    """Return whether an object only shows or records what a program does, or reads a file that nobody writes."""
    cls = type(value)  # `isinstance` asks the object itself, which may say what it likes
    module = module_of(cls)
    if issubclass(cls, logging.handlers.MemoryHandler):
        return False  # what it holds is still to be written
    return (_begins(module, _OUTPUT) and not _begins(module, _READ_BACK)) or _is_reader(value)


def _is_reader(value: Any) -> bool:
    cls = type(value)
    if issubclass(cls, zipfile.ZipFile | np.memmap):
        return bool(value.mode == "r")
    kinds = [getattr(sys.modules.get(module), name, None) for module, name in _READERS]
    if not any(isinstance(kind, type) and issubclass(cls, kind) for kind in kinds):
        return False
    try:
        return not hasattr(value, "flags") or bool(value.flags()["readonly"])  # an environment of LMDB
    except Exception:  # an edge: an extension's; it is closed
        return True


def _begins(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)
