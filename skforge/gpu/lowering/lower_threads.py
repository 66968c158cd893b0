"""Lower the code of one GPU thread: a region between two barriers.

A loop over threads becomes the thread's number, with a check if there may be fewer
iterations than threads::

    for b1 in 0 to min(256, rows - b0):  block.x        if t < min(256, rows - b0):
      ...                                          =>     ...

Statements outside any loop over a dimension of the block run in that dimension's
first thread. Reductions have an element for each thread or warp, and sums by output.
Everything else is lowered as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import reduce
from math import prod
from operator import and_

import numpy as np

from skforge.compiler.binning.rules import BlockRows
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F64, I64, Scalar, Value
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.lowering.kernel import ArrayView, LoweringState
from skforge.compiler.lowering.lower_reductions import (
    MAX_UNROLLED_CHUNKS,
    ReductionLowering,
)
from skforge.compiler.lowering.lower_to_lir import Lowering
from skforge.compiler.passes.mir.reduces import reduces_in
from skforge.exceptions import CompilerError
from skforge.gpu.layouts.contributions import RowsByThread
from skforge.gpu.nest import WARP, fixed_size, holds_threads


class ThreadLowering(Lowering):
    _asks_nodes = True  # the reads of a hop dominate

    def __init__(self, kernel: LoweringState) -> None:
        self._gpu = GpuSums(kernel)
        super().__init__(kernel, self._gpu)
        self._scope = "host"
        self._dims: dict[str, int] = {}  # threads of the block, by dimension
        self._tid: dict[str, Value] = {}  # the running thread, within a region
        self._unbound: frozenset[str] = frozenset()  # dimensions without a loop yet
        self._shared_bytes = 0  # allocated by the block so far
        self._pending: list[lir.Stmt] = []  # allocations to emit before the region

    @contextmanager
    def _region(self) -> Iterator[None]:
        dimensions = self._dims or {"block.x": 1}
        counts = {kind: b.const(n) for kind, n in dimensions.items()}
        self._tid = {kind: Value(b.name(f"t{kind[-1]}"), I64) for kind in counts}
        dims = tuple((kind, self._tid[kind], counts[kind]) for kind in counts)
        self._scope, self._unbound = "thread", frozenset(self._dims)
        with b.body() as stmts:
            yield
        self._scope, self._unbound = "block", frozenset()
        for stmt in self._pending:
            b.emit(stmt)
        self._pending.clear()
        b.emit(lir.BlockRegion(dims, tuple(stmts)))  # type: ignore[arg-type]

    @property
    def _n_threads(self) -> int:
        return prod(self._dims.values())

    def _thread_number(self, besides: str = "") -> Value:
        dims = {kind: n for kind, n in self._dims.items() if kind != besides}
        counts = {kind: b.const(n) for kind, n in dims.items()}
        return self._linear({kind: self._tid[kind] for kind in dims}, counts)

    def _linear(self, numbers: dict[str, Value], counts: dict[str, Value]) -> Value:
        if not numbers:
            return b.const(0)
        first, *inner = sorted(numbers, reverse=True)
        total = numbers[first]
        for kind in inner:
            total = total * counts[kind] + numbers[kind]
        return total

    # ------------------------------------------------------------ statements

    def body(self, body: mir.Body) -> None:
        """Lower one thread's code; thread 0 runs what no loop distributes."""
        if self._scope != "thread" or not self._unbound:
            super().body(body)
            return
        run: list[mir.Stmt] = []
        for stmt in body:
            if holds_threads(stmt) or is_by_lanes(stmt):
                self._alone(run)
                super().body((stmt,))
            else:
                run.append(stmt)
        self._alone(run)

    def _alone(self, run: list[mir.Stmt]) -> None:
        if not run:
            return
        stmts = tuple(run)
        run.clear()
        unbound, self._unbound = self._unbound, frozenset()
        several = [kind for kind in sorted(unbound) if self._dims[kind] > 1]
        inside: AbstractContextManager[None] = nullcontext()
        if several:
            is_first = (self._tid[kind].eq(0) for kind in several)
            inside = b.when(reduce(and_, is_first))
        with inside:
            super().body(stmts)
        self._unbound = unbound

    def _statement(self, stmt: mir.Stmt) -> None:
        match stmt:
            case mir.AllocArray() if self._scope == "thread":
                self._private_array(stmt)
            case mir.ReduceDimension(by_warp=True):
                width = self._dims["block.x"]
                row, lane = self._own_row(), self._tid["block.x"]
                self._gpu.reduce_lanes(stmt, row, lane, min(width, WARP))
            case mir.StoreRows():
                self._gpu.store_rows(stmt)
            case mir.Fill() if isinstance(self.k.layout, RowsByThread):
                pass  # it has sums of its own
            case mir.Fill(target=target) if target != mir.RESULT:
                self._gpu.fill_kept(stmt)
            case mir.Fill(by_warp=True):
                self._gpu.fill_lanes(stmt, self._own_row(), self._tid["block.x"])
            case mir.CacheRows() | mir.CacheTrees() | mir.QuantizeRows():
                raise CompilerError("a cache was reached within a thread")
            case _:
                super()._statement(stmt)

    def _private_array(self, stmt: mir.AllocArray) -> None:
        array = stmt.array
        dims = (b.const(self.k.n_outputs),) if array.lanes else self._gpu.sizes(array)
        buffer, first = self._own_shared(array), None
        if buffer is None:
            total = self._gpu.elements(dims)
            buffer, step = b.alloc(array.name, self.k.sum_type, total, "private"), 1
        else:
            first, step = self._thread_number(), self._n_threads
        view = ArrayView(buffer, dims, first, step)
        if stmt.zero:
            self._gpu.zero(view)
        self.k.arrays[array.name] = replace(view, lanes=array.lanes)

    def _own_shared(self, array: mir.NamedArray) -> lir.Buffer | None:
        """Return shared memory for an array that threads index dynamically.

        Registers cannot be indexed, so the array would otherwise lie in global memory.
        Return None if registers suffice or shared memory is full.
        """
        n = fixed_size((None,) if array.lanes else array.dims, self.k.n_outputs)
        few = self.k.vector_leaves and self.k.n_outputs <= MAX_UNROLLED_CHUNKS
        if n is None or n == 1 or (few and n == self.k.n_outputs):
            return None
        size = n * self._n_threads
        n_bytes = -(-size * self.k.sum_type.bytes // 16) * 16
        if self._shared_bytes + n_bytes > self.k.target.shared_bytes:
            return None
        self._shared_bytes += n_bytes
        buffer = lir.Buffer(b.name(array.name), self.k.sum_type, "shared", 16)
        count = Value(b.name("size"), I64)  # a constant defined before the region
        self._pending += [lir.Let(count, lir.Const(size)), lir.Alloc(buffer, count)]
        return buffer

    def _own_row(self) -> Value:
        return self._thread_number(besides="block.x")

    def _loop(self, loop: mir.Loop) -> None:
        if isinstance(self.k.layout, RowsByThread) and loop.root == "tree":
            self._explain(loop, self.k.layout)
            return
        if not loop.on_threads:
            super()._loop(loop)
            return
        outer, self._unbound = self._unbound, self._unbound - {loop.kind}
        fits = loop.trip_count == self._dims[loop.kind]
        with self._turn(loop, self._tid[loop.kind], fits):
            self.body(loop.body)
        self._unbound = outer

    @contextmanager
    def _turn(self, loop: mir.Loop, number: Value, fits: bool) -> Iterator[None]:
        """Open the iteration of a thread or block; if not all ``fit``, with a check."""
        offset = number * self.k.size(loop.step)
        var = self.k.size(loop.start) + offset
        inside = nullcontext() if fits else b.when(var < self.k.bound(loop.bounds))
        with inside, self._bound(loop.var, var):
            yield

    def _explain(self, loop: mir.Loop, layout: RowsByThread) -> None:
        k = self.k
        (stmt,) = reduces_in((loop,))
        assert isinstance(stmt.indices[0], mir.Affine)
        row = k.affine(stmt.indices[0])
        rows = BlockRows(k.rows, row + 1, k.row_stride, row, k.hir.forest.n_features)
        layout.explain(rows, k.result, k.model_buffer)


def is_by_lanes(stmt: mir.Stmt) -> bool:
    match stmt:
        case mir.AllocArray(array=array):
            return array.lanes
        case mir.ReduceDimension(by_warp=by_warp) | mir.Fill(by_warp=by_warp):
            return by_warp
        case _:
            return False


#: Opens what the available threads run, once for each number in 0 … count.
Spread = Callable[[Value], AbstractContextManager[Value]]

#: Values loaded before they are added in order.
READ_AHEAD = 8


class GpuSums(ReductionLowering):
    """Emits all code that touches sums, for the available threads (SilvanForge §5.1).

    Elements (rows times outputs) are independent, so each thread takes some of them.
    Where there are too few elements and any order is allowed, the threads of a warp (or
    part of one) share an element and combine their parts by shuffles (divide and
    conquer).

    ``spread`` distributes work over the threads of a separate launch, over those of a
    block, or gives it all to the running thread.
    """

    def __init__(self, kernel: LoweringState) -> None:
        super().__init__(kernel)
        self.spread: Spread = b.loop
        #: Number of threads in the block, and what opens their code, by their number.
        self.team: tuple[int, Callable[[], AbstractContextManager[Value]]] | None = None

    def _lanes(self, scalar: Scalar) -> int:
        return 1  # of a thread

    @contextmanager
    def spread_by(self, spread: Spread) -> Iterator[None]:
        outer, self.spread = self.spread, spread
        yield
        self.spread = outer

    def zero(self, view: ArrayView) -> None:
        total, zero = self.elements(view.dims), self._zero()
        with self.spread(total) as i:
            view.buffer[self.element_index(view, i)] = zero

    def fill(self, stmt: mir.Fill) -> None:
        view = self.k.arrays[stmt.target]
        start = self._offset(view, (stmt.rows.start,))
        with self.spread(self._length(stmt.rows) * self.k.n_outputs) as i:
            if self.k.n_outputs == 1:
                base = b.const(float(self.k.hir.forest.base[0]), self.k.float_type)
            else:
                base = self.k.base()[i % self.k.n_outputs]
            view.buffer[start + i * view.step] = base

    def store_rows(self, stmt: mir.StoreRows) -> None:
        source, target = self.k.arrays[stmt.source], self.k.arrays[mir.RESULT]
        first = self._offset(target, (stmt.rows.start,))
        for i in self.each_output():
            target.buffer[first + i] = source.buffer[self.element_index(source, i)]

    def each_output(self) -> Iterator[Value]:
        n = self.k.n_outputs
        if n > MAX_UNROLLED_CHUNKS:
            with b.loop(n) as j:
                yield j
        else:
            yield from map(b.const, range(n))

    def fill_kept(self, stmt: mir.Fill) -> None:
        view = self.k.arrays[stmt.target]
        for j in self.each_output():
            b.store(view.buffer, self.element_index(view, j), self.k.base()[j])

    def reduce_dimension(self, stmt: mir.ReduceDimension) -> None:
        target, source = self.k.arrays[stmt.target], self.k.arrays[stmt.source]
        first = self._offset(target, (*stmt.prefix, stmt.rows.start))
        slot = self.elements(source.dims[1:])  # from one slot to the next
        extent, length = self.k.size(stmt.extent), self._length(stmt.rows)
        if stmt.by_output:
            self._by_output(stmt, first, slot, length)
            return
        if stmt.trees is not None:
            _, extent = self.k.extent(stmt.trees)
        elements = length * self.k.n_outputs
        from_ = self.k.affine(stmt.source_rows) * self.k.n_outputs

        def value(i: Value, n: Value) -> Value:
            element = from_ + i
            return source.buffer[self.element_index(source, n * slot + element)]

        def write(i: Value, total: Value, starts_at_target: bool) -> None:
            index = first + i
            if stmt.atomic:
                b.emit(lir.AtomicAdd(target.buffer, index, total))
                return
            if not starts_at_target:
                total = target.buffer[index] + total
            target.buffer[index] = total

        width = self._shared_width(stmt)
        if width == 1 or self.team is None:
            with self.spread(elements) as i:
                old = self._zero() if stmt.atomic else target.buffer[first + i]
                total = self._in_order(old, b.const(0), extent, lambda n: value(i, n))
                write(i, total, True)
            return
        # By ``width`` threads: strided parts, then shuffles.
        with self.team[1]() as number:
            i = number // width
            part = number % width
            inside = i < elements
            end = b.select(inside, extent, 0)
            sums = [self._zero()]
            with b.loop(part, end, width, carry=sums) as n:
                sums[0] = sums[0] + value(i, n)
            total = b.let(lir.WarpReduce(sums[0], width), self.k.sum_type, "warp")
            with b.when(inside & part.eq(0)):
                write(i, total, False)

    def _in_order(
        self, start: Value, lo: Value, hi: Value, value: Callable[[Value], Value]
    ) -> Value:
        """Add ``value(lo)``, ``value(lo + 1)`` … to ``start``, in order.

        ``READ_AHEAD`` values are loaded before the first is added: an addition takes 4
        cycles, a load that the addition waits for 30 and more.
        """
        end = lo + (hi - lo) // READ_AHEAD * READ_AHEAD
        total = [start]
        with b.loop(lo, end, READ_AHEAD, carry=total) as n:
            for term in [value(n + k) for k in range(READ_AHEAD)]:
                total[0] = total[0] + term
        with b.loop(end, hi, carry=total) as n:
            total[0] = total[0] + value(n)
        return total[0]

    # ------------------------------------------------------------ divide and conquer

    def _shared_width(self, stmt: mir.ReduceDimension) -> int:
        if self.team is None or stmt.ordered:
            return 1
        threads, extent = self.team[0], stmt.extent
        rows = [b.limit for b in stmt.rows.bounds if isinstance(b.limit, int)]
        if not rows or not isinstance(extent, int):
            return 1
        elements = min(rows) * self.k.n_outputs
        width = 1
        while (
            2 * width <= min(WARP, extent)
            and 2 * width * elements <= threads
            and threads % (2 * width) == 0
        ):
            width *= 2
        return width

    def reduce_lanes(
        self, stmt: mir.ReduceDimension, row: Value, lane: Value, width: int
    ) -> None:
        k = self.k
        source, target = k.arrays[stmt.source], k.arrays[stmt.target]
        totals = []
        for j in range(k.n_outputs):
            lane_sum = source.buffer[self.element_index(source, b.const(j))]
            totals.append(b.let(lir.WarpReduce(lane_sum, width), k.sum_type, "warp"))

        with self._first_lane(stmt, row, lane, stmt.prefix) as first:
            for j, total in enumerate(totals):
                self._increase(target.buffer, first + j, total, stmt.atomic)

    @contextmanager
    def _first_lane(
        self,
        stmt: mir.ReduceDimension | mir.Fill,
        row: Value,
        lane: Value,
        prefix: tuple[mir.Index, ...] = (),
    ) -> Iterator[Value]:
        k, rows = self.k, stmt.rows
        leads = (row < self._length(rows)) & lane.eq(0)
        with b.when(leads):
            first = self._offset(k.arrays[stmt.target], (*prefix, rows.start))
            yield first + row * k.n_outputs

    def fill_lanes(self, stmt: mir.Fill, row: Value, lane: Value) -> None:
        buffer = self.k.arrays[stmt.target].buffer
        with self._first_lane(stmt, row, lane) as first:
            for j in range(self.k.n_outputs):
                base = b.const(float(self.k.hir.forest.base[j]), self.k.float_type)
                buffer[first + j] = base

    # ------------------------------------------------------------ one leaf a tree

    def _by_output(
        self, stmt: mir.ReduceDimension, first: Value, slot: Value, length: Value
    ) -> None:
        """Add, for each output, the leaves of its trees in model order.

        Slots may hold some trees of the model: a multiple of their number is the first.
        """
        k, chunk, from_ = self.k, stmt.trees, self.k.affine(stmt.source_rows)
        target, source = k.arrays[stmt.target].buffer, k.arrays[stmt.source]
        outputs = np.asarray(k.hir.forest.tree_output).astype(np.int64)
        size, skipped = max(1, len(outputs)), None
        if chunk is not None:
            size = min(x.limit for x in chunk.bounds if isinstance(x.limit, int))
            skipped = k.affine(chunk.start) // size * k.n_outputs
        # Outputs of the first chunk, then those of the second.
        keys = np.arange(len(outputs)) // size * k.n_outputs + outputs
        order = np.argsort(keys, kind="stable")
        n_chunks = max(1, -(-len(outputs) // size))
        ends = np.searchsorted(keys[order], np.arange(n_chunks * k.n_outputs + 1))
        suffix = "" if chunk is None else f"_by_{size}"
        slots = (order % size).astype(np.int32)
        trees = k.model_buffer(f"trees_of_outputs{suffix}", slots)
        offsets = k.model_buffer(f"outputs_start{suffix}", ends.astype(np.int32))
        with self.spread(length * k.n_outputs) as i:
            row = i // k.n_outputs
            output = i % k.n_outputs
            cell, element = first + i, from_ + row
            key = output if skipped is None else skipped + output
            lo = offsets[key].to(I64)
            hi = offsets[key + 1].to(I64)

            def leaf(n: Value) -> Value:
                index = trees[n].to(I64) * slot + element
                return source.buffer[self.element_index(source, index)]

            target[cell] = self._in_order(target[cell], lo, hi, leaf)

    # ------------------------------------------------------------ later stages

    def _inplace(
        self, stmt: mir.ReduceDimensionInplace
    ) -> Iterator[tuple[Value, lir.Type]]:
        self._zero()  # before the threads part, which all clear slots to it
        with self.spread(self._length(stmt.rows) * self.k.n_outputs) as i:
            yield i, self.k.sum_type

    def finish(self, stmt: mir.Finish) -> None:
        k = self.k
        source, target = k.arrays[stmt.source], k.arrays[mir.RESULT]
        first = self._offset(target, (stmt.rows.start,))
        from_ = self.element_index(source, k.affine(stmt.source_rows) * k.n_outputs)
        base = k.model_buffer("base_f64", k.hir.forest.base.astype(np.float64))
        with self.spread(self._length(stmt.rows) * k.n_outputs) as i:
            scale = b.const(float(np.ldexp(1.0, -k.scale_exponent)), F64)
            value = source.buffer[from_ + i * source.step].to(F64) * scale
            value = (base[i % k.n_outputs] + value).to(k.float_type)
            target.buffer[first + i] = value
