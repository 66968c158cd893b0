"""Launches written by hand or drawn, and what the emulation makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, Function, Scalar, Value
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.ir.lir.walk import statements
from skforge.engine.cpu.jit import compile_functions
from skforge.gpu.passes import emulate_grids
from tests.llvm_kernels import assert_same_bits, interpreted, targets
from tests.run_kernel import call

Place = tuple[Value, ...]


def grid(
    b: Builder,
    counts: tuple[Value | int, ...],
    body: Callable[[Place], None],
    dims: str = "xyz",
    index: Scalar = I64,
) -> None:
    """Write a launch; ``body`` gets the block's place along ``dims``."""
    sizes = [b.const(c, index) if isinstance(c, int) else c for c in counts]
    place = tuple(Value(b.name("block"), c.type) for c in sizes)
    with b.body() as stmts:
        body(place)
    named: Any = tuple((f"grid.{dims[k]}", v, sizes[k]) for k, v in enumerate(place))
    b.emit(lir.Grid(named, tuple(stmts)))


def region(
    b: Builder,
    counts: tuple[int, ...],
    body: Callable[[Place], None],
    dims: str = "xyz",
    index: Scalar = I64,
) -> None:
    """Write a region; ``body`` gets the thread's place along ``dims``."""
    sizes = [b.const(c, index) for c in counts]
    place = tuple(Value(b.name("thread"), index) for _ in counts)
    with b.body() as stmts:
        body(place)
    named: Any = tuple((f"block.{dims[k]}", v, sizes[k]) for k, v in enumerate(place))
    b.emit(lir.BlockRegion(named, tuple(stmts)))


def warp_sum(b: Builder, value: Value, width: int) -> Value:
    """Write a reduction over the threads of a warp."""
    return b.let(lir.WarpReduce(value, width), value.type, "sum")


def check_emulated(
    function: Function, args: Mapping[str, Any], threads: tuple[int, ...] = (1,)
) -> dict[str, Any]:
    """Assert that loops do what the grids do, interpreted and compiled."""
    wanted = interpreted(function, args)
    emulated = emulate_grids.run(function)
    verify_lir(emulated)
    for stmt in statements(emulated.body):
        assert not isinstance(stmt, lir.Grid | lir.BlockRegion)
        assert not isinstance(getattr(stmt, "op", None), lir.WarpReduce)
    _compare(interpreted(emulated, args), wanted, "emulated")
    module = compile_functions([emulated], targets()["host"])
    for n_threads in threads:
        copies = {k: np.copy(v) if np.ndim(v) else v for k, v in args.items()}
        slots = [copies[p.name] for p in function.params]
        call(module, function.name, slots, n_threads)
        _compare(copies, wanted, f"compiled, {n_threads} threads")
    return wanted


def _compare(got: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    for name, array in wanted.items():
        if isinstance(array, np.ndarray):
            assert_same_bits(got[name], array, f"{name}, {what}")
