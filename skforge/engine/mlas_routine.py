"""The exponential and the logistic function of onnxruntime, as machine code.

:mod:`skforge.outputs.mlas` has them for NumPy, which has no fused multiply-add: one row
takes it a hundred times as long.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from skforge._typing import Array
from skforge.engine.routines import routine
from skforge.exceptions import CompilerError
from skforge.outputs import mlas

if TYPE_CHECKING:
    from skforge.compiler.ir.lir.nodes import Function

NUMPY = {"exp": mlas.exp, "logistic": mlas.logistic}


def install() -> None:
    """Let graphs compute with machine code from now on."""
    mlas.FUNCTIONS.update({name: partial(_computed, name) for name in NUMPY})


def load() -> None:
    """Compile what graphs compute with, or read it from the cache."""
    for function in [*mlas.FUNCTIONS.values()]:
        function(np.zeros(1, np.float32))


def _computed(name: str, x: Array) -> Array:
    x = np.ascontiguousarray(x)
    out = np.empty_like(x)
    try:
        routine(_function, name)(1, x.size, x, out)
    except CompilerError:  # NumPy needs no compiler
        mlas.FUNCTIONS.update(NUMPY)  # to try again in each call would take longer
        return NUMPY[name](x)
    return out


def _function(name: str) -> Function:
    from skforge.compiler.ir.lir.builder import Builder
    from skforge.compiler.ir.lir.nodes import F32, I64, Buffer, Function, Value
    from skforge.engine.entry import mlas_code

    n = Value("n", I64)
    x, out = Buffer("x", F32), Buffer("out", F32)
    with Builder() as b, b.loop(n) as i:
        out[i] = getattr(mlas_code, name)(x[i])
    return Function(f"skf_mlas_{name}", (n, x, out), b.finish())
