"""Models that the sweep draws: kinds, roles of columns, degenerate targets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tests.random_pipelines import Table

#: Roles of columns, and the values that they draw from a generator.
ROLES: dict[str, Callable[[Any, int], Any]] = {
    "number": lambda r, n: r.normal(size=n),
    "narrow": lambda r, n: np.round(r.normal(size=n), 1),
    "whole": lambda r, n: r.integers(-5, 6, n).astype(np.int64),
    "large": lambda r, n: r.integers(1 << 24, (1 << 24) + 30, n).astype(np.int64),
    "flag": lambda r, n: r.random(n) < 0.5,
    "gaps": lambda r, n: np.where(r.random(n) < 0.2, np.nan, r.normal(size=n)),
    "constant": lambda r, n: np.full(n, 3.0),
    "empty": lambda r, n: np.full(n, np.nan),
}
TEXTS = ["oslo", "bern", "riga", "lima"]
LABELS: dict[str, Callable[[Any, int], Any]] = {
    "category": lambda r, n: pd.Categorical(_texts(r, n), TEXTS),
    "ordered": lambda r, n: pd.Categorical(
        r.integers(1, 6, n), [5, 3, 1, 2, 4], ordered=True
    ),
    "codes": lambda r, n: pd.Categorical(r.integers(0, 4, n), [3, 1, 0, 2]),
    "flags": lambda r, n: pd.Categorical(r.random(n) < 0.5),
}


def _texts(random: Any, n: int) -> Any:
    return np.array(TEXTS, object)[random.integers(0, len(TEXTS), n)]


#: What ``random_rows.py`` calls the roles that it has no name for.
KINDS = {"number": "float", "narrow": "grid", "large": "whole", "flag": "bool"}
KINDS |= {"ordered": "codes", "flags": "codes", "texts": "text"}


@dataclass
class Drawn:
    model: Any
    how: str
    table: Table  # the rows of training
    sample: Any  # the rows that ``fit`` gets

    @property
    def width(self) -> int:
        return len(self.table.kinds)


def draw_frame(random: Any, n: int, roles: dict[str, str]) -> Any:
    every = ROLES | LABELS | {"texts": _texts}
    return pd.DataFrame({name: every[role](random, n) for name, role in roles.items()})


def _roles(choose: Any, kinds: list[str]) -> dict[str, str]:
    return {name: choose(kinds) for name in "abcde"[: choose([1, 3, 5])]}


def _target(choose: Any, random: Any, X: Any, classes: bool) -> tuple[Any, str]:
    scores = random.normal(size=len(X))
    for name in X:
        values = (
            pd.factorize(X[name])[0] if X[name].dtype.kind not in "fiub" else X[name]
        )
        scores = scores + np.nan_to_num(np.asarray(values, float) % 7)
    kind = choose(["usual"] * 6 + ["constant"])
    if kind == "constant":
        return (np.zeros(len(X), int) if classes else np.full(len(X), 2.5)), kind
    if not classes:
        return scores, kind
    n = choose([2, 2, 3])
    codes = np.digitize(scores, np.quantile(scores, np.linspace(0, 1, n + 1)[1:-1]))
    return codes, f"{n} classes"


def _drawn(
    choose: Any, random: Any, kinds: list[str], make: Callable[..., Any]
) -> Drawn:
    """Draw rows and a target, and train what ``make`` returns."""
    roles, n = _roles(choose, kinds), choose([40, 160])
    X, classes = draw_frame(random, n, roles), choose([True, False])
    y, kind = _target(choose, random, X, classes)
    model, how = make(choose, X, classes)
    plain = all(role in ROLES for role in roles.values())
    given = X
    if plain and choose([True, False, False]):
        given = X.to_numpy(np.float64)
    model.fit(given, y)
    sample = given[: choose([1, 20])]
    said = f"{how}, {roles}, {kind}, trained on {type(given).__name__}"
    kinds = tuple(KINDS.get(role, role) for role in roles.values())
    return Drawn(model, said, Table(X, y, kinds), sample)


_NUMBERS = [*ROLES]
_ALL = [*ROLES, *LABELS, *LABELS]


def _lightgbm(choose: Any, X: Any, classes: bool) -> tuple[Any, str]:
    import lightgbm as lgb

    kind = lgb.LGBMClassifier if classes else lgb.LGBMRegressor
    how = {"n_estimators": choose([1, 5]), "verbose": -1, "n_jobs": 1}
    how["min_child_samples"] = choose([1, 10])
    how["boosting_type"] = choose(["gbdt", "gbdt", "dart"])
    how |= {"min_data_per_group": 1, "cat_smooth": 1.0}
    named = [name for name in X if X[name].dtype.kind in "iub" or _is_label(X[name])]
    some = choose(["auto", "auto", named[:1], named])
    if some != "auto":
        named_too = f"LightGBM {how}, categorical_feature={some}"
        return _Named(kind(**how), some), named_too
    return kind(**how), f"LightGBM {how}"


class _Named:
    """Passes LightGBM the names of categorical features in ``fit``."""

    def __init__(self, model: Any, names: Any) -> None:
        self.model, self._names = model, names

    def fit(self, X: Any, y: Any) -> None:
        named = self._names if hasattr(X, "columns") else "auto"
        self.model.fit(X, y, categorical_feature=named)


def _reloaded(choose: Any, X: Any, classes: bool) -> tuple[Any, str]:
    """Return a model that is written and read by another class when it is trained."""
    import catboost as cb
    import xgboost as xgb

    make, others = choose(
        [
            (_xgboost, [xgb.XGBRegressor, xgb.XGBClassifier, xgb.XGBModel]),
            (_catboost, [cb.CatBoost, cb.CatBoostRegressor, cb.CatBoostClassifier]),
        ]
    )
    model, how = make(choose, X[[]] if make is _catboost else X, classes)
    other = choose(others)()
    return _Reloaded(model, other), f"{type(other).__name__} of {how}"


class _Reloaded:
    def __init__(self, trained: Any, other: Any) -> None:
        self._trained, self.model = trained, other

    def fit(self, X: Any, y: Any) -> None:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            self._trained.fit(X, y).save_model(file.name)
            self.model.load_model(file.name)


def _is_label(column: Any) -> bool:
    return str(column.dtype) == "category"


def _xgboost(choose: Any, X: Any, classes: bool) -> tuple[Any, str]:
    import xgboost as xgb

    kind = xgb.XGBClassifier if classes else xgb.XGBRegressor
    how = {"n_estimators": choose([1, 5]), "n_jobs": 1, "enable_categorical": True}
    how["max_depth"] = choose([2, 5])
    how["missing"] = choose([np.nan, np.nan, 0.0, 1.0])
    return kind(**how), f"XGBoost {how}"


def _catboost(choose: Any, X: Any, classes: bool) -> tuple[Any, str]:
    import catboost as cb

    kind = cb.CatBoostClassifier if classes else cb.CatBoostRegressor
    named = [n for n in X if X[n].dtype.kind not in "fiub"]
    named += [n for n in X if X[n].dtype.kind in "i" and choose([True, False])]
    how = {"iterations": choose([1, 5]), "verbose": 0, "thread_count": 1}
    how |= {"allow_writing_files": False, "cat_features": named or None}
    return kind(**how), f"CatBoost {how}"


def _histogram(choose: Any, X: Any, classes: bool) -> tuple[Any, str]:
    from sklearn import ensemble

    name = f"HistGradientBoosting{'Classifier' if classes else 'Regressor'}"
    named = [n for n in X if X[n].dtype.kind in "ib" and choose([True, False])]
    how = {"max_iter": choose([1, 5]), "min_samples_leaf": choose([1, 10])}
    how["categorical_features"] = choose(["from_dtype", named or "from_dtype"])
    return getattr(ensemble, name)(**how), f"{name} {how}"


def _sklearn(choose: Any, X: Any, classes: bool) -> tuple[Any, str]:
    from sklearn import ensemble, tree

    word = "Classifier" if classes else "Regressor"
    name = choose(["RandomForest", "ExtraTrees", "GradientBoosting", "AdaBoost"])
    how: dict[str, Any] = {"n_estimators": choose([1, 4]), "random_state": 0}
    name = choose([name, name, name, "DecisionTree"])
    home = tree if name == "DecisionTree" else ensemble
    how = {"random_state": 0} if name == "DecisionTree" else how
    return getattr(home, name + word)(**how), f"{name}{word} {how}"


def _others(choose: Any, X: Any, classes: bool) -> tuple[Any, str]:
    from sklearn import ensemble

    name = choose(["IsolationForest", "RandomTreesEmbedding", "Bagging", "Voting"])
    if name in ("IsolationForest", "RandomTreesEmbedding"):
        return getattr(ensemble, name)(n_estimators=4, random_state=0), name
    inner, how = _sklearn(choose, X, classes)
    word = "Classifier" if classes else "Regressor"
    if name == "Bagging":
        return getattr(ensemble, name + word)(inner, n_estimators=2), f"{name} of {how}"
    other, also = _sklearn(choose, X, classes)
    options = {"voting": choose(["soft", "hard"])} if classes else {}
    members = [("a", inner), ("b", other)]
    model = getattr(ensemble, name + word)(members, **options)
    return model, f"{name} {options} of {how}, {also}"


def _pipeline(choose: Any, X: Any, classes: bool) -> tuple[Any, str]:
    from sklearn import compose, impute, pipeline, preprocessing

    encoders = {
        "one-hot": preprocessing.OneHotEncoder(handle_unknown="ignore"),
        "ordinal": preprocessing.OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=-1
        ),
    }
    scalers = {
        "scaler": preprocessing.StandardScaler(),
        "imputer": impute.SimpleImputer(keep_empty_features=True),
        "none": "passthrough",
    }
    encoder, scaler = choose([*encoders]), choose([*scalers])
    coded = [n for n in X if X[n].dtype.kind not in "fiub" or n == "a"]
    others = [n for n in X if n not in coded]
    parts = [("coded", encoders[encoder], coded), ("others", scalers[scaler], others)]
    last, how = choose([_sklearn, _lightgbm_plain, _xgboost])(choose, X, classes)
    model = pipeline.make_pipeline(compose.ColumnTransformer(parts), last)
    return model, f"{encoder}, {scaler}, {how}"


def _lightgbm_plain(choose: Any, X: Any, classes: bool) -> tuple[Any, str]:
    import lightgbm as lgb

    kind = lgb.LGBMClassifier if classes else lgb.LGBMRegressor
    return kind(n_estimators=3, verbose=-1, n_jobs=1), "LightGBM"


#: By name, what draws a model from a choice and a generator.
MODELS: dict[str, Callable[[Any, Any], Drawn]] = {}


def _register(name: str, kinds: list[str], make: Callable[..., Any]) -> None:
    def draw(choose: Any, random: Any) -> Drawn:
        drawn = _drawn(choose, random, kinds, make)
        drawn.model = getattr(drawn.model, "model", drawn.model)
        return drawn

    MODELS[name] = draw


_register("LightGBM", _ALL, _lightgbm)
_register("XGBoost", [*ROLES, "category", "codes", "ordered"], _xgboost)
_register("CatBoost", [*ROLES, "category", "codes", "texts"], _catboost)
_register("of another class", [*ROLES], _reloaded)
_register("histogram", _ALL, _histogram)
_register("scikit-learn", _NUMBERS, _sklearn)
_register("others", _NUMBERS, _others)
_register("pipeline", [*ROLES, "texts", "texts", "category"], _pipeline)
