"""Docstrings that take from others what they lack."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import Parameter, cleandoc, getattr_static, isclass, isfunction, signature
from pathlib import Path

import pytest

from skforge import CompiledForest
from skforge._docs import documented
from skforge.distributed import dask, ray, spark
from skforge.modules.compiled import CompiledModule
from skforge.tuning import tune


def rows(X, *, out=None, n_jobs=None):
    """Return answers.

    More about them.

    Parameters
    ----------
    X : array
        Rows, of
        any kind.
    out, n_jobs : object
        Both.

    Returns
    -------
    array
        One a row.

    Examples
    --------
    >>> 1 + 1
    2
    """


def test_what_lacks_is_added_but_no_examples():
    @documented(rows)
    def one(X, extra, *, out=None):
        """Return one answer.

        Parameters
        ----------
        extra : int
            Its own.

        Returns
        -------
        float
        """

    wanted = """Return one answer.

    Parameters
    ----------
    X : array
        Rows, of
        any kind.
    extra : int
        Its own.
    out, n_jobs : object
        Both.

    Returns
    -------
    float
    """
    assert cleandoc(one.__doc__) == cleandoc(wanted)


def test_the_first_source_counts_and_foreign_parameters_are_left_out():
    def other(X):
        """Say more.

        Parameters
        ----------
        X : list

        Notes
        -----
        Notes.
        """

    @documented(other, rows)
    def two(X):
        """Return two."""

    wanted = """Return two.

    Parameters
    ----------
    X : list

    Returns
    -------
    array
        One a row.

    Notes
    -----
    Notes.
    """
    assert cleandoc(two.__doc__) == cleandoc(wanted)


def test_nothing_is_added_without_docstrings():
    def bare(X):
        pass

    assert documented(rows)(bare).__doc__ is None


OF_ESTIMATORS = (
    "predict_contribs", "warm_up", "inspect", "predict_raw", "apply",
    "predict_per_tree",
)  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        *(getattr_static(CompiledForest, name) for name in OF_ESTIMATORS),
        *(CompiledModule.predict, CompiledModule.apply, tune),
        *(dask.predict, ray.Predictor, spark.predict_udf),
    ],
    ids=lambda function: f"{function.__module__}.{function.__qualname__}",
)
def test_users_find_every_parameter(function):
    parameters = signature(getattr(function, "__wrapped__", function)).parameters
    further = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
    names = [p.name for p in parameters.values() if p.kind not in further]
    for name in names[names[0] == "self" :]:
        assert f"\n{name} : " in cleandoc(function.__doc__)


def names_of_the_api_page():
    """Yield each name that docs/api.rst lists, with what it is."""
    module = ""
    for line in (Path(__file__).parents[2] / "docs/api.rst").read_text().splitlines():
        module = line.partition("currentmodule:: ")[2] or module
        if entry := re.fullmatch(r"   ((?:[a-z]+[.])*)(\w+)", line):
            home = import_module(f"{module}.{entry[1]}".strip("."))
            yield f"{home.__name__}.{entry[2]}", getattr(home, entry[2])


def test_everything_on_the_api_page_has_a_docstring():
    found = dict(names_of_the_api_page())
    assert len(found) > 30
    bare = [name for name, thing in found.items() if not thing.__doc__]
    for name, thing in found.items():
        for member, value in vars(thing).items() if isclass(thing) else ():
            value = value.fget if isinstance(value, property) else value
            if isfunction(value) and member[0] != "_" and not value.__doc__:
                bare.append(f"{name}.{member}")
    assert bare == []
