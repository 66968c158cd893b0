"""predict_contribs of saved, pickled and dropped models, and before a first request."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.preprocessing import StandardScaler as Scaler

import skforge
from skforge import (
    CompiledForest,
    InvalidInputError,
    Schedule,
    UnsupportedModelError,
    compile_forest,
    load_forest,
)
from skforge.engine.cpu.code import MachineCode
from skforge.modules.auto import AutoModule
from tests.noted import calls_of
from tests.plain import plain

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")

X, Y = make_classification(300, 6, n_informative=4, n_classes=3, random_state=0)
X = X.astype(np.float32)
#: One small kernel of the scores, which are not what is tested.
QUICK = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")

MODELS = {
    "xgboost": lambda: xgb.XGBClassifier(n_estimators=3, max_depth=3).fit(X, Y),
    "lightgbm": lambda: lgb.LGBMRegressor(n_estimators=3, verbose=-1).fit(X, Y),
    "booster": lambda: (
        lgb.LGBMClassifier(n_estimators=3, verbose=-1)
        .fit(X, np.array(["a", "b", "c"])[Y])
        .booster_
    ),
    "forest": lambda: RandomForestRegressor(3, max_depth=4).fit(X, Y),
    "classes": lambda: RandomForestClassifier(3, max_depth=4).fit(X, Y),
    "histogram": lambda: HistGradientBoostingClassifier(max_iter=3).fit(X, Y > 0),
}
OPTIONS = {
    "values": {},
    "interactions": {"interactions": True},
    "approximate": {"approximate": True},
    "background": {"background": X[:5]},
}


@pytest.fixture(scope="module")
def fitted():
    kept = {}

    def get(name):
        if name not in kept:
            kept[name] = CompiledForest(MODELS[name](), schedule=QUICK).fit(X)
        return kept[name]

    return get


@pytest.mark.sampled(4)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_saved_models_contribute_the_same_bits(name, option, fitted, tmp_path):
    fast, options = fitted(name), OPTIONS[option]
    expected = fast.predict_contribs(X[:70], **options)
    skforge.save(fast, tmp_path / "model.skforge")
    module = compile_forest(fast.forest_, QUICK)
    skforge.save(module, tmp_path / "module.skforge")
    others = [
        skforge.load(tmp_path / "model.skforge"),
        fast.drop_estimator(),
        pickle.loads(pickle.dumps(fast.drop_estimator())),
        pickle.loads(pickle.dumps(fast)),
        skforge.load(tmp_path / "module.skforge"),
        pickle.loads(pickle.dumps(module)),
    ]
    for other in others:
        found = other.predict_contribs(X[:70], **options)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()


def test_models_without_covers_say_so(tmp_path):
    forest = replace(load_forest(MODELS["xgboost"]()), cover=np.zeros(0))
    skforge.save(forest, tmp_path / "bare.skforge")
    fast = plain(skforge.load(tmp_path / "bare.skforge")).fit(X)
    skforge.save(fast, tmp_path / "fast.skforge")
    with pytest.raises(UnsupportedModelError) as error:
        skforge.load(tmp_path / "fast.skforge").predict_contribs(X)
    assert "does not store how many training rows reached each node" in str(error.value)


def test_rows_in_every_form(fitted, tmp_path):
    skforge.save(fitted("xgboost"), tmp_path / "model.skforge")
    for model in (fitted("xgboost"), skforge.load(tmp_path / "model.skforge")):
        expected = model.predict_contribs(X)
        shape = expected.shape[1:]
        for rows in (X.tolist(), pd.DataFrame(X), np.asfortranarray(X)):
            assert (model.predict_contribs(rows) == expected).all()
        assert (model.predict_contribs(X[:1]) == expected[:1]).all()
        assert model.predict_contribs(X[:0]).shape == (0, *shape)


def test_rows_of_which_the_source_warns():
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = lgb.LGBMRegressor(n_estimators=3, verbose=-1).fit(frame, Y)
    fast = CompiledForest(model, schedule=QUICK).fit(frame)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        found = fast.predict_contribs(X)
    assert found.tobytes() == fast.predict_contribs(frame).tobytes()


def test_pipelines_with_texts_and_rows_in_single_precision(tmp_path):
    frame = pd.DataFrame(X[:, :3].astype(float), columns=list("abc"))
    frame["word"] = np.array(["x", "y", "z"])[Y]
    steps = make_column_transformer((OneHotEncoder(), ["word"]), remainder=Scaler())
    pipeline = make_pipeline(steps, RandomForestRegressor(3, max_depth=4))
    fast = CompiledForest(pipeline.fit(frame, Y), schedule=QUICK).fit(frame)
    skforge.save(fast, tmp_path / "model.skforge")
    again = skforge.load(tmp_path / "model.skforge")
    expected = fast.predict_contribs(frame)
    assert expected.shape == (300, 5)
    assert again.predict_contribs(frame).tobytes() == expected.tobytes()
    row = frame.iloc[0].to_dict()
    assert again.predict_contribs(row).tobytes() == expected[:1].tobytes()
    pipeline = make_pipeline(Scaler(), RandomForestRegressor(3, max_depth=4))
    fast = CompiledForest(pipeline.fit(X.astype(float), Y), schedule=QUICK).fit(X)
    for rows in (X, X.astype(float)):
        found = fast.predict_contribs(rows).sum(axis=1)
        np.testing.assert_allclose(found, fast.predict_raw(rows), atol=1e-12)


def test_sparse_rows_of_many_columns(fitted):
    """Columns that the forest does not read are there, with zeros."""
    wide = np.zeros((300, 400), np.float32)
    wide[:, 7:13] = X
    fast = plain(xgb.XGBRegressor(n_estimators=3)).fit(wide, Y)
    expected = fast.predict_contribs(np.where(wide == 0, np.nan, wide))
    assert expected.shape == (300, 401)
    found = fast.predict_contribs(sparse.csr_matrix(wide))
    assert found.tobytes() == expected.tobytes()


def test_several_forests_are_refused_by_name():
    from sklearn.calibration import CalibratedClassifierCV

    model = CalibratedClassifierCV(MODELS["classes"](), cv=2).fit(X, Y)
    fast = plain(model).fit(X)
    with pytest.raises(UnsupportedModelError, match=r"^CalibratedClassifierCV comp"):
        fast.predict_contribs(X)


def test_schedules_of_contributions_are_kept(fitted, tmp_path):
    forest = fitted("xgboost").forest_
    blocks = QUICK.vectorize("b1").represent("contributions")
    module = compile_forest(forest, QUICK, contribs_schedule=blocks)
    skforge.save(module, tmp_path / "module.skforge")
    again = skforge.load(tmp_path / "module.skforge")
    assert [*again.contribs_schedule.values()] == [blocks]
    assert again.predict_contribs(X).tobytes() == module.predict_contribs(X).tobytes()


def test_a_gpu_beside_the_cpu_leaves_them_to_the_cpu(fitted):
    forest = fitted("xgboost").forest_
    cpu, gpu = compile_forest(forest), compile_forest(forest, target="emulated")
    found = AutoModule(cpu, gpu, 10).predict_contribs(X)
    assert found.tobytes() == cpu.predict_contribs(X).tobytes()


@pytest.mark.parametrize("sizes", [None, [1, 5, 64, 300]])
def test_after_warm_up_no_call_compiles(sizes, monkeypatch):
    fast = plain(MODELS["lightgbm"]()).fit(X)
    made = calls_of(monkeypatch, MachineCode, "__init__")
    assert fast.warm_up(sizes) is fast
    made.clear()
    fast.predict_contribs(X)
    assert made
    again = plain(MODELS["lightgbm"]()).fit(X)
    again.warm_up(sizes, contribs=True)
    made.clear()
    for size in (1, 5, 64, 300):
        again.predict_contribs(X[:size])
    assert made == []
    with pytest.raises(InvalidInputError):
        again.warm_up([1, 0.5], contribs=True)


def test_routing_knows_only_what_is_of_scikit_learn():
    """Options of predict_contribs are no metadata: it is no method that is routed."""
    import sklearn

    with sklearn.config_context(enable_metadata_routing=True):
        fast = plain(IsolationForest(n_estimators=2)).fit(X)
        routes = str(fast.get_metadata_routing())
    assert "approximate" not in routes and "fit" in routes


@pytest.mark.parametrize("kind", ["xgboost", "random forest", "classes"])
def test_small_batches_are_explained_by_an_entry(kind):
    """Compiled code that Python calls gives the bits of the ordinary path."""
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 6)).astype(np.float32)
    y = X[:, 0] + X[:, 1] * X[:, 2]
    model = {
        "xgboost": xgb.XGBRegressor(n_estimators=9, max_depth=4),
        "random forest": RandomForestRegressor(5, max_depth=6, random_state=0),
        "classes": xgb.XGBClassifier(n_estimators=3, max_depth=3),
    }[kind].fit(X, np.digitize(y, [-1, 1]) if kind == "classes" else y)
    fast, module = plain(model).fit(X), compile_forest(model)

    def explained(rows):
        before = fast.counters()["entry"]["calls"]
        found = fast.predict_contribs(rows)
        return found, fast.counters()["entry"]["calls"] - before

    explained(X[:200])  # too many rows for an entry
    for n in (1, 2, 5, 16, 40, 64):
        explained(X[:n])
        found, calls = explained(X[n : 2 * n])
        assert calls == (kind != "classes")
        wanted = module.predict_contribs(X[n : 2 * n])
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(
        explained(X[:3].astype(np.float64))[0], explained(X[:3])[0]
    )
    np.testing.assert_array_equal(
        explained(np.asfortranarray(X[:3]))[0], explained(X[:3])[0]
    )
    options = {"interactions": True}, {"approximate": True}, {"background": X[:9]}
    for option in options:
        np.testing.assert_array_equal(
            fast.predict_contribs(X[:2], **option),
            module.predict_contribs(X[:2], **option),
        )
    for wrong in (X[:2, :5], X[0]):
        with pytest.raises(ValueError):
            fast.predict_contribs(wrong)
    again = pickle.loads(pickle.dumps(fast))
    np.testing.assert_array_equal(again.predict_contribs(X[:1]), explained(X[:1])[0])
    assert explained(X[:0])[0].shape[0] == 0
