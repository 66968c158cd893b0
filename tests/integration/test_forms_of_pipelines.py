"""Pipelines answer rows of all dtypes and containers by their forest, bit for bit."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import compose, ensemble, feature_selection, impute, preprocessing, tree
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import skforge
from skforge.exceptions import SourceNeededError, VerificationError
from skforge.prediction import blocks
from skforge.prediction.predictor import ForestPredictor
from skforge.rows.forms import Form
from tests.compared_calls import called, difference
from tests.comparing import assert_alike, assert_by_kernels, saved
from tests.forms import PASSENGER_NUMBERS, PASSENGERS
from tests.kinds import PASSENGERS as FRAME
from tests.kinds import TARGETS, N
from tests.kinds_of_pipelines import NUMBER_STEPS, OVER, TEXTS
from tests.plain import fit_both, plain

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

random = np.random.default_rng(0)
FORMS = PASSENGERS
NUMBERS = PASSENGER_NUMBERS
Y = TARGETS["travels"]
PROBA = ("predict_proba",)


def fitted(step: str, last: str) -> Any:
    return TEXTS[f"{step} and texts, {last}"].fitted()


def near(fast: Any, form: Callable[[Any], Any]) -> Any:
    """Return rows in a form, whose numbers lie on thresholds, or 1 ulp beside."""
    frame = FRAME.copy()
    forest = fast.forest_
    for place, name in enumerate(NUMBERS[:3]):
        cuts = forest.threshold[forest.feature == place]
        cuts = cuts[np.isfinite(cuts)]
        if len(cuts):
            at = random.choice(cuts, N)
            way = random.choice([-np.inf, np.inf], N)
            at[::2] = np.nextafter(at.astype("f4"), way.astype("f4"))[::2]
            frame[name] = np.clip(at, -6e4, 6e4)
    return form(frame)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMS)
def test_large_rows_are_read_by_blocks(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(blocks, "MOST_VALUES", 256)
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 512)
    model = fitted("standard", "forest")
    fast, rows = plain(model).fit(FRAME), FORMS[name](FRAME)
    for _ in range(2):
        expected = model.predict_proba(rows)
        np.testing.assert_array_equal(fast.predict_proba(rows), expected, strict=True)
    assert not fast.counters()["library"]["calls"]


def test_fit_takes_tables_whose_texts_are_views() -> None:
    """Of such columns, pyarrow takes no rows by their places."""
    model, table = fitted("standard", "forest"), PASSENGERS["table, views"](FRAME)
    assert_by_kernels(plain(model).fit(table), model, table)


def test_a_dictionary_of_pyarrow_with_nulls_goes_to_the_pipeline() -> None:
    """As an array, pyarrow puts the last text where the index is null."""
    model = fitted("median", "forest")
    fast = plain(model).fit(FRAME)
    rows = FORMS["table, all types"](FRAME)
    at = rows.schema.get_field_index("sex")
    values = ["m", None, "f"] * 100
    gaps = rows[:300].set_column(at, "sex", pa.array(values).dictionary_encode())
    assert_alike(fast, model, gaps, gaps[:3], gaps[3:])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["polars", "pyarrow"])
@pytest.mark.parametrize("step", ["standard", "median"])
def test_a_table_s_only_row_is_read_by_values(kind: str, step: str) -> None:
    model = fitted(step, "forest")
    fast, frame = plain(model).fit(FRAME), FRAME.astype({"age": "f4", "kids": "int64"})
    make = pl.from_pandas if kind == "polars" else pa.Table.from_pandas
    first = make(frame[:1])
    rows = [make(frame[i : i + 1]) for i in range(1, 40)]
    for name in frame:
        for value in (None, 0, 1, 2**60, -(2**60), 1e300, "m", "other"):
            odd = first.to_dicts()[0] if kind == "polars" else first.to_pylist()[0]
            try:
                odd = [odd | {name: value}]
                same = pl.DataFrame(odd, first.schema) if kind == "polars" else None
                rows.append(
                    pa.Table.from_pylist(odd, first.schema) if same is None else same
                )
            except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
                continue  # the column cannot hold it
    assert len(rows) > 50
    fast.predict_proba(first)
    for row in rows:
        swapped = row.select([*frame.columns[::-1]])
        assert_alike(fast, model, row, swapped, methods=PROBA)


PANDAS = [name for name in FORMS if "polars" not in name and "table" not in name]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PANDAS)
def test_a_frame_s_only_row_is_read_by_values(name: str) -> None:
    model = fitted("standard", "forest")
    fast = plain(model).fit(FRAME)
    rows = near(fast, FORMS[name])
    only = [rows.iloc[[i]] for i in range(9)]
    first = only[0].astype({"sex": object})
    for column in ("age", "kids", "sex"):
        for value in (None, np.nan, True, 2**60, -1e300, np.inf, "m", "other"):
            odd = first[column].astype(object)
            odd.iloc[0] = value
            only.append(first.assign(**{column: odd.infer_objects()}))
    assert_alike(fast, model, *only, methods=PROBA)


JSON = FRAME.iloc[5].to_dict()
REQUESTS = {
    "null": JSON | {"age": None},
    "nulls": JSON | {"age": None, "fare": None, "kids": None, "alone": None},
    "null text": JSON | {"fare": None, "sex": None},
    "bool": JSON | {"alone": True},
    "bool and null": JSON | {"alone": True, "x": None},
    "whole": JSON | {"age": 41, "x": None},
    "Decimal": JSON | {"age": Decimal("0.1")},
    "large": JSON | {"age": 2**60, "x": None},
    "text": JSON | {"age": "41"},
    "NA": JSON | {"age": pd.NA},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", NUMBER_STEPS)
@pytest.mark.parametrize("stored", [False, True])
def test_a_request_as_a_frame(step: str, stored: bool, tmp_path: Path) -> None:
    """Whichever columns are objects: a file saved before answers the same ones."""
    model = fitted(step, "forest")
    live = plain(model).fit(FORMS["bool"](FRAME))
    fast = saved(live, tmp_path) if stored else live
    for name, request in REQUESTS.items():
        rows = [pd.DataFrame([request]), pd.Series(request).to_frame().T]
        rows.append(pd.concat([*rows, FRAME.astype(object)]))
        for row in rows:
            _, error, said = called(model.predict_proba, row)
            left = bool(error or said) or name in ("text", "large")  # to the pipeline
            for _ in range(2):
                before = fast.counters()["library"]["calls"]
                if left and stored:
                    with pytest.raises(SourceNeededError):
                        fast.predict_proba(row)
                else:
                    assert not difference(fast.predict_proba, model.predict_proba, row)
            assert left or fast.counters()["library"]["calls"] == before


@pytest.mark.parametrize(
    "step",
    [
        impute.SimpleImputer(strategy="most_frequent"),
        impute.SimpleImputer(strategy="constant", fill_value=-1.0),
        preprocessing.OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=-1
        ),
        preprocessing.TargetEncoder(cv=2),
    ],
)
def test_none_is_not_nan_to_some_steps(step: Any) -> None:
    """They compare objects by value, so that None is not the missing number."""
    whole = FRAME[["kids", "alone"]].where(FRAME.x > -1)
    model = make_pipeline(step, ensemble.RandomForestClassifier(5, random_state=0))
    fast = plain(model.fit(whole, Y)).fit(whole)
    rows = pd.DataFrame({"kids": [None, np.nan, 2, 1.0], "alone": [0, None, True, 7]})
    rows = rows.astype(object).where(~rows.isna(), rows.astype(object))
    for row in (rows, rows[:1], rows[1:2], rows[2:], rows[3:]):
        assert_alike(fast, model, row, row.to_numpy(object))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["polars", "pyarrow", "pandas"])
def test_columns_that_no_step_reads_do_not_matter(kind: str) -> None:
    model = fitted("median", "forest")
    fast = plain(model).fit(FRAME)
    day = pa.scalar(0, pa.date32())
    table = pa.Table.from_pandas(FRAME, preserve_index=False)
    others = {
        "a day": pa.array([day] * N),
        "a time": pa.array([1] * N, pa.timestamp("ns")),
        "a struct": pa.array([{"x": 1, "y": "z"}] * N),
        "a list": pa.array([[1, 2]] * N),
        "bytes": pa.array([b"x"] * N),
        "nothing": pa.nulls(N),
        "decimal": pa.array([Decimal("1.5")] * N),
    }
    for at, (name, column) in enumerate(others.items()):
        table = table.add_column(at, name, column)
    rows = pl.from_arrow(table) if kind == "polars" else table
    if kind == "pandas":
        rows = table.to_pandas(types_mapper=pd.ArrowDtype)
    assert_by_kernels(fast, model, *[rows, rows[:1], rows[5:6]] * 2)


@pytest.mark.parametrize("kind", ["array", "list"])
def test_arrays_and_lists_with_texts(kind: str) -> None:
    columns = compose.make_column_transformer(
        (preprocessing.StandardScaler(), [0, 1]),
        (preprocessing.OneHotEncoder(), [2]),
    )
    objects = FRAME[["age", "fare", "sex"]].to_numpy(object)
    model, fast = fit_both(make_pipeline(columns, clone(OVER["forest"])), objects, Y)
    rows = objects if kind == "array" else objects.tolist()
    expected = model.predict_proba(rows)
    np.testing.assert_array_equal(fast.predict_proba(rows), expected)
    model.predict_proba = None
    np.testing.assert_array_equal(fast.predict_proba(rows), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMS)
def test_fit_of_a_loaded_pipeline_takes_what_its_predict_takes(name, tmp_path):
    model = fitted("median", "forest")
    fast, rows = plain(model).fit(FRAME), FORMS[name](FRAME)
    expected = fast.predict_proba(rows)
    for again in (saved(fast, tmp_path), fast.drop_estimator()):
        for tuning in ("off", "heuristic"):
            again.set_params(tuning=tuning).fit(rows)
            found = again.predict_proba(rows)
            np.testing.assert_array_equal(found, expected, strict=True)
        assert again._compiled().checked[0] == 256
        assert not again.counters()["library"]["calls"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["threshold of texts", "calibrated texts", "votes of texts"]
)
def test_fit_of_a_loaded_wrapper(name: str) -> None:
    model, rows = TEXTS[name].fitted(), FORMS["mixed"](FRAME)
    fast = plain(model).fit(FRAME)
    fast.predict_proba(rows)
    assert_alike(fast.drop_estimator().fit(rows), model, rows, FRAME)


def test_fit_of_a_loaded_pipeline_compares_the_forest_of_the_form(monkeypatch):
    fast = plain(fitted("standard", "forest")).fit(FRAME)
    rows = FORMS["float32"](FRAME)
    fast.predict(rows)
    again = fast.drop_estimator()
    answer = ForestPredictor.answer

    def wrong(self: Any, method: str, X: Any, *how: Any) -> Any:
        return answer(self, method, X, *how) + 1

    monkeypatch.setattr(ForestPredictor, "answer", wrong)
    with pytest.raises(VerificationError, match="row 0 of X: predict_raw gives"):
        again.fit(rows)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_step_that_fails_on_some_numbers_answers_the_others(dtype: str) -> None:
    """A target encoder of fractions looks numbers up beyond its table (1.9)."""
    halves = pd.DataFrame({"x": np.round(2 * FRAME.x) / 2})
    encoder = preprocessing.TargetEncoder(cv=3, smooth=0.0)
    model = make_pipeline(encoder, clone(OVER["forest"])).fit(halves, Y)
    for form in (pd.DataFrame, pl.DataFrame):
        rows = form({"x": np.array([1, 0, 1], dtype)})
        assert_alike(plain(model).fit(halves), model, rows)


@pytest.mark.parametrize("dtype", ["int64", "Int64", "float32"])
def test_numbers_in_a_column_of_texts_are_the_encoder_s_error(dtype: str) -> None:
    model = make_pipeline(
        compose.make_column_transformer((preprocessing.OneHotEncoder(), ["sex"])),
        clone(OVER["forest"]),
    ).fit(FRAME, Y)
    rows = FRAME.assign(sex=pd.Series(1, FRAME.index, dtype))
    with pytest.raises((TypeError, ValueError)):
        model.predict(rows)
    assert_alike(plain(model).fit(FRAME), model, rows)


def test_categories_in_a_column_of_numbers_go_to_the_pipeline() -> None:
    """A pyarrow table has them as a dictionary, which the forest does not read."""
    filled = impute.SimpleImputer(strategy="most_frequent")
    encoded = make_pipeline(filled, preprocessing.OneHotEncoder())
    columns = compose.make_column_transformer((encoded, ["sex", "kids"]))
    frame = FRAME.assign(kids=FRAME.kids.astype("category"))
    model, fast = fit_both(make_pipeline(columns, clone(OVER["forest"])), frame, Y)
    rows = pa.Table.from_pandas(frame[:2], preserve_index=False)
    assert pa.types.is_dictionary(rows.schema.field("kids").type)
    assert_alike(fast, model, rows, rows)


def test_small_integers_meet_the_thresholds_near_their_ends() -> None:
    wide = pd.DataFrame({"x": np.linspace(-300, 300, N)})
    selector = feature_selection.VarianceThreshold()  # takes numbers as they are
    model = make_pipeline(selector, tree.DecisionTreeRegressor()).fit(wide, wide.x)
    fast = plain(model).fit(wide)
    for dtype in ("int8", "uint8", "int16"):
        values = np.arange(-128, 128) if dtype != "uint8" else np.arange(256)
        column = values.astype(dtype)
        tables = pa.table({"x": column}), pl.DataFrame({"x": column})
        assert_by_kernels(fast, model, *tables)


def test_float32_of_tables_is_what_the_first_step_makes_of_it() -> None:
    """A scaler takes polars' float32 as float64: so these values are known."""
    random = np.random.default_rng(3)
    halves = pd.DataFrame({"a": random.integers(-3, 4, N) / 2})
    encoder = preprocessing.OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-1
    )
    scaler = preprocessing.StandardScaler(with_mean=False)
    model = make_pipeline(scaler, encoder, tree.DecisionTreeRegressor())
    fast = plain(model.fit(halves, halves.a)).fit(halves)
    rows = halves.astype(np.float32)
    assert_alike(fast, model, rows, pl.from_pandas(rows), pa.Table.from_pandas(rows))


def dated(unit: str) -> Any:
    days = np.random.default_rng(1).integers(-4000, 4000, N)
    dates = pd.Timestamp("2024-01-01") + pd.to_timedelta(days, unit="D")
    return FRAME.assign(when=dates.astype(f"M8[{unit}]"), end=dates[::-1])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(
    "step",
    [
        preprocessing.StandardScaler(),
        preprocessing.KBinsDiscretizer(4, encode="ordinal"),
        make_pipeline(impute.SimpleImputer(), preprocessing.MinMaxScaler()),
        "passthrough",
    ],
)
def test_dates_are_whole_numbers_to_steps_that_take_them(step, unit, tmp_path):
    frame = dated(unit)
    parts = [(step, ["when"])]
    if step != "passthrough":  # which scikit-learn cannot join to numbers
        parts += [(preprocessing.StandardScaler(), ["age"])]
    forest = ensemble.RandomForestRegressor(5, random_state=0)
    steps = compose.make_column_transformer(*parts)
    model = make_pipeline(steps, forest).fit(frame, FRAME.age + frame.end.dt.year)
    fast = plain(model).fit(frame)
    file = saved(fast, tmp_path)
    for compiled in (fast, pickle.loads(pickle.dumps(fast)), file):
        unread = frame.assign(end=frame.end.where(FRAME.x > 0))
        forms = frame, frame[3:4], frame[["x", "when", "age"]][:9], unread
        assert_by_kernels(compiled, model, *forms)
    for odd in (
        frame.assign(when=frame.when.where(FRAME.x > 0)),  # NaT: a number, or missing
        frame.assign(when=frame.when.astype("M8[ns]") + pd.Timedelta(1)),
        frame.assign(when=frame.when.dt.tz_localize("UTC")),
        frame.assign(when=frame.when.astype(str)),
    ):
        before = fast.counters()["library"]["calls"]
        assert not difference(fast.predict, model.predict, odd)
        assert fast.counters()["library"]["calls"] in (before, before + 1)
        with pytest.raises(
            (SourceNeededError, skforge.InvalidInputError), match="when"
        ):
            file.predict(odd)


def test_dates_of_several_units_in_one_step():
    frame = dated("s")  # the scaler gets both as microseconds or nanoseconds
    scaler = preprocessing.StandardScaler()
    steps = compose.make_column_transformer((scaler, ["when", "end"]))
    model = make_pipeline(steps, tree.DecisionTreeRegressor(max_depth=5))
    model.fit(frame, FRAME.age + frame.end.dt.year)
    with pytest.warns(skforge.PerformanceWarning, match="at its speed"):
        fast = plain(model).fit(frame)
    assert_alike(fast, model, frame)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_forms_of_frames_that_were_seen_are_not_made_again(dtype, monkeypatch):
    X = pd.DataFrame(np.arange(400.0).reshape(100, 4) % 7, columns=list("abcd"))
    model = make_pipeline(
        preprocessing.StandardScaler(),
        ensemble.RandomForestClassifier(5, max_depth=3, random_state=0),
    )
    fast = plain(model.fit(X, X["a"] > 3)).fit(X)
    rows = X[:1].astype(dtype)
    expected = fast.predict_proba(rows)
    made = []
    monkeypatch.setattr(Form, "__post_init__", made.append)
    for n in (1, 1, 40):
        found = fast.predict_proba(X[:n].astype(dtype))
        assert found[:1].tobytes() == expected.tobytes()
    assert made == []  # the texts of a form's types take 30 us


@pytest.mark.parametrize("dtypes", [{"b": "f4", "c": "?"}, {"a": "i8", "b": "f4"}])
def test_booleans_beside_float32_stay_narrow(dtypes: dict[str, str]) -> None:
    """scikit-learn makes float32 of both, and scales in it; others are float64."""
    rows = pd.DataFrame({name: random.normal(size=N) for name in "abc"})
    rows["c"] = np.arange(N) % 2
    scaler = preprocessing.StandardScaler()
    steps = compose.ColumnTransformer(
        [("narrow", scaler, ["c", "b"])], remainder="passthrough"
    )
    forest = ensemble.RandomForestClassifier(20, random_state=0)
    model, fast = fit_both(make_pipeline(steps, forest), rows, rows.b > rows.a)
    tests = [one.tree_ for one in model[1].estimators_]
    cuts = np.concatenate([one.threshold[one.feature == 1] for one in tests])
    scaled = steps.named_transformers_["narrow"]
    values = np.unique(cuts * scaled.scale_[1] + scaled.mean_[1]).astype("f4")
    values = values[np.abs(values) < 9]
    beside = [np.nextafter(values, np.float32(end)) for end in (-9, 9)]
    many = pd.DataFrame({"a": 0.0, "b": np.concatenate([values, *beside]), "c": 1.0})
    many["c"] = np.arange(len(many)) % 2
    many = many.astype(dtypes)
    assert_by_kernels(fast, model, many)


def test_leaves_are_found_by_the_forest_of_the_rows_form() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4))
    trees = ensemble.RandomForestRegressor(5, random_state=0)
    model = make_pipeline(preprocessing.StandardScaler(), trees).fit(rows, rows[:, 0])
    fast, narrow = plain(model).fit(rows), rows.astype(np.float32)
    leaves = model[-1].apply(model[:-1].transform(narrow))
    np.testing.assert_array_equal(fast.apply(narrow), leaves, strict=True)
    assert fast.counters()["library"]["rows"] == 0
