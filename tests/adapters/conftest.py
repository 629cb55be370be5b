"""JAX has eight devices in the process of these tests, as on a TPU host; it reads the variable when it is imported."""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
