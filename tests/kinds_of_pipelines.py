"""Kinds of pipelines, and of models of which only the members are compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lightgbm as lgb
import numpy as np
from sklearn import compose, ensemble, multiclass, multioutput, tree
from sklearn import feature_selection as fs
from sklearn import preprocessing as pre
from sklearn.base import is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline, make_union
from sklearn.semi_supervised import SelfTrainingClassifier

from tests.forms import PASSENGER_NUMBERS
from tests.kinds import (
    BOOSTED,
    BY_CATBOOST,
    CLASSIFIERS,
    FOREST,
    HIST,
    ISOLATION,
    MODELS,
    OFFERED,
    REGRESSORS,
    SCALER,
    WRAPPERS,
    Kind,
    X,
    soft,
)

# ------------------------------------------------------------ steps that fold


def bins(n: int, **how: Any) -> Any:
    return pre.KBinsDiscretizer(n, encode="ordinal", **how)


TRANSFORMERS: dict[str, Any] = {
    "standard": pre.StandardScaler(),
    "standard-no-mean": pre.StandardScaler(with_mean=False),
    "standard-no-std": pre.StandardScaler(with_std=False),
    "minmax": pre.MinMaxScaler((-3, 7)),
    "minmax-clip": pre.MinMaxScaler(clip=True),
    "maxabs": pre.MaxAbsScaler(),
    "robust": pre.RobustScaler(),
    "robust-unit": pre.RobustScaler(quantile_range=(10, 90), unit_variance=True),
    "robust-no-scale": pre.RobustScaler(with_scaling=False),
    "binarizer": pre.Binarizer(threshold=0.25),
    "bins-quantile": bins(5, strategy="quantile", quantile_method="linear"),
    "bins-uniform": bins(4, strategy="uniform"),
    "bins-one-hot": pre.KBinsDiscretizer(
        4, encode="onehot", quantile_method="averaged_inverted_cdf"
    ),
    "bins-one-hot-dense": pre.KBinsDiscretizer(
        3, encode="onehot-dense", strategy="uniform"
    ),
    "identity": pre.FunctionTransformer(),
    "identity-checked": pre.FunctionTransformer(validate=True),
    "variance": fs.VarianceThreshold(1e-3),
    "k-best": fs.SelectKBest(k=3),
    "percentile": fs.SelectPercentile(percentile=50),
    "from-model": fs.SelectFromModel(tree.DecisionTreeClassifier(random_state=0)),
    "rfe": fs.RFE(tree.DecisionTreeClassifier(random_state=0), n_features_to_select=3),
    "imputer": SimpleImputer(),
    "imputer-median": SimpleImputer(strategy="median"),
    "imputer-frequent": SimpleImputer(strategy="most_frequent"),
    "imputer-constant": SimpleImputer(strategy="constant", fill_value=-1.5),
    "imputer-marks": SimpleImputer(add_indicator=True),
    "imputer-number": SimpleImputer(missing_values=X[3, 1], add_indicator=True),
    "union": make_union(pre.StandardScaler(), pre.MinMaxScaler()),
    "union-marks": make_union(SimpleImputer(), MissingIndicator(features="all")),
    "columns": ColumnTransformer(
        [
            ("a", pre.StandardScaler(), [4, 1]),
            ("b", pre.RobustScaler(), slice(2, 4)),
            ("c", "drop", [0]),
        ],
        remainder="passthrough",
    ),
    "columns-mask": ColumnTransformer(
        [("a", pre.MinMaxScaler(), [True, False, True, False, False, True])]
    ),
    "columns-none": ColumnTransformer(
        [("a", pre.MinMaxScaler(), []), ("b", "passthrough", [5, 0, 3])]
    ),
    "nested": make_pipeline(
        "passthrough", pre.StandardScaler(), pre.MinMaxScaler((5, 6))
    ),
}
#: Those that accept missing values.
TAKE_NAN = [
    name
    for name in TRANSFORMERS
    if (
        name.startswith(("standard", "minmax", "maxabs", "robust", "imputer", "union"))
        and name != "imputer-number"
    )
    or name in ("identity", "variance", "columns", "columns-mask", "nested")
]
#: Containers of rows that go to a pipeline trained on arrays whose first step hands
#: rows on, or has parts: each part warns of names by itself, and may make objects.
HANDED_ON = ("frame", "list")
FILLED = (SimpleImputer(), SCALER)


def handed_on(name: str) -> tuple[str, ...]:
    parts = name == "identity" or name.startswith(("union", "columns"))
    return HANDED_ON if parts else ()


FOLDED: dict[str, Kind] = {
    **{
        f"{name}, {last}": Kind(
            make_pipeline(step, CLASSIFIERS[last]),
            on="gaps" if name in TAKE_NAN else "array",
            asks=handed_on(name),
        )
        for name, step in TRANSFORMERS.items()
        for last in ("forest", "xgboost", "lightgbm")
    },
    **{
        f"{name} of rows without gaps": Kind(
            make_pipeline(step, FOREST), asks=handed_on(name)
        )
        for name, step in TRANSFORMERS.items()
        if name in TAKE_NAN
    },
    **{
        f"filled, {name}": Kind(make_pipeline(*FILLED, CLASSIFIERS[name]), on="gaps")
        for name in ("tree", "gb", "hist", "extra", "bagging", "adaboost")
    },
    **{
        f"filled, {name} of values": Kind(
            make_pipeline(*FILLED, REGRESSORS[name]), "values", "gaps"
        )
        for name in ("tree", "hist", "xgboost", "lightgbm")
    },
    "filled, isolation": Kind(make_pipeline(*FILLED, ISOLATION), on="gaps"),
    **{
        f"by name, {rest}, {last}": Kind(
            make_pipeline(
                ColumnTransformer(
                    [
                        ("scaled", SCALER, ["e", "b"]),
                        (
                            "filled",
                            make_pipeline(SimpleImputer(), pre.MinMaxScaler()),
                            ["c"],
                        ),
                        ("gone", "drop", ["a"]),
                    ],
                    remainder=rest,
                ),
                CLASSIFIERS[last],
            ),
            on="frame of gaps",
        )
        for rest in ("drop", "passthrough")
        for last in ("forest", "xgboost", "lightgbm")
    },
    "by selector": Kind(
        make_pipeline(
            ColumnTransformer(
                [("a", SCALER, make_column_selector(dtype_include=float))],
                remainder="passthrough",
            ),
            CLASSIFIERS["lightgbm"],
        ),
        on="mixed frame",
    ),
    "frames between": Kind(
        make_pipeline(pre.StandardScaler(), FOREST).set_output(transform="pandas"),
        on="frame",
    ),
    "scaled frame": Kind(make_pipeline(SCALER, FOREST), "names", "frame"),
    "union of a frame": Kind(
        make_pipeline(make_union(SCALER, pre.MinMaxScaler()), FOREST),
        on="frame",
        asks=("array", "list"),
    ),
    "scaled, boosting": Kind(make_pipeline(SCALER, BOOSTED)),
    "no step": Kind(Pipeline([("forest", FOREST)]), asks=HANDED_ON),
    "nothing": Kind(
        Pipeline([("a", "passthrough"), ("b", None), ("forest", FOREST)]),
        asks=HANDED_ON,
    ),
}

PIPELINES = {name: replace(kind, folds=True) for name, kind in FOLDED.items()}

# ------------------------------------------------------------ steps that do not


def twice(x: Any) -> Any:
    return x * 2


class Own(pre.StandardScaler):
    """A subclass, which may do anything."""


MIDDLE: dict[str, Any] = {
    "pca": PCA(3),
    "whitened": PCA(2, whiten=True),
    "svd": TruncatedSVD(2, random_state=0),
    "polynomial": pre.PolynomialFeatures(2),
    "spline": pre.SplineTransformer(n_knots=3),
    "function": pre.FunctionTransformer(twice),
    "narrow": pre.FunctionTransformer(np.float32),
    "own": Own(),
    "weights": FeatureUnion([("a", SCALER)], transformer_weights={"a": 3.0}),
    "union": make_union(pre.StandardScaler(), PCA(2)),
    "columns": ColumnTransformer(
        [("a", make_pipeline(SCALER, PCA(2)), [0, 1, 2])], remainder="passthrough"
    ),
}
BEFORE = {
    "arctan": pre.FunctionTransformer(np.arctan),
    "pca": PCA(2),
    "inside": make_pipeline(PCA(2), pre.StandardScaler()),
}
LITTLE = tree.DecisionTreeRegressor(max_depth=3)
#: A wrapper of each sort, and what it predicts.
LAST: dict[str, tuple[Any, str]] = {
    "tuned": (TunedThresholdClassifierCV(HIST, cv=3, random_state=0), "two"),
    "fixed": (FixedThresholdClassifier(HIST, threshold=0.52), "two"),
    "calibrated": (CalibratedClassifierCV(FOREST, cv=2), "two"),
    "soft": (soft(FOREST, HIST), "two"),
    "hard": (
        ensemble.VotingClassifier([("a", CLASSIFIERS["lightgbm"]), ("b", HIST)]),
        "two",
    ),
    "rest": (multiclass.OneVsRestClassifier(FOREST), "two"),
    "outputs": (multioutput.MultiOutputClassifier(FOREST), "labels"),
    "mean": (
        ensemble.VotingRegressor([("a", LITTLE), ("b", REGRESSORS["xgboost"])]),
        "values",
    ),
    "target": (
        compose.TransformedTargetRegressor(
            LITTLE, func=np.arcsinh, inverse_func=np.sinh
        ),
        "values",
    ),
}
STEPS: dict[str, Kind] = {
    **{
        f"{name} in its library": Kind(
            make_pipeline(SimpleImputer(), step, pre.MinMaxScaler(), FOREST),
            on="gaps",
            stored=False,
        )
        for name, step in MIDDLE.items()
    },
    **{
        f"{name} before {last}": Kind(
            make_pipeline(SCALER, MIDDLE[name], pre.RobustScaler(), CLASSIFIERS[last]),
            stored=False,
        )
        for name, last in (
            *((name, "forest") for name in ("pca", "spline", "narrow")),
            *(("pca", last) for last in ("hist", "xgboost", "lightgbm")),
        )
    },
    **{
        f"pca of {kind} frames, {last}": Kind(
            make_pipeline(
                pre.StandardScaler(), PCA(3), pre.RobustScaler(), CLASSIFIERS[last]
            ).set_output(transform=kind),
            on="frame",
            stored=False,
        )
        for kind in ("pandas", "polars")
        for last in ("forest", "xgboost", "lightgbm")
    },
    "polynomial of a frame": Kind(
        make_pipeline(pre.PolynomialFeatures(), SCALER, FOREST),
        on="frame",
        stored=False,
    ),
    "arrays where frames are to be": Kind(
        make_pipeline(
            SimpleImputer(), pre.FunctionTransformer(np.arctan, validate=True), FOREST
        ).set_output(transform="pandas"),
        stored=False,
    ),
    "taken apart": Kind(
        make_pipeline(SCALER, make_pipeline(PCA(3), pre.RobustScaler(), FOREST)),
        stored=False,
    ),
    "some absent": Kind(
        Pipeline(
            [
                *(("a", "passthrough"), ("b", PCA(3)), ("c", None)),
                *(("d", SCALER), ("e", FOREST)),
            ]
        ),
        stored=False,
    ),
    **{
        f"{wrapper} behind {step}": Kind(
            make_pipeline(BEFORE[step], model),
            y,
            stored=step == "arctan",
            asks=HANDED_ON if step == "arctan" else (),
        )
        for step in BEFORE
        for wrapper, (model, y) in LAST.items()
    },
}

# ------------------------------------------------------------ texts

NUMBER_STEPS: dict[str, Any] = {
    "standard": pre.StandardScaler(),
    "robust": pre.RobustScaler(),
    "minmax": pre.MinMaxScaler(clip=True),
    "impute": SimpleImputer(add_indicator=True),
    "median": make_pipeline(SimpleImputer(strategy="median"), pre.StandardScaler()),
    "bins": pre.KBinsDiscretizer(4),
    "none": "passthrough",
}
OVER = {
    "forest": ensemble.RandomForestClassifier(7, max_depth=6, random_state=0),
    "histogram": ensemble.HistGradientBoostingClassifier(max_iter=9),
    "tree": tree.DecisionTreeClassifier(),
}


MISSING = SimpleImputer(strategy="constant", fill_value="missing")
UNKNOWN = pre.OneHotEncoder(handle_unknown="ignore")
BEST = fs.SelectPercentile(fs.chi2, percentile=50)


def encoded(step: str, last: str) -> Any:
    """Return a pipeline of numbers that a step takes, and texts of two columns."""
    columns = compose.make_column_transformer(
        (NUMBER_STEPS[step], PASSENGER_NUMBERS),
        (UNKNOWN, ["sex", "port"]),
    )
    return make_pipeline(columns, OVER[last])


def one_hot(encoder: Any = None) -> Any:
    return compose.make_column_transformer(
        (encoder or pre.OneHotEncoder(), ["sex"]), ("passthrough", ["age", "x"])
    )


TEXT_STEPS = {
    "one-hot": one_hot(),
    "target": one_hot(pre.TargetEncoder()),
    "bins": compose.make_column_transformer(
        (pre.OrdinalEncoder(), ["sex"]), (pre.KBinsDiscretizer(4), ["age", "x"])
    ),
}
AROUND = {
    "target of codes": compose.TransformedTargetRegressor(
        make_pipeline(one_hot(), LAST["mean"][0])
    ),
    "target": compose.TransformedTargetRegressor(
        make_pipeline(one_hot(), PCA(2), LITTLE)
    ),
    "fixed": FixedThresholdClassifier(
        make_pipeline(one_hot(), PCA(2), FOREST), threshold=0.7
    ),
    "calibrated": CalibratedClassifierCV(
        make_pipeline(one_hot(), PCA(2), FOREST), ensemble=False, cv=2
    ),
    "two": FixedThresholdClassifier(
        CalibratedClassifierCV(make_pipeline(one_hot(), PCA(2), HIST), ensemble=False),
        threshold=0.6,
    ),
    "inside": make_pipeline(
        pre.FunctionTransformer(),
        compose.TransformedTargetRegressor(
            make_pipeline(one_hot(), PCA(2), LAST["mean"][0])
        ),
    ),
}
TEXTS: dict[str, Kind] = {
    **{
        f"{step} and texts, {last}": Kind(
            encoded(step, last),
            "travels",
            "passengers",
            # the intervals that bins make of narrow numbers of tables are others
            asks=("all types",) if step == "bins" else (),
        )
        for step in NUMBER_STEPS
        for last in OVER
    },
    "threshold of texts": Kind(
        FixedThresholdClassifier(encoded("standard", "forest"), threshold=0.4),
        *("travels", "passengers"),
    ),
    "calibrated texts": Kind(
        CalibratedClassifierCV(encoded("standard", "forest"), cv=2),
        *("travels", "passengers"),
    ),
    "votes of texts": Kind(
        soft(encoded("standard", "forest"), encoded("median", "histogram")),
        *("travels", "passengers"),
    ),
    **{
        f"{wrapper} behind {step} of texts": Kind(
            make_pipeline(encoder, LAST[wrapper][0]),
            {"outputs": "both", "mean": "lengths"}.get(wrapper, "travels"),
            "passengers",
            folds=True,
        )
        for step, encoder in TEXT_STEPS.items()
        for wrapper in ("soft", "hard", "outputs", "mean")
        if (step, wrapper) != ("target", "outputs")  # which takes one target
    },
    "selected texts": Kind(
        make_pipeline(
            compose.make_column_transformer(
                (NUMBER_STEPS["median"], ["age", "fare"]),
                (make_pipeline(pre.OneHotEncoder(), BEST), ["sex", "port"]),
            ),
            FOREST,
        ),
        *("travels", "passengers"),
        folds=True,
    ),
    "filled texts": Kind(
        make_pipeline(
            compose.make_column_transformer(
                (make_pipeline(MISSING, UNKNOWN), ["sex", "port"]),
                (make_pipeline(SimpleImputer(), SCALER), ["age"]),
            ),
            FOREST,
        ),
        *("travels", "passengers"),
        folds=True,
    ),
    **{
        f"{name} around texts": Kind(
            model,
            "travels" if is_classifier(model) else "lengths",
            "passengers",
            stored=name == "target of codes",
        )
        for name, model in AROUND.items()
    },
}

# ------------------------------------------------------------ members alone

SMALL = ensemble.RandomForestClassifier(4, max_depth=5, random_state=0)
TREES = ensemble.RandomForestRegressor(4, max_depth=5, random_state=0)
REDUCED = make_pipeline(PCA(3, random_state=0), SMALL)
BEHIND = make_pipeline(PCA(3, random_state=0), TREES)
LINE = LogisticRegression()
LIGHT, EXTREME = CLASSIFIERS["lightgbm"], CLASSIFIERS["xgboost"]
SOME = {"max_features": 0.8, "bootstrap_features": True}
BAGGED = {
    name: CLASSIFIERS[name]
    for name in ("gb", "hist", "adaboost", "xgboost", "lightgbm")
}
BAGGED |= {
    "catboost": BY_CATBOOST,
    "linear trees": lgb.LGBMClassifier(n_estimators=3, linear_tree=True, verbose=-1),
}


def stack(*members: Any, **how: Any) -> Any:
    kind = ensemble.StackingRegressor
    if is_classifier(members[0]):
        kind = ensemble.StackingClassifier
    how = {"cv": 2, **how}
    return kind([(f"m{i}", one) for i, one in enumerate(members)], **how)


MEMBERS: dict[str, Kind] = {
    name: Kind(model, y, stored=False, asks=OFFERED)
    for name, (model, y) in {
        "stack": (stack(SMALL, BOOSTED, LIGHT, LINE), "three names"),
        "stack of two": (stack(EXTREME, LIGHT, HIST, LINE), "two"),
        "stack, passthrough": (stack(SMALL, HIST, passthrough=True), "three"),
        "stack, decision": (
            stack(HIST, BOOSTED, stack_method="decision_function"),
            "three names",
        ),
        "stack, final": (stack(SMALL, LINE, final_estimator=HIST), "three names"),
        "stack inside": (
            stack(stack(SMALL, final_estimator=LINE), REDUCED),
            "three names",
        ),
        "stack of labels": (stack(SMALL, final_estimator=SMALL), "labels"),
        "stack of a search": (
            stack(GridSearchCV(SMALL, {"max_depth": [2]}, cv=2)),
            "two",
        ),
        "stack in a pipeline": (
            make_pipeline(SCALER, stack(SMALL, LINE)),
            "three names",
        ),
        "stack of values": (
            stack(TREES, REGRESSORS["hist"], REGRESSORS["lightgbm"], Ridge()),
            "values",
        ),
        "stack of values, passthrough": (
            stack(TREES, BEHIND, passthrough=True),
            "values",
        ),
        "chain": (multioutput.ClassifierChain(SMALL, order=[1, 0]), "labels"),
        "chain, cv": (multioutput.ClassifierChain(BOOSTED, cv=2), "labels"),
        "chain of values": (
            multioutput.RegressorChain(REGRESSORS["hist"], cv=2),
            "columns",
        ),
        "one against one": (multiclass.OneVsOneClassifier(SMALL), "three names"),
        "one against one, hist": (multiclass.OneVsOneClassifier(HIST), "three"),
        "codes": (
            multiclass.OutputCodeClassifier(LIGHT, random_state=0),
            "three names",
        ),
        "calibrated members": (CalibratedClassifierCV(REDUCED, cv=2), "three names"),
        "calibrated stack": (
            CalibratedClassifierCV(stack(SMALL, final_estimator=LINE), cv=2),
            "two",
        ),
        "votes of members": (soft(REDUCED, LINE), "three names"),
        "hard votes of members": (
            ensemble.VotingClassifier([("a", REDUCED), ("b", HIST)]),
            "three names",
        ),
        "mean of members": (
            ensemble.VotingRegressor([("a", BEHIND), ("b", Ridge())]),
            "values",
        ),
        "outputs of members": (multioutput.MultiOutputRegressor(BEHIND), "columns"),
        "rest of members": (multiclass.OneVsRestClassifier(REDUCED), "three names"),
        "bagging of members": (
            ensemble.BaggingClassifier(REDUCED, 3, max_features=0.7),
            "three names",
        ),
        **{
            f"bagging of {name}": (
                ensemble.BaggingClassifier(model, 3, random_state=0, **SOME),
                "three names",
            )
            for name, model in BAGGED.items()
        },
        **{
            f"bagging of {name}, values": (
                ensemble.BaggingRegressor(REGRESSORS[name], 3, max_features=0.5),
                "values",
            )
            for name in ("gb", "hist", "adaboost", "xgboost", "lightgbm")
        },
        "bagging of few rows": (
            ensemble.BaggingClassifier(
                make_pipeline(SCALER, SMALL), 4, max_samples=6, random_state=0
            ),
            "three names",
        ),
        "bagging, two jobs": (
            ensemble.BaggingClassifier(SMALL, 5, n_jobs=2),
            "three names",
        ),
        "bagging of values of members": (
            ensemble.BaggingRegressor(BEHIND, 2),
            "values",
        ),
        "adaboost of forests": (
            ensemble.AdaBoostClassifier(SMALL, n_estimators=2),
            "three names",
        ),
        "self-training": (SelfTrainingClassifier(SMALL), "some"),
        "target of a stack": (
            compose.TransformedTargetRegressor(
                stack(TREES, final_estimator=Ridge()), func=np.cbrt, inverse_func=np.exp
            ),
            "values",
        ),
    }.items()
}
MEMBERS["stack inside, of a frame"] = Kind(
    MEMBERS["stack inside"].model, "three names", "frame", stored=False, asks=OFFERED
)

#: Kinds of all tables.
EVERY = {**MODELS, **WRAPPERS, **PIPELINES, **STEPS, **TEXTS, **MEMBERS}
