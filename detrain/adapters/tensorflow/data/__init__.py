"""tf.data: sets, iterators, their positions and the files that they read."""
