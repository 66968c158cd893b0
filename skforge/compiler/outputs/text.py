"""Generated code of functions of scores: operators of terms write instructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge.compiler.outputs.library import LOWEST


def c_number(value: float, dtype: str) -> str:
    exact = np.dtype(dtype).type(value)
    if np.isnan(exact):
        return "NAN"
    if np.isinf(exact):
        return "INFINITY" if exact > 0 else "-INFINITY"
    return float(exact).hex() + ("f" if dtype == "float32" else "")


#: The types of C, by dtype.
C_TYPES = {
    **{"float32": "float", "float64": "double", "bool": "int"},
    **{"int32": "int32_t", "int64": "int64_t"},
}
_PAIRS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "gt": ">", "lt": "<"}
#: Instructions on ``a``, ``b`` and ``c``, operators by their names in Python; ``f`` is
#: the suffix of float32 functions.
_C = {
    **{name: f"{{a}} {symbol} {{b}}" for name, symbol in _PAIRS.items()},
    "neg": "-{a}",
    "not_ge": "!({a} >= {b})",
    "or_": "{a} || {b}",
    "where": "{a} ? {b} : {c}",
    "exp": "exp{f}({a})",
    "log1p": "log1p{f}({a})",
    "abs": "fabs{f}({a})",
    "float64": "(double){a}",
    "float32": "(float){a}",
    "int64": "{a}",
}


def _operator(
    name: str, *, flipped: bool = False, to: str | None = None
) -> Callable[[RowTerms, Any], RowTerms]:
    def apply(self: RowTerms, other: Any) -> RowTerms:
        pair = (other, self) if flipped else (self, other)
        return self.code.each(name, *pair, to=to)

    return apply


@dataclass(frozen=True, slots=True)
class RowTerms:
    """One row's values, one per column, in the words of their code."""

    code: Code
    values: tuple[Any, ...]
    dtype: str

    @property
    def shape(self) -> tuple[int, int]:
        return 1, len(self.values)

    def __getitem__(self, place: tuple[slice, slice]) -> RowTerms:
        return RowTerms(self.code, self.values[place[1]], self.dtype)

    def astype(self, dtype: str) -> RowTerms:
        if dtype == self.dtype:
            return self
        if self.dtype == "bool" and dtype != "int64":
            one, zero = (self.code.constant(n, dtype) for n in (1.0, 0.0))
            return self.code.where(self, one, zero)
        return self.code.each(dtype, self, to=dtype)

    def __neg__(self) -> RowTerms:
        return self.code.each("neg", self)

    def __abs__(self) -> RowTerms:
        return self.code.each("abs", self)

    __add__, __radd__ = _operator("add"), _operator("add", flipped=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", flipped=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", flipped=True)
    __truediv__, __rtruediv__ = _operator("truediv"), _operator("truediv", flipped=True)
    __gt__, __lt__ = _operator("gt", to="bool"), _operator("lt", to="bool")
    __or__ = _operator("or_")


class Code(ABC):
    """Straight-line code."""

    @abstractmethod
    def write(self, name: str, values: tuple[Any, ...], given: str, to: str) -> Any:
        """Write an instruction on values of a dtype; return its value of ``to``."""

    @abstractmethod
    def number(self, value: Any, dtype: str) -> Any: ...

    def each(self, name: str, *operands: Any, to: str | None = None) -> RowTerms:
        dtype = [x.dtype for x in operands if isinstance(x, RowTerms)][-1]
        to = to or dtype
        columns = [self.constant(x, dtype).values for x in operands]
        results = [
            self.write(
                name, tuple(c[k if len(c) > 1 else 0] for c in columns), dtype, to
            )
            for k in range(max(map(len, columns)))
        ]
        return RowTerms(self, tuple(results), to)

    def constant(self, value: Any, dtype: str) -> RowTerms:
        if isinstance(value, RowTerms):
            return value
        return RowTerms(self, (self.number(value, dtype),), dtype)

    def exp(self, x: RowTerms) -> RowTerms:
        return self.each("exp", x)

    def each_column(
        self, function: Callable[[RowTerms], RowTerms], x: RowTerms
    ) -> RowTerms:
        """Return a function of each column, one after another: few values live."""
        results = [function(x[:, k : k + 1]) for k in range(len(x.values))]
        return RowTerms(self, tuple(r.values[0] for r in results), results[0].dtype)

    def log1p(self, x: RowTerms) -> RowTerms:
        return self.each("log1p", x)

    def where(self, test: RowTerms, a: Any, b: Any) -> RowTerms:
        dtype = next(x.dtype for x in (a, b) if isinstance(x, RowTerms))
        return self.each("where", test, *(self.constant(x, dtype) for x in (a, b)))

    def least(self, x: RowTerms, limit: float) -> RowTerms:
        return self.where(self.each("not_ge", x, limit, to="bool"), x, limit)

    def join(self, a: RowTerms, b: RowTerms) -> RowTerms:
        return RowTerms(self, a.values + b.values, a.dtype)

    def index(self, k: int, x: RowTerms) -> RowTerms:
        return self.constant(k, "int64")

    def add_offsets(self, x: RowTerms, offsets: tuple[float, ...]) -> RowTerms:
        values: list[Any] = []
        for k, offset in enumerate(offsets):
            known = not np.isnan(offset)
            column = x[:, k : k + 1] + offset if known else self.constant(0.0, x.dtype)
            values += column.values
        return RowTerms(self, tuple(values), x.dtype)

    def greatest(self, x: RowTerms) -> RowTerms:
        """Return the greatest float32, at least -FLT_MAX, without NaN."""
        largest = self.constant(float(LOWEST), x.dtype)
        for k in range(len(x.values)):
            column = x[:, k : k + 1]
            largest = self.where(column > largest, column, largest)
        return largest


class CCode(Code):
    def __init__(self) -> None:
        self._written: list[tuple[str, str, set[str]]] = []  # name, text, operands

    def lines(self, results: RowTerms) -> list[str]:
        needed, lines = set(results.values), []
        for name, text, operands in reversed(self._written):
            if name in needed:
                lines.append(text)
                needed |= operands
        return lines[::-1]

    def write(self, name: str, values: tuple[Any, ...], given: str, to: str) -> Any:
        letters = dict(zip("abc", values, strict=False))
        code = _C[name].format(**letters, f="f" if given == "float32" else "")
        variable = f"v{len(self._written)}"
        line = f"{C_TYPES[to]} {variable} = {code};"
        self._written.append((variable, line, set(values)))
        return variable

    def number(self, value: Any, dtype: str) -> Any:
        return str(value) if dtype == "int64" else c_number(value, dtype)
