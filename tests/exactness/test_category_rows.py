"""Trees in lanes with sets of categories: what tables say is what the sets say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from skforge import CompiledForest
from skforge.compiler import driver
from skforge.compiler.binning import category_rows
from skforge.compiler.binning.category_rows import STRAIGHT
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.layouts.lanes import lanes
from skforge.compiler.layouts.lanes.lane_levels import CompleteRest, SparseRest
from skforge.compiler.target import Target
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import lanes_schedule
from tests.exactness.checks import (
    assert_same_bits,
    cpu,
    emitted,
    interpreted,
    raw_of,
)
from tests.exactness.forests import drawn
from tests.turns import in_turns

ODD = (
    *(-0.0, 0.5, -0.5, -0.99, -1.0, -7.0, 2.5, 31.0, 31.5, 32.0, 127.0, 128.0),
    *(2.0**24, 2.0**31 - 1, 2.0**31, 3e9, 2.0**32, 1e20, np.inf, -np.inf, np.nan),
    *(1e-36, -1e-36, 1e-40),
)


def rows_of(made: Forest, n: int = 120) -> np.ndarray:
    """Return rows of categories, known and not, and of numbers."""
    random = np.random.default_rng(1)
    numbers = random.standard_normal((n, made.n_features)).round(1)
    known = random.integers(0, 140, numbers.shape)
    odd = random.choice(np.array(ODD), numbers.shape)
    kind = random.integers(0, 3, numbers.shape)
    return np.choose(kind, [numbers, known, odd]).astype(made.input_dtype)


def layout(made: Forest, target: Target | None = None) -> lanes.LanesLayout:
    hir = driver.build_hir(made, lanes_schedule(), "exact")
    return lanes.LanesLayout(hir, target or Target.x86_64("v4"))


def members(made: Forest) -> Forest:
    """Make every second set one of whole numbers only."""
    test = made.comparison.copy()
    sets = np.flatnonzero(test == Comparison.IN)[::2]
    test[sets] = Comparison.MEMBER
    return replace(made, comparison=test)


FORESTS: dict[str, Callable[[], Forest]] = {
    "masks": lambda: drawn(70, 4, category_words=4, missing=tuple(Missing)),
    "double": lambda: drawn(
        9, 5, dtype="float64", sums="float64", category_words=4, n_outputs=3
    ),
    "truncated": lambda: replace(
        drawn(9, 5, category_words=3), truncate_categories=True
    ),
    "members": lambda: members(drawn(20, 5, category_words=3, missing=tuple(Missing))),
    "members truncated": lambda: replace(
        members(drawn(20, 5, dtype="float64", category_words=3)),
        truncate_categories=True,
    ),
    "many features": lambda: drawn(
        30, 6, n_features=3 * STRAIGHT, category_words=4, missing=tuple(Missing)
    ),
    # walks below the top that meet more than 255 sets
    "complete": lambda: drawn(60, 9, n_features=8, category_words=4, shape="full"),
    "sparse": lambda: drawn(
        30, 15, n_features=8, category_words=4, missing=(Missing.ZERO, Missing.NEVER)
    ),
    "long chains": lambda: drawn(40, 70, shape="chain", category_words=3),
    "only sets": lambda: only_sets(),
}


def only_sets() -> Forest:
    made = drawn(10, 5, n_features=4, category_words=2)
    return replace(
        made,
        comparison=np.full_like(made.comparison, Comparison.IN),
        threshold=np.zeros_like(made.threshold),
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "level"), in_turns(FORESTS, ["v2", "v3", "v4", "host"], often=2)
)
def test_every_value_of_every_kind_of_set(name: str, level: str, way: None) -> None:
    made = FORESTS[name]().validate()
    rows = rows_of(made)
    wanted = reference_raw(made, rows)
    module = compile_forest(made, lanes_schedule(), cpu(level))
    for n in (0, 1, len(rows)):
        assert_same_bits(raw_of(module, rows[:n]), wanted[:n], (name, n))
    leaves = made.source_node[reference_leaves(made, rows)]
    assert_same_bits(module.apply(rows), leaves, "apply")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("level", ["v3", "v4", "aarch64"])
@pytest.mark.parametrize("name", ["masks", "members", "complete", "many features"])
def test_nothing_is_read_or_written_out_of_bounds(
    level: str, name: str, way: None
) -> None:
    made = FORESTS[name]().validate()
    rows = rows_of(made, 4)
    target = Target.aarch64() if level == "aarch64" else Target.x86_64(level)
    got = interpreted(made, lanes_schedule(), rows, target=target, extra_stride=1)
    assert_same_bits(got, reference_raw(made, rows), (name, level))


def test_the_forests_are_what_they_are_here_for() -> None:
    complete, sparse = layout(FORESTS["complete"]()), layout(FORESTS["sparse"]())
    assert isinstance(complete.rest, CompleteRest)
    assert complete.rest.tests.dtype == np.uint32
    assert isinstance(sparse.rest, SparseRest)
    assert sparse.rest.words.dtype == np.int64
    many = layout(FORESTS["many features"]())
    assert many.categories is not None
    assert len(many.categories.groups) > STRAIGHT


def test_sets_too_large_for_a_table_are_tests_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = FORESTS["members"]().validate()
    rows = rows_of(made)
    wanted = reference_raw(made, rows)
    found = []
    for most in (1 << 25, 3 << 14, 0):
        monkeypatch.setattr(category_rows, "MOST_BYTES", most)
        found.append(len(category_rows.set_groups(made)))
        module = compile_forest(made, lanes_schedule())
        assert_same_bits(raw_of(module, rows), wanted, most)
    assert found[0] > found[1] > found[2] == 0


def test_categories_that_no_set_tells_apart_share_a_row() -> None:
    made = drawn(3, 2, n_features=2, category_words=4, shape="full")
    table = layout(made).categories
    assert table is not None
    (group,) = table.groups
    rows = len(np.unique(table.row_of_entry))
    assert len(table.row_of_entry) == group.entries
    assert 2 <= rows <= 2 ** len(group.predicates) + 1


def test_sets_take_no_slot() -> None:
    made = drawn(9, 20, shape="chain", category_words=2)
    masks = layout(made).masks
    assert masks is not None
    numeric = made.comparison < Comparison.IN
    inner = np.flatnonzero(made.predicate >= 0)
    tree = np.searchsorted(made.tree_offset, inner, "right")
    most = int(np.bincount(tree[numeric[made.predicate[inner]]]).max())
    assert masks.parts == ((most, 0, 1),) or sum(n for n, _, _ in masks.parts) >= most
    assert sum(n for n, _, _ in masks.parts) < 20


def test_aarch64_code_is_emitted() -> None:
    text, _ = emitted(FORESTS["masks"](), lanes_schedule(), Target.aarch64())
    assert "\ttbl\t" in text


def trained(library: str) -> Any:
    """Return a fitted classifier with sets of categories, and rows as it reads them."""
    random = np.random.default_rng(3)
    X = random.integers(0, 40, (600, 6)).astype(np.float64)
    X[:, 4:] = random.standard_normal((600, 2))
    y = ((X[:, 0] % 3 == 1) ^ (X[:, 1] % 5 > 2) ^ (X[:, 4] > 0)).astype(int)
    X[random.random(X.shape) < 0.05] = np.nan
    if library == "lightgbm":
        lightgbm = pytest.importorskip("lightgbm")
        model = lightgbm.LGBMClassifier(
            n_estimators=30, min_child_samples=5, n_jobs=1, verbose=-1, random_state=0
        )
        return model.fit(X, y, categorical_feature=[0, 1, 2, 3]), X
    xgboost = pytest.importorskip("xgboost")
    model = xgboost.XGBClassifier(
        n_estimators=30,
        max_depth=8,
        enable_categorical=True,
        feature_types=["c"] * 4 + ["float"] * 2,
        max_cat_to_onehot=1,
        n_jobs=1,
        random_state=0,
    )
    return model.fit(X, y), X


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_libraries_agree_on_unknown_categories(library: str) -> None:
    model, X = trained(library)
    fast = CompiledForest(model).fit(X)
    first = next(iter(default_schedules(fast.forest_, fast.target_).values()))
    if Target.host().has("avx2"):
        assert first == lanes_schedule()
    rows = X[:80].copy()
    # XGBoost refuses infinities and negative categories where it checks them
    odd = [39.0, 40.0, 63.0, 64.0, 1e6, 2.0**24, 2.5, 39.9, np.nan]
    if library == "lightgbm":
        odd += [-0.5, -1.0, -3.0, 2.0**31, 3e9, 1e20, np.inf, -np.inf]
    random = np.random.default_rng(4)
    for column in range(4):
        at = random.random(len(rows)) < 0.5
        rows[at, column] = random.choice(odd, int(at.sum()))
    wanted = model.predict_proba(rows)
    assert fast.predict_proba(rows).tobytes() == wanted.tobytes()
    for k, row in enumerate(rows):
        assert fast.predict_proba(row[None]).tobytes() == wanted[k : k + 1].tobytes()
