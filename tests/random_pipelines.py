"""Draws tables of mixed columns and pipelines over them, by any way to choose.

``choose`` takes a sequence and returns one of its members: a strategy of Hypothesis,
whose first member is the simplest, or a random generator.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
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


# ------------------------------------------------------------ rows


EXTREME = (np.inf, -np.inf, 1e308, -1e308, 1e38, 3.5e38, 5e-324, -0.0, -1e-40, 1e17)


def changed(
    table: Table, random: np.random.Generator, n: int, how: Callable[[Any, str], Any]
) -> Any:
    """Return rows in which a third of the values is what ``how`` makes of a column.

    ``how`` takes a column and its kind, and returns as many values, or None.
    """
    frame = pd.DataFrame(table.X).iloc[random.integers(0, N_ROWS, n)]
    frame = frame.reset_index(drop=True)
    made = {}
    for (name, old), kind in zip(frame.items(), table.kinds, strict=True):
        new = how(old, kind)
        made[name] = old if new is None else mixed(old, new, random)
    found = pd.DataFrame(made)
    if table.names is not None:
        return found
    try:
        return found.to_numpy(table.X.dtype)
    except (TypeError, ValueError, OverflowError):  # NaN among whole numbers
        return found.to_numpy(np.float64)


def mixed(old: Any, new: Sequence[Any], random: np.random.Generator) -> Any:
    """Return a column with some values of another; its dtype, if it can be."""
    at = random.random(len(old)) < 0.35
    values = [b if c else a for a, b, c in zip(old, new, at, strict=True)]
    if isinstance(old.dtype, pd.CategoricalDtype):
        known = old.cat.categories
        more = {v for v in values if isinstance(v, str) and v not in known}
        kind = pd.CategoricalDtype([*known, *sorted(more)])
        return pd.Series(values, index=old.index, dtype=kind)
    if old.dtype == object:
        return pd.Series(values, index=old.index, dtype=object)
    try:
        return pd.Series(values, index=old.index, dtype=old.dtype)
    except (TypeError, ValueError, OverflowError):
        return pd.Series(values, index=old.index)


def variants(
    table: Table, forest: Any, random: np.random.Generator, n: int = 24
) -> Iterator[tuple[str, Any]]:
    """Yield rows by a word for each kind: around cuts, missing, unknown, extreme."""

    def pick(options: Sequence[Any]) -> list[Any]:
        return [options[i] for i in random.integers(0, len(options), n)]

    yield "trained", table.X
    yield "few", table.X[:n]
    places = iter(range(len(table.kinds)))

    def near(old: Any, kind: str) -> Any:
        j = next(places)
        if kind not in NUMBERS or kind == "bool":
            return None
        cuts = forest.threshold[forest.feature == j]
        cuts = cuts[np.isfinite(cuts)].astype(np.float64)
        if not len(cuts):
            return None
        at = cuts[random.integers(0, len(cuts), n)]
        way = random.integers(-1, 2, n) * np.inf
        exact = np.where(way == 0, at, np.nextafter(at, np.where(way == 0, at, way)))
        if kind in ("whole", "marked"):
            return np.floor(np.clip(at, -1e15, 1e15)).astype(np.int64)
        if old.dtype == np.float32:
            at = at.astype(np.float32)
            return np.nextafter(at, way.astype(np.float32), where=way != 0, out=at)
        return exact

    for _ in range(2):
        places = iter(range(len(table.kinds)))
        with np.errstate(all="ignore"):
            yield "near cuts", changed(table, random, n, near)

    def missing(old: Any, kind: str) -> Any:
        return pick([np.nan]) if kind in NUMBERS else pick([np.nan, None])

    yield "missing", changed(table, random, n, lambda old, kind: pick([np.nan]))
    yield "none", changed(table, random, n, missing)

    def unknown(old: Any, kind: str) -> Any:
        if kind in ("whole", "marked", "codes"):
            return pick([77, -77, 3, 10**6])
        if kind in ("gaps", "float", "grid", "halves", "empty"):
            return pick([77.0, 0.5, 1e6, -1.0, 0.0])
        return pick(["zzz", "", "s", "nan", "?"]) if kind in TEXTS else None

    yield "unknown", changed(table, random, n, unknown)

    def extreme(old: Any, kind: str) -> Any:
        if kind in ("whole", "marked"):
            return pick([2**53 + 1, -(2**62), 2**31, 2**24 + 1, 0])
        return pick(EXTREME) if kind in NUMBERS and kind != "bool" else None

    yield "extreme", changed(table, random, n, extreme)

    def huge(old: Any, kind: str) -> Any:
        floats = kind in ("float", "gaps", "grid")
        return pick([1e30, -1e30, 1e-30, 1e300, -1e300]) if floats else None

    yield "huge", changed(table, random, n, huge)
    yield from forms(table, random, n)
    yield from whole_numbers(table, random, n)


def whole_numbers(
    table: Table, random: np.random.Generator, n: int
) -> Iterator[tuple[str, Any]]:
    """Yield rows with whole numbers of any dtype, and texts that look like numbers."""
    frame = pd.DataFrame(table.X[:n]).copy()
    plain = [
        name
        for name, kind in zip(frame, table.kinds, strict=True)
        if kind in NUMBERS and frame[name].dtype.kind in "fi"
    ]
    if not plain:
        return
    dtypes = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
    for some in ([dtypes[i]] for i in random.permutation(8)[:4]), [dtypes]:
        for choice in some:
            new = frame.copy()
            for name in plain:
                if len(choice) > 1 and random.random() < 0.5:
                    continue
                dtype = choice[random.integers(len(choice))]
                low = max(np.iinfo(dtype).min, -2)
                new[name] = random.integers(low, 4, len(new)).astype(dtype)
            if table.names is None and len({*new.dtypes}) == 1:
                yield f"array of {choice}", new.to_numpy()
                yield f"list of {choice}", new.to_numpy()[:3].tolist()
            yield f"frame of {choice}", new
    texts = frame.astype({name: object for name in plain})
    texts[plain] = texts[plain].map(lambda value: str(value))
    yield "numbers as texts", texts if table.names is not None else texts.to_numpy()
    if table.names is not None:
        yield (
            "texts as numbers",
            frame.assign(
                **{
                    name: 1
                    for name, kind in zip(frame, table.kinds, strict=True)
                    if kind in TEXTS
                }
            ),
        )


def forms(
    table: Table, random: np.random.Generator, n: int
) -> Iterator[tuple[str, Any]]:
    """Yield the same rows in other dtypes, orders and containers."""
    X = table.X[:n]
    if table.names is None:
        if X.dtype != object:
            yield "float32", X.astype(np.float32)
            yield "float64", X.astype(np.float64)
            yield "F-order", np.asfortranarray(X)
            yield "list", X[:3].tolist()
            yield "frame", pd.DataFrame(X)
        yield "objects", X.astype(object)
        yield "narrower", X[:, :-1]
        yield "no rows", X[:0]
        return
    numbers = [name for name in X if X[name].dtype == np.float64]
    yield "float32 columns", X.astype(dict.fromkeys(numbers, np.float32))
    yield "reversed", X[X.columns[::-1]]
    yield "more columns", X.assign(more=1.0)
    yield "fewer columns", X[X.columns[:-1]]
    yield "objects", X.astype(object)
    yield "array", X.to_numpy()
    yield "other index", X.set_index(np.arange(n) + 7)
    whole = [name for name in X if X[name].dtype == np.int64]
    yield "whole as floats", X.astype(dict.fromkeys(whole, np.float64))
    yield "small integers", X.astype(dict.fromkeys(whole, np.int32))
    texts = [
        n for n, kind in zip(table.names, table.kinds, strict=True) if kind in TEXTS
    ]
    yield "categories", X.astype(dict.fromkeys(texts, "category"))
    plain = [n for n in texts if not isinstance(X[n].dtype, pd.CategoricalDtype)]
    yield "texts as objects", X.astype(dict.fromkeys(plain, object))
    turned = X.copy()
    for name in texts:
        if isinstance(X[name].dtype, pd.CategoricalDtype):
            turned[name] = X[name].cat.set_categories(X[name].cat.categories[::-1])
    yield "categories reversed", turned
    yield "nullable", X.convert_dtypes()
    yield "no rows", X[:0]


# ------------------------------------------------------------ comparing


_CLOCK = re.compile(r"\[\d\d:\d\d:\d\d\] ")  # in XGBoost's errors


def called(call: Callable[[Any], Any], rows: Any) -> tuple[Any, str, list[str]]:
    """Return the answer, the error and the warnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer, error = call(rows), ""
        except Exception as raised:  # noqa: BLE001 - the other must raise the same
            text = _CLOCK.sub("", str(raised).partition("Stack trace")[0])
            answer, error = None, f"{type(raised).__name__}: {text}"
    return answer, error, [f"{w.category.__name__}: {w.message}" for w in caught]


def difference(ours: Any, theirs: Any, rows: Any) -> str:
    """Return how answers, errors or warnings of two calls differ, or ""."""
    answer, error, said = called(ours, rows)
    expected, own_error, own_said = called(theirs, rows)
    if error != own_error:
        return f"error {error[:300]!r}, not {own_error[:300]!r}"
    if said != own_said:
        return f"warnings {said}, not {own_said}"
    if expected is None:
        return ""
    if type(answer) is not type(expected) or answer.dtype != expected.dtype:
        return f"{type(answer)} {answer.dtype}, not {expected.dtype}"
    if answer.shape != expected.shape:
        return f"shape {answer.shape}, not {expected.shape}"
    bits = f"i{expected.itemsize}" if expected.dtype.kind == "f" else expected.dtype
    apart = answer.view(bits) != expected.view(bits)
    if not apart.any():
        return ""
    wrong = np.flatnonzero(apart.reshape(len(answer), -1).any(axis=1))
    at = int(wrong[0])
    row = rows.iloc[at].to_dict() if hasattr(rows, "iloc") else rows[at]
    return f"row {at} of {len(wrong)} wrong, {row}: {answer[at]}, not {expected[at]}"


#: Wider pipelines say nothing more, and take long.
MOST_COLUMNS = 300

METHODS = ("predict", "predict_proba", "decision_function")


def failure(
    table: Table, model: Any, fast: Any, seed: int, methods: Sequence[str] = METHODS
) -> str:
    """Return the first difference of a compiled pipeline, many rows and one, or ""."""
    random = np.random.default_rng(seed)
    for word, rows in variants(table, fast.forest_, random):
        for method in methods:
            if hasattr(fast, method) != hasattr(model, method):
                return f"only one has {method}"
            if not hasattr(model, method):
                continue
            ours, theirs = getattr(fast, method), getattr(model, method)
            if found := difference(ours, theirs, rows):
                return f"{method} of rows {word!r}: {found}"
            singles = random.integers(0, len(rows), 3) if len(rows) else []
            for i in map(int, singles):
                one = rows[i : i + 1]
                if found := difference(ours, theirs, one):
                    return f"{method} of one row {word!r}: {found}"
    return ""


def stored_failure(table: Table, model: Any, stored: Any, seed: int) -> str:
    """Return how an artifact's answers differ, or "".

    It may ask for the pipeline, and call rows wrong only if the pipeline does.
    """
    random = np.random.default_rng(seed)
    for word, rows in variants(table, stored.forest_, random):
        error, own_error = (
            called(stored.predict, rows)[1],
            called(model.predict, rows)[1],
        )
        if error.startswith("SourceNeededError"):
            continue
        if error and not (own_error and error.startswith("InvalidInputError")):
            return f"error {error[:300]!r} for rows {word!r}, not {own_error[:300]!r}"
        found = "" if error else difference(stored.predict, model.predict, rows)
        if found:
            return f"rows {word!r}: {found}"
    return ""
