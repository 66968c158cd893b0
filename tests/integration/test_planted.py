"""Past faults can be planted still, and comparisons find those of rarer forms."""

from __future__ import annotations

import ast
import io
import warnings
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import skforge
from skforge import CompiledForest
from skforge.exceptions import VerificationError, VerificationWarning
from skforge.polars import predict
from tests.compared_calls import apart, called
from tests.reliability.past_faults import past_faults
from tests.reliability.planting import Edit, NoPlaceError, function_at, planted
from tests.reliability.processes import ROOT

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.doors]


def test_the_code_still_has_the_places_of_past_faults() -> None:
    for fault in past_faults(ROOT):
        before, after = ast.parse(fault.text), ast.parse(fault.planted)
        assert ast.dump(before) != ast.dump(after), fault


def tiny_numbers_of_csr_rows() -> tuple[Any, Any, Any, Any]:
    X = np.random.default_rng(0).integers(-1, 1, (200, 2)).astype(float)
    model = lgb.LGBMRegressor(n_estimators=8, verbose=-1, n_jobs=1, min_child_samples=5)
    model.fit(X, X[:, 0] * 3 + X[:, 1])
    tiny = X.copy()
    tiny[::2, 0] = -1.0000000180025095e-35
    return model, X, sparse.csr_matrix(X[:4]), sparse.csr_matrix(tiny)


def negative_whole_numbers() -> tuple[Any, Any, Any, Any]:
    random = np.random.default_rng(0)
    X = pd.DataFrame(random.normal(size=(240, 2)) * 0.2, columns=["a", "b"])
    names = {"feature_names_out": "one-to-one"}
    step = FunctionTransformer(np.negative, validate=True, **names)
    steps = ColumnTransformer([("f", step, ["a"])], remainder="passthrough")
    model = make_pipeline(steps, RandomForestRegressor(6, random_state=0))
    model.fit(X, X.a - 2 * X.b)
    zeros, whole = np.zeros(4, np.uint32), np.array([0, 1, 7, 200_000], np.uint32)
    return model, X, X[:4].assign(a=zeros), X[:4].assign(a=whole)


#: Harmless rows come first, so that a form is known when those come that matter.
MISREAD = {
    tiny_numbers_of_csr_rows: Edit(
        "sources.lightgbm:LightGBMBoosterSource.passed_on",
        'compares = is_table(X) or type(X).__name__ == "csr_matrix"',
        "compares = is_table(X)",
    ),
    negative_whole_numbers: Edit(
        "frontends.pipeline.bounds:Bounds.takes", "return False", "return True"
    ),
}


@pytest.mark.parametrize("make", MISREAD)
def test_a_comparison_speaks_before_a_wrong_answer_leaves(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, X, harmless, rows = make()
    expected = called(model.predict, rows)
    with planted([MISREAD[make]]):
        fast = CompiledForest(model, tuning="off").fit(X)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fast.predict(harmless)
            assert not apart(called(fast.predict, rows), expected, rows)
        assert any(w.category is VerificationWarning for w in said)
        monkeypatch.setenv("SKFORGE_CHECK", "off")
        fast = CompiledForest(model, tuning="off").fit(X)
        assert apart(called(fast.predict, rows), expected, rows), "it changes nothing"


def test_save_compares_each_method() -> None:
    X = np.random.default_rng(0).normal(size=(240, 3))
    model = GradientBoostingClassifier(n_estimators=5, random_state=0)
    fast = CompiledForest(model.fit(X, X[:, 0] > 0), tuning="off").fit(X)
    other = Edit(
        "sources.base:Answers.of_scores",
        "return of_forest\n",
        "return lambda method, raw: (\n"
        "            -1.0 * of_forest(method, raw) if method == 'decision_function'\n"
        "            else of_forest(method, raw)\n        )\n",
    )
    with planted([other]), pytest.raises(VerificationError) as error:
        skforge.save(fast, io.BytesIO())
    assert "would answer decision_function of " in str(error.value)


def test_whole_numbers_of_polars_are_rounded_as_float64() -> None:
    """LightGBM rounds those of arrays to float32: a chunk's dtype decides nothing."""
    whole = np.random.default_rng(0).integers(1 << 24, (1 << 24) + 40, (400, 2))
    how = {"n_estimators": 5, "min_child_samples": 1, "verbose": -1, "n_jobs": 1}
    model = lgb.LGBMRegressor(**how).fit(whole.astype(float), whole[:, 0] % 2)
    fast = CompiledForest(model, tuning="off").fit(whole.astype(float))
    chosen = pl.DataFrame(whole, ["a", "b"]).select(predict(fast, "a", "b"))
    np.testing.assert_array_equal(chosen.to_series(), model.predict(whole * 1.0))


def test_a_text_that_is_gone_cannot_be_planted() -> None:
    place = "runtime.mappings:Mappings._values"
    gone = Edit(place, "values = nothing", "values = 0")
    with pytest.raises(NoPlaceError) as error, planted([gone]):
        pass
    assert str(error.value) == f"{place} has 'values = nothing' 0 times, not once"
    with pytest.raises(NoPlaceError) as error:
        function_at("runtime.mappings:Mappings.x")
    assert str(error.value) == "skforge.runtime.mappings has no Mappings.x"
