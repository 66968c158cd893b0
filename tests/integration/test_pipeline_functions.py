"""Steps that are functions of one number fold: NumPy's ufuncs, power and quantiles."""

from __future__ import annotations

import warnings
from contextlib import suppress
from itertools import product

import numpy as np
import pytest
from sklearn import ensemble, tree
from sklearn import preprocessing as pre
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

from skforge.exceptions import SourceNeededError
from tests.comparing import assert_alike, saved
from tests.kinds import CLASSIFIERS, FOREST
from tests.plain import fit_both, plain

pd = pytest.importorskip("pandas")
lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")

WIDTH = 4
LAST = ("forest", "xgboost", "lightgbm")
#: Functions, and whether they take negative numbers.
FUNCTIONS = {
    **dict.fromkeys((np.log, np.log2, np.log10, np.log1p, np.sqrt), False),
    **dict.fromkeys((np.exp, np.exp2, np.expm1, np.cbrt, np.sinh, np.arcsinh), True),
    **dict.fromkeys((np.tanh, np.arctan, np.negative, np.absolute, np.square), True),
    **dict.fromkeys((np.floor, np.ceil, np.rint, np.trunc, np.degrees), True),
}
STEPS = {
    "yeo-johnson": (pre.PowerTransformer(), True),
    "yeo-johnson-bare": (pre.PowerTransformer(standardize=False), True),
    "box-cox": (pre.PowerTransformer("box-cox"), False),
    "uniform": (pre.QuantileTransformer(n_quantiles=100), True),
    "few": (pre.QuantileTransformer(n_quantiles=7, subsample=50), True),
    "normal": (
        pre.QuantileTransformer(n_quantiles=300, output_distribution="normal"),
        True,
    ),
}
STEPS |= {
    function.__name__: (pre.FunctionTransformer(function), signed)
    for function, signed in FUNCTIONS.items()
}


def numbers(signed, n=400, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, WIDTH)) * [1.0, 2.0, 0.1, 5.0]
    X[: n // 4, 1] = np.rint(X[: n // 4, 1])  # repeated quantiles
    return X if signed else np.exp(X)


def target(X):
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    return (Z[:, 0] + np.sin(3 * Z[:, 1]) - Z[:, 2] * Z[:, 3] > 0).astype(int)


def trained(step, signed, last="forest", dtype=np.float64):
    X = numbers(signed).astype(dtype)
    return make_pipeline(clone(step), clone(CLASSIFIERS[last])).fit(X, target(X)), X


def around(fast, X, n=600, seed=3):
    """Return rows at thresholds and up to three ulps away from one."""
    random = np.random.default_rng(seed)
    rows = X[random.integers(0, len(X), n)].copy()
    forest = fast.forest_
    for j in range(rows.shape[1]):
        cuts = forest.threshold[(forest.feature == j) & np.isfinite(forest.threshold)]
        codes = fast._predictor.source._known.numbers
        cuts = codes[j].ends if j in codes else cuts
        if len(cuts):
            at = cuts[random.integers(0, len(cuts), n)].astype(rows.dtype)
            ways = random.integers(-3, 4, n)
            for _ in range(3):
                toward = np.where(ways > 0, np.inf, -np.inf).astype(rows.dtype)
                at = np.where(ways == 0, at, np.nextafter(at, toward))
                ways -= np.sign(ways)
            rows[:, j] = at
    return rows


def same(fast, model, *forms):
    for rows in forms:
        assert_alike(fast, model, rows, rows[:1], rows[3:8])


def routes(fast, rows):
    """Return how many calls compiled code answered, and how many the pipeline."""
    before = fast.counters()
    fast.predict(rows)
    counts = fast.counters()
    entry, kernel, library = (
        counts[k]["calls"] - before[k]["calls"] for k in ("entry", "kernel", "library")
    )
    return entry + kernel, library


@pytest.mark.sampled(10)
@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("name", STEPS)
def test_it_folds(name, last):
    step, signed = STEPS[name]
    model, X = trained(step, signed, last)
    fast = plain(model).fit(X)
    assert "runs in" not in fast.inspect("pipeline")
    near = around(fast, X)
    kept = fast._predictor.source._known.bounds.holds(near)
    assert routes(fast, X) == (1, 0)
    assert not kept or routes(fast, near) == (1, 0)
    same(fast, model, X, near, numbers(signed, 100, 7) * 3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", STEPS)
def test_float32_rows(name):
    step, signed = STEPS[name]
    model, X = trained(step, signed, dtype=np.float32)
    fast = plain(model).fit(X)
    mixed = pd.DataFrame(X)
    mixed[0] = mixed[0].astype(np.float64)
    same(fast, model, X, around(fast, X), X.astype(np.float64), X[:0:-2], mixed)


def function(*of, **how):
    return pre.FunctionTransformer(*of, **how)


FILLED = make_pipeline(SimpleImputer(), function(np.log, validate=True))
POSITIVE = make_pipeline(pre.MinMaxScaler(), function(np.sqrt))
#: Steps on columns of a frame, and steps on all of them.
MIXED = {
    "columns": make_column_transformer(
        (function(np.log1p), ["a", "n"]),
        (pre.PowerTransformer(), ["b"]),
        (pre.PowerTransformer("box-cox"), ["c"]),
        (STEPS["normal"][0], ["d"]),
    ),
    "filled": make_column_transformer(
        (FILLED, ["a", "b"]), (function(np.sqrt), ["n"]), (POSITIVE, ["c"])
    ),
    "scaled": make_pipeline(function(np.log1p), pre.StandardScaler()),
    "squares": function(np.square),
    "rounded": function(np.rint),
}


def frames(frame):
    """Yield rows that a function may refuse, warn about or compute otherwise."""
    for value in (np.nan, 0.0, -1.0, -2.0, np.inf, 1e300, -1e-320, 1e-320):
        changed = frame.copy()
        changed.loc[3, ["a", "b", "c"]] = value
        yield changed
        yield changed[3:4]
    for dtype in ("float32", "Float64", "Float32"):
        yield frame.astype(dtype)
    whole = frame.round().clip(1, 90)
    for dtype in ("int8", "uint8", "int16", "int32", "uint64", "Int64", "Int16"):
        yield frame.assign(n=whole["n"].astype(dtype))
        yield whole.astype(dtype)
        yield whole.astype(dtype)[:1]
    yield frame.assign(n=frame["n"] > 3)
    yield frame.assign(n=np.int64(2) ** 52 + np.arange(len(frame)))
    yield frame[["n", "d", "c", "b", "a"]]
    yield frame.astype(object)
    yield frame.to_numpy()
    polars = pytest.importorskip("polars")
    yield polars.from_pandas(frame)
    yield polars.from_pandas(frame.astype("float32"))


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_functions_treat_in_their_own_way(name):
    X = numbers(signed=False)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(n=np.arange(len(X)) % 40 + 0.0)
    model, fast = fit_both(clone(make_pipeline(MIXED[name], FOREST)), frame, target(X))
    assert routes(fast, frame) == routes(fast, frame[:1]) == (1, 0)
    assert_alike(fast, model, *frames(frame), methods=("predict_proba",))


def test_an_artifact_knows_the_functions_limits(tmp_path):
    model, X = trained(*STEPS["log1p"])
    loaded, low = saved(plain(model).fit(X), tmp_path), np.full((1, WIDTH), -0.999)
    assert_alike(loaded, model, X, low)
    with pytest.raises(SourceNeededError):
        loaded.predict_proba(low - 0.001)


@pytest.mark.parametrize(
    ("width", "ulps", "folds"), [(1, 3, True), (9, 30, True), (700, 10**4, False)]
)
def test_answers_that_alternate_near_a_threshold(monkeypatch, width, ulps, folds):
    def wavy(column, lambdas):
        odd = column.view(np.int64) // width % 2 == 1
        return np.where(odd, column * (1 + ulps * np.finfo(float).eps), column)

    model, X = trained(*STEPS["yeo-johnson-bare"], last="lightgbm")
    monkeypatch.setattr("scipy.stats.yeojohnson", wavy)
    fast = plain(model).fit(X)
    assert folds == ("runs in" not in fast.inspect("pipeline"))
    if folds:
        assert fast._predictor.source._known.numbers  # a test has several intervals
        same(fast, model, *(around(fast, X, seed=seed) for seed in range(4)))


def test_a_function_that_depends_on_the_number_of_rows_does_not_fold(monkeypatch):
    def uneven(column, lambdas):
        return column if len(column) > 1 else np.nextafter(column, np.inf)

    model, X = trained(*STEPS["yeo-johnson-bare"])
    monkeypatch.setattr("scipy.stats.yeojohnson", uneven)
    assert "runs in" in plain(model).fit(X).inspect("pipeline")


@pytest.mark.parametrize(
    "step", [pre.QuantileTransformer(n_quantiles=20), pre.PowerTransformer()]
)
@pytest.mark.parametrize(
    "after",
    [
        pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        pre.OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    ],
)
def test_steps_that_round_do_not_fold_before_encoders(step, after):
    """A neighbour's value may lie on the other side of a known one's."""
    X = np.random.default_rng(0).normal(size=(120, 1)) * 10
    last = ensemble.RandomForestRegressor(3, random_state=0)
    model = make_pipeline(step, after, last).fit(X, X[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a step runs in scikit-learn
        fast = plain(model).fit(X)
    assert np.array_equal(fast.predict(X), model.predict(X))
    first, second = fast.inspect("pipeline").splitlines()[1:3]
    assert "runs in scikit-learn" in first
    assert "folded into the trees" in second


def test_functions_that_do_not_fold():
    assert "calls log1p with kw_args" in where(np.log1p, kw_args={"dtype": "f4"})
    assert "calls sin" in where(np.sin)
    for container in ("pandas", "polars"):  # which it warns of
        assert f"is set to {container}" in where(np.log1p, container)


def where(function, container="default", **how):
    X = numbers(signed=False)
    step = pre.FunctionTransformer(function, **how).set_output(transform=container)
    model = make_pipeline(step, clone(FOREST)).fit(X, target(X))
    return plain(model).fit(X).inspect("pipeline")


#: Numbers of each dtype; the negative or the square of the last one may not fit.
WHOLE = {
    "float64": [-0.1, 0.0, 0.1, 0.3],
    "uint8": [0, 1, 3, 255],
    "uint16": [0, 1, 9, 65_535],
    "int8": [-1, 1, 3, -128],
    "uint32": [0, 1, 7, 200_000],
    "uint64": [0, 1, 7, 1 << 40],
    "int64": [-1, 0, 1, 2],
}


def table_of(kind, columns):
    if kind == "pandas":
        return pd.DataFrame(columns)
    if kind == "nullable":
        return pd.DataFrame(columns).convert_dtypes()
    library = pytest.importorskip({"arrow": "pyarrow"}.get(kind, kind))
    return library.table(columns) if kind == "arrow" else library.DataFrame(columns)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["polars", "arrow", "pandas", "nullable"])
@pytest.mark.parametrize("function", [np.negative, np.square])
@pytest.mark.parametrize("alone", [False, True])
def test_whole_numbers_that_overflow_in_a_table(tmp_path, function, kind, alone):
    """NumPy wraps them round where float64 does not; drawn rows need not show it."""
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)) * 0.2)
    X.columns = ["a", "b"]
    y = X["a"] - 2 * X["b"]
    step = pre.FunctionTransformer(
        function, validate=True, feature_names_out="one-to-one"
    )
    columns = ColumnTransformer([("f", step, ["a"])], remainder="passthrough")
    last = tree.DecisionTreeRegressor(max_depth=6, random_state=0)
    model, fast = fit_both(make_pipeline(columns if alone else step, last), X, y)
    stored = saved(fast, tmp_path)
    others = ("float64", "uint8", "int64") if alone else WHOLE  # as "b" passes through
    for turn, (first, second) in enumerate(product(WHOLE, others)):
        some = {
            "a": np.array(WHOLE[first], first),
            "b": np.array(WHOLE[second], second),
        }
        n = 4 if turn % 2 else 1
        rows = table_of(kind, {name: x[-n:] for name, x in some.items()})
        try:
            expected = model.predict(rows)
        except (KeyError, ValueError):  # no adapter of scikit-learn's for pyarrow
            assert kind == "arrow"
            continue
        assert np.array_equal(fast.predict(rows), expected), (first, second, n)
        with suppress(SourceNeededError):
            assert np.array_equal(stored.predict(rows), expected)
    assert fast.counters()["library"]["calls"] < len(WHOLE) * len(others)
