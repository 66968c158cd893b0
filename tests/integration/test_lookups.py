"""Encoders of category_encoders, and imputers of texts whose marker is None or NA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import skforge
from tests.comparing import is_read, saved
from tests.plain import fit_both, plain

pd = pytest.importorskip("pandas")

N = 300
rng = np.random.default_rng(0)
FULL = pd.DataFrame(
    {
        "age": rng.normal(40, 12, N),
        "city": rng.choice(["Oslo", "Bern", "Rome", "Paris"], N),
        "pclass": rng.integers(1, 5, N),
        "sex": rng.choice(["f", "m"], N),
    }
)
Y = ((FULL.age > 38) ^ (FULL.city == "Oslo") ^ (FULL.pclass == 2)).to_numpy(int)
GAPS = FULL.assign(city=FULL.city.where(rng.random(N) > 0.1, np.nan))


def of_objects(values: list[Any]) -> Any:
    return GAPS.iloc[: len(values)].assign(city=pd.Series(values, dtype=object))


NONE = of_objects([None if city != city else city for city in GAPS.city])
FORMS = {
    "as they are": GAPS,
    "objects": NONE.assign(sex=NONE.sex.astype(object)),
    "categories": GAPS.astype({"city": "category", "sex": "category"}),
    "nullable": GAPS.astype({"city": "string", "sex": "string"}),
    "unknown": of_objects(["Oslo", "", "oslo", "Nowhere", "Bern"]),
    "gaps": of_objects(["Oslo", None, np.nan, pd.NA, "Bern"]),
    "NaN": of_objects([np.nan]),
    "None": of_objects([None]),
    "NA": of_objects([pd.NA]),
    "one row": GAPS[:1],
    "other numbers": GAPS.assign(pclass=GAPS.pclass - 2),
    "other order": GAPS[["sex", "pclass", "city", "age"]],
    "one more": GAPS.assign(more=1.0),
    "array": NONE.to_numpy(object),
}


def answer(model: Any, rows: Any) -> Any:
    try:
        found = model.predict_proba(rows)
    except skforge.exceptions.SourceNeededError:
        return None
    except Exception as error:  # noqa: BLE001 - as the library's
        return type(error).__name__
    return found.dtype.str, found.shape, found.tobytes()


def check(model: Any, frame: Any, folder: Any, read: tuple[str, ...] = ()) -> None:
    fast = plain(model.fit(frame, Y)).fit(frame)
    for name, rows in FORMS.items():
        assert answer(fast, rows) == answer(model, rows), name
    assert all(is_read(fast, rows) for rows in (frame, *map(FORMS.get, read)))
    kept = saved(fast, folder)
    for name, rows in FORMS.items():
        found = answer(kept, rows)
        assert found in (answer(model, rows), None, "InvalidInputError"), name
    assert all(answer(kept, FORMS[name]) is not None for name in read)


def boosting() -> Any:
    return HistGradientBoostingClassifier(max_iter=5, max_leaf_nodes=8, random_state=0)


ENCODERS = {
    "Target": {},
    "Count": {},
    "Ordinal": {},
    "OneHot": {},
    "LeaveOneOut": {},
    "JamesStein": {},
    "CatBoost": {},
    "MEstimate": {},
    "WOE": {},
    "Quantile": {},
    "Binary": {},
    "BaseN": {"base": 3},
}
KNOWN = "as they are", "objects", "categories", "unknown", "one row"


def encoder(name: str, **how: Any) -> Any:
    library = pytest.importorskip("category_encoders")
    return getattr(library, f"{name}Encoder")(**how)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_folds(name: str, first: bool, tmp_path: Any) -> None:
    """As the first step it passes columns on; in a ColumnTransformer it has its own."""
    step = encoder(name, **ENCODERS[name])
    if not first:
        scaled = make_pipeline(step, StandardScaler())
        columns = (scaled, ["city", "sex"]), ("passthrough", ["age", "pclass"])
        step = make_column_transformer(*columns)
    # beside None, CatBoostEncoder answers NaN otherwise, so it is asked itself
    read = KNOWN[:1] + KNOWN[2 if name == "CatBoost" else 1 :]
    check(make_pipeline(step, boosting()), GAPS, tmp_path, read)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "how",
    [
        {"handle_unknown": "error"},
        {"handle_unknown": "return_nan"},
        {"handle_missing": "return_nan"},
        {"handle_missing": "error"},
        {"min_group_size": 80},
        {"cols": ["city", "sex", "pclass"]},
        {"return_df": False},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "name", ["Target", "Count", "Ordinal", "OneHot", "LeaveOneOut"]
)
def test_settings_of_encoders(name: str, how: dict[str, Any], tmp_path: Any) -> None:
    frame = FULL if "error" in how.values() else GAPS
    model = make_pipeline(encoder(name, **how), boosting())
    check(model.fit(frame, Y), frame, tmp_path)


def test_encoders_of_arrays_and_of_columns_without_change(tmp_path: Any) -> None:
    model = make_pipeline(encoder("Target"), boosting()).fit(NONE.to_numpy(object), Y)
    fast = plain(model).fit(NONE.to_numpy(object))
    for name, rows in FORMS.items():
        assert answer(fast, rows) == answer(model, rows), name
    model = make_pipeline(encoder("OneHot", drop_invariant=True), boosting())
    check(model, GAPS.assign(sex="f"), tmp_path)


@pytest.mark.parametrize(
    ("name", "how", "why"),
    [
        ("Target", {"composite_cols": [("city", "sex")]}, "has composite_cols"),
        (
            "Ordinal",
            {"handle_unknown": lambda value, known: 9},
            "calls a function for other categories",
        ),
        (
            "CatBoost",
            {"handle_unknown": "return_nan"},
            "has handle_unknown='return_nan', which keeps dtypes",
        ),
        (
            "Count",
            {"handle_unknown": {"city": "error", "sex": "value"}},
            "refuses categories of some columns alone",
        ),
    ],
)
def test_what_does_not_fold_is_told(name: str, how: Any, why: str) -> None:
    model, fast = fit_both(make_pipeline(encoder(name, **how), boosting()), FULL, Y)
    assert f"{name}Encoder {why}" in fast.inspect("pipeline")
    assert answer(fast, FULL) == answer(model, FULL)


@pytest.mark.parametrize("strategy", ["most_frequent", "constant"])
@pytest.mark.parametrize("marker", [None, pd.NA], ids=str)
def test_texts_are_filled_where_none_or_na_is(
    marker: Any, strategy: str, tmp_path: Any
) -> None:
    how = {"fill_value": "?"} if strategy == "constant" else {}
    filled = SimpleImputer(missing_values=marker, strategy=strategy, **how)
    labels = make_pipeline(filled, OneHotEncoder(handle_unknown="ignore"))
    columns = (labels, ["city", "sex"]), ("passthrough", ["age", "pclass"])
    model = make_pipeline(make_column_transformer(*columns), boosting())
    known = () if marker is None else ("as they are", "nullable", "NA", "gaps")
    check(model, NONE, tmp_path, ("objects", "None", "unknown", *known))


def test_an_indicator_of_none_and_an_imputer_of_nullable_numbers(tmp_path: Any) -> None:
    marks = MissingIndicator(missing_values=None, features="all")
    columns = (marks, ["city"]), ("passthrough", ["age", "pclass"])
    model = make_pipeline(make_column_transformer(*columns), boosting())
    check(model, NONE, tmp_path, ("objects", "None", "unknown"))
    filled = SimpleImputer(missing_values=pd.NA, strategy="median")
    columns = (filled, ["age", "pclass"]), (OneHotEncoder(), ["sex"])
    model = make_pipeline(make_column_transformer(*columns), boosting())
    check(model, GAPS.assign(pclass=GAPS.pclass.astype("Int64")), tmp_path)


@pytest.mark.parametrize("name", ["Count", "Target", "Ordinal"])
def test_true_is_no_one_to_a_look_up(monkeypatch, name):
    monkeypatch.setenv("SKFORGE_CHECK", "off")  # the reader itself is to decline
    frame = pd.DataFrame({"a": [0, 0, 0, 1, 1, 2] * 20})
    encoders = pytest.importorskip("category_encoders")
    encoder = getattr(encoders, f"{name}Encoder")(cols=["a"])
    model = make_pipeline(encoder, DecisionTreeClassifier()).fit(frame, frame.a == 1)
    fast = plain(model).fit(frame)
    for dtype in (object, bool):
        rows = pd.DataFrame({"a": pd.Series([True, False], dtype=dtype)})
        assert np.array_equal(fast.predict_proba(rows), model.predict_proba(rows))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["LeaveOneOut", "CatBoost"])
def test_na_among_texts_of_arrow_is_no_unknown_text(name: str, first: bool) -> None:
    """Encoders make NA of it, which a ColumnTransformer refuses."""
    texts = GAPS.astype({"city": object, "sex": object})
    step = encoder(name, cols=["city", "sex"])
    if not first:
        columns = (step, ["city", "sex"]), ("passthrough", ["age", "pclass"])
        step = make_column_transformer(*columns)
    model = make_pipeline(step, DecisionTreeClassifier(random_state=0)).fit(texts, Y)
    fast = plain(model).fit(texts)
    assert is_read(fast, texts.dropna())
    for dtype in ("string[pyarrow]", "string[python]", "str"):
        rows = texts.astype({"city": dtype})
        assert answer(fast, rows) == answer(model, rows), dtype


def test_numbers_that_encoders_know(tmp_path):
    """Of arrays, category_encoders makes the categories that it was trained on."""
    library = pytest.importorskip("category_encoders")
    frame = pd.DataFrame({"code": FULL.pclass.astype("category"), "age": FULL.age})
    how = {"cols": ["code"], "handle_unknown": "return_nan"}
    model = make_pipeline(library.WOEEncoder(**how), boosting()).fit(frame, Y)
    fast = plain(model).fit(frame)
    kept = saved(fast, tmp_path)
    wide = frame.astype(float)
    other = wide.assign(code=9.0)
    for rows in (frame, wide, other, wide.to_numpy(), other.to_numpy()):
        assert answer(fast, rows) == answer(model, rows)
        assert answer(kept, rows) in (answer(model, rows), None)
    assert is_read(fast, wide)


def test_whole_numbers_that_the_next_step_refuses():
    """Counts are whole unless a category is missing, and then so is the matrix."""
    step = encoder("Count", cols=["city"])
    columns = make_column_transformer((step, ["city", "pclass"]))
    filled = SimpleImputer(strategy="constant", fill_value=0.5)
    frame = GAPS.assign(pclass=GAPS.pclass.where(rng.random(N) > 0.1))
    model, fast = fit_both(make_pipeline(columns, filled, boosting()), frame, Y)
    assert is_read(fast, frame)
    for rows in (frame, FULL, FULL[:1], FULL.astype({"pclass": float})):
        assert answer(fast, rows) == answer(model, rows)
    assert answer(model, FULL) == "ValueError"


def test_none_is_an_unknown_number_to_an_encoder_of_objects():
    rules = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    codes = OrdinalEncoder(encoded_missing_value=-5, **rules)
    flags = np.random.default_rng(6).choice([0.0, 1.0, np.nan], N)
    frame = pd.DataFrame({"flag": flags, "age": FULL.age})
    columns = make_column_transformer((codes, ["flag"]), remainder="passthrough")
    last = DecisionTreeClassifier(random_state=0)  # few drawn rows reach its tests
    model, fast = fit_both(make_pipeline(columns, last), frame, Y)
    for value in (None, np.nan, True, 1, 7):
        rows = frame.assign(flag=pd.Series([value] * N, dtype=object))
        assert answer(fast, rows) == answer(model, rows), value


@pytest.mark.parametrize("library", ["sklearn", "category_encoders"])
def test_encoders_of_dates_run_in_their_library(library: str) -> None:
    dates = pd.Timestamp("2025-01-01") + pd.to_timedelta(FULL.pclass, "D")
    frame = FULL[["age"]].assign(date=dates.astype("datetime64[ns]"))
    step = OrdinalEncoder() if library == "sklearn" else encoder("Count", cols=["date"])
    columns = make_column_transformer((step, ["date"]), remainder="passthrough")
    model, fast = fit_both(make_pipeline(columns, boosting()), frame, Y)
    assert "neither numbers nor strings" in fast.inspect("pipeline")
    assert answer(fast, frame) == answer(model, frame)


KINDS = {  # columns of a kind, and dtypes that rows may have instead
    "object": (["Oslo", "Bern", "41", None], ["str", "string[pyarrow]", "category"]),
    "string": (["Oslo", "Bern", "41", None], ["object", "str", "category"]),
    "category": ([3, 1, -1, None], ["Int64", "object", "float64"]),
    "boolean": ([True, False, None], ["object", "float64"]),
    "Int64": ([3, 1, -1, None], ["object", "float64", "category"]),
    "float32": ([2.5, 1.0, -3.0, np.nan], ["float64", "object", "Float64"]),
}
NEXT = {
    "nothing": [],
    "constant": [SimpleImputer(strategy="constant", fill_value=0.5)],
    "scaled": [SimpleImputer(), StandardScaler()],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("then", NEXT)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Count", "Target", "OneHot", "WOE", "sklearn"])
def test_columns_of_many_dtypes(name: str, kind: str, then: str, tmp_path: Any) -> None:
    values, others = KINDS[kind]
    if (name, kind) == ("sklearn", "string"):  # it is not fitted with NA among texts
        values = values[:-1]
    some = [values[i] for i in np.random.default_rng(1).integers(0, len(values), N)]
    frame = FULL[["age", "pclass"]].assign(code=pd.Series(some, dtype=kind))
    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    step = OrdinalEncoder(**unknown)
    if name != "sklearn":
        step = encoder(name, cols=["code"], handle_unknown="return_nan")
    columns = (step, ["code"]), ("passthrough", ["age", "pclass"])
    made = make_column_transformer(*columns), *NEXT[then]
    model, fast = fit_both(make_pipeline(*made, boosting()), frame, Y)
    text = kind in ("object", "string")
    odd = "Nowhere" if text else 9
    objects = frame.code.astype(object)
    changed = [frame.code.astype(dtype) for dtype in others]
    changed += [objects.where(objects.index > 0, value) for value in (odd, None, True)]
    rows = [frame, frame[:1], frame.astype({"age": int})]
    rows += [frame.assign(code=column) for column in changed]
    kept = saved(fast, tmp_path) if "runs" not in fast.inspect("pipeline") else None
    for each in rows:
        assert answer(fast, each) == answer(model, each), each.dtypes
        if kept is not None:
            assert answer(kept, each) in (
                *(answer(model, each), None),
                "InvalidInputError",
            )
