"""DenseNet-121 (Huang et al., 2017) for small images: a 3 x 3 convolution of stride 1 before the blocks, no pooling."""

from keras import Input, Model, layers

from resnet18 import blocks


def densenet121(size, width=1.0, depth=1.0, growth=32, dropout=0.5):
    """Return the model, from images [size, size, 3] to logits [10]."""
    growth = max(4, int(growth * width))

    def conv(x, filters, window, name):
        return layers.Conv2D(filters, window, 1, "same", use_bias=False, name=name)(x)

    def activated(x, name):
        return layers.ReLU(name=f"{name}_relu")(layers.BatchNormalization(name=f"{name}_bn")(x))

    images = Input((size, size, 3))
    x = conv(images, 2 * growth, 3, "densenet_conv")
    for block, count in enumerate((6, 12, 24, 16), 1):
        for layer in range(blocks(count, depth)):
            name = f"densenet_dense_block_{block}_bottleneck_{layer}"
            new = conv(activated(x, f"{name}_1"), 4 * growth, 1, f"{name}_conv1")
            new = conv(activated(new, f"{name}_2"), growth, 3, f"{name}_conv2")
            x = layers.Concatenate(name=f"{name}_concat")([x, new])
        if block < 4:
            name = f"densenet_transition_{block}"
            x = conv(activated(x, name), x.shape[-1] // 2, 1, f"{name}_conv")
            x = layers.AveragePooling2D(2, name=f"{name}_pool")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(activated(x, "last"))
    x = layers.Dropout(dropout, name="dropout")(x)
    return Model(images, layers.Dense(10, name="fc")(x), name="densenet121")
