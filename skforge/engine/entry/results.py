"""The code of a compiled entry after its kernel: sums, a transform, labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import BOOL, F64, I64, Buffer, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.engine.entry.fast_exp import fast_exp, table_text
from skforge.engine.entry.graph_code import GraphCode
from skforge.engine.entry.terms import TERMS, RowTerms, called
from skforge.outputs.functions import FUNCTIONS
from skforge.outputs.graph import runner_of
from skforge.outputs.steps import Steps
from skforge.runtime.libm import on_arm

#: The symbol of a table that CatBoost's exponential reads.
FRACTIONS = "skf_fractions"


class ResultWriter:
    """Writes sums as results; ``labels`` is the symbol of a table of labels, if any."""

    def __init__(
        self, steps: Steps, n_outputs: int, sum_dtype: str, labels: str = "skf_labels"
    ) -> None:
        self.steps, self.n_outputs, self._labels = steps, n_outputs, labels
        self.sum_dtype, self.sum = sum_dtype, scalar_of(np.dtype(sum_dtype))
        self.in_place = steps.in_place
        dtype, self.columns = steps.shape(n_outputs, sum_dtype)
        self.dtype = np.dtype(dtype)
        self.element = scalar_of(self.dtype)
        self._tables: list[str] = []

    def tables(self) -> list[str]:
        """Return the definitions of the tables that the code reads."""
        reads = self.steps.function in ("fast_exp", "fast_softmax", "uncertainty")
        fractions = [table_text(FRACTIONS)] if reads and not on_arm() else []
        return [*fractions, *self._tables]

    def write(self, sums: Buffer, data: Buffer, n: Value) -> Value | None:
        """Write the results; return whether they are to be declined, if they may be.

        NumPy warns of overflows and invalid numbers, as code does not.
        """
        if FUNCTIONS[self.steps.function].code == "graph":
            return self._of_graph(sums, data, n)
        warned = self._transform(sums, n)
        self._results(sums, data, n)
        return warned

    def _results(self, sums: Buffer, data: Buffer, n: Value) -> None:
        if FUNCTIONS[self.steps.function].code == "columns":
            self._of_row(sums, data, n)
            return
        match self.steps.choice:
            case "above":
                self._above(sums, data, n)
            case "both_classes":
                with b.loop(n) as i:
                    data[self._place(i, 0, n)] = 1.0 - sums[i]
                    data[self._place(i, 1, n)] = sums[i]
            case "best":
                self._best(sums, data, n)
            case _ if self.steps.by_columns:
                with b.loop(n) as i, b.loop(self.columns) as j:
                    data[self._place(i, j, n)] = sums[i * self.columns + j]
            case _:
                assert self.in_place

    def _place(self, i: Value, j: Value | int, n: Value) -> Value:
        return n * j + i if self.steps.by_columns else i * self.columns + j

    # ------------------------------------------------------------ sums

    def _transform(self, sums: Buffer, n: Value) -> Value | None:
        function, code = self.steps.function, FUNCTIONS[self.steps.function].code
        elsewhere = function in ("identity", "softmax") or code in ("columns", "own")
        if self.steps.divisors or not elsewhere:
            self._transform_each(sums, n, elsewhere)
        match function:
            case "softmax":
                self._softmax(sums, n, lambda x, j: called("exp", x))
            case "sorted":
                self._sort(sums, n)
            case "fast_softmax":
                last = self.n_outputs & -4
                self._softmax(sums, n, lambda x, j: self._fast_exp(x, j >= last))
            case "fast_exp":
                with b.loop(n) as i:
                    sums[i] = self._fast_exp(sums[i], i >= (n & -4))
            case "uncertainty":
                with b.loop(n) as i:
                    twice = sums[i * 2 + 1] * 2.0
                    sums[i * 2 + 1] = self._fast_exp(twice, i >= (n & -4))
            case "softmax_by_rows" | "softmax_by_columns" | "scipy_softmax":
                return self._numpy_softmax(sums, n, function == "softmax_by_columns")
            case "samme":
                self._votes(sums, n)
                return self._numpy_softmax(sums, n, True)
            case "numpy_exp":
                return self._numpy_exp(sums, n)
            case "path_score":
                self._path_score(sums, n * self.n_outputs)
            case _:
                pass  # of each value, above
        return None

    def _transform_each(self, sums: Buffer, n: Value, divides_alone: bool) -> None:
        """Divide values, and transform them by functions that take them one by one."""
        function = self.steps.function
        width = self.n_outputs if function == "expectiles" else 1
        with b.loop(n if width > 1 else n * self.n_outputs) as i:
            places = [i * width + j for j in range(width)] if width > 1 else [i]
            x = RowTerms(tuple(sums[k] for k in places), self.sum_dtype)
            for divisor in self.steps.divisors:
                x = x / divisor
            if function == "path_score":
                x = -x
            elif not divides_alone:
                x = FUNCTIONS[function].of(x, self.steps.spec, TERMS)
            for k, value in zip(places, x.values, strict=True):
                sums[k] = value

    def _sort(self, sums: Buffer, n: Value) -> None:
        """Sort few values of each row, equal ones as they stand and NaN last."""
        pairs = self.n_outputs - 1
        with b.loop(n) as i:
            row = b.view("row", self.sum, sums, i * self.n_outputs)
            with b.loop(pairs), b.loop(pairs) as j:
                x, y = row[j], row[j + 1]
                above = (x > y) | (b.is_nan(x) & ~b.is_nan(y))
                row[j], row[j + 1] = b.select(above, y, x), b.select(above, x, y)

    def _fast_exp(self, x: Value, last: Value) -> Value:
        return fast_exp(x, last, FRACTIONS)

    def _by_numpy(self, name: str, count: Value, *operands: tuple[Value, int]) -> None:
        """Call NumPy's own loop over operands: their addresses and steps in bytes."""
        counts, size = b.local("counts", I64), len(operands)
        places, steps = (b.local(hint, I64, size) for hint in ("places", "steps"))
        counts[0] = count
        for k, (address, step) in enumerate(operands):
            places[k], steps[k] = address, b.const(step)
        pointers = [b.address(array) for array in (places, counts, steps)]
        b.run(f"skf_{name}", *pointers, b.const(0))

    def _path_score(self, sums: Buffer, count: Value) -> None:
        """Compute powers of 2, in place, for all rows."""
        two, at = b.local("two", F64), b.address(sums)
        two[0] = 2.0
        self._by_numpy("power", count, (b.address(two), 0), (at, 8), (at, 8))
        with b.loop(count) as i:
            sums[i] = -sums[i] - self.steps.cut

    def _numpy_exp(self, sums: Buffer, count: Value) -> Value:
        at, over = b.address(sums), [b.const(False, BOOL)]
        with b.loop(count, carry=over) as i:
            over[0] = over[0] | b.compare("gt", sums[i], 709.0, unordered=True)
        self._by_numpy("exp", count, (at, 8), (at, 8))
        return over[0]

    def _votes(self, sums: Buffer, n: Value) -> None:
        """Write what AdaBoost's softmax is computed of."""
        whole, others = self.steps.spec.parameter, self.n_outputs - 1.0
        with b.loop(n) as i:
            row = b.view("row", self.sum, sums, i * self.n_outputs)
            if self.n_outputs == 2:
                difference = -(row[0] / whole) + row[1] / whole
                row[0], row[1] = -difference / 2.0, difference / 2.0
            else:
                with b.loop(self.n_outputs) as j:
                    row[j] = row[j] / whole / others

    def _numpy_softmax(self, sums: Buffer, n: Value, by_columns: bool) -> Value:
        """Write NumPy's softmax: it adds columns in order, and the values of a row not.

        A row in Fortran order is one in C order, too.
        """
        size, far = self.sum.bytes, [b.const(False, BOOL)]
        most = 1e300 if size == 8 else 1e38
        with b.loop(n, carry=far) as i:
            row = b.view("row", self.sum, sums, i * self.n_outputs)
            greatest = self._greatest(row)
            with b.loop(self.n_outputs, carry=far) as j:
                below = row[j] - greatest
                far[0] = far[0] | b.compare("lt", below, -most, unordered=True)
                row[j] = below
        at, count = b.address(sums), n * self.n_outputs
        self._by_numpy("exp", count, (at, size), (at, size))
        whole = b.local("whole", self.sum)
        with b.loop(n) as i:
            row = b.view("row", self.sum, sums, i * self.n_outputs)
            places = b.address(whole), b.address(row)
            whole[0] = 0.0

            def in_order() -> None:
                with b.loop(self.n_outputs) as j:
                    whole[0] = whole[0] + row[j]

            def by_numpy() -> None:
                ends = (places[0], 0), (places[1], size), (places[0], 0)
                self._by_numpy("add", b.const(self.n_outputs), *ends)

            if by_columns:
                b.if_(n > 1, in_order, by_numpy)
            else:
                by_numpy()
            total = whole[0]
            with b.loop(self.n_outputs) as j:
                row[j] = row[j] / total
        return far[0]

    def _greatest(self, row: Buffer) -> Value:
        greatest = [b.const(-inf, self.sum)]
        with b.loop(self.n_outputs, carry=greatest) as j:
            greatest[0] = b.select(row[j] > greatest[0], row[j], greatest[0])
        return greatest[0]

    def _softmax(
        self, sums: Buffer, n: Value, exp: Callable[[Value, Value], Value]
    ) -> None:
        """Write softmax: exp(x - greatest), the sum in order in float64, a division.

        ``exp`` takes a value and its column.
        """
        with b.loop(n) as i:
            row = b.view("row", self.sum, sums, i * self.n_outputs)
            greatest, whole = self._greatest(row), [b.const(0.0, F64)]
            with b.loop(self.n_outputs, carry=whole) as j:
                power = exp(row[j] - greatest, j)
                row[j] = power
                whole[0] = whole[0] + power.to(F64)
            total = whole[0].to(self.sum)
            with b.loop(self.n_outputs) as j:
                row[j] = row[j] / total

    # ------------------------------------------------------------ results

    def _labelled(self, value: Value) -> Value:
        if not self.steps.labels or self.element != I64:
            return value
        return b.view("labels", I64, b.symbol(self._labels))[value]

    def _above(self, sums: Buffer, data: Buffer, n: Value) -> None:
        unordered = self.steps.comparison.startswith("u")
        compare: Any = self.steps.comparison[1:]

        def write(at: Value, x: Value) -> None:
            flag = b.compare(compare, x, self.steps.cut, unordered)
            data[at] = self._labelled(flag.to(self.element))

        if self.steps.by_columns:
            with b.loop(n) as i, b.loop(self.columns) as j:
                write(self._place(i, j, n), sums[i * self.columns + j])
        else:
            with b.loop(n * self.n_outputs) as i:
                write(i, sums[i])

    def _best(self, sums: Buffer, data: Buffer, n: Value) -> None:
        """Write the index of a row's first greatest value, or of its first NaN."""
        with b.loop(n) as i:
            row = b.view("row", self.sum, sums, i * self.n_outputs)
            best = [b.const(0), row[0]]
            with b.loop(self.n_outputs, carry=best) as j:
                x, (index, value) = row[j], best
                above = b.compare("gt", x, value, unordered=True)
                better = above & value.eq(value)
                best[:] = b.select(better, j, index), b.select(better, x, value)
            data[i] = self._labelled(best[0]).to(self.element)

    def _of_row(self, sums: Buffer, data: Buffer, n: Value) -> None:
        with b.loop(n) as i:
            row = b.view("row", self.sum, sums, i * self.n_outputs)
            scores = tuple(row[j] for j in range(self.n_outputs))
            results = self.steps.of_row(RowTerms(scores, self.sum_dtype), TERMS)
            for j, result in enumerate(results.values):
                data[self._place(i, j, n)] = self._labelled(result)

    def _of_graph(self, sums: Buffer, data: Buffer, n: Value) -> Value:
        program = runner_of(self.steps.spec.graph).program
        labels = self.steps.function == "graph_places"
        wanted = (program.places,) if labels else program.scores
        code = GraphCode(self.steps.spec.graph, wanted, self.n_outputs, self.sum_dtype)
        code.check(self.columns, "int" if labels else "float32")

        def store(i: Value, _: int, values: Sequence[Value]) -> None:
            for j, value in enumerate(values):
                data[self._place(i, j, n)] = self._labelled(value.to(self.element))

        unknown = code.write(sums, n, store)
        self._tables += code.tables
        return unknown
