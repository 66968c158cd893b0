"""Tests of ``unit/test_frontend_lightgbm_dump.py`` that compile or start processes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import skforge
from skforge import compile_forest
from skforge.exceptions import UnsupportedModelError
from skforge.outputs.functions import UNKNOWN
from tests.plain import plain
from tests.unit import test_frontend_lightgbm_dump
from tests.unit.test_frontend_lightgbm_dump import DATA, train

dump = test_frontend_lightgbm_dump.dump

lgb = pytest.importorskip("lightgbm")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("objective", "params"),
    [
        ("regression", {}),
        ("multiclass", {}),
        ("regression", {"zero_as_missing": True}),
        ("regression", {"use_missing": False}),
        ("regression", {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}),
    ],
)
def test_files_predict_as_the_booster(objective, params, tmp_path):
    booster, X = train(objective, **params)
    for name, indent in (("model.json", None), ("model.txt", 2)):
        path = tmp_path / name
        path.write_text(json.dumps(booster.dump_model(), indent=indent))
        fast = plain(str(path)).fit(X)
        raw = booster.predict(X, raw_score=True)
        np.testing.assert_array_equal(fast.predict_raw(X), raw)


def test_an_early_dump_has_scores_and_no_predictions(tmp_path):
    """LightGBM names the objective in dumps since 2.2.3, beside average_output."""
    path = DATA / "2.1.2-binary.json"
    expected = np.load(DATA / "2.1.2.npz")
    X, name = expected["X"], "2.1.2-binary.txt"
    module, fast = compile_forest(path), plain(str(path)).fit(X)
    skforge.save(fast, tmp_path / "a.skforge")
    for model in (module, fast, skforge.load(tmp_path / "a.skforge")):
        np.testing.assert_array_equal(model.predict_raw(X), expected[f"{name}:raw"])
        np.testing.assert_array_equal(model.apply(X), expected[f"{name}:leaf"])
        assert model.predict_contribs(X).shape == (len(X), 4)
        with pytest.raises(UnsupportedModelError) as error:
            model.predict(X)
        assert str(error.value) == UNKNOWN
        with pytest.raises(AttributeError) as missing:
            model.predict_proba(X)
    assert str(missing.value) == (
        f"'CompiledForest' object has no attribute 'predict_proba'. {UNKNOWN}"
    )
    skforge.export(module, tmp_path / "own", kind="c")
    left_out = json.loads((tmp_path / "own" / "own.json").read_text())["left_out"]
    assert left_out == {"predict": "the model does not name its objective"}


@pytest.mark.parametrize("objective", ["binary", None])
def test_a_dump_with_average_output_has_predictions(objective):
    """A later dump without an objective is of the user's own: raw scores."""
    dump = json.loads((DATA / "2.1.2-binary.json").read_text())
    dump |= {"average_output": False}
    if objective is not None:
        dump["objective"] = "binary sigmoid:1.93226"
    expected = np.load(DATA / "2.1.2.npz")
    kind = "raw" if objective is None else "value"
    np.testing.assert_array_equal(
        compile_forest(dump).predict(expected["X"]),
        expected[f"2.1.2-binary.txt:{kind}"],
    )
