"""Tests that come with libraries, but not as files that pytest finds by itself.

XGBoost's functions of ``xgboost.testing``, which its own tests call; and scikit-learn's
checks of estimators, which XGBoost's and LightGBM's own tests run on theirs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from typing import Any

import pandas as pd
import pytest
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks
from xgboost import DMatrix, QuantileDMatrix, XGBClassifier, XGBRegressor

MODULES = (
    *("predict", "ordinal", "with_skl", "intercept", "multi_target", "continuation"),
    *("metrics", "ranking", "callbacks", "quantile_dmatrix", "basic_models"),
)
#: What their arguments may be; a function with another argument is left out.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "device": ("cpu",),
    "tdevice": ("cpu",),
    "tree_method": ("hist", "approx"),
    "weighted": (False, True),
    "learning_rate": (None, 0.3),
    "n_samples": (128,),
    "objective": ("rank:ndcg", "rank:pairwise"),
    "grow_policy": ("depthwise", "lossguide"),
    "sampling_method": ("uniform",),
    "DMatrixT": (DMatrix, QuantileDMatrix),
    "impl": (pd,),
}


def shipped() -> Iterator[Any]:
    """Yield each function of ``xgboost.testing`` with each choice of its arguments."""
    for name in MODULES:
        module = import_module(f"xgboost.testing.{name}")
        for function in vars(module).values():
            is_own = getattr(function, "__module__", "") == module.__name__
            if not is_own or not function.__name__.startswith(("run_", "check_")):
                continue
            names = [*inspect.signature(function).parameters]
            if not {*names} <= {*ARGUMENTS}:
                continue
            for number, chosen in enumerate(
                product(*(ARGUMENTS[name] for name in names))
            ):
                label = f"{name}.{function.__name__}-{number}"
                yield pytest.param(function, chosen, id=label)


@pytest.mark.parametrize(("function", "arguments"), [*shipped()])
def test_of_xgboost(function: Callable[..., object], arguments: tuple[Any, ...]):
    function(*arguments)


FEW: dict[str, Any] = {"n_estimators": 5, "n_jobs": 1}
QUIET: dict[str, Any] = {"verbose": 0, "allow_writing_files": False, "iterations": 5}


@parametrize_with_checks(
    [
        XGBClassifier(**FEW),
        XGBRegressor(**FEW),
        LGBMClassifier(**FEW, verbose=-1, min_child_samples=1),
        LGBMRegressor(**FEW, verbose=-1, min_child_samples=1),
        CatBoostClassifier(**QUIET),
        CatBoostRegressor(**QUIET),
    ]
)
def test_of_estimators(estimator: Any, check: Callable[[Any], object]):
    check(estimator)
