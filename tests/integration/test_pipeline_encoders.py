"""Pipelines with encoders: texts and numbers as categories, bit by bit."""

from __future__ import annotations

import json
import pickle
import warnings

import numpy as np
import pytest
from sklearn import ensemble
from sklearn import preprocessing as pre
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

import skforge
from skforge import CompiledForest
from skforge.forest.reference import reference_raw
from tests.comparing import assert_alike, is_read, saved
from tests.kinds import CLASSIFIERS, FOREST
from tests.plain import plain

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")

N = 400
ARROW_TEXTS = [
    pd.ArrowDtype(kind)
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))
]


def passengers(seed=0):
    """Return a frame of Titanic's shape: numbers, whole numbers and texts."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": random.normal(40, 12, N),
            "city": random.choice(["Oslo", "Bern", "Rome", "Paris"], N),
            "pclass": random.integers(1, 4, N),
            "fare": random.exponential(30, N),
            "sex": random.choice(["female", "male"], N),
        }
    )
    frame.loc[random.random(N) < 0.1, "age"] = np.nan
    frame.loc[random.random(N) < 0.1, "city"] = None
    return frame


FRAME = passengers()
Y = (
    (FRAME.age.fillna(40) > 38) ^ (FRAME.city == "Oslo") ^ (FRAME.pclass == 2)
).to_numpy(int)
Y3 = Y + (FRAME.fare > 40)

ENCODERS = {
    "one-hot": pre.OneHotEncoder(handle_unknown="ignore"),
    "one-hot-strict": pre.OneHotEncoder(),
    "one-hot-drop": pre.OneHotEncoder(drop="first", handle_unknown="ignore"),
    "one-hot-binary": pre.OneHotEncoder(drop="if_binary", sparse_output=False),
    "one-hot-rare": pre.OneHotEncoder(
        min_frequency=90, handle_unknown="infrequent_if_exist"
    ),
    "one-hot-few": pre.OneHotEncoder(max_categories=2, handle_unknown="warn"),
    "ordinal-strict": pre.OrdinalEncoder(),
    "ordinal": pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-2),
    "ordinal-missing": pre.OrdinalEncoder(
        encoded_missing_value=-1, handle_unknown="use_encoded_value", unknown_value=9
    ),
    "ordinal-rare": pre.OrdinalEncoder(
        min_frequency=90, handle_unknown="use_encoded_value", unknown_value=np.nan
    ),
    "target": pre.TargetEncoder(cv=2, random_state=0),
    "one-hot-narrow": pre.OneHotEncoder(handle_unknown="ignore", dtype=np.float32),
    "one-hot-whole": pre.OneHotEncoder(handle_unknown="ignore", dtype=np.int8),
}


def model_of(encoder, last, *, fill=False):
    labels = clone(ENCODERS[encoder])
    if fill:
        labels = make_pipeline(SimpleImputer(strategy="most_frequent"), labels)
    numbers = make_pipeline(SimpleImputer(strategy="median"), pre.StandardScaler())
    parts = (numbers, ["age", "fare"]), (labels, ["city", "pclass", "sex"])
    return make_pipeline(make_column_transformer(*parts), clone(CLASSIFIERS[last]))


def fitted(model, frame=FRAME, y=Y, compiled=plain):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(frame, y)
        last = model[-1] if hasattr(model, "steps") else model
        if hasattr(last, "n_jobs"):
            last.n_jobs = 1
        return model, compiled(model).fit(frame)


def assert_same(fast, model, *forms):
    ones = [rows[:1] for rows in forms]
    assert_alike(fast, model, *forms, *ones, methods=("predict_proba",))


def strange(frame):
    """Yield frames with unknown categories, missing values and rare numbers."""
    for column, values in {
        "city": ["New", "", "oslo", None, np.nan, pd.NA],
        "sex": ["other", None, np.nan],
        "pclass": [0, 7, -1, 2.5, np.nan, 1e300, np.inf],
        "age": [np.nan, 0.0, -0.0, 1e300, -np.inf],
    }.items():
        for value in values:
            kind = float if column in ("pclass", "age") else object
            if column == "pclass" and not isinstance(value, float):
                kind = int
            new = frame[:6].astype({column: kind})
            new.loc[new.index[0], column] = value
            yield new
        yield new[::-1]


#: A forest refuses the missing values that it would get.
REFUSED = "ordinal-rare", "forest"


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("last", "fill"), [("forest", False), ("xgboost", True)])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_encoder_folds(encoder, last, fill, tmp_path):
    """``exactness/test_pipelines_by_hypothesis.py`` has them before other models."""
    if (encoder, last) == REFUSED:
        pytest.skip("the forest refuses missing values")
    model, fast = fitted(model_of(encoder, last, fill=fill))
    assert is_read(fast, FRAME)
    assert_alike(fast, model, FRAME, passengers(1))
    assert_same(fast, model, *strange(FRAME))
    again = pickle.loads(pickle.dumps(fast))
    assert_same(again, model, FRAME)
    assert is_read(again, FRAME)
    if last != "forest":
        return
    kept = saved(fast, tmp_path)
    for rows in (FRAME, *strange(FRAME)):
        try:
            found = kept.predict_proba(rows)
        except (skforge.exceptions.SourceNeededError, skforge.InvalidInputError):
            assert not is_read(fast, rows)
        else:
            np.testing.assert_array_equal(found, model.predict_proba(rows))


def test_one_row_with_a_missing_category_of_nullable_texts():
    model, fast = fitted(model_of("target", "forest"), FRAME)
    cities = pd.Index(sorted({*FRAME.city.dropna()}), dtype="string")
    rows = FRAME[:20].assign(city=FRAME.city[:20].where(FRAME.index[:20] % 2 > 0))
    rows = rows.astype({"city": pd.CategoricalDtype(cities)})
    assert_alike(fast, model, *(rows[i : i + 1] for i in range(len(rows))))


@pytest.mark.parametrize("last", ["forest", "xgboost"])
def test_three_classes(last):
    model, fast = fitted(model_of("target", last), y=Y3, compiled=CompiledForest)
    assert fast.forest_.n_outputs == 3
    assert is_read(fast, FRAME)
    assert_same(fast, model, FRAME, *strange(FRAME))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("last", ["forest", "xgboost"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_numbers_as_categories_of_arrays(encoder, last):
    random = np.random.default_rng(3)
    numbers = random.integers(0, 6, N), random.choice([-2.5, 0.25, 7.0], N)
    rows = np.column_stack([*numbers, random.integers(0, 3, N) * 1000.0])
    y = ((rows[:, 0] > 2) ^ (rows[:, 1] > 0)).astype(int)
    if (encoder, last) == REFUSED:
        pytest.skip("the forest refuses missing values")
    steps = clone(ENCODERS[encoder]), clone(CLASSIFIERS[last])
    model, fast = fitted(make_pipeline(*steps), rows, y)
    assert is_read(fast, rows)
    assert_same(fast, model, rows)
    other = rows.copy()
    for value in (0, 3, -1, 0.5, 0.25, 7, 2.0000000001, 1e300, np.nan, np.inf):
        for column in range(3):
            other[:] = rows
            other[0, column] = value
            assert_same(fast, model, other[:3])


def test_sparse_zeros_are_missing_to_xgboost():
    """A scaled 0 is not stored in the sparse matrix that XGBoost gets."""
    frame = FRAME.assign(age=FRAME.age.round(), fare=FRAME.fare.round())
    columns = make_column_transformer(
        (pre.MinMaxScaler(), ["fare", "pclass"]),
        (pre.RobustScaler(), ["age"]),
        (pre.OneHotEncoder(handle_unknown="ignore"), ["city", "sex"]),
        sparse_threshold=1.0,
    )
    model, fast = fitted(make_pipeline(columns, clone(CLASSIFIERS["xgboost"])), frame)
    assert model[0].sparse_output_
    assert is_read(fast, frame)
    assert_same(fast, model, frame)
    around = frame.copy()
    for shift in (-1, 0, 1):
        around["age"] = frame.age.median() + shift * 2.0**-40
        around["fare"] = frame.fare.min() + shift * 2.0**-40
        assert_same(fast, model, around)


def test_an_encoder_is_asked_once_for_all_its_columns(monkeypatch):
    calls = [0, 0]

    def counting(which, method):
        def transform(self, X):
            calls[which] += 1
            return method(self, X)

        return transform

    random = np.random.default_rng(0)
    for which, n in enumerate((10, 160)):
        X = random.permutation(np.resize(np.arange(n) * 0.5, N))[:, None]
        one_hot = pre.OneHotEncoder(sparse_output=False)
        model = make_pipeline(
            one_hot, pre.OrdinalEncoder(), ensemble.RandomForestRegressor(3)
        ).fit(X, np.sin(X.ravel()))
        with monkeypatch.context() as patch:
            transform = counting(which, pre.OneHotEncoder.transform)
            patch.setattr(pre.OneHotEncoder, "transform", transform)
            fitted = plain(model).fit(X)
        assert fitted.forest_.n_features == 1  # the steps are folded
        np.testing.assert_array_equal(fitted.predict(X), model.predict(X))
    assert calls[0] == calls[1] > 0


def test_forests_refuse_missing_values_in_sparse_matrices_only():
    """One-hot columns of many texts make the ColumnTransformer's output sparse."""
    columns = ColumnTransformer(
        [("a", pre.OneHotEncoder(handle_unknown="ignore"), ["city", "sex"])],
        remainder="passthrough",
        sparse_threshold=1.0,
    )
    frame = FRAME[["city", "sex", "fare"]]
    missing = frame.copy()
    missing.loc[missing.index[3], "fare"] = np.nan
    model, fast = fitted(make_pipeline(columns, clone(FOREST)), frame)
    assert model[0].sparse_output_
    calibrated = CalibratedClassifierCV(model, cv=2)
    for one, compiled in ((model, fast), fitted(calibrated, frame)):
        assert_same(compiled, one, frame)
        with pytest.raises(ValueError, match="NaN"):
            one.predict(missing)
        assert_same(compiled, one, missing)


UNKNOWN_IS_NAN = {"handle_unknown": "use_encoded_value", "unknown_value": np.nan}
COLUMNS = {
    "the same as a number and as a category": make_pipeline(
        make_column_transformer(
            (pre.StandardScaler(), ["pclass", "fare"]),
            (pre.OneHotEncoder(handle_unknown="ignore"), ["pclass", "city"]),
            (pre.OrdinalEncoder(encoded_missing_value=-1), ["city"]),
        ),
        FOREST,
    ),
    "sets of histogram boosting": make_pipeline(
        make_column_transformer(
            (pre.OrdinalEncoder(**UNKNOWN_IS_NAN), ["city", "pclass", "sex"]),
            remainder="passthrough",
        ),
        ensemble.HistGradientBoostingClassifier(
            max_iter=9, categorical_features=[0, 1, 2]
        ),
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_texts_and_numbers(name):
    model, fast = fitted(COLUMNS[name])
    assert is_read(fast, FRAME)
    assert_same(fast, model, FRAME, passengers(2), *strange(FRAME))


def test_categories_after_numbers():
    """An encoder may read what a scaler and bins make."""
    random = np.random.default_rng(5)
    rows = random.normal(size=(N, 3)) * [1, 1e3, 1e-3]
    bins = pre.KBinsDiscretizer(4, encode="ordinal", strategy="uniform")
    one_hot = pre.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    steps = pre.StandardScaler(), bins, one_hot, pre.MinMaxScaler((-1, 3))
    model, fast = fitted(make_pipeline(*steps, clone(FOREST)), rows, Y)
    assert is_read(fast, rows)
    assert_same(fast, model, rows, random.normal(size=(N, 3)) * [2, 3e3, 1e-3])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("trained", ["str", ARROW_TEXTS[0]], ids=str)
@pytest.mark.parametrize("kind", ["string", *ARROW_TEXTS], ids=str)
def test_pandas_na_in_texts_is_an_unknown_text(kind, trained, tmp_path):
    """To encoders; imputers raise a TypeError. Kernels answer, of artifacts too."""
    full = FRAME.dropna().astype({"city": trained, "sex": trained})
    model, fast = fitted(model_of("one-hot", "forest"), full, Y[full.index])
    states = fast, pickle.loads(pickle.dumps(fast)), saved(fast, tmp_path)
    rows = FRAME.astype({"city": kind, "sex": kind})
    for part in (rows, rows[:9], rows[rows.city.isna()][:1]):
        expected = model.predict_proba(part)
        for ours in states:
            np.testing.assert_array_equal(ours.predict_proba(part), expected)
            assert not ours.counters()["library"]["calls"]


@pytest.mark.parametrize("none", [False, True], ids=["filled", "none-is-a-label"])
def test_exports_list_the_codes_of_texts(none, tmp_path):
    frame = FRAME
    if none:  # objects hold both, and the imputer leaves None to the encoder
        city = FRAME.city.astype(object).where(FRAME.city.notna(), np.nan)
        city[city.isna() & (FRAME.index >= N // 2)] = None
        frame = FRAME.assign(city=city)
        assert {type(one) for one in frame.city} == {str, float, type(None)}
    _, fast = fitted(model_of("one-hot", "forest", fill=True), frame)
    some = frame.iloc[:: N // 40]
    folder = skforge.export(fast, tmp_path / "people")
    facts = json.loads((folder / "people.json").read_text())
    city = facts["model"]["texts"]["1"]
    assert sorted(city["codes"]) == ["Bern", "Oslo", "Paris", "Rome"]
    labels = 4 + any(one is None for one in frame.city)
    assert (city["missing"], city["none"], city["other"]) == ("NaN", 4.0, labels)
    header = (folder / "people.h").read_text()
    assert 'Column 1 ("city") takes codes for strings' in header
    assert f'{city["codes"]["Oslo"]} "Oslo"' in header
    assert f"{city['none']} Python's None" in header
    assert f"{city['other']} other strings" in header
    rows = np.zeros((len(some), 5))
    for place, name in enumerate(some):
        codes = facts["model"]["texts"].get(str(place))
        for i, value in enumerate(some[name]):
            if codes is None:
                rows[i, place] = value
            elif value is None or value != value:
                rows[i, place] = float(codes["none" if value is None else "missing"])
            else:
                rows[i, place] = codes["codes"].get(value, codes["other"])
    np.testing.assert_array_equal(
        reference_raw(fast.forest_, rows), fast.predict_raw(some)
    )


def test_exports_refuse_codes_of_numbers(tmp_path):
    bins = pre.KBinsDiscretizer(
        4, encode="onehot-dense", quantile_method="averaged_inverted_cdf"
    )
    rows = FRAME[["fare"]].to_numpy()
    _, fast = fitted(make_pipeline(bins, clone(FOREST)), rows)
    with pytest.raises(skforge.UnsupportedModelError, match="interval codes"):
        skforge.export(fast, tmp_path / "bins")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keep", [True, False], ids=["live", "stored"])
@pytest.mark.parametrize("encoder", ["one-hot", "one-hot-strict", "target"])
def test_tables_in_parts(encoder, keep):
    """Dask's parts hold texts of pyarrow; missing ones are NaN to the pipeline."""
    frames = pytest.importorskip("dask.dataframe")
    from skforge.distributed import dask

    model, fast = fitted(model_of(encoder, "forest", fill=encoder == "one-hot"))
    for given in (FRAME, FRAME.astype({"city": object, "sex": object})):
        table = frames.from_pandas(given, npartitions=3)
        found = dask.predict(fast, table, method="predict_proba", keep_estimator=keep)
        answer = found.compute(scheduler="sync").to_numpy()
        np.testing.assert_array_equal(answer, model.predict_proba(FRAME))
