"""All ranks of an exchange on one device: the GPU path, tried out without a cluster.

Kernels, stages and messages are those of a real exchange; only what lies between servers is the
device's own memory. On a CPU the GPU is emulated, for tests.
"""

from fastjax.traced.loopback import loopback_plan, loopback_ragged_all_to_all

__all__ = ["loopback_plan", "loopback_ragged_all_to_all"]
