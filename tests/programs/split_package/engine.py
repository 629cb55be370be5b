import tensorflow as tf


def run_one_epoch(net, opt, loader):
    running, n = 0.0, 0
    for features, target in loader:  # <- batch loop
        with tf.GradientTape() as tape:
            logits = net(features, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits))
        gradients = tape.gradient(loss, net.trainable_variables)
        opt.apply_gradients(zip(gradients, net.trainable_variables))  # <- update
        running += float(loss)
        n += 1
    return running / n
