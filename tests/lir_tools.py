"""Runs what a builder wrote, for tests of LIR."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, Buffer, Function, Scalar, Value
from tests.oracles.lir_interpreter import interpret_lir
from tests.oracles.lir_memory import DTYPES


def buffer_of(array: np.ndarray[Any, Any], name: str) -> Buffer:
    """Return a buffer for an array."""
    (element,) = (k for k, v in DTYPES.items() if v == array.dtype)
    return Buffer(name, Scalar(element))


def run(b: Builder, shuffle: int | None = None, **args: Any) -> None:
    """Interpret what ``b`` wrote; arrays are its buffers, numbers its i64 scalars."""
    params = tuple(
        buffer_of(v, k) if isinstance(v, np.ndarray) else Value(k, I64)
        for k, v in args.items()
    )
    interpret_lir(Function("f", params, b.finish()), args, shuffle=shuffle)
