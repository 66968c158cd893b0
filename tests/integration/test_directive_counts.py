"""Tests of ``unit/test_directive_counts.py`` that compile or start processes."""

from __future__ import annotations

import ctypes
import re
from collections import Counter

import numpy as np
import pytest

from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import (
    compile_functions,
    emit_assembly,
    emit_ir,
    emit_object,
)
from skforge.engine.kernels import aligned
from skforge.forest.forest import Forest
from skforge.schedule.families import tiled_schedule
from skforge.schedule.schedule import Schedule
from tests import toy_representation
from tests.exactness.checks import assert_same_bits, expected
from tests.exactness.forests import forest
from tests.unit.test_directive_counts import (
    BLOCKS,
    ROWS,
    TILES,
    TREES,
    function_of,
    lowered,
    of_size,
    of_type,
)


@pytest.mark.parametrize(("level", "register"), [("v3", "ymm"), ("v4", "zmm")])
def test_vectorize_gathers_in_machine_code(level: str, register: str) -> None:
    def gathers(schedule: Schedule) -> int:
        function = function_of("scalar", schedule, level=level)
        text = emit_assembly(function, Target.x86_64(level))
        return len(re.findall(rf"vp?gather\w+[^\n]*%{register}", text))

    if not runs(level):
        pytest.skip(f"this machine does not run x86-64-{level}")
    assert gathers(BLOCKS) == 0
    assert gathers(BLOCKS.vectorize("b1")) >= 3


def runs(level: str) -> bool:
    try:
        Target.x86_64(level).check_runs_here()
    except RuntimeError:
        return False
    return True


# ----------------------------------------------------------------------------- cache


@pytest.mark.parametrize(
    "schedule",
    [BLOCKS.cache("b0"), ROWS.cache("batch"), TREES.cache("tree"), TILES.cache("t0")],
    ids=["block of rows", "row", "tree", "tile of trees"],
)
@pytest.mark.parametrize(
    "representation", ["sparse", "array", "reorg", toy_representation.Toy.name]
)
def test_cache_prefetches(schedule: Schedule, representation: str) -> None:
    schedule = schedule.represent(representation)
    found = lowered("scalar", schedule).kernel.function
    touched = {stmt.buffer.name for stmt in of_type(found, lir.Touch)}
    prefetched = {stmt.buffer.name for stmt in of_type(found, lir.Prefetch)}
    if 'cache("t' in repr(schedule):
        assert prefetched <= {"nodes", "toy_children"}
        assert len(prefetched) == 1
    else:
        assert prefetched | touched == {"rows"}
    text = emit_ir(found, Target.host())
    if touched:
        assert "load volatile i8" in text
    else:
        assert "call void @llvm.prefetch" in text
        assert prefetches(found)


def prefetches(function: lir.Function) -> bool:
    text = emit_assembly(function, Target.host())
    return "prefetch" in text or "prfm" in text  # x86's, Arm's


@pytest.mark.parametrize("schedule", [BLOCKS, ROWS, TREES, TILES])
def test_nothing_is_prefetched_unasked(schedule: Schedule) -> None:
    found = function_of("scalar", schedule)
    assert of_type(found, lir.Prefetch) == of_type(found, lir.Touch) == []
    assert not prefetches(found)


# -------------------------------------------------------------------------- parallel


def run_counted(
    made: Forest,
    schedule: Schedule,
    rows: np.ndarray,
    reduction: str = "exact",
    threads: int = 4,
) -> tuple[list[int], np.ndarray]:
    """Run a kernel with a runtime that counts; return its calls' iteration counts."""
    calls, result, _ = run_shared(made, schedule, rows, reduction, threads)
    return calls, result


def run_shared(
    made: Forest,
    schedule: Schedule,
    rows: np.ndarray,
    reduction: str = "exact",
    threads: int = 4,
) -> tuple[list[int], np.ndarray, list[Counter[int]]]:
    """Run a kernel; also return how many iterations each thread would have.

    Iterations are dealt out in equal runs, and run in the reverse order.
    """
    kernel = lowered(made, schedule, reduction).kernel
    jit = compile_functions([kernel.function], Target.host())
    body_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    calls: list[int] = []
    shares: list[Counter[int]] = []

    @ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )
    def pfor(body: int, context: int, count: int, threads: int) -> None:
        calls.append(count)
        shares.append(Counter(i * threads // count for i in range(count)))
        for i in reversed(range(count)):  # any order, one by one
            body_type(body)(context, i, i + 1)

    result = np.empty((len(rows), made.n_outputs), made.accumulator_dtype)
    slots = [rows, result, *(aligned(item.data) for item in kernel.data)]
    first, last, *model = (array.ctypes.data for array in slots)
    packed = np.array([first, len(rows), rows.shape[1], last, *model], np.int64)
    address = ctypes.cast(pfor, ctypes.c_void_p).value
    jit.function(kernel.function.name)(packed.tobytes(), address, threads)
    return calls, result, shares


@pytest.mark.parametrize("reduction", ["exact", "fast", "reproducible"])
def test_16_threads_share_32_rows(reduction: str) -> None:
    """SilvanForge §9.4: rows alone are one task, rows and trees 32 equal ones."""
    rows, raw, _ = expected("scalar")
    made, few = forest("scalar"), rows[:32]
    calls, _ = run_counted(made, Schedule.preset("parallel-rows"), few, reduction)
    assert calls == []  # a single block is not worth a call
    small = Schedule.preset("small-batch", tiles=7)  # of 7 trees
    calls, result, shares = run_shared(made, small, few, reduction, threads=16)
    assert calls[0] == 4 * 7
    assert sorted(shares[0].values()) == [1] * 4 + [2] * 12
    if reduction == "exact":
        assert calls[1:] == [4]  # then the sums of 8 rows each
        assert_same_bits(result, raw[:32], small)
    else:
        np.testing.assert_allclose(result, raw[:32], 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("schedule", "calls"),
    [
        (BLOCKS, []),
        (BLOCKS.parallel("b0"), [5]),  # 65 rows in blocks of 16
        (ROWS.parallel("batch"), [65]),
        # the leaves, then the sums of 65 rows, 8 at a time
        (TREES.parallel("tree"), [7, 9]),
        (TILES.parallel("t0"), [3, 9]),  # 7 trees in tiles of 3
        (ROWS.parallel("tree"), [7] * 65),
        (BLOCKS.parallel("tree"), [7] * 5),
        # blocks and trees are dealt out together
        (BLOCKS.parallel("b0").parallel("tree"), [5 * 7, 9]),
        (BLOCKS.reorder("tree", "b0").parallel("b0").parallel("tree"), [7 * 5, 9]),
        (BLOCKS.parallel("b0").parallel("tree").cache("b0"), [5 * 7, 9]),
        # codes are made for a block: its trees are for the thread that has them
        (BLOCKS.parallel("b0").parallel("tree").quantize("b0"), [5]),
        (Schedule().tile("batch", "b0", "b1", -4).parallel("b0"), [4]),
    ],
    ids=repr,
)
def test_parallel_calls_the_runtime(schedule: Schedule, calls: list[int]) -> None:
    rows, raw, _ = expected("scalar")
    counted, result = run_counted(forest("scalar"), schedule, rows[:65])
    assert counted == calls
    assert_same_bits(result, raw[:65], schedule)


@pytest.mark.parametrize(
    ("threads", "n", "calls"),
    [
        (1, 512, []),  # on this thread
        (2, 512, [2]),
        (8, 512, [8]),
        (3, 512, [3]),  # 176 rows each
        (2, 600, [2]),  # not 512 and 88
        (2, 1200, [4]),  # not three
        (3, 40, [3]),
        (8, 40, [3]),  # 16 rows at least
    ],
)
def test_threads_share_the_rows_of_tiles(
    threads: int, n: int, calls: list[int]
) -> None:
    rows, raw, _ = expected("deep")
    rows, raw = (np.resize(x, (n, *x.shape[1:])) for x in (rows, raw))
    for made in (tiled_schedule(512, 15), tiled_schedule(512, 7)):
        counted, result = run_counted(forest("deep"), made, rows, threads=threads)
        assert counted == calls
        assert_same_bits(result, raw, (threads, n))


@pytest.mark.parametrize("kind", ["scalar", "double", "multiclass", "vector 3"])
def test_atomic_reduce_adds_atomically(kind: str) -> None:
    parallel = TILES.parallel("t0")
    plain = function_of(kind, parallel, "fast")
    atomic = function_of(kind, parallel.atomic_reduce("t0"), "fast")
    assert of_type(plain, lir.AtomicAdd) == []
    assert len(of_type(atomic, lir.AtomicAdd)) == 1
    v3 = Target.x86_64("v3")
    assert "atomicrmw" not in emit_llvm(plain, v3)
    element = "double" if kind in ("double", "vector 3") else "float"
    found = re.findall(r"atomicrmw fadd ptr \S+ (\w+) ", emit_llvm(atomic, v3))
    assert found == [element]
    swaps = [emit_assembly(x, v3).count("lock") for x in (plain, atomic)]
    assert swaps == [0, 1]


def skeleton(text: str) -> str:
    """Return LIR with its numbers left out."""
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", text)


@pytest.mark.parametrize(
    "schedule",
    [
        ROWS.interleave("tree", 10).unroll_walk("tree", 3),
        BLOCKS.parallel("b0").interleave("b1", 16).unroll_walk("b1", 3),
        BLOCKS.specialize("tree"),
        BLOCKS.tile_nodes(4).interleave("b1", 2),
        BLOCKS.vectorize("b1"),
        TREES.parallel("tree"),
        TREES.represent("reorg").cache("tree"),
    ],
    ids=repr,
)
def test_code_does_not_grow_with_the_number_of_trees(schedule: Schedule) -> None:
    few, many = (lowered(of_size(n), schedule) for n in (100, 5000))
    assert skeleton(few.text("lir")) == skeleton(many.text("lir"))
    v3 = Target.x86_64("v3")
    sizes = [len(emit_object(x.kernel.function, v3)) for x in (few, many)]
    # greater constants take three bytes more each
    assert abs(sizes[0] - sizes[1]) <= 64
