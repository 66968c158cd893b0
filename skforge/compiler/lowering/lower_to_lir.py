"""Lower MIR to LIR: loops with remainders, and walks through the representation.

The generated function, for the default schedule of a batch::

    predict(rows, n_rows, row_stride, result, nodes, roots, leaf_values):
      parallel for each block of 64 rows:
        result[block] = base
        for tree in 0 to n_trees:
          for rows of the block, 8 at a time:
            node[0..8] = roots[tree]
            node[0..8] = hop(node[0..8], rows[0..8])     # as often as trees are deep
            result[row] += leaf_values[node[0..8]]
          for the rows left over: the same, one at a time

Model arrays are parameters: the code does not grow with the number of trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, reduce
from operator import mul, or_, xor

from skforge.compiler.binning.block import quantize_block
from skforge.compiler.binning.rules import BlockRows, ReadingRules, RowAt
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, Value
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import BlockCode, BlockLayout, BlockRepresentation
from skforge.compiler.lowering.kernel import LoweredKernel, LoweringState, RowView
from skforge.compiler.lowering.lower_reductions import ReductionLowering
from skforge.compiler.lowering.lower_walks import WalkLowering
from skforge.compiler.passes.mir.reduces import (
    element_of,
    holds_whole_array_ops,
    reduces_in,
    shared_with,
    variables,
)
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError
from skforge.forest.bins import code_stride
from skforge.schedule.bound import predicate_trees

#: A loop of hops runs as fast as unrolled hops and compiles three times faster
#: (8 walks of 8 hops: 0.55 us a row both ways, 33 ms against 100 ms).
LEAST_HOPS_IN_A_LOOP = 3

#: Bytes of rows covered by one prefetch: a cache line.
PREFETCH_STEP_BYTES = 64


def run(
    function: mir.Function,
    hir: PredictEnsemble,
    layout: layouts.AnyLayout,
    *,
    target: Target,
    name: str = "predict",
) -> LoweredKernel:
    """Lower a legalised function whose walks are expanded."""
    kernel = LoweringState(function, hir, layout, target)
    with kernel.b:
        Lowering(kernel, ReductionLowering(kernel)).body(function.body)
        return kernel.finish(name)


class Lowering:
    #: Whether a walk ends where each node tells that it is a leaf, without extra hop.
    _asks_nodes = False

    def __init__(self, kernel: LoweringState, sums: ReductionLowering) -> None:
        self.k = kernel
        self._walks = WalkLowering(kernel)
        self._sums = sums
        self._lanes = 0  # of the enclosing vector loop, if any
        self._block_rows: Value | None = None  # rows per block, if chosen at run time
        self._block: BlockCode  # of the enclosing block of rows
        self._row: layouts.RowCode  # of the enclosing row
        # the code of several rows, and which of them is evaluated
        self._of_rows: tuple[layouts.RowCode, Value] | None = None
        kernel.arrays[mir.RESULT] = self._sums.result_view()

    # ------------------------------------------------------------ statements

    def body(self, body: mir.Body) -> None:
        at = 0
        while at < len(body):
            hops = _hops(body, at)
            if len(hops) >= LEAST_HOPS_IN_A_LOOP:
                self._repeat(hops)
                at += len(hops)
            else:
                self._statement(body[at])
                at += 1

    def _statement(self, stmt: mir.Stmt) -> None:
        match stmt:
            case mir.Let():
                self._let(stmt)
            case mir.WalkLoop():
                self._walk_loop(stmt)
            case mir.Loop():
                self._loop(stmt)
            case mir.DepthSwitch():
                self._depth_switch(stmt)
            case mir.Reduce():
                self._sums.reduce(stmt)
            case mir.StoreLeaf():
                self._sums.store_leaf(stmt)
            case mir.ReduceDimension():
                self._sums.reduce_dimension(stmt)
            case mir.ReduceDimensionInplace():
                self._sums.reduce_dimension_inplace(stmt)
            case mir.AllocArray():
                self._sums.alloc(stmt)
            case mir.Fill(target=target):
                if isinstance(self.k.layout, BlockLayout):
                    self._block.start(self.k.arrays[target].buffer)
                else:
                    self._sums.fill(stmt)
            case mir.Finish():
                self._sums.finish(stmt)
            case mir.CacheTrees(trees=trees):
                self.k.walker.cache_trees(self.k.b, *self.k.extent(trees))
            case mir.CacheRows(rows=rows, share=None):
                if self._takes_values():
                    self._evaluate(rows)
                else:
                    self._cache_rows(rows)
            case mir.CacheRows():
                self._cache_share(stmt)
            case mir.EvaluatePredicates(trees=trees, rows=rows):
                if predicate_trees(self.k.hir.nest.loops) is None:
                    self._evaluate(rows)
                else:
                    self._block.take_trees(self.k.affine(trees.start))
            case mir.TakeRows(rows=rows):
                self._take_rows(rows)
            case mir.QuantizeRows():
                self._quantize_rows(stmt)
            case mir.StoreRows(source=source, rows=rows):
                first, count = self.k.extent(rows)
                if self._block_rows is not None:
                    count = count.min(self._block_rows)
                sums = self.k.arrays[source].buffer
                self._block.finish(sums, self.k.result, first, count)

    def _let(self, stmt: mir.Let) -> None:
        values: list[Value]
        match stmt.op:
            case mir.GetTree(index=index):
                values = [self.k.affine(index)]
            case mir.GetTreeClassId(tree=tree):
                table = self.k.tree_outputs(by_position=True)
                values = [table[self.k.values[tree]].to(I64)]
            case mir.GetRoot():
                values = self._walks.roots(stmt.op)
                if self._lanes:  # each lane of a vector loop has the root, as i32
                    values = [b.splat(v.to(lir.I32), self._lanes) for v in values]
            case mir.TraverseTreeTile() as op:
                walks = self._walks
                values = walks.hop(op, walks.open(op), walks.row_starts(op))
            case mir.GetLeafValue():
                values = self._walks.leaf_values(stmt.op)
            case mir.WalkDecisionTree():
                raise CompilerError("a walk_decision_tree was not expanded")
        self.k.values.update(zip(stmt.names, values, strict=True))

    def _repeat(self, hops: Sequence[mir.Let]) -> None:
        k, walks = self.k, self._walks
        first = hops[0].op
        assert isinstance(first, mir.TraverseTreeTile)
        starts = walks.row_starts(first)
        nodes = [k.values[name] for name in first.nodes]
        with b.loop(len(hops), carry=nodes, hint="hop"):
            nodes[:] = walks.hop(first, walks.open(first, tuple(nodes)), starts)
        k.values.update(zip(hops[-1].names, nodes, strict=True))

    def _walk_loop(self, stmt: mir.WalkLoop) -> None:
        """Hop until no walk moves any more.

        A walk on a leaf stays there, so comparing nodes before and after a hop replaces
        the leaf check: cheaper than decoding the node, at the cost of one extra hop.
        """
        k, walks = self.k, self._walks
        if isinstance(k.walker, layouts.WalkLayout):
            ends = walks.whole_walk(stmt.step)
            k.values.update(zip(stmt.results, ends, strict=True))
            return
        if self._asks_nodes or k.hopper.leaves_by_number:
            self._hop_until_leaves(stmt)
            return
        starts = walks.row_starts(stmt.step)
        inits = [k.values[name] for name in stmt.inits]
        carried = [b.const(1, inits[0].type), *inits]
        with b.repeat(lambda: b.any_true(carried[0].ne(0)), carried):
            nodes = tuple(carried[1:])
            moved = walks.hop(stmt.step, walks.open(stmt.step, nodes), starts)
            carried[:] = [reduce(or_, map(xor, nodes, moved)), *moved]
        k.values.update(zip(stmt.results, carried[1:], strict=True))

    def _hop_until_leaves(self, stmt: mir.WalkLoop) -> None:
        k, walks, step = self.k, self._walks, stmt.step
        starts = walks.row_starts(step)
        if len(step.nodes) == 1:  # the condition of the loop checks it
            step = replace(step, checked=False)
        nodes = [k.values[name] for name in stmt.inits]
        cursors_now: list[layouts.Cursor] = []

        def is_going() -> Value:
            cursors_now.extend(walks.open(step, tuple(nodes)))
            is_inner = (~walks.op(k.hopper.is_leaf, at) for at in cursors_now)
            return reduce(or_, is_inner)

        with b.repeat(is_going, nodes):
            nodes[:] = walks.hop(step, cursors_now, starts)
        k.values.update(zip(stmt.results, nodes, strict=True))

    def _cache_rows(self, rows: mir.Range) -> None:
        first, count = self.k.extent(rows)
        per_line = PREFETCH_STEP_BYTES // self.k.rows.element.bytes
        with b.loop(count, hint="row") as i:
            start = (first + i) * self.k.row_stride
            with b.loop(0, self.k.hir.forest.n_features, per_line, hint="line") as f:
                # Reads, as they start what the CPU fetches ahead by itself (Zen 4,
                # 64 new rows of 3000 columns: 4.6 us a row prefetched, 2.2 read).
                b.touch(self.k.rows, start + f)

    def _cache_share(self, stmt: mir.CacheRows) -> None:
        assert stmt.share is not None
        var, step, trips = stmt.share
        number = self.k.values[var] // step
        count = self.k.bound(stmt.rows.bounds).max(0)
        part = count * self.k.row_stride // trips + 1
        lo = self.k.affine(stmt.rows.start) * self.k.row_stride + number * part
        per_line = PREFETCH_STEP_BYTES // self.k.rows.element.bytes
        hi = lo + part * (count > 0).to(I64)
        with b.loop(lo, hi, per_line, hint="line") as i:
            # Not to L1, where the scratch of a block lies (Zen 4, 4,096 new rows of 90
            # columns, bit logic: 137 ns a row without, 137 to L1, 119 to L2).
            b.prefetch(self.k.rows, i, level=2)

    # ------------------------------------------------------------ loops

    def _loop(self, loop: mir.Loop) -> None:
        match loop.kind:
            case "serial" | "vector" | "parallel":
                lo, step = self.k.size(loop.start), self.k.size(loop.step)
                hi = self.k.bound(loop.bounds)
                lower = self._parallel if loop.kind == "parallel" else self._grouped
                lower(loop, lo, hi, step)
            case "block" if loop.root == "tree":
                self._all_trees(loop)
            case "block":
                self._tree_of_block(loop)
            case _:
                raise CompilerError(f"{loop.kind} loops need the GPU lowering")

    def _grouped(self, loop: mir.Loop, lo: Value, hi: Value, step: Value) -> None:
        if (layout := self._rows_at_once(loop)) is not None:
            with b.loop(lo, hi, layout.together, hint=loop.var) as first:
                self._rows_together(loop, layout, first, hi)
            return
        with self._carry(loop):
            if loop.group == 1:
                self._run(loop, lo, hi, step)
                return
            stride = step * loop.group
            if not loop.remainder:
                self._run(loop, lo, hi, stride)
                return
            middle = lo + self._trips(loop, lo, hi, step) // loop.group * stride
            self._run(loop, lo, middle, stride)
            self._run(loop, middle, hi, step, remainder=True)

    def _rows_at_once(self, loop: mir.Loop) -> layouts.RowLayout | None:
        """Return the layout if a loop over rows takes several through all trees."""
        layout = self.k.layout
        if not isinstance(layout, layouts.RowLayout) or layout.together == 1:
            return None
        inner = [s.kind for s in loop.body if isinstance(s, mir.Loop)]
        return layout if inner == ["block"] else None

    def _trips(self, loop: mir.Loop, lo: Value, hi: Value, step: Value) -> Value:
        span = hi - lo if loop.start != 0 else hi
        if loop.step != 1:
            span = span + (step - 1)
        span = span.max(0)
        return span if loop.step == 1 else span // step

    def _run(
        self, loop: mir.Loop, lo: Value, hi: Value, step: Value, remainder: bool = False
    ) -> None:
        keys = list(self.k.carried)
        sums = [self.k.carried[key] for key in keys]
        with b.loop(lo, hi, step, carry=sums, hint=loop.var) as var:
            self.k.carried = dict(zip(keys, sums, strict=True))
            outer = self._lanes
            if loop.kind == "vector" and not remainder:  # one value per lane
                self._lanes, lanes = loop.group, b.iota(I64, loop.group)
                if loop.step != 1:
                    lanes = lanes * b.splat(self.k.size(loop.step), loop.group)
                var = b.splat(var, loop.group) + lanes
            with self._bound(loop.var, var):
                self.body(loop.remainder if remainder else loop.body)
            self._lanes = outer
            sums[:] = [self.k.carried[key] for key in keys]
        self.k.carried = dict(zip(keys, sums, strict=True))

    def _rows_together(
        self, loop: mir.Loop, layout: layouts.RowLayout, first: Value, hi: Value
    ) -> None:
        """Take several rows through all trees, and add their leaves together."""
        k, n = self.k, layout.together
        (block,) = (s for s in loop.body if isinstance(s, mir.Loop))
        (reduce,) = reduces_in(block.body)
        at = loop.body.index(block)
        count = (hi - first).min(n)
        code = layout.start(b, k.model_buffer)
        with b.loop(count) as r, self._bound(loop.var, first + r):
            self._of_rows = code, r
            self.body(loop.body[:at])
        self._of_rows = None
        code.evaluated()

        def add(start: Value, rows: int) -> None:
            sums = []
            for r in range(rows):
                number = start + r
                with self._bound(loop.var, first + number):
                    sums.append((number, *self._sums.element(reduce, 1)))
            code.add_together(*sums)

        with b.loop(0, count, layout.added, hint="row") as start:
            cases = [partial(add, start, k + 1) for k in range(layout.added)]
            b.switch((count - start - 1).min(layout.added - 1), cases)
        with b.loop(count) as r, self._bound(loop.var, first + r):
            self.body(loop.body[at + 1 :])

    def _parallel(self, loop: mir.Loop, lo: Value, hi: Value, step: Value) -> None:
        if any(isinstance(stmt, mir.StoreRows) for stmt in loop.body):
            group = BlockRepresentation.of(self.k.hir).row_group
            if group:
                step = self._block_rows = self._even_blocks(lo, hi, step, group)
        trips = self._trips(loop, lo, hi, step)
        if shared_with(loop) is not None:
            self._deal_out([(loop, lo, step, trips)])
            return
        if (layout := self._rows_at_once(loop)) is not None:
            n = layout.together
            with b.parallel((trips + (n - 1)) // n) as p:
                self._rows_together(loop, layout, lo + p * n, hi)
            return
        count = trips if loop.group == 1 else trips // loop.group
        stride = step * loop.group
        carried, self.k.carried = self.k.carried, {}
        with b.parallel(count) as p, self._bound(loop.var, lo + p * stride):
            self.body(loop.body)
        self.k.carried = carried
        self._block_rows = None
        if loop.remainder:
            middle = lo + count * stride
            self._run(loop, middle, hi, step, remainder=True)

    def _deal_out(self, nest: list[tuple[mir.Loop, Value, Value, Value]]) -> None:
        inner = shared_with(nest[-1][0])
        if inner is not None:
            lo, step = self.k.size(inner.start), self.k.size(inner.step)
            trips = self._trips(inner, lo, self.k.bound(inner.bounds), step)
            self._deal_out([*nest, (inner, lo, step, trips)])
            return
        total = reduce(mul, (trips for *_, trips in nest))
        carried, self.k.carried = self.k.carried, {}
        with b.parallel(total) as rest:
            places = []
            for _, _, _, trips in reversed(nest[1:]):
                outer = rest // trips
                places.append(rest - outer * trips)
                rest = outer
            with ExitStack() as bound:
                for (loop, lo, step, _), place in zip(
                    nest, (rest, *reversed(places)), strict=True
                ):
                    bound.enter_context(self._bound(loop.var, lo + place * step))
                    apart = shared_with(loop)
                    self.body(tuple(s for s in loop.body if s is not apart))
        self.k.carried = carried

    # ------------------------------------------------------------ blocks of rows

    def _even_blocks(self, lo: Value, hi: Value, most: Value, group: int) -> Value:
        """Return the rows per block that give every thread equally many blocks."""
        rows = (hi - lo).max(1)
        least = (rows + most - 1) // most
        threads = b.threads()
        blocks = (least + threads - 1) // threads * threads
        groups = ((rows + blocks - 1) // blocks + (group - 1)) // group
        return (groups * group).min(most)

    def _takes_values(self) -> bool:
        if not isinstance(self.k.layout, BlockLayout) or self.k.hir.codes is not None:
            return False
        return BlockRepresentation.of(self.k.hir).takes_values

    def _evaluate(self, rows: mir.Range) -> None:
        k, layout = self.k, self.k.layout
        assert isinstance(layout, BlockLayout)
        first, width = k.affine(rows.start), k.hir.forest.n_features
        end = k.n_rows
        if self._block_rows is not None:
            end = end.min(first + self._block_rows)
        block = BlockRows(k.rows, end, k.row_stride, first, width)
        self._block = layout.evaluate(k.b, block, k.model_buffer)
        self._block.writes_to(k.result)

    def _take_rows(self, rows: mir.Range) -> None:
        k = self.k
        if not isinstance(k.layout, layouts.RowLayout):
            self._evaluate(rows)
            return
        row = RowAt(k.rows, k.affine(rows.start) * k.row_stride)
        if self._of_rows is None:
            self._row = k.layout.quantize(b, row, k.model_buffer)
        else:
            code, number = self._of_rows
            code.evaluate(row, number)

    def _quantize_rows(self, stmt: mir.QuantizeRows) -> None:
        k = self.k
        if isinstance(k.layout, (BlockLayout, layouts.RowLayout)):
            self._take_rows(stmt.rows)
            return
        table = k.hir.codes
        assert table is not None
        first, count = k.extent(stmt.rows)
        rows = BlockRows(k.rows, k.n_rows, k.row_stride, first, k.hir.forest.n_features)
        rules = ReadingRules(k.hir.forest, k.hir.comparison, k.model_buffer)
        codes = quantize_block(rules, table, k.target, stmt.size, rows, count)
        k.codes[stmt.name] = RowView(codes, code_stride(table), first)

    def _tree_of_block(self, loop: mir.Loop) -> None:
        k = self.k
        trees = [
            stmt.op.index
            for stmt in loop.body
            if isinstance(stmt, mir.Let) and isinstance(stmt.op, mir.GetTree)
        ]
        (reduce,) = reduces_in(loop.body)
        self._block.add_tree(k.affine(trees[0]), k.arrays[reduce.target].buffer)

    def _all_trees(self, loop: mir.Loop) -> None:
        (reduce,) = reduces_in(loop.body)
        self._row.add_trees(*self._sums.element(reduce, 1))

    def _depth_class(self, stmt: mir.DepthSwitch) -> Value:
        return self.k.class_table(stmt.class_of)[self.k.affine(stmt.position)].to(I64)

    def _depth_switch(self, stmt: mir.DepthSwitch) -> None:
        if len(stmt.cases) == 1:
            self.body(stmt.cases[0])
            return
        selector, before = self._depth_class(stmt), dict(self.k.carried)

        def case(body: mir.Body) -> Sequence[Value]:
            self.k.carried = dict(before)
            self.body(body)
            return [self.k.carried[key] for key in before]

        types = [value.type for value in before.values()]
        results = b.switch(selector, [partial(case, s) for s in stmt.cases], types)
        self.k.carried = dict(zip(before, results, strict=True))

    # ------------------------------------------------------------ registers

    @contextmanager
    def _bound(self, var: str, value: Value) -> Iterator[None]:
        self.k.values[var] = value
        yield
        del self.k.values[var]

    @contextmanager
    def _carry(self, loop: mir.Loop) -> Iterator[None]:
        reduce = self._only_element(loop)
        if reduce is None:
            yield
            return
        k, sums, element = self.k, self._sums, element_of(reduce)
        k.carried[element] = b.load(*sums.element(reduce))
        yield
        value = k.carried.pop(element)
        b.store(*sums.element(reduce), value)

    def _only_element(self, loop: mir.Loop) -> mir.Reduce | None:
        """Return a tree loop's reduce if all in it add to one element.

        No inner loop may change its indices.
        """
        if loop.root != "tree" or self.k.carried:
            return None
        body = (*loop.body, *loop.remainder)
        reduces, inside = list(reduces_in(body)), [loop, *loops_in(body)]
        first = reduces[0] if reduces else None
        if (
            first is None
            or any(element_of(r) != element_of(first) or r.atomic for r in reduces)
            or any(i.kind != "serial" or i.root != "tree" for i in inside)
            or holds_whole_array_ops(body)
            or any(isinstance(i, mir.Class | mir.Outputs) for i in first.indices)
            or variables(first) & {i.var for i in inside}
        ):
            return None
        return first


def _hops(body: mir.Body, at: int) -> list[mir.Let]:
    run: list[mir.Let] = []
    for stmt in body[at:]:
        match stmt:
            case mir.Let(op=mir.TraverseTreeTile(checked=False) as op):
                if run and op.nodes != run[-1].names:
                    break
                run.append(stmt)
            case _:
                break
    return run
