"""The pipelines of two pages of scikit-learn's gallery, with a forest at the end.

"Column Transformer with Mixed Types" and "Displaying Pipelines". The passengers are
drawn, with the columns of the page, as a test downloads nothing.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.compose import (
    ColumnTransformer,
    make_column_selector,
    make_column_transformer,
)
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import SelectPercentile, chi2
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skforge import CompiledForest

pd = pytest.importorskip("pandas")


def passengers(n=300, seed=0):
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "pclass": random.integers(1, 4, n),
            "name": [f"Passenger {i}" for i in range(n)],
            "sex": pd.Categorical(random.choice(["female", "male"], n)),
            "age": random.normal(30, 14, n).round(1),
            "fare": random.exponential(33, n).round(4),
            "embarked": pd.Categorical(random.choice(["S", "C", "Q"], n)),
        }
    )
    frame.loc[random.random(n) < 0.2, "age"] = np.nan
    frame.loc[random.random(n) < 0.02, "embarked"] = np.nan
    survived = (frame.sex == "female") ^ (random.random(n) < 0.25)
    return frame, survived.astype(int).to_numpy()


X, Y = passengers()
TEST, _ = passengers(150, 1)
FOREST = RandomForestClassifier(10, max_depth=6, random_state=0)


def preprocessor(numeric, categorical):
    numbers = Pipeline(
        [("imputer", SimpleImputer(strategy="median")), ("scaler", StandardScaler())]
    )
    labels = Pipeline(
        [
            ("encoder", OneHotEncoder(handle_unknown="ignore")),
            ("selector", SelectPercentile(chi2, percentile=50)),
        ]
    )
    return ColumnTransformer([("num", numbers, numeric), ("cat", labels, categorical)])


def assert_same(fast, model, *several):
    for rows in several:
        for method in ("predict", "predict_proba"):
            found, expected = getattr(fast, method)(rows), getattr(model, method)(rows)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def folds(fast):
    return "runs in" not in fast.inspect("pipeline")


def test_mixed_types_by_names():
    steps = [
        ("preprocessor", preprocessor(["age", "fare"], ["embarked", "sex", "pclass"])),
        ("classifier", FOREST),
    ]
    model = Pipeline(steps).fit(X, Y)
    fast = CompiledForest(model, tuning="off").fit(X)
    assert folds(fast)
    assert fast.score(TEST, Y[:150]) == model.score(TEST, Y[:150])
    assert_same(fast, model, X, TEST, TEST[:1], TEST[TEST.columns[::-1]])
    row = TEST.iloc[3].to_dict()
    np.testing.assert_array_equal(
        fast.predict_proba(row), model.predict_proba(TEST[3:4])
    )


def test_mixed_types_by_selectors_and_a_search():
    """The page's second half: columns by dtype, and a randomized search."""
    chosen = preprocessor(
        make_column_selector(dtype_exclude="category"),
        make_column_selector(dtype_include="category"),
    )
    subset = X[["embarked", "sex", "pclass", "age", "fare"]]
    model = Pipeline([("preprocessor", chosen), ("classifier", FOREST)])
    grid = {
        "preprocessor__num__imputer__strategy": ["mean", "median"],
        "preprocessor__cat__selector__percentile": [50, 70],
        "classifier__max_depth": [2, 5],
    }
    search = RandomizedSearchCV(model, grid, n_iter=4, cv=2, random_state=0)
    fast = CompiledForest(search, tuning="off").fit(subset, Y)
    assert folds(fast)
    assert_same(fast, fast.search_, subset, TEST[subset.columns])


def displayed():
    """Yield the pipelines that the page displays."""
    yield Pipeline([("preprocessing", StandardScaler()), ("classifier", FOREST)])
    yield Pipeline([("scaler", StandardScaler()), ("pca", PCA(4)), ("last", FOREST)])
    numbers = Pipeline(
        [
            ("imputation_mean", SimpleImputer(missing_values=np.nan, strategy="mean")),
            ("scaler", StandardScaler()),
        ]
    )
    labels = Pipeline(
        [
            (
                "imputation_constant",
                SimpleImputer(fill_value="missing", strategy="constant"),
            ),
            ("onehot", OneHotEncoder(handle_unknown="ignore")),
        ]
    )
    columns = ColumnTransformer(
        [("categorical", labels, ["sex"]), ("numerical", numbers, ["age", "fare"])]
    )
    yield Pipeline([("preprocessor", columns), ("classifier", FOREST)])
    yield make_pipeline(
        make_column_transformer(
            (labels, ["sex", "embarked"]), (numbers, ["age"]), remainder="drop"
        ),
        FOREST,
    )


@pytest.mark.parametrize("number", range(4))
def test_displayed_pipelines(number):
    model = [*displayed()][number]
    rows = X if number > 1 else X[["pclass", "fare", "fare", "pclass", "fare"]]
    rows = rows if number > 1 else rows.to_numpy()
    model.fit(rows, Y)
    fast = CompiledForest(model, tuning="off").fit(rows)
    assert folds(fast) == (number != 1)
    assert_same(fast, model, rows, rows[:1])
    html = fast._repr_html_()
    assert all(name in html for name, _ in model.steps)


def test_a_displayed_search():
    model = [*displayed()][2]
    grid = {"classifier__n_estimators": [3, 6], "classifier__max_depth": [4, 5]}
    search = GridSearchCV(model, grid, cv=2)
    fast = CompiledForest(search, tuning="off").fit(X, Y)
    assert folds(fast)
    assert_same(fast, fast.search_, X, TEST)
