"""``TreeExplainer`` answers as ``shap.TreeExplainer`` does."""

from __future__ import annotations

import inspect
import io
import json
import pickle
import sys
from pathlib import Path

import catboost
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from scipy.sparse import csr_array
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

import skforge
from skforge import (
    CompiledForest,
    InvalidInputError,
    InvalidModelError,
    TreeExplainer,
    UnsupportedModelError,
    compile_forest,
    load_forest,
)
from skforge.exceptions import VerificationError
from tests.oracles import shap_values as oracle
from tests.plain import plain
from tests.refusals import error_of

N = 120
RNG = np.random.default_rng(1)
X = RNG.normal(size=(N, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2]).astype(float)
FRAME = pd.DataFrame(X, columns=["age", "size", "price", "rate"])
CLASSES = np.digitize(Y, [-0.7, 0.5])


def forest(kind=RandomForestRegressor, label=Y, rows=X):
    return kind(n_estimators=4, max_depth=4, random_state=0).fit(rows, label)


def xgboost_model(label, rows=X, **params):
    kind = xgboost.XGBRegressor if label is Y else xgboost.XGBClassifier
    return kind(n_estimators=4, max_depth=3, n_jobs=1, **params).fit(rows, label)


def lightgbm_model(label, rows=X):
    kind = lightgbm.LGBMRegressor if label is Y else lightgbm.LGBMClassifier
    return kind(n_estimators=4, num_leaves=7, verbose=-1, n_jobs=1).fit(rows, label)


def catboost_model(label):
    kind = catboost.CatBoostRegressor if label is Y else catboost.CatBoostClassifier
    few = {"iterations": 4, "depth": 3, "thread_count": 1}
    return kind(verbose=0, allow_writing_files=False, **few).fit(X, label)


MODELS = {
    "forest": forest,
    "two targets": lambda: forest(label=np.c_[Y, -Y]),
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
    "CatBoost": lambda: catboost_model(Y),
    "CatBoost of two": lambda: catboost_model(Y > 0),
}


def same(found, expected):
    """Compare values, shape and dtype; only XGBoost rounds to float32."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    size = np.abs(expected).max()
    tolerance = 1e-6 if found.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * size)


def expected_values(explainer, model):
    """Return expected_value before and after values, and with background rows."""
    made = explainer(model)
    before = made.expected_value
    made.shap_values(X[:2])
    return before, made.expected_value, explainer(model, X[:40]).expected_value


def shapes_of(values):
    return " ".join(str(np.shape(value)) for value in values)


def kinds_of(explainer):
    """Return the dtypes and shapes of plain attributes of an explainer of a frame."""
    made = explainer(forest(rows=FRAME), FRAME[:40], feature_names=list("abcd"))
    plain = (np.ndarray, np.generic, list, str, bool, type(None))
    return {
        name: f"{np.asarray(value).dtype.kind} {np.shape(value)}"
        for name in FACTS["attributes"]
        if name not in OF_SHAP and isinstance(value := getattr(made, name), plain)
    }


def parameters(method):
    """Return the kind and the plain default of each parameter of a method."""
    found = {}
    for one in inspect.signature(method).parameters.values():
        plain = isinstance(one.default, (str, bool, type(None)))
        found[one.name] = f"{one.kind.name} {one.default if plain else '-'}"
    found.pop("self", None)
    return found


#: What copied code sees of shap 0.51 to 0.54. ``--update-golden`` asks the shap that is
#: installed, so that the tests run without it.
FILE = Path(__file__).parents[1] / "golden/test_explainer/test_facts_of_shap.facts.txt"
FACTS = json.loads(FILE.read_text(encoding="utf-8"))

#: shap takes its classes for one output, except in ``shap_values``.
BOOSTER = "LightGBM's booster"

#: Attributes that need the shap package.
OF_SHAP = {"masker", "link"}

#: Models that fast tests compare. No other one has its own rules in shap.
FEW = ("forest", "two classes", "isolation", "XGBoost", "XGBoost of three", "LightGBM")
MOST = [
    pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in MODELS
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LightGBM binary classifier")
def test_facts_of_shap(golden):
    theirs = pytest.importorskip("shap").TreeExplainer
    names = ["__init__", "__call__", *(n for n in dir(theirs) if not n.startswith("_"))]
    methods = {name: parameters(getattr(theirs, name)) for name in names}
    facts = {
        "methods": methods,
        "attributes": sorted(
            vars(theirs(forest(), X[:40], feature_names=list("abcd")))
        ),
        "kinds": kinds_of(theirs),
        "shapes": {n: shapes_of(expected_values(theirs, MODELS[n]())) for n in MODELS},
    }
    golden(json.dumps(facts, indent=1), "facts")


@pytest.mark.parametrize("name", FACTS["methods"])
def test_methods_take_the_arguments_of_shap(name):
    ours = parameters(getattr(TreeExplainer, name))
    for place, (argument, kind) in enumerate(FACTS["methods"][name].items()):
        if kind.startswith("POSITIONAL") and argument != "approximate":
            assert [*ours.items()][place] == (argument, kind)
        elif kind.startswith("POSITIONAL"):  # a default that only shap can have
            assert [*ours][place] == argument
        elif kind.startswith("KEYWORD"):
            assert argument in ours or "VAR_KEYWORD -" in ours.values()


def test_attributes_are_those_of_shap():
    assert kinds_of(TreeExplainer) == FACTS["kinds"]
    made = TreeExplainer(forest(), X[:40])
    assert all(hasattr(made, name) for name in {*FACTS["attributes"]} - OF_SHAP)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:LightGBM binary classifier")
@pytest.mark.parametrize("name", MOST)
def test_expected_value(name):
    model = MODELS[name]()
    found = expected_values(TreeExplainer, model)
    if name == BOOSTER:
        assert shapes_of(found) == "(3,) (3,) (3,)"
        return
    assert shapes_of(found) == FACTS["shapes"][name]
    raw = TreeExplainer(model).model.predict_raw(X[:40]).mean(axis=0)
    raw = raw / 4 if name == "isolation" else raw
    np.testing.assert_allclose(found[2], raw, rtol=1e-5)
    np.testing.assert_allclose(np.squeeze(found[0]), found[1], rtol=1e-5)
    try:
        import shap
    except ImportError:
        return
    theirs = expected_values(shap.TreeExplainer, model)
    for ours, value in zip(found[1:], theirs[1:], strict=True):
        assert np.asarray(ours).dtype.kind == np.asarray(value).dtype.kind
        assert np.isscalar(ours) == np.isscalar(value)
        # with background rows, shap rounds XGBoost's and errs for CatBoost
        if not {"XGBoost", "CatBoost"} & {*name.split()} or value is theirs[1]:
            np.testing.assert_allclose(ours, value, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore:LightGBM binary classifier")
@pytest.mark.parametrize("name", MOST)
def test_beside_shap(name):
    shap = pytest.importorskip("shap")
    model = MODELS[name]()
    ours, theirs = TreeExplainer(model), shap.TreeExplainer(model)
    if name != BOOSTER:
        assert np.shape(ours.expected_value) == np.shape(theirs.expected_value)
    values = theirs.shap_values(X)
    same(ours.shap_values(X), values)
    same(ours.expected_value, theirs.expected_value)
    same(ours.shap_values(X, None, -1, check_additivity=False), values)
    found, expected = ours(X), theirs(X)
    assert isinstance(found, shap.Explanation)
    same(found.values, expected.values)
    same(found.base_values, expected.base_values)
    same(found.data, expected.data)
    assert found.feature_names == expected.feature_names
    assert found.compute_time > 0
    assert ours.feature_perturbation == theirs.feature_perturbation
    again = pickle.loads(pickle.dumps(ours))
    same(again.shap_values(X[:3]), values[:3])


@pytest.mark.parametrize(
    "name",
    [
        *("forest", "three classes", "XGBoost", "XGBoost of three", "LightGBM"),
        "CatBoost",
    ],
)
def test_interactions_beside_shap(name):
    shap = pytest.importorskip("shap")
    model = MODELS[name]()
    ours, theirs = TreeExplainer(model), shap.TreeExplainer(model)
    expected = theirs.shap_interaction_values(X)
    found = ours.shap_interaction_values(X)
    assert np.shape(ours.expected_value) == np.shape(theirs.expected_value)
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
    forms = [
        {"data": rows},
        {"background": rows},
        {"data": shap.maskers.Independent(rows)},
        {"data": rows, "feature_perturbation": "interventional"},
    ]
    for form in forms if name == "forest" else forms[:1]:
        ours = TreeExplainer(model, **form)
        assert ours.feature_perturbation == "interventional"
        found = ours.shap_values(X)
        np.testing.assert_allclose(found, theirs.shap_values(X), rtol=0, atol=1e-6)
        pairs = ours.shap_interaction_values(X)  # shap has none
        np.testing.assert_allclose(pairs.sum(axis=2), found, rtol=0, atol=1e-6)


def test_all_background_rows_count():
    model = forest()
    explainer = TreeExplainer(model, X)
    np.testing.assert_allclose(explainer.expected_value, model.predict(X).mean())


@pytest.mark.parametrize("name", ["forest", "XGBoost of three"])
def test_what_is_compiled_already(name, tmp_path):
    model = MODELS[name]()
    values = TreeExplainer(model).shap_values(X)
    fast = plain(model).fit(X)
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
    for names in (None, FRAME[:9]):
        made = TreeExplainer(lightgbm_model(Y, X if names is None else FRAME), names)
        columns = None if names is None else [*FRAME.columns]
        assert made.data_feature_names == columns
        assert made.feature_names is made(FRAME.to_numpy()).output_names is None
        assert made(X).feature_names == columns  # not Column_0, ...
        assert made(FRAME).feature_names == [*FRAME.columns]
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


def test_background_rows_of_pipelines_have_the_dtype_of_rows():
    pipeline = make_pipeline(StandardScaler(), forest()).fit(X, Y)
    values = TreeExplainer(pipeline, X[:9]).shap_values(X)
    wide = TreeExplainer(pipeline, X[:9].astype(float)).shap_values(X.astype(float))
    np.testing.assert_allclose(values, wide, atol=1e-6)
    file = io.BytesIO()
    TreeExplainer(pipeline, X[:9]).save(file)  # with the forest for such rows
    file.seek(0)
    np.testing.assert_array_equal(TreeExplainer.load(file).shap_values(X), values)


def test_a_dmatrix_is_read():
    holes = np.where(X > 1, np.nan, X)
    model = xgboost_model(Y, holes)
    explainer, data = TreeExplainer(model.get_booster()), xgboost.DMatrix(holes)
    values = explainer.shap_values(holes)
    np.testing.assert_array_equal(explainer.shap_values(data), values)
    data.set_base_margin(np.ones(N))
    with pytest.raises(InvalidInputError, match=r"^the DMatrix has base margins"):
        explainer.shap_values(data)


def test_without_shap_values_are_still_there(monkeypatch):
    explainer = TreeExplainer(forest(), X[:9])
    monkeypatch.setitem(sys.modules, "shap", None)
    assert explainer.shap_values(X).shape == X.shape
    assert error_of(InvalidInputError, explainer, X) == (
        "explainer(X) returns a shap.Explanation, which needs the shap package: "
        "install it with 'pip install shap', or use explainer.shap_values(X)."
    )
    with pytest.raises(InvalidInputError, match=r"^explainer\.masker returns a shap\."):
        explainer.masker  # noqa: B018


def test_outputs_of_catboost_come_first_in_interactions():
    model = catboost_model(CLASSES)  # with background rows, shap crashes
    made = TreeExplainer(model)
    both, values = made.shap_interaction_values(X), made.shap_values(X)
    assert both.shape == (3, N, 4, 4)
    assert values.shape == (N, 4, 3)
    for k in range(3):
        sums = both[k].sum(axis=-1)
        np.testing.assert_allclose(sums, values[..., k], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(made.shap_interaction_values(X[0]), both[:, 0])
    effects = made.explain_row(X[0], main_effects=True)["main_effects"]
    assert effects.shape == (4, 3)
    np.testing.assert_array_equal(effects[:, 1], np.diag(both[1, 0]))
    assert made.expected_value.shape == (3,)
    theirs = pytest.importorskip("shap").TreeExplainer(model)
    same(both, theirs.shap_interaction_values(X))  # a list of outputs
    same(values, theirs.shap_values(X))
    same(made.expected_value, theirs.expected_value)
    shown, expected = (one(X[:5], interactions=True) for one in (made, theirs))
    same(shown.values, expected.values)
    same(shown.base_values, expected.base_values)


def test_one_row_has_the_form_of_exact_explainers():
    made = TreeExplainer(forest(RandomForestClassifier, CLASSES))
    options = {"error_bounds": False, "outputs": None, "silent": True}
    row = made.explain_row(X[0], max_evals=9, main_effects=True, **options)
    np.testing.assert_array_equal(row["values"], made.shap_values(X[0]))
    np.testing.assert_array_equal(row["expected_values"], made.expected_value)
    assert row["mask_shapes"] == [(4,)]
    both = made.shap_interaction_values(X[0])
    for k in range(3):
        np.testing.assert_array_equal(row["main_effects"][:, k], np.diag(both[..., k]))
    single = TreeExplainer(forest(), X[:9]).explain_row(FRAME.iloc[0])
    assert np.isscalar(single["expected_values"])
    assert single["main_effects"] is None


@pytest.mark.parametrize("name", ["three classes", "XGBoost"])
def test_sums_can_be_checked_by_hand(name):
    made = TreeExplainer(MODELS[name]())
    values, raw = made.shap_values(X), made.model.predict_raw(X)
    made.assert_additivity(values, raw)
    made.assert_additivity(values[5], raw[5])
    if values.ndim == 3:
        made.assert_additivity([values[..., k] for k in range(3)], raw)
    wrong = raw.copy()
    wrong[7] += 3
    with pytest.raises(VerificationError, match=r"^row 7: the contributions add up to"):
        made.assert_additivity(values, wrong)


def saved(explainer):
    file = io.BytesIO()
    explainer.save(file)
    return io.BytesIO(file.getvalue())


@pytest.mark.parametrize("data", [None, FRAME[:20], X[:20].tolist()])
def test_saved_explainers_give_the_same_bits(data):
    rows = FRAME if isinstance(data, pd.DataFrame) else X
    made = TreeExplainer(forest(rows=rows), data, feature_names=list("abcd"))
    file = saved(made)
    again = TreeExplainer.load(file)
    assert type(again) is TreeExplainer
    assert again.feature_names == list("abcd")
    np.testing.assert_array_equal(again.expected_value, made.expected_value)
    np.testing.assert_array_equal(again.shap_values(rows), made.shap_values(rows))
    assert type(again._background) is (np.ndarray if type(data) is list else type(data))
    file.seek(0)
    arguments = TreeExplainer.load(file, instantiate=False)
    assert sorted(arguments) == ["data", "feature_names", "model"]


def test_files_that_are_no_explainers_are_refused(tmp_path):
    skforge.save(plain(forest()).fit(X), tmp_path / "model.skforge")
    model = io.BytesIO((tmp_path / "model.skforge").read_bytes())
    assert (
        error_of(InvalidModelError, TreeExplainer.load, model)
        == "the file holds no explainer; use skforge.load."
    )
    content = saved(TreeExplainer(forest(), FRAME[:9])).getvalue()
    (tmp_path / "made.skforge").write_bytes(content)
    with pytest.raises(InvalidModelError, match=r"use TreeExplainer\.load\.$"):
        skforge.load(tmp_path / "made.skforge")
    for damaged in (
        b"",
        pickle.dumps(1),
        content[:-9],
        content.replace(b"age", b"AGE"),
    ):
        with pytest.raises(
            InvalidModelError, match=r"^the explainer cannot be loaded: "
        ):
            TreeExplainer.load(io.BytesIO(damaged))


NOT_SAVED = {
    "pass a file open in binary mode, such as open(path, 'wb'). Got str instead.": (
        lambda made: made.save("explainer.skforge")
    ),
    "pass a file open in binary mode, such as open(path, 'rb'). Got StringIO "
    "instead.": lambda made: made.load(io.StringIO()),
    "skforge writes and reads models and background rows itself, in a format of its "
    "own; leave out savers and loaders, or pickle the explainer.": (
        lambda made: made.save(io.BytesIO(), model_saver=pickle.dump)
    ),
    "save writes background rows that are an array or a pandas DataFrame of numbers. "
    "Got csr_array instead; save explainer.model with skforge.save, and make the "
    "explainer again from both.": (
        lambda made: saved(TreeExplainer(made.model, csr_array(X[:9])))
    ),
    "names must be texts or whole numbers to be saved. Got [0.5, 1.5, 2.5, 3.5] "
    "instead.": (
        lambda made: saved(TreeExplainer(made.model, feature_names=np.arange(4) + 0.5))
    ),
}


@pytest.mark.parametrize("text", NOT_SAVED)
def test_explainers_that_are_not_saved(text):
    assert error_of(InvalidInputError, NOT_SAVED[text], TreeExplainer(forest())) == text


def test_background_rows_are_there_as_in_shap():
    shap = pytest.importorskip("shap")
    holes = FRAME[:30].where(FRAME[:30] < 1)
    for rows in (holes, holes.to_numpy(), shap.maskers.Independent(holes.to_numpy())):
        model = xgboost_model(Y)
        ours, theirs = TreeExplainer(model, rows), shap.TreeExplainer(model, rows)
        np.testing.assert_array_equal(ours.data, theirs.data)
        np.testing.assert_array_equal(ours.data_missing, theirs.data_missing)
        assert type(ours.masker) is type(theirs.masker)
        np.testing.assert_array_equal(ours.masker.data, theirs.masker.data)
    assert len(TreeExplainer(forest(), X).masker.data) == N  # shap samples 100
    assert ours.link is theirs.link
    assert ours.link.inverse(3.5) == 3.5
    alone = TreeExplainer(forest())
    assert alone.masker is alone.data is alone.data_missing is None
    texts = TreeExplainer(forest())
    texts._background = np.array([["a", None, np.nan]], dtype=object)
    np.testing.assert_array_equal(texts.data_missing, [[False, True, True]])


def test_models_and_maskers_that_are_supported():
    supports = TreeExplainer.supports_model_with_masker
    assert supports(forest(), None)
    assert supports(forest(), X[:9])
    assert not supports(RandomForestRegressor(), None)
    votes = VotingRegressor([("forest", forest()), ("boosting", forest())]).fit(X, Y)
    assert not supports(votes, None)
    with pytest.raises(UnsupportedModelError):  # not as late as in shap_values
        TreeExplainer(votes)
    shap = pytest.importorskip("shap")
    assert supports(forest(), shap.maskers.Independent(X[:9]))
    assert not supports(forest(), shap.maskers.Partition(X[:9]))


def test_approximate_values_are_not_for_the_constructor():
    with pytest.warns(
        DeprecationWarning, match="^approximate has no effect here"
    ) as found:
        TreeExplainer(forest(), None, "raw", "auto", None, True)
    assert found[0].filename == __file__


REFUSED = {
    "model_output must be 'raw'. Got 'probability' instead; use shap.TreeExplainer "
    "with background rows to explain probabilities or losses.": {
        "model_output": "probability"
    },
    "feature_perturbation must be one of auto, interventional, tree_path_dependent. "
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
    assert error_of(InvalidInputError, TreeExplainer, forest(), **REFUSED[text]) == text


def test_interventional_without_rows_is_path_dependent_as_in_shap():
    with pytest.warns(FutureWarning, match="needs background rows") as found:
        explainer = TreeExplainer(forest(), feature_perturbation="interventional")
    assert found[0].filename == __file__
    assert explainer.feature_perturbation == "tree_path_dependent"


def test_maskers_with_clusters_are_refused():
    shap = pytest.importorskip("shap")
    assert error_of(
        InvalidInputError, TreeExplainer, forest(), shap.maskers.Partition(X)
    ) == (
        "data must be background rows or a shap.maskers.Independent. Got a Partition "
        "masker instead."
    )


def test_all_trees_are_explained():
    explainer = TreeExplainer(forest())
    for limit in (None, -1, 4):
        assert explainer.shap_values(X, tree_limit=limit).shape == X.shape
    for method in (explainer.shap_values, explainer.shap_interaction_values):
        assert error_of(InvalidInputError, method, X, tree_limit=2) == (
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


@pytest.mark.parametrize("kind", ["live", "pipeline", "stored"])
def test_deep_trees_beside_all_subsets(kind, tmp_path):
    """Trees of full depth, whose predictions pieces make, and few rows of them."""
    random = np.random.default_rng(1)
    rows = random.normal(size=(700, 3))
    y = rows[:, 0] * rows[:, 1] + random.normal(size=700) / 3
    model = RandomForestRegressor(2, random_state=0)
    if kind == "pipeline":
        model = make_pipeline(StandardScaler(), model)
    fast = plain(model.fit(rows, y)).fit(rows)
    assert np.diff(fast.forest_.tree_offset).min() > 2 * 254
    if kind == "stored":
        skforge.save(fast, tmp_path / "m.skforge")
        fast = skforge.load(tmp_path / "m.skforge")
    for n in (1, 20):
        given = rows[:n].astype(np.float32) if kind == "live" else rows[:n]
        explainer = TreeExplainer(fast)
        wanted = oracle.shap_values(fast.forest_, rows[:n].astype(np.float32))
        if kind == "pipeline":
            scaled = model[0].transform(rows[:n])
            wanted = oracle.shap_values(load_forest(model[1]), scaled)
        found = explainer.shap_values(given)
        np.testing.assert_allclose(found, wanted[:, 0, :-1], atol=1e-12)
