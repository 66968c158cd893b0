"""The verifier refuses what is not LIR, with the statement and the reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    U8,
    U32,
    Buffer,
    Function,
    Let,
    Mask,
    Plane,
    Stmt,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.exceptions import CompilerError
from tests.refusals import error_of
from tests.strategies_lir import Program, lir_programs

N, J = Value("n", I64), Value("j", I32)
A, D, T = Value("a", F32), Value("d", F64), Value("t", BOOL)
X, Y, K = Buffer("x", F32), Buffer("y", F64), Buffer("k", U8)
PARAMS = (N, J, A, D, T, X, Y, K)


def refused(*body: Stmt, params: tuple[Any, ...] = PARAMS) -> str:
    return error_of(CompilerError, verify_lir, Function("f", params, body))


def accepted(*body: Stmt) -> None:
    verify_lir(Function("f", PARAMS, body))


def let(type_: Any, op: lir.Op, name: str = "v") -> Let:
    return Let(Value(name, type_), op)


def const(type_: Any, value: Any = 0, name: str = "v") -> Let:
    return let(type_, lir.Const(value), name)


V, W = Value("v", I64), Value("w", I64)
A2 = Value("a2", F32)


@given(lir_programs())
def test_accepts_every_program_of_the_strategy(program: Program) -> None:
    verify_lir(program.function)


# ---------------------------------------------------------------- names

SCRATCH = Buffer("s", F32)
R, R2 = Value("r", F32), Let(A2, lir.Load(X, N))
P, VAR = Value("p", F32), Value("i", I64)
LOOP = lir.For(VAR, N, N, N, (), (A,), (P,), (P,), (R,))
#: Statements, and how what is said of them begins.
REFUSED = {
    "bound twice": ((const(I64), const(I64)),
        "v is bound twice, in '%v: i64 = const 0' of f."),
    "bound as a parameter": ((const(I64, name="n"),),
        "n is bound twice, in '%n: i64 = const 0' of f."),
    "used before": ((lir.Prefetch(X, V), const(I64)),
        "%v is not defined, in 'prefetch l1 @x[%v]' of f."),
    "used after its body": ((lir.If(T, (const(I64),)), lir.Prefetch(X, V)),
        "%v is used outside its body, in 'prefetch l1 @x[%v]' of f."),
    "another type": ((lir.Prefetch(X, Value("a", I64)),),
        "%a is used as i64 but bound as f32, in 'prefetch l1 @x[%a]' of f."),
    "no such buffer": ((lir.Prefetch(SCRATCH, N),),
        "@s is not defined, in 'prefetch l1 @s[%n]' of f."),
    "a buffer after its body":
        ((lir.If(T, (lir.Alloc(SCRATCH, N),)), lir.Prefetch(SCRATCH, N)),
        "@s is used outside its body, in 'prefetch l1 @s[%n]' of f."),
    "other facts of a buffer": ((lir.Prefetch(Buffer("x", F64), N),),
        "@x is used with other facts than it was bound with, in "
        "'prefetch l1 @x[%n]' of f."),
    "a variable after its loop": ((LOOP, lir.Prefetch(X, VAR)),
        "%i is used outside its body"),
    "a carried value after its loop": ((LOOP, lir.Store(X, N, P)),
        "%p is used outside its body"),
    "a number too few": ((lir.For(VAR, N, N, N, (), (A,), (P,), (), (R,)),),
        "yields 0 values for 1 results, in "
        "'%r: f32 = for %i: i64 = %n to %n step %n carry (%p: f32 = %a) {' of f."),
    "a number of another type": ((lir.For(VAR, N, N, N, (), (A,), (P,), (D,), (R,)),),
        "%d and %r differ in type: f64, f32, in "),
    "bounds that differ": ((lir.For(VAR, N, N, J, ()),),
        "variable and bounds differ in type: i64, i64, i64, i32, in "),
    "an initial value too many": ((lir.While((A,), (), (), T, (), (), ()),),
        "1 initial values for 0 carried values, in "),
    "a number for a test": ((lir.While((), (), (), N, (), (), ()),),
        "%n is i64, not bool, in "),
    "one side yields": ((lir.If(T, (), (), (A,), (), (R,)),),
        "yields 0 values for 1 results, in '%r: f32 = if %t {' of f."),
    "no case": ((lir.Switch(N, (), (), ()),),
        "a switch without cases, in 'switch %n {' of f."),
    "a case that does not yield": ((lir.Switch(N, ((), ()), ((A,),), (R,)),),
        "1 yields for 2 cases, in '%r: f32 = switch %n {' of f."),
    "named of nothing": ((lir.Named("is_leaf", (V,), (), (), ()),),
        "%v is not defined, in 'is_leaf(%v)' of f."),
    "named gives nothing": ((lir.Named("is_leaf", (N,), (), (A2,), (R,)),),
        "%a2 is not defined, in '%r: f32 = is_leaf(%n)' of f."),
    "named gives another type": ((lir.Named("is_leaf", (N,), (), (T,), (R,)),),
        "%t and %r differ in type: bool, f32, in '%r: f32 = is_leaf(%n)' of f."),
    "named gives too few": ((lir.Named("is_leaf", (), (R2,), (), (R,)),),
        "0 values for 1 results, in '%r: f32 = is_leaf(@x)' of f."),
    "named binds twice":
        ((lir.Named("is_leaf", (), (Let(V, lir.Load(X, N)),) * 2, (), ()),),
        "v is bound twice, in '%v: i64 = load @x[%n]' of f."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_names_bodies_and_values_that_do_not_fit(case: str) -> None:
    body, text = REFUSED[case]
    assert refused(*body).startswith(text)


def test_loops_and_named_operations_give_their_values() -> None:
    accepted(LOOP, lir.Store(X, N, R))
    named = lir.Named("load_threshold", (N,), (R2,), (A2,), (R,))
    accepted(named, lir.Store(X, N, R), lir.Store(X, N, A2))


# ---------------------------------------------------------------- types

VEC, MASK = Value("vec", Vec(F32, 4)), Value("mask", Mask(4))
LANES = (
    const(F32, 0.0, "zero"),
    let(Vec(F32, 4), lir.Splat(Value("zero", F32)), "vec"),
    let(Mask(4), lir.Splat(T), "mask"),
    let(Vec(I64, 4), lir.Iota(), "iota"),
    const(U8, 0, "u"),
    const(Vec(F32, 8), 0.0, "v8"),
    const(Vec(U32, 4), 0, "u4"),
)
IOTA, V8, U4 = (
    Value("iota", Vec(I64, 4)),
    Value("v8", Vec(F32, 8)),
    Value("u4", Vec(U32, 4)),
)


@pytest.mark.parametrize(
    ("op", "type_", "reason"),
    [
        (lir.Const(300), U8, "const() does not give u8"),
        (lir.Const(-1), U8, "const() does not give u8"),
        (lir.Const(1), BOOL, "const() does not give bool"),
        (lir.Const(True), F32, "const() does not give f32"),
        (lir.Const(0.5), I32, "const() does not give i32"),
        (lir.Const(False), Plane(8), "const() does not give plane<8>"),
        (lir.Binary("add", A, D), F32, "add(f32, f64) does not give f32"),
        (lir.Binary("min", A, A), F32, "min(f32, f32) does not give f32"),
        (lir.Binary("add", T, T), BOOL, "add(bool, bool) does not give bool"),
        (lir.Binary("shl", A, A), F32, "shl(f32, f32) does not give f32"),
        (lir.Unary("not", A), F32, "not(f32) does not give f32"),
        (lir.Unary("zeros", A), F32, "zeros(f32) does not give f32"),
        (lir.Unary("zeros", T), BOOL, "zeros(bool) does not give bool"),
        (lir.Compare("lt", A, D), BOOL, "lt(f32, f64) does not give bool"),
        (lir.Compare("lt", T, T), BOOL, "lt(bool, bool) does not give bool"),
        (lir.Compare("lt", A, A), Mask(4), "lt(f32, f32) does not give mask<4>"),
        (lir.Select(MASK, A, A), F32, "select(mask<4>, f32, f32) does not give f32"),
        (lir.Convert(A), BOOL, "convert(f32) does not give bool"),
        (lir.Convert(VEC), I32, "convert(vec<f32, 4>) does not give i32"),
        (lir.Bitcast(A), I64, "bitcast(f32) does not give i64"),
        (lir.Bitcast(MASK), U8, "bitcast(mask<4>) does not give u8"),
        (lir.Splat(A), Vec(F64, 4), "splat(f32) does not give vec<f64, 4>"),
        (lir.Extract(VEC, 4), F32, "extract(vec<f32, 4>) does not give f32"),
        (lir.Unary("popcount", A), F32, "popcount(f32) does not give f32"),
        (lir.Compress(MASK, MASK), Mask(4),
         "compress(mask<4>, mask<4>) does not give mask<4>"),
        (lir.Compress(VEC, VEC), Vec(F32, 4),
         "compress(vec<f32, 4>, vec<f32, 4>) does not give vec<f32, 4>"),
        (lir.MaskBits(IOTA), U8, "mask_bits(vec<i64, 4>) does not give u8"),
        (lir.AnyTrue(VEC), BOOL, "any_true(vec<f32, 4>) does not give bool"),
        (lir.Load(X, A), F32, "load(f32) does not give f32"),
        (lir.Load(X, N), Mask(4), "load(i64) does not give mask<4>"),
        (lir.Load(X, N), Plane(8), "load(i64) does not give plane<8>"),
        (lir.Load(X, N), Vec(F32, 0), "vec<f32, 0> is not a vector; bools make a mask"),
        (lir.Gather(X, N), F32, "gather(i64) does not give f32"),
        (lir.Gather(X, IOTA, MASK), Vec(F32, 4),
         "gather(vec<i64, 4>, mask<4>) does not give vec<f32, 4>"),
        (lir.Gather(X, IOTA), Vec(F32, 8),
         "gather(vec<i64, 4>) does not give vec<f32, 8>"),
        (lir.Gather(X, IOTA, VEC, VEC), Vec(F32, 4),
         "gather(vec<i64, 4>, vec<f32, 4>, vec<f32, 4>) does not give vec<f32, 4>"),
        (lir.WarpReduce(A, 32), F32, "a warp reduction outside a block region"),
        (lir.WarpReduce(A, 12), F32, "warp_reduce(f32) does not give f32"),
        (lir.LoadPlane(X, N), Plane(8), "load_plane(i64) does not give plane<8>"),
        (lir.LoadPlane(K, N), Plane(12), "plane<12>: rows come in whole bytes"),
        (lir.PlanesToIndex(()), Vec(U8, 8),
         "planes_to_index() does not give vec<u8, 8>"),
        (lir.Permute((VEC,) * 3, U4), VEC.type,
         "permute(vec<f32, 4>, vec<f32, 4>, vec<f32, 4>, vec<u32, 4>) does not give "
         "vec<f32, 4>"),
        (lir.Permute((), U4), VEC.type,
         "permute(vec<u32, 4>) does not give vec<f32, 4>"),
        (lir.Permute((VEC, V8), U4), VEC.type,
         "permute(vec<f32, 4>, vec<f32, 8>, vec<u32, 4>) does not give vec<f32, 4>"),
        (lir.Permute((V8,), U4), V8.type,
         "permute(vec<f32, 8>, vec<u32, 4>) does not give vec<f32, 8>"),
        (lir.Permute((VEC,), IOTA), VEC.type,
         "permute(vec<f32, 4>, vec<i64, 4>) does not give vec<f32, 4>"),
        (lir.Permute((VEC,), VEC), VEC.type,
         "permute(vec<f32, 4>, vec<f32, 4>) does not give vec<f32, 4>"),
        (lir.Shuffle(VEC, V8, (0, 1)), Vec(F32, 2),
         "shuffle(vec<f32, 4>, vec<f32, 8>) does not give vec<f32, 2>"),
        (lir.Shuffle(VEC, VEC, (0, 8)), Vec(F32, 2),
         "shuffle(vec<f32, 4>, vec<f32, 4>) does not give vec<f32, 2>"),
        (lir.Shuffle(VEC, VEC, (0, -1)), Vec(F32, 2),
         "shuffle(vec<f32, 4>, vec<f32, 4>) does not give vec<f32, 2>"),
        (lir.Shuffle(VEC, VEC, (0, 1)), Vec(F32, 4),
         "shuffle(vec<f32, 4>, vec<f32, 4>) does not give vec<f32, 4>"),
    ],
)  # fmt: skip
def test_operations_refuse_what_does_not_fit(op, type_, reason):
    text = refused(*LANES, let(type_, op))
    assert re.sub(r", in '.*", "", text) == reason


def test_masks_and_planes_are_not_stored() -> None:
    assert refused(*LANES, lir.Store(X, N, MASK)) == (
        "stores mask<4> in a f32 buffer, in 'store @x[%n] = %mask' of f."
    )
    assert refused(lir.Store(X, N, D)) == (
        "stores f64 in a f32 buffer, in 'store @x[%n] = %d' of f."
    )


# ---------------------------------------------------------------- launches

BLOCK, THREAD = Value("block", I64), Value("thread", I64)


def grid(*body: Stmt) -> lir.Grid:
    return lir.Grid((("grid.x", BLOCK, N),), body)


def region(*body: Stmt, var: Value = THREAD) -> lir.BlockRegion:
    return lir.BlockRegion((("block.x", var, N),), body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (region(), "a block region that is not in a grid, or in another region"),
        (grid(region(region(var=Value("u", I64)))),
         "a block region that is not in a grid, or in another region"),
        (grid(lir.Grid((("grid.x", V, N),), ())), "a launch in a launch"),
        (grid(lir.ParallelFor(V, N, ())), "a parallel loop in a launch"),
        (grid(lir.Store(X, N, A)),
         "every thread would write; a grid writes in its regions only"),
        (grid(lir.Alloc(Buffer("s", F32), N)),
         "global memory is allocated outside a launch"),
        (grid(region(lir.Alloc(Buffer("s", F32, "shared"), N))),
         "shared memory is allocated in a grid, outside its regions"),
        (lir.Alloc(Buffer("s", F32, "shared"), N),
         "shared memory is allocated in a grid, outside its regions"),
        (lir.Grid((("block.x", BLOCK, N),), ()),
         "block.x is not a dimension of a grid"),
    ],
)  # fmt: skip
def test_launches_are_blocks_of_regions(body: Stmt, reason: str) -> None:
    assert re.sub(r", in '.*", "", refused(body)) == reason


def test_private_buffers_of_a_block_belong_to_its_threads() -> None:
    mine = Buffer("mine", F32, "private")
    value = Value("w", F32)
    load = Let(value, lir.Load(mine, N))
    accepted(grid(lir.Alloc(mine, N), region(load)))
    assert refused(grid(lir.Alloc(mine, N), load)) == (
        "@mine belongs to threads and is used outside a region, "
        "in '%w: f32 = load @mine[%n]' of f."
    )


def around(value: lir.Op, *more: Stmt) -> lir.Grid:
    """Return a loop around a region, steered by ``value``."""
    loop = lir.For(Value("i", I64), N, Value("hi", I64), N, (region(*more),))
    return grid(let(I64, value, "hi"), loop)


def test_control_around_regions_is_uniform() -> None:
    counts = Buffer("counts", I64)
    alloc = lir.Alloc(counts, N)
    accepted(alloc, around(lir.Load(counts, N)))
    written = around(lir.Load(counts, N), lir.Store(counts, N, THREAD))
    assert refused(alloc, written) == (
        "%hi was computed in a region and steers control, "
        "in 'grid grid.x %block: i64 < %n {' of f."
    )


def test_what_follows_from_a_region_does_not_steer_either() -> None:
    counts = Buffer("counts", I64)
    p, r = Value("p", I64), Value("r", I64)
    load = let(I64, lir.Load(counts, N))
    carry = lir.For(Value("i", I64), N, N, N, (load,), (N,), (p,), (V,), (r,))
    test = let(BOOL, lir.Compare("lt", r, N), "test")
    branch = lir.If(Value("test", BOOL), (region(lir.Store(counts, N, THREAD)),))
    assert refused(lir.Alloc(counts, N), grid(carry, test, branch)).startswith(
        "%test was computed in a region and steers control, in "
    )


@pytest.mark.parametrize(
    ("stmt", "reason"),
    [
        (let(F32, lir.Load(X, N)), "computes integers and nothing else"),
        (let(Vec(I64, 4), lir.Const(0)), "has no vec<i64, 4>"),
        (let(F32, lir.Convert(N)), "computes with no floats"),
        (
            lir.If(Value("yes", BOOL), ()),
            "computes, allocates, loops and launches only",
        ),
        (lir.Store(X, N, A), "computes, allocates, loops and launches only"),
    ],
)
def test_the_host_of_a_launch_does_what_hosts_do(stmt: Stmt, reason: str) -> None:
    yes = Let(Value("yes", BOOL), lir.Compare("lt", N, N))
    accepted(yes, stmt)
    assert refused(yes, stmt, grid()).startswith(f"the host of a launch {reason}, in ")
    mine = lir.Alloc(Buffer("mine", F32, "private"), N)
    accepted(mine)
    assert refused(mine, grid()).startswith("private memory is allocated in a launch, ")


def test_what_hosts_do_around_launches() -> None:
    scratch, size = Buffer("scratch", F32), Value("size", I64)
    loop = lir.For(
        Value("i", I64), N, size, N, (grid(),), (N,), (V,), (V,), (Value("last", I64),)
    )
    accepted(
        let(I64, lir.Binary("mul", N, N), "size"),
        let(F32, lir.Const(0.5), "half"),
        lir.Alloc(scratch, size),
        loop,
    )


def test_types_of_parameters() -> None:
    assert refused(params=(N, N)) == "n is bound twice, in the parameters of f."
    assert refused(params=(Value("v", Vec(F32, 4)),)) == (
        "%v is vec<f32, 4>, not a number, in the parameters of f."
    )
    assert refused(params=(Buffer("s", F32, "shared"),)) == (
        "@s is a parameter in shared memory, in the parameters of f."
    )
    assert refused(params=(Buffer("s", F32, alignment=48),)) == (
        "alignment 48 is not a power of two, in the parameters of f."
    )
