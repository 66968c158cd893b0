"""Says why rows are left to the model itself, and which conversion mends that."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from skforge.exceptions import with_article
from skforge.prediction.predictor import Predictor
from skforge.prediction.verification import sampled, take_rows
from skforge.sources.wrappers.members import Members

Mends = Callable[[Any], bool]

#: The method by which a column of each library becomes float64, and its argument.
_CASTS: dict[str, tuple[str, Any]] = {
    "pandas": ("astype", "float64"),
    "polars": ("cast", float),
    "pyarrow": ("cast", "float64"),
}
#: Columns that are named, and rows that are tried one by one.
_NAMED, _TRIED = 3, 16


def who_answers(state: Mapping[str, Any]) -> str:
    """Return who answers rows like those of ``fit``; "" for a loaded object."""
    said, split = state.get("_fallback", ""), state.get("_split")
    if said or "_fallback" not in state:
        return str(said)
    if isinstance(split, Members):
        return "Rows are answered by the model's own code, with compiled members."
    first = (split and split.start) or 0
    after = f" after {first} step{'s'[: first > 1]} in their library" if first else ""
    return f"Rows like those given to fit are answered by compiled code{after}."


def why_fallback(predictor: Predictor, X: Any) -> str:
    """Return why the model itself answers rows like ``X``, and the mend.

    Return "" if compiled code answers. ``predictor`` has counted the calls with which
    ``fit`` compared its answers to ``X``.
    """
    counts = predictor.counters.read()
    compiled = sum(counts[route]["calls"] for route in ("entry", "kernel"))
    if compiled or not _num_samples(X):
        return ""
    X, forms = take_rows(X, sampled(X)), dict(predictor.variants)

    def answer(rows: Any) -> tuple[Any, int]:
        """Return predictions and the calls of the model; None after an error."""
        predictor.counters.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                answers = predictor.answer("predict", rows)
            except Exception:  # noqa: BLE001 - of any library
                return None, 0
        return answers, predictor.counters.read()["library"]["calls"]

    def mends(rows: Any) -> bool:
        answers, calls = answer(rows)
        return answers is not None and not calls and np.array_equal(answers, expected)

    expected, calls = answer(X)
    if not calls:
        return ""
    mend = _of_columns(X, mends) or _of_all(X, mends)
    if not mend:
        mend = "; no conversion to float64 mends that."
        n = min(_TRIED, _num_samples(X))
        single = [answer(take_rows(X, np.array([i]))) for i in range(n)]
        alone = sum(answers is not None and not calls for answers, calls in single)
        if alone:
            mend += f" By themselves, {alone} of {n} rows are answered by kernels."
    predictor.variants = forms  # without those of the trials
    model = type(predictor.source.model).__name__
    start = f"Rows like those given to fit are answered by the {model} itself"
    return f"{start}, at its speed{mend}"


def _of_columns(X: Any, mends: Mends) -> str:
    """Return the fewest columns that mend a frame as float64, and how; or ""."""
    library = type(X).__module__.partition(".")[0]
    if library not in _CASTS or not hasattr(X, "columns"):
        return ""
    (method, to), pandas = _CASTS[library], library == "pandas"
    names = X.schema.names if library == "pyarrow" else [*X.columns]
    columns = [X.iloc[:, i] if pandas else X[name] for i, name in enumerate(names)]
    casts: dict[int, Any] = {}
    places: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        dtype = str(column.type if library == "pyarrow" else column.dtype)
        if dtype == "object":
            dtype = f"object of {type(column.iloc[0]).__name__}"
        if dtype.lower() not in ("float64", "double"):
            try:
                casts[place] = getattr(column, method)(to)
            except Exception:  # noqa: BLE001 - texts, of any library
                continue
            places.setdefault(dtype, []).append(place)

    def mended(dtypes: list[str]) -> bool:
        chosen = {place for dtype in dtypes for place in places[dtype]}
        mixed = [
            casts[i] if i in chosen else column for i, column in enumerate(columns)
        ]
        if pandas:
            return mends(type(X)(dict(enumerate(mixed))).set_axis(names, axis=1))
        arguments = (mixed,) if library == "polars" else (mixed, names)
        return mends(getattr(type(X), "from_arrays", type(X))(*arguments))

    blamed = [*places]
    if not blamed or not mended(blamed):
        return ""
    for dtype in places:
        rest = [other for other in blamed if other != dtype]
        blamed = rest if rest and mended(rest) else blamed
    told = [f"{names[i]!r} is {dtype}" for dtype in blamed for i in places[dtype]]
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    what, each = ("columns", "each as in") if told[1:] else ("column", "it with")
    cast = f"{method}({getattr(to, '__name__', repr(to))})"
    how = f"Convert {each} X[{names[places[blamed[0]][0]]!r}].{cast}."
    return f": {what} {', '.join(told[:_NAMED])}{more}. {how}"


def _of_all(X: Any, mends: Mends) -> str:
    """Return the array that mends rows, and how to make it; or ""."""
    for call, method in ("X.toarray()", "toarray"), ("numpy.asarray(X, 'float64')", ""):
        try:
            rows = getattr(X, method)() if method else np.asarray(X, np.float64)
        except (AttributeError, TypeError, ValueError):
            continue
        if mends(rows):
            array = isinstance(X, np.ndarray)
            kind = "an array" if array else with_article(type(X).__name__)
            of = f" of {X.dtype}" if hasattr(X, "dtype") else ""
            return f": X is {kind}{of}. Convert it with {call}."
    return ""
