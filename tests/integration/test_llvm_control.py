"""Control flow, scratch memory, parallel loops and planes through LLVM."""

from __future__ import annotations

import ctypes
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from skforge.compiler.codegen.llvm.emitter import emit_llvm, pool_text
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    U8,
    Buffer,
    Plane,
    Value,
    Vec,
)
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import compile_functions, emit_object
from skforge.exceptions import CompilerError
from tests.lir_loops import for_, parallel_for
from tests.llvm_kernels import buffers, check, kernel
from tests.run_kernel import call


def test_a_switch_sends_every_other_number_to_its_last_case():
    def write(b, selector, out):
        cases = [lambda v=v: [b.const(v, I32)] for v in (5, 6, 7)]
        (kind,) = b.switch(selector, cases, [I32])
        b.store(out, b.const(0), kind)

    function = kernel({"selector": I32, **buffers(out=I32)}, write)
    for selector, wanted in [(0, 5), (1, 6), (2, 7), (3, 7), (-1, 7), (2**31 - 1, 7)]:
        args = {"selector": selector, "out": np.zeros(1, np.int32)}
        check(function, args, {"out": np.array([wanted], np.int32)})


def test_vectors_and_masks_are_carried():
    def write(b, a, out):
        zero = b.const(0)
        v = b.load(a, zero, Vec(F32, 8))

        def body(i, carried):
            total, alive = carried
            grown = b.select(alive, b.add(total, v), total)
            return grown, b.compare("lt", grown, 10.0)

        all_alive = b.compare("eq", v, v)
        inits = [b.const(0.0, Vec(F32, 8)), all_alive]
        total, alive = for_(b, zero, b.const(6), b.const(1), body, inits)
        b.store(out, zero, total)
        b.store(out, b.const(8), b.convert(alive, F32))

    function = kernel(buffers(a=F32, out=F32), write)
    a = np.array([0, 1, 2, 3, 4, 5, 10, 20], np.float32)
    total = np.array([0, 6, 10, 12, 12, 10, 10, 20], np.float32)
    out = np.concatenate([total, (total < 10).astype(np.float32)])
    check(function, {"a": a, "out": np.zeros(16, np.float32)}, {"out": out})


# ------------------------------------------------------------ scratch


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [0, 1, 7, 4096, 5000])
def test_scratch_is_on_the_stack_or_aligned_on_the_heap(size, known):
    def write(b, n, out):
        count = b.const(size) if known else n
        scratch = b.alloc("scratch", F32, count, alignment=32)

        def fill(i, _):
            b.store(scratch, i, b.convert(i, F32))

        for_(b, b.const(0), count, b.const(1), fill)

        def copy(i, _):
            b.store(out, i, b.load(scratch, i))

        for_(b, b.const(0), count, b.const(1), copy)

    function = kernel({"n": I64, **buffers(out=F32)}, write)
    out = np.arange(size, dtype=np.float32)
    check(function, {"n": size, "out": np.zeros(size, np.float32)}, {"out": out})
    text = emit_llvm(function, Target.host())
    on_stack = known and size * 4 <= 16384
    body = text.split("\n}\n")[0]
    assert text.count("alloca [") == on_stack
    assert text.count("call ptr @aligned_alloc(i64 64") == (not on_stack)
    # Blocks of a known size are kept for the next call; others end with this one.
    assert body.count("call void @free") == (not known)
    kept = known and not on_stack
    assert (body.count("@kernel.take0"), body.count("@kernel.give0")) == (kept, kept)


def test_threads_take_the_scratch_back_that_they_gave():
    """Another thread's lies in the cache of another core; two may share a place."""
    calls = """declare noalias ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
define ptr @take() {
  %block = call ptr @"kernel.take0"()
  ret ptr %block
}
define void @give(ptr %block) {
  call void @"kernel.give0"(ptr %block)
  ret void
}"""
    text = "\n".join([calls, *pool_text("kernel", [5000])])
    jit = compile_functions([text], Target.host())
    take = ctypes.CFUNCTYPE(ctypes.c_void_p)(jit.address("take"))
    give = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(jit.address("give"))
    with ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(8)]
        first = [thread.submit(take).result() for thread in threads]
        assert len(set(first)) == 8
        for thread, block in reversed(list(zip(threads, first, strict=True))):
            thread.submit(give, block).result()
        again = [thread.submit(take).result() for thread in threads]
        assert sum(map(int.__eq__, first, again)) >= 4 and set(first) == set(again)
        for thread, block in zip(threads, again, strict=True):
            thread.submit(give, block).result()


def test_all_scratch_together_does_not_fill_the_stack():
    def write(b, out):
        for _ in range(12):
            scratch = b.alloc("scratch", F32, b.const(4096))
            b.store(scratch, b.const(9), b.const(1.0, F32))

    text = emit_llvm(kernel(buffers(out=F32), write), Target.host())
    assert (text.count("alloca ["), text.count("call void @free")) == (7, 2)


def test_heap_scratch_is_freed_where_its_body_ends():
    def write(b, n, size, out):
        def body(i, _):
            scratch = b.alloc("scratch", F64, size)
            last = b.binary("sub", size, 1)
            b.store(scratch, last, b.convert(i, F64))
            b.store(out, b.const(0), b.load(scratch, last))

        for_(b, b.const(0), n, b.const(1), body)

    function = kernel({"n": I64, "size": I64, **buffers(out=F64)}, write)
    module = compile_functions([function], Target.host())
    out = np.zeros(1)
    call(module, "kernel", [1, 10_000, out])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call(module, "kernel", [20_000, 10_000, out])  # 1.6 GB if it were kept
    assert out[0] == 19_999
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 50_000


# ------------------------------------------------------------ parallel loops


def parallel_kernel():
    """Return nested parallel loops that read every kind of value from outside."""

    def write(b, x, y, n, outer, scale, flag):
        vector = b.load(x, b.const(0), Vec(F32, 4))
        mask = b.compare("gt", vector, 0.5)
        true = b.compare("ge", n, 0)
        small = b.convert(n, U8)

        def outer_body(o):
            def inner_body(i):
                private = b.alloc("private", F32, b.const(4))
                large = b.alloc("large", F32, b.add(n, 1))
                at = b.convert(i, I64)
                b.store(private, b.const(1), b.mul(b.load(x, at), scale))
                b.store(large, at, b.extract(vector, 2))
                total = b.add(b.load(private, b.const(1)), b.load(large, at))
                total = b.add(total, b.convert(b.mask_bits(mask, I32), F32))
                total = b.add(total, b.convert(small, F32))
                total = b.select(b.binary("and", true, flag), total, b.const(0.0, F32))
                b.store(y, b.add(b.mul(o, n), at), total)

            parallel_for(b, b.convert(n, I32), inner_body)

        parallel_for(b, outer, outer_body)

    params = {"x": F32, "y": F32}
    scalars = {"n": I64, "outer": I64, "scale": F32, "flag": BOOL}
    return kernel({**buffers(**params), **scalars}, write)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("n_threads", [1, 2, 8])
@pytest.mark.parametrize(("n", "outer"), [(5, 0), (5, 1), (500, 1), (7, 30), (1, 3)])
def test_parallel_loops(n, outer, n_threads):
    x = np.random.default_rng(n).random(max(n, 4)).astype(np.float32)
    y = np.zeros(n * outer, np.float32)
    bits = sum(1 << i for i in range(4) if x[i] > 0.5)
    row = x[:n] * np.float32(0.3) + x[2] + np.float32(bits) + np.float32(n % 256)
    args = {"x": x, "y": y, "n": n, "outer": outer, "scale": 0.3, "flag": True}
    args["scale"] = float(np.float32(0.3))
    check(parallel_kernel(), args, {"y": np.tile(row, outer)}, n_threads)


def test_parallel_bodies_are_functions_and_one_thread_calls_them_directly():
    text = emit_llvm(parallel_kernel(), Target.host())
    assert text.count("define internal void @kernel.p") == 2
    assert text.count("define") == 3
    module = compile_functions([parallel_kernel()], Target.host())
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    call(module, "kernel", [x, y, 4, 1, 2.0, True])  # the address of pfor is null
    assert y.tolist() == [22.0] * 4  # 2 + 1 + 15 + 4


# ------------------------------------------------------------ planes


@pytest.mark.parametrize(
    "plane", [*(Plane(16 << n) for n in range(6)), Plane(64, vector=True)]
)
def test_planes(plane):
    rows = plane.rows

    def write(b, table, index):
        read = [b.let(lir.LoadPlane(table, b.const(k)), plane) for k in range(3)]
        mixed = b.let(lir.PlaneMux(*read), plane)
        b.emit(lir.StorePlane(table, b.const(3), mixed))
        loads = (lir.LoadPlane(table, b.const(k)) for k in range(4))
        planes = tuple(b.let(load, Plane(rows)) for load in loads)
        number = b.let(lir.PlanesToIndex(planes), Vec(U8, rows))
        b.store(index, b.const(0), number)

    function = kernel(buffers(table=U8, index=U8), write)
    bits = np.random.default_rng(rows).integers(0, 2, (4, rows)).astype(np.uint8)
    bits[3] = 0
    args = {
        "table": np.packbits(bits, axis=1, bitorder="little").reshape(-1),
        "index": np.zeros(rows, np.uint8),
    }
    bits[3] = np.where(bits[0] == 1, bits[1], bits[2])
    expected = {
        "table": np.packbits(bits, axis=1, bitorder="little").reshape(-1),
        "index": (np.array([8, 4, 2, 1]) @ bits).astype(np.uint8),
    }
    check(function, args, expected)


# ------------------------------------------------------------ names and refusals


def test_any_name_will_do():
    value, buffer = Value('a "quoted" \\ näme', I64), Buffer("x", I64)
    odd = [Value(name, I64) for name in ("x", "$t1", ".x", "$b1.for", "entry", "0")]
    stmts = [lir.Let(value, lir.Const(0))]
    total = value
    for k, v in enumerate(odd):
        loaded = Value(f"loaded {k}", I64)
        stmts.append(lir.Let(loaded, lir.Load(buffer, value)))
        stmts.append(lir.Let(v, lir.Binary("add", loaded, total)))
        total = v
    stmts.append(lir.Store(buffer, value, total))
    function = lir.Function("a kernel's name", (buffer,), tuple(stmts))
    args = {"x": np.array([3])}
    check(function, args, {"x": np.array([18])})
    assert emit_object(function, Target.aarch64())


@pytest.mark.parametrize("stmt", ["grid", "warp"])
def test_what_must_be_legalised_before(stmt):
    one, x = Value("one", I64), Buffer("x", F32)
    let = lir.Let(one, lir.Const(1))
    region = lir.Grid((("grid.x", Value("g", I64), one),), ())
    cases = {
        "grid": (region, "Grid"),
        "warp": (lir.Let(Value("w", I64), lir.WarpReduce(one, 32)), "WarpReduce"),
    }
    refused, what = cases[stmt]
    function = lir.Function("k", (x,), (let, refused))
    with pytest.raises(CompilerError) as error:
        emit_llvm(function, Target.host())
    assert str(error.value) == (
        f"LLVM emitter, function 'k': {what} must be legalised before the LLVM emitter."
    )


def test_unbound_and_twice_bound_names():
    v, w = Value("v", I64), Value("w", I64)
    unbound = lir.Function("k", (), (lir.Let(v, lir.Binary("add", w, w)),))
    twice = lir.Function("k", (v,), (lir.Let(v, lir.Const(1)),))
    for function, what in [
        (unbound, "'w' is used before it is bound."),
        (twice, "'v' is bound twice."),
    ]:
        with pytest.raises(CompilerError) as error:
            emit_llvm(function, Target.host())
        assert str(error.value) == f"LLVM emitter, function 'k': {what}"
