"""Random ops of TensorFlow, whose state is in kernels that Python cannot read."""
