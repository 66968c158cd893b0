"""Lower the code of one GPU thread: a region between two barriers.

A loop over threads becomes the thread's number, with a check if there may be fewer
iterations than threads::

    for b1 in 0 to min(256, rows - b0):  block.x        if t < min(256, rows - b0):
      ...                                          =>     ...

Statements outside any loop over a dimension of the block run in that dimension's
first thread. Everything else is lowered as on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import reduce
from math import prod
from operator import and_

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import I64, Value
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.layouts.base import WalkLayout
from skforge.compiler.lowering.kernel import ArrayView, LoweringState
from skforge.compiler.lowering.lower_reductions import MAX_UNROLLED_CHUNKS
from skforge.compiler.lowering.lower_to_lir import Lowering
from skforge.compiler.schedule.nest import Size
from skforge.exceptions import CompilerError
from skforge.gpu.lowering.lower_sums import GpuSums
from skforge.gpu.nest import WARP, holds_threads


class ThreadLowering(Lowering):
    def __init__(self, kernel: LoweringState) -> None:
        self._gpu = GpuSums(kernel)
        super().__init__(kernel, self._gpu)
        self._place = "host"
        self._dims: dict[str, int] = {}  # threads of the block, by dimension
        self._tid: dict[str, Value] = {}  # the running thread, within a region
        self._unbound: frozenset[str] = frozenset()  # dimensions without a loop yet
        self._shared_bytes = 0  # allocated by the block so far
        self._pending: list[lir.Stmt] = []  # allocations to emit before the region

    @contextmanager
    def _region(self) -> Iterator[None]:
        b = self._k.b
        dimensions = self._dims or {"block.x": 1}
        counts = {kind: b.const(n) for kind, n in dimensions.items()}
        self._tid = {kind: Value(b.name(f"t{kind[-1]}"), I64) for kind in counts}
        dims = tuple((kind, self._tid[kind], counts[kind]) for kind in counts)
        self._place, self._unbound = "thread", frozenset(self._dims)
        with b.body() as stmts:
            yield
        self._place, self._unbound = "block", frozenset()
        for stmt in self._pending:
            b.emit(stmt)
        self._pending.clear()
        b.emit(lir.BlockRegion(dims, tuple(stmts)))  # type: ignore[arg-type]

    @property
    def _n_threads(self) -> int:
        return prod(self._dims.values())

    def _thread_number(self) -> Value:
        counts = {kind: self._k.b.const(n) for kind, n in self._dims.items()}
        return self._linear(self._tid, counts) if counts else self._k.b.const(0)

    def _linear(self, numbers: dict[str, Value], counts: dict[str, Value]) -> Value:
        if not numbers:
            return self._k.b.const(0)
        first, *rest = sorted(numbers, reverse=True)
        total = numbers[first]
        for kind in rest:
            total = total * counts[kind] + numbers[kind]
        return total

    def _fixed_size(self, dims: tuple[Size | None, ...]) -> int | None:
        n = 1
        for dim in dims:
            if dim is not None and not isinstance(dim, int):
                return None
            n *= self._k.n_outputs if dim is None else dim
        return n

    # ------------------------------------------------------------ statements

    def body(self, body: mir.Body) -> None:
        """Lower one thread's code; thread 0 runs what no loop distributes."""
        if self._place != "thread" or not self._unbound:
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
            inside = self._k.b.when(reduce(and_, is_first))
        with inside:
            super().body(stmts)
        self._unbound = unbound

    def _statement(self, stmt: mir.Stmt) -> None:
        match stmt:
            case mir.AllocArray() if self._place == "thread":
                self._private_array(stmt)
            case mir.ReduceDimension(by_warp=True):
                width = self._dims["block.x"]
                row, lane = self._own_row(), self._tid["block.x"]
                self._gpu.reduce_lanes(stmt, row, lane, min(width, WARP))
            case mir.StoreRows():
                self._gpu.store_rows(stmt)
            case mir.Fill(target=target) if target != mir.RESULT:
                self._gpu.fill_kept(stmt)
            case mir.Fill(by_warp=True):
                self._gpu.fill_lanes(stmt, self._own_row(), self._tid["block.x"])
            case mir.CacheRows() | mir.CacheTrees() | mir.QuantizeRows():
                raise CompilerError("a cache was reached within a thread")
            case _:
                super()._statement(stmt)

    def _walk_loop(self, stmt: mir.WalkLoop) -> None:
        """Hop until every walk stands on a leaf, as its node tells.

        On the CPU comparing nodes before and after is cheaper, at the cost of one extra
        hop; on a GPU the hop's reads dominate.
        """
        if isinstance(self._k.walker, WalkLayout):
            super()._walk_loop(stmt)
            return
        self._hop_until_leaves(stmt)

    def _private_array(self, stmt: mir.AllocArray) -> None:
        k, b = self._k, self._k.b
        array = stmt.array
        dims = (b.const(k.n_outputs),) if array.lanes else self._gpu.sizes(array)
        buffer, first = self._own_shared(array), None
        if buffer is None:
            total = self._gpu.elements(dims)
            buffer, step = b.alloc(array.name, k.sum_type, total, "private"), 1
        else:
            first, step = self._thread_number(), self._n_threads
        view = ArrayView(buffer, dims, first, step)
        if stmt.zero:
            self._gpu.zero(view)
        k.arrays[array.name] = replace(view, lanes=array.lanes)

    def _own_shared(self, array: mir.NamedArray) -> lir.Buffer | None:
        """Return shared memory for an array that threads index dynamically.

        Registers cannot be indexed, so the array would otherwise lie in global memory.
        Return None if registers suffice or shared memory is full.
        """
        k = self._k
        n = self._fixed_size((None,) if array.lanes else array.dims)
        few = k.vector_leaves and k.n_outputs <= MAX_UNROLLED_CHUNKS
        if n is None or n == 1 or (few and n == k.n_outputs):
            return None
        size = n * self._n_threads
        n_bytes = -(-size * k.sum_type.bytes // 16) * 16
        if self._shared_bytes + n_bytes > k.target.shared_bytes:
            return None
        self._shared_bytes += n_bytes
        buffer = lir.Buffer(k.b.name(array.name), k.sum_type, "shared", 16)
        count = Value(k.b.name("size"), I64)  # a constant defined before the region
        self._pending += [lir.Let(count, lir.Const(size)), lir.Alloc(buffer, count)]
        return buffer

    def _own_row(self) -> Value:
        rest = {kind: n for kind, n in self._dims.items() if kind != "block.x"}
        counts = {kind: self._k.b.const(n) for kind, n in rest.items()}
        return self._linear({kind: self._tid[kind] for kind in rest}, counts)

    def _loop(self, loop: mir.Loop) -> None:
        if not loop.on_threads:
            super()._loop(loop)
            return
        k, b = self._k, self._k.b
        outer, self._unbound = self._unbound, self._unbound - {loop.kind}
        offset = self._tid[loop.kind] * k.size(loop.step)
        var = k.size(loop.start) + offset
        fits = loop.trip_count == self._dims[loop.kind]
        inside = nullcontext() if fits else b.when(var < k.bound(loop.bounds))
        with inside, self._bound(loop.var, var):
            self.body(loop.body)
        self._unbound = outer


def is_by_lanes(stmt: mir.Stmt) -> bool:
    match stmt:
        case mir.AllocArray(array=array):
            return array.lanes
        case mir.ReduceDimension(by_warp=by_warp) | mir.Fill(by_warp=by_warp):
            return by_warp
        case _:
            return False
