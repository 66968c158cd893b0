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
from tests.comparing import assert_alike
from tests.plain import plain

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
SUBSET = ["embarked", "sex", "pclass", "age", "fare"]


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


def by_dtype():
    """Return the page's second half: columns by dtype, and a randomized search."""
    chosen = preprocessor(
        make_column_selector(dtype_exclude="category"),
        make_column_selector(dtype_include="category"),
    )
    grid = {
        "preprocessor__num__imputer__strategy": ["mean", "median"],
        "preprocessor__cat__selector__percentile": [50, 70],
        "classifier__max_depth": [2, 5],
    }
    model = Pipeline([("preprocessor", chosen), ("classifier", FOREST)])
    return RandomizedSearchCV(model, grid, n_iter=4, cv=2, random_state=0)


IMPUTED = SimpleImputer(missing_values=np.nan, strategy="mean")
NUMBERS = Pipeline([("imputation_mean", IMPUTED), ("scaler", StandardScaler())])
CONSTANT = SimpleImputer(fill_value="missing", strategy="constant")
ONE_HOT = OneHotEncoder(handle_unknown="ignore")
LABELS = Pipeline([("imputation_constant", CONSTANT), ("onehot", ONE_HOT)])
COLUMNS = ColumnTransformer(
    [("categorical", LABELS, ["sex"]), ("numerical", NUMBERS, ["age", "fare"])]
)
DISPLAYED = Pipeline([("preprocessor", COLUMNS), ("classifier", FOREST)])
FEW = {"classifier__n_estimators": [3, 6], "classifier__max_depth": [4, 5]}
BRIEFLY = make_column_transformer(
    (LABELS, ["sex", "embarked"]), (NUMBERS, ["age"]), remainder="drop"
)
#: Models, and the columns that they get; those of numbers alone get arrays.
MODELS = {
    "by name": (
        make_pipeline(
            preprocessor(["age", "fare"], ["embarked", "sex", "pclass"]), FOREST
        ),
        [*X],
    ),
    "by dtype": (by_dtype(), SUBSET),
    "numbers": (make_pipeline(StandardScaler(), FOREST), ["pclass", "fare"]),
    "pca": (make_pipeline(StandardScaler(), PCA(1), FOREST), ["pclass", "fare"]),
    "displayed": (DISPLAYED, [*X]),
    "briefly": (make_pipeline(BRIEFLY, FOREST), [*X]),
    "a search": (GridSearchCV(DISPLAYED, FEW, cv=2), [*X]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_pipeline_of_a_page(name):
    model, columns = MODELS[name]
    rows, test = X[columns], TEST[columns]
    if len(columns) == 2:
        rows, test = rows.to_numpy(), test.to_numpy()
    usual = name == "by dtype"  # which also has the kernels of an ordinary user
    fast = (CompiledForest(model, tuning="off") if usual else plain(model)).fit(rows, Y)
    own = fast.estimator_
    assert ("runs in" in fast.inspect("pipeline")) == (name == "pca")
    assert fast.score(test, Y[:150]) == own.score(test, Y[:150])
    assert_alike(fast, own, rows, test, test[:1])
    html = fast._repr_html_()
    assert all(step in html for step, _ in own.steps)
    if len(columns) > 2:
        assert_alike(fast, own, test[columns[::-1]])
        row, expected = test.iloc[3].to_dict(), own.predict_proba(test[3:4])
        np.testing.assert_array_equal(fast.predict_proba(row), expected)
