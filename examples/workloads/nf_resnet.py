"""NF-ResNet (Brock, De and Smith, 2021): no normalisation of activations; weights are standardised, branches scaled by hand."""

from math import pi, sqrt

import keras
from keras import Input, Model, layers, ops

from resnet18 import blocks, channels

RELU_GAIN = sqrt(2 / (1 - 1 / pi))  # keeps the variance of a unit Gaussian


@keras.saving.register_keras_serializable("workloads")
class WeightStandardisedConv2D(layers.Conv2D):
    """A convolution whose kernel has mean 0 and variance 1 / fan-in in each output channel, times a gain that is learned."""

    def build(self, input_shape):
        super().build(input_shape)
        self.gain = self.add_weight(name="gain", shape=(self.filters,), initializer="ones")

    def convolution_op(self, inputs, kernel):
        mean = ops.mean(kernel, (0, 1, 2), keepdims=True)
        variance = ops.var(kernel, (0, 1, 2), keepdims=True)
        fan_in = kernel.shape[0] * kernel.shape[1] * kernel.shape[2]
        kernel = (kernel - mean) * ops.rsqrt(ops.maximum(variance * fan_in, 1e-4)) * self.gain
        return super().convolution_op(inputs, kernel)


def nf_resnet(size, width=1.0, depth=1.0, alpha=1.0, dropout=0.0):
    """Return the model, from images [size, size, 3] to logits [10]."""

    def conv(x, filters, window, stride, name):
        return WeightStandardisedConv2D(filters, window, stride, "same", name=name)(x)

    def activated(x, scale, name):
        return layers.Rescaling(RELU_GAIN * scale, name=f"{name}_scale")(layers.ReLU(name=f"{name}_relu")(x))

    images = Input((size, size, 3))
    x = conv(images, channels(64, width), 3, 1, "initial_conv")
    index, variance = 0, 1.0
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(blocks(2, depth)):
            name = f"NF_ResNet_block_{index}"
            inner, outer = channels(filters, width), channels(4 * filters, width)
            stride = 2 if block == 0 and stage > 0 else 1
            branch = activated(x, 1 / sqrt(variance), f"{name}_0")  # ReLU commutes with a positive scale
            if block == 0:
                shortcut = layers.AveragePooling2D(2, name=f"{name}_pool")(branch) if stride > 1 else branch
                x, variance = conv(shortcut, outer, 1, 1, f"{name}_conv_shortcut"), 1.0
            branch = activated(conv(branch, inner, 1, 1, f"{name}_conv0"), 1.0, f"{name}_1")
            branch = activated(conv(branch, inner, 3, stride, f"{name}_conv1"), 1.0, f"{name}_2")
            branch = conv(branch, outer, 1, 1, f"{name}_conv2")
            x = layers.Add(name=f"{name}_add")([x, layers.Rescaling(alpha, name=f"{name}_alpha")(branch)])
            index, variance = index + 1, variance + alpha**2
    x = layers.GlobalAveragePooling2D(name="pool")(activated(x, 1.0, "last"))
    if dropout:
        x = layers.Dropout(dropout, name="dropout")(x)
    return Model(images, layers.Dense(10, name="fc")(x), name="nf_resnet")
