"""Tests of ``unit/test_transforms.py`` that compile or start processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from skforge.frontends import load_forest
from tests.kinds import MODELS
from tests.outputs_of import outputs_of


def test_importing_the_transforms_loads_no_llvm():
    code = (
        "import sys, skforge.outputs.answers\n"
        "print([m for m in ('llvmlite', 'scipy.special', 'xgboost') "
        "if m in sys.modules])"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", code], text=True, cwd=Path(__file__).parents[2]
    )
    assert output == "[]\n"


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
    forest = load_forest(MODELS[kind].fitted())
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
