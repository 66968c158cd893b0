"""Compares two calls: answers bit by bit, errors and warnings by their texts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars

from tests.random_rows import is_mapped

Call = tuple[Any, str, list[str]]

#: An error of polars' own that is no Exception.
_PANIC = (polars.exceptions.PanicException,)
_LEFT_OUT = re.compile("Empty dataset at worker")
_ARITHMETIC = re.compile(" encountered in ")
#: Names that XGBoost and scikit-learn list in the order of a set, by process another.
_SETS = re.compile(
    r"^(?:expected|training data did not have) .*|columns are missing: .*", re.MULTILINE
)


def called(call: Callable[[Any], Any], rows: Any) -> Call:
    """Return the answer, the error and the warnings of a call.

    The warnings of XGBoost's log about no rows are left out.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer, error = call(rows), ""
        except (Exception, *_PANIC) as raised:  # noqa: BLE001 - so must the other
            text = str(raised).partition("Stack trace")[0]
            answer, error = None, f"{type(raised).__name__}: {text}"
    # some libraries name the line of their code, and where in memory an object lies
    error = error.replace("np.float64(nan)", "nan")
    error = re.sub(r"\[\d+:\d+:\d+\] ?|0x[0-9a-fA-F]+|:\d+:", "", error)
    error = _SETS.sub(
        lambda found: str(sorted(re.findall("[^ ,{}]+", found[0]))), error
    )
    said = [f"{w.category.__name__}: {w.message}" for w in caught]
    return answer, error, [text for text in said if not _LEFT_OUT.search(text)]


def difference(ours: Callable[[Any], Any], theirs: Any, rows: Any) -> str:
    """Return how answers, errors or warnings of two calls differ, or ""."""
    return apart(called(ours, rows), called(theirs, rows), rows)


def apart(
    ours: Call, theirs: Call, rows: Any, also: Sequence[Any] | None = None
) -> str:
    """Return how two calls differ, or ""; a row may also be that of ``also``."""
    answer, error, said = ours
    expected, own_error, own_said = theirs
    if "read-only" in own_error:
        return ""  # the library would write to the caller's rows
    if own_error.startswith("CatBoostError: Invalid data type"):
        return ""  # tuples and pyarrow's tables are answered here
    deep = "RecursionError: maximum recursion depth exceeded"
    alike = error.startswith(deep) and own_error.startswith(deep)
    if "must be two-dimensional" in error:  # XGBoost's own is a stack trace
        alike |= own_error.startswith("XGBoostError")
    if is_mapped(rows) and error:  # what is missing is NaN in one frame, None in one
        alike |= error.partition(":")[0] == own_error.partition(":")[0]
    if error != own_error and not alike:
        return f"error {error[:300]!r}, not {own_error[:300]!r}"
    if error:  # the parts of a step that refuses may have warned in another order
        return ""
    # A wrapper's members may each say the same. NumPy may warn of the arithmetic of a
    # library that is not done here, but never the other way round.
    quiet = {text for text in {*own_said} - {*said} if _ARITHMETIC.search(text)}
    if {*said} != {*own_said} - quiet:
        return f"warnings {said}, not {own_said}"
    if isinstance(expected, list) or isinstance(answer, list):
        if not isinstance(answer, list) or len(answer) != len(expected):
            return f"{type(answer)}, not a list of {len(expected)}"
        others = also or [None] * len(answer)
        found = (
            _unequal(*arrays, rows)
            for arrays in zip(answer, expected, others, strict=True)
        )
        return next(filter(None, found), "")
    return _unequal(answer, expected, also, rows)


def _unequal(answer: Any, expected: Any, also: Any, rows: Any) -> str:
    if isinstance(expected, list):  # of several outputs, each with its classes
        return apart((answer, "", []), (expected, "", []), rows, also)
    if isinstance(expected, str):  # the label of one row, which CatBoost takes alone
        same = type(answer) is str and answer == expected
        return "" if same else f"{answer!r}, not {expected!r}"
    if hasattr(expected, "tocsr"):
        pairs = zip(_parts(answer), _parts(expected), strict=True)
        return next(filter(None, (_unequal(*pair, None, None) for pair in pairs)), "")
    if type(answer) is not type(expected) or answer.dtype != expected.dtype:
        kind = getattr(answer, "dtype", "")
        return f"{type(answer)} {kind}, not {type(expected)} {expected.dtype}"
    if answer.shape != expected.shape:
        return f"shape {answer.shape}, not {expected.shape}"
    if why := another_order(answer, expected):
        return why
    wrong = differing(answer, expected)
    if also is not None and len(wrong) and also.shape == answer.shape:
        wrong = np.intersect1d(wrong, differing(answer, also.astype(answer.dtype)))
    if not len(wrong):
        return ""
    at = int(wrong[0])
    row = _row(rows, at)
    return f"row {at} of {len(wrong)} wrong, {row}: {answer[at]}, not {expected[at]}"


def _parts(X: Any) -> tuple[Any, ...]:
    """Return the parts of sparse rows as arrays; others have but one."""
    if not hasattr(X, "tocsr"):
        return X, None, None
    return np.array(X.shape), X.indices, X.data


def another_order(found: Any, expected: Any) -> str:
    """Return how arrays of one shape differ in strides, by which sums of rows differ.

    Those of one row are compared, too; those of one column, or of no row, mean nothing.
    """
    several = found.ndim > 1 and found.size and min(found.shape[1:]) > 1
    if not several or found.strides == expected.strides:
        return ""
    return f"strides {found.strides}, not {expected.strides}"


def differing(found: Any, expected: Any) -> Any:
    """Return the rows in which a bit differs."""
    if expected.dtype.kind == "f" and expected.itemsize <= 8:
        # the sign of zero, and which NaN it is
        bits = f"i{expected.itemsize}"
        found, expected = found.view(bits), expected.view(bits)
    different = found != expected
    return np.flatnonzero(different.any(axis=tuple(range(1, different.ndim))))


def _row(rows: Any, at: int) -> Any:
    try:
        return rows.iloc[at].to_dict() if hasattr(rows, "iloc") else rows[at]
    except (TypeError, IndexError, KeyError):  # tables of other libraries
        return repr(rows)[:300]
