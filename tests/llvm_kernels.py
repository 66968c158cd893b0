"""Small kernels compiled for every CPU that runs here, against the LIR interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    Buffer,
    Scalar,
    Value,
)
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import compile_functions, emit_object
from skforge.exceptions import TargetError
from tests.oracles.lir_interpreter import interpret_lir
from tests.run_kernel import call

SCALARS = (U8, U16, U32, I32, I64, F32, F64)
DTYPES = {
    BOOL: np.bool_, U8: np.uint8, U16: np.uint16, U32: np.uint32, I32: np.int32,
    I64: np.int64, F32: np.float32, F64: np.float64,
}  # fmt: skip


#: CPUs whose code can be read anywhere.
LEVELS = {level: Target.x86_64(level) for level in ("v2", "v3", "v4")}


@lru_cache(maxsize=1)
def targets() -> dict[str, Target]:
    """Return the CPUs whose code runs here, by name."""
    found = {"host": Target.host()}
    for name, target in {**LEVELS, "aarch64": Target.aarch64()}.items():
        with suppress(TargetError):
            target.check_runs_here()
            found[name] = target
    return found


def kernel(
    params: Mapping[str, Scalar | Buffer],
    write: Callable[..., None],
    name: str = "kernel",
) -> lir.Function:
    """Return the function that ``write(builder, **params)`` writes.

    A scalar type stands for a scalar parameter of that name.
    """
    made = {
        key: Value(key, kind) if isinstance(kind, Scalar) else kind
        for key, kind in params.items()
    }
    with Builder() as builder:
        write(builder, **made)
    return lir.Function(name, tuple(made.values()), builder.finish())


def buffers(**elements: Scalar) -> dict[str, Buffer]:
    return {name: Buffer(name, element) for name, element in elements.items()}


def interpreted(function: lir.Function, args: Mapping[str, object]) -> dict:
    """Return what is in the buffers after the interpreter has run the function."""
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    interpret_lir(function, copies)
    return copies


def compiled(
    function: lir.Function,
    args: Mapping[str, object],
    target: Target,
    n_threads: int = 1,
) -> dict:
    """Return what is in the buffers after compiled code has run the function."""
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    module = compile_functions([function], target)
    call(module, function.name, [copies[p.name] for p in function.params], n_threads)
    return copies


def check(
    function: lir.Function,
    args: Mapping[str, object],
    expected: Mapping[str, np.ndarray] | None = None,
    n_threads: int = 1,
) -> None:
    """Assert that the interpreter and every target leave the same bytes.

    For aarch64, which may not run here, that the kernel compiles.

    ``expected`` says what some of the buffers hold in the end.
    """
    wanted = interpreted(function, args)
    for name, array in (expected or {}).items():
        assert_same_bits(wanted[name], array, f"{name}, interpreted")
    for label, target in targets().items():
        got = compiled(function, args, target, n_threads)
        for name, array in wanted.items():
            if isinstance(array, np.ndarray):
                assert_same_bits(got[name], array, f"{name} on {label}")
    assert emit_object(function, Target.aarch64())[:4] == b"\x7fELF"


def assert_same_bits(got: np.ndarray, wanted: np.ndarray, what: str) -> None:
    assert got.dtype == wanted.dtype, what
    if np.issubdtype(got.dtype, np.floating):
        # Which NaN an operation makes is not promised.
        nan = np.isnan(got)
        np.testing.assert_array_equal(nan, np.isnan(wanted), err_msg=what)
        got, wanted = got.copy(), wanted.copy()
        got[nan] = wanted[nan] = 0
    same = got.view(np.uint8) == wanted.view(np.uint8)
    assert same.all(), f"{what}: {got} is not {wanted}"
