"""Lower MIR to LIR for a GPU: launches, blocks, and regions between barriers.

The generated function with one thread per row, rows and trees in order::

    predict(rows, n_rows, row_stride, result, nodes, ...):
      grid (b0 < ceil(n_rows / 256)):
        region (b1 < 256):
          if b0 * 256 + b1 < n_rows:
            result[row] = base
            for tree in 0 to n_trees: ...                   # as on the CPU

An operation that all threads of a block must finish before any continues (staging rows
or trees in shared memory, summing over threads) gets its own region. Loops around such
operations are uniform over the block; all others run within a thread. An operation
that must wait for other blocks (sums over blocks of trees) gets its own launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, reduce
from operator import mul
from typing import TypeAlias

from skforge.compiler.binning.row_gather import GatheredBins
from skforge.compiler.binning.rules import ReadingRules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U32, Value
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.layouts.base import AnyLayout, SharedMemory
from skforge.compiler.lowering.kernel import (
    ArrayView,
    LoweredKernel,
    LoweringState,
    RowView,
)
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.gpu import nest
from skforge.gpu.lowering.lower_threads import ThreadLowering, is_by_lanes

#: Yields each row and column that a thread takes, of all threads of a block.
Cells: TypeAlias = Callable[[Value, int, int], Iterable[tuple[Value, Value]]]

#: Banks of shared memory, one word wide.
BANKS = 32

#: Codes are stored as whole words if these fit in 1 / WORDS_SHARE of shared memory.
WORDS_SHARE = 4


def _layout(rows: int, by_row: bool) -> str:
    return "feature" if by_row and rows % BANKS == 0 else "padded"


def _strides(layout: str, rows: int, columns: int) -> tuple[int, int, int]:
    if layout == "feature":
        return 1, rows, rows * columns
    stride = nest.row_stride(columns, layout == "padded")
    return stride, 1, rows * stride


def share_rows(
    k: LoweringState,
    stmt: mir.CacheRows,
    by_row: bool,
    memory: SharedMemory,
    cells: Cells,
) -> RowView:
    """Copy rows to shared memory and return where walks read them (SilvanForge §7).

    ``by_row`` says that neighbouring threads take neighbouring rows; ``cells``
    distributes rows and columns over the block's threads. If they do, rows are stored
    feature-major: every lane reads another bank whatever its feature (1.0 cycle a read
    against 3 and more). Otherwise rows are stored one after another with an odd stride
    in words, which avoids bank conflicts.
    """
    n_features, rows = k.hir.forest.n_features, stmt.rows
    limits = [bound.limit for bound in rows.bounds if isinstance(bound.limit, int)]
    if not limits:
        raise ScheduleError(
            "cache brings a block's rows to shared memory, which needs a fixed number "
            "of them; tile the batch with a positive size."
        )
    first, count = k.extent(rows)
    layout = stmt.layout or _layout(min(limits), by_row)
    stride, step, size = _strides(layout, min(limits), n_features)
    cached = memory.allocate("cached_rows", k.rows.element, size, "cache of rows")
    start = first * k.row_stride
    for row, feature in cells(count, min(limits), n_features):
        there = row * k.row_stride + feature
        cached[row * stride + feature * step] = k.rows[start + there]
    return RowView(cached, stride, first, step)


def share_codes(
    k: LoweringState, stmt: mir.QuantizeRows, by_row: bool, memory: SharedMemory
) -> RowView:
    table = k.hir.codes
    assert table is not None
    n_columns = max(1, table.n_columns)
    first, count = k.extent(stmt.rows)
    stride, step, size = _strides(_layout(stmt.size, by_row), stmt.size, n_columns)
    fits = size * U32.bytes * WORDS_SHARE <= k.target.shared_bytes
    element = U32 if fits else scalar_of(table.dtype)
    codes = memory.allocate("codes", element, size, "quantize")
    rules = ReadingRules(k.hir.forest, k.hir.comparison, k.model_buffer)
    search = GatheredBins(rules, table, 0, step, element)
    if search.has_order:
        with memory.each(count * n_columns) as i:
            row, number = i // n_columns, i % n_columns
            start = (first + row) * k.row_stride
            search.write_column(k.rows, start, row * stride, number, codes)
    if search.has_tests:
        with memory.each(count) as row:
            start = (first + row) * k.row_stride
            search.write_tests(k.rows, start, row * stride, codes)
    return RowView(codes, stride, first, step)


#: Most columns of a row that neighbouring threads copy at once, and that one thread
#: copies in sequence.
MOST_COLUMNS_AT_ONCE, MOST_COLUMNS_A_THREAD = 32, 8

#: Threads of a block that only fills or sums arrays.
UTILITY_THREADS = 256

#: Most elements of a model array; see ``narrow_indices``.
MOST_ELEMENTS = (1 << 31) - 1


def run(
    function: mir.Function,
    hir: PredictEnsemble,
    layout: AnyLayout,
    *,
    target: Target,
    name: str = "predict",
) -> LoweredKernel:
    """Lower a legalised function, whose walks are expanded, to kernel launches.

    Raises ScheduleError if a block's caches exceed its shared memory, or a model array
    has more elements than a 32-bit index reaches.
    """
    kernel = LoweringState(function, hir, layout, target)
    with kernel.b:
        _GridLowering(kernel).host(function.body)
        lowered = kernel.finish(name)
    for item in lowered.data:
        if item.data.size > MOST_ELEMENTS:
            raise ScheduleError(
                f"the forest's array of {item.buffer.name} has {item.data.size:,} "
                f"elements, but GPU kernels can index only {MOST_ELEMENTS:,}; use "
                "target='cpu', or compile it in parts."
            )
    return lowered


class _GridLowering(ThreadLowering):
    def __init__(self, kernel: LoweringState) -> None:
        super().__init__(kernel)
        self._whole = kernel.layout
        self._block_number: Value | None = None
        #: Global scratch of the launch; each block uses its own part.
        self._allocs: list[tuple[lir.Buffer, mir.NamedArray]] = []
        self._by_row = True  # whether neighbouring threads take neighbouring rows

    # ------------------------------------------------------------ the host

    def host(self, body: mir.Body, shared: mir.Body = ()) -> None:
        """Lower what is in no launch yet; each launch repeats the ``shared`` caches."""
        shared = (*shared, *(stmt for stmt in body if isinstance(stmt, nest.FILLS)))
        for stmt in body:
            match stmt:
                case mir.AllocArray():
                    self._host_array(stmt)
                case mir.Loop() if nest.holds_grid(stmt) and not stmt.on_grid:
                    assert stmt.kind == "serial"  # the grid is outside the block
                    self._host_loop(stmt, shared)
                case mir.Loop() if nest.holds_threads(stmt) or nest.holds_grid(stmt):
                    self._launches((), shared, (stmt,))
                case mir.Loop():
                    # Later stages of a reduction, one slot after another.
                    self._host_loop(stmt, ())
                case mir.CacheRows() | mir.CacheTrees() | mir.QuantizeRows():
                    pass
                case _:
                    with self._gpu.spread_by(self._launch_each):
                        self._statement(stmt)

    def _host_loop(self, loop: mir.Loop, shared: mir.Body) -> None:
        with self._serial(loop):
            self.host(loop.body, shared)

    @contextmanager
    def _serial(self, loop: mir.Loop) -> Iterator[None]:
        k = self.k
        lo, hi, step = k.size(loop.start), k.bound(loop.bounds), k.size(loop.step)
        with b.loop(lo, hi, step, hint=loop.var) as var, self._bound(loop.var, var):
            yield

    def _host_array(self, stmt: mir.AllocArray) -> None:
        dims = self._gpu.sizes(stmt.array)
        total = self._gpu.elements(dims)
        buffer = b.alloc(stmt.array.name, self.k.sum_type, total)
        view = self.k.arrays[stmt.array.name] = ArrayView(buffer, dims)
        if stmt.zero:
            with self._gpu.spread_by(self._launch_each):
                self._gpu.zero(view)

    @contextmanager
    def _launch_each(self, count: Value) -> Iterator[Value]:
        blocks = (count + (UTILITY_THREADS - 1)) // UTILITY_THREADS
        block = Value(b.name("block"), I64)
        with b.body() as stmts:
            first = block * UTILITY_THREADS
            threads = b.const(UTILITY_THREADS)
            thread = Value(b.name("thread"), I64)
            with b.body() as inside:
                i = first + thread
                with b.when(i < count):
                    yield i
            dims = (("block.x", thread, threads),)
            b.emit(lir.BlockRegion(dims, tuple(inside)))  # type: ignore[arg-type]
        b.emit(lir.Grid((("grid.x", block, blocks),), tuple(stmts)))

    # ------------------------------------------------------------ launches

    def _launches(
        self, loops: tuple[mir.Loop, ...], shared: mir.Body, body: mir.Body
    ) -> None:
        run: list[mir.Stmt] = []

        def flush() -> mir.Body:
            if any(not isinstance(stmt, nest.FILLS) for stmt in run):
                self._launch(loops, (*shared, *run))
            stmts = (*shared, *(stmt for stmt in run if isinstance(stmt, nest.FILLS)))
            run.clear()
            return stmts

        for stmt in body:
            if nest.holds_grid(stmt):
                shared = flush()
                # bind refuses serial loops between loops over the grid
                assert isinstance(stmt, mir.Loop) and stmt.on_grid
                self._launches((*loops, stmt), shared, stmt.body)
            else:
                run.append(stmt)
        flush()

    def _launch(self, loops: tuple[mir.Loop, ...], body: mir.Body) -> None:
        self._dims = nest.block_dims(body)
        roots = (i.root for i in loops_in(body) if i.kind == "block.x")
        self._by_row = next(roots, "batch") == "batch"
        self._allocs, self._shared_bytes = [], 0
        counts: dict[str, Value] = {loop.kind: self._n_blocks(loop) for loop in loops}
        numbers: dict[str, Value] = {
            kind: Value(b.name(kind[-1]), I64) for kind in counts
        }
        total = reduce(mul, counts.values(), b.const(1))
        with b.body() as stmts:
            self._scope = "block"
            self._block_number = self._linear(numbers, counts)
            with ExitStack() as turns:
                for loop in loops:
                    fits = all(bound.minus == mir.Affine() for bound in loop.bounds)
                    turns.enter_context(self._turn(loop, numbers[loop.kind], fits))
                self._together(body)
            self._scope = "host"
        for buffer, array in self._allocs:
            size = self._gpu.elements(self._gpu.sizes(array))
            b.emit(lir.Alloc(buffer, total * size))
        if not counts:
            counts = {"grid.x": b.const(1)}
            numbers = {"grid.x": Value(b.name("x"), I64)}
        dims = tuple((kind, numbers[kind], counts[kind]) for kind in sorted(counts))
        b.emit(lir.Grid(dims, tuple(stmts)))  # type: ignore[arg-type]

    def _n_blocks(self, loop: mir.Loop) -> Value:
        fixed = tuple(bound for bound in loop.bounds if bound.minus == mir.Affine())
        bounds = fixed or tuple(replace(x, minus=mir.Affine()) for x in loop.bounds)
        start, step = self.k.size(loop.start), self.k.size(loop.step)
        return self._trips(loop, start, self.k.bound(bounds), step)

    # ------------------------------------------------------------ a block

    def _together(self, body: mir.Body) -> None:
        k = self.k
        outer = k.row_view, k.layout
        run: list[mir.Stmt] = []
        for stmt in body:
            if self._is_threads_own(stmt):
                run.append(stmt)
                continue
            self._flush(run)
            match stmt:
                case mir.AllocArray():
                    self._block_array(stmt)
                case mir.CacheRows():
                    memory, cells = self._memory(), self._block_cells
                    k.row_view = share_rows(k, stmt, self._by_row, memory, cells)
                case mir.CacheTrees(trees=trees):
                    first, count = k.extent(trees)
                    limits = [x.limit for x in trees.bounds if isinstance(x.limit, int)]
                    k.layout = self._whole  # also when this cache is inside another
                    memory, most = self._memory(), min(limits)
                    k.layout = k.walker.share_trees(memory, first, count, most)
                case mir.QuantizeRows():
                    view = share_codes(k, stmt, self._by_row, self._memory())
                    k.codes[stmt.name] = view
                case mir.Loop():
                    # around barriers: every thread of the block runs it alike
                    assert stmt.kind == "serial"  # bind refuses caches inside threads
                    with self._serial(stmt):
                        self._together(stmt.body)
                case mir.DepthSwitch():
                    cases = [partial(self._together, body) for body in stmt.cases]
                    b.switch(self._depth_class(stmt), cases)
                case _:
                    with self._gpu.spread_by(self._block_each):
                        self._gpu.team = self._n_threads, self._with_number
                        self._statement(stmt)
                        self._gpu.team = None
        self._flush(run)
        k.row_view, k.layout = outer

    def _is_threads_own(self, stmt: mir.Stmt) -> bool:
        match stmt:
            case mir.Loop() | mir.DepthSwitch():
                return not nest.caches(stmt) and not _sums_arrays(stmt)
            case mir.Let() | mir.Reduce() | mir.StoreLeaf() | mir.WalkLoop():
                return True
            case _:
                return is_by_lanes(stmt)

    def _flush(self, run: list[mir.Stmt]) -> None:
        if run:
            with self._region():
                self.body(tuple(run))
            run.clear()

    @contextmanager
    def _with_number(self) -> Iterator[Value]:
        with self._region():
            yield self._thread_number()

    @contextmanager
    def _block_each(self, count: Value) -> Iterator[Value]:
        with self._with_number() as first, b.loop(first, count, self._n_threads) as i:
            yield i

    def _block_cells(
        self, n_rows: Value, most_rows: int, n_columns: int
    ) -> Iterator[tuple[Value, Value]]:
        """Yield each row and column; neighbouring threads take columns.

        Each thread's columns are unrolled, so that their addresses differ by constants:
        about 8 instructions per value for 13 columns and 3 for 100, where splitting an
        index into row and column takes 14. Where there are fewer rows than threads,
        more threads share a row: two of 50 copied 1,024 columns in 11 us of an H100.
        """
        threads = self._n_threads
        most = max(1, min(threads, n_columns))
        widths = [w for w in range(1, most + 1) if threads % w == 0]
        few = [w for w in widths if not w & (w - 1) and w <= MOST_COLUMNS_AT_ONCE]
        width = max((w for w in few if 3 * w <= n_columns), default=1)
        if threads > width * most_rows:
            busy = [w for w in widths if threads <= w * most_rows]
            width = busy[0] if busy else widths[-1]
        chunk = width * MOST_COLUMNS_A_THREAD
        whole = n_columns // chunk * chunk

        def columns(first: Value, n: int) -> Iterator[Value]:
            for c in range(0, n - width + 1, width):
                yield first + c
            if n % width:
                last = first + (n - n % width)
                with b.when(last < b.const(n_columns)):
                    yield last

        with self._with_number() as number:
            first = number % width
            with b.loop(number // width, n_rows, threads // width) as r:
                if whole:
                    with b.loop(0, whole, chunk) as c:
                        yield from ((r, j) for j in columns(first + c, chunk))
                yield from ((r, j) for j in columns(first + whole, n_columns - whole))

    def _block_array(self, stmt: mir.AllocArray) -> None:
        array = stmt.array
        dims = self._gpu.sizes(array)
        if array.shared:
            n = nest.fixed_size(array.dims, self.k.n_outputs)
            if n is None:
                raise ScheduleError(
                    "shared_reduce needs a fixed number of rows in a block; tile the "
                    "batch with a positive size."
                )
            buffer = self._share(array.name, self.k.sum_type, n, "shared_reduce")
            view = ArrayView(buffer, dims)
        else:
            size = self._gpu.elements(dims)
            buffer = lir.Buffer(b.name(array.name), self.k.sum_type, alignment=64)
            self._allocs.append((buffer, array))
            assert self._block_number is not None
            view = ArrayView(buffer, dims, self._block_number * size)
        self.k.arrays[array.name] = view
        if stmt.zero:
            with self._gpu.spread_by(self._block_each):
                self._gpu.zero(view)

    def _share(self, name: str, element: lir.Scalar, n: int, what: str) -> lir.Buffer:
        target, alignment = self.k.target, 16
        self._shared_bytes += -(-n * element.bytes // alignment) * alignment
        if self._shared_bytes > target.shared_bytes:
            raise ScheduleError(
                f"{what} brings a block's shared memory to {self._shared_bytes:,} "
                f"bytes, but {target.cpu} has {target.shared_bytes:,}. Use smaller "
                "tiles, or leave it out."
            )
        buffer = lir.Buffer(b.name(name), element, "shared", alignment)
        b.emit(lir.Alloc(buffer, b.const(n)))
        return buffer

    def _memory(self) -> SharedMemory:
        return SharedMemory(self.k.b, self._share, self._block_each)


def _sums_arrays(stmt: mir.Stmt) -> bool:
    match stmt:
        case mir.AllocArray(array=array):
            return not array.lanes
        case mir.ReduceDimension(by_warp=False) | mir.ReduceDimensionInplace():
            return True
        case mir.Loop(body=body):
            if stmt.on_threads:
                return False
            # One thread initialises sums that other threads add to.
            starts = any(isinstance(i, mir.Fill) and not i.by_warp for i in body)
            if starts and any(nest.holds_threads(i) for i in body):
                return True
            return any(_sums_arrays(i) for i in body)
        case mir.DepthSwitch(cases=cases):
            return any(_sums_arrays(i) for case in cases for i in case)
        case _:
            return False
