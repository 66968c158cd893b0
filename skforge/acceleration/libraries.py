"""Which methods of which classes answer, and which train or change a model."""

from __future__ import annotations

from typing import NamedTuple

#: Methods of answers that a class may define.
_METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


class ClassPlan(NamedTuple):
    """What is wrapped of a class, where the class itself defines it."""

    name: str
    answers: tuple[str, ...] = ()
    #: Methods that train a model or change its predictions.
    changes: tuple[str, ...] = ()
    #: Properties whose setters change predictions, or which rows a model takes.
    settings: tuple[str, ...] = ()
    #: Methods that hand out objects by which the model may change later.
    exposes: tuple[str, ...] = ()
    #: Methods that libraries answer in any case, and why.
    declines: tuple[tuple[str, str], ...] = ()


def _estimator(name: str) -> ClassPlan:
    return ClassPlan(name, _METHODS, ("fit", "load_model", "set_params"))


#: By library, the modules with these classes.
LIBRARIES: dict[str, dict[str, tuple[ClassPlan, ...]]] = {
    "sklearn": {
        "sklearn.ensemble._forest": (
            _estimator("BaseForest"),
            _estimator("ForestClassifier"),
            _estimator("ForestRegressor"),
        ),
        "sklearn.ensemble._gb": (
            _estimator("BaseGradientBoosting"),
            _estimator("GradientBoostingClassifier"),
            _estimator("GradientBoostingRegressor"),
        ),
        "sklearn.ensemble._hist_gradient_boosting.gradient_boosting": (
            _estimator("BaseHistGradientBoosting"),
            _estimator("HistGradientBoostingClassifier"),
            _estimator("HistGradientBoostingRegressor"),
        ),
        "sklearn.ensemble._iforest": (_estimator("IsolationForest"),),
        "sklearn.ensemble._weight_boosting": (
            _estimator("BaseWeightBoosting"),
            _estimator("AdaBoostClassifier"),
            _estimator("AdaBoostRegressor"),
        ),
        # what the fit of a pipeline asks of its steps may pay
        "sklearn.pipeline": (ClassPlan("Pipeline", _METHODS),),
    },
    "xgboost": {
        "xgboost.sklearn": tuple(
            _estimator(name)
            for name in (
                *("XGBModel", "XGBClassifier", "XGBRFClassifier"),
                *("XGBRegressor", "XGBRFRegressor", "XGBRanker"),
            )
        ),
        "xgboost.core": (
            ClassPlan(
                "Booster",
                ("inplace_predict",),
                (
                    *("update", "boost", "load_model", "set_param", "set_attr"),
                    *("load_config", "reset", "__setstate__"),
                    *("load_rabit_checkpoint", "_assign_dmatrix_features"),
                ),
                ("feature_names", "feature_types", "best_iteration"),
                declines=(
                    ("predict", "a DMatrix gives its rows only as sparse copies"),
                ),
            ),
        ),
    },
    "lightgbm": {
        "lightgbm.sklearn": tuple(
            _estimator(name)
            for name in ("LGBMModel", "LGBMClassifier", "LGBMRegressor", "LGBMRanker")
        ),
        "lightgbm.basic": (
            ClassPlan(
                "Booster",
                ("predict",),
                (
                    *("update", "rollback_one_iter", "reset_parameter"),
                    *("set_leaf_output", "shuffle_models", "model_from_string"),
                    *("refit", "set_network", "free_network", "__setstate__"),
                    *("_Booster__boost", "add_valid", "set_train_data_name"),
                ),
            ),
        ),
    },
    "catboost": {
        "catboost.core": (
            ClassPlan(
                "_CatBoostBase",
                changes=(
                    *("_train", "_base_shrink", "_base_drop_unused_features"),
                    *("_load_model", "_deserialize_model", "_load_from_string"),
                    *("_load_from_stream", "_sum_models", "set_leaf_values"),
                    *("set_feature_names", "set_scale_and_bias", "__setstate__"),
                    "_set_trained_model_attributes",
                ),
                exposes=("get_metadata",),
            ),
            ClassPlan(
                "CatBoost",
                _METHODS,
                (
                    *("_fit", "fit", "load_model", "set_params", "shrink"),
                    *("drop_unused_features", "select_features", "grid_search"),
                    *("_convert_to_asymmetric_representation", "randomized_search"),
                ),
            ),
            ClassPlan(
                "CatBoostClassifier",
                _METHODS,
                ("fit", "set_probability_threshold"),
            ),
            _estimator("CatBoostRegressor"),
            _estimator("CatBoostRanker"),
        )
    },
}

#: Classes whose models may be compiled; subclasses of users may do anything.
KNOWN = frozenset(
    (
        *(
            f"sklearn.ensemble._forest.{name}"
            for name in (
                *("RandomForestClassifier", "RandomForestRegressor"),
                *("ExtraTreesClassifier", "ExtraTreesRegressor"),
            )
        ),
        "sklearn.ensemble._gb.GradientBoostingClassifier",
        "sklearn.ensemble._gb.GradientBoostingRegressor",
        *(
            f"sklearn.ensemble._hist_gradient_boosting.gradient_boosting.{name}"
            for name in (
                "HistGradientBoostingClassifier",
                "HistGradientBoostingRegressor",
            )
        ),
        "sklearn.ensemble._iforest.IsolationForest",
        "sklearn.ensemble._weight_boosting.AdaBoostClassifier",
        "sklearn.ensemble._weight_boosting.AdaBoostRegressor",
        "sklearn.pipeline.Pipeline",
        *(
            f"xgboost.sklearn.{name}"
            for name in (
                *("XGBClassifier", "XGBRFClassifier"),
                *("XGBRegressor", "XGBRFRegressor", "XGBRanker"),
            )
        ),
        *(
            f"lightgbm.sklearn.{name}"
            for name in ("LGBMClassifier", "LGBMRegressor", "LGBMRanker")
        ),
        "lightgbm.basic.Booster",
        "xgboost.core.Booster",
        *(
            f"catboost.core.{name}"
            for name in (
                *("CatBoost", "CatBoostClassifier"),
                *("CatBoostRegressor", "CatBoostRanker"),
            )
        ),
    )
)


def is_known(model: object) -> bool:
    kind = type(model)
    return f"{kind.__module__}.{kind.__qualname__}" in KNOWN
