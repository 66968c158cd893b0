"""Predictions for rows in GPU memory; the results stay there.

Everything is queued on the current stream; nothing waits for it. Values are not
checked, because checking would block the stream: values that the source refuses
(infinite, or missing where not accepted) are walked like any other number.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge._typing import Array, Int32s
from skforge.compiler.backend import OnDevice
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, TargetError, UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.leaves import not_sums
from skforge.forest.mistakes import check_shape
from skforge.forest.rows import read_columns
from skforge.gpu.runtime import cupy
from skforge.gpu.runtime.cupy import CupyDevice
from skforge.gpu.runtime.device import MOST_ELEMENTS
from skforge.outputs.library import ArrayLibrary, library_of

if TYPE_CHECKING:
    from skforge.compiler.ir.mir.nodes import Element
    from skforge.gpu.runtime.kernel import GpuKernel


class CupyRows:
    """Rows that CuPy reads: what :mod:`skforge.compiler.backend` asks about them."""

    def raw(self, module: Any, X: Any) -> Array:
        forest: Forest = module.forest
        width, dtype = forest.n_outputs, forest.accumulator_dtype
        device, rows = cupy.as_cupy(X, _kind(module.target))
        with device.current():  # once a call: each takes as long as a launch
            raw = _filled(module, "accumulator", device, rows, width, dtype)
            if forest.scaling or forest.divisor == 1 or not raw.size:
                forest.finish(raw)
            else:
                device.divide(raw, forest.divisor)
            return raw[:, 0] if forest.n_outputs == 1 else raw

    def leaves(self, module: Any, X: Any) -> Int32s:
        width, dtype = module.forest.n_trees, np.dtype(np.int32)
        device, rows = cupy.as_cupy(X, _kind(module.target))
        with device.current():
            return _filled(module, "leaf_number", device, rows, width, dtype)

    def answered(
        self, target: Target, of_scores: Callable[[Any, ArrayLibrary], Any], raw: Any
    ) -> Any:
        device, raw = cupy.as_cupy(raw, _kind(target))
        with device.current():
            return of_scores(raw, library_of(device.xp))

    def rows_on_host(self, X: Any, indices: Array) -> Array:
        return cupy.rows_on_host(X, indices)

    def target_here(self) -> Target | None:
        device = cupy.find_device()
        return None if device is None else device.target()


ON_DEVICE: OnDevice = CupyRows()

#: Numbers and booleans that are cast, by the characters of their dtypes.
_REAL = "fde?bBhHiIlLqQ"


def _kind(target: Target) -> Any:
    if target.kind not in ("cuda", "hip"):
        raise TargetError(
            f"rows are on a GPU, but the forest is compiled for {target.kind!r}; "
            "compile it for 'cuda' or 'hip', or pass rows as a NumPy array."
        )
    return target.kind


def _filled(
    module: Any,
    element: Element,
    device: CupyDevice,
    rows: Any,
    width: int,
    dtype: np.dtype[Any],
) -> Array:
    rows = _read(module.forest, device, rows)
    result: Array = _empty(device, (len(rows), width), dtype)
    if result.size:
        kernel: GpuKernel = module._kernel(len(rows), element)
        kernel.on_device(device, rows, result)
    return result


def _empty(device: CupyDevice, shape: tuple[int, int], dtype: np.dtype[Any]) -> Any:
    try:
        return device.xp.empty(shape, dtype)
    except device.memory_errors:
        device.trim()
    try:
        return device.xp.empty(shape, dtype)
    except device.memory_errors as error:
        raise TargetError(
            f"{device.name} has no memory for a result of {shape[0]} × {shape[1]} "
            "values; pass fewer rows at a time, or pass them as a NumPy array, which "
            "the GPU processes in parts."
        ) from error


def _read(forest: Forest, device: CupyDevice, rows: Any) -> Any:
    if forest.aggregate != "sum":
        raise UnsupportedModelError(
            f"{not_sums(forest)} is computed on the CPU: pass the rows as a NumPy "
            "array."
        )
    rows = read_columns(forest, rows)
    check_shape(rows.shape, forest.n_features)
    kind = rows.dtype.char
    if kind not in _REAL:
        raise InvalidInputError(
            f"rows have dtype {rows.dtype}; on a GPU they must be real numbers or "
            "booleans."
        )
    dtype = forest.input_dtype
    if kind not in "fd":  # small enough, or whole: nothing to flush to zero
        # LightGBM accepts two dtypes and casts all others to float32.
        rows = rows.astype(np.float32 if forest.source == "lightgbm" else dtype)
    width = rows.itemsize
    across, along = rows.strides
    plain = along == width and 0 <= across <= width * MOST_ELEMENTS
    plain = plain and across % width == 0
    if rows.size and not (plain and rows.data.ptr % width == 0):
        rows = device.xp.ascontiguousarray(rows)
    if rows.size and (rows.dtype != dtype or not isnan(forest.missing_value)):
        cast = _empty(device, rows.shape, dtype)
        device.cast(rows, cast, forest.missing_value)
        rows = cast
    return rows
