"""LIR scalars and the NumPy dtypes that hold them."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.ir.lir.nodes import Scalar

_DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
_SCALARS = {dtype: Scalar(name) for name, dtype in _DTYPES.items()}  # type: ignore[arg-type]


def dtype_of(scalar: Scalar) -> np.dtype[Any]:
    """Return the dtype of a buffer's elements."""
    return _DTYPES[scalar.name]


def scalar_of(dtype: np.dtype[Any]) -> Scalar:
    """Return the LIR scalar of a dtype."""
    return _SCALARS[np.dtype(dtype)]
