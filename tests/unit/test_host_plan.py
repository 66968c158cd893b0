"""What the host does in one call: arithmetic, scratch, loops and launches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skforge.compiler.backend import backend
from skforge.compiler.driver import Lowered, build_hir, lower
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I32,
    I64,
    U8,
    U32,
    Buffer,
    Function,
    Value,
)
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.codegen.host_plan import POINTER, Argument, HostPlan, evaluate
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest
from tests.gpu_kernels import Launches, plan_of, walk_function
from tests.lir_loops import for_
from tests.oracles.lir_interpreter import interpret_lir
from tests.refusals import error_of

TYPES = {"u8": U8, "u32": U32, "i32": I32, "i64": I64}

ARITHMETIC = ["add", "sub", "mul", "div", "rem", "min", "max"]
BITS = ["and", "or", "xor", "shl", "shr"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
OPS = ARITHMETIC + BITS + COMPARISONS


def test_a_plan_launches_with_values():
    env = {"rows": 1, "n_rows": 300, "n_trees": 10, "nodes": 2, "result": 3}
    plan = plan_of(walk_function())
    run = plan.run(env)
    ((scratch, n_bytes),) = run.scratch.items()
    assert n_bytes == run.scratch_bytes == 2400
    first, second = run.calls
    pointers = tuple(Argument(POINTER, p) for p in (1, 2, scratch))
    numbers = (Argument("i64", 300), Argument("i64", 10))
    assert first == ("predict_0", (3, 1, 1), (128, 1, 1), 4096, pointers + numbers)
    assert second[:4] == ("predict_1", (3, 1, 1), (128, 1, 1), 0)


def test_wrong_arguments_are_named():
    with pytest.raises(CompilerError, match=r"missing or unknown: \['row', 'rows'\]"):
        env = {"row": 1, "n_rows": 3, "n_trees": 1, "nodes": 2, "result": 3}
        plan_of(walk_function()).run(env)


def test_launches_of_nothing_are_skipped_and_huge_ones_refused():
    plan = _many_launches(1)
    assert plan.run({"n": 0}).calls == []
    tall = _many_launches(1, axis="y")
    with pytest.raises(CompilerError, match="launched on 1 × 65536 × 1 blocks"):
        tall.run({"n": 65536})


def test_a_loop_around_launches():
    b = Launches()
    n, out = Value("n", I64), Buffer("out", I64)

    def body(i, carried):
        with b.grid(carried[0]), b.region(32) as thread:
            b.store(out, thread, b.add(i, carried[0]))
        return [b.mul(carried[0], 2)]

    (last,) = for_(b, b.const(0), n, b.const(2), body, [b.const(3)])
    b.alloc("scratch", I64, last)
    plan = plan_of(Function("f", (n, out), b.finish()))
    run = plan.run({"n": 5, "out": 7})
    assert [call.grid for call in run.calls] == [(3, 1, 1), (6, 1, 1), (12, 1, 1)]
    assert [a.value for a in run.calls[1].args] == [7, 2, 6]
    assert [*run.scratch.values()] == [8 * 24]


@given(
    st.sampled_from(sorted(TYPES)),
    st.sampled_from(OPS),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
def test_integers_are_computed_as_lir_does(type_name, op, a, b):
    type_ = TYPES[type_name]
    dtype = np.dtype(f"{'u' if type_name[0] == 'u' else 'i'}{type_.bytes}")
    x, y = (int(v) for v in np.array([a, b]).astype(dtype))
    if op in ("shl", "shr"):
        y %= 8 * type_.bytes
    elif op in ("div", "rem") and y in (0, -1):
        y = 3
    compare = op in COMPARISONS
    p, q, out = Value("p", type_), Value("q", type_), Buffer("out", type_)
    w = Builder()
    value = w.compare(op, p, q) if compare else w.binary(op, p, q)
    w.store(out, w.const(0), w.convert(value, type_))
    result = np.zeros(1, dtype)
    interpret_lir(
        Function("f", (p, q, out), w.finish()), {"p": x, "q": y, "out": result}
    )
    made = lir.Compare(op, p, q) if compare else lir.Binary(op, p, q)
    assert int(evaluate(value, made, (x, y))) == int(result[0])


def _many_launches(hi: int, axis: str = "x", carried: bool = False) -> HostPlan:
    """``for i in 0 to hi``: scratch of n - i numbers, a launch of n blocks."""
    b, n = Launches(), Value("n", I32)

    def body(i, sums):
        left = b.binary("sub", n, i)
        part = b.alloc("part", F32, left)
        with b.grid(n, axis=axis) as block, b.region(32) as thread:
            b.store(part, b.convert(thread, I64), b.convert(block, F32))
        return [left] * len(sums)

    b.alloc("all", F64, b.const(10))
    zero = b.const(0, I32)
    for_(b, zero, b.const(hi, I32), b.const(1, I32), body, [zero] * carried)
    return plan_of(Function("f", (n,), b.finish()))


def needs(plan: HostPlan, n: int) -> tuple[int, int]:
    run = plan.run({"n": n}, ends_only=True)
    return run.scratch_bytes, run.launches


def test_needs_are_found_by_the_ends_of_loops() -> None:
    # a billion iterations: only the ends are looked at, and all have one scratch
    assert needs(_many_launches(1 << 30), 1 << 20) == (80 + (4 << 20), 1 << 30)
    assert needs(_many_launches(0), 5) == (80, 0)
    assert needs(_many_launches(1), 5) == (80 + 20, 1)
    assert needs(_many_launches(3, carried=True), 5) == (80 + 20, 3)
    run = _many_launches(3).run({"n": 5})
    whole, part = run.scratch
    assert run.scratch == {whole: 80, part: 20}
    assert [call.args for call in run.calls] == [(Argument(POINTER, part),)] * 3
    assert run.launches == 3


def test_needs_of_grids_that_are_too_large() -> None:
    plan = _many_launches(2, axis="y")
    assert needs(plan, 65535)[1] == 2
    with pytest.raises(CompilerError, match="1 × 65536 × 1 blocks"):
        needs(plan, 65536)
    plan = _many_launches(1)  # of 32 threads
    assert needs(plan, (1 << 27) - 1)[1] == 1
    with pytest.raises(CompilerError, match="blocks of 32 × 1 × 1 threads; AMD"):
        needs(plan, 1 << 27)


# ------------------------------------------------------------ insert transfers


GPU = Target.cuda("sm_90")
DIRECT = Schedule.preset("tahoe-direct")


def lowered(name: str, schedule: Schedule, element: Element = "accumulator") -> Lowered:
    hir = build_hir(forest(name), schedule, "exact", kind="gpu", element=element)
    return lower(hir, GPU, element=element)


@pytest.mark.parametrize(
    ("name", "element", "width"),
    [
        ("vector 10", "accumulator", 10),
        ("vector 10", "leaf_number", 5),
        ("full", "contribution", forest("full").n_features + 1),
    ],
)
def test_a_row_has_as_many_results_as_are_copied(name, element, width):
    schedule = DIRECT
    if element == "contribution":
        table = backend("gpu").contribution_table(forest(name))
        schedule = table[max(table)]
    found = lowered(name, schedule, element)
    assert f"  %width: i32 = const {width}\n" in found.text("lir")
    plan = emit_gpu(found.kernel.function, GPU)
    assert plan.uploads == tuple(item.buffer.name for item in found.kernel.data)
    env = dict.fromkeys(plan.params, 0) | {"n_rows": 7, "row_stride": 9}
    in_bytes = 4 * 7 * 9
    out_bytes = found.kernel.function.params[3].element.bytes * 7 * width
    assert plan.run(env).copied == {"rows": in_bytes, "result": out_bytes}


# ---------------------------------------------------------------- the verifier

N, X, Y = Value("n", I64), Buffer("x", lir.F32), Buffer("y", lir.F32)
GRID = lir.Grid((("grid.x", Value("block", I64), N),), ())
IN, OUT = lir.Transfer("copy_in", X, (N,)), lir.Transfer("copy_out", Y, (N,))
UPLOAD, MINE = lir.Transfer("upload", X), Buffer("mine", lir.F32)


def verify(*body: lir.Stmt) -> None:
    verify_lir(Function("f", (N, X, Y), body))


def test_accepted() -> None:
    verify(UPLOAD, IN, GRID, OUT)


INSIDE = lir.For(Value("i", I64), N, N, N, (IN,))
REFUSED = {
    "no launch": ((IN,), "copy_in is beside launches, in no body"),
    "in a loop": ((INSIDE, GRID), "copy_in is beside launches, in no body"),
    "rows late": ((GRID, IN), "copy_in after the launches"),
    "results early": ((OUT, GRID), "copy_out before the launches"),
    "a launch too many": ((GRID, OUT, GRID), "a launch after copy_out"),
    "part of a model": ((lir.Transfer("upload", X, (N,)), GRID),
        "an upload is of all elements, a copy has a shape"),
    "no shape": ((lir.Transfer("copy_in", X), GRID),
        "an upload is of all elements, a copy has a shape"),
    "scratch": ((lir.Alloc(MINE, N), lir.Transfer("copy_in", MINE, (N,)), GRID),
        "@mine is scratch, which the host does not have"),
    "no such buffer": ((lir.Transfer("copy_in", MINE, (N,)), GRID),
        "@mine is not defined"),
    "no such extent": ((lir.Transfer("copy_in", X, (Value("m", I64),)), GRID),
        "%m is not defined"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    body, why = REFUSED[case]
    assert error_of(CompilerError, verify, *body).split(", in '")[0] == why
