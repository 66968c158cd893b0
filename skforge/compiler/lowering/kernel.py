"""State of one lowering to LIR: builder, buffers, sizes and values in scope."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import chain
from math import prod
from operator import add

import numpy as np

from skforge._typing import Array, Int32s, Int64s
from skforge.compiler.ir.hir.nodes import PredictEnsemble, exit_table
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import F64, I32, I64, Buffer, Scalar, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.layouts.base import AnyLayout, BufferData, HopLayout, TreeLayout
from skforge.compiler.target import Target
from skforge.schedule.nest import BatchLength, CeilDiv, Size, Times, size_value


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array of MIR as a LIR buffer and its extents, outermost first."""

    buffer: Buffer
    dims: tuple[Value, ...]
    first: Value | None = None  # buffer index of the array's first element
    step: int = 1  # distance in the buffer between neighbouring elements
    lanes: bool = False  # holds only the outputs of the thread's own slot and row


@dataclass(frozen=True, slots=True)
class RowView:
    """Where walks read rows: element ``(row - first) * stride + feature * step``."""

    buffer: Buffer
    stride: Value | int
    first: Value | None = None
    step: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class LoweredKernel:
    """A LIR function and the model buffers it reads, in parameter order.

    The function takes rows, n_rows, row_stride and result before these buffers. A row
    has ``width`` results.
    """

    function: lir.Function
    data: tuple[BufferData, ...]
    width: int


class LoweringState:
    def __init__(
        self,
        function: mir.Function,
        hir: PredictEnsemble,
        layout: AnyLayout,
        target: Target,
    ) -> None:
        forest = hir.forest
        self.target = target
        self.hir, self.layout, self.function = hir, layout, function
        self.b = Builder()
        self.n_outputs = forest.n_outputs
        self.vector_leaves = forest.leaf_value.shape[1] > 1
        #: Type of sums: integers (fixed point) if the reduction is reproducible.
        self.float_type: Scalar = scalar_of(forest.leaf_value.dtype)
        fixed = hir.reduction == "reproducible"
        self.sum_type: Scalar = I64 if fixed else self.float_type
        if function.result.by_feature:
            self.sum_type = F64
        self.rows = Buffer("rows", scalar_of(forest.threshold.dtype))
        whole = function.result.element in ("leaf_number", "pattern")
        self.result = Buffer("result", I32 if whole else self.float_type)
        self.n_rows = Value("n_rows", I64)
        self.row_stride = Value("row_stride", I64)
        self.values: dict[str, Value] = {}
        self.arrays: dict[str, ArrayView] = {}
        self.codes: dict[str, RowView] = {}
        #: Where walks read raw rows (not codes).
        self.row_view = RowView(self.rows, self.row_stride)
        #: Sums carried in registers: (target, indices) -> current value.
        self.carried: dict[tuple[str, tuple[mir.Index, ...]], Value] = {}
        self._data: dict[str, BufferData] = {}
        self._classes: dict[tuple[int, ...], int] = {}
        self.scale_exponent = scale_exponent(hir) if fixed else 0

    @property
    def walker(self) -> TreeLayout:
        assert isinstance(self.layout, TreeLayout)
        return self.layout

    @property
    def hopper(self) -> HopLayout:
        assert isinstance(self.layout, HopLayout)
        return self.layout

    def finish(self, name: str) -> LoweredKernel:
        # First the buffers of the layout, then those declared here.
        of_layout = self.layout.buffers() if isinstance(self.layout, TreeLayout) else ()
        data = (*of_layout, *self._data.values())
        params: tuple[Value | Buffer, ...] = (
            self.rows,
            self.n_rows,
            self.row_stride,
            self.result,
            *(item.buffer for item in data),
        )
        function = lir.Function(name, params, b.finish())
        dims = self.function.result.dims[1:]
        width = prod(self.n_outputs if d is None else size_value(d, 0) for d in dims)
        return LoweredKernel(function, data, width)

    # ------------------------------------------------------------ model buffers

    def model_buffer(self, name: str, data: Array) -> Buffer:
        if name not in self._data:
            data = np.ascontiguousarray(data)
            buffer = Buffer(name, scalar_of(data.dtype), alignment=64)
            self._data[name] = BufferData(buffer, data)
        return self._data[name].buffer

    def leaf_values(self) -> Buffer:
        # Every walk asks for this buffer, and filling it dominates lowering time.
        if "leaf_values" in self._data:
            return self._data["leaf_values"].buffer
        values: Array = self.hir.forest.leaf_value
        if self.hir.reduction == "reproducible":
            values = scaled_leaves(self.hir, self.scale_exponent)
        if self.vector_leaves:
            return self.model_buffer("leaf_values", values.reshape(-1))
        return self._by_item("leaf_values", values[:, 0], self.hir.tiles.leaf)

    def leaf_rows(self) -> Buffer:
        rows = np.arange(len(self.hir.forest.leaf_value), dtype=np.int32)
        return self._by_item("leaf_rows", rows, self.hir.tiles.leaf)

    def leaf_numbers(self) -> Buffer:
        numbers = self.hir.forest.source_node
        return self._by_item("leaf_numbers", numbers, self.hir.tiles.node)

    def _by_item(self, name: str, table: Array, index: Int32s) -> Buffer:
        """Return a buffer of leaves' ``table[index]``; ``index`` is by item of HIR."""
        if name not in self._data:
            is_leaf = self.hir.tiles.leaf >= 0
            by_item = np.zeros(self.walker.n_items, table.dtype)
            by_item[self.walker.item_of()[is_leaf]] = table[index[is_leaf]]
            self.model_buffer(name, by_item)
        return self._data[name].buffer

    def exit_table(self) -> Buffer:
        """Return the exits by shape and comparison bits; bit i belongs to node i."""
        size = self.hir.tiles.tile_size
        bits = np.arange(1 << size)
        # The HIR's table has node 0 in the top bit; a mask's lane 0 is the low bit.
        turned = sum(((bits >> i) & 1) << (size - 1 - i) for i in range(size))
        return self.model_buffer("exit_table", exit_table(size)[:, turned].reshape(-1))

    def tree_outputs(self, by_position: bool) -> Buffer:
        outputs = self.hir.forest.tree_output
        if not by_position:
            return self.model_buffer("model_outputs", outputs)
        return self.model_buffer("tree_outputs", outputs[self.hir.tiles.tree_order])

    def base(self) -> Buffer:
        return self.model_buffer("base", self.hir.forest.base)

    def class_table(self, classes: tuple[int, ...]) -> Buffer:
        number = self._classes.setdefault(classes, len(self._classes))
        name = f"depth_classes_{number}"
        return self.model_buffer(name, np.asarray(classes, np.uint8))

    # ------------------------------------------------------------ indices

    def size(self, size: Size) -> Value:
        match size:
            case int():
                return b.const(size)
            case BatchLength():
                return self.n_rows
            case Times(value=value, by=by):
                return self.size(value) * by
            case CeilDiv(value=value, by=by):
                return ((self.size(value) + (by - 1)) // by).max(1)

    def affine(self, index: mir.Affine) -> Value:
        parts = chain(
            (self.values[name] for name in index.terms),
            (self.size(size) * times for size, times in index.sizes),
        )
        total = next(parts, None)
        if total is None:
            return b.const(index.constant)
        total = reduce(add, parts, total)
        if index.constant:
            total = total + index.constant
        return total

    def bound(self, bounds: tuple[mir.Bound, ...]) -> Value:
        def end(bound: mir.Bound) -> Value:
            limit = self.size(bound.limit)
            at_limit = bound.minus == mir.Affine()
            return limit if at_limit else limit - self.affine(bound.minus)

        return reduce(Value.min, map(end, bounds))

    def extent(self, rows: mir.Range) -> tuple[Value, Value]:
        return self.affine(rows.start), self.bound(rows.bounds).max(0)

    def index(self, index: mir.Index) -> Value:
        match index:
            case mir.Affine():
                return self.affine(index)
            case mir.Slot(value=value, start=start, step=step):
                offset = self.affine(value) - self.size(start)
                return offset if step == 1 else offset // self.size(step)
            case mir.ModelTree(position=position):
                at = self.affine(position)
                order = self.hir.tiles.tree_order
                if bool((order == np.arange(len(order))).all()):
                    return at
                return self.model_buffer("tree_order", order)[at].to(I64)
            case mir.Class(name=name):
                return self.values[name]
            case mir.Outputs():
                raise AssertionError("all outputs together are not a single index")


# ``reproducible`` reductions add ``round(leaf * 2 ** exponent)``; integer sums are the
# same in any order. The exponent is the largest for which no sum over trees overflows.

_BITS = 61  # bits of the largest sum; one more is left for rounding the leaves
_FINEST = 1074  # 2 ** -1074 is the smallest double


def scale_exponent(hir: PredictEnsemble) -> int:
    """Return the exponent of the power of two that leaves are multiplied by.

    The sum over trees of each tree's largest leaf bounds the largest sum.
    """
    forest, tiles = hir.forest, hir.tiles
    values = np.abs(forest.leaf_value.astype(np.float64)).max(axis=1, initial=0.0)
    is_leaf = tiles.leaf >= 0
    tree = np.repeat(np.arange(tiles.n_trees), np.diff(tiles.item_offset))[is_leaf]
    largest = np.zeros(tiles.n_trees)
    np.maximum.at(largest, tree, values[tiles.leaf[is_leaf]])
    most = float(largest.max(initial=0.0))
    if most == 0.0:
        return 0
    # The sum itself may be too large for a double, or all of it subnormal.
    power = int(np.frexp(most)[1])
    total = float(np.ldexp(largest, -power).sum())
    return min(int(_BITS - power - np.ceil(np.log2(total))), _FINEST)


def scaled_leaves(hir: PredictEnsemble, exponent: int) -> Int64s:
    scaled = np.ldexp(hir.forest.leaf_value.astype(np.float64), exponent)
    return np.rint(scaled).astype(np.int64)
