"""Tests of ``unit/test_frontends.py`` that compile or start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run_python


def test_only_the_frontends_that_may_read_a_model_are_imported():
    script = """
import sys
from sklearn.tree import DecisionTreeRegressor
from skforge import load_forest
from tests.unit.test_frontends import Stump, register, stump_frontend

load_forest(DecisionTreeRegressor().fit([[0.0], [1.0]], [0.0, 1.0]))
names = ["lightgbm", "onnx", "xgboost"]
print([n for n in names if f"skforge.frontends.{n}" in sys.modules])
Booster = type("Booster", (Stump,), {"__module__": "xgboost.core"})
register(stump_frontend(detect=lambda model: isinstance(model, Booster)))
print(load_forest(Booster(3.0)).threshold.tolist())  # asked before skforge's own
print([n for n in names if f"skforge.frontends.{n}" in sys.modules])
"""
    assert run_python(script).splitlines() == ["[]", "[3.0]", "['xgboost']"]


@pytest.mark.parametrize(
    ("library", "names", "trees"),
    [
        ("lightgbm", ["4.7.0-dart.txt", "4.7.0-multiclass.txt"], "[4, 12]"),
        ("xgboost", ["3.2.0-dart.json", "3.2.0-softprob.ubj"], "[3, 18]"),
    ],
)
def test_files_load_without_their_library(library, names, trees):
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from skforge.frontends import load_forest\n"
        "print([load_forest(p).n_trees for p in sys.argv[1:]])"
    )
    data = Path(__file__).parents[1] / "data" / library
    assert run_python(code, *(data / name for name in names)) == f"{trees}\n"
