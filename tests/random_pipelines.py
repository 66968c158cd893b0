"""Draws tables of mixed columns and pipelines over them, by any way to choose.

``choose`` takes a sequence and returns one of its members: a strategy of Hypothesis,
whose first member is the simplest, or a random generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import xgboost as xgb
from sklearn import ensemble, tree
from sklearn import feature_selection as fs
from sklearn import preprocessing as pre
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline

Choose = Callable[[Sequence[Any]], Any]


def chooser(random: np.random.Generator) -> Choose:
    """Return a way to choose by a generator."""
    return lambda options: options[int(random.integers(len(options)))]


N_ROWS = 120
NUMBERS = (
    *("float", "gaps", "grid", "whole", "narrow", "marked", "bool", "constant"),
    *("halves", "empty"),
)
TEXTS = ("text", "text-gaps", "text-marked", "category", "codes", "objects")
NAN = float("nan")


@dataclass(frozen=True)
class Table:
    """Rows and labels; a kind for each column."""

    X: Any
    y: Any
    kinds: tuple[str, ...]

    @property
    def names(self) -> list[str] | None:
        return list(self.X.columns) if isinstance(self.X, pd.DataFrame) else None


# ------------------------------------------------------------ tables


def column(kind: str, random: np.random.Generator, n: int = N_ROWS) -> Any:
    """Return a column of a kind."""
    numbers = random.normal(size=n) * 10.0 ** random.integers(-6, 7)
    letters = np.array(["S", "C", "Q", "a b", "é", "10", "x"], object)
    texts = letters[random.integers(0, random.integers(1, 8), n)]
    gaps = random.random(n) < 0.15
    if kind == "float":
        return pd.Series(numbers)
    if kind == "gaps":
        return pd.Series(np.where(gaps, np.nan, numbers))
    if kind == "grid":
        return pd.Series(random.integers(-9, 10, n) / 2)
    if kind == "whole":
        return pd.Series(random.integers(-5, 6, n) * int(10 ** random.integers(0, 4)))
    if kind == "narrow":
        return pd.Series(numbers.astype(np.float32))
    if kind == "marked":
        return pd.Series(random.integers(-1, 6, n))
    if kind == "bool":
        return pd.Series(random.random(n) < 0.4)
    if kind == "halves":
        return pd.Series(random.choice([-1.0, 0.0, 0.5, 0.5, 1.0, 2.0], n))
    if kind == "empty":
        return pd.Series(np.full(n, np.nan))
    if kind == "constant":
        return pd.Series(np.full(n, 2.5))
    if kind == "text":
        return pd.Series(texts, dtype="str")
    if kind == "text-gaps":
        return pd.Series(np.where(gaps, np.nan, texts), dtype="str")
    if kind == "text-marked":
        return pd.Series(np.where(gaps, "?", texts), dtype="str")
    if kind == "category":
        return pd.Series(np.where(gaps, np.nan, texts), dtype="category")
    if kind == "codes":
        return pd.Series(random.integers(0, 5, n), dtype="category")
    assert kind == "objects"
    return pd.Series(np.where(gaps, None, texts), dtype=object)


def labels(frame: Any, task: str, random: np.random.Generator) -> Any:
    """Return labels that depend on the columns."""
    score = random.normal(size=len(frame)) / 2
    for name in frame:
        place = pd.Series(pd.factorize(frame[name], sort=False)[0]).rank(pct=True)
        score = score + np.sin(6 * place.to_numpy() + random.integers(0, 6))
    if task == "regression":
        return score * 100
    cuts = [0.5] if task != "three" else [0.3, 0.7]
    y = np.searchsorted(np.quantile(score, cuts), score)
    return np.array(["no", "yes"])[y] if task == "words" else y


def draw_table(choose: Choose) -> Table:
    """Draw rows and labels."""
    form = choose(["array", "frame", "frame", "whole array", "narrow array", "objects"])
    n_columns = choose([1, 2, 3, 4, 5])
    if form in ("frame", "objects"):
        kinds = tuple(choose(NUMBERS + TEXTS) for _ in range(n_columns))
    elif form == "whole array":
        kinds = tuple(choose(("whole", "marked")) for _ in range(n_columns))
    elif form == "narrow array":
        kinds = ("narrow",) * n_columns
    else:
        some = ("float", "gaps", "grid", "halves", "halves", "empty")
        kinds = tuple(choose(some) for _ in range(n_columns))
    random = np.random.default_rng(choose(range(1000)))
    names = ["b", "a", "d 1", "c", "é"][:n_columns]
    frame = pd.DataFrame(
        {n: column(k, random) for n, k in zip(names, kinds, strict=True)}
    )
    y = labels(frame, choose(["two", "words", "three", "regression"]), random)
    if form == "frame":
        return Table(frame, y, kinds)
    if form == "objects":
        return Table(frame.astype(object).to_numpy(), y, kinds)
    return Table(frame.to_numpy(), y, kinds)


# ------------------------------------------------------------ steps


def scaler(choose: Choose) -> Any:
    return choose(
        [
            pre.StandardScaler(),
            pre.StandardScaler(with_mean=False),
            pre.StandardScaler(with_std=False),
            pre.MinMaxScaler(),
            pre.MinMaxScaler((-3, 7), clip=True),
            pre.MaxAbsScaler(),
            pre.RobustScaler(),
            pre.RobustScaler(with_centering=False, quantile_range=(10, 80)),
            pre.RobustScaler(unit_variance=True),
            pre.RobustScaler(with_scaling=False),
            pre.PowerTransformer(standardize=choose([True, False])),
            pre.QuantileTransformer(
                n_quantiles=20, output_distribution=choose(["uniform", "normal"])
            ),
            pre.FunctionTransformer(
                choose([np.arcsinh, np.arctan, np.abs, np.negative, np.cbrt, np.sqrt]),
                feature_names_out="one-to-one",
                validate=choose([True, False]),
            ),
        ]
    )


def imputer(choose: Choose, missing: Any = NAN) -> Any:
    kind = choose(["mean", "median", "most_frequent", "constant"])
    return SimpleImputer(
        missing_values=missing,
        strategy=kind,
        fill_value=choose([None, 0, 0.5, -1.5]) if kind == "constant" else None,
        add_indicator=choose([False, True]),
        keep_empty_features=choose([False, False, True]),
    )


def selector(choose: Choose) -> Any:
    return choose(
        [
            fs.VarianceThreshold(),
            fs.SelectKBest(k=1),
            fs.SelectPercentile(percentile=60),
            fs.SelectFromModel(tree.DecisionTreeClassifier(random_state=0)),
            fs.RFE(tree.DecisionTreeClassifier(random_state=0)),
        ]
    )


def bins(choose: Choose) -> Any:
    return pre.KBinsDiscretizer(
        choose([3, 2, 5]),
        encode=choose(["ordinal", "onehot", "onehot-dense"]),
        strategy=choose(["uniform", "quantile"]),
        quantile_method="averaged_inverted_cdf",
    )


def one_hot(choose: Choose) -> Any:
    return pre.OneHotEncoder(
        drop=choose([None, None, "first", "if_binary"]),
        handle_unknown=choose(["error", "ignore", "infrequent_if_exist", "warn"]),
        min_frequency=choose([None, None, 5, 0.2]),
        max_categories=choose([None, None, 3]),
        sparse_output=choose([True, False]),
    )


def ordinal(choose: Choose) -> Any:
    unknown = choose([None, -1, NAN])
    return pre.OrdinalEncoder(
        handle_unknown="error" if unknown is None else "use_encoded_value",
        unknown_value=unknown,
        encoded_missing_value=choose([NAN, -2]),
        min_frequency=choose([None, None, 5, 0.2]),
        max_categories=choose([None, None, 3]),
    )


def target(choose: Choose) -> Any:
    return pre.TargetEncoder(smooth=choose(["auto", 0.0, 10.0]), cv=3)


def encoder(choose: Choose) -> Any:
    return choose([one_hot, ordinal, target])(choose)


STEPS = (
    *("scale", "fill", "scale", "fill", "bins", "binary", "select"),
    *("union", "nest", "columns", "marks", "nothing", "encode"),
)


def number_step(choose: Choose, depth: int = 1) -> Any:
    """Draw a step for numbers."""
    kind = choose(STEPS)
    if kind == "scale":
        return scaler(choose)
    if kind == "fill":
        return imputer(choose, choose([NAN, NAN, NAN, -1, 0]))
    if kind == "bins":
        return bins(choose)
    if kind == "binary":
        return pre.Binarizer(threshold=choose([0.0, 0.25, -1.0]))
    if kind == "select":
        return selector(choose)
    if kind == "marks":
        features = choose(["all", "missing-only"])
        marker = choose([NAN, NAN, -1, 0, 0.5])
        new = choose([True, True, False])
        marks = MissingIndicator(
            missing_values=marker, features=features, error_on_new=new
        )
        filled = choose([SimpleImputer(), imputer(choose, marker), "passthrough"])
        return FeatureUnion([("filled", filled), ("marks", marks)])
    if kind == "encode":
        return encoder(choose)
    if kind == "nothing" or not depth:
        identity = pre.FunctionTransformer(feature_names_out="one-to-one")
        return choose([identity, "passthrough"])
    parts = [number_step(choose, depth - 1) for _ in range(2)]
    if kind == "nest":
        return make_pipeline(*parts)
    if kind == "union":
        return FeatureUnion([("u0", parts[0]), ("u1", parts[1])])
    # Positions: frames become arrays on the way, or have names that are not known here.
    where = choose([[0], slice(0, 1), [-1], slice(0, None)])
    rest = choose(["passthrough", "drop", pre.StandardScaler()])
    return ColumnTransformer([("part", parts[0], where)], remainder=rest)


def text_step(choose: Choose) -> Any:
    """Draw a step for columns of texts and categories."""
    steps: list[Any] = []
    if choose([False, True]):
        fill = choose(["most_frequent", "constant"])
        missing = choose([np.nan, np.nan, "?", None])
        marks = choose([False, True])
        steps.append(
            SimpleImputer(missing_values=missing, strategy=fill, add_indicator=marks)
        )
    elif choose([False, False, False, True]):
        return MissingIndicator(
            missing_values=choose(["?", "S", np.nan]),
            features=choose(["all", "missing-only"]),
            error_on_new=choose([True, True, False]),
        )
    steps.append(encoder(choose))
    if choose([False, False, True]):
        steps.append(number_step(choose, 0))
    return steps[0] if len(steps) == 1 else make_pipeline(*steps)


def columns_step(choose: Choose, table: Table) -> Any:
    """Draw a ColumnTransformer that gives every kind of column to a fit step."""
    numbers = [i for i, kind in enumerate(table.kinds) if kind in NUMBERS]
    texts = [i for i, kind in enumerate(table.kinds) if kind in TEXTS]
    parts: list[tuple[str, Any, Any]] = []
    rest: Any = "drop"
    if numbers:
        step: Any = choose(["passthrough", "scale", "fill", "any", "two", "encode"])
        if step == "scale":
            step = scaler(choose)
        elif step == "fill":
            step = imputer(choose)
        elif step == "any":
            step = number_step(choose)
        elif step == "two":
            step = make_pipeline(SimpleImputer(), number_step(choose))
        elif step == "encode":
            step = encoder(choose)
        if texts and choose([False, False, True]):
            rest = step
        else:
            parts.append(("numbers", step, where(choose, table, numbers)))
    if texts:
        parts.append(("texts", text_step(choose), where(choose, table, texts)))
    if len(texts) > 1 and choose([False, True]):
        more = where(choose, table, [texts[0]])
        parts.append(("again", choose([text_step(choose), "drop"]), more))
    if choose([False, True]):
        parts.reverse()
    return ColumnTransformer(
        parts,
        remainder=rest,
        sparse_threshold=choose([0.3, 0.0, 1.0]),
        verbose_feature_names_out=choose([True, False]),
        transformer_weights=choose([*[None] * 19, {parts[0][0]: 2.0}]),
    )


@dataclass(frozen=True)
class Chosen:
    """A callable that chooses columns, and that pickles."""

    columns: list[Any]

    def __call__(self, X: Any) -> list[Any]:
        """Return the columns."""
        return self.columns


def where(choose: Choose, table: Table, chosen: list[int]) -> Any:
    """Return columns as positions, names, a mask or a callable."""
    mask = [i in chosen for i in range(len(table.kinds))]
    ways: list[Any] = [chosen, mask, Chosen(chosen)]
    names = table.names
    if names is not None:
        own = [names[i] for i in chosen]
        ways += [own, own, Chosen(own)]
        dtypes = {names[i]: table.X[names[i]].dtype for i in range(len(names))}
        numeric = [n for n in names if dtypes[n] in (np.float64, np.int64)]
        if own == numeric:
            ways.append(make_column_selector(dtype_include=[np.float64, np.int64]))
    return choose(ways)


def last_step(choose: Choose, table: Table) -> Any:
    """Draw a forest."""
    few: dict[str, Any] = {"n_estimators": 4, "random_state": 0}
    deep = {**few, "max_depth": choose([None, 4])}
    boosted: dict[str, Any] = {"max_iter": 4, "min_samples_leaf": 3}
    light = {**few, "min_child_samples": 2, "verbose": -1, "n_jobs": 1}
    extreme = {**few, "max_depth": 4, "n_jobs": 1}
    if table.y.dtype == np.float64:
        return choose(
            [
                tree.DecisionTreeRegressor(random_state=0),
                ensemble.RandomForestRegressor(**deep),
                ensemble.ExtraTreesRegressor(**deep),
                ensemble.GradientBoostingRegressor(**few),
                ensemble.HistGradientBoostingRegressor(**boosted),
                xgb.XGBRegressor(**extreme),
                lgb.LGBMRegressor(**light),
            ]
        )
    kinds = [
        tree.DecisionTreeClassifier(random_state=0),
        ensemble.RandomForestClassifier(**deep),
        ensemble.ExtraTreesClassifier(**deep),
        ensemble.GradientBoostingClassifier(**few),
        ensemble.HistGradientBoostingClassifier(**boosted),
        lgb.LGBMClassifier(**light),
    ]
    if table.y.dtype.kind == "i":
        kinds.append(xgb.XGBClassifier(**extreme))
    return choose(kinds)


def draw_pipeline(choose: Choose, table: Table, counts: Sequence[int]) -> Pipeline:
    """Draw a pipeline of a number of steps, a forest not counted."""
    n_steps = choose(counts)
    texts = any(kind in TEXTS for kind in table.kinds)
    first = columns_step if texts or choose([False, True]) else None
    steps = [] if first is None else [first(choose, table)]
    if len(steps) == n_steps - 1 or choose([False, True, True]):
        steps += [number_step(choose) for _ in range(n_steps - len(steps))]
    model = make_pipeline(*steps, last_step(choose, table))
    if choose([False, False, False, False, True]):
        model.set_output(transform="pandas")
    return model


def draw_steps(choose: Choose, table: Table) -> Pipeline:
    """Draw one or two steps before a small tree: what counts is what they refuse."""
    texts = any(kind in TEXTS for kind in table.kinds)
    if texts or choose([True, False, False]):
        steps = [columns_step(choose, table)]
    else:
        steps = [number_step(choose)]
    if choose([True, False, False]):
        steps.append(number_step(choose, 0))
    regresses = table.y.dtype == np.float64
    kind = tree.DecisionTreeRegressor if regresses else tree.DecisionTreeClassifier
    return make_pipeline(*steps, kind(max_depth=6, random_state=0))
