"""``skforge.polars``: expressions have the bits of the model's own library."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    GradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, StandardScaler

import skforge
from skforge import CompiledForest
from skforge.distributed._artifact import job
from skforge.exceptions import InvalidInputError, VerificationError
from skforge.polars import predict
from tests import kinds
from tests.kinds import CLASSIFIERS
from tests.plain import fit_both, plain
from tests.programs import run_python
from tests.reliability.planting import Edit, planted

pytestmark = pytest.mark.doors

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

N_ROWS = 400
NAMES = ["age", "income", "visits", "member"]
CITIES = ["Oslo", "Bergen", "Rome"]
rng = np.random.default_rng(0)
ROWS = pl.DataFrame(
    {
        "age": np.floor(rng.normal(size=N_ROWS) * 200) / 10,
        "income": rng.normal(size=N_ROWS).astype(np.float32),
        "visits": rng.integers(0, 9, N_ROWS),
        "member": rng.random(N_ROWS) < 0.5,
    }
)
CITY = ROWS.with_columns(city=pl.Series(rng.choice(CITIES, N_ROWS)))
y = ((ROWS["age"] > 3) ^ (CITY["city"] == "Rome") ^ ROWS["member"]).to_numpy()
LABELS = np.where(y, "yes", "no")
TARGETS = np.column_stack([y, ROWS["age"] > 5]).astype(np.float64)


def as_pandas(frame: Any) -> Any:
    """Return the frame that a mapping of these columns stands for."""
    columns = {name: frame[name].to_list() for name in NAMES}
    numbers = pd.DataFrame(columns, dtype=np.float64)
    if "city" not in frame.columns:
        return numbers
    return numbers.assign(city=pd.Categorical(frame["city"].to_list(), CITIES))


def as_texts(frame: Any) -> Any:
    return as_pandas(frame).assign(city=np.array(frame["city"].to_list(), object))


FOREST = RandomForestClassifier(6, max_depth=5, random_state=0)
LIGHT = CLASSIFIERS["lightgbm"]
XGB = kinds.MODELS["xgboost of categories"].model
HIST = kinds.MODELS["hist of categories"].model
QUIET = {"verbose": 0, "allow_writing_files": False}
NUMBERS = make_pipeline(QuantileTransformer(n_quantiles=9), FOREST)
ENCODED = make_column_transformer(
    (StandardScaler(), ["visits", "age"]),
    (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city"]),
)
#: Models, their rows as Polars has them, and what makes those that the library gets.
KINDS: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "xgboost": (XGB, ROWS, as_pandas),
    "xgboost, categories": (XGB, CITY, as_pandas),
    "lightgbm": (LIGHT, ROWS, as_pandas),
    "lightgbm, categories": (LIGHT, CITY, as_pandas),
    "catboost": ({"iterations": 6, "cat_features": ["city"]}, CITY, as_texts),
    "forest": (FOREST, ROWS, as_pandas),
    "histogram, categories": (HIST, CITY, as_pandas),
    "pipeline": (make_pipeline(ENCODED, FOREST), CITY, as_texts),
    "steps in scikit-learn": (NUMBERS, ROWS, as_pandas),
}


def save(fast: Any, path: Path) -> None:
    """Save without the comparisons of all forms of rows, which are not tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKFORGE_CHECK", "off")
        skforge.save(fast, path)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: Any, tmp_path_factory: Any) -> Any:
    """Return a model, rows, and what makes the library's rows, path or object."""
    model, rows, given = KINDS[request.param]
    if request.param == "catboost":
        library = pytest.importorskip("catboost")
        model = library.CatBoostClassifier(**model, **QUIET)
    else:
        model = clone(model)
    model.fit(given(rows), LABELS if request.param == "forest" else y * 1)
    fast = plain(model).fit(given(rows))
    path = tmp_path_factory.mktemp("models") / "model.skforge"
    try:
        save(fast, path)
    except skforge.UnsupportedModelError:
        path = None
    return model, fast, path, rows, given


def same(found: Any, wanted: Any) -> None:
    """Compare a column with an array: values, dtype and shape."""
    if isinstance(found.dtype, pl.Struct):
        found = found.struct.unnest()
    found, wanted = found.to_numpy(), np.asarray(wanted)
    assert wanted.dtype.kind in "UO" or found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def compare(kind: Any, frame: Any, way: str = "select") -> None:
    """Compare two methods of the object and of its file with those of the library."""
    model, fast, path, _, given = kind
    for method, name in METHODS.items():
        wanted = getattr(model, method)(given(frame))
        for source in (fast,) if path is None else (fast, path):
            answer = WAYS[way](frame, predict(source, pl.all(), method=method))
            same(answer[name], wanted)


METHODS = {"predict": "prediction", "predict_proba": "probability"}
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "select": lambda frame, e: frame.select(e),
    "with_columns": lambda frame, e: frame.with_columns(e),
    "lazy": lambda frame, e: frame.lazy().with_columns(e).collect(),
    "streaming": lambda frame, e: frame.lazy().select(e).collect(engine="streaming"),
    "chunks": lambda frame, e: pl.concat([frame[:7], frame[7:]], rechunk=False).select(
        e
    ),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("way", WAYS)
def test_answers_are_those_of_the_library(kind: Any, way: str) -> None:
    compare(kind, kind[3], way)


def test_other_columns_and_parts_of_the_rows(kind: Any) -> None:
    rows = kind[3]
    turned = rows.select(reversed(rows.columns)).with_columns(id=pl.lit("a"))
    for frame in (turned, rows[5:6], rows[5:90]):
        compare(kind, frame)


def test_no_rows(kind: Any) -> None:
    _, fast, _, rows, _ = kind
    for way in WAYS:
        for method, name in METHODS.items():
            expression = predict(fast, method=method)
            found = WAYS[way](rows[:0], expression)
            assert found.height == 0
            assert found.schema[name] == rows.select(expression).schema[name]


def test_nulls_are_missing_values(kind: Any) -> None:
    model, fast, _, rows, given = kind
    gaps = pl.int_range(N_ROWS)
    names = [
        name for name in rows.columns if name != "city" or "Cat" not in repr(model)
    ]
    holes = rows.with_columns(
        pl.when(gaps % (5 + i) != 0).then(pl.col(name)).alias(name)
        for i, name in enumerate(names)
    )
    try:
        model.predict(given(holes))
    except ValueError as error:
        with pytest.raises(type(error), match=re.escape(str(error)[:40])):
            holes.select(predict(fast))
    else:
        alone = rows.with_columns(age=None)
        assert alone.schema["age"] == pl.Null
        for frame, way in ((holes, "select"), (holes, "streaming"), (alone, "select")):
            compare(kind, frame, way)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(CITIES[::-1])])
def test_texts_and_categories_are_matched_by_value(kind: Any, dtype: Any) -> None:
    if "city" not in kind[3].columns:
        pytest.skip("no categories")
    compare(kind, kind[3].cast({"city": dtype}))


def test_missing_columns_are_named(kind: Any) -> None:
    _, fast, _, rows, _ = kind
    for engine in ("in-memory", "streaming"):
        lazy = rows.drop("age").lazy().select(predict(fast, pl.all()))
        with pytest.raises(InvalidInputError, match="has no 'age'"):
            lazy.collect(engine=engine)
    with pytest.raises(pl.exceptions.ColumnNotFoundError, match="age"):
        rows.drop("age").select(predict(fast))
    with pytest.raises(InvalidInputError, match="'age'"):
        rows.select(predict(fast, pl.col("visits").alias("other")))


def test_columns_that_a_pipeline_drops_need_not_be_there() -> None:
    steps = make_column_transformer((StandardScaler(), ["age", "income"]))
    model = make_pipeline(steps, clone(FOREST)).fit(as_pandas(ROWS), y)
    fast, read = plain(model).fit(as_pandas(ROWS)), ROWS.select("income", "age")
    found = read.select(predict(fast, method="predict_proba"))
    same(found.to_series(), model.predict_proba(as_pandas(ROWS)))
    assert job(fast, "predict", 1, "auto").columns_of(ROWS.columns, None) == NAMES[:2]


def test_values_that_are_no_numbers_are_named() -> None:
    fast = plain(clone(FOREST).fit(as_pandas(ROWS), y)).fit(as_pandas(ROWS))
    for wrong, text in (
        (pl.lit("old"), "'age' of row 0 is 'old', which is not a number"),
        (pl.date(2020, 1, 1), "'age' of row 0 is np.datetime64"),
    ):
        with pytest.raises(InvalidInputError, match=re.escape(text)):
            ROWS.with_columns(age=wrong).select(predict(fast))


def test_without_names_columns_count_by_position(tmp_path: Path) -> None:
    numbers = ROWS.to_numpy()
    model, fast = fit_both(clone(FOREST), numbers, LABELS)
    wanted = model.predict_proba(numbers)
    proba: dict[str, Any] = {"method": "predict_proba"}
    moved = ROWS.rename({"age": "z"})
    same(moved.select(predict(fast, pl.all(), **proba)).to_series(), wanted)
    vectors = pl.DataFrame({"v": numbers})
    assert isinstance(vectors.schema["v"], pl.Array)
    same(vectors.select(predict(fast, "v", **proba)).to_series(), wanted)
    texts, encoder = CITY.to_numpy(), (OneHotEncoder(handle_unknown="ignore"), [4])
    pipeline = make_pipeline(make_column_transformer(encoder), FOREST).fit(
        texts, LABELS
    )
    save(plain(pipeline).fit(texts), tmp_path / "model.skforge")
    read = predict(tmp_path / "model.skforge", *CITY.columns, **proba)
    same(CITY.select(read).to_series(), pipeline.predict_proba(texts))
    with pytest.raises(InvalidInputError, match=r"pass the columns of its 4 features"):
        predict(fast)
    with pytest.raises(ValueError, match="3 features"):
        ROWS.select(predict(fast, "age", "income", "visits"))


def test_columns_that_are_no_numbers_are_refused_without_names() -> None:
    numbers = ROWS.to_numpy()
    fast = plain(clone(FOREST).fit(numbers, y)).fit(numbers)
    for wrong, kind in (
        (pl.date(2020, 1, 1), "Date"),
        (pl.duration(days=1), "Duration(time_unit='us')"),
        (pl.lit("1"), "String"),
        (pl.concat_list("age"), "List(Float64)"),
    ):
        with pytest.raises(InvalidInputError) as error:
            ROWS.with_columns(age=wrong).select(predict(fast, *NAMES))
        assert str(error.value).splitlines()[0] == (
            f"the column 'age' has the type {kind}, and the model takes numbers there; "
            "pass the numbers that training had in its place."
        )
    texts = ROWS.select(v=pl.concat_list(pl.lit("1").repeat_by(4)).list.to_array(4))
    with pytest.raises(
        InvalidInputError, match=r"the column 'v\[0\]' has the type Str"
    ):
        texts.select(predict(fast, "v"))


def test_dates_that_the_model_refuses_are_no_numbers() -> None:
    numbers = ROWS.to_numpy()
    fast = plain(clone(FOREST).fit(numbers, y)).fit(numbers)
    mistaken = Edit(
        "polars:_is_object",
        "if column.dtype.is_numeric() or",
        "if column.dtype.is_numeric() or column.dtype.is_temporal() or",
    )
    dates = ROWS.with_columns(age=pl.date(2020, 1, 1))
    with planted([mistaken]), pytest.raises(VerificationError) as error:
        dates.select(predict(fast, *NAMES))
    assert str(error.value).splitlines()[0] == (
        "predict takes the column 'age' of the type Date, and the model itself refuses "
        "it: float() argument must be a string or a real number, not 'Timestamp'. "
        "Please report this."
    )


def test_texts_and_whole_numbers_are_categories_without_names() -> None:
    library = pytest.importorskip("catboost")
    codes = CITY["visits"]
    rows = np.array([*zip(CITY["city"], codes, CITY["age"], strict=True)], object)
    model, fast = fit_both(
        library.CatBoostClassifier(iterations=6, cat_features=[0, 1], **QUIET), rows, y
    )
    for dtype in (pl.String, pl.Categorical):
        found = CITY.select(predict(fast, pl.col("city").cast(dtype), "visits", "age"))
        same(found.to_series(), model.predict(rows))
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), [0]), remainder="passthrough"
    )
    encoder = make_pipeline(columns, FOREST).fit(rows, y)
    found = CITY.select(predict(plain(encoder).fit(rows), "city", "visits", "age"))
    same(found.to_series(), encoder.predict(rows))


def test_labels_of_catboost_are_one_column_for_each_target() -> None:
    library = pytest.importorskip("catboost")
    one = library.CatBoostClassifier(iterations=3, **QUIET)
    classes = np.digitize(ROWS.select("age", "income").to_numpy(), [-0.5, 0.5])
    model = clone(one).fit(as_pandas(ROWS), classes[:, 0])
    found = ROWS.select(predict(plain(model).fit(as_pandas(ROWS))))
    same(found["prediction"], model.predict(as_pandas(ROWS))[:, 0])
    several = MultiOutputClassifier(one).fit(as_pandas(ROWS), classes)
    found = ROWS.select(predict(plain(several).fit(as_pandas(ROWS))))
    same(found["prediction"], several.predict(as_pandas(ROWS))[0])


def test_an_array_column_is_read_in_place(monkeypatch: Any) -> None:
    numbers = rng.normal(size=(50, 4)).astype(np.float32)
    model = clone(FOREST).fit(numbers, y[:50])
    fast, seen = plain(model).fit(numbers), []
    column = pl.Series("v", numbers)
    monkeypatch.setattr(type(fast), "predict", lambda _, X: seen.append(X) or y[:50])
    pl.DataFrame(column).select(predict(fast, "v"))
    assert np.shares_memory(seen[0], column.to_numpy())


def test_flags_with_nulls_without_names() -> None:
    numbers = ROWS.select(pl.all().cast(pl.Float64)).to_numpy()
    numbers[::3, 3] = np.nan
    model, fast = fit_both(clone(LIGHT), numbers, y)
    holes = pl.when(pl.int_range(N_ROWS) % 3 != 0).then(pl.col("member"))
    found = ROWS.select(predict(fast, "age", "income", "visits", holes))
    same(found.to_series(), model.predict(numbers))


def test_groups_and_windows() -> None:
    model = GradientBoostingRegressor(n_estimators=5).fit(as_pandas(ROWS), ROWS["age"])
    fast = plain(model).fit(as_pandas(ROWS))
    wanted = CITY.with_columns(p=pl.Series(model.predict(as_pandas(ROWS))))
    grouped = CITY.group_by("city", maintain_order=True)
    found = grouped.agg(predict(fast, *NAMES).alias("p"))
    assert found.equals(wanted.group_by("city", maintain_order=True).agg("p"))
    found = CITY.with_columns(p=predict(fast, *NAMES).sum().over("city"))
    assert found.equals(wanted.with_columns(pl.col("p").sum().over("city")))
    found = CITY.lazy().filter(predict(fast) > 1).select(NAMES).collect()
    assert found.equals(wanted.filter(pl.col("p") > 1).select(NAMES))


def test_each_method_has_its_name_and_type() -> None:
    targets = clone(FOREST).fit(as_pandas(ROWS), TARGETS)
    labels = clone(FOREST).fit(as_pandas(ROWS), LABELS)
    several = plain(targets).fit(as_pandas(ROWS))
    fast = plain(labels).fit(as_pandas(ROWS))
    asked = [predict(fast, method=one) for one in ("predict", "predict_raw", "apply")]
    lazy = ROWS.lazy().select(*asked, predict(several).alias("both"))
    schema, found = lazy.collect_schema(), lazy.collect()
    assert schema == found.schema
    assert schema["prediction"] == pl.String
    names = [field.name for field in schema["both"].fields]
    assert names == ["prediction_0", "prediction_1"]
    assert len(schema["leaf"].fields) == 6
    same(found["leaf"], labels.apply(as_pandas(ROWS)))
    same(found["both"], targets.predict(as_pandas(ROWS)))
    with pytest.raises(InvalidInputError, match="method must be one of"):
        predict(fast, method="transform")
    with pytest.raises(InvalidInputError, match="has no decision_function"):
        predict(fast, method="decision_function")


def test_steps_of_the_library_get_all_rows_at_once() -> None:
    """Polars hands a query's rows over in parts, unless told otherwise."""
    frame = pl.concat([ROWS] * 500)
    _, fast = fit_both(clone(NUMBERS), as_pandas(ROWS), y)
    sizes: list[int] = []

    class Counted(type(fast)):  # type: ignore[misc]
        def predict(self, X: Any, **params: Any) -> Any:
            sizes.append(len(next(iter(X.values()))))
            return super().predict(X, **params)

    fast.__class__ = Counted
    from skforge.sources.row_facts import RowFacts  # the one fact that decides

    for whole in (True, False):
        sizes.clear()
        module = sys.modules["skforge.polars"]
        with pytest.MonkeyPatch.context() as patch:
            spec = RowFacts(4, tuple(NAMES), whole=whole)
            patch.setattr(module, "is_compiled", lambda model: True)
            patch.setattr(module, "row_spec", lambda model, spec=spec: spec)
            frame.lazy().select(predict(fast)).collect(engine="streaming")
        assert (len(sizes) == 1) is whole


def test_a_file_is_loaded_once_and_again_when_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.skforge"
    rows = as_pandas(ROWS)
    for seed in (1, 2):
        model = RandomForestClassifier(3, random_state=seed).fit(rows, y)
        save(plain(model).fit(rows), path)
        same(ROWS.select(predict(path)).to_series(), model.predict(rows))
    module = sys.modules["skforge.polars"]
    loads = module._loaded.cache_info().misses
    same(ROWS.select(predict(str(path))).to_series(), model.predict(rows))
    assert module._loaded.cache_info().misses == loads
    with pytest.raises(FileNotFoundError):
        predict(tmp_path / "other.skforge")


def test_other_models_are_refused(tmp_path: Path) -> None:
    model = clone(FOREST).fit(as_pandas(ROWS), y)
    path = tmp_path / "forest.skforge"
    skforge.save(skforge.load_forest(model), path)
    for wrong, name in ((model, "a RandomForestClassifier"), (path, "a Forest")):
        with pytest.raises(InvalidInputError, match=f"Got {name} instead"):
            predict(wrong)
    with pytest.raises(InvalidInputError, match="must be a fitted CompiledForest"):
        predict(CompiledForest(FOREST))


@pytest.mark.sampled(2)
def test_many_threads(kind: Any) -> None:
    _, fast, _, rows, _ = kind
    lazy = rows.lazy().select(predict(fast, method="predict_proba"))
    wanted = lazy.collect()
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: lazy.collect(engine="streaming"), range(40)):
            assert found.equals(wanted)


def test_expressions_are_pickled_with_the_path_of_their_model(tmp_path: Path) -> None:
    rows, path = as_pandas(ROWS), tmp_path / "model.skforge"
    model = clone(FOREST).fit(rows, y)
    save(plain(model).fit(rows), path)
    query = ROWS.lazy().select(predict(path, method="predict_proba"))
    sent = pickle.dumps(query)
    sys.modules["skforge.polars"]._loaded.cache_clear()  # as in another process
    wanted = model.predict_proba(rows)
    same(pickle.loads(sent).collect().to_series(), wanted)


def test_a_file_needs_neither_the_compiler_nor_scikit_learn(tmp_path: Path) -> None:
    rows = as_pandas(ROWS)
    model = clone(FOREST).fit(rows, LABELS)
    save(plain(model).fit(rows), tmp_path / "model.skforge")
    ROWS.write_parquet(tmp_path / "rows.parquet")
    code = """
import sys, polars as pl
from skforge.polars import predict
rows = pl.scan_parquet("rows.parquet")
for method in ("predict", "predict_proba"):
    rows.select(predict("model.skforge", method=method)).collect(engine="streaming")
heavy = ("sklearn", "scipy", "pandas", "pyarrow", "llvmlite", "joblib")
print([name for name in heavy if name in sys.modules])
"""
    for method in ("predict", "predict_proba"):  # which compile
        predicted = predict(tmp_path / "model.skforge", method=method)
        ROWS.lazy().select(predicted).collect(engine="streaming")
    assert run_python(code, cwd=tmp_path) == "[]\n"


def test_whole_numbers_of_polars_are_rounded_as_float64() -> None:
    """LightGBM rounds those of arrays to float32: a chunk's dtype decides nothing."""
    whole = np.random.default_rng(0).integers(1 << 24, (1 << 24) + 40, (400, 2))
    how = {"n_estimators": 5, "min_child_samples": 1, "verbose": -1, "n_jobs": 1}
    model = lgb.LGBMRegressor(**how).fit(whole.astype(float), whole[:, 0] % 2)
    fast = CompiledForest(model, tuning="off").fit(whole.astype(float))
    chosen = pl.DataFrame(whole, ["a", "b"]).select(predict(fast, "a", "b"))
    np.testing.assert_array_equal(chosen.to_series(), model.predict(whole * 1.0))
