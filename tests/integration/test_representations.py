"""Tests of ``unit/test_representations.py`` that compile or start processes."""

from __future__ import annotations

import pytest

from skforge.compiler import driver
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts.nodes import records
from skforge.compiler.target import Target
from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, expected, raw_of
from tests.exactness.forests import forest
from tests.unit.test_representations import TOYS

# ---------------------------------------------------------------------- interfaces


@pytest.mark.parametrize("schedule", TOYS)
@pytest.mark.parametrize("kind", ["scalar", "multiclass", "averaged", "mixed trees"])
def test_toys_of_other_interfaces_give_the_bits(kind: str, schedule: str) -> None:
    """A plugin of whole walks, one for blocks and one for trees, from outside."""
    rows, raw, _ = expected(kind)
    module = compile_forest(forest(kind), TOYS[schedule])
    for n in (0, 1, 5, 16, 17, len(rows)):
        assert_same_bits(raw_of(module, rows[:n]), raw[:n], f"{kind}, {n}")


@pytest.mark.parametrize("name", ["array", "sparse", "reorg"])
def test_lanes_number_words_of_big_forests_in_64_bits(name: str, monkeypatch) -> None:
    """2**31 words and more: a record's number fits 32 bits, its first word does not."""
    schedule = Schedule().reorder("tree", "batch").vectorize("batch").represent(name)

    def word_types() -> set[str]:
        hir = driver.build_hir(forest("scalar"), schedule, "exact")
        function = driver.lower(hir, Target.x86_64("v3")).kernel.function
        return {
            stmt.op.index.type.element.name
            for stmt in statements(function.body)
            if isinstance(stmt, lir.Let)
            and isinstance(stmt.op, lir.Gather)
            and stmt.op.buffer.name == "nodes"
        }

    assert word_types() == {"i32"}
    monkeypatch.setattr(records, "WIDE_OFFSETS", 1)
    assert word_types() == {"i64"}
    rows, raw, _ = expected("scalar")
    module = compile_forest(forest("scalar"), schedule)
    assert_same_bits(raw_of(module, rows), raw, name)
