"""XGBoost's rankers drop a frame's column of queries, and so do kernels."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skforge
from skforge import CompiledForest
from skforge.exceptions import InvalidInputError, PerformanceWarning, SourceNeededError
from tests.plain import plain

pd = pytest.importorskip("pandas")
pytest.importorskip("scipy")
xgboost = pytest.importorskip("xgboost")

N_ROWS = 90
QUERIES = np.repeat(np.arange(9), 10)
rng = np.random.default_rng(0)
ROWS = pd.DataFrame(rng.normal(size=(N_ROWS, 3)), columns=list("abc"))
MIXED = ROWS.astype({"b": "float32"}).assign(
    i=rng.integers(0, 5, N_ROWS), k=pd.Categorical(rng.choice(list("xyz"), N_ROWS))
)
y = (ROWS["a"] > 0).astype(int)
METHODS = ("predict", "predict_raw", "apply")


def ranker() -> Any:
    return xgboost.XGBRanker(n_estimators=6, n_jobs=1, enable_categorical=True)


def at(place: int, values: Any) -> Callable[[Any], Any]:
    def insert(frame: Any) -> Any:
        frame = frame.copy()
        frame.insert(place, "qid", values)
        return frame

    return insert


#: Frames with queries: at any place, of any dtype.
FRAMES: dict[str, Callable[[Any], Any]] = {
    "last": lambda frame: frame.assign(qid=QUERIES),
    "first": at(0, QUERIES),
    "between": at(1, QUERIES.astype(np.float64)),
    "large": at(0, QUERIES + (1 << 60)),
    "texts": at(2, QUERIES.astype(str).astype(object)),
    "categories": at(1, pd.Categorical(QUERIES)),
    "nullable": lambda frame: at(0, QUERIES)(frame).convert_dtypes(),
    "dates": at(2, pd.Timestamp(2020, 1, 1)),
    "twice": lambda frame: pd.concat([at(0, 1)(frame), at(0, 1)(frame)["qid"]], axis=1),
    "infinite": lambda frame: at(0, 1)(frame.assign(a=np.inf)),
    "sparse": lambda frame: at(0, 1)(frame.astype({"a": pd.SparseDtype(float)})),
    "a row": lambda frame: at(0, QUERIES)(frame).iloc[[5]],
    "no rows": lambda frame: at(0, QUERIES)(frame).iloc[:0],
    "another order": lambda frame: at(0, QUERIES)(frame)[["qid", *frame.columns[::-1]]],
    "in place of a feature": lambda frame: frame.rename(columns={"a": "qid"}),
}


@pytest.fixture(scope="module", params=[ROWS, MIXED], ids=["numbers", "mixed"])
def fitted(request: Any, tmp_path_factory: Any) -> Any:
    """Return a model, its rows, and the compiled one: live, unpickled, loaded."""
    rows = request.param
    model = ranker().fit(rows.assign(qid=QUERIES), y)
    fast = plain(model).fit(rows.assign(qid=QUERIES))
    path = tmp_path_factory.mktemp("ranker") / "model.skforge"
    skforge.save(fast, path)
    return model, rows, (fast, pickle.loads(pickle.dumps(fast)), skforge.load(path))


def own(model: Any, method: str, X: Any) -> Any:
    if method == "predict_raw":
        return model.predict(X, output_margin=True)
    return getattr(model, method)(X)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", FRAMES)
def test_frames_with_queries(fitted: Any, form: str, method: str) -> None:
    model, rows, compiled = fitted
    X = FRAMES[form](rows)
    try:
        wanted = own(model, method, X)
    except Exception as error:  # noqa: BLE001 - of any class
        for fast in compiled:
            kinds = (type(error), InvalidInputError, SourceNeededError)
            with pytest.raises(kinds):
                getattr(fast, method)(X)
        return
    for fast in compiled if len(X) else compiled[:2]:
        found = getattr(fast, method)(X)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("form", ["last", "first", "between", "large", "texts"])
def test_kernels_answer_frames_with_queries(fitted: Any, form: str) -> None:
    _, rows, compiled = fitted
    X = FRAMES[form](rows)
    for fast in compiled:
        before = fast.counters()["library"]
        for method in METHODS:
            getattr(fast, method)(X)
        assert fast.counters()["library"] == before


@pytest.mark.filterwarnings("ignore:row 0 has keys|the mapping has keys")
def test_mappings_with_queries(fitted: Any) -> None:
    model, rows, compiled = fitted
    X = rows.assign(qid=QUERIES)
    wanted = model.predict(X)
    for fast in compiled:
        np.testing.assert_array_equal(fast.predict(X.to_dict("list")), wanted)
        np.testing.assert_array_equal(fast.predict(X.to_dict("records")), wanted)


def test_a_feature_is_no_column_of_queries() -> None:
    """Without names, a frame of as many columns lacks one when its queries go."""
    model = ranker().fit(ROWS.to_numpy(), y, qid=QUERIES)
    fast = plain(model).fit(ROWS.to_numpy())
    X = ROWS.rename(columns={"a": "qid"})
    for one in (model, fast):
        with pytest.raises(ValueError, match="Feature shape mismatch"):
            one.predict(X)
    np.testing.assert_array_equal(
        fast.predict(ROWS.assign(qid=1)), model.predict(ROWS.to_numpy())
    )
    regressor = xgboost.XGBRegressor(n_estimators=3).fit(X, y)
    np.testing.assert_array_equal(
        plain(regressor).fit(X).predict(X), regressor.predict(X)
    )


def test_steps_that_return_frames_with_queries() -> None:
    steps = make_column_transformer(
        (StandardScaler(), list("abc")),
        remainder="passthrough",
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    X = ROWS.assign(qid=QUERIES)
    model = make_pipeline(steps, ranker()).fit(X, y)
    with pytest.warns(PerformanceWarning, match="which XGBRanker drops"):
        fast = CompiledForest(model, tuning="off").fit(X)
    np.testing.assert_array_equal(fast.predict(X), model.predict(X))


def test_files_know_which_column_is_dropped(tmp_path: Path) -> None:
    """Other models of XGBoost refuse the frame, and so do their files."""
    for model in (xgboost.XGBRegressor(n_estimators=3), ranker()):
        given = {"qid": QUERIES} if isinstance(model, xgboost.XGBRanker) else {}
        fast = plain(model.fit(ROWS, y, **given)).fit(ROWS)
        skforge.save(fast, tmp_path / "model.skforge")
        loaded = skforge.load(tmp_path / "model.skforge")
        X = ROWS.assign(qid=QUERIES)
        if given:
            np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
            continue
        with pytest.raises(InvalidInputError, match="trained on"):
            loaded.predict(X)
