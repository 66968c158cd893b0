"""Draws models of every kind, and asks them in every form: live, pickled, and loaded.

What is drawn here is what earlier generators left out: category columns that are no
categorical features, every dtype of pandas, polars and Arrow in every role of a column,
columns that are not read, chunks with and without gaps, and degenerate models: one
class, a constant target, columns without a value. Each method is compared in bits,
dtype, shape and memory order.

``python -m tests.reliability.fuzz_drawn sweep FIRST LAST`` repeats some.
"""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from scipy import sparse

import skforge
from skforge import CompiledForest
from skforge.exceptions import SkforgeError, VerificationError, VerificationWarning
from tests.fuzz_pipelines import Outcome
from tests.reliability.planted_trial import difference
from tests.reliability.sweep_models import MODELS, Drawn

#: Forms of rows that each model is asked in.
FORMS = 6
#: Methods with rows as their only argument, and generators of answers.
METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function")
METHODS += ("score_samples", "apply", "transform")
STAGES = "staged_predict", "staged_predict_proba", "staged_decision_function"

_NUMBERS = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")
_PANDAS = (*_NUMBERS, "Int64", "Int8", "UInt32", "Float32", "Float64", "boolean")
_PANDAS += ("object", "category", "ordered", "sparse", "sparse 1")
_PANDAS += ("int64[pyarrow]", "double[pyarrow]", "float[pyarrow]", "bool[pyarrow]")
_POLARS = (pl.Float64, pl.Float32, pl.Int64, pl.Int16, pl.UInt8, pl.UInt32, pl.Boolean)
_ARROW = (pa.float64(), pa.float32(), pa.int64(), pa.int8(), pa.uint16(), pa.bool_())
_TEXTS = ("object", "str", "category", "reversed", "string[python]", "string[pyarrow]")


def attempt(seed: int) -> Outcome:
    """Draw a model from a number, and compare its calls."""
    random, outcome = np.random.default_rng([seed, 5]), Outcome()

    def choose(options: Any) -> Any:
        return options[int(random.integers(len(options)))]

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
        for _ in range(FORMS):
            form, rows = _changed(choose, random, drawn)
            _compare(outcome, drawn.model, variants, form, rows)
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
    outcome: Outcome, model: Any, variants: dict[str, Any], form: str, rows: Any
) -> None:
    for method in (*METHODS, *STAGES):
        if not hasattr(model, method):
            continue
        expected, _ = _called(model, method, deepcopy(rows))
        for name, variant in variants.items():
            if not hasattr(variant, method):
                continue
            found, heard = _called(variant, method, rows)
            outcome.calls += 1
            outcome.rows += len(rows) if not hasattr(rows, "tocsr") else rows.shape[0]
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
        if str(found).startswith("Feature shape mismatch"):
            return ""  # XGBoost's ``apply`` writes behind its memory for wider rows
        if isinstance(found, SkforgeError) and name == "file":
            return "" if not isinstance(found, VerificationError) else _text(found)
        return f"internal error: {_text(found)}"
    return difference(found, expected)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


# ------------------------------------------------------------ forms


def _changed(choose: Any, random: Any, drawn: Drawn) -> tuple[str, Any]:
    """Return rows of a drawn form, and its name."""
    frame = drawn.frame(choose([1, 3, 24]), random)
    kinds = ["pandas", "pandas", "polars", "arrow", "order", "further", "own"]
    if drawn.plain:
        kinds += ["array", "list", "sparse", "fortran", "memmap", "nameless"]
    if "CatBoost" in drawn.how:
        kinds.remove("polars")  # numbers in place of categories end the process
    kind = choose(kinds)
    with suppress(Exception):  # what no container can hold is left as it is
        return kind, _as(kind, choose, random, frame, drawn)
    return "own", frame


def _as(kind: str, choose: Any, random: Any, frame: Any, drawn: Drawn) -> Any:
    match kind:
        case "pandas":
            return _of_pandas(choose, frame, drawn)
        case "polars":
            made = pl.DataFrame(
                [_of_polars(choose, frame[name], name) for name in frame]
            )
            cut = choose([0, len(made) // 2])
            return pl.concat([made[:cut], made[cut:]], rechunk=False)
        case "arrow":
            return _of_arrow(choose, frame)
        case "order":
            return frame[[*random.permutation(frame.columns)]]
        case "further":
            return frame.assign(further=choose([1.0, "text", None]))
        case "array":
            return frame.to_numpy(np.float64).astype(choose([*_NUMBERS, "O"]))
        case "fortran":
            return np.asfortranarray(frame.to_numpy(np.float64))
        case "memmap":
            return np.repeat(frame.to_numpy(np.float64), 2, axis=0)[::2]
        case "list":
            return frame.to_numpy(np.float64).tolist()
        case "sparse":
            values = np.nan_to_num(frame.to_numpy(np.float64))
            make = choose([sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array])
            return make(values)
        case "nameless":
            return pd.DataFrame(frame.to_numpy(np.float64))
    return frame


def _of_pandas(choose: Any, frame: Any, drawn: Drawn) -> Any:
    """Return a frame of which some columns have another dtype."""
    changed = frame.copy()
    every = choose([True, False])
    one = choose(_PANDAS)
    for name in frame:
        if choose([True, True, False]) or every:
            with suppress(Exception):  # values that the dtype lacks
                changed[name] = _series(choose, frame[name], one if every else None)
    return changed


def _series(choose: Any, column: Any, dtype: Any) -> Any:
    if column.dtype.kind in "OUS" or str(column.dtype) in ("str", "category"):
        word = choose(_TEXTS)
        if word in ("category", "reversed"):
            values = column.astype(object)
            known = sorted({*values.dropna()}, key=str, reverse=word == "reversed")
            return pd.Series(pd.Categorical(values, known), index=column.index)
        return column.astype(word)
    word = choose(_PANDAS) if dtype is None else dtype
    if word == "ordered":
        return pd.Series(pd.Categorical(column, ordered=True), index=column.index)
    if word.startswith("sparse"):
        return column.astype(pd.SparseDtype(np.float64, 1.0 if "1" in word else np.nan))
    if word == "object":
        return column.astype(object).where(column.notna(), None)
    return column.astype(np.dtype(word) if word in _NUMBERS else word)


def _of_polars(choose: Any, column: Any, name: str) -> Any:
    values = column.astype(object).where(column.notna(), None).tolist()
    if any(isinstance(value, str) for value in values):
        series = pl.Series(name, [v if v is None else str(v) for v in values])
        known = sorted({value for value in series.to_list() if value is not None})
        return series.cast(choose([pl.String, pl.Categorical, pl.Enum(known)]))
    return pl.Series(name, values, strict=False).cast(choose(_POLARS), strict=False)


def _of_arrow(choose: Any, frame: Any) -> Any:
    """Return a table, perhaps of several chunks with other gaps and dictionaries."""
    columns = []
    for name in frame:
        values = frame[name].astype(object).where(frame[name].notna(), None).tolist()
        cut = len(values) // 2 if choose([True, False]) else len(values)
        parts = [part for part in (values[:cut], values[cut:]) if part]
        texts = any(isinstance(value, str) for value in values)
        if texts and choose([True, False]):
            arrays = [pa.array(part, pa.string()).dictionary_encode() for part in parts]
        elif texts:
            arrays = [pa.array(part, pa.string()) for part in parts]
        else:
            dtype = choose(_ARROW)
            arrays = [pa.array(part).cast(dtype, safe=False) for part in parts]
        columns.append(pa.chunked_array(arrays))
    return pa.table(columns, [*frame])
