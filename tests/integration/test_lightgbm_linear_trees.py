"""LightGBM's linear trees, and its dumps: its own bits, from every form of a model."""

from __future__ import annotations

import json
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.ensemble import RandomForestRegressor, VotingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skforge
from skforge import Forest, compile_forest
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.reference import reference_raw
from skforge.outputs.functions import UNKNOWN
from tests.comparing import in_every_state, refusal
from tests.plain import fit_both, plain
from tests.unit import test_frontend_lightgbm_dump
from tests.unit.test_frontend_lightgbm_dump import DATA, train

lgb = pytest.importorskip("lightgbm")

OBJECTIVES = "regression", "huber", "poisson", "binary", "multiclass", "multiclassova"
#: Numbers that LightGBM takes for 0, and those whose products leave the finite ones.
ODD = 0.0, -0.0, 1e-36, -1e-35, 1e300, np.inf, -np.inf, np.nan


def same(found: Any, wanted: Any) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    fine = ~np.isnan(wanted)  # the signs of NaN are the processor's
    np.testing.assert_array_equal(found, wanted)
    assert found[fine].tobytes() == wanted[fine].tobytes()


def drawn(seed: int) -> tuple[Any, Any, np.random.Generator]:
    """Return a drawn booster, and rows on and around what its leaves compute with."""
    rng = np.random.default_rng(seed)
    n, width = int(rng.integers(30, 500)), int(rng.integers(1, 8))
    X = rng.normal(size=(n, width))
    X[rng.random(X.shape) < 0.1 * (seed % 2)] = np.nan
    y = np.nan_to_num(X).sum(axis=1) + np.nan_to_num(X[:, 0] * X[:, -1])
    objective = OBJECTIVES[seed % len(OBJECTIVES)]
    params: dict[str, Any] = {"linear_tree": True, "verbose": -1, "num_threads": 1}
    params |= {"objective": objective, "seed": seed, "linear_lambda": 0.1 * (seed % 3)}
    params |= {"num_leaves": int(rng.integers(2, 40)), "min_data_in_leaf": 3}
    params["boosting"] = rng.choice(["gbdt", "dart"])
    if objective.startswith("multi"):
        params["num_class"], y = 3, np.digitize(y, [-1, 1])
    elif objective in ("binary", "poisson"):
        y = (y > 0) * 1.0
    categories = [width - 1] if seed % 5 == 0 and width > 1 else []
    X[:, categories] = rng.integers(0, 6, (n, len(categories)))
    data = lgb.Dataset(X, y, categorical_feature=categories)
    booster = lgb.train(params, data, int(rng.integers(1, 20)))
    rows = np.concatenate([X, rng.normal(size=(100, width)) * 3])
    odd = rng.random(rows.shape) < 0.1
    rows[odd] = rng.choice(ODD, odd.sum())
    return booster, rows, rng


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(200))
def test_random_models(seed: int) -> None:
    booster, rows, rng = drawn(seed)
    raw = booster.predict(rows, raw_score=True)
    models = re.search(r"num_features=.*[1-9]", booster.model_to_string()) is not None
    for form in (booster, booster.model_to_string(), booster.dump_model()):
        module = compile_forest(form)
        assert (module.forest.aggregate == "linear") == models
        with np.errstate(all="ignore"):
            same(module.predict(rows), booster.predict(rows))
            for n in (1, 2, len(rows)):
                same(module.predict_raw(rows[:n]), raw[:n])
    same(
        module.apply(rows), booster.predict(rows, pred_leaf=True).reshape(len(rows), -1)
    )
    with np.errstate(over="ignore"):
        narrow = rows.astype(np.float32)
    same(module.predict_raw(narrow), booster.predict(narrow, raw_score=True))
    wanted = reference_raw(module.forest, rows)
    same(wanted[:, 0] if module.forest.n_outputs == 1 else wanted, raw)
    same(module.predict_raw(rows, n_jobs=2), raw)
    end = int(rng.integers(1, booster.current_iteration() + 1))
    few = booster.predict(rows, raw_score=True, num_iteration=end)
    same(module.predict_raw(rows, num_iteration=end), few)
    *_, last = module.staged_predict_raw(rows)
    same(last, raw)
    chosen = module.forest.select_trees(slice(0, end * module.forest.n_outputs))
    same(compile_forest(chosen).predict_raw(rows), few)


RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(600, 5)), columns=list("abcde"))
SCORE = (FRAME.a * FRAME.b + np.sin(3 * FRAME.c)).to_numpy()
HOW: dict[str, Any] = {"n_estimators": 12, "verbose": -1, "n_jobs": 1}
HOW["linear_tree"] = True


@pytest.mark.parametrize("kind", ["Regressor", "Classifier"])
def test_wrappers_pickles_and_files(kind: str, tmp_path: Any) -> None:
    y = SCORE if kind == "Regressor" else np.digitize(SCORE, [-0.5, 0.5])
    model, fast = fit_both(getattr(lgb, f"LGBM{kind}")(**HOW), FRAME, y)
    gaps = FRAME.mask(RNG.random(FRAME.shape) < 0.2)
    for one in in_every_state(fast, tmp_path).values():
        for rows in (FRAME, gaps, FRAME[:1]):
            same(one.predict(rows), model.predict(rows))
            if kind == "Classifier":
                same(one.predict_proba(rows), model.predict_proba(rows))
    row = {"a": 1.0, "b": 2.0, "c": 0.0, "d": 1.0, "e": 1.0}
    same(fast.predict(row), model.predict(pd.DataFrame([row])))
    assert fast.counters()["library"]["calls"] == 0
    values = fast.predict_per_tree(gaps)
    if kind == "Regressor":
        same(np.add.accumulate(values, axis=1)[:, -1], model.predict(gaps))


def test_sparse_rows_of_many_columns() -> None:
    dense = np.where(RNG.random((400, 300)) < 0.7, 0, RNG.normal(size=(400, 300)))
    dense[:, 20:250] = 0
    X = sparse.csr_matrix(dense)
    model = lgb.LGBMRegressor(**HOW).fit(X, dense[:, 0] * dense[:, 260] + dense[:, 255])
    fast = plain(model).fit(X)
    assert fast.forest_.aggregate == "linear"
    same(fast.predict(X), model.predict(X))


def test_pipelines_and_votes() -> None:
    model, array = lgb.LGBMRegressor(**HOW), FRAME.to_numpy()
    piped = make_pipeline(StandardScaler(), model).fit(array, SCORE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the step that runs in scikit-learn
        fast = plain(piped).fit(array)
        same(fast.predict(array), piped.predict(array))
    assert "compute with the columns that the steps make" in fast.inspect("pipeline")
    vote = VotingRegressor([("a", model), ("b", RandomForestRegressor(3))])
    vote.fit(array, SCORE)
    same(plain(vote).fit(array).predict(array), vote.predict(array))


def test_what_is_refused(tmp_path: Any) -> None:
    _, fast = fit_both(lgb.LGBMRegressor(**HOW), FRAME, SCORE)
    for call, text in (
        (lambda: fast.predict_contribs(FRAME), "takes the linear models of its trees"),
        (
            lambda: skforge.export(fast, tmp_path / "a"),
            "linear models in leaves cannot",
        ),
        (lambda: Forest.concatenate([fast.forest_] * 2), "are not joined"),
    ):
        with pytest.raises(UnsupportedModelError, match=text):
            call()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("num_features", "-1", "num_features is less than 0"),
        ("num_features", "1 1 1", "num_features of tree 1 has 3 numbers, not 2"),
        ("leaf_features", "9 9", "no finite linear model of 2 features"),
        ("leaf_coeff", "1.0", "leaf_coeff of tree 1 has 1 numbers"),
        ("leaf_coeff", "nan nan", "no finite linear model"),
        ("leaf_const", "", "leaf_const of tree 1 has 0 numbers, not 2"),
    ],
)
def test_damaged_models(key: str, value: str, text: str) -> None:
    X = RNG.normal(size=(100, 2))
    params = {"linear_tree": True, "verbose": -1, "num_leaves": 2}
    params["feature_fraction"] = 1.0
    whole = lgb.train(params, lgb.Dataset(X, X[:, 0] ** 2), 2).model_to_string()
    head, mark, tree = whole.partition("Tree=1")
    if value == "-1":
        value = "-1 -1"
    tree, n = re.subn(f"(?m)^{key}=.*$", f"{key}={value}", tree)
    assert n == 1
    head = re.sub("(?m)^tree_sizes=.*\n", "", head)
    with pytest.raises(InvalidModelError, match=text):
        compile_forest(f"{head}{mark}{tree}")


# ------------------------------------------------------------ dumps of boosters

dump = test_frontend_lightgbm_dump.dump


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
        assert refusal(UnsupportedModelError, model.predict, X) == UNKNOWN
        said = refusal(AttributeError, getattr, model, "predict_proba")
    assert said == (
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
