"""Compares random models of wide sparse rows with their compiled forms.

Rows of 256 columns or more are answered by their entries. Entries are drawn on and
beside thresholds, as numbers that libraries take for zero, as NaN and as infinities;
rows come in every container, also with entries that are not in order.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import lightgbm as lgb
import numpy as np
import scipy.sparse as sp
import xgboost as xgb
from sklearn import ensemble, tree

from skforge import CompiledForest, UnsupportedModelError
from tests.compared_calls import apart, called
from tests.fuzz_pipelines import Outcome
from tests.random_pipelines import Choose, chooser

N_ROWS = 400
#: LightGBM takes numbers up to 1e-35 for zero; 5e-324 is zero in float32.
TINY = (0.0, -0.0, 1e-36, -1e-36, 1e-35, 1e-34, 5e-324)
SIZES = (1, 5, 64, 300)


def compare(numbers: Sequence[int], n_forms: int = 8) -> Outcome:
    """Draw a model from numbers, and compare its calls on ``n_forms`` drawn rows."""
    random, outcome = np.random.default_rng(numbers), Outcome()
    choose = chooser(random)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        X = draw_rows(choose, random)
        model = draw_model(choose, random, X)
        try:
            how = {"tuning": "off", "n_jobs": choose([None, 2])}
            fast = CompiledForest(model, **how).fit(X[:60])
        except UnsupportedModelError as error:
            outcome.refused.append(str(error))
            return outcome
        if choose([True, False, False]):
            fast = pickle.loads(pickle.dumps(fast))
    outcome.how, outcome.example = f"{X.shape}, {X.nnz} entries, {X.dtype}", f"{model}"
    thresholds = np.append(fast.forest_.threshold, 0.0)
    methods = ["predict", "predict_proba", "apply"]
    if "catboost" in type(model).__module__:
        methods.pop()
    for _ in range(n_forms):
        word, rows = changed(choose, random, X, thresholds)
        for method in methods:
            if not hasattr(model, method):
                continue
            theirs = called(getattr(model, method), deepcopy(rows))
            ours = called(getattr(fast, method), rows)
            outcome.calls += 1
            outcome.rows += rows.shape[0]
            if "indices in CSR sparse arrays must be int32" in theirs[1]:
                continue  # CatBoost's wide ones are answered here
            if found := apart(ours, theirs, rows):
                outcome.differs.append(f"{method} of {word}: {found}")
    return outcome


def draw_rows(choose: Choose, random: np.random.Generator) -> Any:
    """Draw CSR rows of few distinct values."""
    digits, shape = choose([0, 1, 2, 3]), (N_ROWS, choose([300, 700, 3000]))
    X = sp.random(
        *shape,
        density=choose([0.002, 0.01, 0.03]),
        format="csr",
        random_state=random,
        data_rvs=lambda size: np.round(random.normal(size=size), digits),
    )
    return X.astype(choose([np.float32, np.float64]))


def draw_model(choose: Choose, random: np.random.Generator, X: Any) -> Any:
    """Draw and fit a model of a library that takes sparse rows."""
    score = X @ random.normal(size=X.shape[1]) + random.normal(size=N_ROWS) * 0.3
    y = choose([score, score > 0, np.digitize(score, [-0.3, 0.3])])
    kind = "Regressor" if y is score else "Classifier"
    depth, trees = choose([None, 4, 12]), {"n_estimators": choose([3, 30])}
    trees["random_state"] = 0

    def of_sklearn(name: str, **how: Any) -> Any:
        return getattr(ensemble, name + kind)(**trees, **how)

    def of_lightgbm() -> Any:
        how = {"zero_as_missing": choose([True, False]), "verbose": -1}
        how |= {"use_missing": choose([True, False]), "min_child_samples": 2}
        return getattr(lgb, f"LGBM{kind}")(n_jobs=1, **trees, **how)

    def of_xgboost() -> Any:
        how = {"missing": choose([np.nan, 0.0, 1.0]), "max_depth": depth or 6}
        how["booster"] = choose(["gbtree", "dart"])
        return getattr(xgb, f"XGB{kind}")(n_jobs=1, **trees, **how)

    def of_catboost() -> Any:
        import catboost

        how = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
        return getattr(catboost, f"CatBoost{kind}")(iterations=10, depth=4, **how)

    drawn = choose(
        [
            lambda: of_sklearn("RandomForest", max_depth=depth),
            lambda: of_sklearn("ExtraTrees", max_depth=depth),
            lambda: of_sklearn("GradientBoosting"),
            lambda: of_sklearn("AdaBoost"),
            lambda: getattr(tree, f"DecisionTree{kind}")(max_depth=depth),
            lambda: ensemble.IsolationForest(**trees),
            *[of_lightgbm, of_lightgbm, of_xgboost, of_xgboost, of_catboost],
        ]
    )()
    if y is score and type(drawn).__name__ == "RandomForestRegressor":
        y = choose([y, np.column_stack([score, -(score**2)])])
    return drawn.fit(X, y)


def changed(
    choose: Choose, random: np.random.Generator, X: Any, thresholds: Any
) -> tuple[str, Any]:
    """Return some rows with changed entries in a drawn container, and its name."""
    rows = X[random.integers(0, N_ROWS, choose(SIZES))].tocsr().copy()
    which = random.random(rows.nnz) < 0.4
    drawn = random.choice(thresholds, which.sum()).astype(rows.dtype)
    toward = np.asarray(choose([-np.inf, np.inf]), rows.dtype)
    values = {
        "as trained": rows.data[which],
        "tiny": random.choice(TINY, which.sum()),
        "NaN": random.choice([np.nan, 1.0, 0.0], which.sum()),
        "thresholds": drawn,
        "beside": np.nextafter(drawn, toward),
        "infinite": random.choice([1e30, -1e30, np.inf], which.sum()),
    }
    word = choose([*values])
    rows.data[which] = values[word]
    form = choose(["csr_matrix", "csr_array", "csc", "coo", "shuffled", "wide indices"])
    if form == "csr_array":
        rows = sp.csr_array(rows)
    elif form in ("csc", "coo"):
        rows = rows.asformat(form)
    elif form == "shuffled":
        runs = np.split(np.arange(rows.nnz), rows.indptr[1:-1])
        order = np.concatenate([random.permutation(run) for run in runs]).astype(int)
        parts = rows.data[order], rows.indices[order], rows.indptr
        rows = sp.csr_matrix(parts, shape=rows.shape)
    elif form == "wide indices":
        rows.indices, rows.indptr = rows.indices.astype("i8"), rows.indptr.astype("i8")
    return f"{rows.shape[0]} {form} rows, {word}", rows
