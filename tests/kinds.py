"""Kinds of models that skforge compiles, each with what it is trained on.

Tests that ask the same of many models take them from here; ``test_kinds.py`` asks
every one for its answers to every form of rows, live and stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from operator import attrgetter, methodcaller
from typing import Any

import catboost as cb
import lightgbm as lgb
import numpy as np
import pandas as pd
import xgboost as xgb
from sklearn import compose, ensemble, multiclass, multioutput, tree
from sklearn import preprocessing as pre
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.pipeline import make_pipeline

from skforge.sources.lightgbm import ZERO_THRESHOLD
from tests.forms import PASSENGER_NUMBERS, framed, with_categories

N, WIDTH = 300, 6

random = np.random.default_rng(0)
#: Features over six orders of magnitude.
X = random.normal(size=(N, WIDTH)) * np.logspace(-2, 3, WIDTH) + 3
X[:, 2] = np.round(X[:, 2] * 4)
GAPS = np.where(random.random(X.shape) < 0.1, np.nan, X)
Z = (X - X.mean(axis=0)) / X.std(axis=0)
SCORE = Z[:, 0] + np.sin(Z[:, 1] * 3) + Z[:, 2] * Z[:, 3]
TWO, THREE = (SCORE > 0).astype(int), np.digitize(SCORE, [-0.7, 0.8])
FRAME = framed(X)
PASSENGERS = pd.DataFrame(
    {
        "age": random.normal(40, 10, N),
        "fare": random.gamma(2, 10, N),
        "x": random.normal(size=N),
        "kids": random.integers(0, 5, N),
        "alone": (random.random(N) < 0.4).astype(float),
        "sex": random.choice(["m", "f"], N),
        "port": random.choice(["S", "C", "Q"], N),
    }
)
TRAVELS = PASSENGERS.age / 40 + PASSENGERS.alone + (PASSENGERS.sex == "m")
#: What models are trained on; ``passengers`` have texts, and targets of their own.
ROWS: dict[str, Any] = {
    "array": X,
    "gaps": GAPS,
    "frame": FRAME,
    "categories": with_categories(FRAME),
    "frame of gaps": framed(GAPS),
    "mixed frame": FRAME.assign(f=np.arange(N)),
    "marked": np.where(np.isnan(GAPS), -999.0, GAPS),
    "codes": np.column_stack([X[:, :2], np.abs(X[:, 2:3]), X[:, 3:]]),
    "passengers": PASSENGERS,
}
WORDS = np.array(["high", "low", "middle"])[THREE]
TARGETS: dict[str, Any] = {
    "two": TWO,
    "three": THREE,
    "odd": THREE * 2,
    "floats": THREE * 2.0,
    "bools": TWO > 0,
    "names": np.array(["no", "yes"])[TWO],
    "three names": WORDS,
    "objects": WORDS.astype(object),
    "one class": np.zeros(N, int),
    "one text": np.full(N, "a"),
    "one of two": np.column_stack([THREE, np.zeros(N, int)]),
    "some": np.where(Z[:, 0] > 1, -1, THREE),
    "labels": np.column_stack([TWO, Z[:, 1] > 0]).astype(int),
    "three labels": np.column_stack([TWO, THREE == 1, THREE == 2]).astype(int),
    "classes": np.column_stack([TWO, THREE, TWO]),
    "texts": np.column_stack([np.array(["no", "yes"])[TWO], WORDS]),
    "no, all": np.column_stack([TWO, np.zeros(N), np.ones(N)]).astype(int),
    "all, no": np.column_stack([np.ones(N), TWO, np.zeros(N)]).astype(int),
    "values": SCORE,
    "counts": np.abs(SCORE).round(),
    "positive": np.exp(SCORE / 3),
    "one column": SCORE[:, None],
    "columns": np.column_stack([SCORE, Z[:, 1] ** 2, SCORE + Z[:, 4]]),
    "positive columns": np.abs(np.column_stack([SCORE, Z[:, 1], Z[:, 4]])),
    "travels": (TRAVELS > 2).astype(int),
    "lengths": TRAVELS.to_numpy(),
    "both": np.column_stack([TRAVELS > 2, TRAVELS <= 2]).astype(int),
}


#: What models of scikit-learn may offer.
OFFERED = (
    *("predict", "predict_proba", "predict_log_proba", "decision_function"),
    "score_samples",
)


@dataclass(frozen=True)
class Kind:
    """A model that is not fitted, and the names of the rows and target it gets."""

    model: Any
    y: str = "two"
    on: str = "array"
    #: Further arguments of ``fit``.
    fit: dict[str, Any] = field(default_factory=dict)
    #: What of the fitted model is compiled.
    part: Callable[[Any], Any] | None = None
    #: Whether an artifact can hold it.
    stored: bool = True
    #: Methods, and parts of the names of forms, that the library answers.
    asks: tuple[str, ...] = ()
    #: Whether no step of it is left to its library.
    folds: bool = False

    def fitted(self) -> Any:
        """Return what is to be compiled, fitted on its rows."""
        model = clone(self.model).fit(ROWS[self.on], TARGETS[self.y], **self.fit)
        return model if self.part is None else self.part(model)


def base_rows(kind: Kind, fast: Any, n: int = 100) -> Any:
    """Return a frame of a kind's columns: rows of training, and rows on thresholds.

    The latter have values of thresholds, and of their neighbours as float32 or float64.
    """
    frame = PASSENGERS if kind.on == "passengers" else FRAME
    near, draw = frame[n : 2 * n].copy(), np.random.default_rng(1)
    forest = getattr(fast, "forest_", None)
    for place, name in enumerate(
        PASSENGER_NUMBERS[:3] if frame is PASSENGERS else frame
    ):
        if forest is None:
            break
        cuts = forest.threshold[(forest.feature == place)].astype(np.float64)
        cuts = cuts[np.isfinite(cuts)]
        if len(cuts):
            at, way = draw.choice(cuts, n), draw.choice([-np.inf, np.inf], n)
            at[::3] = np.nextafter(at, way)[::3]
            at[1::3] = np.nextafter(at.astype(np.float32), way.astype(np.float32))[1::3]
            at[at == -ZERO_THRESHOLD] = 0  # which LightGBM takes for 0 in arrays alone
            near[name] = np.clip(at, -6e4, 6e4)
    return pd.concat([frame[:n], near], ignore_index=True)


# ------------------------------------------------------------ ensembles of trees

FEW: dict[str, Any] = {"n_estimators": 5, "random_state": 0}
LIGHT = {"n_estimators": 5, "min_child_samples": 2, "verbose": -1, "n_jobs": 1}
XGB = {"n_estimators": 5, "max_depth": 3, "n_jobs": 1}
CAT = {"iterations": 5, "depth": 3, "verbose": 0, "thread_count": 1}
CAT = {**CAT, "allow_writing_files": False}
FOREST = ensemble.RandomForestClassifier(**FEW)
SMALL = ensemble.RandomForestClassifier(4, max_depth=5, random_state=0)
HIST = ensemble.HistGradientBoostingClassifier(max_iter=4, min_samples_leaf=20)
BOOSTED = ensemble.GradientBoostingClassifier(**FEW)
TREE = tree.DecisionTreeClassifier(random_state=0)
CLASSIFIERS = {
    "forest": FOREST,
    "extra": ensemble.ExtraTreesClassifier(5, max_depth=4, random_state=0),
    "tree": tree.DecisionTreeClassifier(max_depth=4, random_state=0),
    "gb": BOOSTED,
    "hist": HIST,
    "bagging": ensemble.BaggingClassifier(n_estimators=4, random_state=0),
    "adaboost": ensemble.AdaBoostClassifier(n_estimators=4, random_state=0),
    "xgboost": xgb.XGBClassifier(**XGB),
    "lightgbm": lgb.LGBMClassifier(**LIGHT),
}
REGRESSORS = {
    "forest": ensemble.RandomForestRegressor(**FEW),
    "tree": tree.DecisionTreeRegressor(max_depth=4, random_state=0),
    "gb": ensemble.GradientBoostingRegressor(**FEW),
    "hist": ensemble.HistGradientBoostingRegressor(max_iter=4, min_samples_leaf=20),
    "bagging": ensemble.BaggingRegressor(n_estimators=4, random_state=0),
    "adaboost": ensemble.AdaBoostRegressor(n_estimators=4, random_state=0),
    "xgboost": xgb.XGBRegressor(**XGB),
    "lightgbm": lgb.LGBMRegressor(**LIGHT),
}
ISOLATION = ensemble.IsolationForest(**FEW)

#: Targets of classifiers.
CLASSES = {
    "forest": ["two", "three", "names", "three names", "floats", "objects", "bools"],
    "extra": ["names"],
    "tree": ["three", "classes"],
    "gb": ["names", "odd"],
    "hist": ["names", "odd"],
    "bagging": ["three names"],
    "adaboost": ["names", "odd"],
    "xgboost": ["two", "three", "labels"],
    "lightgbm": ["names", "three", "three names"],
}
CLASSES["forest"] += ["labels", "one class"]
CLASSES["hist"] += ["one class", "one text"]
CLASSES["lightgbm"] += ["one class", "one text"]
MODELS: dict[str, Kind] = {
    **{
        f"{name} of {y}": Kind(CLASSIFIERS[name], y)
        for name, targets in CLASSES.items()
        for y in targets
    },
    **{
        f"{name} of values": Kind(model, "values") for name, model in REGRESSORS.items()
    },
    **{
        f"{name} of a frame": Kind(CLASSIFIERS[name], "two", "frame")
        for name in CLASSIFIERS
    },
    **{
        f"{name} of values of a frame": Kind(REGRESSORS[name], "values", "frame")
        for name in ("gb", "xgboost", "lightgbm")
    },
    "forest, no NaN": Kind(
        ensemble.RandomForestRegressor(criterion="absolute_error", **FEW), "values"
    ),
    "extra of columns": Kind(ensemble.ExtraTreesRegressor(**FEW), "columns"),
    "forest of labels of a frame": Kind(FOREST, "labels", "frame"),
    "extra of a frame": Kind(ensemble.ExtraTreesRegressor(**FEW), "values", "frame"),
    "gb, exponential": Kind(clone(BOOSTED).set_params(loss="exponential"), "names"),
    "hist of counts": Kind(
        ensemble.HistGradientBoostingRegressor(max_iter=4, loss="poisson"), "counts"
    ),
    "hist, sets": Kind(
        ensemble.HistGradientBoostingClassifier(max_iter=4, categorical_features=[2]),
        "names",
        "codes",
    ),
    "isolation": Kind(ISOLATION),
    "isolation of a frame": Kind(ISOLATION, on="frame"),
    "isolation, some": Kind(
        ensemble.IsolationForest(max_features=2, contamination=0.1, **FEW)
    ),
    "bagging, some": Kind(
        ensemble.BaggingClassifier(max_features=3, bootstrap_features=True, **FEW)
    ),
    "xgboost, missing": Kind(xgb.XGBRegressor(missing=-999, **XGB), "values", "marked"),
    "xgboost, scores": Kind(xgb.XGBRegressor(objective="binary:logistic", **XGB)),
    "xgboost of counts": Kind(
        xgb.XGBRegressor(objective="count:poisson", **XGB), "counts"
    ),
    "xgboost, dart": Kind(
        xgb.XGBRegressor(
            booster="dart", rate_drop=0.5, n_estimators=20, base_score=7.3, n_jobs=1
        ),
        "values",
    ),
    "xgboost, no tree": Kind(xgb.XGBRegressor(n_estimators=0, n_jobs=1), "values"),
    "xgboost, one tree": Kind(xgb.XGBRegressor(n_estimators=1, n_jobs=1), "values"),
    "xgboost, softmax": Kind(
        xgb.XGBClassifier(objective="multi:softmax", **XGB), "three"
    ),
    "xgboost, random forest": Kind(xgb.XGBRFClassifier(**XGB), "three"),
    "xgboost, stopped early": Kind(
        xgb.XGBClassifier(early_stopping_rounds=2, n_estimators=60, n_jobs=1),
        fit={"eval_set": [(X[:60], TWO[:60])], "verbose": False},
    ),
    "xgboost, ranker": Kind(
        xgb.XGBRanker(**XGB), "three", fit={"qid": np.arange(N) // 10}
    ),
    "xgboost, booster": Kind(
        xgb.XGBClassifier(**XGB), "three", part=methodcaller("get_booster")
    ),
    "xgboost of categories": Kind(
        xgb.XGBClassifier(enable_categorical=True, **XGB), "two", "categories"
    ),
    "hist of categories": Kind(
        clone(HIST).set_params(categorical_features="from_dtype"), "two", "categories"
    ),
    "lightgbm of categories": Kind(lgb.LGBMClassifier(**LIGHT), "two", "categories"),
    "lightgbm of categories as numbers": Kind(
        lgb.LGBMClassifier(**LIGHT),
        "two",
        "categories",
        fit={"categorical_feature": []},
    ),
    "lightgbm, roots": Kind(lgb.LGBMRegressor(reg_sqrt=True, **LIGHT), "values"),
    "lightgbm, cross-entropy": Kind(
        lgb.LGBMRegressor(objective="cross_entropy_lambda", **LIGHT), "two"
    ),
    "lightgbm, one against all": Kind(
        lgb.LGBMClassifier(objective="multiclassova", sigmoid=1.3, **LIGHT), "three"
    ),
    "lightgbm, averages": Kind(
        lgb.LGBMClassifier(
            boosting_type="rf", bagging_freq=1, bagging_fraction=0.5, **LIGHT
        )
    ),
    "lightgbm, ranker": Kind(
        lgb.LGBMRanker(**LIGHT), "three", fit={"group": [10] * (N // 10)}
    ),
    "lightgbm, booster": Kind(
        lgb.LGBMClassifier(**LIGHT),
        "three",
        part=attrgetter("booster_"),
        asks=("list",),
    ),
    **{
        f"catboost of {y}": Kind(cb.CatBoostClassifier(**CAT), y)
        for y in ("names", "three", "bools")
    },
    **{
        f"catboost of {y}, {loss}": Kind(kind(loss_function=loss, **CAT), y)
        for kind, y, loss in (
            (cb.CatBoostClassifier, "three names", "MultiClassOneVsAll"),
            (cb.CatBoostClassifier, "labels", "MultiLogloss"),
            (cb.CatBoostRegressor, "columns", "MultiRMSE"),
            (cb.CatBoostRegressor, "counts", "Poisson"),
            (cb.CatBoostRegressor, "values", "RMSEWithUncertainty"),
        )
    },
    "catboost, classes without rows": Kind(
        cb.CatBoostClassifier(loss_function="MultiClass", classes_count=5, **CAT),
        "three",
    ),
    "catboost, gaps are the greatest": Kind(
        cb.CatBoostClassifier(grow_policy="Lossguide", nan_mode="Max", **CAT),
        *("three", "gaps"),
    ),
    "catboost of a frame": Kind(cb.CatBoostClassifier(**CAT), "names", "frame of gaps"),
    "catboost of values of a frame": Kind(
        cb.CatBoostRegressor(**CAT), "values", "frame"
    ),
    "catboost, ranker": Kind(
        cb.CatBoostRanker(**CAT), "three", fit={"group_id": np.arange(N) // 10}
    ),
    "catboost of categories": Kind(
        cb.CatBoostClassifier(**CAT), "names", "categories", {"cat_features": ["b"]}
    ),
    "catboost of texts": Kind(
        cb.CatBoostClassifier(**CAT),
        *("travels", "passengers", {"cat_features": ["sex", "port"]}),
    ),
    **{
        f"xgboost, {kind} of {objective}": Kind(
            getattr(xgb, f"XGB{kind}")(objective=objective, **more, **XGB)
        )
        for kind, objective, more in (
            ("Classifier", "binary:hinge", {}),
            ("Classifier", "binary:logitraw", {}),
            ("Classifier", "multi:softprob", {"num_class": 2}),
            ("Classifier", "reg:squarederror", {}),
            ("Regressor", "binary:hinge", {}),
            ("Regressor", "binary:logitraw", {}),
            ("Regressor", "multi:softmax", {"num_class": 2}),
        )
    },
    "xgboost of vectors of labels": Kind(
        xgb.XGBClassifier(multi_strategy="multi_output_tree", **XGB), "three labels"
    ),
    **{
        f"lightgbm, {kind} of {objective}": Kind(
            getattr(lgb, f"LGBM{kind}")(objective=objective, **more, **LIGHT)
        )
        for kind, objective, more in (
            ("Classifier", "multiclass", {"num_class": 2}),
            ("Classifier", "cross_entropy", {}),
            ("Classifier", "regression", {}),
            ("Regressor", "binary", {}),
        )
    },
    "xgboost of vectors": Kind(
        xgb.XGBRegressor(multi_strategy="multi_output_tree", **XGB), "columns"
    ),
    "xgboost, base score": Kind(
        xgb.XGBRegressor(objective="count:poisson", base_score=0.3, **XGB), "counts"
    ),
    "lightgbm, dart": Kind(
        lgb.LGBMRegressor(boosting_type="dart", drop_rate=0.5, **LIGHT), "values"
    ),
    "lightgbm, zeros": Kind(
        lgb.LGBMRegressor(zero_as_missing=True, **LIGHT), "values", "gaps"
    ),
}

# ------------------------------------------------------------ wrappers around them


def kinds_of(
    make: Callable[..., Any], *names: Iterable[str], **how: Any
) -> dict[str, Kind]:
    """Return ``make`` of every combination of names; a name of a target is the last."""
    return {
        ", ".join([make.__name__, *map(str, each)]): Kind(
            make(*each[:-1]), each[-1], **how
        )
        for each in product(*names)
    }


def calibrated(method: str, name: str) -> Any:
    return CalibratedClassifierCV(CLASSIFIERS[name], method=method, cv=2)


def fixed(name: str) -> Any:
    return FixedThresholdClassifier(CLASSIFIERS[name], threshold=0.3)


def tuned(name: str) -> Any:
    return TunedThresholdClassifierCV(CLASSIFIERS[name], cv=2)


def threshold(response: str, label: Any, value: Any) -> Any:
    return FixedThresholdClassifier(
        BOOSTED, threshold=value, pos_label=label, response_method=response
    )


def log_target(name: str) -> Any:
    return compose.TransformedTargetRegressor(
        REGRESSORS[name], func=np.log, inverse_func=np.exp
    )


def scaled_target(name: str) -> Any:
    return compose.TransformedTargetRegressor(
        REGRESSORS[name], transformer=pre.QuantileTransformer(n_quantiles=50)
    )


def outputs(name: str) -> Any:
    return multioutput.MultiOutputRegressor(REGRESSORS[name], n_jobs=1)


def classes(name: str) -> Any:
    return multioutput.MultiOutputClassifier(CLASSIFIERS[name])


def rest(name: str) -> Any:
    return multiclass.OneVsRestClassifier(CLASSIFIERS[name])


def votes(voting: str, weights: Any) -> Any:
    members = [(name, CLASSIFIERS[name]) for name in MIXED]
    return ensemble.VotingClassifier(members, voting=voting, weights=weights)


def soft(*members: Any, **how: Any) -> Any:
    named = [(f"m{i}", one) for i, one in enumerate(members)]
    return ensemble.VotingClassifier(named, voting="soft", **how)


def without_one() -> Any:
    """Return votes of which a fold of each misses a class."""
    seen = np.flatnonzero(THREE != 1), np.arange(N)
    return [seen, (np.arange(N // 2), np.arange(N))]


MIXED = ("forest", "gb", "hist", "xgboost", "lightgbm")
SCALER = pre.StandardScaler()
BY_CATBOOST, CATBOOST = cb.CatBoostClassifier(**CAT), cb.CatBoostRegressor(**CAT)
WEIGHTS = [2, 1, 0.5, 3, 1]
#: Members that were trained without names warn of a frame's in different ways.
WARN_APART = ("frame",)
WRAPPERS: dict[str, Kind] = {
    **kinds_of(
        calibrated,
        ["sigmoid", "isotonic", "temperature"],
        CLASSIFIERS,
        ["two", "three"],
    ),
    **kinds_of(
        calibrated,
        *(["sigmoid", "isotonic", "temperature"], ["forest"], ["names", "three names"]),
    ),
    **kinds_of(fixed, CLASSIFIERS, ["two"]),
    **kinds_of(tuned, CLASSIFIERS, ["two"]),
    **kinds_of(
        threshold,
        *(["predict_proba", "decision_function", "auto"], ["no", "yes", None]),
        *(["auto", 0.1], ["names"]),
    ),
    **kinds_of(log_target, REGRESSORS, ["positive"]),
    **kinds_of(scaled_target, REGRESSORS, ["positive"]),
    **kinds_of(outputs, REGRESSORS, ["one column", "columns"]),
    **kinds_of(classes, CLASSIFIERS, ["classes"]),
    **kinds_of(classes, ["forest"], ["texts"]),
    **kinds_of(rest, CLASSIFIERS, ["three names", "names"]),
    **kinds_of(rest, ["forest", "gb", "xgboost", "lightgbm"], ["three labels"]),
    **kinds_of(rest, ["gb"], ["no, all", "all, no"], asks=WARN_APART),
    **kinds_of(rest, ["forest"], ["no, all"], asks=WARN_APART),
    "soft votes": Kind(votes("soft", None), asks=WARN_APART),
    "soft votes, weighted": Kind(
        votes("soft", WEIGHTS), "three names", asks=WARN_APART
    ),
    "hard votes": Kind(votes("hard", None), "three names", asks=WARN_APART),
    "hard votes, weighted": Kind(votes("hard", WEIGHTS), asks=WARN_APART),
    "hard votes, negative": Kind(
        ensemble.VotingClassifier(
            [(name, CLASSIFIERS[name]) for name in MIXED[:3]], weights=[1, -1, 2]
        ),
        "three",
        stored=False,
        asks=OFFERED,  # compiled member by member
    ),
    "hard votes that tie": Kind(
        ensemble.VotingClassifier(
            [
                (
                    str(i),
                    tree.DecisionTreeClassifier(
                        max_depth=1, max_features=1, random_state=i
                    ),
                )
                for i in range(4)
            ]
        ),
        "three names",
    ),
    "votes of some": Kind(
        ensemble.VotingClassifier(
            [("a", FOREST), ("b", "drop"), ("c", BOOSTED)],
            voting="soft",
            weights=[1, 5, 2],
        ),
        "three",
        asks=WARN_APART,
    ),
    **{
        f"mean of votes{'' if weights is None else ', weighted'}": Kind(
            ensemble.VotingRegressor(
                [(name, REGRESSORS[name]) for name in MIXED], weights=weights
            ),
            "values",
            asks=WARN_APART,
        )
        for weights in (None, WEIGHTS)
    },
    "one calibrator of all folds": Kind(
        CalibratedClassifierCV(FOREST, ensemble=False, cv=2)
    ),
    "calibrated, frozen": Kind(
        CalibratedClassifierCV(
            FrozenEstimator(clone(BOOSTED).fit(X[:160], THREE[:160]))
        ),
        "three",
    ),
    **{
        f"calibrated folds that miss a class, {method}": Kind(
            CalibratedClassifierCV(FOREST, cv=without_one(), method=method), "three"
        )
        for method in ("sigmoid", "isotonic")
    },
    **{
        f"catboost, {name}": Kind(model, y, asks=WARN_APART if "votes" in name else ())
        for name, model, y in (
            ("calibrated", CalibratedClassifierCV(BY_CATBOOST, cv=2), "three names"),
            ("soft votes", soft(BY_CATBOOST, BOOSTED), "names"),
            ("outputs", multioutput.MultiOutputRegressor(CATBOOST), "columns"),
            (
                "target",
                compose.TransformedTargetRegressor(
                    CATBOOST, func=np.arcsinh, inverse_func=np.sinh
                ),
                "values",
            ),
            ("scaled", make_pipeline(SCALER, BY_CATBOOST), "three"),
            ("votes of pipelines", soft(make_pipeline(None, BY_CATBOOST)), "two"),
        )
    },
    **{
        f"lightgbm of categories, {name}": Kind(model, y, "categories")
        for name, model, y in (
            ("calibrated", calibrated("sigmoid", "lightgbm"), "two"),
            ("soft votes", soft(*[CLASSIFIERS["lightgbm"]] * 2), "names"),
            ("classes", classes("lightgbm"), "classes"),
        )
    },
    "catboost, calibrated behind nothing": Kind(
        make_pipeline(None, CalibratedClassifierCV(BY_CATBOOST, cv=2)),
        *("two", "frame"),
    ),
    "calibrated of a frame": Kind(calibrated("sigmoid", "forest"), on="frame"),
    "calibrated, gaps": Kind(calibrated("sigmoid", "xgboost"), "three", "gaps"),
    **kinds_of(classes, ["hist", "lightgbm"], ["one of two"]),
    **{
        f"{way}, {name} of {y}": Kind(model, y)
        for name in ("hist", "lightgbm")
        for y in ("one class", "one text")
        for way, model in (
            ("scaled", make_pipeline(SCALER, CLASSIFIERS[name])),
            ("one vote", soft(CLASSIFIERS[name])),
        )
    },
    "votes of two rules for NaN": Kind(soft(BOOSTED, HIST), asks=WARN_APART),
    "tuned for another label": Kind(
        TunedThresholdClassifierCV(
            FOREST, scoring=make_scorer(f1_score, pos_label="no"), cv=2
        ),
        "names",
    ),
    **{
        f"target of {y}": Kind(
            compose.TransformedTargetRegressor(
                REGRESSORS["forest"], transformer=pre.StandardScaler()
            ),
            y,
        )
        for y in ("one column", "columns")
    },
    "outputs of another link": Kind(
        multioutput.MultiOutputRegressor(
            ensemble.HistGradientBoostingRegressor(loss="poisson", max_iter=3)
        ),
        "positive columns",
    ),
    "scaled outputs": Kind(make_pipeline(SCALER, outputs("forest")), "columns"),
    "threshold of calibrated": Kind(
        FixedThresholdClassifier(CalibratedClassifierCV(FOREST, cv=2), threshold=0.4)
    ),
    "calibrated votes": Kind(
        CalibratedClassifierCV(soft(FOREST, CLASSIFIERS["xgboost"]), cv=2),
        asks=WARN_APART,
    ),
    "votes of calibrated": Kind(
        soft(
            CalibratedClassifierCV(BOOSTED, cv=2),
            CalibratedClassifierCV(CLASSIFIERS["lightgbm"], cv=2),
        ),
        asks=WARN_APART,
    ),
    "calibrated pipelines": Kind(
        CalibratedClassifierCV(make_pipeline(SCALER, FOREST), cv=2)
    ),
    "calibrated search": Kind(
        CalibratedClassifierCV(GridSearchCV(FOREST, {"max_depth": [2, 4]}, cv=2), cv=2)
    ),
    "pipeline of calibrated": Kind(
        make_pipeline(SCALER, CalibratedClassifierCV(FOREST, cv=2))
    ),
    "pipeline of a threshold": Kind(
        make_pipeline(
            pre.MinMaxScaler(), FixedThresholdClassifier(BOOSTED, threshold=0.4)
        )
    ),
    "threshold of a pipeline": Kind(
        TunedThresholdClassifierCV(make_pipeline(SCALER, BOOSTED), cv=2)
    ),
    "pipeline of votes": Kind(
        make_pipeline(SCALER, soft(FOREST, CLASSIFIERS["xgboost"]))
    ),
    "calibrated pipelines of votes": Kind(
        CalibratedClassifierCV(make_pipeline(SCALER, soft(FOREST, HIST)), cv=2)
    ),
}
