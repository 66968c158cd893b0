"""Draws models of every kind, and asks them in every form: live, pickled, and loaded.

Other generators leave out: category columns that are no categorical features, columns
that are not read, models of another class than they were saved by, and degenerate ones:
one class, a constant target, columns without a value. Rows are those of
``random_rows.py``. Each method is compared in bits, dtype, shape and memory order.

``python -m tests.reliability.fuzz_drawn sweep FIRST LAST`` repeats some.
"""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import skforge
from skforge import CompiledForest
from skforge.exceptions import SkforgeError, VerificationError, VerificationWarning
from tests.compared_calls import apart
from tests.fuzz_pipelines import Outcome, cuts_of
from tests.random_pipelines import chooser
from tests.random_rows import Rows, is_mapped
from tests.reliability.sweep_models import MODELS, Drawn

#: Forms of rows that each model is asked in.
FORMS = 6
#: Methods with rows as their only argument, and generators of answers.
METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function")
METHODS += ("score_samples", "apply", "transform")
STAGES = "staged_predict", "staged_predict_proba", "staged_decision_function"


def attempt(seed: int) -> Outcome:
    """Draw a model from a number, and compare its calls."""
    random, outcome = np.random.default_rng([seed, 5]), Outcome()
    choose = chooser(random)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        name = [*MODELS][seed % len(MODELS)]
        try:
            drawn = MODELS[name](choose, random)
        except Exception as error:  # noqa: BLE001 - the library cannot train it
            outcome.refused.append(f"not trained: {name}: {str(error)[:100]}")
            return outcome
        outcome.how = f"{name}: {drawn.how}"
        fast, heard = _heard(lambda: _fitted(drawn))
        if isinstance(fast, SkforgeError) and not isinstance(fast, VerificationError):
            outcome.refused.append(f"{type(fast).__name__}: {fast}")
            return outcome
        if isinstance(fast, Exception):
            outcome.differs.append(f"fit: {type(fast).__name__}: {fast}")
            return outcome
        _note(outcome, "fit", heard)
        variants = _variants(outcome, fast)
        _attributes(outcome, drawn.model, variants)
        draws = Rows(drawn.table, cuts_of(fast), random)
        for _ in range(FORMS):
            form, rows = _rows(drawn, draws)
            _compare(outcome, drawn, variants, form, rows)
            _in_parts(outcome, drawn.model, variants, form, rows)
    return outcome


def _attributes(outcome: Outcome, model: Any, variants: dict[str, Any]) -> None:
    """Compare the fitted attributes that are plain values, and pickles keep."""
    model = pickle.loads(pickle.dumps(model))
    for name in dir(model):
        if name.startswith("_") or not name.endswith("_"):
            continue
        value, _ = _heard(lambda name=name: getattr(model, name))
        if not isinstance(value, (np.ndarray, int, float, str, np.generic)):
            continue
        if getattr(value, "dtype", np.dtype(int)).kind == "O":
            continue
        for variant, fast in variants.items():
            found, heard = _heard(lambda name=name, fast=fast: getattr(fast, name))
            outcome.calls += 1
            _note(outcome, name, heard)
            if isinstance(found, AttributeError) or name == "n_features_in_":
                continue  # CatBoost's pickles say 0
            if isinstance(found, Exception):
                why = f"internal error: {_text(found)}"
            else:
                why = difference(found, value)
            if why:
                outcome.differs.append(f"{variant}, {name}: {why}")


def _in_parts(
    outcome: Outcome, model: Any, variants: dict[str, Any], form: str, rows: Any
) -> None:
    """Compare the answers to rows one by one with the model's, as they are joined."""
    if not hasattr(rows, "iloc") and type(rows).__name__ != "ndarray":
        return
    take = getattr(rows, "iloc", rows)

    def joined(fast: Any) -> Any:
        parts = [np.asarray(fast.predict(take[i : i + 1])) for i in range(len(rows))]
        return np.concatenate(parts)

    expected, _ = _heard(lambda: joined(model))
    for name, fast in variants.items():
        found, _ = _heard(lambda fast=fast: joined(fast))
        outcome.calls += 1
        if why := _judged(name, found, expected):
            outcome.differs.append(f"{name}, rows of {form} one by one: {why}")


def _fitted(drawn: Drawn) -> Any:
    return CompiledForest(drawn.model, tuning="off").fit(drawn.sample)


def _heard(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return an answer or the error, and what comparisons have said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001 - judged by the caller
            answer = error
    said = [w for w in caught if issubclass(w.category, VerificationWarning)]
    return answer, [str(warning.message) for warning in said]


def _note(outcome: Outcome, what: str, heard: list[str]) -> None:
    outcome.differs += [f"a comparison spoke: {what}: {text}" for text in heard]


def _variants(outcome: Outcome, fast: Any) -> dict[str, Any]:
    """Return the model live, unpickled, dropped and loaded, where it can be stored."""
    variants = {"live": fast, "pickle": pickle.loads(pickle.dumps(fast))}
    with tempfile.TemporaryDirectory(prefix="skforge-sweep-") as folder:
        path = Path(folder) / "model.skforge"
        saved, heard = _heard(lambda: skforge.save(fast, path))
        _note(outcome, "save", heard)
        if isinstance(saved, VerificationError) or (
            isinstance(saved, Exception) and not isinstance(saved, SkforgeError)
        ):
            outcome.differs.append(f"save: {type(saved).__name__}: {saved}")
        if saved is None:
            loaded, heard = _heard(lambda: skforge.load(path.read_bytes()))
            if isinstance(loaded, Exception):
                outcome.differs.append(f"load: {type(loaded).__name__}: {loaded}")
            else:
                variants["file"] = loaded
    return variants


def _compare(
    outcome: Outcome, drawn: Drawn, variants: dict[str, Any], form: str, rows: Any
) -> None:
    model = drawn.model
    for method in (*METHODS, *STAGES):
        if not hasattr(model, method):
            continue
        if method == "apply" and _too_wide(rows, drawn):
            continue
        expected, _ = _called(model, method, deepcopy(rows))
        for name, variant in variants.items():
            if not hasattr(variant, method):
                continue
            found, heard = _called(variant, method, rows)
            outcome.calls += 1
            outcome.rows += rows.shape[0] if hasattr(rows, "shape") else 1
            what = f"{name}, {method} of {form}"
            _note(outcome, what, heard)
            if why := _judged(name, found, expected):
                outcome.differs.append(f"{what}: {why}")


def _called(model: Any, method: str, rows: Any) -> tuple[Any, list[str]]:
    call = partial(getattr(model, method), rows)
    return _heard((lambda: [*call()]) if method in STAGES else call)


def _judged(name: str, found: Any, expected: Any) -> str:
    """Return what is wrong with an answer, or ""."""
    if isinstance(expected, Exception):
        if isinstance(found, Exception) or name == "file":
            return ""  # models without their library take some rows that it refuses
        if "Invalid data type" in str(expected):
            return ""  # pyarrow's tables are answered for CatBoost
        return f"an answer, where the model raises {_text(expected)}"
    if isinstance(found, Exception):
        if isinstance(found, SkforgeError) and name == "file":
            return "" if not isinstance(found, VerificationError) else _text(found)
        return f"internal error: {_text(found)}"
    return difference(found, expected)


def difference(found: Any, wanted: Any) -> str:
    """Return how two answers differ, in bits, dtype, shape or memory order; or ""."""
    both = [
        answer
        if isinstance(answer, list) or hasattr(answer, "tocsr")
        else np.asarray(answer)
        for answer in (found, wanted)
    ]
    return apart((both[0], "", []), (both[1], "", []), None)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _rows(drawn: Drawn, rows: Rows) -> tuple[str, Any]:
    """Draw rows that the model itself takes, too."""
    while True:
        word, found = rows.draw()
        of_polars = isinstance(found, (pl.DataFrame, pl.LazyFrame))
        if is_mapped(found) or (of_polars and "CatBoost" in drawn.how):
            continue  # numbers in place of categories end the process
        if isinstance(found, pl.DataFrame):
            found = found[:1].vstack(found[1:])  # chunks
        elif isinstance(found, pa.Table):
            found = pa.concat_tables([found[:1], found[1:]])
        return word, found


def _too_wide(rows: Any, drawn: Drawn) -> bool:
    """Tell whether ``apply`` of XGBoost writes behind its memory."""
    try:
        return bool((getattr(rows, "shape", None) or np.shape(rows))[1] > drawn.width)
    except (IndexError, ValueError):  # no table
        return True
