"""warm_up: afterwards no call compiles, or loads compiled code."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

import skforge
from skforge import CompiledForest, InvalidInputError, compile_forest
from skforge.engine.cpu.code import MachineCode
from tests import kinds
from tests.noted import calls_of

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")

X, Y = make_classification(400, 6, n_informative=4, random_state=0)
X = X.astype(np.float32)
SIZES = (1, 2, 16, 64, 128, 300, 2049)
METHODS = (
    *("predict", "predict_proba", "predict_log_proba", "predict_raw", "apply"),
    *("decision_function", "score_samples"),
)


@pytest.fixture
def compilations(monkeypatch):
    """Count what is compiled, or found in the cache and loaded."""
    return calls_of(monkeypatch, MachineCode, "__init__")


def call_everything(model, rows, sizes=SIZES):
    """Call all methods with rows in all forms, and more often than is a habit."""
    for size in sizes:
        few = np.resize(rows, (size, rows.shape[1]))
        forms = [few, few.astype(np.float64), np.asfortranarray(few)]
        if not isinstance(model, skforge.modules.compiled.CompiledModule):
            forms.append(sparse.csr_matrix(few))
        for name in METHODS:
            if hasattr(model, name):
                for form in forms:
                    for _ in range(5 if size < 64 else 1):
                        with np.errstate(divide="ignore"):
                            getattr(model, name)(form)


#: Kinds of models; one of them becomes a file.
NAMES = (
    *("forest of two", "forest of names", "isolation", "xgboost of two"),
    *("lightgbm, booster", "file of xgboost"),
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["fitted", "pickled", "loaded"])
def test_no_call_compiles(name, how, compilations, tmp_path):
    n_jobs = 2 if name in (NAMES[0], NAMES[-1]) else None
    model = kinds.MODELS["xgboost of two" if name == NAMES[-1] else name].fitted()
    if name == NAMES[-1]:
        model.save_model(tmp_path / "model.json")
        model = tmp_path / "model.json"
    X = kinds.X.astype(np.float32)
    model = CompiledForest(model, tuning="off", n_jobs=n_jobs).fit(X)
    if how == "pickled":
        model = pickle.loads(pickle.dumps(model))
    elif how == "loaded":
        skforge.save(model, tmp_path / "saved.skforge")
        model = skforge.load(tmp_path / "saved.skforge")
    compilations.clear()
    assert model.warm_up() is model
    assert len(compilations) > 0
    compilations.clear()
    call_everything(model, X)
    assert compilations == []


def test_calls_compile_without_it(compilations):
    model = CompiledForest(xgb.XGBRegressor(n_estimators=3), tuning="off").fit(X, Y)
    compilations.clear()
    call_everything(model, X, (300,))
    assert len(compilations) > 0


def test_sparse_rows_of_many_columns(compilations):
    wide = np.zeros((400, 400), np.float32)
    wide[:, 7:13] = X
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(wide, Y)
    model = CompiledForest(forest, tuning="off").fit(wide).warm_up()
    compilations.clear()
    call_everything(model, wide, (1, 9, 300))
    assert compilations == []


def test_some_sizes_compile_less(compilations, tmp_path):
    forest = RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, Y)
    skforge.save(CompiledForest(forest, tuning="off").fit(X), tmp_path / "a.skforge")
    compilations.clear()
    skforge.load(tmp_path / "a.skforge").warm_up()
    every = len(compilations)
    compilations.clear()
    model = skforge.load(tmp_path / "a.skforge").warm_up([1, 300])
    assert len(compilations) < every
    compilations.clear()
    call_everything(model, X, (1, 300))
    assert compilations == []


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_modules(compilations, n_jobs):
    module = compile_forest(xgb.XGBRegressor(n_estimators=3).fit(X, Y), n_jobs=n_jobs)
    assert module.warm_up([1, 2]) is module
    compilations.clear()
    call_everything(module, X, (1, 2))
    assert compilations == []
    module.warm_up()
    compilations.clear()
    call_everything(module, X)
    assert compilations == []


def test_gpus_take_their_share(compilations):
    read = skforge.load_forest(RandomForestClassifier(3, random_state=0).fit(X, Y))
    from skforge.modules.auto import AutoModule

    module = AutoModule(
        compile_forest(read), compile_forest(read, "tahoe-direct", "emulated"), 100
    )
    for sizes, some in (((1, 9), [1, 9]), ((1, 9, 100, 300), None)):
        module.warm_up(some)
        compilations.clear()
        for size in sizes:
            module.predict_raw(X[:size])
            module.apply(X[:size])
        assert compilations == []


@pytest.mark.parametrize("sizes", [[-1], [1.5], ["many"], [None]])
def test_sizes_are_checked(sizes):
    model = CompiledForest(RandomForestClassifier(2, random_state=0)).fit(X, Y)
    for one in (model, compile_forest(model.forest_)):
        with pytest.raises(InvalidInputError) as error:
            one.warm_up(sizes)
        assert str(error.value) == (
            "n_rows must be a number of rows, an int of 0 or more. Got "
            f"{np.ravel(sizes)[0]!r} instead."
        )


def test_what_is_not_fitted_cannot_be_warmed_up():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        CompiledForest(RandomForestClassifier(2)).warm_up()
