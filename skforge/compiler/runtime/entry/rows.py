"""LLVM text of a compiled entry's arithmetic on whole rows.

It is straight-line code with the same operations that
:mod:`skforge.compiler.outputs.onnx` and :mod:`~skforge.compiler.outputs.sklearn`
apply to arrays.
"""

from __future__ import annotations

import numpy as np

from skforge.compiler.outputs.steps import RowSteps

LLVM_TYPES = {"float32": "float", "float64": "double", "int64": "i64"}

_LOWEST = float(np.finfo(np.float32).min)


def literal(value: float, dtype: str) -> str:
    """Return a float constant; LLVM writes it as the bits of a double."""
    exact = float(np.dtype(dtype).type(value))
    return f"0x{int(np.float64(exact).view(np.uint64)):016X}"


def row_text(steps: RowSteps, dtype: str, scores: list[str]) -> tuple[str, list[str]]:
    """Return the text that computes a row, and the name of each result.

    ``scores`` names the sums, which are of ``dtype``; results are of ``steps.dtype``.
    """
    row = _Row(steps, dtype)
    match steps.kind:
        case "pair":
            results = [row.pair(scores)]
        case "above_bound":
            results = [row.above_bound(scores)]
        case "first_greatest":
            results = [row.first_greatest(scores)]
        case "onnx":
            results = row.onnx(scores)
    return "\n".join(row.lines), results


class Lines:
    """Straight-line text; each method adds a line and returns its value's name."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, text: str) -> str:
        """Add a line and return the name of its value."""
        name = f"%row.{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def op(self, name: str, a: str, b: str, type_: str = "float") -> str:
        """Write an instruction with two operands."""
        return self.add(f"{name} {type_} {a}, {b}")

    def neg(self, a: str, type_: str = "float") -> str:
        """Write a negation."""
        return self.add(f"fneg {type_} {a}")

    def choose(self, test: str, a: str, b: str, type_: str = "float") -> str:
        """Write a select: the first value if the test is true, else the second."""
        return self.add(f"select i1 {test}, {type_} {a}, {type_} {b}")

    def call(self, function: str, a: str, type_: str = "float") -> str:
        """Write a call of a function of one number."""
        return self.add(f"call {type_} @{function}({type_} {a})")

    def cast(self, a: str, from_: str, to: str) -> str:
        """Write a conversion to another precision."""
        if from_ == to:
            return a
        return self.add(
            f"{'fpext' if to == 'double' else 'fptrunc'} {from_} {a} to {to}"
        )


class _Row(Lines):
    """The values of one row."""

    def __init__(self, steps: RowSteps, dtype: str) -> None:
        super().__init__()
        self.steps, self.spec, self.dtype = steps, steps.outputs, dtype
        self.type = LLVM_TYPES[dtype]

    # ------------------------------------------------------------ scikit-learn

    def pair(self, scores: list[str]) -> str:
        """Return 1 if the second of AdaBoost's two sums is greater."""
        p = literal(self.spec.parameter, self.dtype)
        first, second = (self.op("fdiv", x, p, self.type) for x in scores)
        opposite = self.neg(first, self.type)
        difference = self.op("fadd", opposite, second, self.type)
        return self._whole(self.op("fcmp ogt", difference, "0.0", self.type))

    def _whole(self, test: str) -> str:
        return self.add(f"zext i1 {test} to i64")

    # ------------------------------------------------------------ ONNX

    def based(self, scores: list[str]) -> list[str]:
        """Add base values; a score that no leaf gives is 0."""
        return [
            "0.0"
            if np.isnan(offset)
            else self.op("fadd", score, literal(offset, self.dtype), self.type)
            for score, offset in zip(scores, self.spec.offsets, strict=True)
        ]

    def above_bound(self, scores: list[str]) -> str:
        """Return the index of the predicted class of two."""
        deciding = self.based(scores)[0 if np.isnan(self.spec.offsets[-1]) else -1]
        bound = literal(self.spec.parameter, self.dtype)
        return self._whole(self.op("fcmp ogt", deciding, bound, self.type))

    def first_greatest(self, scores: list[str]) -> str:
        """Return the index of the predicted class of several."""
        based, known = self.based(scores), ~np.isnan(self.spec.offsets)
        first, *others = (int(k) for k in np.flatnonzero(known))
        place, best = str(first), based[first]
        for k in others:
            better = self.op("fcmp ogt", based[k], best, self.type)
            best = self.choose(better, based[k], best, self.type)
            place = self.choose(better, str(k), place, "i64")
        return self.add(f"add i64 {place}, 0")

    def onnx(self, scores: list[str]) -> list[str]:
        """Return all scores after the post transform."""
        values, type_ = self.based(scores), self.type
        match self.spec.layout:
            case "one":
                values, type_ = self._both_of_one(values[0])
            case "mirrored":
                opposites = [self.neg(x, type_) for x in values]
                values, type_ = self._post([*opposites, *values])
            case "columns" | "target":
                values, type_ = self._post(values)
        to = LLVM_TYPES[self.steps.dtype]
        return [self.cast(value, type_, to) for value in values]

    def _post(self, values: list[str]) -> tuple[list[str], str]:
        match self.spec.post:
            case "none":
                return values, self.type
            case "logistic":
                return [self._logistic(x) for x in self._narrow(values)], "float"
            case "softmax":
                return self._softmax(values), "float"
            case "softmax_zero":
                return self._softmax_zero(values), self.type
            case "probit":
                raise AssertionError("entries do not compute probit")

    def _both_of_one(self, score: str) -> tuple[list[str], str]:
        if self.spec.post == "logistic":
            narrow = self.cast(score, self.type, "float")
            opposite = self.neg(narrow)
            return [self._logistic(opposite), self._logistic(narrow)], "float"
        if self.spec.parameter > 0:
            return [self.op("fsub", "1.0", score, self.type), score], self.type
        return [self.neg(score, self.type), score], self.type

    def _narrow(self, scores: list[str]) -> list[str]:
        return [self.cast(score, self.type, "float") for score in scores]

    def _logistic(self, x: str) -> str:
        size = self.call("llvm.fabs.f32", x)
        power = self.call("skf_expf", self.neg(size))
        positive = self.op("fdiv", "1.0", self.op("fadd", "1.0", power))
        other = self.op("fsub", "1.0", positive)
        return self.choose(self.op("fcmp olt", x, "0.0"), other, positive)

    def _powers(self, values: list[str]) -> tuple[list[str], str]:
        """Return exponentials of the distances from the greatest value, and it."""
        largest = literal(_LOWEST, "float32")
        for x in values:
            largest = self.choose(self.op("fcmp ogt", x, largest), x, largest)
        powers = [self.call("skf_expf", self.op("fsub", x, largest)) for x in values]
        return powers, largest

    def _total(self, values: list[str]) -> str:
        total = "0.0"
        for value in values:
            total = self.op("fadd", total, value)
        return total

    def _softmax(self, scores: list[str]) -> list[str]:
        powers, _ = self._powers(self._narrow(scores))
        total = self._total(powers)
        return [self.op("fdiv", power, total) for power in powers]

    def _softmax_zero(self, scores: list[str]) -> list[str]:
        t, values = self.type, self._narrow(scores)
        powers, largest = self._powers(values)
        tiny = float(np.float32(1e-7))
        counts = []
        for x in values:
            above = self.op("fcmp ogt", x, literal(tiny, "float32"))
            below = self.op("fcmp olt", x, literal(-tiny, "float32"))
            counts.append(self.op("or", above, below, "i1"))
        counted = [
            self.choose(c, p, "0.0") for c, p in zip(counts, powers, strict=True)
        ]
        total = self.cast(self._total(counted), "float", t)
        least = self.call("skf_expf", self.neg(largest))
        least = self.cast(least, "float", t)
        results = []
        for score, count, power in zip(scores, counts, powers, strict=True):
            rest = self.op("fmul", score, least, t)
            value = self.choose(count, self.cast(power, "float", t), rest, t)
            results.append(self.op("fdiv", value, total, t))
        return results
