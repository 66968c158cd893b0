"""Files of earlier releases, by the rules of today."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from sklearn.ensemble import AdaBoostClassifier

from skforge import load_forest
from skforge.persistence.older_formats import format_1

NAMED = dict.fromkeys(("parameter", "divisor", "offsets", "cutoff"))


@pytest.mark.parametrize("classes", [2, 3])
def test_rules_that_a_name_told_are_those_of_the_model(classes: int) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = AdaBoostClassifier(n_estimators=2).fit(X, np.arange(60) % classes)
    forest = load_forest(model)
    rules = asdict(forest.outputs)
    named = {**NAMED, "kind": "samme"}
    old = format_1._outputs(named, forest.task, "sklearn", forest.n_outputs)
    told = "function", "probabilities", "labels", "decision"
    assert {part: old[part] for part in told} == {part: rules[part] for part in told}
