"""Observe a run and infer its structure. Not built yet: structure comes from inst.info or from static analysis."""
