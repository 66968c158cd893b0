"""Draws models, and the forms in which memory and files hold them.

A form is what skforge gets, and what the model's library answers after it has loaded
the same thing: ``raw`` scores, ``value`` and ``leaf``, or the wrapper's methods. Files
come with and without what libraries leave out: names, objectives, best iterations.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import skl2onnx
import xgboost as xgb
from sklearn import ensemble, tree

from skforge import compile_forest, load_forest
from skforge.exceptions import SkforgeError, UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.frontends.xgboost.as_json import as_json
from skforge.outputs.functions import UNKNOWN
from skforge.schedule.schedule import Schedule
from tests.answers_of import apply_transform, class_labels, decide, predict_proba
from tests.old_xgboost import old_bytes
from tests.onnx_models import (
    MODES,
    POSTS,
    RandomTrees,
    classifier,
    make_model,
    regressor,
    run,
)
from tests.plain import plain
from tests.reliability.oracle import same

N_ROWS = 150
Rounds = tuple[int, int]
Answers = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """A model as skforge gets it, and the answers of its library.

    ``give`` returns it afresh, because an open file is read once; ``answers`` gives
    the library's for rows. ``ours`` computes skforge's answers from the forest;
    ``rounds`` are those to read.
    """

    name: str
    give: Callable[[], Any]
    answers: Callable[[Any], Answers]
    rounds: Rounds | None = None
    source: str = "booster"  # | wrapper | onnx | early dump
    names: tuple[str, ...] | None = None  # of the columns, if the library needs them

    def table(self, rows: Any) -> Any:
        """Return rows as the library takes them."""
        return rows if self.names is None else pd.DataFrame(rows, columns=self.names)


@dataclass(frozen=True)
class Drawn:
    """Forms of one model; ``rows`` are those that it was trained on."""

    library: str
    forms: list[Form]
    rows: Any


def drawn(seed: int, folder: Path) -> Drawn:
    """Return a random model in all its forms; its files are in a folder."""
    random = np.random.default_rng(seed)
    library = ("xgboost", "lightgbm", "onnx")[seed % 3]
    make = {"xgboost": _xgboost, "lightgbm": _lightgbm, "onnx": _onnx}[library]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows, forms = make(random, folder)
        return Drawn(library, list(forms), rows)


# ------------------------------------------------------------ comparison


def outcome(form: Form, rows: Any, compiled: bool = False) -> str:
    """Return "same", "refused", "read by skforge alone", or what is wrong.

    With ``compiled``, kernels compute the answers, not the reference.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        refused = ""
        try:
            forest = load_forest(form.give(), iteration_range=form.rounds)
        except SkforgeError as error:
            refused = str(error)
        else:
            near = draw_rows(forest, N_ROWS, 1, missing=0.1).astype(rows.dtype)
            rows = np.concatenate([rows, near])
            finite = rows.dtype.kind == "f" and np.isfinite(rows) | np.isnan(rows)
            rows = np.where(finite, rows, 1) if rows.dtype.kind == "f" else rows
        try:
            expected = form.answers(form.table(rows))
        except Exception as error:  # noqa: BLE001 - the library's own way to refuse
            return "refused" if refused else f"read by skforge alone: {error!s:.250}"
        if refused:
            return f"wrong: refused by skforge alone: {refused}"
        answers = (_compiled if compiled else _ours)(form, forest, rows, expected)
        for name, values in expected.items():
            if not _same(answers[name], values):
                return f"wrong: {name} differs"
    return "same"


def _ours(form: Form, forest: Forest, rows: Any, expected: Answers) -> Answers:
    """Return the answers of a forest, without kernels."""
    rows = rows.astype(forest.input_dtype)
    raw = reference_raw(forest, rows)
    found = {"raw": raw, "leaf": forest.source_node[reference_leaves(forest, rows)]}
    if form.source == "early dump":
        try:
            apply_transform(forest, raw)
        except UnsupportedModelError as error:
            found["error"] = str(error)
        return found
    if forest.classifies and form.source != "booster":
        found["proba"] = predict_proba(forest, raw)
        label = decide(forest, raw)
        names = class_labels(forest)
        found["label"] = label if names is None else names[label]
    return {"value": apply_transform(forest, raw), **found}


def _compiled(form: Form, forest: Forest, rows: Any, expected: Answers) -> Answers:
    """Return the answers of compiled code, from what the user has."""
    if form.source == "early dump" or form.rounds is not None:
        return _ours(form, forest, rows, expected)
    if form.source == "booster":
        module = compile_forest(form.give(), Schedule())
        found = {"value": module.predict(rows), "leaf": module.apply(rows)}
        return {**found, "raw": module.predict_raw(rows)}
    rows = form.table(rows)
    fast = plain(form.give()).fit(rows[:20])
    found = {"raw": fast.predict_raw(rows)}
    if hasattr(fast, "apply"):
        found["leaf"] = fast.apply(rows)
    else:  # LightGBM's wrappers have no such method
        found["leaf"] = expected["leaf"]
    if "proba" in expected:
        return {**found, "label": fast.predict(rows), "proba": fast.predict_proba(rows)}
    return {**found, "value": fast.predict(rows)}


def _same(found: Any, expected: Any) -> bool:
    """Tell whether two answers have equal bits; NaNs are equal, shapes may be flat."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.size != expected.size:
        return False
    found = found.reshape(expected.shape)
    if expected.dtype.kind != "f" or found.dtype.kind != "f":  # numbers of leaves
        return bool((found == expected).all())
    return same(found, expected)


# ------------------------------------------------------------ forms of contents


def _of_content(
    name: str,
    data: bytes,
    folder: Path,
    answers: Callable[..., Answers],
    rounds: Rounds | None = None,
) -> Iterator[Form]:
    """Yield the forms of a file's content; ``answers`` takes it and rows."""
    path = folder / f"{name.replace(' ', '-')}.model"
    path.write_bytes(data)
    forms: dict[str, Callable[[], Any]] = {
        "path": lambda: path, "str path": lambda: str(path), "bytes": lambda: data,
        "bytearray": lambda: bytearray(data), "memoryview": lambda: memoryview(data),
        "BytesIO": lambda: io.BytesIO(data), "open file": lambda: path.open("rb"),
    }  # fmt: skip
    if data[:5] == b"tree\n" or data[:2] in (b'{"', b"{\n"):
        forms["text"] = data.decode
    for form, give in forms.items():
        yield Form(f"{name}, {form}", give, partial(answers, data), rounds)


def _some(random: np.random.Generator, forms: Iterator[Form], n: int) -> list[Form]:
    """Return a few forms, drawn."""
    found = list(forms)
    return [found[i] for i in random.permutation(len(found))[:n]]


def _table(random: np.random.Generator, n_features: int) -> tuple[Any, Any, list[int]]:
    """Return rows with gaps and zeros, numbers to learn, and the columns of codes."""
    X = np.round(random.normal(size=(N_ROWS, n_features)), random.integers(1, 9))
    codes = [i for i in range(n_features) if random.random() < 0.25]
    for i in codes:
        X[:, i] = random.integers(0, random.integers(2, 40), N_ROWS)
    X[random.random(X.shape) < 0.1] = 0.0
    y = X[:, 0] + np.sin(X[:, -1] * 3) + random.normal(size=N_ROWS) * 0.3
    X[random.random(X.shape) < random.choice([0.0, 0.15])] = np.nan
    return X, y, codes


def _labels(random: np.random.Generator, y: Any, n_classes: int) -> Any:
    cuts = np.quantile(y, np.linspace(0, 1, n_classes + 1)[1:-1])
    labels = np.digitize(y, cuts)
    labels[random.permutation(len(y))[:n_classes]] = np.arange(n_classes)
    return labels


# ------------------------------------------------------------ XGBoost

_XGB_NUMBERS = ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror")
_XGB_POSITIVE = ("reg:gamma", "reg:tweedie", "count:poisson", "survival:cox")
_XGB_BINARY = ("binary:logistic", "binary:logitraw", "binary:hinge", "reg:logistic")
_XGB_CLASSES = ("multi:softprob", "multi:softmax")


def _xgboost(random: np.random.Generator, folder: Path) -> tuple[Any, Iterator[Form]]:
    X, y, codes = _table(random, int(random.integers(1, 7)))
    X = X.astype(np.float32)
    groups = (_XGB_NUMBERS, _XGB_POSITIVE, _XGB_BINARY, _XGB_CLASSES, ("rank:ndcg",))
    kind = random.choice(len(groups))
    objective = str(random.choice(groups[kind]))
    params = {
        "objective": objective,
        "max_depth": int(random.integers(0, 5)),
        "booster": str(random.choice(["gbtree", "gbtree", "dart"])),
        "tree_method": "hist",
        "num_parallel_tree": int(random.choice([1, 1, 3])),
        "subsample": 0.8,
        "rate_drop": 0.4,
        "seed": int(random.integers(99)),
    }
    if params["max_depth"] == 0:
        params |= {"grow_policy": "lossguide", "max_leaves": 6}
    if random.random() < 0.4 and kind != 4:
        params["base_score"] = float(random.choice([0.3, 0.5, 0.9]))
    n_classes = int(random.integers(3, 6)) if kind == 3 else 2
    target: Any = [y, np.exp(y / 3), y > np.median(y), _labels(random, y, n_classes)]
    target = (*target, _labels(random, y, 4))[kind].astype(np.float32)
    if kind == 0 and random.random() < 0.3:
        target = np.stack([target, -target, target**2], axis=1)
        if params["booster"] == "gbtree" and random.random() < 0.5:
            params["multi_strategy"] = "multi_output_tree"
    if random.random() < 0.6:
        codes = []
    if codes:  # XGBoost has no vector leaves with categories
        params.pop("multi_strategy", None)
    types = ["c" if i in codes else "float" for i in range(X.shape[1])]
    names = [f"f {i}" for i in range(X.shape[1])] if random.random() < 0.5 else None
    rounds = int(random.integers(1, 7))
    stopping = int(random.integers(1, 3)) if random.random() < 0.5 else None
    given = {"feature_types": types if codes else None, "feature_names": names}
    given |= {"nthread": 1, "enable_categorical": True}
    group = {"group": [50, N_ROWS - 50]} if kind == 4 else {}
    data = xgb.DMatrix(X, target, **group, **given)
    half = {"group": [N_ROWS]} if kind == 4 else {}
    other = xgb.DMatrix(X, np.roll(target, 3, axis=0), **half, **given)
    single = {**params, **({"num_class": n_classes} if kind == 3 else {})}
    booster = xgb.train(
        {**single, "nthread": 1, "verbosity": 0},
        data,
        rounds + 4,
        evals=[(other, "other")],
        early_stopping_rounds=stopping,
        verbose_eval=False,
    )
    forms = _xgboost_forms(random, booster, given, folder)
    if kind == 4 or objective == "survival:cox":
        return X, forms
    cls = xgb.XGBClassifier if kind in (2, 3) else xgb.XGBRegressor
    missing = float(random.choice([np.nan, np.nan, 0.0, -1.0]))
    model = cls(
        n_estimators=rounds + 4,
        missing=missing,
        early_stopping_rounds=stopping,
        n_jobs=1,
        verbosity=0,
        feature_types=given["feature_types"],
        enable_categorical=True,
        **params,
    )
    if objective == "reg:logistic" or kind == 2:
        target = target.astype(int)
    table = pd.DataFrame(X, columns=names) if names and not codes else X
    again = {"eval_set": [(table, np.roll(target, 3, axis=0))]} if stopping else {}
    model.fit(table, target, verbose=False, **again)

    return X, chain(forms, _xgboost_wrapped(random, model, given, folder))


def _of_booster(
    load: Callable[[], Any], given: Answers, rounds: Rounds | None, rows: Any
) -> Answers:
    """Return XGBoost's answers after loading a model."""
    booster = load()
    booster.set_param({"nthread": 1, "verbosity": 0})
    names = booster.feature_names
    types = booster.feature_types if names or booster.feature_types else None
    how = {**given, "feature_names": names, "feature_types": types}
    data = xgb.DMatrix(rows, **how)
    chosen = {} if rounds is None else {"iteration_range": rounds}
    found = {"raw": booster.predict(data, output_margin=True, **chosen)}
    found["value"] = booster.predict(data, **chosen)
    if rounds is None or not rounds[0]:  # XGBoost numbers leaves from the first round
        found["leaf"] = booster.predict(data, pred_leaf=True, **chosen)
    return found


def _loaded(data: bytes) -> Any:
    booster = xgb.Booster({"nthread": 1})
    booster.load_model(bytearray(data))
    return booster


def _xgboost_forms(
    random: np.random.Generator, booster: Any, given: Answers, folder: Path
) -> Iterator[Form]:
    def answers(data: bytes, rows: Any, rounds: Rounds | None = None) -> Answers:
        return _of_booster(partial(_loaded, data), given, rounds, rows)

    live = partial(_of_booster, lambda: booster, given, None)
    yield Form("Booster", lambda: booster, live)
    copied = pickle.dumps(booster)
    yield Form("pickled Booster", lambda: pickle.loads(copied), live)
    n_rounds = booster.num_boosted_rounds()
    begin = int(random.integers(n_rounds))
    some = begin, int(random.integers(begin + 1, n_rounds + 1))
    sliced = partial(_of_booster, lambda: booster, given, some)
    yield Form("Booster, some rounds", lambda: booster, sliced, some)
    for kind in ("ubj", "json"):
        data = bytes(booster.save_raw(kind))
        yield from _some(random, _of_content(kind, data, folder, answers), 3)
        chosen = partial(answers, rounds=some)
        forms = _of_content(f"{kind} some rounds", data, folder, chosen, some)
        yield from _some(random, forms, 1)
    document = json.loads(bytes(booster.save_raw("json")))
    targets = document["learner"]["learner_model_param"].get("num_target", "1")
    for release in ((3, 0), (0, 90)):
        known = release >= (1, 7) or int(targets) <= 1
        old = old_bytes(document, release) if known else None
        if old is not None:
            new = as_json(old, "")  # a margin of 0.90 may not be a probability's own

            def of_new(_: bytes, rows: Any, new: bytes = new) -> Answers:
                return answers(new, rows)

            name = "old {}.{}".format(*release)
            yield from _some(random, _of_content(name, old, folder, of_new), 1)
    for name, edit in _XGB_EDITS.items():
        changed = deepcopy(document)
        if edit(changed) is False:
            continue
        data = json.dumps(changed).encode()
        yield from _some(random, _of_content(name, data, folder, answers), 1)


def _drop(*path: str) -> Callable[[Any], Any]:
    """Return an edit that takes a member out of a document."""

    def edit(document: Any) -> Any:
        for name in path[:-1]:
            document = document.get(name, {})
        return document.pop(path[-1], False) is not False

    return edit


_PARAM = ("learner", "learner_model_param")
_XGB_EDITS: dict[str, Callable[[Any], Any]] = {
    "without names": _drop("learner", "feature_names"),
    "without types": _drop("learner", "feature_types"),
    "without best": _drop("learner", "attributes", "best_iteration"),
    "with a best": lambda d: (
        d["learner"].setdefault("attributes", {}).update(best_iteration="0")
    ),
    "without version": _drop("version"),
    "without num_target": _drop(*_PARAM, "num_target"),
    "without boost": _drop(*_PARAM, "boost_from_average"),
    "without objective": _drop("learner", "objective"),
    "without rounds": _drop("learner", "gradient_booster", "model", "iteration_indptr"),
    "without cats": _drop("learner", "gradient_booster", "model", "cats"),
}


def _xgboost_wrapped(
    random: np.random.Generator, model: Any, given: Answers, folder: Path
) -> Iterator[Form]:
    names = given["feature_names"]
    wrapper = partial(Form, source="wrapper", names=names)

    def answers(load: Callable[[], Any], rows: Any, **rounds: Any) -> Answers:
        own = load()
        found = {"raw": own.predict(rows, output_margin=True, **rounds)}
        found["leaf"] = own.apply(rows, **rounds)
        if not hasattr(own, "predict_proba"):
            return {**found, "value": own.predict(rows, **rounds)}
        found["proba"] = own.predict_proba(rows, **rounds)
        return {**found, "label": own.predict(rows, **rounds)}

    yield wrapper("wrapper", lambda: model, partial(answers, lambda: model))
    again = partial(pickle.loads, pickle.dumps(model))
    yield wrapper("pickled wrapper", again, partial(answers, again))
    last = int(random.integers(1, model.get_booster().num_boosted_rounds() + 1))
    some = partial(answers, lambda: model, iteration_range=(0, last))
    yield wrapper("wrapper, some rounds", lambda: model, some, (0, last))
    path = folder / "wrapper.json"
    model.save_model(path)
    stops = model.early_stopping_rounds is not None
    rounds = (0, model.best_iteration + 1) if stops else (0, 0)

    def saved(data: bytes, rows: Any) -> Answers:
        own = type(model)()  # it knows best_iteration, and no `missing`
        own.load_model(bytearray(data))
        booster = own.get_booster()
        return {
            "raw": own.predict(rows, output_margin=True),
            "value": booster.inplace_predict(rows, iteration_range=rounds),
            "leaf": own.apply(rows),
        }

    for form in _some(
        random, _of_content("saved", path.read_bytes(), folder, saved), 3
    ):
        yield replace(form, names=names)
    data = bytes(model.get_booster().save_raw("ubj"))

    def whole(data: bytes, rows: Any) -> Answers:
        return _of_booster(partial(_loaded, data), given, None, rows)

    yield from _some(random, _of_content("its Booster", data, folder, whole), 2)


# ------------------------------------------------------------ LightGBM

_LGB = {
    "regression": "numbers", "regression_l1": "numbers", "huber": "numbers",
    "quantile": "numbers", "poisson": "positive", "gamma": "positive",
    "tweedie": "positive", "binary": "binary", "cross_entropy": "binary",
    "cross_entropy_lambda": "binary", "multiclass": "classes",
    "multiclassova": "classes", "lambdarank": "ranks", "own": "numbers",
}  # fmt: skip


def _lightgbm(random: np.random.Generator, folder: Path) -> tuple[Any, Iterator[Form]]:
    X, y, codes = _table(random, int(random.integers(1, 7)))
    objective = str(random.choice(list(_LGB)))
    n_classes = int(random.integers(3, 6))
    target = {
        "numbers": y,
        "positive": np.exp(y / 3),
        "binary": (y > np.median(y)).astype(float),
        "classes": _labels(random, y, n_classes),
        "ranks": _labels(random, y, 4),
    }[_LGB[objective]]
    boosting = str(random.choice(["gbdt", "gbdt", "dart", "rf"]))
    params: dict[str, Any] = {
        "objective": objective,
        "boosting": boosting,
        "num_leaves": int(random.integers(2, 12)),
        "min_data_in_leaf": 3,
        "min_data_per_group": 2,
        "drop_rate": 0.5,
        "bagging_freq": 1,
        "bagging_fraction": 0.7,
        "zero_as_missing": bool(random.random() < 0.2),
        "use_missing": bool(random.random() < 0.8),
        "num_threads": 1,
        "verbose": -1,
        "seed": int(random.integers(99)),
        "metric": "None",
    }
    if objective in ("binary", "multiclassova") and random.random() < 0.5:
        params["sigmoid"] = round(float(random.uniform(0.3, 3)), 5)
    if objective == "regression" and random.random() < 0.4 and boosting != "rf":
        params["reg_sqrt"] = True
    if _LGB[objective] == "classes":
        params["num_class"] = n_classes
    if objective == "own":
        params["objective"] = lambda p, d: (p - d.get_label(), np.ones_like(p))
        params["boosting"] = boosting = "gbdt"
    names = [f"f_{i}" for i in range(X.shape[1])] if random.random() < 0.5 else "auto"
    group = {"group": [50, N_ROWS - 50]} if objective == "lambdarank" else {}
    how: Answers = {"feature_name": names, "categorical_feature": codes}
    data = lgb.Dataset(X, target, **how, **group)
    kept = bool(random.random() < 0.5)
    n_rounds = int(random.integers(1, 7))
    booster = lgb.train(params, data, n_rounds, keep_training_booster=kept)
    if random.random() < 0.4:
        booster.best_iteration = int(random.integers(1, n_rounds + 1))
    forms = _lightgbm_forms(random, booster, folder)
    if _LGB[objective] == "ranks":
        return X, forms
    kinds = {"binary": lgb.LGBMClassifier, "classes": lgb.LGBMClassifier}
    kind = kinds.get(_LGB[objective], lgb.LGBMRegressor)
    for name in ("num_class", "metric", "num_threads"):
        params.pop(name, None)
    if objective == "own":
        params["objective"] = lambda y, p: (p - y, np.ones_like(p))
    model = kind(n_estimators=n_rounds + 4, n_jobs=1, **params)
    if random.random() < 0.5 and boosting == "gbdt" and objective != "own":
        how["eval_set"] = [(X[:50], target[:50])]
        how["eval_metric"] = "l2" if kind is lgb.LGBMRegressor else None
        how["callbacks"] = [lgb.early_stopping(1, verbose=False)]
    model.fit(X, target, **how)
    return X, chain(forms, _lightgbm_wrapped(random, model, folder))


def _of_light(load: Callable[[], Any], rounds: Rounds | None, rows: Any) -> Answers:
    """Return LightGBM's answers after loading a model."""
    booster = load()
    how: Answers = {"num_threads": 1}
    if rounds is not None:
        how |= {"start_iteration": rounds[0], "num_iteration": rounds[1] - rounds[0]}
    return {
        "raw": booster.predict(rows, raw_score=True, **how),
        "value": booster.predict(rows, **how),
        "leaf": booster.predict(rows, pred_leaf=True, **how),
    }


def _lightgbm_forms(
    random: np.random.Generator, booster: Any, folder: Path
) -> Iterator[Form]:
    def read(data: bytes) -> Any:
        text = data.decode().replace("\r\n", "\n")
        return lgb.Booster({"verbose": -1}, model_str=text)

    def answers(data: bytes, rows: Any, rounds: Rounds | None = None) -> Answers:
        return _of_light(partial(read, data), rounds, rows)

    live = partial(_of_light, lambda: booster, None)
    yield Form("Booster", lambda: booster, live)
    copied = pickle.dumps(booster)
    again = partial(pickle.loads, copied)
    yield Form("pickled Booster", again, partial(_of_light, again, None))
    n_rounds = booster.current_iteration()
    begin = int(random.integers(n_rounds))
    some = begin, int(random.integers(begin + 1, n_rounds + 1))
    sliced = partial(_of_light, lambda: booster, some)
    yield Form("Booster, some rounds", lambda: booster, sliced, some)
    for number in (None, -1, int(random.integers(1, n_rounds + 1))):
        chosen = {} if number is None else {"num_iteration": number}
        data = booster.model_to_string(**chosen).encode()
        yield from _some(
            random, _of_content(f"text {number}", data, folder, answers), 2
        )
        dump = json.dumps(booster.dump_model(**chosen)).encode()

        def of_text(_: bytes, rows: Any, data: bytes = data) -> Answers:
            return answers(data, rows)  # LightGBM itself reads no dumps

        forms = _of_content(f"dump {number}", dump, folder, of_text)
        yield from _some(random, forms, 2)
    whole = booster.model_to_string(num_iteration=-1)
    forms = _of_content(
        "text some rounds", whole.encode(), folder, partial(answers, rounds=some), some
    )
    yield from _some(random, forms, 1)
    for name, pattern in _TEXT_EDITS.items():
        changed = re.sub(pattern, "", whole, count=1)
        if changed != whole:
            forms = _of_content(name, changed.encode(), folder, answers)
            yield from _some(random, forms, 1)
    lines = _of_content("two", whole.replace("\n", "\r\n").encode(), folder, answers)
    yield next(lines)
    dump = booster.dump_model(num_iteration=-1)
    own = re.sub(r"\nobjective=.*", "", whole).encode()
    without = {k: v for k, v in dump.items() if k != "objective"}
    yield Form("dump of no objective", lambda: without, partial(answers, own))
    early = {k: v for k, v in without.items() if k != "average_output"}

    def scores(rows: Any) -> Answers:
        found = answers(whole.encode(), rows)
        return {"raw": found["raw"], "leaf": found["leaf"], "error": UNKNOWN}

    yield Form("early dump", lambda: early, scores, source="early dump")


def _lightgbm_wrapped(
    random: np.random.Generator, model: Any, folder: Path
) -> Iterator[Form]:
    def answers(load: Callable[[], Any], rows: Any, **rounds: Any) -> Answers:
        wrapper = load()
        found = {
            "raw": wrapper.predict(rows, raw_score=True, **rounds),
            "leaf": wrapper.predict(rows, pred_leaf=True, **rounds),
        }
        if not hasattr(wrapper, "predict_proba"):
            return {**found, "value": wrapper.predict(rows, **rounds)}
        found["proba"] = wrapper.predict_proba(rows, **rounds)
        if "start_iteration" not in rounds:  # the forest alone has no classes_
            found["label"] = wrapper.predict(rows, **rounds)
        return found

    live = partial(answers, lambda: model)
    yield Form("wrapper", lambda: model, live, source="wrapper")
    copied = pickle.dumps(model) if not callable(model.objective) else None
    if copied is not None:
        again = partial(pickle.loads, copied)
        yield Form("pickled wrapper", again, partial(answers, again), source="wrapper")
    last = int(random.integers(1, model.booster_.current_iteration() + 1))
    some = partial(live, start_iteration=0, num_iteration=last)
    yield Form("wrapper, some rounds", lambda: model, some, (0, last), "wrapper")
    data = model.booster_.model_to_string().encode()

    def text(data: bytes, rows: Any) -> Answers:
        read = lgb.Booster({"verbose": -1}, model_str=data.decode())
        return _of_light(lambda: read, None, rows)

    yield from _some(random, _of_content("its text", data, folder, text), 2)


_TEXT_EDITS = {
    "without objective": r"\nobjective=.*",
    "without sizes": r"\ntree_sizes=.*",
    "without categories": r"\npandas_categorical:.*\n",
    "without parameters": r"(?s)\nparameters:.*?end of parameters\n",
}


# ------------------------------------------------------------ ONNX


def _onnx(random: np.random.Generator, folder: Path) -> tuple[Any, Iterator[Form]]:
    make = _converted if random.random() < 0.5 else _by_hand
    model, rows = make(random)
    data = model.SerializeToString()

    def forms() -> Iterator[Form]:
        own = partial(_of_onnx, model)
        yield Form("ModelProto", lambda: model, own, source="onnx")
        for form in _of_content("onnx", data, folder, lambda _, rows: own(rows)):
            yield replace(form, source="onnx")

    return rows, forms()


def _converted(random: np.random.Generator) -> tuple[Any, Any]:
    X, y, _ = _table(random, int(random.integers(1, 7)))
    X = np.nan_to_num(X).astype(np.float32)
    size = {"max_depth": int(random.integers(1, 6)), "random_state": 0}
    several = {**size, "n_estimators": int(random.integers(1, 5))}
    labels = _labels(random, y, int(random.integers(2, 5)))
    if random.random() < 0.5:
        labels = np.array(["ash", "elm", "oak", "yew"])[labels]
    classifiers = [
        tree.DecisionTreeClassifier(**size),
        ensemble.RandomForestClassifier(**several),
        ensemble.ExtraTreesClassifier(**several),
        ensemble.GradientBoostingClassifier(**several),
    ]
    regressors = [
        tree.DecisionTreeRegressor(**size),
        ensemble.RandomForestRegressor(**several),
        ensemble.GradientBoostingRegressor(**several),
    ]
    classifies = random.random() < 0.5
    model = random.choice(classifiers if classifies else regressors)  # type: ignore[arg-type]
    model.fit(X, labels if classifies else y)
    how = {"options": {"zipmap": False}} if classifies else {}
    return skl2onnx.to_onnx(model, X[:1], **how), X


def _by_hand(random: np.random.Generator) -> tuple[Any, Any]:
    several = MODES if random.random() < 0.5 else MODES[:1]
    trees = RandomTrees(
        int(random.integers(1 << 30)),
        n_trees=int(random.integers(1, 7)),
        n_features=int(random.integers(1, 6)),
        modes=several,
        depth=int(random.integers(1, 5)),
    )
    n = int(random.integers(1, 5))
    post = str(random.choice(POSTS[:-1]))
    extra = {"post_transform": post} if random.random() < 0.7 else {}
    if random.random() < 0.5 and n > 1:
        attributes = classifier(trees, range(n), lambda _: range(n), **extra)
        op = "TreeEnsembleClassifier"
    else:
        attributes = regressor(trees, n, **extra)
        if random.random() < 0.5:
            attributes["aggregate_function"] = str(random.choice(["SUM", "AVERAGE"]))
        op = "TreeEnsembleRegressor"
    return make_model(op, attributes, trees.n_features), trees.rows(N_ROWS)


def _of_onnx(model: Any, rows: Any) -> Answers:
    outputs = run(model, rows)
    if len(outputs) == 1:
        return {"value": outputs[0]}
    return {"label": outputs[0], "proba": outputs[1]}
