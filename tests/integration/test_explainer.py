"""``TreeExplainer`` answers as ``shap.TreeExplainer`` does."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures

import skforge
from skforge import (
    CompiledForest,
    InvalidInputError,
    TreeExplainer,
    UnsupportedModelError,
    VerificationError,
    compile_forest,
    load_forest,
)

N = 120
RNG = np.random.default_rng(1)
X = RNG.normal(size=(N, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2]).astype(float)
FRAME = pd.DataFrame(X, columns=["age", "size", "price", "rate"])
CLASSES = np.digitize(Y, [-0.7, 0.5])


def forest(kind=RandomForestRegressor, label=Y, rows=X):
    return kind(n_estimators=4, max_depth=4, random_state=0).fit(rows, label)


def xgboost_model(label, rows=X, **params):
    xgboost = pytest.importorskip("xgboost")
    kind = xgboost.XGBRegressor if label is Y else xgboost.XGBClassifier
    return kind(n_estimators=4, max_depth=3, n_jobs=1, **params).fit(rows, label)


def lightgbm_model(label, rows=X):
    lightgbm = pytest.importorskip("lightgbm")
    kind = lightgbm.LGBMRegressor if label is Y else lightgbm.LGBMClassifier
    return kind(n_estimators=4, num_leaves=7, verbose=-1, n_jobs=1).fit(rows, label)


MODELS = {
    "forest": forest,
    "boosting": lambda: GradientBoostingRegressor(n_estimators=4).fit(X, Y),
    "two classes": lambda: forest(RandomForestClassifier, Y > 0),
    "three classes": lambda: forest(RandomForestClassifier, CLASSES),
    "histograms of two": lambda: HistGradientBoostingClassifier(max_iter=4).fit(
        X, Y > 0
    ),
    "histograms of three": lambda: HistGradientBoostingClassifier(max_iter=4).fit(
        X, CLASSES
    ),
    "isolation": lambda: IsolationForest(n_estimators=4, random_state=0).fit(X),
    "XGBoost": lambda: xgboost_model(Y),
    "XGBoost of two": lambda: xgboost_model(Y > 0),
    "XGBoost of three": lambda: xgboost_model(CLASSES),
    "XGBoost's booster": lambda: xgboost_model(CLASSES).get_booster(),
    "LightGBM": lambda: lightgbm_model(Y),
    "LightGBM of two": lambda: lightgbm_model(Y > 0),
    "LightGBM of three": lambda: lightgbm_model(CLASSES),
    "LightGBM's booster": lambda: lightgbm_model(CLASSES).booster_,
}


def same(found, expected):
    """Compare values, shape and dtype; only XGBoost rounds to float32."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    size = np.abs(expected).max()
    tolerance = 1e-6 if found.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * size)


@pytest.mark.filterwarnings("ignore:LightGBM binary classifier")
@pytest.mark.parametrize("name", MODELS)
def test_beside_shap(name):
    shap = pytest.importorskip("shap")
    model = MODELS[name]()
    ours, theirs = TreeExplainer(model), shap.TreeExplainer(model)
    values = theirs.shap_values(X)
    same(ours.expected_value, np.squeeze(theirs.expected_value))
    same(ours.shap_values(X), values)
    same(ours.shap_values(X, None, -1, check_additivity=False), values)
    found, expected = ours(X), theirs(X)
    assert isinstance(found, shap.Explanation)
    same(found.values, expected.values)
    same(found.base_values, expected.base_values)
    same(found.data, expected.data)
    assert found.compute_time > 0
    assert ours.feature_perturbation == theirs.feature_perturbation
    again = pickle.loads(pickle.dumps(ours))
    same(again.shap_values(X[:3]), values[:3])


@pytest.mark.parametrize(
    "name", ["forest", "three classes", "XGBoost", "XGBoost of three"]
)
def test_interactions_beside_shap(name):
    shap = pytest.importorskip("shap")
    model = MODELS[name]()
    ours, theirs = TreeExplainer(model), shap.TreeExplainer(model)
    expected = theirs.shap_interaction_values(X)
    found = ours.shap_interaction_values(X)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(
        found.sum(axis=2), ours.shap_values(X), rtol=0, atol=2e-6
    )
    both = ours(X[:5], interactions=True)
    np.testing.assert_array_equal(both.values, found[:5])
    assert both.base_values.shape == theirs(X[:5], interactions=True).base_values.shape


def test_approximate_values_beside_xgboost():
    shap = pytest.importorskip("shap")
    model = xgboost_model(CLASSES)
    ours = TreeExplainer(model)
    expected = shap.TreeExplainer(model).shap_values(X, approximate=True)
    same(ours.shap_values(X, approximate=True), expected)
    same(ours(X, approximate=True).values, expected)


@pytest.mark.parametrize("name", ["forest", "three classes", "XGBoost", "LightGBM"])
def test_background_rows_beside_shap(name):
    shap = pytest.importorskip("shap")
    model, rows = MODELS[name](), X[:40]
    theirs = shap.TreeExplainer(model, rows)
    for ours in (
        TreeExplainer(model, rows),
        TreeExplainer(model, background=rows),
        TreeExplainer(model, shap.maskers.Independent(rows)),
        TreeExplainer(model, rows, feature_perturbation="interventional"),
    ):
        assert ours.feature_perturbation == "interventional"
        expected = np.squeeze(theirs.expected_value)
        np.testing.assert_allclose(ours.expected_value, expected, atol=1e-6)
        found = ours.shap_values(X)
        np.testing.assert_allclose(found, theirs.shap_values(X), rtol=0, atol=1e-6)
        with pytest.raises(InvalidInputError) as error:
            ours.shap_interaction_values(X)
        assert str(error.value) == (
            "interactions=True asks for path-dependent values, but this explainer has "
            "background rows; use TreeExplainer(model) without them."
        )


def test_all_background_rows_count():
    model = forest()
    explainer = TreeExplainer(model, X)
    np.testing.assert_allclose(explainer.expected_value, model.predict(X).mean())


@pytest.mark.parametrize("name", ["forest", "XGBoost of three"])
def test_what_is_compiled_already(name, tmp_path):
    model = MODELS[name]()
    values = TreeExplainer(model).shap_values(X)
    fast = CompiledForest(model, tuning="off").fit(X)
    assert TreeExplainer(fast).model is fast
    skforge.save(fast, tmp_path / "model.skforge")
    module = compile_forest(load_forest(model))
    for one in (fast, module, module.forest, skforge.load(tmp_path / "model.skforge")):
        explainer = TreeExplainer(one)
        expected = explainer.expected_value  # before any values
        np.testing.assert_array_equal(explainer.shap_values(X), values)
        raw = fast.predict_raw(X)
        np.testing.assert_allclose(expected + values.sum(axis=1), raw, atol=1e-5)


def test_names_and_kinds_of_rows():
    pytest.importorskip("shap")
    explainer = TreeExplainer(forest(rows=FRAME))
    explanation = explainer(FRAME)
    assert explanation.feature_names == [*FRAME.columns]
    np.testing.assert_array_equal(explanation.data, X)
    assert explainer(FRAME.iloc[:2]).shape == (2, 4)
    with pytest.warns(UserWarning, match="valid feature names"):
        assert explainer(X).feature_names == [*FRAME.columns]  # the model's
    array = TreeExplainer(forest())
    assert array(X).feature_names is None
    assert TreeExplainer(forest(), feature_names=list("abcd"))(X).feature_names == list(
        "abcd"
    )
    values = array.shap_values(X)
    np.testing.assert_array_equal(array.shap_values(X[3]), values[3])
    np.testing.assert_array_equal(array.shap_values([[0.5] * 4]).shape, (1, 4))
    none = TreeExplainer(compile_forest(load_forest(forest()))).shap_values(X[:0])
    assert none.shape == (0, 4)
    classes = TreeExplainer(forest(RandomForestClassifier, CLASSES))
    np.testing.assert_array_equal(classes.shap_values(X[3]), classes.shap_values(X)[3])


def test_threads_do_not_change_a_bit():
    model = forest()
    one, two = TreeExplainer(model), TreeExplainer(model, n_jobs=2)
    np.testing.assert_array_equal(one.shap_values(X), two.shap_values(X))
    assert two.model.n_jobs == 2


def test_pipelines_explain_the_columns_that_their_trees_get():
    pytest.importorskip("shap")
    table = FRAME.astype(float).assign(city=RNG.choice(["Oslo", "Rome"], N))
    made = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    folded = make_pipeline(made, forest()).fit(table, Y)
    explanation = TreeExplainer(folded)(table)
    assert explanation.feature_names == [*table.columns]
    np.testing.assert_array_equal(explanation.data, table.to_numpy())
    before = make_pipeline(PolynomialFeatures(), AdaBoostClassifier(n_estimators=3))
    before.fit(FRAME, CLASSES)
    explainer = TreeExplainer(before)
    explanation = explainer(FRAME)
    expected = before[:-1].transform(FRAME)
    assert explanation.values.shape == (*expected.shape, 3)
    assert explanation.feature_names == [*before[:-1].get_feature_names_out()]
    np.testing.assert_array_equal(explanation.data, expected)
    sums = explanation.values.sum(axis=1) + explanation.base_values
    raw = explainer.model.predict_raw(FRAME)
    np.testing.assert_allclose(sums, raw, rtol=0, atol=1e-12)


def test_a_dmatrix_is_read():
    xgboost = pytest.importorskip("xgboost")
    holes = np.where(X > 1, np.nan, X)
    model = xgboost_model(Y, holes)
    explainer, data = TreeExplainer(model.get_booster()), xgboost.DMatrix(holes)
    values = explainer.shap_values(holes)
    np.testing.assert_array_equal(explainer.shap_values(data), values)
    data.set_base_margin(np.ones(N))
    with pytest.raises(InvalidInputError, match=r"^the DMatrix has base margins"):
        explainer.shap_values(data)


def test_shap_plots_draw_explanations():
    shap = pytest.importorskip("shap")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    explainer = TreeExplainer(forest(rows=FRAME))
    explanation = explainer(FRAME)
    shap.plots.waterfall(explanation[0], show=False)
    labels = [text.get_text() for text in plt.gca().get_yticklabels()]
    assert any("price" in label for label in labels)
    plt.close("all")
    shap.plots.beeswarm(explanation, show=False)
    plt.close("all")
    shap.plots.bar(explanation, show=False)
    plt.close("all")
    shap.plots.scatter(explanation[:, "size"], color=explanation, show=False)
    plt.close("all")
    shap.dependence_plot("age", explainer.shap_values(FRAME), FRAME, show=False)
    assert plt.gca().get_ylabel() == "SHAP value for\nage"
    plt.close("all")
    shap.summary_plot(explainer.shap_values(FRAME), FRAME, show=False)
    plt.close("all")
    classes = TreeExplainer(forest(RandomForestClassifier, CLASSES, FRAME))(FRAME)
    shap.plots.waterfall(classes[0, :, 2], show=False)
    plt.close("all")
    shap.decision_plot(
        explainer.expected_value, explanation.values[:9], FRAME[:9], show=False
    )
    plt.close("all")


def test_without_shap_only_the_call_fails(monkeypatch):
    explainer = TreeExplainer(forest())
    monkeypatch.setitem(sys.modules, "shap", None)
    assert explainer.shap_values(X).shape == X.shape
    with pytest.raises(InvalidInputError) as error:
        explainer(X)
    assert str(error.value) == (
        "explainer(X) returns a shap.Explanation, which needs the shap package: "
        "install it with 'pip install shap', or call explainer.shap_values(X)."
    )


REFUSED = {
    "model_output must be 'raw'. Got 'probability' instead; use shap.TreeExplainer "
    "with background rows to explain probabilities or losses.": {
        "model_output": "probability"
    },
    "feature_perturbation must be 'auto', 'interventional' or 'tree_path_dependent'. "
    "Got 'observational' instead.": {"feature_perturbation": "observational"},
    "feature_perturbation='tree_path_dependent' follows the training rows; leave out "
    "data, or use 'interventional'.": {
        "feature_perturbation": "tree_path_dependent",
        "data": X,
    },
    "data and background are two names for the same argument; pass only one of them.": {
        "data": X,
        "background": X,
    },
}


@pytest.mark.parametrize("text", REFUSED)
def test_arguments_that_are_refused(text):
    with pytest.raises(InvalidInputError) as error:
        TreeExplainer(forest(), **REFUSED[text])
    assert str(error.value) == text


def test_interventional_without_rows_is_path_dependent_as_in_shap():
    with pytest.warns(FutureWarning, match="needs background rows") as found:
        explainer = TreeExplainer(forest(), feature_perturbation="interventional")
    assert found[0].filename == __file__
    assert explainer.feature_perturbation == "tree_path_dependent"


def test_maskers_with_clusters_are_refused():
    shap = pytest.importorskip("shap")
    with pytest.raises(InvalidInputError) as error:
        TreeExplainer(forest(), shap.maskers.Partition(X))
    assert str(error.value) == (
        "data must be background rows or a shap.maskers.Independent. Got a Partition "
        "masker instead."
    )


def test_all_trees_are_explained():
    explainer = TreeExplainer(forest())
    for limit in (None, -1, 4):
        assert explainer.shap_values(X, tree_limit=limit).shape == X.shape
    for method in (explainer.shap_values, explainer.shap_interaction_values):
        with pytest.raises(InvalidInputError) as error:
            method(X, tree_limit=2)
        assert str(error.value) == (
            "tree_limit must be None or -1: all 4 trees are compiled. Got 2; compile "
            "load_forest(model, iteration_range=...) to explain fewer."
        )


def test_models_that_cannot_be_explained():
    with pytest.raises(NotFittedError):
        TreeExplainer(RandomForestRegressor())
    with pytest.raises(NotFittedError):
        TreeExplainer(CompiledForest(forest()))
    with pytest.raises(UnsupportedModelError):
        TreeExplainer(["not", "a", "model"])


def test_sums_are_checked(monkeypatch):
    explainer = TreeExplainer(forest())
    raw = explainer.model.predict_raw(X)
    monkeypatch.setattr(CompiledForest, "predict_raw", lambda self, X: raw + 1)
    with pytest.raises(VerificationError, match=r"^row 0: the contributions add up to"):
        explainer.shap_values(X)
    explainer.shap_values(X, check_additivity=False)
