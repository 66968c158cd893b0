"""The registry: a frontend is one file that registers itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from skforge.compiler.frontends import Frontend, base, load_forest, register
from skforge.compiler.frontends.sklearn import load as load_sklearn
from skforge.exceptions import InvalidModelError, UnsupportedModelError


class Stump:
    """A model of somebody else's library."""

    def __init__(self, threshold):
        self.threshold = threshold

    def forest(self):
        X = np.array([[self.threshold - 1], [self.threshold + 1]])
        return load_sklearn(DecisionTreeRegressor().fit(X, [0.0, 1.0]))


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch):
    load_forest(DecisionTreeRegressor().fit([[0.0]], [0.0]))  # registers our own
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


def stump_frontend(**changes):
    arguments = {
        "name": "stumps",
        "suffixes": (".stump",),
        "detect": lambda model: isinstance(model, Stump),
        "load": lambda model, rounds: model.forest(),
        "load_file": lambda path, rounds: Stump(float(path.read_text())).forest(),
    }
    return Frontend(**{**arguments, **changes})


def test_a_registered_frontend_reads_objects_and_files(tmp_path):
    register(stump_frontend())
    assert load_forest(Stump(3.0)).threshold.tolist() == [3.0]
    file = tmp_path / "model.STUMP"
    file.write_text("5.0")
    assert load_forest(file).threshold.tolist() == [5.0]
    assert load_forest(str(file)).threshold.tolist() == [5.0]


def test_the_frontend_registered_last_is_asked_first():
    register(stump_frontend())
    register(stump_frontend(name="other", load=lambda m, r: Stump(7.0).forest()))
    assert load_forest(Stump(3.0)).threshold.tolist() == [7.0]
    register(stump_frontend())  # registering again moves it to the front
    assert load_forest(Stump(3.0)).threshold.tolist() == [3.0]


def test_what_a_frontend_returns_is_validated():
    def load_damaged(model, rounds):
        from dataclasses import replace

        return replace(model.forest(), feature=np.array([4]))

    register(stump_frontend(load=load_damaged))
    with pytest.raises(InvalidModelError) as error:
        load_forest(Stump(3.0))
    assert str(error.value) == (
        "feature[0] = 4 of predicate 0 (first used in tree 0) is outside 0..0; "
        "the model is damaged, export it again."
    )


def test_an_unreadable_file_is_named(tmp_path):
    def load_file(path, rounds):
        raise PermissionError(13, "Permission denied")

    register(stump_frontend(load_file=load_file))
    file = tmp_path / "a.stump"
    file.write_text("1")
    with pytest.raises(InvalidModelError) as error:
        load_forest(file)
    assert str(error.value) == f"{file} cannot be read: Permission denied."


def test_a_long_quotation_of_a_file_is_cut_short(tmp_path):
    file = tmp_path / "model.json"
    objective = {"name": "y" * 100_000}
    learner = {
        "gradient_booster": {"name": "gbtree", "model": {}},
        "learner_model_param": {},
        "objective": objective,
    }
    file.write_text(json.dumps({"learner": learner}))
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(file)
    text = str(error.value)
    assert text.startswith("model.json: The objective 'yyy")
    assert text.endswith("so its predictions cannot be reproduced.")
    assert len(text) < 1000
