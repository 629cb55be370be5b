"""What a program sets for all of PyTorch: read at any time, and set back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytest.importorskip("torch._inductor.config")  # as deterministic algorithms do

from detrain.adapters.torch.settings import FLAGS  # noqa: E402
from tests.runtime.state_values import baseline_of, encode  # noqa: E402

CHANGES: dict[str, str] = {
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "gradients": "torch.set_grad_enabled(False)",
    "matmul precision": "torch.set_float32_matmul_precision('high')",
    "precisions": "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "cudnn": "torch.backends.cudnn.enabled = False",
    "cudnn benchmark": "torch.backends.cudnn.benchmark = True",
    "reduced precision fp16": "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False",
    "reduced precision bf16": "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
    "attention flash": "torch.backends.cuda.enable_flash_sdp(False)",
    "attention mem_efficient": "torch.backends.cuda.enable_mem_efficient_sdp(False)",
    "attention math": "torch.backends.cuda.enable_math_sdp(False)",
    "attention cudnn": "torch.backends.cuda.enable_cudnn_sdp(not torch.backends.cuda.cudnn_sdp_enabled())",
    "order of contractions": "torch.backends.opt_einsum.enabled = False",
    "mkldnn": "torch._C._set_mkldnn_enabled(False)",
    "quantized": "torch.backends.quantized.engine = 'fbgemm'",
    "anomalies": "torch.autograd.set_detect_anomaly(True)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "autocast": "torch.set_autocast_dtype('cpu', torch.float16)",
    "parameters at conversion": "torch.__future__.set_overwrite_module_params_on_conversion(True)",
    "compiler": "torch._dynamo.config.suppress_errors = True",
    "checks of distributions": (
        "torch.distributions.Distribution.set_default_validate_args(not torch.distributions.Distribution._validate_args)"
    ),
    "printing": "torch.set_printoptions(precision=2)",
}
"""How a program changes each."""
LATER = (
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.fp32_precision = 'ieee'",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision = 'tf32'",
    "torch.backends.mkldnn.fp32_precision = 'tf32'",
)
"""Settings for one backend, after which PyTorch no longer knows one for all."""


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps({name: get() for name, (get, _set) in FLAGS.items()}))
    return found


@pytest.fixture
def _as_it_was() -> Iterator[None]:
    before = read()
    yield
    put_back(before)


def put_back(values: dict[str, Any]) -> None:
    """As the adapter does."""
    for name, value in values.items():
        get, set_flag = FLAGS[name]
        if get() != value:
            set_flag(value)


def test_each_setting_has_a_change() -> None:
    assert CHANGES.keys() == FLAGS.keys()


@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_was_changed_is_set_back(name: str) -> None:
    before = read()
    exec(CHANGES[name], {"torch": torch})
    changed = read()
    assert changed[name] != before[name]

    put_back(before)
    assert read() == before
    put_back(changed)
    assert read() == changed


@pytest.mark.slow
def test_precisions_of_single_backends_are_read_and_set_in_another_process() -> None:
    """Each ended a run at its first checkpoint."""
    start = "import json, torch\nfrom tests.adapters.test_torch_settings import put_back, read\n"
    texts = "\n".join(f"{text}\nprint(json.dumps(read()))" for text in LATER)
    found = run(start + texts).splitlines()

    assert found[0] != found[1] != found[-1]
    run(start + "values = json.loads(input())\nput_back(values)\nassert read() == values", found[-1])


def run(text: str, told: str = "") -> str:
    done = subprocess.run([sys.executable, "-c", text], input=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [torch.futures.Future, lambda: torch.zeros(2).storage()], ids=["future", "storage"])
def test_objects_of_c_that_show_nothing_are_lost(make: Any) -> None:
    world = {"value": make()}

    assert encode(world, baseline_of(world)).not_captured != []
