"""The C library's ``expf``, ``exp``, ``logf`` and ``log1p`` over arrays, bit for bit.

Source libraries transform margins with the C library's scalar functions. NumPy's vector
versions differ in the last bit, so loops around the scalar functions are compiled, once
per process, on first use.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# one scalar call per element; it must not be replaced by a vector version
_LOOP = """
declare {type} @skforge_{name}({type})

define void @loop_{name}(ptr %out, ptr %in, i64 %n) {{
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %from = getelementptr {type}, ptr %in, i64 %i
  %x = load {type}, ptr %from
  %y = call {type} @skforge_{name}({type} %x)
  %to = getelementptr {type}, ptr %out, i64 %i
  store {type} %y, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %body, label %done
done:
  ret void
}}
"""
_FUNCTIONS = {np.dtype(np.float32): "expf", np.dtype(np.float64): "exp"}

#: XGBoost clips the exponent in its logistic function: expf overflows above this.
SIGMOID_LIMIT = 88.7


def exp(values: NDArray[Any]) -> NDArray[Any]:
    """Return the C library's ``expf`` of float32 values or ``exp`` of float64."""
    return _apply(_FUNCTIONS[values.dtype], values)


def log1p(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the C library's ``log1p`` of each float64 value."""
    return _apply("log1p", values)


def logf(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the C library's ``logf`` of each value."""
    return _apply("logf", values)


def _apply(name: str, values: NDArray[Any]) -> NDArray[Any]:
    source = np.ascontiguousarray(values)
    loop, _ = _compiled(name)
    result = np.empty_like(source)
    loop(result.ctypes.data, source.ctypes.data, source.size)
    return result


@lru_cache(maxsize=3)
def _compiled(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the loop around one function, and the objects that own its code."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    machine = binding.Target.from_default_triple().create_target_machine(
        jit=True, opt=2
    )
    jit = binding.create_lljit_compiler(machine, use_jit_link=sys.platform != "win32")
    kind = "float" if name in ("expf", "logf") else "double"
    text = _LOOP.format(name=name, type=kind)
    tracker = (
        binding.JITLibraryBuilder()
        .add_ir(text)
        .import_symbol(f"skforge_{name}", address)
        .export_symbol(f"loop_{name}")
        .link(jit, f"libm_{name}")
    )
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return prototype(tracker[f"loop_{name}"]), (jit, tracker)
