"""The caller's own array for an answer: ``out``."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidInputError, with_article


def check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise InvalidInputError(
            f"out must be a NumPy array. Got {type(out).__name__} instead."
        )
    if out.shape != shape or out.dtype != dtype:
        raise InvalidInputError(
            f"out must have shape {shape} and dtype {dtype}, like the result. Got "
            f"shape {out.shape} and dtype {out.dtype} instead."
        )
    if not out.flags.writeable:
        raise InvalidInputError("out is read-only; pass an array that can be written.")


def into(out: Any, answer: Any) -> Array:
    """Copy a whole answer to ``out``, or raise InvalidInputError and write nothing."""
    if not isinstance(answer, np.ndarray):
        raise InvalidInputError(
            "out works only for results that are one NumPy array, but this result is "
            f"{with_article(type(answer).__name__)}; call without out."
        )
    check_out(out, answer.shape, answer.dtype)
    out[...] = answer
    return out
