"""Kernels of the emulated GPU: machine code of this CPU, with a GPU's indices."""

from __future__ import annotations

import numpy as np

from skforge._typing import Array
from skforge.compiler.runtime.kernels import Kernel
from skforge.gpu.runtime.kernel import MOST_ELEMENTS


class EmulatedKernel(Kernel):
    def __call__(self, rows: Array, result: Array, threads: int) -> None:
        rows = np.ascontiguousarray(rows)
        most = max(1, MOST_ELEMENTS // max(1, rows.shape[1], result.shape[1]))
        for first in range(0, max(1, len(rows)), most):
            part = slice(first, first + most)
            super().__call__(rows[part], result[part], threads)
