"""Random programs, each with and without ``accelerate()``, in processes of their own.

    python -m tests.fuzz_acceleration --seeds 10 --calls 1000

A program draws models, asks them and changes them. It writes down all that it could
see: bytes, types, strides and flags of answers, errors, warnings with the line that
they name, and what else might have changed. What it draws follows from its seed alone,
so the two runs must tell the same.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import hashlib
import os
import pickle
import random as stdlib_random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import zip_longest
from typing import Any

import catboost
import lightgbm as lgb
import numpy as np
import pandas as pd
import polars
import sklearn
import xgboost as xgb
from sklearn import ensemble
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.forms import COLUMNS, NUMBERS, framed, with_value
from tests.kinds import MODELS, WRAPPERS, Kind
from tests.kinds_of_pipelines import PIPELINES

METHODS = ("predict", "predict_proba", "decision_function", "score_samples")
SEED = {"random_state": 0}
CAT = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
Random = np.random.Generator


class Doubled(ensemble.RandomForestClassifier):
    def predict(self, X):
        return np.repeat(super().predict(X), 2)


class Same(xgb.XGBClassifier):
    pass


FOREST = ensemble.RandomForestClassifier(3, max_depth=4, **SEED)
#: Models that the tables of kinds lack: classifiers, and regressors.
OWN: dict[bool, list[Any]] = {
    False: [
        Doubled(3, **SEED),
        Same(n_estimators=3, n_jobs=1),
        clone(FOREST).set_params(warm_start=True, class_weight="balanced"),
        make_pipeline(PCA(2), FOREST),
        GridSearchCV(FOREST, {"max_depth": [1, 3]}, cv=2),
        catboost.CatBoostClassifier(iterations=3, **CAT),
    ],
    True: [
        xgb.XGBRFRegressor(n_estimators=3, n_jobs=1),
        catboost.CatBoostRegressor(iterations=3, **CAT),
        catboost.CatBoost({"iterations": 3, **CAT}),
    ],
}


def _of_table(table: dict[str, Kind]) -> dict[bool, list[Any]]:
    """Return the classifiers of a table of kinds, and the regressors of one target."""
    plain = [
        kind
        for name, kind in table.items()
        if not kind.fit and kind.part is None
        # which take two classes alone, or no labels
        if not any(text in name for text in ("of multi", "Regressor of"))
        # scikit-learn 1.9 fits it by values that it has not written
        and getattr(kind.model, "method", "") != "temperature"
    ]
    return {
        False: [kind.model for kind in plain if kind.y in ("two", "three")],
        True: [kind.model for kind in plain if kind.y == "values"],
    }


GROUPS = [*map(_of_table, (MODELS, MODELS, WRAPPERS, PIPELINES)), OWN]


def _data(random: Random) -> Any:
    X = random.normal(size=(80, len(COLUMNS))).round(int(random.integers(1, 9)))
    return X.astype(np.float32) if random.random() < 0.2 else X


def draw_model(random: Random) -> Any:
    """Return a fitted model; some are Boosters, and some are fitted to frames."""
    X = _data(random)
    by_name = random.random() < 0.4
    rows = pd.DataFrame(X, columns=COLUMNS) if by_name else X
    value = np.abs(X[:, 0] + X[:, 1] * X[:, 2])
    sort = int(random.integers(6))
    if sort == 1:
        return _booster(random, rows, value)
    model = clone(pick(random, pick(random, GROUPS)[sort == 0]))
    if sort == 0:
        return model.fit(rows, value)
    classes = int(random.integers(2, 4))
    labels: Any = np.digitize(value, np.quantile(value, [0.5, 0.8][: classes - 1]))
    if "xgb" not in type(model).__module__ and "steps" not in vars(model):
        labels = pick(random, [labels, labels, labels + 3, np.array([*"xyz"])[labels]])
    return model.fit(rows, labels)


def _booster(random: Random, rows: Any, value: Any) -> Any:
    objective = pick(random, ["binary", "regression"])
    y = value > 1 if objective == "binary" else value
    if random.random() < 0.5:
        how = {"objective": objective, "verbose": -1, "num_threads": 1}
        data = lgb.Dataset(rows, y, free_raw_data=False)
        return lgb.train(how, data, 4, keep_training_booster=bool(random.integers(2)))
    names = {"binary": "binary:logistic", "regression": "reg:squarederror"}
    how = {"objective": names[objective], "nthread": 1, "max_depth": 3}
    return xgb.train(how, xgb.DMatrix(rows, y), 4)


def pick(random: Random, items: Any) -> Any:
    return items[int(random.integers(len(items)))]


# ------------------------------------------------------------ rows


USUAL: list[Callable[[Any], Any]] = [
    lambda X: X,
    lambda X: X[:1],
    lambda X: X.astype(np.float32),
    framed,
    lambda X: framed(X)[:1],
]
FORMS: list[Callable[[Any], Any]] = [
    *USUAL,
    *(
        lambda X, make=make: make(framed(X))
        for name, make in NUMBERS.items()
        if "polars" not in name or "text" not in name  # which CatBoost dies of
    ),
    lambda X: framed(X).set_index("a"),
    lambda X: {"a": X[:, 0]},
    lambda X: iter(X),
    xgb.DMatrix,
    lambda X: xgb.DMatrix(framed(X)),
    lambda X: xgb.DMatrix(with_value(X, 40, 2, np.nan)),
    lambda X: xgb.DMatrix(X, base_margin=X[:, 0]),
    catboost.Pool,
    lambda X: catboost.Pool(framed(X)),
    lambda X: catboost.Pool(X, baseline=X[:, :1]),
    lgb.Dataset,
]

# ------------------------------------------------------------ calls

Arguments = dict[str, Any]
BY_LIBRARY: dict[str, list[Arguments]] = {
    "sklearn": [{"check_input": False}, {"sample_weight": None}],
    "xgboost": [
        *({"output_margin": True}, {"output_margin": False}),
        *({"validate_features": False}, {"validate_features": True}),
        *({"iteration_range": (0, 1)}, {"iteration_range": (0, 99)}),
        *({"base_margin": np.ones(80)}, {"base_margin": None}, {"pred_leaf": True}),
        *({"strict_shape": True}, {"predict_type": "margin"}, {"missing": 0.0}),
    ],
    "lightgbm": [
        *({"raw_score": True}, {"raw_score": False}, {"num_iteration": 1}),
        *({"num_iteration": None}, {"start_iteration": 1}, {"pred_contrib": True}),
        *({"pred_leaf": True}, {"validate_features": True}, {"num_iteration": -1}),
        *({"num_threads": 1}, {"nthread": 2, "verbose": -1}),
        {"n_jobs": 0, "predict_disable_shape_check": True},
        *({"num_threads": 1.0}, {"validate_features": False, "verbosity": 0}),
        {"data_has_header": True},
    ],
    "catboost": [
        *({"prediction_type": "RawFormulaVal"}, {"ntree_end": 1}, {"ntree_end": 0}),
        *({"thread_count": 1}, {"thread_count": -1}, {"thread_count": 0}),
        *({"thread_count": 2, "verbose": False}, {"verbose": None}),
        {"task_type": "CPU"},
    ],
}


def _library(model: Any) -> str:
    return type(model).__module__.partition(".")[0]


def draw_call(random: Random, model: Any, usual: bool) -> Callable[[Any], Any]:
    """Return a call of a model's method: as most programs have it, or an odd one."""
    X = _data(random)
    method = pick(random, METHODS if random.random() > 0.6 else METHODS[:2])
    boosts = isinstance(model, xgb.Booster)
    if usual:
        form, named, ways = pick(random, USUAL), {}, 0
        if boosts:
            method = pick(random, ("predict", "inplace_predict"))
            form = (lambda X: xgb.DMatrix(X)) if method == "predict" else form
    else:
        form, ways = pick(random, FORMS), int(random.integers(12))
        if boosts:
            method = pick(random, ("predict", "inplace_predict"))
        known = BY_LIBRARY.get(_library(model), [])
        named = dict(pick(random, known)) if known and random.random() < 0.4 else {}

    def call(model: Any) -> Any:
        rows = form(X.copy())
        asked = getattr(model, method)
        if ways == 1:
            return asked(X=rows, **named)
        if ways == 2:
            return asked(data=rows, **named)
        if ways == 3:
            return asked()
        if ways == 4:
            return asked(rows, None, True, **named)
        if ways == 5:
            return getattr(type(model), method)(model, rows, **named)
        if ways == 6:
            return asked(rows, unknown=1)
        return asked(rows, **named)

    return call


# ------------------------------------------------------------ changes


def _refit(model: Any, random: Random) -> None:
    X = _data(random)
    y = (X[:, 0] > 0).astype(int)
    if isinstance(model, lgb.Booster):
        model.rollback_one_iter()
    elif isinstance(model, xgb.Booster):
        model.update(xgb.DMatrix(X, y), 5)
    else:
        model.fit(X, y)


def _swap(model: Any, random: Random) -> None:
    trees = model.estimators_
    trees[0], trees[-1] = trees[-1], trees[0]


def _write(model: Any, random: Random) -> None:
    tree = np.ravel(np.asarray(model.estimators_, dtype=object))[0].tree_
    part = pick(random, [tree.threshold, tree.value, tree.feature])
    part[0] = part[0] * 0.5


def _set_param(model: Any, random: Random) -> None:
    if isinstance(model, xgb.Booster):
        model.set_param({"nthread": int(random.integers(1, 3))})
        return
    model.set_params(**pick(random, PARAMS))


PARAMS: list[dict[str, Any]] = [
    *({"n_estimators": 2}, {"verbose": 1}, {"n_jobs": None}, {"base_score": 0.9}),
    *({"missing": 0.0}, {"random_state": 4}, {"contamination": 0.3}),
    {"booster": "gbtree"},
]


def _set(name: str, value: Any) -> Callable[[Any, Random], None]:
    return lambda model, random: setattr(model, name, value)


CHANGES: list[Callable[[Any, Random], Any]] = [
    _refit,
    _refit,
    _swap,
    _write,
    _write,
    _set_param,
    _set_param,
    _set("classes_", np.array([7, 8])),
    _set("n_features_in_", 5),
    _set("feature_names_in_", np.array([*"uvwxyz"], dtype=object)),
    _set("feature_names", [*"uvwxyz"]),
    _set("best_iteration", 1),
    _set("n_jobs", None),
    _set("note", "a program's own"),
    lambda model, random: delattr(model, "feature_names_in_"),
    lambda model, random: delattr(model, "note"),
    lambda model, random: model.classes_.__iadd__(1),
    lambda model, random: model.estimators_.pop(),
    lambda model, random: setattr(model, "predict", lambda X: "mine"),
    lambda model, random: delattr(model, "predict"),
    lambda model, random: setattr(
        model, "__class__", type("Mine", (type(model),), {"predict": lambda s, X: 5})
    ),
    lambda model, random: model.get_booster().set_attr(best_iteration="0"),
    lambda model, random: model.get_booster().set_param({"base_score": 0.1}),
    lambda model, random: model.set_attr(best_iteration="0"),
    lambda model, random: model.booster_.set_leaf_output(0, 0, 3.0),
    lambda model, random: model.set_leaf_output(0, 0, 3.0),
    lambda model, random: model.shuffle_models(),
    lambda model, random: model.set_scale_and_bias(2.0, 0.25),
    lambda model, random: model.shrink(1),
    lambda model, random: model.set_probability_threshold(0.3),
    lambda model, random: model.set_feature_names([*"uvwxyz"]),
    lambda model, random: model.steps.pop(0),
    lambda model, random: model.steps.__setitem__(0, ("scale", StandardScaler())),
    lambda model, random: model[0].mean_.__iadd__(1),
    lambda model, random: model.set_output(transform="pandas"),
    lambda model, random: model[-1].fit(*_simple(random)),
    lambda model, random: setattr(model, "weights", [1, 3]),
    lambda model, random: model.intercept_.__iadd__(1.0),
    lambda model, random: setattr(model, "offset_", -0.4),
    lambda model, random: setattr(model, "init_", None),
    lambda model, random: setattr(model, "_baseline_prediction", np.zeros((1, 1))),
    lambda model, random: model._predictors.pop(),
    lambda model, random: model._predictors[0][0].nodes["value"].__imul__(0.5),
]
COPIES: list[Callable[[Any], Any]] = [
    lambda model: pickle.loads(pickle.dumps(model)),
    copy.deepcopy,
    copy.copy,
    lambda model: clone(model).fit(*_simple(np.random.default_rng(3))),
    lambda model: clone(model),
    lambda model: model[:2],
    lambda model: model[-1],
]


def _simple(random: Random) -> Any:
    X = _data(random)
    return X, (X[:, 0] > 0).astype(int)


# ------------------------------------------------------------ what a program sees


def _seen(answer: Any) -> Any:
    if isinstance(answer, (list, tuple)):
        return [type(answer).__name__, *map(_seen, answer)]
    if not isinstance(answer, np.ndarray):
        return type(answer).__name__, _text(repr(answer))
    flags = answer.flags
    content = repr(answer.tolist()) if answer.dtype == object else ""
    data = content.encode() or answer.tobytes()
    pairs = zip(answer.strides, answer.shape, strict=True)
    steps = [step for step, n in pairs if n > 1]  # an axis of one entry has none
    return (
        *(type(answer).__name__, str(answer.dtype), answer.shape, steps),
        *(flags.writeable, flags.aligned, hashlib.sha256(data).hexdigest()[:12]),
    )


def _text(text: str) -> str:
    text = text.partition("Stack trace")[0]
    text = re.sub(r"0x[0-9a-fA-F]+|\[\d+:\d+:\d+\] ?|:\d+:", "", text)
    # some libraries list names in the order of a set
    return re.sub(
        r"^(?:expected|training data did not have) .*|columns are missing: .*",
        lambda m: str(sorted(re.findall("[^ ,{}]+", m[0]))),
        text,
        flags=re.MULTILINE,
    )


def tried(call: Callable[[Any], Any], model: Any) -> Any:
    """Return what a call gives, or its error."""
    try:
        return _seen(call(model))
    except (Exception, polars.exceptions.PanicException) as error:  # noqa: BLE001
        cause = error.__cause__ or error.__context__
        return type(error).__name__, _text(str(error)), type(cause).__name__


def _forked(call: Callable[[Any], Any], model: Any) -> Any:
    """Ask in a child, where polars and models with OpenMP's threads wait for ever."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, pickle.dumps(tried(call, model)))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        told = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    return told


def _in_threads(call: Callable[[Any], Any], model: Any) -> Any:
    with ThreadPoolExecutor(4) as pool:
        return [*pool.map(lambda _: tried(call, model), range(6))]


def _state() -> Any:
    drawn = np.random.get_state()
    return (
        *(hashlib.sha256(pickle.dumps(drawn)).hexdigest()[:8], np.geterr()),
        *(len(warnings.filters), sklearn.get_config(), sys.getswitchinterval()),
    )


def asked(random: Random, model: Any, call: Callable[[Any], Any], usual: bool) -> Any:
    """Ask in some surroundings: threads, a fork, other handling of warnings."""
    way = int(random.integers(20))
    with ExitStack() as stack:
        forks = type(model).__name__.startswith(("Random", "Extra", "Isol"))
        if way == 1 and usual and forks:
            return _forked(call, model)
        if way == 2:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _in_threads(call, model)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("error" if way == 3 else "always")
        if way in (4, 5):
            stack.enter_context(np.errstate(all="raise" if way == 4 else "ignore"))
        if way == 6:
            stack.enter_context(sklearn.config_context(assume_finite=True))
        if way == 7:
            stack.enter_context(sklearn.config_context(transform_output="pandas"))
        told = tried(call, model)
        said = [
            (w.category.__name__, _text(str(w.message)), w.filename[-40:], w.lineno)
            for w in caught
        ]
        return told, said, _state()


def program(seed: int, calls: int) -> Iterator[str]:
    """Yield what a random program sees."""
    random = np.random.default_rng(seed)
    model, done, left = None, 0, 0
    while done < calls:
        if left == 0:
            left = int(random.integers(20, 60))
            model = None  # the one before goes, and its address may be used again
            draws = np.random.default_rng(int(random.integers(1 << 40)))
            while model is None:
                try:
                    model = draw_model(draws)
                except Exception:  # noqa: BLE001 - of data that do not fit
                    continue
            yield f"model {type(model).__name__}"
        left -= 1
        own = np.random.default_rng(int(random.integers(1 << 40)))
        action = random.random()
        if action < 0.08:
            change = pick(own, CHANGES)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                told = tried(partial(change, random=own), model)
            yield f"change {CHANGES.index(change)} {told}"
            continue
        if action < 0.11:
            copied = pick(own, COPIES)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = copied(model)
                yield f"copy {COPIES.index(copied)} {type(model).__name__}"
            except Exception as error:  # noqa: BLE001 - of models that have no copies
                yield f"copy {COPIES.index(copied)} {type(error).__name__}"
            continue
        usual = own.random() < 0.6
        call = draw_call(own, model, usual)
        for _ in range(int(own.integers(1, 4))):
            done += 1
            yield f"call {done} {asked(own, model, call, usual)}"


def _run(seed: int, calls: int, how: str) -> None:
    stdlib_random.seed(0)
    np.random.seed(0)
    if how != "plain":
        import skforge
        from skforge.acceleration import api
        from skforge.acceleration.settings import Settings

        eager = how == "eager"
        if not eager:
            api.calls.seconds_to_compile = lambda *_: 0.0  # type: ignore[assignment]
            api.calls.debt = lambda: 0.0
        if seed % 2:  # others take the place of simple kernels
            api.calls.begins_simple = lambda *_: True
        least = 0.0 if how == "thread" else 1.5
        plain = skforge.Schedule()  # and another kernel for large batches
        plan = {(1, 9): plain, (10, None): plain.tile("batch", "a", "b", 8)}
        api.start((), Settings(1, 1, 0.0, least, eager, plan))
    for line in program(seed, calls):
        faulthandler.dump_traceback_later(200, exit=True)
        print(line.replace("\n", " "), flush=True)
    if how != "plain":
        from skforge.acceleration.report import acceleration_report

        print(acceleration_report(), file=sys.stderr)
        sides = ((r.kernel_calls, r.differed) for r in acceleration_report())
        print("kernels", *map(sum, zip(*sides, strict=True)), file=sys.stderr)


def _told(seed: int, calls: int, how: str) -> tuple[list[str], str]:
    words = [sys.executable, "-m", "tests.fuzz_acceleration", "--run", how]
    words += ["--first", str(seed), "--calls", str(calls)]
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=one)
    # LightGBM prints by itself, before or after what was printed before it
    lines = [x for x in done.stdout.splitlines() if not x.startswith("[LightGBM]")]
    return [*lines, f"ended with {done.returncode}"], done.stderr


def compared(seed: int, calls: int) -> tuple[list[str], str]:
    """Return what the two runs tell differently, and how many calls kernels answered.

    With each difference comes what was done with its model before.
    """
    how = "thread" if seed % 4 == 3 else "eager"
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(_told, seed, calls, way) for way in ("plain", how)]
        (expected, _), (told, said) = (run.result() for run in runs)
    found = [x for x in said.splitlines() if "accelerate:" in x or "Traceback" in x]
    before: list[str] = []
    for ours, theirs in zip_longest(told, expected, fillvalue="nothing"):
        if theirs.startswith("model"):
            before = [theirs]
        elif theirs.startswith(("change", "copy")):
            before.append(theirs[:40])
        if ours != theirs:
            found.append(f"{before}\n    {ours[:900]}\n    {theirs[:900]}")
    return found, said.strip().rpartition("\n")[2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=500)
    given = parser.parse_args()
    if given.run:
        _run(given.first, given.calls, given.run)
        return
    for seed in range(given.first, given.first + given.seeds):
        found, kernels = compared(seed, given.calls)
        print(f"seed {seed}: {kernels}", *found[:6], sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
