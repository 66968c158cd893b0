"""The rows that binning reads, and the type that declares its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from skforge.compiler.ir.lir.nodes import Buffer, Value

AnyArray = NDArray[Any]


#: Declares a buffer of model data (once for each name) and returns it.
Model: TypeAlias = Callable[[str, AnyArray], Buffer]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of one block: where they start, and how many the batch has."""

    rows: Buffer
    n_rows: Value
    stride: Value
    first: Value
    n_features: int


@dataclass(frozen=True, slots=True)
class RowAt:
    """One row, given by the element of ``rows`` where it starts."""

    rows: Buffer
    start: Value
