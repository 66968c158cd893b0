"""Draws models with three to five parameters that users rarely set.

Rows are few, with gaps, huge and tiny numbers, and categories. What a model is trained
with may be rare, too: weights, margins, an objective of its own, trees of another
model; and so may be what is done with it: it is sliced, refitted, shrunk or summed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import catboost as cb
import lightgbm as lgb
import numpy as np
import pandas as pd
import xgboost as xgb
from sklearn import ensemble, tree

from tests.random_pipelines import Choose

Calls = dict[str, Callable[[Any], Any]]
WIDTH = 5
XGBOOST: dict[str, list[Any]] = {
    "booster": ["dart"], "rate_drop": [0.3, 1.0], "skip_drop": [0.5],
    "one_drop": [1], "normalize_type": ["forest"], "sample_type": ["weighted"],
    "tree_method": ["exact", "approx"], "grow_policy": ["lossguide"],
    "max_leaves": [2, 7], "max_depth": [1, 9], "num_parallel_tree": [2, 3],
    "subsample": [0.5], "colsample_bynode": [0.4], "max_cat_to_onehot": [1, 100],
    "max_cat_threshold": [1, 2], "max_bin": [2, 3, 700], "gamma": [0.3, 100.0],
    "base_score": [0.1, 1e-30, 0.99999994], "missing": [0.0, 1.0, -999.0, 2.5],
    "max_delta_step": [0.1], "min_child_weight": [0.0, 5.0], "reg_alpha": [2.0],
    "reg_lambda": [0.0, 1e6], "learning_rate": [1e-6, 5.0, 1e20],
    "scale_pos_weight": [0.01, 30.0], "huber_slope": [0.1], "n_estimators": [1, 23],
    "tweedie_variance_power": [1.1, 1.9], "multi_strategy": ["multi_output_tree"],
    "monotone_constraints": [(1, -1, 0, 1, 0)],
    "interaction_constraints": [[[0, 1], [2, 3, 4]]],
    "early_stopping_rounds": [1, 3], "eval_metric": ["mae"],
    "quantile_alpha": [0.9, [0.1, 0.5, 0.8]], "expectile_alpha": [0.9, [0.2, 0.7]],
    "aft_loss_distribution": ["logistic", "extreme"], "refresh_leaf": [0],
}  # fmt: skip
LIGHTGBM: dict[str, list[Any]] = {
    "boosting": ["dart", "rf"], "data_sample_strategy": ["goss"], "max_bin": [2, 15],
    "linear_tree": [True], "linear_lambda": [1.0], "zero_as_missing": [True],
    "use_missing": [False], "path_smooth": [3.0], "extra_trees": [True],
    "boost_from_average": [False], "sigmoid": [0.2, 3.7], "is_unbalance": [True],
    "scale_pos_weight": [0.05], "reg_sqrt": [True], "max_cat_to_onehot": [1, 50],
    "max_cat_threshold": [1, 50], "cat_l2": [0.0], "cat_smooth": [0.0, 90.0],
    "min_data_per_group": [1], "max_delta_step": [0.05], "lambda_l1": [2.0],
    "learning_rate": [1e-9, 30.0, 1e200], "num_leaves": [2, 60], "max_depth": [1, 2],
    "min_data_in_leaf": [1, 40], "min_sum_hessian_in_leaf": [0.0, 20.0],
    "bagging_fraction": [0.4], "pos_bagging_fraction": [0.3], "alpha": [0.2, 0.99],
    "fair_c": [0.2], "poisson_max_delta_step": [0.1],
    "tweedie_variance_power": [1.05, 1.95], "monotone_constraints": [[1, -1, 0, 0, 1]],
    "monotone_constraints_method": ["intermediate", "advanced"],
    "interaction_constraints": [[[0, 1], [2, 3, 4]]], "drop_rate": [0.6, 1.0],
    "xgboost_dart_mode": [True], "uniform_drop": [True], "skip_drop": [0.0],
    "max_drop": [1], "feature_contri": [[0.1, 1, 1, 2, 1]], "refit_decay_rate": [0.1],
    "use_quantized_grad": [True], "quant_train_renew_leaf": [True],
    "min_data_in_bin": [1, 30], "bin_construct_sample_cnt": [20],
    "enable_bundle": [False], "force_row_wise": [True], "n_estimators": [1, 23],
    "feature_fraction_bynode": [0.4], "early_stopping_round": [1],
    "cegb_penalty_split": [0.1], "max_bin_by_feature": [[3, 4, 5, 6, 7]],
}  # fmt: skip
CATBOOST: dict[str, list[Any]] = {
    "grow_policy": ["Lossguide", "Depthwise"], "max_leaves": [3, 50],
    "nan_mode": ["Max", "Min"], "border_count": [1, 3, 254, 700],
    "one_hot_max_size": [2, 255], "max_ctr_complexity": [1, 4], "depth": [1, 8],
    "simple_ctr": ["Buckets:TargetBorderCount=2", "Counter:CtrBorderCount=3",
                   "FeatureFreq", "FloatTargetMeanValue", "BinarizedTargetMeanValue"],
    "combinations_ctr": ["Counter", "Borders:Prior=0.3/2"],
    "learning_rate": [1e-5, 1e150],
    "langevin": [True], "diffusion_temperature": [100.0], "posterior_sampling": [True],
    "model_shrink_rate": [0.2], "model_shrink_mode": ["Decreasing", "Constant"],
    "leaf_estimation_method": ["Gradient", "Exact", "Newton"],
    "leaf_estimation_iterations": [1, 7], "auto_class_weights": ["Balanced"],
    "monotone_constraints": [[1, -1, 0, 0, 0]], "ignored_features": [[0], [1, 4]],
    "feature_weights": [[0.1, 1, 1, 3, 1]], "boosting_type": ["Ordered", "Plain"],
    "bootstrap_type": ["No", "MVS", "Bernoulli", "Bayesian"], "random_strength": [9.0],
    "score_function": ["L2", "Cosine", "NewtonL2"], "min_data_in_leaf": [20],
    "per_float_feature_quantization": [
        ["0:border_count=1024", "1:border_count=2,nan_mode=Max"],
        ["0:nan_mode=Max", "3:nan_mode=Min", "2:border_type=Uniform"],
    ],
    "feature_border_type": ["Uniform", "MaxLogSum", "Median"], "iterations": [1, 23],
    "boost_from_average": [True, False], "leaf_estimation_backtracking": ["No"],
    "early_stopping_rounds": [1], "use_best_model": [False], "has_time": [True],
    "ctr_leaf_count_limit": [2], "store_all_simple_ctr": [True], "rsm": [0.4],
    "counter_calc_method": ["Full", "SkipTest"],
    "ctr_target_border_count": [3],
    "target_border": [0.5], "approx_on_full_history": [True],
    "fold_len_multiplier": [3],
    "final_ctr_computation_mode": ["Skip"], "penalties_coefficient": [3.0],
    "first_feature_use_penalties": [[1, 0, 2, 0, 0]], "sampling_frequency": ["PerTree"],
}  # fmt: skip
TREES: dict[str, list[Any]] = {
    "ccp_alpha": [0.01, 0.5], "max_features": [1, "sqrt", 0.4], "max_depth": [1, 9],
    "max_leaf_nodes": [2, 9], "min_samples_leaf": [0.1, 9], "warm_start": [True],
    "min_impurity_decrease": [0.05], "min_weight_fraction_leaf": [0.1],
    "class_weight": ["balanced", "balanced_subsample"], "bootstrap": [True, False],
    "monotonic_cst": [[1, -1, 0, 0, 1]], "criterion": ["entropy", "poisson", "huber",
                      "absolute_error", "friedman_mse", "log_loss"],
    "max_samples": [0.2, 1, 2], "n_estimators": [1, 23], "splitter": ["random"],
    "oob_score": [True], "learning_rate": [1e-6, 1e9], "init": ["zero"],
    "loss": ["exponential", "huber", "quantile", "absolute_error", "poisson", "gamma"],
    "subsample": [0.5], "alpha": [0.1], "n_iter_no_change": [1], "quantile": [0.2],
    "l2_regularization": [9.0], "max_bins": [3, 40], "max_iter": [1, 23],
    "interaction_cst": ["no_interactions", "pairwise"], "early_stopping": [True],
    "contamination": [0.2], "bootstrap_features": [True], "algorithm": ["SAMME"],
}  # fmt: skip
XGB_OBJECTIVES = {
    "values": ["reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror",
               "reg:quantileerror", "reg:expectileerror", "survival:aft"],
    "positive": ["count:poisson", "reg:gamma", "reg:tweedie", "survival:cox",
                 "reg:squaredlogerror"],
    "two": ["binary:logistic", "binary:logitraw", "binary:hinge", "reg:logistic"],
    "three": ["multi:softprob", "multi:softmax"], "labels": ["binary:logistic"],
    "columns": ["reg:squarederror", "reg:absoluteerror"],
    "ranks": ["rank:ndcg", "rank:map", "rank:pairwise"],
}  # fmt: skip
LGB_OBJECTIVES = {
    "values": ["regression", "regression_l1", "huber", "fair", "quantile", "mape"],
    "positive": ["poisson", "gamma", "tweedie"], "ranks": ["lambdarank", "rank_xendcg"],
    "two": ["binary", "cross_entropy", "cross_entropy_lambda"],
    "three": ["multiclass", "multiclassova"],
}  # fmt: skip
CAT_LOSSES = {
    "values": ["RMSE", "MAE", "Quantile:alpha=0.3", "Huber:delta=2",
               "Expectile:alpha=0.2", "MultiQuantile:alpha=0.1,0.7",
               "RMSEWithUncertainty", "LogCosh",
               "Lq:q=3", "LogLinQuantile:alpha=0.4", "MAPE"],
    "positive": ["Poisson", "Tweedie:variance_power=1.3"],
    "two": ["Logloss", "CrossEntropy", "Focal:focal_alpha=0.3;focal_gamma=2"],
    "three": ["MultiClass", "MultiClassOneVsAll"], "ranks": ["YetiRank", "QueryRMSE",
              "QuerySoftMax", "PairLogit"],
    "columns": ["MultiRMSE"], "labels": ["MultiLogloss", "MultiCrossEntropy"],
}  # fmt: skip
QUIET = {"verbose": 0, "thread_count": 1, "allow_writing_files": False}


def draw_data(choose: Choose, random: np.random.Generator) -> tuple[Any, Any, str]:
    """Draw rows, their targets by kind, and the kind of categories, if any."""
    n = choose([60, 120, 300])
    X = random.normal(size=(n, WIDTH))
    X[:, 1] = np.round(X[:, 1] * 2)
    X[:, 2] = np.abs(np.round(X[:, 2] * 3))
    score = X[:, 0] + np.sin(3 * X[:, 1]) + (X[:, 2] % 2)
    X *= choose([1, 1, [1, 1, 1, 1e-38, 1e30], [1e-6, 1, 1, 1e6, 1e-300]])
    X[random.random(X.shape) < choose([0.0, 0.15, 0.5])] = np.nan
    X[:, choose([3, 4])] = choose([X[:, 3], X[:, 4], np.nan, 0.0, -0.0])
    X = X.astype(choose([np.float64, np.float32]))
    three = np.digitize(score, [-0.4, 0.9])
    names, two = np.array(["no", "yes", "maybe"]), (score > 0.3).astype(int)
    y = {
        "values": score * choose([1, 1, 1e-20, 1e8, 1e37]),
        "positive": np.exp(score / 2),
        "two": choose([two, names[two], two > 0]), "ranks": three,
        "three": choose([three, names[three], three]),
        "columns": np.column_stack([score, -score, X[:, 1] > 0]),
        "labels": np.column_stack([two, three == 1, three > 1]).astype(int),
    }  # fmt: skip
    kind = choose(["", "", "", "texts", "numbers"])
    if not kind:
        return choose([X, X, pd.DataFrame(X, columns=[*"abcde"])]), y, kind
    frame = pd.DataFrame(X, columns=[*"abcde"])
    codes = random.integers(0, choose([2, 5, 40]), n)
    values = codes if kind == "numbers" else np.char.add("v", codes.astype(str))
    return frame.assign(c=pd.Categorical(values)), y, kind


def some(choose: Choose, table: dict[str, list[Any]], known: Any = None) -> Any:
    """Draw three to five parameters, of those that a model knows."""
    names = [name for name in table if known is None or name in known]
    drawn = {choose(names) for _ in range(choose([3, 4, 5]))}
    return {name: choose(table[name]) for name in sorted(drawn)}


@dataclass
class Case:
    """A trained model, its rows, and its calls by name.

    Those that end in " some" answer for the rounds of ``ends``. ``files`` are what
    ``compile_forest`` gets, with the calls that judge it.
    """

    model: Any
    X: Any
    calls: Calls
    how: str
    ends: dict[str, Any] = field(default_factory=dict)
    files: dict[str, tuple[Any, Calls]] = field(default_factory=dict)


# ------------------------------------------------------------ libraries


def draw_weights(choose: Choose, random: np.random.Generator, X: Any) -> Any:
    """Draw weights of rows, or none."""
    some = random.random(len(X)) * choose([1, 1e-3, 1e5])
    return choose([None, None, some, some * (random.random(len(X)) < 0.4)])


def one_in(choose: Choose, n: int) -> bool:
    """Tell whether a rare thing happens."""
    return bool(choose([True] + [False] * (n - 1)))


def codes(y: Any) -> Any:
    """Return numbers for texts and booleans."""
    return y if y.dtype.kind in "fi" else np.unique(y, return_inverse=True)[1]


def squares(labels: Any, scores: Any) -> Any:
    """Return gradients of an objective that no library knows."""
    return scores - labels, np.full_like(scores, 2.0)


def xgboost(choose: Choose, random: np.random.Generator) -> Case:
    """Train a model of XGBoost."""
    X, targets, categories = draw_data(choose, random)
    kind = choose([*XGB_OBJECTIVES])
    objective, y = choose(XGB_OBJECTIVES[kind]), codes(targets[kind])
    how = {"n_estimators": 6, "max_depth": 3, "n_jobs": 1, "objective": objective}
    how |= {"quantile_alpha": 0.3} if "quantile" in objective else {}
    how |= {"expectile_alpha": 0.3} if "expectile" in objective else {}
    how |= some(choose, XGBOOST)
    if objective == "survival:aft":
        y = np.exp(y / np.abs(y).max())
    if objective == "rank:map":
        y = (y > 1).astype(int)
    classifiers = ["Classifier", "Classifier", "RFClassifier", "Regressor"]
    wrapper = "Ranker" if kind == "ranks" else choose(classifiers)
    if kind in ("values", "positive", "columns"):
        wrapper = choose(["Regressor", "Regressor", "RFRegressor"])
    if kind == "three" and wrapper == "Regressor":
        how["num_class"] = 3
    if kind in ("values", "two") and one_in(choose, 6):
        how["objective"] = squares
    if categories:
        how["enable_categorical"] = True
        how.pop("tree_method", None)
    if hasattr(X, "columns") and "interaction_constraints" in how:
        how["interaction_constraints"] = [["a", "b"], ["c", "d", "e"]]
    again, more = _xgboost_fit(choose, random, X, y, wrapper, how)
    if kind in ("values", "two") and one_in(choose, 5):
        more["base_margin"] = random.normal(size=len(X))
    make = partial(getattr(xgb, f"XGB{wrapper}"), **how, verbosity=0)
    model = make().fit(X, y, **more)
    if again:
        model = make().fit(X, y, xgb_model=model.get_booster(), **more)
    word = f"{wrapper} of {kind}, {how}, {[*more]}, {categories}, {again}"
    booster = model.get_booster()
    n = booster.num_boosted_rounds()
    ends = {"iteration_range": (choose([0, n // 2]), n)}
    if one_in(choose, 3):
        if n > 2 and one_in(choose, 2):
            kept = choose([slice(0, 2), slice(1, 3), slice(0, n, 2)])
            booster, word = booster[kept], f"{word}, {kept}"
        n = booster.num_boosted_rounds()
        ends = {"iteration_range": (choose([0, n // 2]), n)}
        case = Case(booster, X, _by_matrix(booster, ends), f"Booster of {word}", ends)
        case.files = {"live": (booster, case.calls), **_xgboost_files(booster)}
        return case
    margins = partial(model.predict, output_margin=True)
    calls = {"predict": model.predict, "apply": model.apply, "predict_raw": margins}
    for name in ("predict", "predict_proba"):
        if hasattr(model, name):
            calls[name] = getattr(model, name)
            calls[f"{name} some"] = partial(calls[name], **ends)
    files = _xgboost_files(booster) if model.missing != model.missing else {}
    return Case(model, X, calls, word, ends, files)


def _xgboost_fit(
    choose: Choose, random: Any, X: Any, y: Any, wrapper: str, how: dict[str, Any]
) -> tuple[bool, dict[str, Any]]:
    """Return whether a model goes on with its trees, and arguments of ``fit``."""
    if wrapper.startswith("RF"):
        how.pop("early_stopping_rounds", None)
    stops = "early_stopping_rounds" in how
    weights = None if callable(how["objective"]) else draw_weights(choose, random, X)
    more: dict[str, Any] = {"sample_weight": weights}
    if wrapper == "Ranker":
        more = {"qid": np.sort(np.arange(len(X)) % 9)}
        more |= {"eval_qid": [more["qid"][:40]]} if stops else {}
    if stops:
        more["eval_set"] = [(X[:40], np.roll(y, 3, axis=0)[:40])]
    if not wrapper.startswith("RF"):
        more["verbose"] = False
    return not (stops or wrapper[:2] == "RF") and one_in(choose, 5), more


def _by_matrix(booster: Any, ends: dict[str, Any]) -> Calls:
    def call(**how: Any) -> Callable[[Any], Any]:
        def ask(rows: Any) -> Any:
            data = xgb.DMatrix(rows, nthread=1, enable_categorical=True)
            return booster.predict(data, **how)

        return ask

    scores, leaves = call(output_margin=True), call(pred_leaf=True)
    found = {"value": call(), "predict_raw": scores, "leaf": leaves}
    return {**found, "value some": call(**ends)} if ends else found


def _xgboost_files(booster: Any) -> dict[str, tuple[Any, Calls]]:
    files = {}
    for form in ("json", "ubj"):
        data = bytes(booster.save_raw(form))
        own = xgb.Booster({"nthread": 1})
        own.load_model(bytearray(data))
        files[form] = data, _by_matrix(own, {})
    return files


def lightgbm(choose: Choose, random: np.random.Generator) -> Case:
    """Train a model of LightGBM."""
    X, targets, categories = draw_data(choose, random)
    kind = choose([*LGB_OBJECTIVES])
    objective, y = choose(LGB_OBJECTIVES[kind]), targets[kind]
    how = {"num_leaves": 6, "min_data_in_leaf": 3, "n_estimators": 6, "seed": 3}
    how |= {"n_jobs": 1, "verbose": -1, "objective": objective}
    how |= some(choose, LIGHTGBM)
    if "monotone_constraints" not in how:  # LightGBM crashes
        how.pop("monotone_constraints_method", None)
    if how.get("boosting") == "rf":
        how |= {"bagging_freq": 1, "bagging_fraction": 0.6}
        how.pop("data_sample_strategy", None)
    wrappers = {"two": "Classifier", "three": "Classifier", "ranks": "Ranker"}
    wrapper = wrappers.get(kind, "Regressor")
    if kind in ("values", "two") and one_in(choose, 6):
        how["objective"] = squares
    if objective.startswith("cross") or callable(how["objective"]):
        wrapper, y = "Regressor", codes(y)
    n = len(X)
    more: dict[str, Any] = {"sample_weight": draw_weights(choose, random, X)}
    more |= {"group": [n // 2, n - n // 2]} if kind == "ranks" else {}
    if kind in ("values", "two") and one_in(choose, 5):
        more["init_score"] = random.normal(size=n)
    if "early_stopping_round" in how:
        more["eval_set"] = [(X[:40], y[:40])]
        more |= {"eval_group": [[20, 20]]} if kind == "ranks" else {}
    if not categories and one_in(choose, 3):
        more["categorical_feature"] = [2]
    make = partial(getattr(lgb, f"LGBM{wrapper}"), **how)
    model = make().fit(X, y, **more)
    if again := one_in(choose, 5):
        model = make().fit(X, y, init_model=model, **more)
    booster, act, whole = _lightgbm_changed(choose, model, X, codes(y))
    word = f"{act}, {wrapper} of {kind}, {how}, {[*more]}, {categories}, {again}"
    n_rounds = booster.current_iteration()
    begin = choose([0, n_rounds // 2])
    count = choose([1, n_rounds - begin])
    ends = {"start_iteration": begin, "num_iteration": count}
    names = [*("predict", "predict_proba"), *([] if whole else ["value"])]
    calls: Calls = {}
    for name in names[:2] if whole else names[2:]:
        method = "predict" if name == "value" else name
        if ask := getattr(model if whole else booster, method, None):
            calls |= {name: ask, f"{name} some": partial(ask, **ends)}
    judge = model if whole else booster
    by = {"predict_raw": partial(judge.predict, raw_score=True)}
    by |= {"leaf": partial(judge.predict, pred_leaf=True)}
    number = choose([{}, {"num_iteration": -1}, {"num_iteration": 2}])
    text = booster.model_to_string(**number)
    own = lgb.Booster({"verbose": -1, "num_threads": 1}, model_str=text)
    by_text: Calls = {"predict_raw": partial(own.predict, raw_score=True)}
    by_text |= {"value": own.predict, "leaf": partial(own.predict, pred_leaf=True)}
    dump = json.dumps(booster.dump_model(**number))
    files = {"text": (text, by_text), "dump": (dump, by_text)}
    if not whole:
        files["live"] = booster, {**by, "value": booster.predict}
    return Case(judge, X, calls | by, word, ends, files)


def _lightgbm_changed(
    choose: Choose, model: Any, X: Any, y: Any
) -> tuple[Any, str, bool]:
    """Return a Booster, what was done to it, and whether its wrapper is asked."""
    booster = model.booster_
    act = choose([""] * 6 + ["refit", "all", "shuffle", "leaf", "text", "best"])
    if act == "refit":
        booster = booster.refit(X, y, decay_rate=0.3)
    elif act == "shuffle":
        booster.shuffle_models()
    elif act == "leaf":
        booster.set_leaf_output(0, 0, choose([0.0, -0.0, 1e300, 1e-320]))
    elif act == "text":
        booster = lgb.Booster(model_str=booster.model_to_string())
    elif act:
        booster.best_iteration = choose([1, 2, 5]) if act == "best" else 0
    return booster, act, act in ("", "leaf", "shuffle") and not one_in(choose, 3)


def catboost(choose: Choose, random: np.random.Generator) -> Case:
    """Train a model of CatBoost."""
    X, targets, categories = draw_data(choose, random)
    kind = choose([*CAT_LOSSES])
    loss, y = choose(CAT_LOSSES[kind]), targets[kind]
    how = {"iterations": 6, "depth": 3, "random_seed": 5, "loss_function": loss}
    how |= some(choose, CATBOOST)
    wrappers = dict.fromkeys(("two", "three", "labels"), "Classifier")
    wrapper = (wrappers | {"ranks": "Ranker"}).get(kind, "Regressor")
    if categories:
        X = X.astype({"c": str if categories == "texts" else int})
        how.pop("final_ctr_computation_mode", None)  # CatBoost crashes
    if how.get("grow_policy") != "Lossguide":
        how.pop("max_leaves", None)
    if wrapper != "Classifier":
        how.pop("auto_class_weights", None)
    elif kind == "three" and "auto_class_weights" not in how and one_in(choose, 4):
        how["class_weights"] = [0.1, 1.0, 5.0]
    if kind not in ("values", "positive"):
        how.pop("target_border", None)
    if kind == "three" and y.dtype.kind == "i" and one_in(choose, 4):
        how |= (
            {"classes_count": 5} if one_in(choose, 2) else {"class_names": [4, 2, 1, 0]}
        )
    if loss == "CrossEntropy":
        y = codes(y)
    more: dict[str, Any] = {"sample_weight": draw_weights(choose, random, X)}
    named = {"cat_features": ["c"]} if categories else {}
    if kind == "ranks":
        more = {"group_id": np.sort(np.arange(len(X)) % 9)}
    if "early_stopping_rounds" in how or one_in(choose, 6):
        groups = {"group_id": more["group_id"][:40]} if kind == "ranks" else {}
        more["eval_set"] = cb.Pool(X[:40], y[:40], **named, **groups)
    elif kind in ("values", "two") and one_in(choose, 5):
        more["baseline"] = random.normal(size=len(X))
    make = partial(getattr(cb, f"CatBoost{wrapper}"), **how, **QUIET)
    model = make().fit(X, y, **more, **named)
    act = choose([*[""] * 6, "shrink", "scale", "sum", "more", "leaves", "fewer"])
    if act == "shrink":
        n = model.tree_count_
        model.shrink(max(n - 1, 1), choose([0, min(1, n - 2)]) if n > 2 else 0)
    elif act == "scale":
        bias = model.get_scale_and_bias()[1]
        moved = [b + 0.7 for b in bias] if isinstance(bias, list) else bias + 0.7
        model.set_scale_and_bias(choose([0.3, -2.0, 1e-30]), moved)
    elif act == "sum":
        model = cb.sum_models([model, model], weights=[0.3, choose([0.7, -1.0])])
    elif act == "leaves":
        model.set_leaf_values(-1.5 * np.asarray(model.get_leaf_values()))
    elif act == "fewer":
        model.drop_unused_features()
    elif act == "more":
        model = make().fit(X, y, init_model=model, **more, **named)
    word = f"{act}, {wrapper} of {kind}, {how}, {[*more]}, {categories}"
    return _catboost_case(choose, model, X, named, word)


def _catboost_case(
    choose: Choose, model: Any, X: Any, named: dict[str, Any], word: str
) -> Case:
    n = model.tree_count_
    ends = {"ntree_start": choose([0, n // 2]), "ntree_end": n}
    calls: Calls = {"predict some": partial(model.predict, **ends)}
    for name in ("predict", "predict_proba", "predict_log_proba"):
        if hasattr(model, name):
            calls[name] = getattr(model, name)
    kinds = "predict", "predict_proba"  # skforge has no stages of logarithms
    stages = {name: getattr(model, f"staged_{name}", None) for name in kinds}
    for name, stage in stages.items():
        if stage is not None:
            calls[f"staged_{name}"] = lambda rows, stage=stage: [*stage(rows)]
    raw = partial(cb.CatBoost.predict, model, prediction_type="RawFormulaVal")

    def leaves(model: Any, rows: Any) -> Any:
        return model.calc_leaf_indexes(cb.Pool(rows, **named))

    case = Case(model, X, {"predict_raw": raw, **calls}, word, ends)
    own: Calls = {"predict_raw": raw, "leaf": partial(leaves, model)}
    case.files["live"] = model, own
    with tempfile.TemporaryDirectory() as folder:
        for form in ("cbm", "json") if not named else ("cbm",):
            path = Path(folder) / f"m.{form}"
            model.save_model(str(path), format=form)
            # CatBoost rounds what it reads of JSON, which skforge does not
            again = cb.CatBoost().load_model(str(path), format=form)
            judge = {**own, "leaf": partial(leaves, again)}
            case.files[form] = path.read_bytes(), judge
    return case


FORESTS = [
    *(getattr(ensemble, f"{name}{kind}") for kind in ("Classifier", "Regressor")
      for name in ("RandomForest", "ExtraTrees", "GradientBoosting", "Bagging",
                   "HistGradientBoosting", "AdaBoost")),
    tree.DecisionTreeClassifier, tree.DecisionTreeRegressor, tree.ExtraTreeRegressor,
    tree.ExtraTreeClassifier, ensemble.IsolationForest, ensemble.RandomTreesEmbedding,
]  # fmt: skip


METHODS = (
    *("predict", "predict_proba", "predict_log_proba", "decision_function"),
    *("score_samples", "apply", "transform", "staged_predict"),
    *("staged_predict_proba", "staged_decision_function"),
)


def sklearn(choose: Choose, random: np.random.Generator) -> Case:
    """Train a model of scikit-learn."""
    X, targets, categories = draw_data(choose, random)
    make = choose(FORESTS)
    known, name = make().get_params(), make.__name__
    several = any(part in name for part in ("Forest", "ExtraTree", "Decision"))
    kinds = ["values", "positive"] + ["columns"] * several
    if "Classifier" in name:
        kinds = ["two", "three"] + ["labels"] * several
    kind = choose(kinds)
    how = {"max_depth": choose([4, 4, None])}
    how |= {"n_estimators": 5, "max_iter": 5, "random_state": 1}
    how = {key: how[key] for key in how if key in known} | some(choose, TREES, known)
    if categories and "Hist" not in name:
        X = X.assign(c=X["c"].cat.codes)
    elif "Hist" in name and (categories or one_in(choose, 2)):
        how["categorical_features"] = "from_dtype" if categories else [2]
    weights = draw_weights(choose, random, X)
    weighted = {} if "Bagging" in name else {"sample_weight": weights}
    y, model = targets[kind], make(**how)
    model.fit(X, y, **weighted)
    if how.get("warm_start") and "n_estimators" in known:
        model.set_params(n_estimators=model.n_estimators + 2).fit(X, y)
    word = f"{name} of {kind}, {how}, {weights is not None}, {categories}"
    calls: Calls = {m: getattr(model, m) for m in METHODS if hasattr(model, m)}
    for method, ask in calls.items():
        if method.startswith("staged"):
            calls[method] = lambda rows, ask=ask: [*ask(rows)]
    return Case(model, X, calls, word)


LIBRARIES = {
    "xgboost": xgboost,
    "lightgbm": lightgbm,
    "catboost": catboost,
    "scikit-learn": sklearn,
}
