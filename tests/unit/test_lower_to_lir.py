"""What lowering to LIR writes, beyond what the exactness tests compare."""

from __future__ import annotations

import numpy as np

from skforge.compiler import driver
from skforge.compiler.lowering import kernel as kernel_module
from skforge.compiler.target import Target
from skforge.forest.reference import reference_raw
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, interpreted
from tests.exactness.forests import drawn, forest, forest_of, tree
from tests.strategies_forest import edge_rows

BLOCKS = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")


def lowered(name: str, schedule: Schedule, reduction: str = "exact"):
    hir = driver.build_hir(forest(name), schedule, reduction)
    return driver.lower(hir, Target.x86_64("v3"))


def test_leaf_values_are_filled_once_however_many_walks(monkeypatch) -> None:
    calls = []
    fill = kernel_module.LoweringState._by_item

    def counted(self, name, table, index):
        if name not in self._data:
            calls.append(name)
        return fill(self, name, table, index)

    monkeypatch.setattr(kernel_module.LoweringState, "_by_item", counted)
    lowered("scalar", BLOCKS.interleave("b1", 16))
    assert calls == ["leaf_values"]


def test_padded_trees_keep_the_source_numbers_of_their_leaves() -> None:
    """Padding repeats leaves; apply answers the leaf that was repeated."""
    random = np.random.default_rng(0)
    made = forest_of([tree("chain", 6, random), tree("full", 0, random)])
    rows = random.standard_normal((5, made.n_features)).astype(np.float32)
    plain = interpreted(made, Schedule(), rows, element="leaf_number")
    schedule = Schedule().pad_trees().unroll_walk("tree", 6).tile_nodes(2)
    padded = interpreted(made, schedule, rows, element="leaf_number")
    assert_same_bits(padded, plain, "padded")


def test_kernels_read_rows_a_stride_apart() -> None:
    made = drawn(4, 4)
    rows = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
    for schedule in (BLOCKS, BLOCKS.vectorize("b1"), BLOCKS.cache("b0")):
        near = interpreted(made, schedule, rows)
        far = interpreted(made, schedule, rows, extra_stride=9)
        assert_same_bits(far, near, schedule)


def test_a_search_in_registers_goes_on_in_memory() -> None:
    thresholds = np.linspace(-2, 2, 300)
    kind = {"dtype": "float64", "n_features": 1, "thresholds": thresholds}
    made = drawn(6, 5, shape="full", **kind)
    rows = edge_rows(made, 40, seed=2)
    assert made.n_predicates > 63  # six levels of pivots are in registers
    schedule = BLOCKS.quantize("b0")
    codes = interpreted(made, schedule, rows, target=Target.x86_64("v4"))
    assert_same_bits(codes, reference_raw(made, rows), "codes")
