"""Public names, deprecated ones, and files that are given to the wrong function."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import skforge
from skforge import exceptions
from skforge.tuning import Tuner

ROOT = Path(__file__).parents[2]

TOP = {
    *("CompiledForest", "TreeExplainer", "partial_dependence", "Schedule", "Target"),
    *("compile_forest", "load_forest", "load", "save", "export", "__version__"),
    *("convert", "accelerate", "accelerated", "restore", "acceleration_report"),
    *("Forest", "ForestBuilder"),
    *("SkforgeError", "InvalidInputError", "InvalidModelError"),
    *("UnsupportedModelError", "PerformanceWarning", "VerificationWarning"),
}
MOVED = sorted({*exceptions.__all__} - TOP)


def test_the_names_at_the_top():
    assert set(skforge.__all__) == TOP
    assert not {*MOVED} & {*dir(skforge)}


def test_every_error_is_in_exceptions():
    defined = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined == set(exceptions.__all__)
    assert exceptions.__all__ == sorted(exceptions.__all__)


def test_the_reference_lists_the_names():
    text = (ROOT / "docs" / "api.rst").read_text("utf-8")
    part = text.partition("\nskforge.tuning\n")[0]
    listed = set(re.findall(r"^   (\w+)$", part, re.M))
    assert listed == {name for name in TOP if not hasattr(exceptions, name)} - {
        "__version__"
    }
    errors = re.findall(r"^\.\. autoexception:: (\w+)$", text, re.M)
    assert sorted(errors) == exceptions.__all__


@pytest.mark.parametrize("name", MOVED)
def test_a_moved_error_is_found_where_it_was(name):
    with pytest.warns(FutureWarning) as told:
        moved = getattr(skforge, name)
    assert moved is getattr(exceptions, name)
    (one,) = told
    assert one.filename == __file__
    assert str(one.message) == (
        f"skforge.{name} was deprecated in 0.2 and will be removed in 0.4; use "
        f"skforge.exceptions.{name}."
    )


def test_a_moved_error_is_imported_from_where_it_was():
    with pytest.warns(FutureWarning) as told:
        from skforge import TargetError
    assert TargetError is exceptions.TargetError
    assert {one.filename for one in told} == {__file__}


def test_a_tuner_shows_what_was_given():
    assert repr(Tuner()) == "Tuner()"
    tuner = Tuner("random", budget=2.0, records=None)
    assert repr(tuner) == "Tuner(strategy='random', budget=2.0, records=None)"
    assert eval(repr(tuner)) == tuner
