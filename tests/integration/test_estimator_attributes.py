"""Attributes that a CompiledForest has from its model, whatever the model is."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

import skforge
from skforge import CompiledForest, load_forest

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")

X, Y = make_classification(200, 6, n_informative=4, random_state=0)
X = X.astype(np.float32)

# ------------------------------------------------- every kind, every attribute

NAMES = (
    *("classes_", "n_features_in_", "feature_names_in_", "feature_importances_"),
    *("n_outputs_", "n_classes_", "estimators_", "estimator_", "best_iteration"),
    *("best_score", "best_iteration_", "coef_", "intercept_", "offset_", "steps"),
    *("_repr_html_", "_repr_mimebundle_", "_sk_visual_block_", "_estimator_type"),
    *("__sklearn_is_fitted__", "__sklearn_tags__", "__sklearn_clone__"),
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__len__"),
    *("predict", "predict_proba", "predict_log_proba", "decision_function", "apply"),
    *("score_samples", "predict_raw", "score", "transform", "fit_predict"),
    *("nonsense", "nonsense_", "_nonsense", "title", "name", "graph", "tree_offset"),
)


def kinds(folder):
    """Return a source of every kind, by name."""
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, Y)
    wrapper = xgb.XGBClassifier(n_estimators=3, max_depth=3, n_jobs=1).fit(X, Y)
    wrapper.save_model(folder / "model.json")
    wrapper.get_booster().save_model(folder / "booster.ubj")
    light = lgb.LGBMClassifier(n_estimators=3, num_leaves=4, verbose=-1).fit(X, Y)
    light.booster_.save_model(folder / "model.txt")
    made = {
        "estimator": forest,
        "unfitted": RandomForestClassifier(3, max_depth=3, random_state=0),
        "xgb-wrapper": wrapper,
        "xgb-booster": wrapper.get_booster(),
        "lgbm-wrapper": light,
        "lgbm-booster": light.booster_,
        "path": folder / "model.json",
        "text": str(folder / "model.json"),
        "ubj": folder / "booster.ubj",
        "lgbm-file": str(folder / "model.txt"),
        "lgbm-text": light.booster_.model_to_string(),
        "forest": load_forest(forest),
        "stored": CompiledForest(forest, tuning="off").fit(X).drop_estimator(),
    }
    onnx = pytest.importorskip("skl2onnx")
    made["proto"] = onnx.to_onnx(forest, X[:1], options={"zipmap": False})
    (folder / "model.onnx").write_bytes(made["proto"].SerializeToString())
    made["onnx-file"] = folder / "model.onnx"
    made["stored"] = made["stored"].estimator
    return made


def copies(compiled, folder):
    """Return a fitted one by every way on which it travels."""
    skforge.save(compiled, folder / "saved.skforge")
    return {
        "fitted": compiled,
        "pickled": pickle.loads(pickle.dumps(compiled)),
        "copied": copy.deepcopy(compiled),
        "loaded": skforge.load(folder / "saved.skforge"),
        "dropped": compiled.drop_estimator(),
    }


def test_hasattr_never_raises(tmp_path):
    wrong = []

    def walk(what, compiled):
        for name in NAMES:
            try:
                if hasattr(compiled, name):
                    getattr(compiled, name)
            except Exception as error:  # noqa: BLE001 - any is the fault
                wrong.append((what, name, repr(error)))

    for kind, model in kinds(tmp_path).items():
        compiled = CompiledForest(model, tuning="off")
        walk((kind, "before"), compiled)
        fitted = compiled.fit(X, Y) if kind == "unfitted" else compiled.fit(X)
        for how, one in copies(fitted, tmp_path).items():
            walk((kind, how), one)
        if kind not in ("proto", "stored"):  # clone copies what is no estimator
            walk((kind, "cloned"), clone(fitted))
    assert wrong == []


def test_what_a_file_lacks_is_named(tmp_path):
    wrapper = xgb.XGBRegressor(n_estimators=3, max_depth=3, n_jobs=1).fit(X, Y)
    wrapper.save_model(tmp_path / "model.json")
    for path in (tmp_path / "model.json", str(tmp_path / "model.json")):
        compiled = CompiledForest(path, tuning="off").fit(X)
        for name in ("classes_", "title", "stem"):
            with pytest.raises(AttributeError) as error:
                getattr(compiled, name)
            assert str(error.value) == (
                f"'CompiledForest' object has no attribute {name!r}"
            )
        assert compiled.n_features_in_ == 6
