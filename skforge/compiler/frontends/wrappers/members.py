"""The members of scikit-learn's wrappers, fitted or not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from skforge.compiler.frontends.checks import refuse_unfitted

CALIBRATED = "sklearn.calibration.CalibratedClassifierCV"
FIXED = "sklearn.model_selection._classification_threshold.FixedThresholdClassifier"
TUNED = "sklearn.model_selection._classification_threshold.TunedThresholdClassifierCV"
TARGET = "sklearn.compose._target.TransformedTargetRegressor"
REGRESSORS = "sklearn.multioutput.MultiOutputRegressor"
CLASSIFIERS = "sklearn.multioutput.MultiOutputClassifier"
ONE_VS_REST = "sklearn.multiclass.OneVsRestClassifier"
VOTES = "sklearn.ensemble._voting.VotingClassifier"
MEAN = "sklearn.ensemble._voting.VotingRegressor"

#: What OneVsRestClassifier puts in the place of a class that is always or never there.
CONSTANT = "sklearn.multiclass._ConstantPredictor"


def kind_of(model: object) -> str:
    """Return ``module.Class`` of an object's own class: subclasses may do anything."""
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _estimators(model: Any) -> list[Any]:
    return list(model.estimators_)


#: Fitted members, by the wrapper's class.
_FITTED: dict[str, Callable[[Any], list[Any]]] = {
    CALIBRATED: lambda model: [one.estimator for one in model.calibrated_classifiers_],
    FIXED: lambda model: [model.estimator_],
    TUNED: lambda model: [model.estimator_],
    TARGET: lambda model: [model.regressor_],
    REGRESSORS: _estimators,
    CLASSIFIERS: _estimators,
    ONE_VS_REST: _estimators,
    VOTES: _estimators,
    MEAN: _estimators,
}


def is_wrapper(model: object) -> bool:
    """Tell whether an object is one of these wrappers, and no subclass of one."""
    return kind_of(model) in _FITTED


def fitted_members(model: Any) -> list[Any]:
    """Return the members of a fitted wrapper, in its order."""
    try:
        return _FITTED[kind_of(model)](model)
    except AttributeError:
        refuse_unfitted(model)


def with_members(model: Any, members: Sequence[Any]) -> Any:
    """Return a copy of a fitted wrapper with these in the place of its members."""
    made, kind = copy.copy(model), kind_of(model)
    if kind == CALIBRATED:
        folds = [copy.copy(fold) for fold in model.calibrated_classifiers_]
        for fold, member in zip(folds, members, strict=True):
            fold.estimator = member
        made.calibrated_classifiers_ = folds
    elif kind in (FIXED, TUNED):
        (made.estimator_,) = members
    elif kind == TARGET:
        (made.regressor_,) = members
    else:
        made.estimators_ = [*members]
    return made


def members(model: Any) -> list[Any]:
    """Return the members that a wrapper clones and fits."""
    kind = kind_of(model)
    if kind in (VOTES, MEAN):
        return [one for _, one in model.estimators if not isinstance(one, str)]
    return [model.regressor if kind == TARGET else model.estimator]
