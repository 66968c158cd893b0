"""Compares random CatBoost models with categories with their compiled forms.

Categories are texts, whole numbers and booleans of few or many values; rows have known
ones, new ones, empty and long texts, and what CatBoost refuses; they come in every
container, also with columns that are swapped.
"""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import skforge
from skforge import CompiledForest, compile_forest
from skforge.exceptions import SkforgeError
from tests.compared_calls import apart, called
from tests.fuzz_pipelines import Outcome
from tests.plain import plain
from tests.random_pipelines import Choose, chooser

QUIET = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
LOSSES = {
    "Regressor": ("RMSE", "MAE", "Poisson", "RMSEWithUncertainty", "MultiRMSE"),
    "Classifier": ("Logloss", "MultiClass", "MultiClassOneVsAll", "MultiLogloss"),
}
CTRS = ("Borders", "Buckets", "BinarizedTargetMeanValue", "Counter")
RAW = {"prediction_type": "RawFormulaVal"}
#: What is no category or no number to CatBoost, or an odd one.
ODD: tuple[Any, ...] = (
    *(None, np.nan, pd.NA, 1.5, 7.0, 2**62, -(2**63), True, b"bytes", "", " 7", "1e3"),
    *(
        np.int8(-3), np.uint64(7), np.bool_(False), np.float32(0.5), "nan", "None",
        "x" * 70,
    ),
    *("Ünïcödé " * 5, float("inf"), -0.0, 10**18, "\U0001f333"),
)  # fmt: skip


def compare(numbers: Sequence[int], n_forms: int = 8) -> Outcome:
    """Draw a model from numbers, and compare its calls on ``n_forms`` drawn rows."""
    import catboost

    random, outcome = np.random.default_rng(numbers), Outcome()
    choose = chooser(random)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        frame, categories = draw_frame(choose, random)
        try:
            model = draw_model(choose, random, frame, categories)
        except catboost.CatBoostError as error:
            outcome.refused.append(f"not trained: {str(error)[:100]}")
            return outcome
        how = {"tuning": "off", "n_jobs": choose([None, 2])}
        schedules = choose([plain, CompiledForest])
        sample = choose([frame, frame.to_numpy(object)])[:60]
        fast = schedules(model, **({} if schedules is plain else how)).fit(sample)
        if choose([True, False, False]):
            fast = pickle.loads(pickle.dumps(fast))
        files = stored(model, fast)
    outcome.how = f"{frame.shape}, {categories}, {model.get_params()}"
    for _ in range(n_forms):
        word, rows = changed(choose, random, frame, categories)
        for method in ("predict", "predict_proba", "predict_raw"):
            own = getattr(model, method, None)
            if method == "predict_raw":
                own = partial(catboost.CatBoost.predict, model, **RAW)
            if own is None:
                continue
            theirs = called(own, deepcopy(rows))
            ours = called(getattr(fast, method), rows)
            outcome.calls += 1
            outcome.rows += len(rows)
            if found := apart(ours, theirs, rows):
                outcome.differs.append(f"{method} of {word}: {found}")
            for name, other in files.items():
                if name == "cbm" and method != "predict_raw":
                    continue
                answer, error, _ = called(getattr(other, method), rows)
                if error and not error.startswith(KNOWN):
                    outcome.differs.append(f"{name}, {method} of {word}: {error}")
                fine = theirs[0] is not None and not error
                if fine and name == "cbm":  # the scores of a module lie row by row
                    answer = np.asfortranarray(answer)
                if fine and apart((answer, "", theirs[2]), theirs, rows):
                    outcome.differs.append(f"{name}, {method} of {word}: other bits")
    return outcome


#: Errors of files, which have no library to ask.
KNOWN = ("InvalidInputError", "SourceNeededError")


def stored(model: Any, fast: Any) -> dict[str, Any]:
    """Return the models that files of one hold."""
    with tempfile.TemporaryDirectory(prefix="skforge-categories-") as folder:
        path = Path(folder)
        skforge.save(fast, path / "m.skforge")
        model.save_model(path / "m.cbm")
        return {
            "skforge": skforge.load((path / "m.skforge").read_bytes()),
            "cbm": compile_forest((path / "m.cbm").read_bytes()),
        }


def draw_frame(choose: Choose, random: np.random.Generator) -> tuple[Any, list[str]]:
    """Draw rows, and the names of the columns with categories."""
    n = choose([40, 150, 600])
    kinds = random.permutation([0] * choose([1, 2, 3, 5]) + [1] * choose([0, 1, 3]))
    columns: dict[str, Any] = {}
    for i, kind in enumerate(kinds.tolist()):
        if kind:
            values = np.round(random.normal(size=n), choose([0, 1, 6]))
            values[random.random(n) < choose([0.0, 0.1])] = np.nan
            columns[f"number {i}"] = values.astype(choose([np.float64, np.float32]))
            continue
        count = choose([1, 2, 3, 8, 40, 300])
        known = choose(
            [
                [f"value {k}" for k in range(count)],
                [f"{'ä' * (k % 40)}{k}" for k in range(count)],
                list(range(-2, count - 2)),
                [10**9 * k for k in range(count)],
                [True, False],
                [str(k) if k % 2 else k for k in range(count)],
            ]
        )
        drawn = random.integers(0, len(known), n) ** choose([1, 1, 2]) % len(known)
        columns[f"category {i}"] = np.array(known, object)[drawn]
    frame = pd.DataFrame(columns).infer_objects()
    return frame, [name for name in frame if name.startswith("category")]


def draw_model(
    choose: Choose, random: np.random.Generator, frame: Any, categories: list[str]
) -> Any:
    """Draw and fit a model."""
    import catboost

    score = random.normal(size=len(frame)) * 0.3
    for name in frame:
        values = frame[name]
        if name in categories:
            values = pd.factorize(values)[0] % choose([2, 3, 7])
        score += np.nan_to_num(values.astype(float)) * choose([0.3, 1.0])
    kind = choose([*LOSSES])
    loss = choose(LOSSES[kind])
    y: Any = np.abs(score) if loss == "Poisson" else score
    if kind == "Classifier":
        cuts = (
            [np.median(score)] if loss == "Logloss" else np.quantile(score, [0.3, 0.6])
        )
        y = np.digitize(score, cuts)
        y = choose([y, np.array(["a", "b", "c"])[y]])
    if loss.startswith(("MultiRMSE", "MultiLogloss")):
        y = np.stack([score, -(score**2)], axis=1)
        y = y if loss == "MultiRMSE" else (y > 0.1).astype(int)
    how: dict[str, Any] = {
        "loss_function": loss,
        "iterations": choose([1, 8, 30]),
        "depth": choose([1, 3, 6]),
        "cat_features": categories,
        "one_hot_max_size": choose([1, 2, 10, 255]),
        "max_ctr_complexity": choose([1, 2, 4]),
        "grow_policy": choose(
            ["SymmetricTree", "SymmetricTree", "Lossguide", "Depthwise"]
        ),
        "nan_mode": choose(["Min", "Max"]),
        "counter_calc_method": choose(["Full", "SkipTest"]),
        "random_seed": int(random.integers(1 << 20)),
    }
    if choose([True, False]):
        borders = f":CtrBorderCount={choose([1, 15, 200])}"
        how["simple_ctr"] = [f"{choose(CTRS)}{borders}:Prior=0.4/1", "Counter"]
        how["combinations_ctr"] = [f"{choose(CTRS)}{borders}"]
    if choose([True, False, False]) and loss == "RMSE":
        how["ctr_target_border_count"] = choose([1, 4])
    if choose([True, False, False]) and how["grow_policy"] == "SymmetricTree":
        how["boosting_type"] = "Ordered"
    return getattr(catboost, f"CatBoost{kind}")(**how, **QUIET).fit(frame, y)


def changed(
    choose: Choose, random: np.random.Generator, frame: Any, categories: list[str]
) -> tuple[str, Any]:
    """Draw rows from those of training, some of them changed, in a container."""
    n = choose([1, 2, 7, 8, 9, 33, 64, 65, 130, 700])
    rows = frame.iloc[random.integers(0, len(frame), n)].reset_index(drop=True)
    for name in rows if choose([True, True, False]) else []:
        mixed = random.random(n) < choose([0.0, 0.3, 1.0])
        rows[name] = np.where(mixed, random.permutation(rows[name]), rows[name])
        if name in categories and choose([True, False]):
            new = random.random(n) < 0.2
            texts = np.array([choose(["new", "ö", "7", "x" * 33]) for _ in range(n)])
            rows[name] = np.where(new, texts, rows[name].to_numpy(object))
        elif name not in categories and choose([True, False]):
            rows.loc[random.random(n) < 0.2, name] = choose([np.nan, np.inf, -1e300])
    word, odd = f"{n} rows", choose([True, False, False, False])
    if odd:
        name, value = choose([*rows]), choose(ODD)
        rows = rows.astype({name: object})
        rows.at[int(random.integers(n)), name] = value
        word += f" with {value!r} in {name}"
    names = [*rows]
    if choose([True] + [False] * 9):
        names = choose([names[::-1], sorted(names)])
        word += f" in the order {names}"
    whole = dict.fromkeys(categories, "category")

    def tables(kind: str) -> Any:
        import polars
        import pyarrow as pa

        if kind == "arrow":
            return pa.Table.from_pandas(rows[names], preserve_index=False)
        return polars.from_pandas(rows[names])

    def columns(kind: str) -> Any:
        known = {
            name: kind for name in categories if rows[name].map(type).eq(str).all()
        }
        return rows[names].astype(known)

    forms = {
        "frame": lambda: rows[names],
        "objects": lambda: rows[names].to_numpy(object),
        "column-major objects": lambda: np.asfortranarray(rows[names].to_numpy(object)),
        "frame of objects": lambda: rows[names].astype(object),
        "categories": lambda: rows[names].astype(whole),
        "strings": lambda: columns("string"),
        "arrow strings": lambda: columns("string[pyarrow]"),
        "list": lambda: rows[names].to_numpy(object).tolist(),
        "nullable": lambda: rows[names].convert_dtypes(),
        "polars": lambda: tables("polars"),
        "arrow": lambda: tables("arrow"),
    }
    form = choose([*forms])
    if form == "polars" and (odd or names != [*rows]):
        form = "objects"  # CatBoost's Pool may end the process
    try:
        return f"{form}, {word}", forms[form]()
    except Exception:  # noqa: BLE001 - not every value fits every container
        return f"frame of objects, {word}", rows[names].astype(object)


def attempt(seed: int) -> Outcome:
    """Return what became of a seed; an error of skforge itself is a difference."""
    try:
        return compare([seed])
    except SkforgeError as error:
        return Outcome(differs=[f"fit: {type(error).__name__}: {error}"])
