"""Training in a notebook: `%load_ext detrain` makes the kernel a run, `%%detrain` runs a cell with probes.

The cells that have run, one after another in one file, are the program; the kernel's namespace is its module. So
detrain treats notebooks like all other programs.
"""
