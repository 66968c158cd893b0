"""What a graph's program computes of one row, number by number, for generated code.

A trace runs the program on arrays of cells: nodes of a row's arithmetic, which rows
share. NumPy moves cells about; arithmetic on them makes new ones. Answers are known if
those of two and of three rows, or of four and of five, are the same nodes, each of its
own row only; a call with a single row has nodes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.outputs import mlas, onnx
from skforge.outputs.graph import PER_MEMBER, GraphRunner, GraphStep
from skforge.outputs.graph_operators import (
    DTYPES,
    OPERATORS,
    NodeAttributes,
    UnknownError,
)
from skforge.outputs.steps import UntracedError

#: Cells that a trace may make: more take longer than arrays of NumPy save.
_MOST_CELLS = 300_000


@dataclass(frozen=True, eq=False)
class ScoreNode:
    """``facts`` are a constant's value, a table, or the place of a score."""

    number: int  # greater than those of its inputs
    operation: str
    dtype: str
    inputs: tuple[ScoreNode, ...]
    facts: tuple[Any, ...]


#: The nodes of each value that was asked for, by the place of the row among four.
RowNodes: TypeAlias = Sequence[Sequence[Sequence[ScoreNode]]]


@dataclass(frozen=True)
class TracedScores:
    """What to compute for each row of several, and for one row in a call of its own."""

    several: RowNodes
    one: Sequence[Sequence[ScoreNode]] | None  # None: arrays refuse it
    #: Of each value, for one row: the shape behind the axis of rows, and the dtype.
    shapes: tuple[tuple[tuple[int, ...], str], ...]


class _Cell:
    """A node of a row; ``row`` is -1 for constants."""

    __slots__ = ("node", "row", "trace")

    def __init__(self, trace: _Trace, node: ScoreNode, row: int) -> None:
        self.trace, self.node, self.row = trace, node, row

    # what sums and products of :mod:`mlas` do with arrays of objects
    def __add__(self, other: _Cell) -> _Cell:
        return self.trace.cell("add", self.node.dtype, self, other)

    def __mul__(self, other: _Cell) -> _Cell:
        return self.trace.cell("mul", self.node.dtype, self, other)


def traced(runner: GraphRunner, wanted: tuple[int, ...]) -> TracedScores:
    """Return the nodes of values; raise ``UntracedError`` if they cannot be told."""
    trace = _Trace(runner, wanted)
    two = trace.of_rows(2)
    several = two[:1]
    if two + trace.of_rows(3) != several * 5:
        # sums of four and more depend on the row's place among four
        several = trace.of_rows(4)
        if trace.of_rows(5) != [*several, several[0]]:
            raise UntracedError("rows depend on each other or on their number")
    shapes = trace.shapes
    try:
        (one,) = trace.of_rows(1)
    except UntracedError:
        return TracedScores(several, None, shapes)
    return TracedScores(several, one if trace.shapes == shapes else None, shapes)


class _Trace:
    def __init__(self, runner: GraphRunner, wanted: tuple[int, ...]) -> None:
        self._runner, self._wanted = runner, wanted
        self._nodes: dict[Any, ScoreNode] = {}
        self._n_cells = 0
        self.shapes: tuple[tuple[tuple[int, ...], str], ...] = ()

    # ------------------------------------------------------------ cells

    def cell(self, operation: str, dtype: str, *cells: _Cell, facts: Any = ()) -> _Cell:
        rows = {cell.row for cell in cells} - {-1}
        self._n_cells += 1
        if len(rows) > 1 or self._n_cells > _MOST_CELLS:
            raise UntracedError("a number is of several rows, or there are too many")
        nodes = tuple(cell.node for cell in cells)
        return _Cell(
            self, self._node(operation, dtype, nodes, facts), max(rows, default=-1)
        )

    def _node(
        self, operation: str, dtype: str, inputs: tuple[ScoreNode, ...], facts: Any
    ) -> ScoreNode:
        key = operation, dtype, *map(id, inputs), repr(facts)
        if key not in self._nodes:
            number = len(self._nodes)
            self._nodes[key] = ScoreNode(number, operation, dtype, inputs, facts)
        return self._nodes[key]

    def lifted(self, x: Any, dtype: str = "") -> Array:
        """Return an array of cells; constants are those of a dtype, if it is given."""
        x = np.asarray(x)
        if x.dtype == object and x.size and isinstance(x.flat[0], _Cell):
            return x
        kind = dtype or str(x.dtype)
        if kind not in DTYPES.values():
            raise UntracedError(f"values are {kind}")
        cells = np.empty(x.shape, object)
        for place, value in np.ndenumerate(x.astype(kind)):
            cells[place] = self.cell("const", kind, facts=(value.item(),))
        return cells

    def each(
        self, operation: str, dtype: str, *arrays: Array, facts: Any = ()
    ) -> Array:
        """Return an operation on each cell, after NumPy's broadcasting."""
        make = partial(self.cell, operation, dtype, facts=facts)
        return _objects(np.frompyfunc(make, len(arrays), 1)(*arrays))

    def along(
        self, operation: str, dtype: str, x: Array, *first: Array, facts: Any = ()
    ) -> Array:
        """Return an operation on the cells of each list along the last axis."""
        made = np.empty(x.shape[:-1], object)
        for place in np.ndindex(*made.shape):
            cells = *(array[place] for array in first), *x[place]
            made[place] = self.cell(operation, dtype, *cells, facts=facts)
        return made

    # ------------------------------------------------------------ the program

    def of_rows(self, n: int) -> list[list[list[ScoreNode]]]:
        """Return the nodes of the values wanted, by row."""
        try:
            values = self._values(n)
        except (UnknownError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UntracedError(str(error)) from error
        by_row: list[list[list[ScoreNode]]] = [[] for _ in range(n)]
        shapes = []
        for value in values:
            cells = self.lifted(value)
            if not 1 <= cells.ndim <= 2 or len(cells) != n:
                raise UntracedError("an answer's first axis is not that of rows")
            shapes.append((cells.shape[1:], dtype_of(cells)))
            for row, nodes in enumerate(by_row):
                of_row = [*cells[row : row + 1].flat]
                if any(cell.row not in (row, -1) for cell in of_row):
                    raise UntracedError("an answer is of another row")
                nodes.append([cell.node for cell in of_row])
        self.shapes = tuple(shapes)
        return by_row

    def _values(self, n: int) -> list[Any]:
        runner = self._runner
        members, plan = runner.plan(self._wanted)
        values: dict[int, Any] = dict(enumerate(runner.arrays, runner.first))
        values[-1] = None
        for i in members:
            values[i] = self._of_member(i, n)
        for step, number, _ in plan:
            made = self._of_step(step, [values[i] for i in step.inputs])
            made = made if step.n_outputs > 1 else [made]
            values.update(enumerate(made, number))
        return [values[i] for i in self._wanted]

    def _of_member(self, i: int, n: int) -> Array:
        number, kind = divmod(i, PER_MEMBER)
        member = self._runner.program.members[number]
        rules, size = member.outputs, member.end - member.begin
        if rules.post == "probit" or size > MOST_COLUMNS:
            raise UntracedError("an ensemble's scores have no code")
        if kind and np.isnan(rules.offsets).all():
            raise UntracedError("an ensemble's labels have no code")
        if kind == 0:
            width = onnx.width(rules, size)
            cells = np.empty((n, width), object)
            for row, k in np.ndindex(n, width):
                cells[row, k] = self._leaf("score", rules.dtype, row, number, k)
            return cells
        places = np.empty(n, object)
        for row in range(n):
            bound = 2 if rules.labels == "above_bound" else size
            places[row] = self._leaf("place", "int64", row, number, bound)
        return (
            places
            if kind == PER_MEMBER - 1
            else self.taken(np.array(member.labels), places)
        )

    def _leaf(self, operation: str, dtype: str, row: int, *facts: int) -> _Cell:
        return _Cell(self, self._node(operation, dtype, (), facts), row)

    def _of_step(self, step: GraphStep, inputs: list[Any]) -> Any:
        at = step.attributes
        if not any(_is_traced(x) for x in inputs):
            return OPERATORS[step.operator](at, *inputs)
        if step.operator in _MOVES or (
            step.operator == "ArrayFeatureExtractor" and not _is_traced(inputs[1])
        ):
            if step.operator == "Concat":
                inputs = [self.lifted(x) for x in inputs]
            return OPERATORS[step.operator](at, *inputs)
        if step.operator not in _TRACED:
            raise UntracedError(f"{step.operator} has no code")
        return _TRACED[step.operator](self, at, *inputs)

    def taken(self, table: Any, places: Array) -> Array:
        """Return elements of a list, of which places are known to be some."""
        kind = str(table.dtype)
        within = all(_bound(cell.node) <= len(table) for cell in places.flat)
        if not within or kind not in ("float32", "float64", "int32", "int64"):
            raise UntracedError("a table's elements have no code")
        return self.each("take", kind, places, facts=tuple(table.tolist()))


#: Most numbers to sort: each is compared with every other.
_MOST_SORTED = 256
#: Most columns of an ensemble, whose arithmetic is unrolled.
MOST_COLUMNS = 64
#: Operators that move cells as they move numbers.
_MOVES = (
    *("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split"),
    *("Concat", "Shape", "Identity"),
)


def _objects(x: Any) -> Array:
    if isinstance(x, np.ndarray):
        return x
    array = np.empty((), object)
    array[()] = x
    return array


def _is_traced(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == object


def dtype_of(cells: Array) -> str:
    if not cells.size:
        raise UntracedError("an array is empty")
    return str(cells.flat[0].node.dtype)


def _bound(node: ScoreNode) -> float:
    """Return what a whole number, at least 0, is less than."""
    if node.operation == "cast" and "int" in node.dtype:
        return _bound(node.inputs[0])
    if node.operation == "pick":
        return max(map(_bound, node.inputs[1:]))
    if node.operation in ("greatest", "least", "order"):
        return len(node.inputs)
    return node.facts[1] if node.operation == "place" else np.inf


def _same(trace: _Trace, kinds: tuple[str, ...], *inputs: Any) -> list[Array]:
    """Return arrays of cells of one dtype, which has to be of some kinds."""
    arrays = [trace.lifted(x) for x in inputs]
    found = {dtype_of(x) for x in arrays}
    if len(found) > 1 or not found <= {*kinds}:
        raise UntracedError(f"{found} have no code")
    return arrays


_FLOATS = ("float32", "float64")
_NUMBERS = (*_FLOATS, "int64", "int32")


def _arithmetic(operation: str, kinds: tuple[str, ...], to: str = "") -> Any:
    def of(trace: _Trace, at: NodeAttributes, *inputs: Any) -> Array:
        arrays = _same(trace, kinds, *inputs)
        dtype = to or dtype_of(arrays[0])
        if len(arrays) > 1 or operation == "add":  # a Sum may have one input
            return reduce(partial(trace.each, operation, dtype), arrays)
        return trace.each(operation, dtype, *arrays)

    return of


def _function(operation: str) -> Any:
    return _arithmetic(operation, ("float32",))


def _where(trace: _Trace, at: NodeAttributes, test: Any, a: Any, b: Any) -> Array:
    (test,) = _same(trace, ("bool",), test)
    a, b = _same(trace, _NUMBERS, a, b)
    return trace.each("select", dtype_of(a), test, a, b)


def _clip(
    trace: _Trace, at: NodeAttributes, x: Any, low: Any = None, high: Any = None
) -> Array:
    (x,) = _same(trace, _NUMBERS, x)
    kind = dtype_of(x)
    for name, compare, bound in (("min", "lt", low), ("max", "gt", high)):
        bound = at[name][0] if bound is None and name in at else bound
        if bound is not None:
            end = trace.lifted(bound, kind)
            (end,) = _same(trace, (kind,), end)
            x = trace.each("select", kind, trace.each(compare, "bool", x, end), end, x)
    return x


def _cast(trace: _Trace, at: NodeAttributes, x: Any) -> Array:
    x, to = trace.lifted(x), DTYPES[int(at["to"][0])]
    return x if to == dtype_of(x) else trace.each("cast", to, x)


def _extreme(operation: str) -> Any:
    def of(trace: _Trace, at: NodeAttributes, x: Any) -> Array:
        (x,) = _same(trace, _NUMBERS, x)
        if at.get("select_last_index", [0])[0]:
            raise UntracedError("the last of equal numbers has no code")
        axis = int(at.get("axis", [0])[0])
        place = trace.along(operation, "int64", np.moveaxis(x, axis, -1))
        return np.expand_dims(place, axis) if at.get("keepdims", [1])[0] else place

    return of


def _reduce(
    mean: bool, trace: _Trace, at: NodeAttributes, x: Any, axes: Any = None
) -> Array:
    (x,) = _same(trace, ("float32",), x)
    given = at.get("axes", ()) if axes is None else np.asarray(axes).reshape(-1)
    every = [int(axis) % x.ndim for axis in given]
    if len(every) != 1 or every[0] not in (0, x.ndim - 1) or x.ndim < 2:
        raise UntracedError("sums along these axes have no code")
    (axis,) = every
    sums = mlas.in_order(x, 0) if axis == 0 else mlas.row_sums(x)
    if mean:
        sums = trace.each(
            "div", "float32", sums, trace.lifted(np.float32(x.shape[axis]))
        )
    return sums if at.get("keepdims", [1])[0] else sums.squeeze(axis)


def _top(trace: _Trace, at: NodeAttributes, x: Any, k: Any) -> tuple[Array, Array]:
    (x,), size = _same(trace, _FLOATS, x), int(k.reshape(-1)[0])
    usual = at.get("largest", [1])[0] == at.get("sorted", [1])[0] == 1
    last, width = int(at.get("axis", [-1])[0]) % x.ndim == x.ndim - 1, x.shape[-1]
    if not usual or not last or not 0 < size <= width <= _MOST_SORTED:
        raise UntracedError("such a sort has no code")
    order = [trace.along("order", "int64", x, facts=(j,)) for j in range(size)]
    values = [trace.along("pick", dtype_of(x), x, places) for places in order]
    return np.stack(values, axis=-1), np.stack(order, axis=-1)


def _running_sum(trace: _Trace, at: NodeAttributes, x: Any, axis: Any) -> Array:
    (x,) = _same(trace, _NUMBERS, x)
    if at.get("exclusive", [0])[0] or at.get("reverse", [0])[0]:
        raise UntracedError("such sums have no code")
    return np.asarray(np.add.accumulate(x, axis=int(axis.reshape(-1)[0])))


def _linear(
    trace: _Trace, at: NodeAttributes, x: Any, weights: Any, intercepts: Any
) -> Array:
    x, weights, more = _same(trace, ("float32",), x, weights, intercepts)
    if len(x) == 1:
        if x.shape[1] > 8:
            raise UntracedError("more than eight products of a row have no code")
        sums = mlas.products_of_one(x[0], weights, trace.lifted(np.float32(0)))[None]
    else:
        sums = np.broadcast_to(trace.lifted(np.float32(0)), (len(x), len(weights)))
        for column, weight in zip(x.T, weights.T, strict=True):
            sums = trace.each("fma", "float32", column[:, None], weight[None, :], sums)
    return trace.each("add", "float32", sums, more)


def _by_sum(trace: _Trace, at: NodeAttributes, x: Any) -> Array:
    (x,) = _same(trace, ("float32",), x)
    sums = mlas.in_order(trace.each("abs", "float32", x), x.ndim - 1)
    zero = trace.each("eq", "bool", sums, trace.lifted(np.float32(0)))
    return trace.each(
        "select", "float32", zero, x, trace.each("div", "float32", x, sums)
    )


def _extract(trace: _Trace, at: NodeAttributes, x: Any, places: Any) -> Array:
    """Take elements of a table; of a list, a matrix of one row."""
    if _is_traced(x) or x.size != x.shape[-1]:
        raise UntracedError("a row's choice among its numbers has no code")
    taken = trace.taken(x.reshape(-1), places.reshape(-1))
    return taken.reshape(*x.shape[:-1], -1) if x.ndim > 1 else taken[None]


def _gather(trace: _Trace, at: NodeAttributes, x: Any, places: Any) -> Array:
    if _is_traced(places):
        if _is_traced(x) or x.ndim != 1:
            raise UntracedError("a row's choice among its numbers has no code")
        return trace.taken(x, places)
    return np.asarray(OPERATORS["Gather"](at, x, places))


def _gather_each(trace: _Trace, at: NodeAttributes, x: Any, places: Any) -> Array:
    (x,), axis = _same(trace, _NUMBERS, x), int(at.get("axis", [0])[0])
    if not _is_traced(places):
        return np.asarray(OPERATORS["GatherElements"](at, x, places))
    last = x.ndim == places.ndim == 2 and axis % 2 == 1 and len(x) == len(places)
    if not last or any(_bound(cell.node) > x.shape[1] for cell in places.flat):
        raise UntracedError("a choice along this axis has no code")
    return np.stack(
        [trace.along("pick", dtype_of(x), x, column) for column in places.T], axis=1
    )


_TRACED: dict[str, Callable[..., Any]] = {
    **{"Add": _arithmetic("add", _NUMBERS), "Sum": _arithmetic("add", _NUMBERS)},
    **{"Sub": _arithmetic("sub", _NUMBERS), "Mul": _arithmetic("mul", _NUMBERS)},
    **{"Div": _arithmetic("div", _FLOATS), "Neg": _arithmetic("neg", _FLOATS)},
    **{"Abs": _arithmetic("abs", _FLOATS), "Sign": _arithmetic("sign", _FLOATS)},
    "Equal": _arithmetic("eq", _NUMBERS, "bool"),
    "Less": _arithmetic("lt", _NUMBERS, "bool"),
    "Greater": _arithmetic("gt", _NUMBERS, "bool"),
    "LessOrEqual": _arithmetic("le", _NUMBERS, "bool"),
    "GreaterOrEqual": _arithmetic("ge", _NUMBERS, "bool"),
    "Not": _arithmetic("not", ("bool",)),
    **{"And": _arithmetic("and", ("bool",)), "Or": _arithmetic("or", ("bool",))},
    **{"Where": _where, "Clip": _clip, "Cast": _cast},
    **{"Exp": _function("exp"), "Sigmoid": _function("logistic")},
    **{"ArgMax": _extreme("greatest"), "ArgMin": _extreme("least")},
    **{"ReduceSum": partial(_reduce, False), "ReduceMean": partial(_reduce, True)},
    **{"CumSum": _running_sum, "Linear": _linear, "L1": _by_sum},
    **{"ArrayFeatureExtractor": _extract, "Gather": _gather},
    **{"GatherElements": _gather_each, "TopK": _top},
}
