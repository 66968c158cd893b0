"""The emitted GPU text, run on the CPU: it does what LIR does, without a race."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from skforge.compiler import driver
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import I64, Function, Value
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.exceptions import CompilerError
from skforge.gpu.codegen.emitter import emit_gpu
from tests.exactness.checks import expected, rounding_bound
from tests.exactness.forests import forest
from tests.exactness.gpu_families import FAMILIES
from tests.grids_by_hand import (
    BY_HAND,
    Made,
    atomics,
    function_of,
    neighbours,
    read_between_regions,
    tree_sum,
)
from tests.llvm_kernels import assert_same_bits, interpreted
from tests.simt_server import Order, SanitizedDevice, Sanitizer
from tests.simt_tools import MODES, ORDERS, TARGET, Batch, need, run_plan
from tests.strategies_grid import grid_programs
from tests.strategies_lir import Program, lir_programs


def compare(got: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    for name, array in wanted.items():
        if isinstance(array, np.ndarray):
            assert_same_bits(got[name], array, f"{name}, {what}")


# ---------------------------------------------------------------- by hand


# Under a sanitizer the same results are compared, in the same orders.
@pytest.mark.parametrize(
    "sanitize", [pytest.param(None, marks=pytest.mark.slow), *MODES[1:]]
)
def test_functions_by_hand(sanitize: Sanitizer | None) -> None:
    made = [function_of(make) for make in BY_HAND]
    with Batch([function for function, _ in made], sanitize) as batch:
        for number, (function, args) in enumerate(made):
            wanted = interpreted(function, args)
            for order in ORDERS:
                what = f"{BY_HAND[number].__name__}, {order}, {sanitize}"
                compare(batch.run(number, args, order), wanted, what)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [tree_sum, neighbours, read_between_regions, atomics])
def test_no_barrier_of_the_text_is_idle(make: Callable[[], Made]) -> None:
    """Without any one of its barriers, a kernel has a race."""
    need("thread")
    function, args = function_of(make)
    plan = emit_gpu(function, TARGET)
    kernels = plan.source.index("SKF_KERNEL(", plan.source.rindex("#endif"))
    barriers = [m.span() for m in re.finditer(r"SKF_BARRIER\(\);", plan.source)]
    barriers = [span for span in barriers if span[0] > kernels]
    assert barriers
    for start, end in barriers:
        source = f"{plan.source[:start]};{plan.source[end:]}"
        with SanitizedDevice(source, "thread") as device:
            copies = {k: np.copy(v) if np.ndim(v) else v for k, v in args.items()}
            with pytest.raises(CompilerError, match="data race"):
                run_plan(plan, device, copies)


# ---------------------------------------------------------------- drawn


def in_a_thread(program: Program) -> Program:
    """Return the same program in a launch of one thread."""
    one, function = Value("launched", I64), program.function
    dims = (("block.x", Value("its thread", I64), one),)
    region = lir.BlockRegion(dims, function.body)
    launch = lir.Grid((("grid.x", Value("its block", I64), one),), (region,))
    body = (lir.Let(one, lir.Const(1)), launch)
    return Program(replace(function, body=body), program.seed)


#: Programs of what one thread does, and of launches whose threads meet.
DRAWN = {
    "a thread": lir_programs(parallel=False).map(in_a_thread),
    "launches": grid_programs(),
}


@lru_cache(maxsize=2)
def drawn(kind: str, count: int) -> tuple[Program, ...]:
    """Return programs, always the same, to be compiled all at once."""
    found = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(DRAWN[kind])
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return tuple(found)


@pytest.mark.parametrize(
    ("kind", "sanitize", "count", "orders"),
    [
        ("a thread", None, 40, ORDERS[:1]),
        ("launches", "address", 8, ORDERS[2:]),
        ("launches", "thread", 8, ORDERS[2:]),
        pytest.param("launches", "address", 20, ORDERS[2:], marks=pytest.mark.slow),
        pytest.param("launches", "thread", 20, ORDERS[2:], marks=pytest.mark.slow),
        pytest.param("launches", None, 40, ORDERS, marks=pytest.mark.slow),
    ],
)
def test_drawn_functions_do_nothing_undefined(
    kind: str, sanitize: Sanitizer | None, count: int, orders: tuple[Order, ...]
) -> None:
    need(sanitize)
    programs = drawn(kind, count)
    for program in programs:
        verify_lir(program.function)
    with Batch([program.function for program in programs], sanitize) as batch:
        for number, program in enumerate(programs):
            args = program.arguments()
            wanted = interpreted(program.function, args)
            what = f"{sanitize}\n{print_lir(program.function)}"
            for order in orders:
                compare(batch.run(number, args, order), wanted, what)


# ---------------------------------------------------------------- schedules


@lru_cache(maxsize=2)
def scheduled(
    reduction: Reduction,
) -> dict[str, tuple[Function, dict[str, Any], np.ndarray[Any, Any]]]:
    """Return kernels of forests by schedule, their arguments, and what they give."""
    made, found = forest("multiclass"), {}
    rows, raw, _ = expected("multiclass")
    for name, schedule in FAMILIES.items():
        hir = driver.build_hir(made, schedule, reduction, kind="gpu")
        kernel = driver.lower(hir, TARGET).kernel
        args = {
            "rows": rows[:9].reshape(-1),
            "n_rows": 9,
            "row_stride": rows.shape[1],
            "result": np.full(raw[:9].shape, 77, made.leaf_value.dtype),
            **{item.buffer.name: item.data for item in kernel.data},
        }
        found[name] = kernel.function, args, raw[:9] * made.divisor
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reduction", ["exact", "fast"])
@pytest.mark.parametrize("sanitize", MODES)
def test_schedules_of_a_forest(
    sanitize: Sanitizer | None, reduction: Reduction, turn: int
) -> None:
    need(sanitize)
    kernels, made = [*scheduled(reduction).items()], forest("multiclass")
    if sanitize is not None:  # in each turn a schedule has one of the reductions
        kernels = kernels[(turn + (reduction == "fast")) % 2 :: 2]
    elif turn:
        pytest.skip("all schedules were run in the first turn")
    bound = rounding_bound(made, expected("multiclass")[0][:9]) * made.divisor
    with Batch([function for _, (function, _, _) in kernels], sanitize) as batch:
        for number, (name, (_, args, wanted)) in enumerate(kernels):
            for order in ORDERS if sanitize is None else ORDERS[2:]:
                got = batch.run(number, args, order)["result"]
                if reduction == "exact":
                    assert_same_bits(got, wanted, f"{name}, {order}, {sanitize}")
                else:
                    assert (np.abs(got - wanted) <= bound).all(), (name, order)
