"""EfficientNet-B0 (Tan and Le, 2019), its strides as for large images. As in the ISCA 2023 artifact, blocks that do not
expand have their 1 x 1 convolution too, and a gate squeezes to a quarter of the expanded channels.
"""

from keras import Input, Model, layers

from resnet18 import blocks, channels

# expansion, output channels, blocks, stride, window
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
BLOCKS = sum(stage[2] for stage in STAGES)


def efficientnet_b0(size, width=1.0, depth=1.0, dropout=0.2, drop_connect=0.2):
    """Return the model, from images [size, size, 3] to logits [10]."""

    def conv(x, filters, window, stride, name):
        return layers.Conv2D(filters, window, stride, "same", use_bias=False, name=name)(x)

    def normalised(x, name):
        return layers.BatchNormalization(name=name)(x)

    def swish(x, name):
        return layers.Activation("swish", name=name)(x)

    images = Input((size, size, 3))
    x = swish(normalised(conv(images, channels(32, width), 3, 2, "conv1"), "bn1"), "swish1")
    done = 0
    for stage, (expansion, filters, count, stride, window) in enumerate(STAGES, 1):
        filters = channels(filters, width)
        for block in range(blocks(count, depth)):
            name, before, into = f"block{stage}_mbconv_{block}", x, x.shape[-1]
            wide = into * expansion
            x = swish(normalised(conv(x, wide, 1, 1, f"{name}_conv1"), f"{name}_bn1"), f"{name}_swish1")
            step = stride if block == 0 else 1
            x = layers.DepthwiseConv2D(window, step, "same", use_bias=False, name=f"{name}_dwconv")(x)
            x = swish(normalised(x, f"{name}_bn2"), f"{name}_swish2")
            gate = layers.GlobalAveragePooling2D(keepdims=True, name=f"{name}_se_pool")(x)
            gate = layers.Conv2D(max(1, wide // 4), 1, activation="swish", name=f"{name}_se_reduce_conv")(gate)
            gate = layers.Conv2D(wide, 1, activation="sigmoid", name=f"{name}_se_expand_conv")(gate)
            x = layers.Multiply(name=f"{name}_se")([x, gate])
            x = normalised(conv(x, filters, 1, 1, f"{name}_conv2"), f"{name}_bn3")
            if step == 1 and into == filters:
                x = layers.Dropout(drop_connect * done / BLOCKS, noise_shape=(None, 1, 1, 1), name=f"{name}_drop")(x)
                x = layers.Add(name=f"{name}_add")([x, before])
            done += 1
    x = swish(normalised(conv(x, channels(1280, width), 1, 1, "conv2"), "bn2"), "swish2")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    x = layers.Dropout(dropout, name="dropout")(x)
    return Model(images, layers.Dense(10, name="fc")(x), name="efficientnet_b0")
