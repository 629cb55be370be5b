"""Hardware faults: changes to bits of a tensor. Nothing here imports a framework.

Definitions: He et al., "Understanding and Mitigating Hardware Failures in Deep Learning Training Accelerator Systems"
(ISCA 2023), and FIdelity (MICRO 2020). docs/reference/faults.md has the tables.
"""
