"""Kernels that stop early have the stores of their parts and no other's."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skforge import compile_forest
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.driver import Lowered
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.runtime.kernels import Kernel, KernelCache
from skforge.compiler.schedule.families import bitsliced_schedule
from skforge.compiler.target import Target
from tests.exactness.forests import forest, rows_for

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from assembly import describe, mnemonics
from cases import Case
from counters import count
from floors import mean_hops
from kernel_cuts import BLOCK_PARTS, WALK_PARTS, cut, prefixes, without_each
from where_time_goes import profile, to_markdown

HOST = Target.host()
BLOCKS = bitsliced_schedule(128)


def lowered(name: str, target: Target = HOST) -> Lowered:
    return KernelCache(forest(name), target, "exact").lowered(BLOCKS, "accumulator")


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
    made = prefixes(whole)
    assert tuple(made) == BLOCK_PARTS
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
    for part, function in without_each(whole).items():
        verify_lir(function)
        if part == "output":
            assert stores(function).keys() == stores(whole).keys() - {"result"}


@pytest.mark.parametrize("name", ["full", "deep"])
def test_cut_kernels_run(name: str) -> None:
    made, whole = forest(name), lowered(name)
    rows = rows_for(name, 300)
    result = np.empty((300, made.n_outputs), made.accumulator_dtype)
    functions = [*prefixes(whole.kernel.function).values()]
    functions += without_each(whole.kernel.function).values()
    for function in functions:
        kernel = replace(whole.kernel, function=function)
        Kernel(replace(whole, kernel=kernel), HOST)(rows, result, 1)


def test_an_unknown_buffer_is_refused() -> None:
    whole = lowered("full").kernel.function

    def renamed(stmt: lir.Stmt) -> lir.Stmt:
        if isinstance(stmt, lir.Store):
            return replace(stmt, buffer=replace(stmt.buffer, name="new.1"))
        return stmt

    first = next(s for s in statements(whole.body) if isinstance(s, lir.Store))
    body = (*whole.body, renamed(first))
    with pytest.raises(ValueError, match=r"the buffer @new\.1 belongs to no part"):
        cut(replace(whole, body=body), ["columns"])


def test_a_walk_has_parts_of_its_own() -> None:
    made = forest("full")
    for schedule in set(walking_schedules(made, HOST).values()):
        cache = KernelCache(made, HOST, "exact")
        whole = cache.lowered(schedule, "accumulator")
        functions = prefixes(whole.kernel.function)
        assert tuple(functions) == WALK_PARTS
        for part, function in functions.items():
            verify_lir(function)
            reads = {
                stmt.op.buffer.name
                for stmt in statements(function.body)
                if isinstance(stmt, lir.Let)
                and isinstance(stmt.op, lir.Load | lir.Gather)
            }
            assert ("leaf_values" in reads) == (part != "walk")


@pytest.mark.parametrize("walk", [False, True])
def test_a_profile_has_a_line_for_each_part(walk: bool) -> None:
    made = forest("full")
    case = Case("full", None, made, rows_for("full", 200), "drawn")
    found = profile(case, 130, HOST, walk=walk, seconds=0.01)
    names = [part.name for part in found.parts]
    parts = WALK_PARTS if "bitsliced" not in found.schedule else BLOCK_PARTS
    assert names == [*parts, "call"]
    assert to_markdown(found).count("\n| ") == len(names) + 1


def test_hops_are_those_of_the_leaves_reached() -> None:
    made = forest("full")
    rows = rows_for("full", 50)
    leaves = compile_forest(made).apply(rows)
    low, high = made.leaf_depths()
    assert low.sum() <= mean_hops(made, leaves) <= high.sum()


def test_counters_count_or_say_why_not() -> None:
    counts, reason = count(lambda: sum(range(1000)))
    assert bool(counts) != bool(reason)


def test_instructions_are_counted_by_name() -> None:
    text = "f:\n\tmovl\t$1, %eax\n.L1:\n\t.p2align\t4\n\tmovl %eax, %ecx\n\tretq\n"
    assert mnemonics(text) == Counter(movl=2, retq=1)
    assert describe(mnemonics(text), 1) == "3 (movl 2)"
