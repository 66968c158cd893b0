"""The C library's ``exp``, ``log`` and ``log1p`` over arrays, bit for bit.

Source libraries transform margins with the C library's scalar functions. NumPy's vector
versions differ in the last bit, so loops around the scalar functions are compiled on
first use, and kept in the cache.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import lru_cache, partial
from platform import machine
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.system import c_address, code_model
from skforge.exceptions import CompilerError
from skforge.runtime import object_cache
from skforge.runtime.facts import llvm_version
from skforge.runtime.loading import llvm, load_object

#: XGBoost clips the exponent in its logistic function: expf overflows above this.
SIGMOID_LIMIT = 88.7


def _apply(name: str, values: NDArray[Any]) -> NDArray[Any]:
    source = np.ascontiguousarray(values)
    loop, _ = _compiled(name, source.dtype)
    result = np.empty_like(source)
    loop(result.ctypes.data, source.ctypes.data, source.size)
    return result


#: The C library's function of each float64 value: ``expf``, say, of float32 values.
exp, log, log1p = (partial(_apply, name) for name in ("exp", "log", "log1p"))


@lru_cache
def _compiled(name: str, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the loop around one function, and the object that owns its code."""
    from string import Template

    kind, f = {"f": ("float", "f"), "d": ("double", "")}[dtype.char]
    name += f
    # importlib.resources takes 15 ms, which a loaded model need not wait for
    beside = os.path.join(os.path.dirname(__file__), "libm_loop.ll")
    with open(beside, encoding="utf-8") as file:
        text = Template(file.read()).substitute(name=name, type=kind)
    key = object_cache.key_of(("libm", llvm_version(), sys.platform, machine(), text))
    stored = object_cache.find(key)
    if stored is not None:
        with suppress(CompilerError):
            return _loaded(name, stored)
    with llvm() as binding:
        how = {"opt": 2, **code_model(binding.get_process_triple())}
        target = binding.Target.from_default_triple().create_target_machine(**how)
        binary = target.emit_object(binding.parse_assembly(text))
    object_cache.store(key, binary)
    return _loaded(name, binary)


def _loaded(name: str, binary: bytes) -> tuple[Any, Any]:
    loop = f"loop_{name}"
    code = load_object(binary, [loop], {f"skforge_{name}": c_address(name)})
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return prototype(int(code[loop])), code


# NumPy computes float64 powers with its own vector code, whose last bit differs from
# the C library's. A ufunc is a table of C functions: the float64 one is looked up in
# ``numpy.power``, and used only if it matches NumPy's results for many values.

#: Offsets in PyUFuncObject on 64-bit machines.
_NIN, _NOUT, _LOOPS, _DATA, _COUNT, _NAME, _TYPES = 16, 20, 32, 40, 48, 56, 64


@lru_cache(maxsize=1)
def power_loop() -> int | None:
    """Return the address of ``numpy.power``'s loop over float64, or None.

    It takes an array of the addresses of bases, exponents and results, an array with
    their number, an array of strides in bytes, and a null pointer.
    """
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    ufunc = id(np.power)
    counts = [ctypes.c_int.from_address(ufunc + at).value for at in (_NIN, _NOUT)]
    loops, data, name, types = (
        ctypes.c_int64.from_address(ufunc + at).value
        for at in (_LOOPS, _DATA, _NAME, _TYPES)
    )
    n = ctypes.c_int.from_address(ufunc + _COUNT).value
    if counts != [2, 1] or n != np.power.ntypes or not (loops and name and types):
        return None
    kinds = ctypes.string_at(types, 3 * n)
    double = bytes([np.dtype(np.float64).num] * 3)
    at = [kinds[3 * k : 3 * k + 3] for k in range(n)].index(double)
    loop = ctypes.c_int64.from_address(loops + 8 * at).value
    user_data = ctypes.c_int64.from_address(data + 8 * at).value if data else 0
    return loop if loop and not user_data and _agrees(loop) else None


def _agrees(loop: int) -> bool:
    """Tell whether the loop matches NumPy bit for bit, for arrays of any length."""
    drawn = np.random.default_rng(0).random(4096)
    edges = np.array([0.0, -0.0, 1.0, 0.5, 2.0, 1074.0, np.inf, -np.inf, np.nan])
    values = -np.concatenate([drawn, 40 * drawn, 1e-6 * drawn, edges])
    with np.errstate(all="ignore"):
        for part in (values, values[1:8], *values[:64, np.newaxis], values[-9:]):
            if not np.array_equal(_run(loop, part), 2**part, equal_nan=True):
                return False
    return True


def _run(loop: int, exponents: NDArray[Any]) -> NDArray[np.float64]:
    """Return powers of 2 computed in place, as compiled code does."""
    out = exponents.astype(np.float64)
    base = np.array([2.0])
    places = (ctypes.c_int64 * 3)(base.ctypes.data, out.ctypes.data, out.ctypes.data)
    count, steps = (ctypes.c_int64 * 1)(len(out)), (ctypes.c_int64 * 3)(0, 8, 8)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(loop)
    function(places, count, steps, None)
    return out
