"""A GPU device for tests: g++ compiles the source text of kernels for the CPU.

Importing it registers the target ``EMULATED_SOURCE``.
"""

from skforge.gpu.runtime.device import register
from tests.simt.device import EmulatedGpu

EMULATED_SOURCE = EmulatedGpu.key

register(EmulatedGpu())
