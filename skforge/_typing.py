"""Types of arrays and files that many modules name."""

from __future__ import annotations

from io import BufferedIOBase, RawIOBase
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
Bools: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.floating[Any]]
Float64s: TypeAlias = NDArray[np.float64]
SignedInts: TypeAlias = NDArray[np.signedinteger[Any]]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Uint32s: TypeAlias = NDArray[np.uint32]
Uint64s: TypeAlias = NDArray[np.uint64]

BinaryFile: TypeAlias = BinaryIO | BufferedIOBase | RawIOBase
