"""Deep trees walked as tiles of codes, a block of rows at a time: the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeRegressor

from skforge import load_forest
from skforge.compiler.driver import build_hir, lower
from skforge.compiler.ir.lir.nodes import Prefetch
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts.tiles import tile_layout, tile_rows, tiled_trees
from skforge.compiler.target import Target
from skforge.forest.combine import subset
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import tiled_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import (
    assert_same_bits,
    interpreted,
    raw_of,
)


def tiles(size: int = 15, rows: int = 64) -> Schedule:
    return (
        Schedule()
        .tile("batch", "b0", "b1", rows)
        .reorder("b0", "tree", "b1")
        .quantize("b0")
        .vectorize("b1")
        .tile_nodes(size, "complete")
        .represent("tiles")
    )


def by_row(size: int = 15) -> Schedule:
    schedule = Schedule().quantize("batch").vectorize("tree")
    return schedule.tile_nodes(size, "complete").represent("tiles")


@lru_cache(maxsize=8)
def trained(kind: str) -> tuple[Forest, np.ndarray, np.ndarray]:
    """Return a forest of full depth, rows some of which miss values, raw scores."""
    random = np.random.default_rng(0)
    X = random.standard_normal((1500, 6)).astype(np.float32)
    X[::7, 1] = np.nan
    x = np.nan_to_num(X)
    y = x[:, 0] * 2 + x[:, 1] * x[:, 2] + random.standard_normal(len(X))
    labels = np.digitize(y, [-2, -1, 0, 1, 2])
    made = {
        "numbers": lambda: RandomForestRegressor(5, random_state=0).fit(X, y),
        "extra": lambda: ExtraTreesRegressor(4, random_state=0).fit(x, y),
        "classes": lambda: RandomForestClassifier(5, random_state=0).fit(X, labels),
        "vectors": lambda: RandomForestClassifier(
            5, random_state=0, min_samples_leaf=3
        ).fit(X, labels),
        "outputs": lambda: RandomForestRegressor(3, random_state=0).fit(
            X, np.stack([y, -y, y * y], axis=1)
        ),
        "few of many classes": lambda: ExtraTreesClassifier(
            9, random_state=0, min_samples_leaf=2
        ).fit(x, np.arange(len(x)) % 150),
    }[kind]()
    forest_ = load_forest(made)
    rows = draw_rows(forest_, 200, 1, missing=0.03)
    return forest_, rows, reference_raw(forest_, rows)


def of_features(n_features: int, dtype: type = np.float32) -> Forest:
    random = np.random.default_rng(n_features)
    X = random.standard_normal((600, n_features))
    y = X @ random.standard_normal(n_features)
    made = load_forest(ExtraTreesRegressor(3, random_state=0).fit(X, y))
    return replace(made, threshold=made.threshold.astype(dtype)).validate()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n_trees", [1, 15, 16, 17, 33])
def test_trees_of_any_number(n_trees: int) -> None:
    for kind in ("numbers", "classes", "vectors", "few of many classes"):
        made, rows, _ = trained(kind)
        made = subset(made, [k % made.n_trees for k in range(n_trees)])
        raw = reference_raw(made, rows)
        module = compile_forest(made, by_row())
        assert_same_bits(raw_of(module, rows), raw, (kind, n_trees))


@pytest.mark.parametrize("n_thresholds", [32_767, 32_768])
@pytest.mark.parametrize("missing", [False, True])
def test_codes_of_15_bits_and_of_16(n_thresholds: int, missing: bool) -> None:
    """Codes are compared as signed words if the largest rank leaves room for NaN."""
    X = np.arange(n_thresholds + 1 - missing, dtype=np.float32)[:, None]
    y = np.random.default_rng(0).random(len(X))
    rows = np.concatenate([X, X + 0.5, [[-1.0], [1e9]]]).astype(np.float32)
    if missing:
        X, y = np.append(X, [[np.nan]], axis=0), np.append(y, 9.0)
        rows = np.append(rows, [[np.nan]], axis=0).astype(np.float32)
    model = DecisionTreeRegressor(random_state=0).fit(X, y)
    splits = model.tree_.feature >= 0
    assert len(np.unique(model.tree_.threshold[splits])) == n_thresholds
    for schedule in (tiles(7), by_row(7)):
        module = compile_forest(model, schedule)
        np.testing.assert_array_equal(module.predict(rows), model.predict(rows))


def test_large_forests_fetch_the_next_tree_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, rows, raw = trained("numbers")

    def prefetches() -> int:
        return n_prefetches(made, tiles(), "v4")

    assert prefetches() == 0
    monkeypatch.setattr(tiled_trees, "STREAMED_BYTES", 0)
    # two lines of tiles, in the code for one and for two copies of codes, and leaves
    assert prefetches() == 2 * tiled_trees.LINES_AHEAD + 1
    assert_same_bits(raw_of(compile_forest(made, tiles()), rows), raw, "ahead")
    got = interpreted(subset(made, [0, 1]), tiles(15, 32), rows[:40])
    assert_same_bits(got, reference_raw(subset(made, [0, 1]), rows[:40]), "inside")


def test_large_trees_take_wider_numbers_of_items():
    def layout(leaves):
        nodes = SimpleNamespace(item_offset=np.array([0, 3, 2 * leaves + 2]))
        return tile_layout.needs_wide(nodes), tile_layout.row_bits(nodes)

    small, wide, large = (False, 12), (True, 12), (True, 10)
    found = [layout(n) for n in (65534, 65535, (1 << 20) - 2, (1 << 20) - 1)]
    assert found == [small, wide, wide, large]


def prefetched_to(made: Forest, schedule: Schedule, level: str) -> list[int]:
    hir = build_hir(made, schedule, "exact")
    function = lower(hir, Target.x86_64(level)).kernel.function
    return [s.level for s in statements(function.body) if isinstance(s, Prefetch)]


def n_prefetches(made: Forest, schedule: Schedule, level: str) -> int:
    return len(prefetched_to(made, schedule, level))


def test_single_rows_fetch_large_trees_to_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    made, rows, raw = trained("numbers")
    near = prefetched_to(made, by_row(), "v4")
    assert set(near) == {1}
    monkeypatch.setattr(tiled_trees, "STREAMED_BYTES", 0)
    assert prefetched_to(made, by_row(), "v4") == [2] * len(near)
    assert_same_bits(raw_of(compile_forest(made, by_row()), rows), raw, "to L2")


@pytest.mark.parametrize("codes", [True, False])
def test_tiles_of_large_trees_are_fetched_ahead(
    monkeypatch: pytest.MonkeyPatch, codes: bool
) -> None:
    made, rows, raw = trained("numbers")
    schedule = tiled_schedule(32, 7, codes)
    monkeypatch.setattr(tile_rows, "FETCHED_TREE", 1 << 30)
    few = n_prefetches(made, schedule, "v3")
    assert few == (0 if codes else 2 * tiled_trees.UNROLL)
    monkeypatch.setattr(tiled_trees, "STREAMED_BYTES", 0)
    monkeypatch.setattr(tile_rows, "FETCHED_TREE", 0)
    # four rows' tiles, codes also the next tree's, in the code for each kind of rows
    each = tiled_trees.UNROLL + (tiled_trees.LINES_AHEAD if codes else 0)
    assert n_prefetches(made, schedule, "v3") == 2 * each + 1
    v3 = Target.x86_64("v3")
    module = compile_forest(made, schedule, target=v3)
    assert_same_bits(raw_of(module, rows), raw, "ahead")
    made = subset(made, [0, 1])
    got = interpreted(made, schedule, rows[:40], target=v3)
    assert_same_bits(got, reference_raw(made, rows[:40]), "inside")


def kernel_data(made: Forest, schedule: Schedule) -> dict[str, np.ndarray]:
    hir = build_hir(made, schedule, "exact")
    data = lower(hir, Target.x86_64("v4")).kernel.data
    return {item.buffer.name: item.data for item in data}


def test_bytes_of_a_node() -> None:
    """A quarter of a tile's places are nodes: 8 bytes a node, and its leaf's."""
    made, _, _ = trained("extra")
    for size, most in ((7, 6.0), (15, 9.0)):
        data = kernel_data(made, tiles(size))
        assert data["tiles"].nbytes / made.n_nodes < most
        assert data["leaf_values"].nbytes / made.n_nodes < 4.1
    made, _, _ = trained("classes")
    assert kernel_data(made, tiles())["leaf_index"].dtype == np.uint8
