"""Pipelines that are timed, and rows in the shape of known data, drawn with a seed.

Nothing is downloaded: the tables have the columns of Titanic and of Adult, as many
categories in each, and the same shares of missing values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder

#: A mark of missing texts for converters that know no NaN among texts. Encoders sort
#: it where they sort NaN, so that the same trees grow.
MARK = "missing"
#: Categories of each text column, and the share of rows that lack it.
ADULT_TEXTS = {
    "workclass": (8, 0.057),
    "education": (16, 0.0),
    "marital-status": (7, 0.0),
    "occupation": (14, 0.057),
    "relationship": (6, 0.0),
    "race": (5, 0.0),
    "sex": (2, 0.0),
    "native-country": (41, 0.018),
}
ADULT_NUMBERS = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss"]
ADULT_NUMBERS += ["hours-per-week"]


@dataclass(frozen=True, slots=True)
class Case:
    """A pipeline and its rows."""

    draw: Callable[[int, int], tuple[Any, Any]]  # of rows and seed: frame and labels
    make: Callable[[Any], Any]  # not fitted; takes what marks missing texts
    n_train: int
    arrays: bool = False  # it may be trained on them, too

    def fitted(self, kind: str) -> Any:
        """Return the pipeline trained on an array, a frame, or a frame with marks."""
        return _fitted(self, kind)


@cache
def _fitted(case: Case, kind: str) -> Any:
    frame, y = case.draw(case.n_train, 0)
    model = case.make(MARK if kind == "marked" else np.nan)
    with warnings.catch_warnings():  # of seeds that TargetEncoder knows no more
        warnings.simplefilter("ignore", FutureWarning)
        if kind == "marked":
            return model.fit(marked(frame), y)
        return model.fit(frame.to_numpy() if kind == "array" else frame, y)


def texts_of(frame: Any) -> list[str]:
    """Return the names of columns that are no numbers."""
    return [name for name in frame if not is_numeric_dtype(frame[name].dtype)]


def marked(frame: Any) -> Any:
    """Return a frame with a mark in place of missing texts."""
    return frame.fillna(dict.fromkeys(texts_of(frame), MARK))


# ------------------------------------------------------------ rows


def numbers(n: int, seed: int) -> tuple[Any, Any]:
    """Draw 20 features over seven orders of magnitude."""
    random = np.random.default_rng(seed)
    Z = random.normal(size=(n, 20))
    y = Z[:, 0] + Z[:, 3] * Z[:, 7] + np.sin(3 * Z[:, 11]) + random.normal(size=n) > 0
    X = Z * np.logspace(-3, 4, 20) + np.linspace(-5, 100, 20)
    return pd.DataFrame(X, columns=[f"column_{i}" for i in range(20)]), y.astype(int)


def titanic(n: int, seed: int) -> tuple[Any, Any]:
    """Draw passengers: a fifth of the ages is missing."""
    random = np.random.default_rng(seed)
    pclass = random.choice([1, 2, 3], n, p=[0.247, 0.212, 0.541])
    frame = pd.DataFrame(
        {
            "pclass": pclass,
            "sex": random.choice(["female", "male"], n, p=[0.356, 0.644]),
            "age": np.clip(np.round(random.normal(30, 14, n) * 2) / 2, 0.5, 80),
            "sibsp": random.poisson(0.5, n),
            "parch": random.poisson(0.4, n),
            "fare": np.round(random.lognormal(5 - pclass, 0.7, n), 4),
            "embarked": random.choice(["C", "Q", "S"], n, p=[0.207, 0.094, 0.699]),
        }
    )
    score = (frame["sex"] == "female") * 2.5 - pclass - frame["age"] / 40
    y = (score + random.logistic(size=n) > -2).astype(int)
    for name, share in (("age", 0.201), ("fare", 0.001), ("embarked", 0.0015)):
        frame.loc[random.random(n) < share, name] = np.nan
    return frame, y


def adult(n: int, seed: int) -> tuple[Any, Any]:
    """Draw people of a census: eight of 14 columns are texts."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": np.clip(random.gamma(8, 4.8, n), 17, 90).astype(int),
            "fnlwgt": np.round(random.lognormal(12, 0.5, n)).astype(int),
            "education-num": random.integers(1, 17, n),
            "capital-gain": _sometimes(random, n, 0.083, 8.5),
            "capital-loss": _sometimes(random, n, 0.047, 7.5),
            "hours-per-week": np.clip(random.normal(40, 12, n), 1, 99).astype(int),
        }
    )
    score = (
        frame["education-num"] / 4 + frame["age"] / 25 + frame["hours-per-week"] / 20
    )
    for name, (count, share) in ADULT_TEXTS.items():
        likely = 1 / np.arange(1, count + 1)
        code = random.choice(count, n, p=likely / likely.sum())
        score = score + np.random.default_rng(count).normal(size=count)[code] / 2
        names = np.array([f"{name} {i}" for i in range(count)], object)
        frame[name] = pd.Series(names[code], dtype="str")
        frame.loc[random.random(n) < share, name] = np.nan
    y = score + (frame["capital-gain"] > 5000) * 3 + random.logistic(size=n) > 7.5
    return frame, y.astype(int)


def _sometimes(random: np.random.Generator, n: int, share: float, size: float) -> Any:
    """Draw whole amounts of money, most of them 0."""
    amounts = np.round(random.lognormal(size, 0.8, n)).astype(int)
    return np.where(random.random(n) < share, amounts, 0)


# ------------------------------------------------------------ pipelines


def _forest(depth: int | None = 10) -> Any:
    return RandomForestClassifier(100, max_depth=depth, random_state=0)


def _scaler(_mark: Any) -> Any:
    return make_pipeline(StandardScaler(), _forest())


def _titanic(_mark: Any) -> Any:
    """Return the pipeline of scikit-learn's example of mixed types, with a forest."""
    filled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    codes = OneHotEncoder(handle_unknown="ignore")
    columns = ColumnTransformer(
        [
            ("numbers", filled, ["age", "fare"]),
            ("categories", codes, ["embarked", "sex", "pclass"]),
        ]
    )
    return make_pipeline(columns, _forest(None))


def _adult(mark: Any) -> Any:
    codes = make_pipeline(
        SimpleImputer(missing_values=mark, strategy="most_frequent"),
        OneHotEncoder(handle_unknown="ignore"),
    )
    columns = ColumnTransformer(
        [
            (
                "numbers",
                make_pipeline(SimpleImputer(), StandardScaler()),
                ADULT_NUMBERS,
            ),
            ("texts", codes, list(ADULT_TEXTS)),
        ]
    )
    return make_pipeline(columns, _forest())


def _target(last: Callable[[], Any]) -> Callable[[Any], Any]:
    def make(_mark: Any) -> Any:
        codes = TargetEncoder(random_state=0)
        columns = ColumnTransformer(
            [("texts", codes, list(ADULT_TEXTS))], remainder="passthrough"
        )
        return make_pipeline(columns, last())

    return make


def _lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1, random_state=0)


#: By name: what is timed.
CASES = {
    "scaler + forest": Case(numbers, _scaler, 8192, arrays=True),
    "Titanic: imputer, scaler, one-hot + forest": Case(titanic, _titanic, 1309),
    "Adult: imputers, scaler, one-hot + forest": Case(adult, _adult, 16384),
    "Adult: target encoder + HistGradientBoosting": Case(
        adult, _target(lambda: HistGradientBoostingClassifier(random_state=0)), 16384
    ),
    "Adult: target encoder + LightGBM": Case(adult, _target(_lightgbm), 16384),
}
