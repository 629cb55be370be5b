"""Train a network on CIFAR-10 with a loop of our own, on one replica or on several that share each batch."""

import argparse
import hashlib
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

from data import SIZE, load, training_set, validation_set
from densenet import densenet121
from efficientnet import efficientnet_b0
from nf_resnet import nf_resnet
from resnet18 import resnet18

# the network, its optimizer, first and last learning rate, steps from the one to the other
MODELS = {
    "resnet18": (lambda *scale: resnet18(SIZE, *scale), keras.optimizers.Adam, 1e-3, 1e-4, 5000),
    "resnet18_sgd": (lambda *scale: resnet18(SIZE, *scale, dropout=0), keras.optimizers.SGD, 0.1, 1e-3, 2000),
    "resnet18_nobn": (lambda *scale: resnet18(SIZE, *scale, is_normalised=False), keras.optimizers.Adam, 1e-3, 1e-4, 5000),
    "efficientnet_b0": (lambda *scale: efficientnet_b0(SIZE, *scale), keras.optimizers.Adam, 2e-3, 5e-4, 2000),
    "densenet121": (lambda *scale: densenet121(SIZE, *scale), keras.optimizers.Adam, 1e-3, 1e-4, 5000),
    "nf_resnet": (lambda *scale: nf_resnet(SIZE, *scale), keras.optimizers.Adam, 1e-3, 1e-4, 5000),
}
IMAGES, VALID_IMAGES = 50_000, 10_000


def make_strategy(replicas):
    """Return a strategy over as many GPUs, or, where there are fewer, parts of the CPU."""
    if replicas == 1:
        return tf.distribute.get_strategy()
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) >= replicas:
        return tf.distribute.MirroredStrategy([f"GPU:{index}" for index in range(replicas)])
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * replicas
    )
    return tf.distribute.MirroredStrategy(
        [f"CPU:{index}" for index in range(replicas)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    parser.add_argument("--data", choices=["auto", "cifar10", "synthetic"], default="auto")
    parser.add_argument("--width", type=float, default=1.0, help="factor on the numbers of channels")
    parser.add_argument("--depth", type=float, default=1.0, help="factor on the numbers of blocks")
    parser.add_argument("--replicas", type=int, default=1, help="8 in the full-size experiments")
    parser.add_argument("--batch", type=int, default=128, help="images a replica")
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--steps", type=int, help="steps an epoch, if not all images once")
    parser.add_argument("--learning-rate", type=float, help="the first one, if not the model's")
    parser.add_argument("--seed", type=int, help="seed of weights, order, augmentation and dropout")
    args = parser.parse_args()

    strategy = make_strategy(args.replicas)
    if args.seed is not None:
        keras.utils.set_random_seed(args.seed)
    batch = args.batch * args.replicas
    steps = args.steps or math.ceil(IMAGES / batch)
    train, valid, source = load(args.data, min(IMAGES, steps * batch), min(VALID_IMAGES, steps * batch))
    mean, deviation = train[0].mean(dtype="float64"), train[0].std(dtype="float64")
    train_set = strategy.distribute_datasets_from_function(
        lambda context: training_set(*train, mean, deviation, args.batch, steps * args.replicas)
    )
    valid_set = validation_set(*valid, mean, deviation, min(batch, 500))

    make, optimizer_of, first, last, decay_steps = MODELS[args.model]
    first = args.learning_rate or first
    with strategy.scope():
        model = make(args.width, args.depth)
        optimizer = optimizer_of(keras.optimizers.schedules.PolynomialDecay(first, decay_steps, min(first, last)))
        optimizer.build(model.trainable_variables)
    losses_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    print(f"{args.model}, {model.count_params()} parameters, on {source}, {args.replicas} x {args.batch} images a step", flush=True)

    def correct(labels, logits):
        return tf.reduce_sum(tf.cast(tf.argmax(logits, -1) == labels, tf.float32))

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_sum(losses_of(labels, logits)) / batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # sums them over the replicas
        return loss, correct(labels, logits) / batch

    @tf.function
    def train_step(images, labels):
        loss, accuracy = strategy.run(replica_step, (images, labels))
        return strategy.reduce("SUM", loss, axis=None), strategy.reduce("SUM", accuracy, axis=None)

    @tf.function
    def valid_step(images, labels):
        logits = model(images, training=False)
        return tf.reduce_sum(losses_of(labels, logits)), correct(labels, logits)

    for epoch in range(args.epochs):
        train_loss, train_accuracy = 0.0, 0.0
        for step, (images, labels) in enumerate(train_set):
            loss, accuracy = (float(number) for number in train_step(images, labels))
            train_loss, train_accuracy = train_loss + loss / steps, train_accuracy + accuracy / steps
            print(f"Epoch: {epoch}/{args.epochs}, step: {step}/{steps}, loss: {loss:.5f}, accuracy: {accuracy:.5f}", flush=True)
            if not math.isfinite(loss):
                print("Encounter NaN! Terminate training!", flush=True)
                return
        valid_loss, valid_accuracy = 0.0, 0.0
        for images, labels in valid_set:
            loss, right = valid_step(images, labels)
            valid_loss, valid_accuracy = valid_loss + float(loss) / len(valid[1]), valid_accuracy + float(right) / len(valid[1])
        print(
            f"End of epoch: {epoch}/{args.epochs}, train loss: {train_loss:.5f}, train accuracy: {train_accuracy:.5f},"
            f" valid loss: {valid_loss:.5f}, valid accuracy: {valid_accuracy:.5f}",
            flush=True,
        )
        if not math.isfinite(valid_loss):
            print("Encounter NaN! Terminate training!", flush=True)
            return
    weights = b"".join(variable.numpy().tobytes() for variable in model.variables)
    print("weights", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
