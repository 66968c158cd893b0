"""The whole surface of every kind of model: live, unpickled, dropped and loaded.

The source is the judge: each public method, with each of its arguments by name and by
position, gives its answer's bits, shape, dtype and order in memory, or
``SourceNeededError`` where the model is not there; each attribute has its value.
"""

from __future__ import annotations

import inspect
import operator
import pickle
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn import ensemble
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline

import skforge
from skforge import CompiledForest
from skforge.exceptions import (
    PerformanceWarning,
    SourceNeededError,
    UnsupportedModelError,
)
from tests import kinds, kinds_of_pipelines
from tests.compared_calls import another_order
from tests.kinds import FEW, TWO, Kind
from tests.plain import plain

cb = pytest.importorskip("catboost")
quantile_forest = pytest.importorskip("quantile_forest")

CAT = {"iterations": 5, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
kinds.TARGETS["times"] = np.array(
    [(flag > 0, value) for flag, value in zip(TWO, np.exp(kinds.SCORE), strict=True)],
    dtype=[("event", bool), ("time", float)],
)
kinds.TARGETS["many"] = np.digitize(kinds.SCORE, np.linspace(-2, 2, 11))
kinds.TARGETS["large"] = kinds.SCORE * 1e8
SOFT = kinds.WRAPPERS["soft votes, weighted"].model
MEAN = kinds.WRAPPERS["mean of votes"].model
#: Kinds whose answers have an order in memory of their own, and votes that transform.
MORE: dict[str, Kind] = {
    "catboost of two": Kind(cb.CatBoostClassifier(**CAT)),
    "catboost of three": Kind(cb.CatBoostClassifier(**CAT), "three"),
    "catboost of three names of a frame": Kind(
        cb.CatBoostClassifier(**CAT), "three names", "frame"
    ),
    "catboost of labels": Kind(
        cb.CatBoostClassifier(loss_function="MultiLogloss", **CAT), "three labels"
    ),
    "catboost of values": Kind(cb.CatBoostRegressor(**CAT), "values"),
    "catboost of counts": Kind(
        cb.CatBoostRegressor(loss_function="Poisson", **CAT), "counts"
    ),
    "catboost of columns": Kind(
        cb.CatBoostRegressor(loss_function="MultiRMSE", **CAT), "columns"
    ),
    "catboost, uncertain": Kind(
        cb.CatBoostRegressor(loss_function="RMSEWithUncertainty", **CAT), "values"
    ),
    "catboost, ranker": Kind(
        cb.CatBoostRanker(**CAT), "three", fit={"group_id": np.arange(kinds.N) // 10}
    ),
    "hist of three": Kind(kinds.HIST, "three"),
    "hist of many": Kind(kinds.HIST, "many"),
    "gb of three": Kind(kinds.BOOSTED, "three"),
    "adaboost of three": Kind(kinds.CLASSIFIERS["adaboost"], "three"),
    "embedding": Kind(ensemble.RandomTreesEmbedding(**FEW)),
    "embedding, dense, of a frame": Kind(
        ensemble.RandomTreesEmbedding(sparse_output=False, **FEW), on="frame"
    ),
    "quantiles": Kind(quantile_forest.RandomForestQuantileRegressor(**FEW), "values"),
    "quantiles of columns": Kind(
        quantile_forest.ExtraTreesQuantileRegressor(**FEW), "columns"
    ),
    "outputs of catboost": Kind(
        MultiOutputRegressor(cb.CatBoostRegressor(**CAT)), "columns"
    ),
    "classes of catboost": Kind(
        MultiOutputClassifier(cb.CatBoostClassifier(**CAT)), "labels"
    ),
    "xgboost of columns": Kind(kinds.REGRESSORS["xgboost"], "columns"),
    "votes, not flat": Kind(clone(SOFT).set_params(flatten_transform=False), "three"),
    "mean of votes, large": Kind(MEAN, "large"),
    "pipeline of a mean of votes": Kind(make_pipeline(kinds.SCALER, MEAN), "values"),
    "search for a mean of votes": Kind(
        GridSearchCV(MEAN, {"weights": [None]}, cv=2), "values"
    ),
}
if find_spec("sksurv"):
    from sksurv.ensemble import RandomSurvivalForest

    MORE["survival"] = Kind(RandomSurvivalForest(**FEW), "times")
#: A Booster answers with labels, which its own ``predict`` does not.
KINDS = {
    name: kind
    for group in (kinds.MODELS, kinds.WRAPPERS, kinds_of_pipelines.PIPELINES, MORE)
    for name, kind in group.items()
    if kind.part is None
}
#: Values of arguments other than their defaults.
OTHERS: dict[str, tuple[Any, ...]] = {
    "iteration_range": ((0, 2), (1, 3)),
    "num_iteration": (2,),
    "start_iteration": (1,),
    "ntree_end": (2,),
    "ntree_start": (1,),
    "eval_period": (2,),
    "output_margin": (True,),
    "raw_score": (True,),
    "pred_leaf": (True,),
    "prediction_type": ("RawFormulaVal",),
    "return_array": (True,),
    "quantiles": ([0.1, 0.5], "mean"),
    "interpolation": ("nearest",),
}
#: Methods that do something else than answer.
LEFT_OUT = {"fit", "fit_predict", "score"}
#: Methods of a class, tried with those that a model offers.
METHODS = [name for name in dir(CompiledForest) if not name.startswith("_")]


def given(call: Any, *args: Any, **how: Any) -> Any:
    """Return the answer of a call, or the error that it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            answer = call(*args, **how)
            return [*answer] if isinstance(answer, Iterator) else answer
        except Exception as error:  # noqa: BLE001 - libraries raise what they like
            return error


def called(model: Any, method: str, *args: Any, **how: Any) -> Any:
    return getattr(model, method)(*args, **how)


def different(found: Any, wanted: Any) -> str:
    """Return how answers, or values of attributes, differ, or ""."""
    if sparse.issparse(wanted) and type(found) is type(wanted):
        found, wanted = (
            [m.data, m.indices, m.indptr, m.shape] for m in (found, wanted)
        )
    if isinstance(wanted, (list, tuple)):
        if type(found) is not type(wanted) or len(found) != len(wanted):
            return f"{type(found)}, or another length, not {type(wanted)}"
        return next(filter(None, map(different, found, wanted)), "")
    if not isinstance(wanted, np.ndarray):  # of an artifact, numbers are Python's
        return "" if found == wanted or found != found else f"{found}, not {wanted}"
    for name in ("dtype", "shape"):
        parts = (getattr(each, name, None) for each in (found, wanted))
        if not operator.eq(*parts):
            return f"another {name} than {getattr(wanted, name)}"
    if why := another_order(found, wanted):
        return why
    if wanted.dtype == object:
        same = all(map(_same, found.ravel(), wanted.ravel()))
    else:
        same = found.tobytes() == wanted.tobytes()
    return "" if same else f"values {found.ravel()[:3]}, not {wanted.ravel()[:3]}"


def _same(one: Any, other: Any) -> bool:
    """Compare labels, or step functions of survival forests."""
    points = [[getattr(each, name, each) for name in "xy"] for each in (one, other)]
    return all(map(np.array_equal, *points))


def calls_of(method: Any) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Yield calls with each argument of a method, by name and by position."""
    yield "", (), {}
    before: tuple[Any, ...] = ()
    _, *rest = inspect.signature(method).parameters.values()
    for one in rest:
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            continue
        for value in (one.default, *OTHERS.get(one.name, ())):
            yield f"{one.name}={value!r}", (), {one.name: value}
            if one.kind is not one.KEYWORD_ONLY:
                yield f"{one.name}={value!r} by position", (*before, value), {}
        before = *before, one.default


def takes_rows(model: Any, name: str) -> bool:
    method = getattr(model, name, None)
    if name in LEFT_OUT or not callable(method):
        return False
    return next(iter(inspect.signature(method).parameters), "") in ("X", "data")


def is_plain(value: Any) -> bool:
    known = isinstance(value, (int, float, str, np.ndarray, np.generic))
    return known and getattr(getattr(value, "dtype", None), "kind", "") != "O"


def states_of(fast: Any, path: Path) -> dict[str, Any]:
    states = {"live": fast, "pickle": pickle.loads(pickle.dumps(fast))}
    with suppress(UnsupportedModelError):  # whose other steps cannot be stored
        skforge.save(fast, path)
        states |= {"dropped": fast.drop_estimator(), "file": skforge.load(path)}
    return states


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", KINDS)
def test_surface(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    model = kind.fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        fast = plain(model).fit(kinds.ROWS[kind.on])
    states = states_of(fast, tmp_path / "a.skforge")
    assert len(states) == 4 or not kind.stored
    rows = kinds.ROWS[kind.on][:40]
    wrong = []
    for method in (method for method in METHODS if takes_rows(model, method)):
        calls = [(rows, *call) for call in calls_of(getattr(model, method))]
        calls += [(rows[:n], f"{n} rows", (), {}) for n in (9, 1, 1)]  # by entries
        for X, what, args, how in calls:
            wanted = given(getattr(model, method), X, *args, **how)
            for state, one in states.items():
                found = given(called, one, method, X, *args, **how)
                text = ""
                if isinstance(found, Exception):
                    refused = state in ("dropped", "file")
                    refused &= isinstance(found, SourceNeededError)
                    if not (refused or isinstance(wanted, Exception)):
                        text = repr(found)
                else:
                    text = different(found, wanted)
                if text:
                    wrong.append(f"{state}: {method}({what}): {text[:200]}")
    for attribute in (attribute for attribute in dir(model) if attribute[-1] == "_"):
        wanted = given(getattr, model, attribute)
        if attribute[0] == "_" or not is_plain(wanted):
            continue
        for state, one in states.items():
            found = given(getattr, one, attribute)
            if state in ("dropped", "file") and isinstance(found, AttributeError):
                continue  # it is not kept
            if text := different(found, wanted):
                wrong.append(f"{state}: {attribute}: {text[:200]}")
    assert not wrong, "\n".join(wrong)
