"""Every kind of model answers with its own bits, by its forest's reference."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pytest
from joblib.externals.loky import cpu_count
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from threadpoolctl import threadpool_limits

from skforge.exceptions import SourceNeededError
from skforge.forest.categories import ABOVE, ABOVE_OR_NAN, MULTIPLIER
from skforge.forest.encoder_tables import _pairs_of
from skforge.frontends import load_forest
from skforge.sources.find import read_model, source_of
from tests.by_reference import answer, stored_of

for library in ("pandas", "polars", "lightgbm", "xgboost", "catboost"):
    pytest.importorskip(library)

# these import the libraries
from lightgbm import LGBMRegressor  # noqa: E402
from xgboost import XGBRanker  # noqa: E402

from skforge.prediction.dividing import read_divided  # noqa: E402
from skforge.prediction.given_rows import GivenRows  # noqa: E402
from tests import forms, kinds, kinds_of_pipelines  # noqa: E402
from tests.compared_calls import apart, called  # noqa: E402

KINDS = {
    **kinds.MODELS,
    **kinds.WRAPPERS,
    **kinds_of_pipelines.PIPELINES,
    **kinds_of_pipelines.STEPS,
    **kinds_of_pipelines.TEXTS,
}
#: Boosters have rows of their own class or no labels. Their libraries answer votes with
#: negative weights, and LightGBM what a step makes of Polars' frames.
LEFT_OUT = {"xgboost, booster", "lightgbm, booster", "hard votes, negative"}
LEFT_OUT |= {"pca of polars frames, lightgbm"}
LEFT_OUT |= {"catboost of categories", "catboost of texts"}  # hashed by machine code
METHODS = ("predict", "predict_proba", "decision_function", "score_samples")

cpu_count(only_physical_cores=True)  # it asks another program once


def rows_of(kind: kinds.Kind, forest: Any) -> Any:
    """Return rows of training and rows on thresholds, in the form of training."""
    frame = kinds.base_rows(kind, SimpleNamespace(forest_=forest))
    if kind.on == "categories":
        return forms.with_categories(frame)
    return frame.to_numpy() if isinstance(kinds.ROWS[kind.on], np.ndarray) else frame


@pytest.mark.sampled(120)
@pytest.mark.parametrize("name", sorted({*KINDS} - LEFT_OUT))
def test_answers_are_the_models_own(name: str) -> None:
    """Live, and stored as plain data, if all of a model folds."""
    kind = KINDS[name]
    with threadpool_limits(1), joblib.parallel_config("threading"):
        model = kind.fitted()
        source, split = read_divided(model, GivenRows(kinds.ROWS[kind.on]))
        forest, sources = source.forest, [(model, source)]
        if kind.stored and not (split and split.start):
            stored = stored_of(model, forest)
            sources.append((stored, source_of(stored, forest)))
            assert type(sources[1][1]) is type(sources[0][1])
        X = rows_of(kind, forest)
        theirs = {m: called(getattr(model, m), X) for m in METHODS if hasattr(model, m)}
        for known, source in sources:
            compared = 0
            for method, own in theirs.items():
                ask = partial(answer, source, known, method)
                found = called(ask, X)
                if found[0] is None and found[1][:11] in ("", "UnsureError"):
                    continue
                assert not apart(found, own, X), (known, method)
                compared += 1
            assert compared, known


def test_a_ranker_drops_the_queries_of_every_frame() -> None:
    rows = kinds.ROWS["frame"]
    last, first = rows.assign(qid=1), rows.copy()
    first.insert(0, "qid", 2)
    model = XGBRanker(n_estimators=6, n_jobs=1).fit(last, np.arange(len(rows)) % 3)
    source = read_divided(model, GivenRows(last))[0]
    for frame in (last, first, rows, last[:1]):
        found = answer(source, model, "predict", frame)
        assert found.tobytes() == model.predict(frame).tobytes()


@pytest.mark.parametrize("least", [2**23, 2**24])
def test_whole_numbers_that_lightgbm_rounds_are_its_own(least: int) -> None:
    X = least + np.arange(400)[:, None]
    model = make_pipeline(
        FunctionTransformer(),
        LGBMRegressor(n_jobs=1, verbose=-1, min_child_samples=1, max_bin=500),
    ).fit(X, np.sin(X[:, 0]))
    source = read_divided(model, GivenRows(X))[0]
    found = answer(source, model, "predict", X)
    if least < 2**24:  # float32 has all of them
        assert found.tobytes() == model.predict(X).tobytes()
    else:
        assert found is None


# ------------------------------------------------------------ catboost by reference


cb = pytest.importorskip("catboost")
pd = pytest.importorskip("pandas")

N = 300
random = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "size": np.where(random.random(N) < 0.2, np.nan, random.normal(size=N)),
        "city": random.choice([f"città {i}" for i in range(9)], N).astype(object),
        "age": random.integers(18, 90, N).astype(float),
        "code": random.integers(-3, 9, N),
    }
)
SIGNAL = FRAME["city"].str[-1].astype(int) % 4 + np.nan_to_num(FRAME["size"])
SIGNAL += (FRAME["code"] == 2) * (FRAME["age"] > 40) * 2
NUMBERS, CATEGORIES = ["size", "age", "code"], ["city", "code"]


def train(kind: str, columns: list[str], y: Any, **how: Any) -> Any:
    how = {"iterations": 12, "depth": 4, "thread_count": 1, "verbose": 0, **how}
    made = getattr(cb, f"CatBoost{kind}")(allow_writing_files=False, **how)
    return made.fit(FRAME[columns], y)


def test_a_stored_model_refuses_one_row_without_a_second_axis() -> None:
    model = train("Regressor", NUMBERS, SIGNAL)
    forest = read_model(model)
    stored = stored_of(model, forest)
    with pytest.raises(SourceNeededError) as error:
        answer(source_of(stored, forest), stored, "predict", np.zeros(3))
    assert str(error.value) == (
        "predict of one row without a second axis needs the CatBoostRegressor itself, "
        "which this CompiledForest was saved without: Use X.reshape(1, -1), or use "
        "the original model."
    )


@pytest.mark.parametrize("nan_mode", ["Min", "Max"])
def test_combinations_of_categories_are_the_same_in_both_files(nan_mode, tmp_path):
    how = {"cat_features": CATEGORIES, "max_ctr_complexity": 3, "iterations": 40}
    model = train("Regressor", [*FRAME], SIGNAL, nan_mode=nan_mode, **how)
    pool = cb.Pool(FRAME, SIGNAL, CATEGORIES)
    forests = []
    for suffix in ("cbm", "json"):
        path = tmp_path / f"model.{suffix}"
        model.save_model(str(path), format=suffix, pool=pool)
        forests.append(load_forest(path))
    binary, text = forests
    assert np.isin(binary.hashed.part_kind, [ABOVE, ABOVE_OR_NAN]).any()
    assert (binary.hashed.part_kind == ABOVE_OR_NAN).any() == (nan_mode == "Max")
    for name, array in binary.hashed.arrays().items():
        np.testing.assert_array_equal(getattr(text.hashed, name), array, name)
    for name in ("left", "right", "feature", "threshold", "missing_left"):
        np.testing.assert_array_equal(getattr(text, name), getattr(binary, name), name)


# ------------------------------------------------------------ encoder tables


@pytest.mark.parametrize("factor", [pow(MULTIPLIER, k, 2**64) for k in (1, 2, 5)])
def test_every_pair_of_hashes_is_among_those_of_its_key(factor: int) -> None:
    pairs = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 50))
    pairs[:, :2] = [[-(2**31), 2**31 - 1], [2**31 - 1, -(2**31)]]
    with np.errstate(over="ignore"):
        key = pairs.astype(np.uint64) * np.array([[factor], [1]], np.uint64)
        total = key.sum(axis=0)
        found = _pairs_of(total.view(np.int64), factor)
        keys = found.astype(np.uint64) * np.array([factor, 1], np.uint64)[:, None, None]
    assert (keys.sum(axis=0) == total).all()
    assert (found == pairs[:, None]).all(axis=0).any(axis=0).all()
