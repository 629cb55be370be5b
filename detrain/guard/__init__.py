"""Hardware faults: detected by the size of what training carries from step to step, and undone by running the steps
again.
"""
