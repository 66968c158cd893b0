"""What the operators before a tree ensemble make of the columns of the rows.

A tensor is an array of ``Column``, without the axis of rows: a matrix of three
columns has shape ``(3,)``. Each cell is a function of one column of the rows that does
not decrease, or does not increase, between the special numbers of its operators, so
that :mod:`skforge.frontends.pipeline.fold` finds the tests of the rows.

Whole numbers and booleans are float64 here, in which those of the ensemble are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.frontends.pipeline.columns import Column

# TensorProto.DataType
FLOAT, INT32, INT64, STRING, BOOL, DOUBLE = 1, 6, 7, 8, 9, 11

#: The dtype in which the numbers of a tensor are held.
DTYPES: dict[int, np.dtype[Any]] = {
    FLOAT: np.dtype(np.float32),
    **dict.fromkeys((INT32, INT64, BOOL, DOUBLE), np.dtype(np.float64)),
    STRING: np.dtype(object),
}


#: A norm of rows, and the columns that it is of.
RowNorm: TypeAlias = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class NormColumn(Column):
    """A column of the rows, divided by a norm before all else."""

    norm: RowNorm = ("", ())


def norm_of(cell: Column) -> RowNorm | None:
    while cell.stage is not None:
        (cell,) = cell.stage.inputs
    return cell.norm if isinstance(cell, NormColumn) else None


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStep:
    """An operator on one column."""

    step: str  # how errors call it
    function: Callable[[Array], Any]  # several outputs are columns
    inputs: tuple[Column]
    special: Array  # values around which outputs change in any order
    closed: bool = False  # whether other values raise an error
    odd: bool = False  # whether infinities are answered apart from numbers beside them
    strict: bool = False  # as of a ColumnStage: what raises errors is not folded

    def transform(self, columns: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            outputs = np.asarray(self.function(columns[0]))
        return outputs if outputs.ndim == 2 else outputs[:, None]

    def checks(self) -> Iterator[tuple[Column, Any, None, bool]]:
        (cell,) = self.inputs
        special = self.special
        if self.odd:  # of finite numbers, some overflow before this step
            most = np.finfo(cell.dtype).max
            special = np.append(special, [most, -most])
        yield cell, special, None, True


class Tensor(NamedTuple):
    cells: Any  # an array of Columns
    type: int  # TensorProto.DataType

    @property
    def width(self) -> int:
        """Columns along the last axis."""
        return int(self.cells.shape[-1]) if self.cells.ndim else 1

    def of(self, cells: Any, type_: int | None = None) -> Tensor:
        return Tensor(cells, self.type if type_ is None else type_)

    def each(
        self,
        step: str,
        functions: Iterable[Callable[[Array], Any]],
        special: Any,
        type_: int,
        n_outputs: int = 0,
        closed: bool = False,
        odd: bool = False,
    ) -> Tensor:
        """Return what a function makes of each column; 0 outputs add no axis."""
        known, outputs = np.asarray(special), []
        for cell, function in zip(self.cells.reshape(-1), functions, strict=False):
            stage: Any = ColumnStep(step, function, (cell,), known, closed, odd)
            rest: dict[str, Any] = {"source": cell.source, "stage": stage}
            outputs += [
                Column(dtype=DTYPES[type_], output=i, **rest)
                for i in range(n_outputs or 1)
            ]
        more = (n_outputs,) if n_outputs else ()
        return Tensor(cells_of(outputs, (*self.cells.shape, *more)), type_)


def cells_of(cells: Iterable[Column], shape: tuple[int, ...]) -> Any:
    array = np.empty(shape, object)
    array.reshape(-1)[:] = [*cells]
    return array
