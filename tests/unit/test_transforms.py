"""Output transforms: the bits of XGBoost's own C library calls."""

from __future__ import annotations

import ctypes
import sys
from typing import get_args

import numpy as np
import pytest
from joblib.externals.loky import cpu_count
from sklearn.ensemble import AdaBoostRegressor
from sklearn.tree import DecisionTreeRegressor

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.outputs import OutputFunction, OutputSpec
from skforge.forest.record import forest_in, forest_out
from skforge.frontends import load_forest
from skforge.outputs import library, onnx, sklearn
from skforge.outputs.functions import FUNCTIONS, FunctionName
from skforge.outputs.library import HOST, total
from skforge.outputs.steps import inlier_length
from tests.answers_of import apply_transform, decide, predict_proba
from tests.outputs_of import XGBOOST, outputs_of
from tests.refusals import error_of

N = 100_000
cpu_count(only_physical_cores=True)  # it asks another program once


def margins(n_outputs):
    """Margins of every size, extremes among them."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(N, n_outputs)) * rng.choice([0.1, 3, 60, 1e4], (N, 1))
    values = values.astype(np.float32)
    extremes = [0.0, -0.0, 88.7, -88.7, 88.72284, 104, -104, 1e-45, 3e38, -3e38]
    values[: len(extremes)] = np.array(extremes, np.float32)[:, np.newaxis]
    return values


@pytest.mark.sampled(6)
@pytest.mark.parametrize("objective", XGBOOST)
def test_transforms_give_the_bits_of_booster_predict(objective):
    xgb = pytest.importorskip("xgboost")
    rng = np.random.default_rng(1)
    X = np.zeros((200, 2), np.float32)
    y = rng.integers(0, 2, 200).astype(float) + (objective == "reg:gamma")
    params = {"objective": objective, "max_depth": 1}
    if objective.startswith("multi:"):
        params["num_class"], y = 4, np.arange(200) % 4
    if (kind := objective[4:-5]) in ("quantile", "expectile"):
        params[f"{kind}_alpha"] = [0.1, 0.5, 0.9]
        if kind == "expectile" and xgb.__version__ < "3.3":
            pytest.skip("XGBoost has it since 3.3")
    data = xgb.DMatrix(X, y)
    if objective == "survival:aft":
        data.set_float_info("label_lower_bound", y + 1)
        data.set_float_info("label_upper_bound", y + 2)
    if objective.startswith("rank:"):
        data.set_group([100, 100])
    booster = xgb.train(params, data, 1)
    forest = load_forest(booster)
    base = margins(forest.n_outputs)
    data = xgb.DMatrix(np.zeros((N, 2), np.float32), base_margin=base.squeeze())
    raw = booster.predict(data, output_margin=True)
    expected = booster.predict(data)
    actual = apply_transform(forest, raw)
    assert actual.dtype == expected.dtype == np.float32
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize(
    ("dtype", "name", "ctype"),
    [
        (np.float32, "expf", ctypes.c_float),
        (np.float64, "exp", ctypes.c_double),
        (np.float32, "log1pf", ctypes.c_float),
        (np.float64, "log1p", ctypes.c_double),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="symbols live in the C runtime")
def test_functions_are_the_c_librarys(dtype, name, ctype):
    function = getattr(ctypes.CDLL(None), name)
    function.restype, function.argtypes = ctype, [ctype]
    ours = getattr(library, name.removesuffix("f"))
    values = margins(1)[:3000, 0].astype(dtype)
    expected = np.array([function(float(v)) for v in values], dtype)
    actual = ours(values)
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (7,), (2, 3)])
def test_exp_keeps_the_shape(shape):
    assert library.exp(np.zeros(shape, np.float32)).shape == shape
    strided = np.arange(24, dtype=np.float64).reshape(4, 6)[:, ::2] / 24
    np.testing.assert_allclose(library.exp(strided), np.exp(strided), rtol=1e-15)


@pytest.fixture
def regressor():
    model = DecisionTreeRegressor(max_depth=1).fit([[0.0], [1.0]], [0.0, 1.0])
    return load_forest(model)


@pytest.mark.parametrize(
    "offsets", [(0.0, 0.0, 0.0), (0.5, np.nan, 0.0), (np.nan, np.nan, 1.0)]
)
def test_labels_of_onnx_are_the_first_greatest_of_known_scores(offsets):
    scores = np.random.default_rng(0).integers(-2, 3, (300, 3)).astype(np.float32)
    spec = OutputSpec("onnx", offsets=offsets, labels="first_greatest")
    sums = np.where(np.isnan(offsets), -np.inf, scores + np.nan_to_num(offsets))
    found = onnx.first_greatest(scores, spec, library.HOST)
    np.testing.assert_array_equal(np.ravel(found), sums.argmax(axis=1))


@pytest.mark.parametrize(
    ("offsets", "deciding"), [((0.25,), 0), ((1.0, 0.25), 1), ((0.25, np.nan), 0)]
)
def test_a_bound_of_onnx_is_not_above_itself(offsets, deciding):
    scores = np.random.default_rng(0).integers(-3, 4, (300, 2)).astype(np.float32) / 4
    spec = OutputSpec("onnx", 0.5, offsets=offsets, labels="above_bound")
    scores = scores[:, : len(offsets)]
    found = onnx.above_bound(scores, spec, library.HOST)
    np.testing.assert_array_equal(np.ravel(found), scores[:, deciding] > 0.25)


def test_weighted_medians_are_those_of_adaboost():
    random = np.random.default_rng(0)
    rows = random.integers(-3, 4, (500, 4)).astype(float)
    model = AdaBoostRegressor(n_estimators=4, random_state=0).fit(
        rows, rows.sum(axis=1)
    )
    predictions = np.column_stack([one.predict(rows) for one in model.estimators_])
    # half of equal weights is the sum of some; a member without weight counts nothing
    for weights in (np.ones(4), np.array([2.0, 1.0, 0.0, 1.0]), random.random(4)):
        model.estimator_weights_ = weights
        forest = load_forest(model)
        found = apply_transform(forest, predictions)
        assert found.tobytes() == model.predict(rows).tobytes()


def test_every_function_has_its_arithmetic():
    names = [name for literal in get_args(FunctionName) for name in get_args(literal)]
    assert FUNCTIONS.keys() == {*names}
    assert {*get_args(OutputFunction)} < {*names}


@pytest.mark.parametrize("function", [predict_proba, decide])
def test_a_regressor_has_no_classes(function, regressor):
    assert error_of(UnsupportedModelError, function, regressor, np.zeros((1, 1))) == (
        "This regression model has no classes; use predict instead."
    )


@pytest.mark.parametrize(
    "part", ["function", "probabilities", "labels", "decision", "layout", "post"]
)
def test_unknown_outputs_in_an_artifact_are_refused(part, regressor):
    arrays = {}
    record = forest_out(regressor, arrays)
    record["outputs"][part] = "gompertz"
    assert error_of(InvalidModelError, forest_in, record, arrays) == (
        f"the entry 'outputs.{part}' of its manifest has a value that save never "
        "writes; save the model again."
    )


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_raw_scores_of_one_output_may_be_flat(shape, regressor):
    assert apply_transform(regressor, np.zeros(shape)).shape == (5,)


@pytest.mark.parametrize("n_rows", [0, 1, 3, 400])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_rows_are_in_the_order_of_columns(n_rows: int, dtype: str) -> None:
    """Of few rows with hundreds of columns, too, which are added at once."""
    random = np.random.default_rng(0)
    x = np.exp(random.standard_normal((n_rows, 443)) * 9).astype(np.float32)
    wanted = np.zeros((n_rows, 1), dtype)
    for column in x.T:
        wanted[:, 0] += column
    found = total(x, dtype)
    assert found.dtype == dtype and found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("cutoff", [-0.3, -0.8])
@pytest.mark.parametrize("scale", [0.5, 1024.7])
def test_the_shortest_path_of_an_inlier(scale, cutoff):
    rules = OutputSpec("path_length", scale, cutoff=cutoff, decision="paths")
    shortest = inlier_length(rules)
    assert shortest is not None
    near = shortest + np.spacing(shortest) * np.array([-9e9, -2000, -1, 0, 1, 9e9])
    assert sklearn.inliers(near, rules, HOST).tolist() == [-1, -1, -1, 1, 1, 1]


#: Models of every kind of output, and the names of these, if they are scikit-learn's.
OUTPUTS = {
    "forest of three": "identity",
    **dict.fromkeys(("adaboost of names", "adaboost of odd"), "samme"),
    "adaboost of values": "weighted_median",
    "isolation": "path_length",
    **{"gb of names": "gb_logistic", "gb of odd": "gb_softmax"},
    **{"hist of names": "hist_logistic", "hist of odd": "hist_softmax"},
    **{"gb, exponential": "gb_exponential", "hist of counts": "hist_exp"},
    **{f"xgboost of {y}": "" for y in ("two", "three", "labels", "values")},
    **{f"lightgbm of {y}": "" for y in ("names", "three", "values")},
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_frontends_fill_the_outputs_of_their_library(kind):
    kinds = pytest.importorskip("tests.kinds")  # needs all libraries
    forest = load_forest(kinds.MODELS[kind].fitted())
    spec = forest.outputs
    name = OUTPUTS[kind] or spec.function
    fitted = ["divisor", "cutoff"]
    if name in ("samme", "path_length", "logistic"):
        fitted.append("parameter")
    if name == "weighted_median":
        fitted.append("weights")
    constants = {constant: getattr(spec, constant) for constant in fitted}
    task, source = forest.task, forest.source
    assert spec == outputs_of(name, task, source, forest.n_outputs, **constants)
