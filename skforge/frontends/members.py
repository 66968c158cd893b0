"""The members of scikit-learn's wrappers, fitted or not."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from skforge.frontends.base import class_name, is_pipeline
from skforge.frontends.checks import refuse_unfitted

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


_KINDS = "Classifier", "Regressor"
_STACKS = {f"sklearn.ensemble._stacking.Stacking{kind}" for kind in _KINDS}
#: Gradient boosting that starts from another model's predictions has it as a member.
_BOOSTED = {f"sklearn.ensemble._gb.GradientBoosting{kind}" for kind in _KINDS}
DUMMIES = {f"sklearn.dummy.Dummy{kind}" for kind in _KINDS}
_SELF = "sklearn.semi_supervised._self_training.SelfTrainingClassifier"

#: Wrappers whose answers follow from raw scores of their members.
WRAPPERS = {
    *(CALIBRATED, FIXED, TUNED, TARGET, REGRESSORS, CLASSIFIERS, ONE_VS_REST),
    *(VOTES, MEAN),
}

#: Models whose members can only be compiled one by one.
_APART = {
    *_STACKS,
    _SELF,
    *(f"sklearn.ensemble._bagging.Bagging{kind}" for kind in _KINDS),
    *(f"sklearn.ensemble._weight_boosting.AdaBoost{kind}" for kind in _KINDS),
    "sklearn.multiclass.OneVsOneClassifier",
    "sklearn.multiclass.OutputCodeClassifier",
    "sklearn.multioutput.ClassifierChain",
    "sklearn.multioutput.RegressorChain",
    "sklearn.pipeline.Pipeline",
    "imblearn.ensemble._bagging.BalancedBaggingClassifier",
    "imblearn.ensemble._easy_ensemble.EasyEnsembleClassifier",
}

#: Attributes with the fitted members, if they are not ``estimators_``.
_PLACES = {
    CALIBRATED: ("calibrated_classifiers_",),
    TARGET: ("regressor_",),
    **dict.fromkeys((FIXED, TUNED, _SELF), ("estimator_",)),
    **dict.fromkeys(_STACKS, ("estimators_", "final_estimator_")),
    **dict.fromkeys(_BOOSTED, ("init_",)),
}


def _places(model: Any) -> tuple[str, ...]:
    return _PLACES.get(class_name(model), ("estimators_",))


def is_wrapper(model: object) -> bool:
    return class_name(model) in WRAPPERS


def has_members(model: object) -> bool:
    return class_name(model) in WRAPPERS | _APART or starts_from_model(model)


def starts_from_model(model: Any) -> bool:
    """Tell whether a model is fitted gradient boosting with an ``init`` of its own."""
    initial = getattr(model, "init_", "zero")
    own = not isinstance(initial, str) and class_name(initial) not in DUMMIES
    return own and class_name(model) in _BOOSTED


def named_members(model: Any) -> dict[str, Any]:
    kind = class_name(model)
    if is_pipeline(model):
        return {model.steps[-1][0]: model.steps[-1][1]}
    by_name = {}
    for name in _places(model):
        try:
            value = getattr(model, name)
        except AttributeError:
            refuse_unfitted(model)
        if isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                by_name[f"{name}[{i}]"] = item.estimator if kind == CALIBRATED else item
        else:
            by_name[name] = value
    return by_name


def fitted_members(model: Any) -> list[Any]:
    return list(named_members(model).values())


def with_members(model: Any, members: Sequence[Any]) -> Any:
    copied, kind = copy.copy(model), class_name(model)
    if is_pipeline(model):
        copied.steps = [*model.steps[:-1], (model.steps[-1][0], members[0])]
        return copied
    rest = iter(members)
    for name in _places(model):
        value = getattr(model, name)
        if kind == CALIBRATED:
            value = [copy.copy(fold) for fold in value]
            for fold in value:
                fold.estimator = next(rest)
        elif isinstance(value, (list, tuple)):
            value = [next(rest) for _ in value]
        else:
            value = next(rest)
        setattr(copied, name, value)
    return copied


def members_of(model: Any) -> list[Any]:
    fitted = []
    for value in model.get_params(deep=False).values():
        for item in value if isinstance(value, list) else [value]:
            item = item[1] if isinstance(item, tuple) and len(item) == 2 else item
            if hasattr(item, "fit"):
                fitted.append(item)
    return fitted
