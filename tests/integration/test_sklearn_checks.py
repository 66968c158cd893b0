"""scikit-learn's own estimator checks: nothing fails that the bare model passes."""

from __future__ import annotations

import pytest
from sklearn.ensemble import (
    ExtraTreesClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from skforge import CompiledForest
from tests.plain import plain

lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")

WEIGHTS = "a bootstrap of weighted rows is not one of repeated rows (fails bare too)"
LABELS = "XGBoost wants labels 0, 1, ... (fails bare too)"
OWN = "the library's own behaviour (fails bare too)"

EXPECTED = {
    "RandomForest": {
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
        "check_sample_weight_equivalence_on_sparse_data": WEIGHTS,
    },
    "XGBClassifier": {
        "check_estimators_dtypes": LABELS,
        "check_sample_weights_pandas_series": LABELS,
        "check_sample_weights_not_an_array": LABELS,
        "check_all_zero_sample_weights_error": OWN,
        "check_sample_weights_shape": LABELS,
        "check_sample_weights_not_overwritten": LABELS,
        "check_classifier_data_not_an_array": LABELS,
        "check_classifiers_classes": LABELS,
        "check_classifiers_multilabel_output_format_predict": OWN,
        "check_fit2d_1sample": LABELS,
        "check_fit2d_1feature": LABELS,
    },
    "LGBMClassifier": {"check_all_zero_sample_weights_error": OWN},
    "LGBMRegressor": {
        "check_all_zero_sample_weights_error": OWN,
        "check_regressors_train": OWN,
    },
    "XGBRegressor": {
        "check_all_zero_sample_weights_error": OWN,
        "check_regressor_multioutput": OWN,
    },
}
# XGBoost 3.4 takes these.
if tuple(map(int, xgb.__version__.split(".")[:2])) >= (3, 4):
    for check in ("all_zero_sample_weights_error", "fit2d_1sample", "fit2d_1feature"):
        del EXPECTED["XGBClassifier"][f"check_{check}"]


def expected_failures(estimator):
    name = type(estimator.estimator).__name__
    return next((v for k, v in EXPECTED.items() if name.startswith(k)), {})


# The models are seeded: the checks seed the wrapper, whose seed is its own.
# The default schedules of one tree are compiled soonest.
FAST = [
    plain(RandomForestClassifier(3, random_state=0)),
    CompiledForest(DecisionTreeClassifier(random_state=0)),
    plain(xgb.XGBClassifier(n_estimators=3, random_state=0, n_jobs=1)),
]
SLOW = [
    CompiledForest(RandomForestRegressor(3, random_state=0)),
    CompiledForest(ExtraTreesClassifier(3, random_state=0)),
    CompiledForest(xgb.XGBRegressor(n_estimators=3, random_state=0, n_jobs=1)),
    CompiledForest(lgb.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1)),
    CompiledForest(lgb.LGBMRegressor(n_estimators=3, n_jobs=1, verbose=-1)),
]


@pytest.mark.sampled(36)
@parametrize_with_checks(FAST, expected_failed_checks=expected_failures)
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(SLOW, expected_failed_checks=expected_failures)
def test_estimator_checks_of_more_models(estimator, check):
    check(estimator)
