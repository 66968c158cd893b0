"""What a graph computes of its trees' answers, as code: all nodes of a row in a loop.

Code has the bits of :mod:`skforge.outputs.graph`, except where that raises an error or
a number is NaN: it tells so, and the caller lets arrays compute the answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import BOOL, I32, I64, Buffer, Scalar, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.engine.entry import mlas_code
from skforge.engine.entry.terms import TERMS, RowTerms
from skforge.outputs import onnx
from skforge.outputs.graph import runner_of
from skforge.outputs.graph_members import LABELS
from skforge.outputs.graph_nodes import ScoreNode, traced
from skforge.outputs.steps import UntracedError

#: Numbers along which a search for the greatest is unrolled.
_UNROLLED = 8

#: Takes a row's number, which of the values wanted, and its numbers.
StoreScores = Callable[[Value, int, Sequence[Value]], None]


class GraphCode:
    """Writes values of a program; raises ``UntracedError`` if only arrays have them."""

    def __init__(
        self, text: str | None, wanted: tuple[int, ...], n_outputs: int, sum_dtype: str
    ) -> None:
        runner = runner_of(text)
        self.members, self.traced = runner.program.members, traced(runner, wanted)
        self.n_outputs, self.sum_dtype = n_outputs, sum_dtype
        #: The definitions of the tables that the code reads.
        self.tables: list[str] = []

    def check(self, columns: int, dtype: str) -> None:
        """Raise unless there is one value, of so many columns and of a dtype."""
        (shape, found), *others = self.traced.shapes
        if others or prod(shape) != columns or not found.startswith(dtype):
            raise UntracedError(f"answers are {found} of shape {shape}")

    def write(self, sums: Buffer, n: Value, store: StoreScores) -> Value:
        """Store all rows' values; return whether arrays have to compute them."""
        several, one = self.traced.several, self.traced.one

        def all_rows() -> Value:
            unknown = [b.const(False, BOOL)]
            with b.loop(n, carry=unknown) as i:
                row = b.view("row", sums.element, sums, i * self.n_outputs)
                unknown[0] = unknown[0] | self._row(row, several, i, store)
            return unknown[0]

        def one_row() -> Value:
            if one is None:
                return b.const(True, BOOL)
            return self._row(sums, [one], b.const(0), store)

        if one == several[0]:
            return all_rows()
        return b.either(n.eq(1), one_row, all_rows)

    def _row(self, row: Buffer, several: Any, i: Value, store: StoreScores) -> Value:
        """Store a row's values, which may depend on its place among four."""
        code = _RowCode(self, row)
        needed = [
            code.needed([node for of in nodes for node in of]) for nodes in several
        ]
        code.compute({*needed[0]}.intersection(*needed))

        def of_place(k: int, code: _RowCode) -> tuple[Value]:
            code.compute(needed[k])
            for j, nodes in enumerate(several[k]):
                values = [code.values[node] for node in nodes]
                code.unknown += [b.is_nan(x) for x in values if x.type.element.is_float]
                store(i, j, values)
            return (reduce(operator.or_, code.unknown, b.const(False, BOOL)),)

        if len(several) == 1:
            return of_place(0, code)[0]
        cases = [lambda k=k: of_place(k, code.copy()) for k in range(4)]
        return b.switch(i & 3, cases, [BOOL])[0]

    def table(self, numbers: Sequence[Any], dtype: str) -> Buffer:
        """Return constants in memory, defined as their bits."""
        array = np.array(numbers, dtype)
        bits, name = 8 * array.itemsize, f"skf_scores_{len(self.tables)}"
        words = ", ".join(f"i{bits} {word}" for word in array.view(f"i{bits // 8}"))
        text = f"@{name} = hidden constant [{len(array)} x i{bits}] [ {words} ]"
        self.tables.append(text)
        return b.view("table", _type_of(dtype), b.symbol(name))


def _type_of(dtype: str) -> Scalar:
    return scalar_of(np.dtype(dtype))


class _RowCode:
    """The values of nodes of one row, in the body that is open."""

    def __init__(self, code: GraphCode, row: Buffer) -> None:
        self.code, self.row = code, row
        self.values: dict[ScoreNode, Value] = {}
        #: Tells of each whether arrays have to compute the row.
        self.unknown: list[Value] = []
        self._scores: dict[int, tuple[Value, ...]] = {}
        self._orders: dict[tuple[ScoreNode, ...], Buffer] = {}

    def copy(self) -> _RowCode:
        made = _RowCode(self.code, self.row)
        made.values, made.unknown = {**self.values}, [*self.unknown]
        made._scores, made._orders = {**self._scores}, {**self._orders}
        return made

    def needed(self, nodes: Sequence[ScoreNode]) -> set[ScoreNode]:
        found: set[ScoreNode] = set()
        waiting = [*nodes]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += _read(node)
        return found

    def compute(self, nodes: set[ScoreNode]) -> None:
        for node in sorted(nodes - self.values.keys(), key=lambda node: node.number):
            self.values[node] = self._value(node)

    def _value(self, node: ScoreNode) -> Value:
        if node.operation in ("greatest", "least"):
            return self._extreme(node)
        x = [self.values[node] for node in node.inputs]
        match node.operation:
            case "const":
                return b.const(node.facts[0], _type_of(node.dtype))
            case "score" | "place":
                return self._of_member(node)
            case "take":
                return self.code.table(node.facts, node.dtype)[x[0].to(I64)]
            case "order":
                return self._order(node, x)[node.facts[0]]
            case "pick":
                place, result, *others = x
                for k, other in enumerate(others, 1):
                    result = b.select(place.eq(k), other, result)
                return result
            case _:
                return _each(node, x)

    def _of_member(self, node: ScoreNode) -> Value:
        number, k = node.facts
        member = self.code.members[number]
        columns = range(member.begin, member.end)
        terms = RowTerms(tuple(self.row[j] for j in columns), self.code.sum_dtype)
        if node.operation == "place":
            place: Any = LABELS[member.outputs.labels](terms, member.outputs, TERMS)
            return place.astype("int64").values[0]
        if number not in self._scores:
            terms = terms / float(member.divisor) if member.divisor > 1 else terms
            made: Any = onnx.values(terms, member.outputs, TERMS)
            self._scores[number] = made.values
        return self._scores[number][k]

    def _order(self, node: ScoreNode, x: Sequence[Value]) -> Buffer:
        """Return the places of numbers, from the largest on; equal ones as they are."""
        if node.inputs not in self._orders:
            type_, size = _type_of(node.inputs[0].dtype), len(x)
            numbers, order = (
                b.local("numbers", type_, size),
                b.local("order", I64, size),
            )
            for k, number in enumerate(x):
                numbers[k] = number
            with b.loop(size) as i:
                number, rank = numbers[i], [b.const(0)]
                with b.loop(size, carry=rank) as j:
                    other = numbers[j]
                    first = (other > number) | (other.eq(number) & (j < i))
                    rank[0] = rank[0] + first.to(I64)
                order[rank[0]] = i
            self.unknown += map(b.is_nan, x)
            self._orders[node.inputs] = order
        return self._orders[node.inputs]

    def _extreme(self, node: ScoreNode) -> Value:
        """Return the place of the first greatest or least number."""
        beats = operator.gt if node.operation == "greatest" else operator.lt
        alike = _alike(node)
        if alike is None:
            of = [self.values[one] for one in node.inputs]
        else:
            at = self._rolled(alike)
        first = of[0] if alike is None else at(b.const(0))
        # the unknown, the place of the best number so far, and that number
        best = [b.const(False, BOOL), b.const(0), first]

        def compare(x: Value, k: Value) -> None:
            unknown, place, value = best
            better = beats(x, value)
            nan = unknown | b.is_nan(x) if x.type.element.is_float else unknown
            best[:] = nan, b.select(better, k, place), b.select(better, x, value)

        if alike is None:
            for k, x in enumerate(of):
                compare(x, b.const(k))
        else:
            with b.loop(len(node.inputs), carry=best) as turn:
                compare(at(turn), turn)
        self.unknown.append(best[0])
        return best[1]

    def _rolled(self, alike: Any) -> Callable[[Value], Value]:
        """Return what computes the number at a place, in a loop to come."""
        if isinstance(alike, ScoreNode):
            value = self.values[alike]
            return lambda k: value
        node, parts = alike
        if node.operation == "const":
            table = self.code.table(parts, node.dtype)
            return lambda k: table[k]
        inputs = [self._rolled(part) for part in parts]
        return lambda k: _each(node, [of(k) for of in inputs])


def _read(node: ScoreNode) -> Sequence[ScoreNode]:
    """Return the nodes that a node's code reads."""
    if node.operation not in ("greatest", "least") or (alike := _alike(node)) is None:
        return node.inputs
    found, waiting = [], [alike]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ScoreNode):
            found.append(part)
        elif part[0].operation != "const":
            waiting += part[1]
    return found


def _alike(node: ScoreNode) -> Any:
    """Return how the inputs are one formula with other constants; None if not."""
    return _pattern(node.inputs) if len(node.inputs) > _UNROLLED else None


def _pattern(nodes: Sequence[ScoreNode]) -> Any:
    """Return a node that all are, or a node of them with patterns or constants."""
    node = nodes[0]
    if all(other is node for other in nodes):
        return node
    kinds = {(other.operation, other.dtype, len(other.inputs)) for other in nodes}
    if len(kinds) > 1:
        return None
    if node.operation == "const":
        return node, tuple(other.facts[0] for other in nodes)
    if node.operation not in (*_OPERATIONS, "cast"):
        return None
    parts = [
        _pattern(each) for each in zip(*(other.inputs for other in nodes), strict=True)
    ]
    return None if None in parts else (node, parts)


def _sign(x: Value) -> Value:
    other = b.select(x.eq(0.0), 0.0, x)  # of NaN, itself
    return b.select(x > 0.0, 1.0, b.select(x < 0.0, -1.0, other))


#: Operations of single values, which loops may hold.
_OPERATIONS: dict[str, Callable[..., Value]] = {
    **{
        name: getattr(operator, name)
        for name in ("add", "sub", "mul", "neg", "lt", "gt", "le", "ge")
    },
    **{"div": operator.truediv, "eq": Value.eq, "sign": _sign},
    **{"not": operator.invert, "and": operator.and_, "or": operator.or_},
    "abs": lambda x: b.magnitude(x),
    "select": lambda *x: b.select(*x),
    "fma": lambda *x: b.multiply_add(*x),
    **{"exp": mlas_code.exp, "logistic": mlas_code.logistic},
}


def _each(node: ScoreNode, x: Sequence[Value]) -> Value:
    if node.operation == "cast":
        return _cast(x[0], _type_of(node.dtype))
    return _OPERATIONS[node.operation](*x)


def _cast(x: Value, to: Scalar) -> Value:
    given = x.type
    if to == BOOL:
        return b.compare("ne", x, b.const(0, given), unordered=given.element.is_float)
    if given == BOOL:
        return b.select(x, b.const(1, to), b.const(0, to))
    if given.element.is_float and to in (I32, I64):
        # on x86, what does not fit is the least number
        bound = 2.0 ** (8 * to.bytes - 1)
        x = b.select((x >= -bound) & (x < bound), x, -bound)
    return x.to(to)
