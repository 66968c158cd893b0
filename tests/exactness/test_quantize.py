"""Codes end to end: long columns, every level, blocks that are not full."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from skforge import Schedule, compile_forest, load_forest
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, reference_raw
from tests.exactness.checks import cpu, lowered
from tests.exactness.families import BLOCKS
from tests.exactness.forests import forest

SCHEDULES = {
    "rows": Schedule().quantize("batch").interleave("tree", 4),
    "small blocks": BLOCKS.tile("b1", "c0", "c1", 5).quantize("c0"),
    "blocks": BLOCKS.quantize("b0").interleave("b1", 4),
    "parts": Schedule()
    .tile("batch", "b0", "b1", 300)
    .reorder("b0", "tree", "b1")
    .quantize("b0")
    .interleave("b1", 4),
}


@lru_cache(maxsize=2)
def long_columns(dtype: str) -> tuple[Forest, np.ndarray, np.ndarray]:
    """Return a forest of thousands of thresholds a feature, rows and raw scores."""
    random = np.random.default_rng(0)
    X = random.standard_normal((3000, 2))
    y = np.sin(5 * X[:, 0]) * X[:, 1]
    model = RandomForestRegressor(4, random_state=0, n_jobs=1).fit(X, y)
    made = load_forest(model)
    if dtype == "float64":
        from dataclasses import replace

        made = replace(made, threshold=made.threshold.astype(np.float64)).validate()
    rows = draw_rows(made, 700, 1, missing=0.05)
    return made, rows, reference_raw(made, rows)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_columns(name: str, level: str, dtype: str) -> None:
    made, rows, raw = long_columns(dtype)
    counts = np.bincount(made.feature)
    assert counts.max() > 255  # two-byte codes, and levels searched in memory
    module = compile_forest(made, schedule=SCHEDULES[name], target=cpu(level))
    for n in (1, 4, 15, 16, 17, 127, 300, 301, 700):
        got = module.predict_raw(rows[:n]).reshape(n, -1)
        np.testing.assert_array_equal(got, raw[:n])


def test_a_node_is_one_word_where_it_fits() -> None:
    made = forest("scalar")
    plain = sizes(made, BLOCKS)
    assert sizes(made, BLOCKS.quantize("b0")) == {**plain, "nodes": plain["nodes"] / 2}


def sizes(made: Forest, schedule: Schedule) -> dict[str, float]:
    """Return the bytes of the buffers that hold trees."""
    data = lowered(made, schedule, Target.x86_64("v3")).data
    kept = ("nodes", "roots", "leaf_values")
    return {i.buffer.name: i.data.nbytes for i in data if i.buffer.name in kept}


def test_walks_compare_integers() -> None:
    made = forest("categories")
    module = compile_forest(made, schedule=BLOCKS.quantize("b0").interleave("b1", 2))
    text = module.inspect("lir")
    walk = text[text.index("for tree") if "for tree" in text else 0 :]
    assert "load @codes" in walk
    assert "category_words" not in walk[walk.index("load @codes") :]
