"""``fit`` says once which of its rows are left to the model, and what mends that."""

from __future__ import annotations

import decimal
import html
import pickle
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.sparse import csr_matrix
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import skforge
from skforge import CompiledForest, PerformanceWarning, Schedule
from skforge.sources.stored_model.declined import conversion
from tests.plain import plain

RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "fare": RANDOM.normal(size=200).round(2),
        "age": RANDOM.integers(1, 80, 200).astype(float),
        "city": RANDOM.choice(["Oslo", "Rome"], 200),
    }
)
Y = (FRAME["fare"] > 0).to_numpy().astype(int)


def forest():
    return RandomForestClassifier(3, max_depth=4, random_state=0)


COLUMNS = make_column_transformer(
    (StandardScaler(), ["fare", "age"]), (OneHotEncoder(), ["city"])
)
MIXED = make_pipeline(COLUMNS, forest()).fit(FRAME, Y)
NUMBERS = FRAME[["fare", "age"]].to_numpy()
SCALED = make_pipeline(StandardScaler(with_mean=False), forest()).fit(NUMBERS, Y)
START = "Rows like those given to fit are answered by the Pipeline itself, at its speed"


def fitted(model, X):
    """Return the compiled model, and what fit says of its rows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast = plain(model).fit(X)
    texts = [str(w.message) for w in caught if w.category is PerformanceWarning]
    assert all(w.filename == __file__ for w in caught if str(w.message) in texts)
    return fast, texts


def changed(**columns):
    return FRAME.assign(**{name: make(FRAME[name]) for name, make in columns.items()})


def decimals(column):
    return column.map(lambda value: decimal.Decimal(str(value)))


def fractions(column):
    """Return numbers that scikit-learn reads and the kernels do not."""
    return column.map(lambda value: Fraction(str(value)))


def as_float(column):
    return column.astype("float64")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("X", "what", "cast", "mend"),
    [
        (
            changed(fare=lambda s: s.astype(pd.SparseDtype("float64", 0.0))),
            "column 'fare' is Sparse[float64, 0.0]",
            "X.astype({'fare': 'float64'})",
            lambda X: X.assign(fare=as_float(X["fare"])),
        ),
        (
            changed(fare=fractions),
            "column 'fare' is object of Fraction",
            "X.astype({'fare': 'float64'})",
            lambda X: X.assign(fare=as_float(X["fare"])),
        ),
        (
            changed(fare=fractions, age=lambda s: s.astype("category")),
            "columns 'fare' is object of Fraction, 'age' is category",
            "X.astype({'fare': 'float64', 'age': 'float64'})",
            lambda X: X.assign(fare=as_float(X["fare"]), age=as_float(X["age"])),
        ),
        (
            # float32 is read in a form of its own, and not to blame
            changed(fare=fractions, age=lambda s: s.astype("float32")),
            "column 'fare' is object of Fraction",
            "X.astype({'fare': 'float64'})",
            lambda X: X.assign(fare=as_float(X["fare"])),
        ),
        (
            pl.from_pandas(FRAME).with_columns(pl.col("fare").cast(pl.Decimal(10, 2))),
            "column 'fare' is Decimal(precision=10, scale=2)",
            "X.cast({'fare': float})",
            lambda X: X.with_columns(X["fare"].cast(float)),
        ),
        (
            pa.Table.from_pandas(changed(fare=decimals)),
            "column 'fare' is decimal128(3, 2)",
            "X['fare'].cast('float64')",
            lambda X: X.set_column(0, "fare", X["fare"].cast("float64")),
        ),
    ],
    ids=["sparse", "fraction", "two", "beside float32", "polars", "pyarrow"],
)
def test_columns_are_named_with_their_mend(X, what, cast, mend):
    fast, (text,) = fitted(MIXED, X)
    assert text == f"{START}: {what}. Convert with {cast}."
    before = fast.counters()
    assert np.array_equal(fast.predict_proba(mend(X)), MIXED.predict_proba(X))
    assert fast.counters()["library"] == before["library"]


@pytest.mark.parametrize(
    ("X", "what", "call"),
    [
        (csr_matrix(NUMBERS), "a csr_matrix of float64", "X.toarray()"),
        (
            NUMBERS.astype(np.longdouble),
            f"an array of {np.dtype(np.longdouble)}",
            "numpy.asarray(X, 'float64')",
        ),
    ],
    ids=["sparse", "long double"],
)
def test_whole_rows_are_named_with_their_mend(X, what, call):
    if getattr(X, "dtype", None) == np.float64 and not hasattr(X, "toarray"):
        pytest.skip("long double is float64 here")
    _, texts = fitted(SCALED, X)
    assert texts == [f"{START}: X is {what}. Convert with {call}."]


def test_one_row_is_enough():
    rows = np.arange(400).reshape(200, 2)
    rows[77, 1] = 2**60 + 1  # float64 rounds it
    _, texts = fitted(SCALED, rows)
    call = "numpy.asarray(X, 'float64')"
    assert texts == [f"{START}: X is an array of int64. Convert with {call}."]


def test_rows_that_are_answered_alone_are_counted():
    encoder = OneHotEncoder(handle_unknown="warn")
    columns = make_column_transformer((encoder, ["city"]), remainder="passthrough")
    rows = FRAME.copy()
    rows.loc[5, "city"] = "Bern"  # the pipeline warns about it
    _, (text,) = fitted(make_pipeline(columns, forest()).fit(FRAME, Y), rows)
    assert text == (
        f"{START}; no conversion that was tried helps. By themselves, 15 of 16 rows "
        "are answered by kernels."
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "X",
    [
        FRAME,
        changed(fare=lambda s: s.astype("float32")),
        changed(fare=lambda s: s.astype("Float64")),
        changed(age=lambda s: s.astype("Int64"), city=lambda s: s.astype("category")),
        changed(age=lambda s: s > 30),
        changed(age=lambda s: s.astype(int), city=lambda s: s.astype("string")),
        pl.from_pandas(FRAME),
        pa.Table.from_pandas(FRAME),
        FRAME[:0],
    ],
    ids=[
        *("float64", "float32", "Float64", "Int64", "bool"),
        *("int", "polars", "pyarrow", "none"),
    ],
)
def test_rows_that_compiled_code_reads_give_no_warning(X):
    assert fitted(MIXED, X)[1] == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool", "float16"])
def test_arrays_give_no_warning(dtype):
    for model in (SCALED, forest().fit(NUMBERS, Y)):
        assert fitted(model, NUMBERS.astype(dtype))[1] == []


def test_sparse_rows_of_a_forest_give_no_warning():
    assert fitted(forest().fit(NUMBERS, Y), csr_matrix(NUMBERS))[1] == []


# ------------------------------------------------------------------ what is shown


def test_no_estimate_is_shown_of_kernels_that_the_rows_do_not_reach(monkeypatch):
    monkeypatch.setattr("skforge.display.notebook.SECONDS", 0.02)
    rows = changed(fare=fractions)
    fast, (text,) = fitted(MIXED, rows)
    for one in (fast, pickle.loads(pickle.dumps(fast))):
        summary = one.summary()
        facts = dict(summary.facts)
        assert summary.times == () and summary.table is None
        assert facts["answers"] == text
        assert facts["time"] == "not measured; summary(X) measures calls"
        card = one._repr_html_()
        assert html.escape(text) in card and "estimated" not in card
        assert one.inspect("pipeline").splitlines()[-1] == text
    measured = fast.summary(rows, batch_sizes=[2])
    assert [time.route for time in measured.times] == ["library"]
    assert measured.table.rows[0][4] == "library"
    (time,) = fast.summary(FRAME, batch_sizes=[2]).times
    assert time.route in ("entry", "kernel")


def test_compiled_rows_are_said_to_be():
    steps = make_pipeline(PCA(2, random_state=0), StandardScaler(), forest())
    text = "Rows like those given to fit are answered by compiled code"
    for model, after in (steps, " after 1 step in their library"), (SCALED, ""):
        fast, _ = fitted(model.fit(NUMBERS, Y), NUMBERS)
        assert fast.inspect("pipeline").splitlines()[-1] == f"{text}{after}."
        origins = {time.origin for time in fast.summary().times}
        assert origins == (set() if after else {"estimated"})  # of kernels alone
        (time,) = fast.summary(NUMBERS, batch_sizes=[2]).times
        assert (time.route == "steps") == bool(after)


def twice(rows):
    return 2 * rows


def test_a_step_in_its_library_is_named():
    steps = [PCA(2, random_state=0), FunctionTransformer(twice), StandardScaler()]
    model = make_pipeline(*steps, forest()).fit(NUMBERS, Y)
    fast, said = fitted(model, NUMBERS)
    assert said == [
        "The step 'pca' runs in scikit-learn in each call, before the compiled code: "
        "PCA is not one of the transformers that can be folded; so do 1 more, see "
        "inspect('pipeline')."
    ]
    texts = FRAME["city"] + " " + FRAME["age"].astype(str)
    words = make_pipeline(TfidfVectorizer(), forest()).fit(texts, Y)
    (text,) = fitted(words, texts)[1]
    assert text.startswith("The step 'tfidfvectorizer' runs in scikit-learn in each")
    fast.predict(NUMBERS[:3])
    fast.apply(NUMBERS)
    assert fast.counters()["steps"] == {"calls": 2, "rows": 3 + len(NUMBERS)}
    assert not fitted(make_pipeline("passthrough", forest()).fit(NUMBERS, Y), NUMBERS)[
        1
    ]


def test_a_loaded_model_says_nothing_of_rows_it_has_not_seen(tmp_path):
    fast, _ = fitted(SCALED, NUMBERS)
    skforge.save(fast, tmp_path / "model.skforge")
    loaded = skforge.load(tmp_path / "model.skforge")
    assert "answers" not in dict(loaded.summary().facts)
    assert loaded.fit(NUMBERS).summary().rows.startswith("Rows like those")


# ------------------------------------------------------------------ the log


def logged(caplog, model, X, **how):
    caplog.clear()
    with caplog.at_level("INFO", "skforge"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = CompiledForest(model, tuning="off", **how).fit(X)
    assert {record.levelname for record in caplog.records} == {"INFO"}
    return fast, [one for one in caplog.messages if one.startswith("fit: ")]


def test_fit_logs_what_it_chose_and_why(caplog):
    steps = make_pipeline(PCA(2, random_state=0), StandardScaler(), forest())
    fast, lines = logged(caplog, steps.fit(NUMBERS, Y), NUMBERS, schedule=Schedule())
    assert lines == [
        f"fit: Pipeline, 3 trees, for {fast.target_}",
        "fit: step pca runs in scikit-learn: PCA is not one of the transformers that "
        "can be folded",
        "fit: step standardscaler folded into the trees",
        "fit: step randomforestclassifier compiled",
        "fit: 1 and more rows run Schedule(), from the schedule parameter",
        "fit: Rows like those given to fit are answered by compiled code after 1 step "
        "in their library.",
    ]
    fast, lines = logged(caplog, MIXED, changed(fare=fractions))
    assert lines[-1].startswith(f"fit: {START}: column 'fare' is object of Fraction.")
    schedules = [one for one in lines if " rows run " in one]
    assert len(schedules) == len(fast.schedule_)
    assert all(
        one.endswith("from the defaults, as nothing was searched") for one in schedules
    )


def test_calls_log_entries_and_new_forms_of_rows(caplog):
    fast, _ = logged(caplog, MIXED, FRAME, schedule=Schedule())
    assert "predict has a compiled entry" in caplog.messages
    scaled, _ = logged(caplog, SCALED, NUMBERS, schedule=Schedule())
    caplog.clear()
    with caplog.at_level("INFO", "skforge"):
        for _ in range(3):
            fast.predict(changed(age=lambda s: s > 30))
            scaled.predict(NUMBERS.astype("float32"))
    forms = [one for one in caplog.messages if one.startswith("rows of the form ")]
    start = "rows of the form"
    assert forms == [
        f"{start} pandas: float64, bool, None are answered by the kernels of float64 "
        "rows",
        f"{start} ndarray: float32 are answered by kernels of their own",
    ]


def test_texts_are_converted_where_that_helps():
    """Each dtype gets a type of its own, and those that are not to blame stay."""
    frames = {
        "pandas": changed(age=decimals, city=lambda s: s.astype("category")),
        "polars": pl.from_pandas(FRAME).with_columns(
            pl.col("age").cast(pl.Decimal(10, 2)), pl.col("city").cast(pl.Categorical)
        ),
    }
    calls = {
        "pandas": "X.astype({'age': 'float64', 'city': 'str'})",
        "polars": "X.cast({'age': float, 'city': str})",
    }
    wanted = {"pandas": ["float64", "float64", "str"], "polars": [*"FFS"]}
    for kind, X in frames.items():

        def helps(rows, kind=kind):
            dtypes = [*map(str, rows.dtypes)]
            dtypes = dtypes if kind == "pandas" else [name[0] for name in dtypes]
            return dtypes == wanted[kind]

        assert conversion(X, helps).endswith(f". Convert with {calls[kind]}.")
        assert conversion(X, lambda rows: False) == ""
