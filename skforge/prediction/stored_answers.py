"""What a model that is kept without its library will answer, compared beforehand.

It is asked for the rows that ``fit`` saw, in the forms in which services have rows, by
all methods that it answers: before :func:`skforge.save` writes a byte, and before
``drop_estimator`` returns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from skforge._compat import no_warnings
from skforge.compiler.forest.frames import is_category, is_pandas
from skforge.exceptions import SkforgeError, VerificationError
from skforge.prediction.door import accepted, compared_answers, made_of
from skforge.prediction.made_rows import Made
from skforge.prediction.predictor import METHODS

#: Methods of files whose answers are compared.
_METHODS = (*METHODS, "predict_log_proba", "apply", "transform")


def compare_stored(fast: Any, stored: Any) -> dict[str, list[str]]:
    """Compare a stored model with the ``CompiledForest`` that it was made of.

    Returns
    -------
    dict of str -> list of str
        By form of rows, the methods that gave equal bits. What is left to the model,
        or refused by it, is not among them.

    Raises
    ------
    VerificationError
        If an answer differs, or raises where the model answers.
    """
    compared: dict[str, list[str]] = {}
    state = vars(stored)
    shadow = {name: state.pop(name) for name in ("_shadow",) if name in state}
    live = vars(fast._compiled())
    mappings = live.pop("_mappings", None)  # which warns of further keys once
    with no_warnings():
        for form, rows in _forms(fast):
            for method in _METHODS:
                if _agrees(fast, stored, form, method, rows):
                    methods = compared.setdefault(form, [])
                    methods += [method] * (method not in methods)
    if (predictor := state.pop("_predictor", None)) is not None:
        predictor.retire()  # it has counted
    state.update(shadow)
    live.pop("_mappings", None)
    live.update({} if mappings is None else {"_mappings": mappings})
    return compared


def _agrees(fast: Any, stored: Any, form: str, method: str, rows: Made) -> bool:
    if not hasattr(fast, method) or not hasattr(stored, method):
        return False
    agreed = False
    ask = partial(fast._compiled().counters.uncounted, getattr(fast, method))
    for part, expected, error in accepted(ask, rows):
        if error is not None:
            continue
        try:
            answer = getattr(stored, method)(part)
        except SkforgeError:  # such rows need the model
            continue
        except Exception as error:
            if method == "predict_raw":  # no method of the model, which may refuse them
                continue
            raise VerificationError(
                f"{_WRONG.format(method=method, form=form)} it raises "
                f"{type(error).__name__}: {error}. {_NOTHING}"
            ) from error
        order = method != "predict_raw"  # of which libraries say nothing
        found = compared_answers(part, answer, expected, order)
        # parts of lists may be read otherwise than the whole
        if found and (found := compared_answers(part, answer, ask(part), order)):
            raise VerificationError(
                f"{_WRONG.format(method=method, form=form)} it gives {found.value} "
                f"where the model gives {found.expected}, for {found.text}. {_NOTHING}"
            )
        agreed = True
    return agreed


_WRONG = "Without its library, the model would answer {method} of {form} otherwise:"
_NOTHING = "Nothing was saved. Please report this model; joblib.dump keeps it whole."


def _forms(fast: Any) -> Iterator[tuple[str, Made]]:
    """Yield rows that ``fit`` saw, or drew, in several forms, and rows made of them."""
    predictor = fast._compiled()
    seen = predictor.sample
    if seen is None:
        seen = predictor.source.as_given(predictor.source.drawn(16, 0.0)[:16])
    if seen is None:
        return
    for name, rows in _other_forms(predictor, seen):
        yield name, Made(rows, ())
        with suppress(Exception):  # of rows that nobody can make
            for made in made_of(predictor, rows):
                yield f"{name}, made", made


def _other_forms(predictor: Any, seen: Any) -> Iterator[tuple[str, Any]]:
    yield type(seen).__name__, seen
    if is_pandas(seen):
        yield from _of_frame(seen)
    elif isinstance(seen, np.ndarray) and seen.ndim == 2:
        yield "list", seen.tolist()
        if seen.dtype.kind == "f":
            yield "float32 array", seen.astype(np.float32)
            yield "float64 array", seen.astype(np.float64)
        names = predictor.forest.column_names
        if names is not None and len(names) == seen.shape[1]:
            pairs = (zip(names, row, strict=True) for row in seen.tolist())
            yield "mappings", [*map(dict, pairs)]


def _of_frame(frame: Any) -> Iterator[tuple[str, Any]]:
    plain = frame.astype(object).where(frame.notna(), None)
    yield "mappings", plain.to_dict("records")
    yield "columns", {str(name): plain[name].tolist() for name in plain.columns}
    if all(isinstance(d, np.dtype) and d.kind in "fiub" for d in frame.dtypes):
        yield "float32 array", frame.to_numpy(np.float32)
        yield "float64 array", frame.to_numpy(np.float64)
    # LightGBM prints what it thinks of others to the terminal
    if "pyarrow" in sys.modules and not any(map(is_category, frame.dtypes)):
        with suppress(Exception):  # of types that Arrow does not know
            table = sys.modules["pyarrow"].Table
            # the index of sampled rows would be one column more
            yield "pyarrow table", table.from_pandas(frame, preserve_index=False)
