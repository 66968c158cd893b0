"""Tests of ``unit/test_evaluate_predicates.py`` that compile or start processes."""

from __future__ import annotations

from skforge.forest.reference import draw_rows, reference_leaves
from skforge.modules.compiled import compile_forest
from tests.exactness.checks import assert_same_bits
from tests.exactness.forests import drawn
from tests.exactness.sliced import sliced
from tests.unit.test_evaluate_predicates import AFTER, BEFORE

LEVELS = ("schedule", "loops", "hir", "mir", "lir", "llvm", "asm", BEFORE, AFTER)


def test_every_level_can_be_inspected() -> None:
    module = compile_forest(drawn(9, 6), sliced(64))
    text = {level: module.inspect(level) for level in LEVELS}
    assert text["schedule"] == repr(sliced(64))
    assert "cache_predicates" in text["loops"]
    assert "evaluate_predicates" in text["mir"]
    assert text["mir"] == text[AFTER]
    assert "evaluate_predicates" not in text[BEFORE]
    assert "load_plane" in text["lir"]
    assert "define" in text["llvm"]
    assert "predict:" in text["asm"]


def test_large_batches_evaluate_predicates_and_apply_walks() -> None:
    made = drawn(20, 6)
    module = compile_forest(made)
    assert "cache_predicates" not in module.inspect("schedule", n_rows=1)
    for n in (1000, 100_000):
        assert "cache_predicates" in module.inspect("schedule", n_rows=n)
    rows = draw_rows(made, 1000, 0, missing=0.1)
    wanted = made.source_node[reference_leaves(made, rows)]
    assert_same_bits(module.apply(rows), wanted, "apply")
