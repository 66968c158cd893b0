"""Planted faults in the rows of pipelines: dtypes of steps, texts, columns by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from tests.reliability.planted_trial import Trial, beside, fault, numbers

TOWNS = ["oslo", "bern", "riga", "lima"]


def forest(n: int = 6) -> Any:
    return RandomForestRegressor(n, random_state=0)


def towns(n: int = 240, known: Any = TOWNS) -> Any:
    random = np.random.default_rng(3)
    names = np.array(known, object)[random.integers(0, len(known), n)]
    return pd.DataFrame(
        {"x": random.normal(size=n), "town": names, "y": numbers(n)[:, 0]}
    )


def of_texts(X: Any, encoder: Any = None, last: Any = None) -> Any:
    encoder = encoder or OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    steps = make_column_transformer((encoder, ["town"]), ("passthrough", ["x", "y"]))
    worth = X.town.map({"oslo": 3.0, "bern": -2.0, "riga": 7.0}).fillna(0.5)
    return make_pipeline(steps, last or forest()).fit(X, X.x + worth)


@fault(
    "scaler-in-float64",
    "scaler steps applied in float64 for float32 rows",
    "sources.pipeline:PipelineSource._reads_as",
    "mine = ",
    "return True\n    mine = ",
)
def scaled_float32(t: Trial) -> None:
    X = numbers(width=3) * 1000 + 5000
    model = make_pipeline(StandardScaler(), forest()).fit(X, X.sum(axis=1))
    fast = t.fit(model, X)
    t.both(
        fast,
        model,
        np.full((3, 3), 5000, np.float32),
        beside(fast, n=400).astype(np.float32),
    )


@fault(
    "negative-of-unsigned",
    "whole numbers of a step computed in float64",
    "rows.pipeline_rows:PipelineRows._takes_form",
    "self.bounds.takes((p for p in numbers if p[0] not in gaps), own=2)",
    "True",
    "frontends.pipeline.bounds:Bounds.takes",
    "return False",
    "return True",
    named="CHANGELOG, Wrong predictions, functions of whole numbers",
)
def negative_whole_numbers(t: Trial) -> None:
    X = pd.DataFrame(numbers(width=2) * 0.2, columns=["a", "b"])
    step = FunctionTransformer(
        np.negative, validate=True, feature_names_out="one-to-one"
    )
    steps = ColumnTransformer([("f", step, ["a"])], remainder="passthrough")
    model = make_pipeline(steps, forest()).fit(X, X.a - 2 * X.b)
    fast = t.fit(model, X)
    for values in ([0, 0, 0, 0], [0, 1, 7, 200_000]):
        t.method(fast, model, X[:4].assign(a=np.array(values, np.uint32)))


@fault(
    "imputed-fraction-of-integers",
    "a fraction filled into whole numbers",
    "rows.pipeline_rows:PipelineRows._array",
    "self._is_exact(X) and self.bounds.takes(enumerate([X.dtype] * self.width))",
    "self._is_exact(X)",
    named="CHANGELOG, Wrong predictions, SimpleImputer",
)
def imputed_integers(t: Trial) -> None:
    X = np.random.default_rng(0).integers(0, 9, (240, 2)).astype(float)
    X[::3] = 4.5
    steps = SimpleImputer(missing_values=0, strategy="most_frequent")
    model = make_pipeline(steps, forest()).fit(X, X @ [2, 1] + 9 * (X[:, 0] == 4.5))
    t.both(t.fit(model, X), model, np.full((3, 2), 5), X.astype(np.int64))


@fault(
    "unknown-text-as-first",
    "an encoder's unknown mapped to 0",
    "frontends.pipeline.codes:TextCodes.code",
    "return self.table.get(value, self.unknown)",
    "return self.table.get(value, 0.0)",
)
def unknown_texts(t: Trial) -> None:
    X = towns()
    model = of_texts(X)
    t.both(t.fit(model, X), model, X[:4], towns(known=[*TOWNS, "rome"]))


@fault(
    "one-row-through-float32",
    "a rounding added for one row alone",
    "rows.pipeline_rows:PipelineRows._only_row",
    "row[column] = value",
    "row[column] = value if column in coded else np.float32(value)",
)
def one_row_of_steps(t: Trial) -> None:
    X = pd.DataFrame(numbers() * 1000 + 5000, columns=["a", "b", "c"])
    model = make_pipeline(StandardScaler(), forest()).fit(X, X.a + 2 * X.b)
    fast = t.fit(model, X)
    t.method(fast, model, X[:5].round(0))
    rows = pd.DataFrame(beside(fast), columns=["a", "b", "c"])
    for i in range(64):
        t.method(fast, model, rows[i : i + 1])


@fault(
    "wrapper-answers-as-its-forest",
    "a wrapper's rule left out behind a step",
    "sources.pipeline:PrefixedSource.__init__",
    "self._last, self.answers = last, last.answers",
    "self._last, self.answers = last, base.Answers()",
    named="CHANGELOG, Wrong predictions, wrappers",
)
def wrapper_behind_a_step(t: Trial) -> None:
    X = numbers()
    y = X[:, 0] + 0.5 * X[:, 1] > 0
    last = FixedThresholdClassifier(
        RandomForestClassifier(10, max_depth=3, random_state=0), threshold=0.7
    )
    model = make_pipeline(PolynomialFeatures(2), last).fit(X, y)
    sure = np.abs(model[-1].estimator_.predict_proba(model[0].transform(X))[:, 1] - 0.6)
    t.both(t.fit(model, X[sure > 0.2]), model, X[sure > 0.2][:4], X)


@fault(
    "float16-widened",
    "a step without columns left out, which widens others",
    "frontends.pipeline.split:_branched",
    "if any(places[each].stop == places[each].start for each in chosen):",
    "if False:",
    named="CHANGELOG, Wrong predictions, float16 frames",
)
def widened_halves(t: Trial) -> None:
    X = pd.DataFrame(numbers(400) * 100, columns=["a", "b", "c"])
    steps = ColumnTransformer(
        [
            ("scaled", "passthrough", ["a", "b"]),
            ("none", FunctionTransformer(_no_columns), ["c"]),
        ]
    )
    model = make_pipeline(steps, StandardScaler(), forest(20)).fit(X, X.a + X.b)
    fast = t.fit(model, X)
    t.method(fast, model, X[:2])
    halves = X.astype(np.float16)
    t.both(fast, model, halves[:2], halves)


def _no_columns(X: Any) -> Any:
    return np.zeros((len(X), 0))


@fault(
    "float32-by-the-forest-of-float64",
    "the wrong forest variant for a form",
    "sources.pipeline:PipelineSource.knows",
    "return form is None or",
    "return form is None or form == np.float32 or",
    "rows.pipeline_rows:PipelineRows._is_known",
    "wide and (dtype == np.float64",
    "wide and (dtype in (np.float32, np.float64)",
)
def float32_of_files(t: Trial) -> None:
    X = numbers(width=3) * 1000 + 5000
    model = make_pipeline(StandardScaler(), forest()).fit(X, X.sum(axis=1))
    loaded = t.load(t.fit(model, X))
    t.both(loaded, model, X, beside(loaded, n=400).astype(np.float32))
