"""Where compiled code finds the parts of Python's and NumPy's objects."""

from __future__ import annotations

import numpy as np

#: Most model slots of a kernel that an entry can call.
MAX_SLOTS = 60

#: Offsets in PyObject, PyArrayObject and PyArray_Descr on 64-bit machines.
OB_TYPE, ARRAY_DATA, ARRAY_NDIM, ARRAY_SHAPE, ARRAY_STRIDES = 8, 16, 24, 32, 40
ARRAY_DTYPE, DTYPE_KIND = 56, 24
#: Kind, character and byte order of the row dtypes, as three bytes of a number.
DTYPE_CODES = {
    dtype: int.from_bytes(f"f{np.dtype(dtype).char}=".encode(), "little")
    for dtype in ("float32", "float64")
}
