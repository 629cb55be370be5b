"""ResNet-18 for small images: a 7 x 7 convolution of stride 2 and no max-pooling before the blocks."""

from keras import Input, Model, layers


def resnet18(size, width=1.0, depth=1.0, is_normalised=True, dropout=0.15):
    """Return the model, from images [size, size, 3] to logits [10]."""

    def conv(x, filters, window, stride, name):
        x = layers.Conv2D(filters, window, stride, "same", use_bias=not is_normalised, name=name)(x)
        return layers.BatchNormalization(momentum=0.9, name=f"{name}_bn")(x) if is_normalised else x

    images = Input((size, size, 3))
    x = layers.ReLU(name="conv1_relu")(conv(images, channels(64, width), 7, 2, "conv1"))
    for stage, filters in enumerate((64, 128, 256, 512), 1):
        filters = channels(filters, width)
        for block in range(blocks(2, depth)):
            name = f"basicblock_{stage}_basic_{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            shortcut = conv(x, filters, 1, stride, f"{name}_downsample") if stride > 1 else x
            x = layers.ReLU(name=f"{name}_relu1")(conv(x, filters, 3, stride, f"{name}_conv1"))
            x = layers.Add(name=f"{name}_add")([shortcut, conv(x, filters, 3, 1, f"{name}_conv2")])
            x = layers.ReLU(name=f"{name}_relu2")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    if dropout:
        x = layers.Dropout(dropout, name="dropout")(x)
    return Model(images, layers.Dense(10, name="fc")(x), name="resnet18")


def channels(full, width):
    """Return how many channels there are at a width: multiples of 8."""
    return max(8, int(full * width / 8 + 0.5) * 8)


def blocks(full, depth):
    """Return how many blocks there are in a row at a depth."""
    return max(1, int(full * depth + 0.5))
