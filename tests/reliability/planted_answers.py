"""Planted faults in what is made of scores and leaves: methods, rounds, files."""

from __future__ import annotations

from typing import Any

import lightgbm as lgb
import numpy as np
import xgboost as xgb
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingRegressor,
)

from tests.reliability.planted_trial import Trial, fault, numbers

#: Text that plants a rule for the answers of stored models alone.
_RULE = "of_forest = partial(answer, forest.answers, labels_of(forest.answers, model))"
_OF_SCORES = "sources.base:Answers.of_scores"


def stored_alone(rule: str) -> tuple[str, str, str]:
    """Return an edit: ``rule`` makes another ``a`` of a stored model's answer."""
    text = (
        "known = partial(answer, forest.answers, labels_of(forest.answers, model))\n"
        "    def other(method, raw):\n"
        "        a = known(method, raw)\n"
        f"        return {rule}\n"
        "    of_forest = other if type(model).__name__ == 'StoredModel' else known"
    )
    return _OF_SCORES, _RULE, text


def of_stored(t: Trial, model: Any, X: Any, *methods: str) -> None:
    loaded = t.load(t.fit(model, X))
    for name in methods:
        t.method(loaded, model, X, name)


def classes(n: int = 240) -> tuple[Any, Any]:
    X = numbers(n)
    return X, np.array(["no", "yes", "maybe"])[np.digitize(X[:, 0], [-0.5, 0.5])]


@fault(
    "labels-of-another-order",
    "labels of another order",
    "outputs.answers:labels_of",
    "return labels",
    "return labels[::-1] if type(model).__name__ == 'StoredModel' else labels",
)
def stored_labels(t: Trial) -> None:
    X, y = classes()
    model = RandomForestClassifier(5, random_state=0).fit(X, y)
    of_stored(t, model, X, "predict_proba", "predict")


@fault(
    "decision-of-another-sign",
    "a decision function's sign",
    *stored_alone("-a if method == 'decision_function' else a"),
)
def stored_decisions(t: Trial) -> None:
    X, y = classes()
    model = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(
        X, y == "yes"
    )
    of_stored(t, model, X, "predict", "decision_function")


@fault(
    "labels-as-int32",
    "an answer of another dtype",
    *stored_alone("a.astype('i4') if method == 'predict' else a"),
)
def stored_dtypes(t: Trial) -> None:
    X, y = classes()
    model = lgb.LGBMClassifier(n_estimators=5, verbose=-1).fit(X, 1 * (y == "yes"))
    of_stored(t, model, X, "predict_proba", "predict")


@fault(
    "probabilities-in-another-order",
    "an answer of another memory order",
    *stored_alone("np.asfortranarray(a) if method == 'predict_proba' else a"),
    named="attack5, 3",
)
def stored_orders(t: Trial) -> None:
    X, y = classes()
    model = xgb.XGBClassifier(n_estimators=5, n_jobs=1).fit(
        X, np.unique(y, return_inverse=True)[1]
    )
    of_stored(t, model, X, "predict", "predict_proba")


@fault(
    "leaves-without-outputs",
    "an answer of another shape",
    "sources.base:Answers.leaves",
    "return numbers.reshape(-1, *self.leaf_shape)",
    "return numbers",
)
def leaves_of_boosting(t: Trial) -> None:
    X, y = classes()
    model = GradientBoostingClassifier(n_estimators=4, random_state=0).fit(X, y)
    loaded = t.load(t.fit(model, X))
    t.method(loaded, model, X[:4])
    t.method(loaded, model, X, "apply")


@fault(
    "logarithm-of-probabilities",
    "a method answered by another class's rule",
    "prediction.predictor:ForestPredictor.predict_log_proba",
    "follows = self.source.answers.log_proba",
    "follows = 'probabilities'",
)
def own_logarithms(t: Trial) -> None:
    from catboost import CatBoostClassifier

    X = numbers()
    how = {"iterations": 30, "verbose": 0, "allow_writing_files": False}
    model = CatBoostClassifier(**how, thread_count=1).fit(X, X[:, 0] > 0)
    fast = t.fit(model, X)
    t.method(fast, model, X[:4])
    t.method(fast, model, X, "predict_log_proba")


@fault(
    "rounds-without-base",
    "a base score dropped for some rounds",
    "engine.by_round:ByRound._first_sums",
    "base = self.forest.base",
    "base = self.forest.base * 0",
)
def rounds_of_xgboost(t: Trial) -> None:
    X = numbers()
    model = xgb.XGBRegressor(n_estimators=8, n_jobs=1).fit(X, X.sum(axis=1) + 5)
    fast = t.fit(model, X)
    t.method(fast, model, X[:4])
    t.ask(
        "iteration_range",
        lambda: fast.predict(X, iteration_range=(0, 3)),
        lambda: model.predict(X, iteration_range=(0, 3)),
    )


@fault(
    "stages-of-another-rule",
    "stages answered by the last rule's shape",
    "sources.sklearn:GradientBoostingSource.stage",
    'if one and method == "decision_function":',
    "if False:",
)
def stages_of_boosting(t: Trial) -> None:
    X, y = classes()
    model = GradientBoostingClassifier(n_estimators=4, random_state=0).fit(
        X, y == "yes"
    )
    fast = t.fit(model, X)
    t.method(fast, model, X[:4])
    t.ask(
        "staged_decision_function",
        lambda: [*fast.staged_decision_function(X)],
        lambda: [*model.staged_decision_function(X)],
    )


@fault(
    "quantile-interpolation-ignored",
    "an argument of a method ignored",
    "prediction.of_leaves:LeafAnswers._query",
    "query = QuantileQuery(asked, interpolation, **how)",
    "query = QuantileQuery(asked, 'linear', **how)",
)
def quantiles(t: Trial) -> None:
    from quantile_forest import RandomForestQuantileRegressor

    X = numbers()
    model = RandomForestQuantileRegressor(10, random_state=0).fit(X, X.sum(axis=1))
    fast = t.fit(model, X)
    for how in ({}, {"quantiles": [0.1, 0.77], "interpolation": "higher"}):
        t.ask(
            f"predict with {how}",
            lambda how=how: fast.predict(X, **how),
            lambda how=how: model.predict(X, **how),
        )


@fault(
    "votes-as-leaves",
    "transform answered by another class's rule",
    "prediction.of_trees:transform",
    "if not answers.matrix:",
    "if not answers.matrix and predictor.source.model is not None:",
    named="faults5, N; attack5, 1",
)
def stored_votes(t: Trial) -> None:
    X = numbers(60)
    members = [
        (name, RandomForestRegressor(3, random_state=i)) for i, name in enumerate("ab")
    ]
    model = VotingRegressor(members).fit(X, X.sum(axis=1) + 5)
    of_stored(t, model, X, "predict", "transform")


@fault(
    "columns-in-c-order",
    "an answer of another memory order",
    "outputs.steps:by_column",
    'several = rules.function in ("softmax_by_columns", "samme")',
    "several = False",
    named="attack5, 3; faults5, F",
)
def orders_of_histogram(t: Trial) -> None:
    X, y = classes()
    model = HistGradientBoostingClassifier(max_iter=4, random_state=0).fit(X, y)
    fast = t.fit(model, X)
    t.method(fast, model, X)
    t.method(fast, model, X, "decision_function")
