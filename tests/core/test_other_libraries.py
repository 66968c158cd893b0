"""Models that the table of kinds lacks: live, pickled, in a file."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skforge
from skforge import CompiledForest
from tests.plain import plain

pytestmark = pytest.mark.doors

X = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
STATES: dict[str, Callable[[Any, Path], Any]] = {
    "live": lambda fast, path: fast,
    "pickle": lambda fast, path: pickle.loads(pickle.dumps(fast)),
    "file": lambda fast, path: (skforge.save(fast, path), skforge.load(path))[1],
}
#: Rows of several forms, and the first of each alone.
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "float32": lambda X: X,
    "float64": lambda X: X.astype(np.float64),
    "Fortran": np.asfortranarray,
    "strided": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "list": lambda X: X.tolist(),
}


def onnx() -> tuple[Any, Callable[..., Any], Any]:
    pytest.importorskip("onnxruntime")
    from tests import onnx_models as made

    trees = made.RandomTrees(3, modes=made.MODES)
    weights = trees.weights("target", lambda tree: range(3))
    model = made.make_model(
        "TreeEnsembleRegressor", {**trees.table(), **weights, "n_targets": 3}, 4
    )
    return model, lambda X: made.run(model, X)[0], X


@pytest.mark.parametrize("state", STATES)
def test_onnx(state: str, tmp_path: Path) -> None:
    model, ask, rows = onnx()
    fast = CompiledForest(model, tuning="off", n_jobs=1).fit(rows)
    fast = STATES[state](fast, tmp_path / "model.skforge")
    for part in (rows, rows[:1]):
        for form, change in FORMS.items():
            answer = fast.predict(change(part))
            assert np.array_equal(answer, ask(part)), (form, len(part))


def test_quantiles(tmp_path: Path) -> None:
    library = pytest.importorskip("quantile_forest")
    model = library.RandomForestQuantileRegressor(5, random_state=0).fit(X, X[:, 0])
    fast = STATES["file"](plain(model).fit(X), tmp_path / "model.skforge")
    for quantiles in (None, 0.3, [0.1, 0.9], "mean"):
        for rows in (X, X[:1]):
            answer = fast.predict(rows, quantiles=quantiles)
            assert np.array_equal(answer, model.predict(rows, quantiles=quantiles))
