"""Random programs as the text of GPU kernels, on the CPU, against the interpreter."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import I64, Function, Value
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.target import Target
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.codegen.writer import PRELUDE
from tests.llvm_kernels import assert_same_bits, interpreted
from tests.simt import EMULATED_SOURCE
from tests.simt.source import SourceDevice
from tests.simt_server import order_number
from tests.simt_tools import run_plan
from tests.strategies_grid import grid_programs
from tests.strategies_lir import Program, lir_programs

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs g++ to run kernels on the CPU"
)
TARGET = Target.cuda(kind=EMULATED_SOURCE)


def drawn(strategy: st.SearchStrategy[Program], count: int) -> list[Program]:
    """Return programs, always the same: they share one text, so none can shrink."""
    found: list[Program] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return found


def in_a_thread(function: Function) -> Function:
    """Return the same program in a launch of one thread."""
    one = Value("launched", I64)
    region = lir.BlockRegion((("block.x", Value("its thread", I64), one),), ())
    region = replace(region, body=function.body)
    launch = lir.Grid((("grid.x", Value("its block", I64), one),), (region,))
    body = (lir.Let(one, lir.Const(1)), launch)
    return replace(function, body=body)


def check(programs: list[Program], *orders: Any) -> None:
    """Compile all programs as one text, run each and compare every buffer."""
    plans = []
    for number, program in enumerate(programs):
        function = replace(program.function, name=f"program_{number}")
        verify_lir(function)
        plans.append(emit_gpu(function, TARGET))
    text = PRELUDE + "\n".join(plan.source[len(PRELUDE) :] for plan in plans)
    for order in orders:
        device = SourceDevice(text)
        device.order = order_number(order)
        for number, (program, plan) in enumerate(zip(programs, plans, strict=True)):
            wanted = interpreted(program.function, program.arguments())
            args = program.arguments()
            run_plan(plan, device, args)
            for name, array in wanted.items():
                if isinstance(array, np.ndarray):
                    what = f"{name} of program {number}, order {order}"
                    assert_same_bits(args[name], array, what)


def test_one_thread() -> None:
    programs = drawn(lir_programs(parallel=False), 40)
    check([Program(in_a_thread(p.function), p.seed) for p in programs], "forward")


@pytest.mark.slow
def test_many_threads() -> None:
    check(drawn(grid_programs(), 40), "forward", "reverse", 7)
