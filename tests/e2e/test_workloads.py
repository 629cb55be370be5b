"""The workloads of the published fault experiments: they are the networks that they say, they learn, and detrain
replays them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from detrain.faults.isca2023_csv import LAYERS, WORKLOADS
from tests.e2e.runs import EXAMPLES, bare, detrain, plain

pytestmark = pytest.mark.slow  # several minutes: with `./run.sh test --slow`

TRAIN = EXAMPLES / "workloads" / "train.py"
SMALL = ("--data", "synthetic", "--batch", 32, "--epochs", 1, "--seed", 1)
slow = pytest.mark.slow

DESCRIBE = f"""
import json, math, sys
sys.path.insert(0, {str(TRAIN.parent)!r})
import train

print(json.dumps({{
    name: {{
        "trainable": sum(math.prod(variable.shape) for variable in model.trainable_variables),
        "convolutions": [layer.name for layer in model.layers if "Conv2D" in type(layer).__name__],
    }}
    for name, model in ((name, row[0](1.0, 1.0)) for name, row in train.MODELS.items())
}}))
"""


@pytest.fixture(scope="module")
def described() -> dict[str, dict[str, object]]:
    run = plain("-c", DESCRIBE).ok()
    return json.loads(run.last_line())


# Published counts of trainable parameters, and by what a network here is meant to differ.
CLASSES = 10 - 1000  # ten classes in place of a thousand
PUBLISHED = {
    "resnet18": 11_689_512 + CLASSES * 513,  # torchvision
    "resnet18_sgd": 11_689_512 + CLASSES * 513,
    "resnet18_nobn": 11_689_512 + CLASSES * 513 - 4_800,  # a bias a channel in place of a scale and a shift
    # Keras Applications; the first block, which does not expand, has its 1 x 1 convolution and normalisation too.
    "efficientnet_b0": 5_288_548 + CLASSES * 1281 + 32 * 32 + 2 * 32,
    # Keras Applications; a 3 x 3 convolution without normalisation in place of the 7 x 7 one with.
    "densenet121": 7_978_856 + CLASSES * 1025 + (9 - 49) * 3 * 64 - 2 * 64,
    # ResNet-26 of timm: a gain and a bias a channel, as many as batch normalisation has; a 3 x 3 convolution in place
    # of the 7 x 7.
    "nf_resnet": 15_995_176 + CLASSES * 2049 + (9 - 49) * 3 * 64,
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_network_at_full_width_has_as_many_parameters_as_was_published(model: str, described: dict[str, dict[str, int]]) -> None:
    assert described[model]["trainable"] == PUBLISHED[model]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_convolutions_have_the_names_of_the_artifacts_files(name: str, described: dict[str, dict[str, list[str]]]) -> None:
    convolutions = described[WORKLOADS[name]]["convolutions"]

    others = [layer for layer in convolutions if not re.fullmatch(LAYERS[name], layer)]
    assert others == [layer for layer in convolutions if layer == "initial_conv" or layer.endswith("_dwconv")]
    examples = {
        "effnet": {"block1_mbconv_0_conv1", "block2_mbconv_0_conv1", "block7_mbconv_0_se_expand_conv"},
        "densenet": {"densenet_conv", "densenet_dense_block_4_bottleneck_15_conv2", "densenet_transition_3_conv"},
        "nfnet": {"NF_ResNet_block_0_conv_shortcut", "NF_ResNet_block_7_conv2"},
    }
    assert examples.get(name, {"conv1", "basicblock_4_basic_0_downsample", "basicblock_2_basic_1_conv2"}) <= set(convolutions)


@pytest.mark.parametrize(
    ("model", "scale", "steps"),
    [
        ("resnet18_nobn", ("--width", 0.125), 30),
        ("nf_resnet", ("--width", 0.125), 20),
        pytest.param("resnet18", ("--width", 0.125), 30, marks=slow),
        pytest.param("resnet18_sgd", ("--width", 0.125), 30, marks=slow),
        pytest.param("efficientnet_b0", ("--width", 0.25), 50, marks=slow),
        pytest.param("densenet121", ("--width", 0.25, "--depth", 0.25), 30, marks=slow),
    ],
)
def test_a_reduced_run_learns(model: str, scale: tuple[object, ...], steps: int) -> None:
    run = bare(TRAIN, "--model", model, *scale, "--steps", steps, *SMALL).ok()

    assert "on a synthetic stand-in for CIFAR-10" in run.out
    losses = [float(line.split("loss: ")[1].split(",")[0]) for line in run.matching(r"^Epoch: 0/1, step: \d+/\d+, loss: ")]
    assert len(losses) == steps
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


WITHOUT_CHANCE = f"""
import sys
sys.path.insert(0, {str(TRAIN.parent)!r})
import tensorflow as tf, train
def in_order(images, labels, mean, deviation, batch, count):
    return tf.data.Dataset.from_tensor_slices((((images - mean) / deviation).astype("float32"), labels)).batch(batch).take(count)
train.training_set = in_order
make, *rest = train.MODELS["resnet18_nobn"]
train.MODELS["resnet18_nobn"] = (lambda *scale: train.resnet18(32, *scale, is_normalised=False, dropout=0), *rest)
train.main()
"""


@slow
def test_two_replicas_take_the_steps_that_one_takes_with_their_batches_together() -> None:
    """Without dropout, augmentation and batch statistics nothing differs but the order of sums."""
    common = ("--model", "resnet18_nobn", "--width", 0.125, "--steps", 3, "--epochs", 1, "--seed", 1, "--data", "synthetic")
    losses = []
    for replicas, batch in ((1, 16), (2, 8)):
        run = plain("-c", WITHOUT_CHANCE, *common, "--replicas", replicas, "--batch", batch)
        assert run.status == 0, run.err
        losses.append([float(loss) for loss in re.findall(r"(?:loss|accuracy): ([\d.]+)", run.out)])

    assert len(losses[0]) == 3 * 2 + 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-3, abs=1e-4)


@slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_detrain_replays_a_workload_to_the_bit_after_a_kill(replicas: int, tmp_path: Path) -> None:
    small = ("--data", "synthetic", "--width", 0.125, "--batch", 8, "--epochs", 2, "--steps", 4, "--replicas", replicas)

    run = detrain("verify", "--kills", 1, TRAIN, "--model", "resnet18", *small, cwd=tmp_path).ok()

    assert "EXACT: 1 kill at 1 of 7 cuts, 0 differing bits in 8 batches" in run.out


def test_without_cifar_10_the_user_is_told_of_the_stand_in(tmp_path: Path) -> None:
    run = plain(
        TRAIN,
        "--data",
        "cifar10",
        "--steps",
        1,
        "--batch",
        8,
        HOME=str(tmp_path),
        KERAS_HOME=str(tmp_path),
        https_proxy="http://localhost:9",
    )

    assert run.status == 1
    assert "CIFAR-10 cannot be had" in run.err
    assert "--data synthetic" in run.err
