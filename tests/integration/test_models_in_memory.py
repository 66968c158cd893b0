"""Tests of ``unit/test_models_in_memory.py`` that compile or start processes."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from sklearn.base import clone, is_classifier

import skforge
from skforge import CompiledForest, load_forest
from skforge.exceptions import InvalidModelError
from tests.plain import plain
from tests.unit import test_models_in_memory
from tests.unit.test_models_in_memory import X, forms

contents = test_models_in_memory.contents


@pytest.mark.parametrize("kind", ["ubj", "text", "onnx"])
def test_an_estimator_of_every_form_can_be_used_again_and_copied(
    kind, contents, tmp_path
):
    """An open file is read once, by the constructor, whatever happens afterwards."""
    expected = plain(contents[kind]).fit(X).predict_proba(X)
    for form, model in forms(contents[kind], tmp_path).items():
        fast = plain(model)
        assert is_classifier(fast), form
        held = fast.get_params()["estimator"]
        assert held == contents[kind] or held.encode() == contents[kind]
        assert len(repr(fast)) < 200
        assert " of a model" in fast._repr_html_()
        for one in (fast.fit(X), clone(fast).fit(X), pickle.loads(pickle.dumps(fast))):
            np.testing.assert_array_equal(one.predict_proba(X), expected)
        if form == "BytesIO":
            assert fast.fit(X).summary().model == "model in memory"
            skforge.save(fast, tmp_path / "a.skforge")
            loaded = skforge.load(tmp_path / "a.skforge")
            np.testing.assert_array_equal(loaded.predict_proba(X), expected)
            fast.set_params(estimator=io.BytesIO(contents[kind]))
            np.testing.assert_array_equal(fast.fit(X).predict_proba(X), expected)


def test_a_file_that_was_read_to_its_end_is_refused_at_once(contents):
    model = io.BytesIO(contents["ubj"])
    model.read()
    for call in (load_forest, CompiledForest):
        with pytest.raises(InvalidModelError) as error:
            call(model)
        assert str(error.value) == (
            "This BytesIO has nothing left to read; call its seek(0) first, or pass "
            "its bytes."
        )
    fast = plain(contents["ubj"]).fit(X)
    with pytest.raises(InvalidModelError):
        fast.set_params(estimator=model)
    assert fast.estimator == contents["ubj"]
