"""Contributions of known models beside their libraries, and of forests of odd sizes.

A float64 run of a float32 forest is the truth for models too large for definitions.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skforge import compile_forest, load_forest
from skforge.forest.forest import Forest
from tests.exactness.forests import drawn, forest_of, tree
from tests.exactness.test_contributions import (
    assert_close,
    assert_sums,
    scale_of,
    with_covers,
)
from tests.oracles import shap_values as oracle
from tests.strategies_forest import edge_rows


def in_double(made: Forest) -> Forest:
    """Return the forest with sums in float64."""
    base, value = made.base.astype(np.float64), made.leaf_value.astype(np.float64)
    return replace(made, base=base, leaf_value=value)


# ------------------------------------------------------------ known models


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Found JSON model saved before XGBoost 1.6")
@pytest.mark.parametrize("option", ["pred_interactions", "approx_contribs"])
def test_other_kinds_beside_xgboost(option: str, shared_models: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    made = load_forest(shared_models / "airline.json")
    rows = np.loadtxt(shared_models / "airline_rows.csv", np.float32, delimiter=",")
    rows = rows[:4, :-1]
    pairs = option == "pred_interactions"
    options = {"interactions" if pairs else "approximate": True}
    truth = compile_forest(in_double(made)).predict_contribs(rows, **options)
    ours = compile_forest(made).predict_contribs(rows, **options)
    assert_close(ours, truth, axes=1 + pairs)
    booster = xgboost.Booster(model_file=str(shared_models / "airline.json"))
    theirs = booster.predict(
        xgboost.DMatrix(rows),
        validate_features=False,
        pred_contribs=not pairs,
        **{option: True},
    )
    errors = [
        np.abs(one - truth) / scale_of(truth, 1 + pairs) for one in (ours, theirs)
    ]
    assert errors[0].max() < errors[1].max() < 1e-5


# ------------------------------------------------------------ deep trees


def chain(n: int, sums: str) -> tuple[Forest, np.ndarray]:
    """Return a tree with one path that tests ``n`` features, and rows."""
    random = np.random.default_rng(n)
    made = forest_of([tree("chain", n, random)], n_features=n, sums=sums)
    order = np.argsort(random.random(n))
    made = replace(
        made,
        predicate=np.where(made.left >= 0, np.cumsum(made.left >= 0) - 1, -1),
        feature=order.astype(np.int32),
        comparison=np.zeros(n, np.uint8),
        threshold=np.zeros(n, made.threshold.dtype),
        missing=np.full(n, made.missing[0]),
        missing_left=np.arange(n) % 2 == 0,
        category_offset=np.zeros(n + 1, np.int64),
        leaf_value=random.standard_normal((n + 1, 1)).astype(sums),
    ).validate()
    # rows of all depths: they leave the path at its end, its start and between
    left = made.left[made.predicate >= 0]
    along = np.where(made.left[left] >= 0, -1.0, 1.0)
    rows = np.zeros((4, n), made.threshold.dtype)
    rows[:, order] = along
    rows[1, order[n // 2]] *= -1
    rows[2, order[0]] *= -1
    rows[3] = random.standard_normal(n)
    return with_covers(made, n), rows


def deep(sums: str) -> Forest:
    """Return trees of depth 30 that are thin, with features again and again."""
    random = np.random.default_rng(4)
    grown = []
    for _ in range(3):
        left, right, depth = [-1], [-1], [0]
        for step in range(150):
            leaves = [n for n, child in enumerate(left) if child < 0 and depth[n] < 30]
            # the deepest leaf at first, then any
            node = leaves[-1] if step < 30 else int(random.choice(leaves))
            left[node], right[node] = len(left), len(left) + 1
            left += [-1, -1]
            right += [-1, -1]
            depth += [depth[node] + 1] * 2
        assert max(depth) == 30
        grown.append((np.array(left), np.array(right)))
    made = forest_of(grown, n_features=25, sums=sums)
    value = random.standard_normal(made.leaf_value.shape).astype(sums)
    return with_covers(replace(made, leaf_value=value), 4)


@pytest.mark.parametrize("sums", ["float32", "float64"])
def test_depth_30(sums: str) -> None:
    made = deep(sums)
    rows = edge_rows(made, 6, seed=1)
    got = compile_forest(made).predict_contribs(rows)
    assert_close(got, oracle.values_by_leaf(made, rows))
    assert_sums(got, oracle.margins(made, rows))


@pytest.mark.parametrize("sums", ["float32", "float64"])
@pytest.mark.parametrize("n", [17, 60, pytest.param(300, marks=pytest.mark.slow)])
def test_distinct_features_on_a_path(n: int, sums: str) -> None:
    """300 features need 150 points of quadrature; the factorials pass 1e600."""
    made, rows = chain(n, sums)
    got = compile_forest(made).predict_contribs(rows)
    assert_close(got, oracle.values_by_leaf(made, rows), n)
    assert_sums(got, oracle.margins(made, rows), n)


# ------------------------------------------------------------ wide forests


def many_classes(vector: bool) -> Forest:
    """Return a forest of 1,000 outputs."""
    if vector:
        return drawn(3, 4, covers=True, n_outputs=1000, vector=True, sums="float64")
    return drawn(1000, 2, covers=True, n_outputs=1000, shape="full", n_features=20)


def many_features() -> Forest:
    """Return a forest that tests most of 5,000 features."""
    return drawn(600, 3, covers=True, shape="full", n_features=5000)


@pytest.mark.parametrize("vector", [False, True])
def test_a_thousand_classes(vector: bool) -> None:
    made = many_classes(vector)
    rows = edge_rows(made, 3, seed=2)
    got = compile_forest(made).predict_contribs(rows)
    assert got.shape == (3, 1000, made.n_features + 1)
    assert_close(got, oracle.shap_values(made, rows))
    assert_sums(got, oracle.margins(made, rows))


def test_five_thousand_features() -> None:
    made = many_features()
    rows = np.random.default_rng(0).standard_normal((3, 5000)).astype(np.float32)
    got = compile_forest(made).predict_contribs(rows)
    assert_close(got, oracle.shap_values(made, rows))
    assert_sums(got, oracle.margins(made, rows))


PROGRAM = """
import resource, sys
import numpy as np
from skforge import compile_forest
from tests.exactness import test_contributions_of_models as forests

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

made, n = eval(sys.argv[1], vars(forests)), int(sys.argv[2])
module = compile_forest(made)
rows = np.zeros((n, made.n_features), made.input_dtype)
module.predict_contribs(rows[:1])
before = peak()
result = module.predict_contribs(rows)
print(peak() - before, result.nbytes)
"""


@pytest.mark.parametrize(
    ("forest", "n"),
    [
        pytest.param("many_classes(False)", 1500, marks=pytest.mark.slow),
        ("many_classes(True)", 1500),
        ("many_features()", 5000),
    ],
)
def test_memory_beside_the_result_is_bounded(forest: str, n: int) -> None:
    """A batch needs its result and a block's sums: no number grows with both."""
    run = [sys.executable, "-c", PROGRAM, forest, str(n)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    peak, result = map(int, done.stdout.split())
    assert result > 60 << 20
    assert peak - result < 40 << 20, (peak, result)


# ------------------------------------------------------------ pipelines


@pytest.mark.parametrize("option", ["", "interactions", "approximate"])
def test_a_folded_pipeline_sums_the_columns_that_a_step_makes(option: str) -> None:
    """Its values are the forest's own, summed by the input column of each."""
    pytest.importorskip("sklearn")
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    random = np.random.default_rng(0)
    X = random.standard_normal((300, 3))
    X[:, 1] = random.integers(3, size=300)
    X[::5, 2] = np.nan
    y = X[:, 0] + (X[:, 1] == 2) * np.nan_to_num(X[:, 2])
    columns = make_column_transformer(
        (SimpleImputer(add_indicator=True), [2]),
        (OneHotEncoder(), [1]),
        (StandardScaler(), [0]),
    )
    last = RandomForestRegressor(4, max_depth=5, random_state=0)
    pipeline = make_pipeline(columns, last).fit(X, y)
    column_of = np.array([2, 2, 1, 1, 1, 0, 3])  # of what the steps make, and the bias
    options = {option: True} if option else {}
    got = compile_forest(pipeline).predict_contribs(X[:20], **options)
    define = {"interactions": oracle.shap_interactions, "": oracle.shap_values}
    wanted = define.get(option, oracle.saabas_values)(
        load_forest(pipeline[-1]), pipeline[:-1].transform(X[:20])
    )[:, 0]
    groups = np.equal.outer(column_of, np.arange(4)).astype(np.longdouble)
    for _ in range(wanted.ndim - 1):  # an axis is summed, and becomes the first
        wanted = np.tensordot(wanted, groups, (1, 0))
    assert_close(got, wanted, axes=wanted.ndim - 1)
