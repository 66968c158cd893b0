"""Functions of a row's scores as code: operators of terms write instructions.

They are those of :mod:`skforge.outputs.functions`, written once for arrays and
for terms.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F32, Scalar, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.outputs.library import LOWEST


def called(name: str, x: Value) -> Value:
    """Call a function of the C library in the precision of its argument."""
    assert isinstance(x.type, Scalar)
    return b.call(f"{name}f" if x.type == F32 else name, x, gives=x.type)


def _each(
    function: Callable[..., Value], *operands: Any, to: str | None = None
) -> RowTerms:
    dtype = [x.dtype for x in operands if isinstance(x, RowTerms)][-1]
    columns = [_constant(x, dtype).values for x in operands]
    results = [
        function(*(c[k if len(c) > 1 else 0] for c in columns))
        for k in range(max(map(len, columns)))
    ]
    return RowTerms(tuple(results), to or dtype)


def _constant(value: Any, dtype: str) -> RowTerms:
    if isinstance(value, RowTerms):
        return value
    kind = np.dtype(dtype)
    return RowTerms((b.const(kind.type(value).item(), scalar_of(kind)),), dtype)


def _operator(
    function: Callable[..., Any], *, flipped: bool = False, to: str | None = None
) -> Callable[[RowTerms, Any], RowTerms]:
    def apply(self: RowTerms, other: Any) -> RowTerms:
        pair = (other, self) if flipped else (self, other)
        return _each(function, *pair, to=to)

    return apply


@dataclass(frozen=True, slots=True)
class RowTerms:
    """One row's values, one per column."""

    values: tuple[Value, ...]
    dtype: str

    @property
    def shape(self) -> tuple[int, int]:
        return 1, len(self.values)

    def __getitem__(self, place: tuple[slice, slice]) -> RowTerms:
        return RowTerms(self.values[place[1]], self.dtype)

    def astype(self, dtype: str) -> RowTerms:
        if dtype == self.dtype:
            return self
        if self.dtype == "bool" and dtype != "int64":
            return TERMS.where(self, _constant(1.0, dtype), 0.0)
        element = scalar_of(np.dtype(dtype))
        return _each(lambda x: x.to(element), self, to=dtype)

    def __neg__(self) -> RowTerms:
        return _each(operator.neg, self)

    def __abs__(self) -> RowTerms:
        return _each(b.magnitude, self)

    __add__, __radd__ = _operator(operator.add), _operator(operator.add, flipped=True)
    __sub__, __rsub__ = _operator(operator.sub), _operator(operator.sub, flipped=True)
    __mul__, __rmul__ = _operator(operator.mul), _operator(operator.mul, flipped=True)
    __truediv__ = _operator(operator.truediv)
    __rtruediv__ = _operator(operator.truediv, flipped=True)
    __gt__ = _operator(operator.gt, to="bool")
    __lt__ = _operator(operator.lt, to="bool")
    __or__ = _operator(operator.or_)


class TermLibrary:
    """The operations on terms that are not Python's, as ``ArrayLibrary`` has them."""

    def exp(self, x: RowTerms) -> RowTerms:
        return _each(lambda a: called("exp", a), x)

    def log1p(self, x: RowTerms) -> RowTerms:
        return _each(lambda a: called("log1p", a), x)

    def each_column(
        self, function: Callable[[RowTerms], RowTerms], x: RowTerms
    ) -> RowTerms:
        """Return a function of each column, one after another: few values live."""
        results = [function(x[:, k : k + 1]) for k in range(len(x.values))]
        return RowTerms(tuple(r.values[0] for r in results), results[0].dtype)

    def where(self, test: RowTerms, x: Any, y: Any) -> RowTerms:
        dtype = next(z.dtype for z in (x, y) if isinstance(z, RowTerms))
        return _each(b.select, test, _constant(x, dtype), _constant(y, dtype))

    def least(self, x: RowTerms, limit: float) -> RowTerms:
        def above(a: Value, most: Value) -> Value:
            return b.compare("lt", a, most, unordered=True)

        return self.where(_each(above, x, limit, to="bool"), x, limit)

    def join(self, x: RowTerms, y: RowTerms) -> RowTerms:
        return RowTerms(x.values + y.values, x.dtype)

    def index(self, k: int, x: RowTerms) -> RowTerms:
        return _constant(k, "int64")

    def add_offsets(self, x: RowTerms, offsets: tuple[float, ...]) -> RowTerms:
        values: list[Value] = []
        for k, offset in enumerate(offsets):
            known = not np.isnan(offset)
            column = x[:, k : k + 1] + offset if known else _constant(0.0, x.dtype)
            values += column.values
        return RowTerms(tuple(values), x.dtype)

    def greatest(self, x: RowTerms) -> RowTerms:
        """Return the greatest float32, at least -FLT_MAX, without NaN."""
        largest = _constant(float(LOWEST), x.dtype)
        for k in range(len(x.values)):
            column = x[:, k : k + 1]
            largest = self.where(column > largest, column, largest)
        return largest


TERMS = TermLibrary()
