"""Draws models: pipelines with wrappers around them, inside them and behind them.

Members come from several libraries; some steps fold into the trees and others run in
their library. ``choose`` is that of :mod:`tests.random_pipelines`.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass, field
from tempfile import NamedTemporaryFile
from typing import Any

import catboost as cb
import lightgbm as lgb
import numpy as np
import xgboost as xgb
from sklearn import ensemble, tree
from sklearn import preprocessing as pre
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline

from tests.random_pipelines import (
    NAN,
    TEXTS,
    Choose,
    Table,
    columns_step,
    draw_table,
    last_step,
    number_step,
)


@dataclass(frozen=True, slots=True)
class Example:
    """A model that is not fitted, and what it is to be fitted with.

    ``X`` are the table's rows, perhaps in other dtypes, and ``y`` its labels, perhaps
    of two targets. ``reads`` says who reads the table's categories: "steps", "forests"
    or "both". ``how`` are arguments of ``fit``; with ``other``, the fitted model is
    written, and read by that class.
    """

    table: Table
    X: Any
    y: Any
    model: Any
    reads: str = "steps"
    how: dict[str, Any] = field(default_factory=dict)
    other: Any = None

    def fitted(self) -> Any:
        """Fit a copy of the model."""
        model = deepcopy(self.model).fit(self.X, self.y, **self.how)
        if self.other is None:
            return model
        with NamedTemporaryFile(suffix=".json") as file:
            model.save_model(file.name)
            other = self.other()
            other.load_model(file.name)
        return other

    def __str__(self) -> str:
        X = self.X
        kinds = X.dtypes.tolist() if hasattr(X, "dtypes") else X.dtype
        return f"{self.table.kinds} {kinds} {self.y[:3].tolist()}\n{self.model!r}"


def draw_example(choose: Choose) -> Example:
    """Draw a table and a model of it."""
    table = draw_table(choose)
    many = choose([False] * 6 + [True])
    y = table.y
    if many:
        y = np.column_stack([y, np.roll(y, 7)])
    X = table.X
    if table.names is not None:
        kind = choose(["as it is"] * 6 + ["nullable", "pyarrow"])
        if kind == "nullable":
            X = X.convert_dtypes()
        elif kind == "pyarrow":
            X = X.convert_dtypes(dtype_backend="pyarrow")
    drawing = _Drawing(choose, table, X, y)
    model = drawing.model(raw=True, many=many, depth=choose([1, 2, 3]))
    if choose([False] * 9 + [True]):
        model = GridSearchCV(model, {}, cv=2)
    readers = [word for word, read in drawing.reads.items() if read]
    return Example(table, X, y, model, readers[0] if len(readers) == 1 else "both")


class Scaled(pre.StandardScaler):
    """A subclass, which does not fold."""


def halved(X: Any) -> Any:
    """Return half of all values."""
    return X / 2


def cubed(y: Any) -> Any:
    """Return the third power."""
    return y**3


def unfolded_step(choose: Choose) -> Any:
    """Draw a step for numbers that runs in its library."""
    step = choose(
        [
            PCA(choose([1, None, 0.9]), random_state=0),
            pre.PolynomialFeatures(2, include_bias=choose([True, False])),
            pre.FunctionTransformer(np.arctan, validate=choose([False, True])),
            pre.FunctionTransformer(halved, feature_names_out="one-to-one"),
            pre.QuantileTransformer(
                n_quantiles=20, output_distribution=choose(["uniform", "normal"])
            ),
            pre.PowerTransformer(),
            pre.SplineTransformer(n_knots=3, degree=2),
            pre.Normalizer(),
            TruncatedSVD(1, random_state=0),
            Scaled(),
            pre.OneHotEncoder(
                dtype=np.float32,
                handle_unknown="ignore",
                sparse_output=choose([True, False]),
            ),
            FeatureUnion([("one", PCA(1)), ("all", "passthrough")]),
        ]
    )
    return make_pipeline(SimpleImputer(), step) if choose([False, True]) else step


class _Drawing:
    """Draws the parts of a model for one table."""

    def __init__(self, choose: Choose, table: Table, X: Any, y: Any) -> None:
        self._choose, self._table, self._X, self._y = choose, table, X, y
        self._texts = any(kind in TEXTS for kind in table.kinds)
        self._regresses = table.y.dtype == np.float64
        self._classes = [] if self._regresses else [*np.unique(table.y)]
        self.reads = {"steps": False, "forests": False}

    def model(self, raw: bool, many: bool, depth: int) -> Any:
        """Draw a model of the table's own rows (``raw``), or of rows behind steps."""
        if depth <= 0:
            return self._pipeline(many, 0) if raw else self._forest(many)
        kinds = ["wrapper", "wrapper", "wrapper", "pipeline", "pipeline", "forest"]
        if raw:
            kinds += ["frozen"]
        kind = self._choose(kinds)
        if kind == "wrapper":
            wrap = self._for_many if many else self._for_one
            return wrap(raw, depth - 1)
        if kind == "pipeline":
            inside = self._pipeline(many, depth - 1, raw)
            return GridSearchCV(inside, {}, cv=2) if self._rarely() else inside
        if kind == "frozen":
            return self._frozen(self.model(raw, many, depth - 1))
        if not raw:
            return self._forest(many)
        return self._native(many) or self._pipeline(many, depth - 1)

    def _rarely(self) -> bool:
        return bool(self._choose([False] * 14 + [True]))

    def _frozen(self, model: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return FrozenEstimator(model.fit(self._X, self._y))

    # ------------------------------------------------------------ pipelines

    def _pipeline(self, many: bool, depth: int, raw: bool = True) -> Any:
        choose = self._choose
        steps = []
        self.reads["steps"] |= raw
        if raw and (self._texts or choose([False, True])):
            steps.append(columns_step(choose, self._table))
        for _ in range(choose([0, 0, 1, 2])):
            steps.append(number_step(choose))
        if choose([False, True]):
            steps.append(unfolded_step(choose))
            if choose([False, False, True]):
                steps.append(number_step(choose, 0))
        model = make_pipeline(*steps, self.model(False, many, depth))
        if choose([False] * 7 + [True]):
            model.set_output(transform=choose(["pandas", "polars"]))
        return model

    # ------------------------------------------------------------ forests

    def _forest(self, many: bool) -> Any:
        """Draw a forest; one that takes several targets, or a wrapper around it."""
        choose = self._choose
        if not many:
            if choose([False, False, True]):
                return self._rarer()
            return last_step(choose, self._table)
        few: dict[str, Any] = {"n_estimators": 3, "random_state": 0}
        if self._regresses:
            return choose(
                [
                    tree.DecisionTreeRegressor(random_state=0),
                    ensemble.RandomForestRegressor(**few),
                    xgb.XGBRegressor(n_estimators=3, max_depth=3, n_jobs=1),
                ]
            )
        return choose([tree.DecisionTreeClassifier, tree.ExtraTreeClassifier])(
            max_depth=5, random_state=0
        )

    def _rarer(self) -> Any:
        choose = self._choose
        few: dict[str, Any] = {"n_estimators": 3, "random_state": 0}
        extreme = {**few, "max_depth": 3, "n_jobs": 1, "missing": choose([NAN, 0, 1])}
        light = {**few, "min_child_samples": 2, "verbose": -1, "n_jobs": 1}
        light["zero_as_missing"] = choose([False, True])
        light["use_missing"] = choose([True, False])
        cat = {"iterations": 3, "depth": 3, "thread_count": 1, "random_seed": 0}
        cat |= {"verbose": False, "allow_writing_files": False}
        if self._regresses:
            return choose(
                [
                    xgb.XGBRegressor(**extreme),
                    lgb.LGBMRegressor(**light),
                    cb.CatBoostRegressor(**cat),
                    tree.ExtraTreeRegressor(random_state=0),
                    ensemble.BaggingRegressor(**few),
                    xgb.XGBRegressor(**extreme, objective="reg:absoluteerror"),
                    ensemble.HistGradientBoostingRegressor(
                        max_iter=3, loss="quantile", quantile=0.3
                    ),
                ]
            )
        kinds = [
            lgb.LGBMClassifier(**light),
            cb.CatBoostClassifier(**cat),
            tree.ExtraTreeClassifier(random_state=0),
            ensemble.BaggingClassifier(**few),
            ensemble.AdaBoostClassifier(**few),
            ensemble.HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=4),
        ]
        if self._table.y.dtype.kind == "i":
            kinds.append(xgb.XGBClassifier(**extreme))
        return choose(kinds)

    def _native(self, many: bool) -> Any:
        """Draw a forest of the table's own rows; None if no forest takes them."""
        if many or any(kind in TEXTS[:3] + TEXTS[-1:] for kind in self._table.kinds):
            return None
        self.reads["forests"] = True
        if not self._texts:
            return self._forest(many)
        words = self._table.y.dtype.kind == "U"
        extreme: dict[str, Any] = {"n_estimators": 3, "n_jobs": 1, "max_depth": 3}
        extreme["enable_categorical"] = True
        light: dict[str, Any] = {"n_estimators": 3, "n_jobs": 1, "verbose": -1}
        light["min_child_samples"] = 2
        hist: dict[str, Any] = {"max_iter": 3, "min_samples_leaf": 4}
        if self._regresses:
            return self._choose(
                [
                    xgb.XGBRegressor(**extreme),
                    lgb.LGBMRegressor(**light),
                    ensemble.HistGradientBoostingRegressor(**hist),
                ]
            )
        kinds = [
            lgb.LGBMClassifier(**light),
            ensemble.HistGradientBoostingClassifier(**hist),
        ]
        return self._choose(kinds if words else [*kinds, xgb.XGBClassifier(**extreme)])

    # ------------------------------------------------------------ wrappers

    def _for_one(self, raw: bool, depth: int) -> Any:
        """Draw a wrapper for one target."""
        if self._regresses:
            return self._choose([self._target, self._mean])(raw, depth)
        two = [self._fixed, self._tuned] if len(self._classes) == 2 else []
        kinds = [self._calibrated, self._votes, self._rest, *two]
        return self._choose(kinds)(raw, depth)

    def _for_many(self, raw: bool, depth: int) -> Any:
        """Draw a wrapper for two targets."""
        if self._regresses:
            if self._choose([False, False, True]):
                return self._target(raw, depth, many=True)
            return MultiOutputRegressor(self.model(raw, False, depth))
        if self._classes == [0, 1] and self._choose([False, True]):
            return self._rest(raw, depth)  # several labels a row
        return MultiOutputClassifier(self.model(raw, False, depth))

    def _members(self, raw: bool, depth: int) -> list[tuple[str, Any]]:
        n = self._choose([2, 2, 3])
        return [(f"m{i}", self.model(raw, False, depth)) for i in range(n)]

    def _calibrated(self, raw: bool, depth: int) -> Any:
        choose = self._choose
        inside = self.model(raw, False, depth)
        if raw and choose([False, False, True]):
            inside = self._frozen(inside)
        return CalibratedClassifierCV(
            inside,
            method=choose(["sigmoid", "isotonic", "temperature"]),
            ensemble=choose([True, False, "auto"]),
            cv=2,
        )

    def _fixed(self, raw: bool, depth: int) -> Any:
        return FixedThresholdClassifier(
            self.model(raw, False, depth),
            threshold=self._choose(["auto", 0.3, 0.52, 0.7, 0.25]),
            pos_label=self._choose(self._classes),
            response_method=self._choose(
                ["auto", "predict_proba", "decision_function"]
            ),
        )

    def _tuned(self, raw: bool, depth: int) -> Any:
        return TunedThresholdClassifierCV(
            self.model(raw, False, depth),
            thresholds=7,
            cv=2,
            response_method=self._choose(
                ["auto", "predict_proba", "decision_function"]
            ),
            random_state=0,
        )

    def _rest(self, raw: bool, depth: int) -> Any:
        return OneVsRestClassifier(self.model(raw, False, depth))

    def _votes(self, raw: bool, depth: int) -> Any:
        members = self._members(raw, depth)
        weights = [1, 2.5, 0.5][: len(members)]
        odd = [-1, 2, 1][: len(members)]
        return ensemble.VotingClassifier(
            members,
            voting=self._choose(["soft", "hard"]),
            weights=self._choose([None, None, weights, odd]),
            flatten_transform=self._choose([True, False]),
        )

    def _mean(self, raw: bool, depth: int) -> Any:
        members = self._members(raw, depth)
        weights = [1, 2.5, 0.5][: len(members)]
        return ensemble.VotingRegressor(
            members, weights=self._choose([None, None, weights])
        )

    def _target(self, raw: bool, depth: int, many: bool = False) -> Any:
        how = self._choose(
            [
                {"func": np.arcsinh, "inverse_func": np.sinh},
                {"func": np.cbrt, "inverse_func": cubed, "check_inverse": False},
                {"transformer": pre.StandardScaler()},
                {"transformer": pre.MinMaxScaler()},
                {"transformer": pre.QuantileTransformer(n_quantiles=20)},
                {},
            ]
        )
        return TransformedTargetRegressor(self.model(raw, many, depth), **how)
