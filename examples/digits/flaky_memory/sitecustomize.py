"""Stands for a machine with a flaky memory cell: with this folder in PYTHONPATH, a bit of a weight flips behind the
60th update that PyTorch makes. It is the highest bit of the exponent: what was 1.01 is no number any more.
"""

import importlib.util
import sys

PARAMETER, ELEMENT, BIT, UPDATE = 2, 8, 30, 60


def flip(optimizer, args, kwargs):
    import torch

    weight = optimizer.param_groups[0]["params"][PARAMETER]
    if optimizer.state[weight]["step"] == UPDATE and not flip.is_done:
        weight.data.view(torch.int32).view(-1)[ELEMENT] ^= 1 << BIT
        flip.is_done = True  # once: a step that is run again is sound


flip.is_done = False


class Flaky:
    """Found when torch.optim is imported; loads it as it is, and puts `flip` behind its updates."""

    def find_spec(self, name, path, target=None):
        if name != "torch.optim.optimizer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.register_optimizer_step_post_hook(flip)
            sys.modules.pop("sitecustomize", None)  # a machine is no part of the program's state

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Flaky())
