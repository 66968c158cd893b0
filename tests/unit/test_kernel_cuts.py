"""Kernels that stop early have the stores of their parts and no other's."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.driver import Lowered
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.ir.lir.walk import map_bodies, statements
from skforge.compiler.target import Target
from skforge.engine.kernels import KernelCache
from skforge.forest.arrays import Comparison
from skforge.schedule import families
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest
from tests.exactness.sliced import counted
from tests.oracles.lir_interpreter import interpret_lir

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from assembly import describe, mnemonics
from counters import count
from kernel_cuts import Cuts
from moved import RUNS, Counting, grown

HOST = Target.host()
BLOCKS = families.bitsliced_schedule(128)
BLOCK_PARTS = ["columns", "search", "lines", "fold", "index", "look-up", "output"]
WALK_PARTS = ["walk", "look-up"]


def lowered(name: str, target: Target = HOST, schedule: Schedule = BLOCKS) -> Lowered:
    return KernelCache(forest(name), target, "exact").lowered(schedule, "accumulator")


def stores(function: lir.Function) -> Counter[str]:
    return Counter(
        stmt.buffer.name.partition(".")[0]
        for stmt in statements(function.body)
        if isinstance(stmt, lir.Store)
    )


def folds(function: lir.Function) -> int:
    return sum(isinstance(s, lir.StorePlane) for s in statements(function.body))


@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
@pytest.mark.parametrize("name", ["full", "deep"])
def test_each_prefix_adds_its_own_stores(name: str, level: str) -> None:
    whole = lowered(name, Target.x86_64(level)).kernel.function
    made = Cuts(whole).prefixes()
    assert list(made) == BLOCK_PARTS
    assert made["output"] == whole
    for function in made.values():
        verify_lir(function)
    assert set(stores(made["columns"])) == {"columns"}
    assert "lines" in stores(made["lines"])
    planes = {name: folds(function) for name, function in made.items()}
    assert planes["lines"] == 0 < planes["fold"] == planes["output"]
    assert "leaf_numbers" in stores(made["index"])
    assert "block_sums" in stores(made["look-up"])
    assert "result" not in stores(made["look-up"])
    sizes = [len(list(statements(f.body))) for f in made.values()]
    assert sizes == sorted(sizes)


def test_a_part_left_out_leaves_the_others() -> None:
    whole = lowered("full").kernel.function
    for part, function in Cuts(whole).without_each().items():
        verify_lir(function)
        if part == "output":
            assert stores(function).keys() == stores(whole).keys() - {"result"}


def test_float64_rows_that_may_tie_have_the_same_parts() -> None:
    made = counted((200, 40, 5), dtype="float64", comparison=Comparison.LE)
    kernel = KernelCache(made, HOST, "exact").lowered(BLOCKS, "accumulator").kernel
    assert any(item.buffer.name == "exact_thresholds" for item in kernel.data)
    cuts = Cuts(kernel.function)
    assert cuts.parts == BLOCK_PARTS
    for function in [*cuts.prefixes().values(), *cuts.without_each().values()]:
        verify_lir(function)


def test_what_nobody_reads_is_written_to_a_parameter() -> None:
    whole = lowered("full", schedule=families.lanes_schedule()).kernel.function
    codes = Cuts(whole).prefixes()["codes"]
    (unread,) = codes.params[len(whole.params) :]
    assert unread.name.startswith("codes") and stores(codes).keys() == {"codes"}


def test_what_nobody_writes_is_read_from_a_parameter() -> None:
    whole = lowered("full").kernel.function
    left = Cuts(whole).without_each()["columns"]
    (unwritten,) = (b for b in left.params if b not in whole.params)
    assert unwritten.name.startswith("columns")
    assert "columns" not in stores(left)


def test_a_new_buffer_is_a_part_of_its_own_name() -> None:
    whole = lowered("full").kernel.function
    new = lir.Buffer("new.1", lir.I64)
    n_rows = whole.params[1]
    assert isinstance(n_rows, lir.Value)
    store = lir.Store(new, n_rows, n_rows)
    body = (lir.Alloc(new, n_rows), store, *whole.body)
    assert "new" in Cuts(replace(whole, body=body)).parts


def test_parts_in_turns_are_one() -> None:
    whole = lowered("full", schedule=families.tiled_schedule(256, 7)).kernel.function
    renamed = {"live": "here", "done": "there"}

    def change(node: Any) -> Any:
        fields = {
            name: lir.Buffer(renamed[hint], buffer.element, alignment=64)
            for name in ("buffer", "table")
            if isinstance(buffer := getattr(node, name, None), lir.Buffer)
            and (hint := buffer.name.partition(".")[0]) in renamed
        }
        if isinstance(node, lir.Let):
            fields = {"op": change(node.op)}
        return replace(node, **fields) if fields else node

    def changed(body: lir.Body) -> lir.Body:
        return tuple(map_bodies(change(stmt), changed) for stmt in body)

    parts = Cuts(replace(whole, body=changed(whole.body))).parts
    assert "tiles + here" in parts and "there" in parts


def test_a_walk_has_parts_of_its_own() -> None:
    made = forest("full")
    for schedule in set(walking_schedules(made, HOST).values()):
        cache = KernelCache(made, HOST, "exact")
        whole = cache.lowered(schedule, "accumulator")
        functions = Cuts(whole.kernel.function).prefixes()
        assert list(functions) == WALK_PARTS
        for part, function in functions.items():
            verify_lir(function)
            reads = {
                stmt.op.buffer.name
                for stmt in statements(function.body)
                if isinstance(stmt, lir.Let)
                and isinstance(stmt.op, lir.Load | lir.Gather)
            }
            assert ("leaf_values" in reads) == (part != "walk")


def test_bytes_are_counted_as_bodies_run() -> None:
    """Vectors, windows of an array, branches and gathers, of 24 numbers."""
    numbers, out = np.arange(24, dtype=np.float32), np.zeros(24, np.float32)
    source, to = lir.Buffer("source", lir.F32), lir.Buffer("to", lir.F32)
    with Builder() as b, b.loop(0, 16, 8) as i:
        to[i] = source[i, lir.Vec(lir.F32, 8)]
        bytes_ = b.view("bytes", lir.U8, source, i)
        with b.when(i.eq(8)):
            b.store(to, i, bytes_[0].to(lir.F32))
    function = lir.Function("f", (source, to), b.finish())
    counting = Counting.of(function)
    verify_lir(counting.function)
    runs = np.zeros(len(counting.of_body), np.int64)
    arrays = {"source": numbers, "to": out}
    interpret_lir(counting.function, {**arrays, RUNS.name: runs})
    moved = counting.bytes(runs)
    assert moved == {"source": 2 * 32 + 1, "to": 2 * 32 + 4}
    assert grown(moved, {"source": 64, "to": 68}) == {"source": 1}
    expected = np.append(numbers[:16], np.zeros(8, np.float32))
    expected[8] = numbers.view(np.uint8)[32]
    np.testing.assert_array_equal(out, expected)


def test_counters_count_or_say_why_not() -> None:
    counts, reason = count(lambda: sum(range(1000)))
    assert bool(counts) != bool(reason)


def test_instructions_are_counted_by_name() -> None:
    text = "f:\n\tmovl\t$1, %eax\n.L1:\n\t.p2align\t4\n\tmovl %eax, %ecx\n\tretq\n"
    assert mnemonics(text) == Counter(movl=2, retq=1)
    assert describe(mnemonics(text), 1) == "3 (movl 2)"
