"""TensorFlow's random ops, whose state lies in kernels that Python cannot read."""
