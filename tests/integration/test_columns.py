"""Mappings to sequences: the answers are those to the frame with these columns."""

from __future__ import annotations

import contextlib
import copy
import re
import sys
from collections import UserDict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import skforge
from skforge.exceptions import InvalidInputError
from skforge.runtime import mappings
from tests.plain import plain
from tests.sklearn_rows import same_bits as same

pd = pytest.importorskip("pandas")

NAMES = ["age", "income", "height", "visits"]
CITIES = ["Oslo", "Bergen", "Rome", "Lima"]
rng = np.random.default_rng(0)
X = pd.DataFrame(np.floor(rng.normal(size=(200, 4)) * 200) / 10, columns=NAMES)
X_CITY = X.assign(city=pd.Categorical.from_codes(rng.integers(0, 4, 200), CITIES))
X_TEXT = X_CITY.assign(city=X_CITY["city"].astype(object))
y = (X["age"] > X["height"]).to_numpy() ^ (X_CITY["city"] == "Rome").to_numpy()
METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


def forest() -> Any:
    return RandomForestClassifier(6, max_depth=5, random_state=0)


def boosting(kind: str) -> Any:
    if kind == "xgboost":
        xgboost = pytest.importorskip("xgboost")
        return xgboost.XGBClassifier(
            n_estimators=5, max_depth=4, n_jobs=1, enable_categorical=True
        )
    if kind == "histogram":
        return HistGradientBoostingClassifier(max_iter=4)
    lightgbm = pytest.importorskip("lightgbm")
    return lightgbm.LGBMClassifier(
        n_estimators=5, n_jobs=1, verbose=-1, min_child_samples=5
    )


def encoded(*steps: Any) -> Any:
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_transformer(
        (StandardScaler(), ["visits", "age"]), (encoder, ["city"])
    )
    return make_pipeline(columns, *steps, forest())


def calibrated() -> Any:
    members = make_pipeline(StandardScaler(), forest()).fit(X, y)
    return CalibratedClassifierCV(FrozenEstimator(members))


MODELS: dict[str, tuple[Callable[[], Any], Any]] = {
    "forest": (forest, X),
    "regressor": (lambda: GradientBoostingRegressor(n_estimators=4), X),
    "isolation": (lambda: IsolationForest(n_estimators=6, random_state=0), X),
    "adaboost": (lambda: AdaBoostClassifier(n_estimators=3, random_state=0), X),
    "calibrated": (calibrated, X),
    "scaler": (lambda: make_pipeline(StandardScaler(), forest()), X),
    "steps in their library": (lambda: make_pipeline(PCA(2), forest()), X),
    "texts by name": (encoded, X_TEXT),
    "texts, steps": (lambda: encoded(PCA(3)), X_TEXT),
    "histogram": (lambda: boosting("histogram"), X_CITY),
    "xgboost": (lambda: boosting("xgboost"), X_CITY),
    "lightgbm": (lambda: boosting("lightgbm"), X_CITY),
}


@pytest.fixture(scope="module", params=MODELS)
def fitted(request: Any) -> tuple[Any, Any, Any]:
    """Return a model, its compiled form and the frame of training."""
    make, frame = MODELS[request.param]
    model = make().fit(frame, y)
    fast = plain(model).fit(frame)
    if frame is X_CITY and not any(fast.forest_.category_names):
        pytest.skip("this XGBoost keeps no names of categories")
    return model, fast, frame


def shuffled(frame: Any, kind: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: kind(frame[name]) for name in rng.permutation([*frame.columns])}


@pytest.mark.sampled(6)
def test_methods_and_mappings(fitted: Any) -> None:
    model, fast, frame = fitted
    columns, wanted = shuffled(frame, list), model.predict(frame)
    for kind in (UserDict, MappingProxyType):
        same(fast.predict(kind(columns)), wanted)
    if hasattr(model, "score"):
        assert fast.score(columns, y) == fast.score(frame, y)
    out = np.empty_like(fast.predict_raw(frame))
    assert fast.predict_raw(columns, out=out) is out
    same(out, fast.predict_raw(frame))
    if hasattr(fast, "apply"):
        same(fast.apply(columns), fast.apply(frame))
    with contextlib.suppress(skforge.exceptions.UnsupportedModelError):
        wanted = fast.predict_contribs(frame[:5])
        few = {name: values[:5] for name, values in columns.items()}
        same(fast.predict_contribs(few), wanted)


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm", "histogram"])
def test_categories(kind: str) -> None:
    model = boosting(kind).fit(X_CITY, y)
    fast = plain(model).fit(X_CITY)
    if not any(fast.forest_.category_names):
        pytest.skip("this XGBoost keeps no names of categories")
    cities = ["Rome", None, "Lima", "Oslo"]
    part = X_CITY[:4].assign(city=pd.Categorical(cities, categories=CITIES))
    wanted = model.predict_proba(part)
    arrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    for column in (
        *(cities, tuple(cities), np.array(cities, object), part["city"]),
        *(["Rome", np.nan, "Lima", "Oslo"], pd.Categorical(cities)),
        *(pd.array(cities, dtype="string"), polars.Series(cities)),
        *(polars.Series(cities, dtype=polars.Categorical), arrow.array(cities)),
        arrow.array(cities).dictionary_encode(),
    ):
        for numbers in (list, np.asarray):
            columns = {name: numbers(X[name][:4]) for name in NAMES}
            same(fast.predict_proba({**columns, "city": column}), wanted)
    texts = np.array(["Rome", "Oslo"])
    columns = {name: X[name][:2] for name in NAMES}
    known = part[:2].assign(city=pd.Categorical(["Rome", "Oslo"], categories=CITIES))
    same(fast.predict_proba(columns | {"city": texts}), model.predict_proba(known))
    rows = [{**X.iloc[0].to_dict(), "city": "Paris"}]
    unseen = {name: [value] for name, value in rows[0].items()}
    try:
        wanted = fast.predict_proba(rows)
    except ValueError as error:
        with pytest.raises(type(error)) as caught:
            fast.predict_proba(unseen)
        assert str(caught.value) == str(error)
    else:
        same(fast.predict_proba(unseen), wanted)


def test_whole_numbers_as_categories() -> None:
    model = boosting("lightgbm")
    codes = pd.Categorical(rng.integers(1, 6, 200), categories=[5, 1, 2, 3, 4])
    frame = X.assign(city=codes)
    model.fit(frame, codes.isin([1, 4]) ^ (X["age"] > 0))
    fast = plain(model).fit(frame)
    for column in ([1, 2, 9], np.array([1, 2, 9]), np.array([1.0, 2.0, 2.5])):
        rows = [{**X.iloc[i].to_dict(), "city": column[i]} for i in range(3)]
        columns = {name: X[name][:3] for name in NAMES} | {"city": column}
        same(fast.predict_proba(columns), fast.predict_proba(rows))
    with pytest.raises(InvalidInputError, match=r"'city' of row 1 is True.* pass 1 if"):
        fast.predict({name: X[name][:2] for name in NAMES} | {"city": [2, True]})


COLUMNS = {name: X[name][:3].tolist() for name in NAMES}
ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "absent": (
        {"age": [1, 2], "visit": [3, 4]},
        "the mapping has no 'income', 'height', 'visits'; for 'visits', the nearest "
        "key is 'visit'. Give every column of the model, with None where the value is "
        "missing.",
    ),
    "one value": (
        COLUMNS | {"height": 41},
        "'height' has one value (41), but 'age' has a sequence of values; give every "
        "key one value, or every key a sequence.",
    ),
    "a text": (
        COLUMNS | {"age": "one"},
        "'age' has one value ('one'), but 'income' has a sequence of values; give "
        "every key one value, or every key a sequence.",
    ),
    "one value in an array": (
        COLUMNS | {"age": np.array(1)},
        "'age' has one value (array(1)), but 'income' has a sequence of values; give "
        "every key one value, or every key a sequence.",
    ),
    "lengths": (
        COLUMNS | {"age": [1], "visits": [1]},
        "the columns have different numbers of values: 1 for 'visits' and 3 for "
        "'height'; give every column a value for each row, with None where it is "
        "missing.",
    ),
    "a text in a column": (
        COLUMNS | {"income": [1, None, "forty"]},
        "'income' of row 2 is 'forty', which is not a number; pass a number, or None "
        "if it is missing.",
    ),
    "too large": (
        COLUMNS | {"income": [None, 1, 10**400]},
        "'income' of row 2 is a whole number too large for float64 (above 1e308); "
        "pass float('inf'), or None if it is missing.",
    ),
    "two dimensions": (
        COLUMNS | {"income": np.zeros((3, 2))},
        "'income' of row 0 is of type list, but a row has one value there; for "
        "columns of values pass one mapping of sequences.",
    ),
    "spans of time": (
        COLUMNS | {"income": np.array([1, 2, 3], "m8[s]")},
        "'income' of row 0 is np.timedelta64(1,'s'), which is not a number; pass a "
        "DataFrame whose column has the dtype that it had in training.",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors(kind: str) -> None:
    fast = plain(forest().fit(X, y)).fit(X)
    columns, text = ERRORS[kind]
    for method in ("predict", "predict_proba", "apply"):
        with pytest.raises(InvalidInputError) as caught:
            getattr(fast, method)(columns)
        assert str(caught.value) == text


def test_columns_by_name_ignore_other_keys() -> None:
    model = encoded().fit(X_TEXT, y)
    fast = plain(model).fit(X_TEXT)
    used = {name: X_TEXT[name][:5].tolist() for name in ("city", "visits", "age")}
    for more in ({}, {"note": "any"}, {"note": [1, 2]}, {1: None, "height": X}):
        same(fast.predict_proba({**used, **more}), model.predict_proba(X_TEXT[:5]))
    one = {name: values[0] for name, values in used.items()}
    same(fast.predict_proba({**one, "note": [1]}), model.predict_proba(X_TEXT[:1]))
    with pytest.raises(InvalidInputError, match=r"^the mapping has no 'city'\. Give"):
        fast.predict({"visits": [1], "age": [2]})


def test_no_rows(fitted: Any) -> None:
    model, fast, frame = fitted
    for kind in (list, np.asarray):
        columns = {name: kind(frame[name][:0]) for name in frame}
        try:
            wanted = model.predict(frame[:0])
        except ValueError as error:
            with pytest.raises(type(error)) as caught:
                fast.predict(columns)
            assert str(caught.value) == str(error)
        else:
            same(fast.predict(columns), wanted)


def test_a_model_without_names() -> None:
    fast = plain(forest().fit(X.to_numpy(), y)).fit(X.to_numpy())
    with pytest.raises(InvalidInputError, match="trained without feature names"):
        fast.predict(COLUMNS)


@pytest.mark.parametrize("kind", ["forest", "texts by name", "xgboost", "lightgbm"])
def test_without_pandas(kind: str, tmp_path: Any, monkeypatch: Any) -> None:
    """Models and artifacts answer without a frame, however many rows there are."""
    make, frame = MODELS[kind]
    model = make().fit(frame, y)
    fast = plain(model).fit(frame)
    if frame is X_CITY and not any(fast.forest_.category_names):
        pytest.skip("this XGBoost keeps no names of categories")
    wanted = model.predict_proba(frame)
    columns = [shuffled(frame, kind) for kind in (list, np.asarray)]
    skforge.save(fast, tmp_path / "model.skforge")
    loaded = skforge.load(tmp_path / "model.skforge")
    monkeypatch.setitem(sys.modules, "pandas", None)
    for given in columns:
        same(fast.predict_proba(given), wanted)
        same(loaded.predict_proba(given), wanted)


def test_large_batches_do_not_need_a_frame(monkeypatch: Any) -> None:
    """Entries decline more than a million values; kernels answer."""
    model = plain(forest().fit(X, y)).fit(X)
    columns = {name: np.tile(X[name], 1500) for name in NAMES}
    wanted = np.tile(model.predict_proba(X), (1500, 1))
    monkeypatch.setattr(mappings.Mappings, "frame", None)
    same(model.predict_proba(columns), wanted)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e39])
def test_large_batches_with_values_that_the_model_may_refuse(value: float) -> None:
    """They have the model's own answer or error, as from a frame."""
    for model in (GradientBoostingRegressor(n_estimators=4), forest()):
        fast = plain(model.fit(X, y)).fit(X)
        frame = pd.DataFrame({name: np.tile(X[name], 1500) for name in NAMES})
        frame.loc[299_999, "visits"] = value
        columns = {name: frame[name].to_numpy() for name in NAMES}
        try:
            wanted = model.predict(frame)
        except ValueError as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                fast.predict(columns)
        else:
            same(fast.predict(columns), wanted)


def test_numeric_arrays_are_not_read_one_by_one(monkeypatch: Any) -> None:
    fast = plain(forest().fit(X, y)).fit(X)
    columns = {name: X[name].to_numpy() for name in NAMES}
    read: list[int] = []
    plain_check = mappings._is_plain
    monkeypatch.setattr(
        mappings, "_is_plain", lambda v: read.append(len(v)) or plain_check(v)
    )
    same(fast.predict(columns), fast.predict(X))
    same(fast.predict(columns | {"age": X["age"].tolist()}), fast.predict(X))
    assert read == [0, len(X)]


def test_nothing_changes(fitted: Any) -> None:
    _, fast, frame = fitted
    for kind in (list, np.array):
        columns = {name: kind(frame[name]) for name in frame}
        kept = copy.deepcopy(columns)
        fast.predict(columns)
        fast.predict_raw(columns)
        for name in frame:
            assert type(columns[name]) is type(kept[name])
            assert [*columns[name]] == [*kept[name]]
