"""GPU functions copy the model and the rows in, and the results out."""

from __future__ import annotations

import pytest

from skforge.compiler.backend import backend
from skforge.compiler.driver import Lowered, build_hir, lower
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import I64, Buffer, Function, Value
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest
from tests.refusals import error_of

GPU = Target.cuda("sm_90")
DIRECT = Schedule.preset("tahoe-direct")


def lowered(name: str, schedule: Schedule, element: Element = "accumulator") -> Lowered:
    hir = build_hir(forest(name), schedule, "exact", kind="gpu", element=element)
    return lower(hir, GPU, element=element)


def outline(found: Lowered) -> list[str]:
    lines = found.text("lir").splitlines()
    starts = ("  upload", "  copy_", "  grid", "  %width")
    return [line.split(" %x")[0].strip() for line in lines if line.startswith(starts)]


def test_transfers_are_around_the_launches() -> None:
    assert outline(lowered("vector 3", DIRECT)) == [
        "%width: i32 = const 3",
        "upload @nodes <once>",
        "upload @roots <once>",
        "upload @tree_records <once>",
        "upload @base <once>",
        "upload @leaf_rows <once>",
        "upload @leaf_values <once>",
        "copy_in @rows[%n_rows, %row_stride] <unless on the device>",
        "grid grid.x",
        "copy_out @result[%n_rows, %width] <unless on the device>",
    ]


def test_several_launches_share_the_transfers() -> None:
    split = Schedule().gpu_dimension("batch", "grid.x").gpu_dimension("tree", "grid.y")
    kinds = [line.split()[0] for line in outline(lowered("scalar", split))]
    assert kinds[-5:] == ["copy_in", "grid", "grid", "grid", "copy_out"]


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
    assert print_lir(Function("f", (N, X, Y), (UPLOAD, IN, GRID, OUT))) == (
        "func f(%n: i64, @x: f32, @y: f32) {\n"
        "  upload @x <once>\n"
        "  copy_in @x[%n] <unless on the device>\n"
        "  grid grid.x %block: i64 < %n {\n"
        "  }\n"
        "  copy_out @y[%n] <unless on the device>\n"
        "}\n"
    )


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
