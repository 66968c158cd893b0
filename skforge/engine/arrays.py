"""Users' arrays: rows in a GPU's memory, and ``out``, their own array for an answer."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, with_article

#: DLPack's device numbers: CUDA, CUDA managed, ROCm; and those of host memory.
_DLPACK_DEVICES = (2, 13, 10)

#: The id of the process that has used a GPU, if any has.
USED_BY: list[int] = []


def is_device_array(X: Any) -> bool:
    if isinstance(X, np.ndarray):
        return False
    kind = type(X)  # a frame would look for a column of that name, in 8 µs
    if hasattr(kind, "__dlpack_device__"):
        return int(X.__dlpack_device__()[0]) in _DLPACK_DEVICES
    return hasattr(kind, "__cuda_array_interface__")


def is_forked() -> bool:
    """Tell whether this process was forked from one that had used a GPU."""
    return bool(USED_BY) and USED_BY[0] != os.getpid()


def near_values() -> int:
    """Return how many float32 of rows that are made stay in L2 until a kernel reads.

    The objects that they are made of, and the lines of bits, take the other half.
    """
    return Target.host().l2_bytes // 2 // 4


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
