"""The interpreter of MIR, the oracle of everything below it.

It runs a function after any pass, one walk at a time, on the trees of HIR. Parallel
iterations run in a shuffled order, and what only luck would get right is an error: two
of them meeting in one element, an unchecked hop from a leaf, a row or tree used that
the cache around it does not hold, a group cut short, an index out of range.

Before reductions are legalised, ``reduce`` means what it says: ordered sums are added
in model order, however the loops run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.printer import loop_line, print_statement
from skforge.compiler.lowering.kernel import scale_exponent, scaled_leaves
from skforge.exceptions import CompilerError
from skforge.schedule.nest import size_value
from tests.oracles.mir_memory import Cell, Fault, Memory, Races, Walks


@dataclass(frozen=True, slots=True)
class Event:
    """Something a run did, for those who count.

    ``loop`` begins (``first`` is the variable's value) or ends (``done``) one iteration
    of loop ``name``; ``rows`` and ``trees`` cache a range, ``ahead`` a share of one for
    later; ``walk`` takes row ``first`` through the tree at position ``last``.
    """

    what: Literal["loop", "done", "rows", "trees", "ahead", "walk"]
    name: str
    first: int
    last: int


def interpret_mir(
    function: mir.Function,
    hir: PredictEnsemble,
    X: NDArray[Any],
    *,
    seed: int = 0,
    observe: Callable[[Event], None] | None = None,
) -> NDArray[Any]:
    """Run a function and return its result.

    Parameters
    ----------
    function : Function
        MIR after any pass.
    hir : PredictEnsemble
        What it was lowered from.
    X : ndarray of shape (n, n_features)
        Rows as a compiled kernel gets them: in the forest's input dtype, NaN for the
        source's marker of missing values.
    seed : int, default=0
        Of the order of parallel iterations.
    observe : callable, optional
        Told of every :class:`Event`.

    Returns
    -------
    ndarray
        Sums of shape (n, n_outputs), not yet divided by the forest's divisor; for
        ``apply`` the source's node numbers, of shape (n, n_trees) in model order.

    Raises
    ------
    CompilerError
        If the function does what compiled code must not.
    """
    run = _Run(function, hir, X, np.random.default_rng(seed), observe)
    return run.result()


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What a walk gives back: the leaf item it ended on."""

    position: int
    item: int


@dataclass(slots=True)
class _Cache:
    """The ranges that are cached: those of the innermost iteration that caches."""

    ranges: tuple[tuple[int, int], ...] = ()
    inherited: bool = True

    def add(self, first: int, last: int) -> None:
        """Cache a range; the first of an iteration replaces those from outside."""
        self.ranges = (*(() if self.inherited else self.ranges), (first, last))
        self.inherited = False

    def lacks(self, number: int) -> bool:
        """Return whether there is a cache, and it does not hold a row or tree."""
        held = any(first <= number < last for first, last in self.ranges)
        return bool(self.ranges) and not held


@dataclass(slots=True)
class _Ordered:
    """Sums of a function that is not legalised: added up when all are known."""

    values: list[tuple[int, int, int, Any]] = field(default_factory=list)


class _Run:
    def __init__(
        self,
        function: mir.Function,
        hir: PredictEnsemble,
        X: NDArray[Any],
        random: np.random.Generator,
        observe: Callable[[Event], None] | None,
    ) -> None:
        forest = hir.forest
        if X.dtype != forest.input_dtype or X.ndim != 2:
            raise CompilerError(f"rows must be 2-d and {forest.input_dtype}")
        self._function, self._hir, self._rows = function, hir, X
        self._random, self._observe = random, observe
        self._vars: dict[str, int] = {}
        self._names: dict[str, Any] = {}
        self._cached = {"rows": _Cache(), "trees": _Cache()}
        self._races = Races()
        fixed = hir.reduction == "reproducible"
        self._exponent = scale_exponent(hir) if fixed else 0
        self._leaves: NDArray[Any] = forest.leaf_value
        if fixed:
            self._leaves = scaled_leaves(hir, self._exponent)
        self._memory = Memory(self._races, self._leaves.dtype)
        self._walks = Walks(hir, X)
        self._legal = any(_is_start(s) for s in _statements(function.body))
        self._ordered = _Ordered()
        # Of codes and predicates: the rows and trees they were made of last.
        self._made: dict[str, tuple[range, range]] = {}

    def result(self) -> NDArray[Any]:
        """Run, and return what is in the result."""
        n, forest = len(self._rows), self._hir.forest
        if self._function.result.element == "leaf_number":
            shape: tuple[int, ...] = (n, self._function.n_trees)
            array: NDArray[Any] = np.full(shape, -1, np.int32)
        else:
            array = np.full((n, forest.n_outputs), np.nan, forest.leaf_value.dtype)
            if not self._legal:
                array = np.zeros(array.shape, self._leaves.dtype)
                if self._hir.reduction != "reproducible":
                    array[:] = forest.base
        self._memory.put(mir.RESULT, array)
        self._body(self._function.body)
        if self._legal or self._function.result.element == "leaf_number":
            return array
        for _, row, output, value in sorted(self._ordered.values, key=lambda v: v[0]):
            if output < 0:
                array[row] += value
            else:
                array[row, output] += value[0]
        if self._hir.reduction == "reproducible":
            return finished(array, self._hir, self._exponent)
        return array

    # ------------------------------------------------------------ statements

    def _body(self, body: mir.Body) -> None:
        for stmt in body:
            try:
                self._statement(stmt)
            except Fault as error:
                simple = not isinstance(stmt, (mir.Loop, mir.DepthSwitch))
                text = print_statement(stmt) if simple else str(type(stmt).__name__)
                at = ", ".join(f"{k} = {v}" for k, v in self._vars.items())
                text = text.replace("\n", "\n  ")
                where = f"in:\n  {text}\nat {at or 'the top'}"
                raise CompilerError(f"{error} {where}") from None

    def _statement(self, stmt: mir.Stmt) -> None:
        match stmt:
            case mir.Let(names=names, op=op):
                self._names.update(zip(names, self._op(op), strict=True))
            case mir.WalkLoop():
                self._walk_loop(stmt)
            case mir.Loop():
                self._loop(stmt)
            case mir.DepthSwitch():
                position = self._affine(stmt.position)
                self._body(stmt.cases[stmt.class_of[position]])
            case mir.Reduce():
                self._reduce(stmt)
            case mir.StoreLeaf():
                self._store_leaf(stmt)
            case mir.ReduceDimension():
                self._reduce_dimension(stmt)
            case mir.ReduceDimensionInplace():
                self._reduce_inplace(stmt)
            case mir.AllocArray(array=array, zero=zero):
                dims = [
                    self._hir.forest.n_outputs
                    if dim is None
                    else size_value(dim, len(self._rows))
                    for dim in array.dims
                ]
                self._memory.alloc(array.name, dims, zero)
            case mir.Fill(target=target, rows=rows):
                first, last = self._range(rows)
                part = (slice(first, last), slice(None))
                self._memory.write(target, part, self._hir.forest.base)
            case mir.Finish():
                self._finish(stmt)
            case mir.CacheTrees(trees=trees):
                self._cache("trees", *self._range(trees))
            case mir.CacheRows():
                self._cache_rows(stmt)
            case mir.StoreRows(source=source, rows=rows):
                first, last = self._range(rows)
                sums = self._memory.read(source, (slice(last - first), slice(None)))
                part = (slice(first, last), slice(None))
                self._memory.write(mir.RESULT, part, sums)
            # A walk that uses these means the same as one that does not.
            case mir.TakeRows():
                pass
            case mir.EvaluatePredicates(name=name, trees=trees, rows=rows):
                self._made[name] = range(*self._range(rows)), range(*self._range(trees))
            case mir.QuantizeRows(name=name, rows=rows, size=size):
                first, last = self._range(rows)
                if last - first > size:
                    raise Fault(f"{last - first} rows do not fit {size}")
                self._made[name] = range(first, last), range(self._hir.tiles.n_trees)
            case _:
                raise AssertionError(f"no case for {stmt!r}")

    def _event(
        self,
        what: Literal["loop", "done", "rows", "trees", "ahead", "walk"],
        name: str,
        first: int,
        last: int,
    ) -> None:
        if self._observe is not None:
            self._observe(Event(what, name, first, last))

    def _cache_rows(self, stmt: mir.CacheRows) -> None:
        if stmt.share is None:
            self._cache("rows", *self._range(stmt.rows))
            return
        var, step, trips = stmt.share
        if not 0 <= self._vars[var] // step < trips:
            raise Fault("there is no such share")
        self._event("ahead", var, *self._range(stmt.rows))

    def _cache(self, what: Literal["rows", "trees"], first: int, last: int) -> None:
        self._cached[what].add(first, last)
        self._event(what, "", first, last)

    def _loop(self, loop: mir.Loop) -> None:
        n = len(self._rows)
        high = min(self._bound(bound) for bound in loop.bounds)
        step = size_value(loop.step, n)
        values = range(size_value(loop.start, n), high, step)
        if loop.trip_count is not None and loop.trip_count != len(values):
            raise CompilerError(
                f"{len(values)} iterations, not {loop.trip_count}, in:\n"
                f"  {loop_line(loop)}"
            )
        whole = len(values) // loop.group * loop.group
        if whole < len(values) and not loop.remainder:
            raise CompilerError(f"a group is cut short in:\n  {loop_line(loop)}")
        firsts = list(values[: whole : loop.group])
        if loop.kind == "vector":
            firsts = list(values[:whole])  # the lanes of all groups
        serial = loop.kind == "serial" or loop.in_order
        if not serial:
            self._random.shuffle(firsts)
        instance = self._races.instance()
        for value in firsts:
            parallel = None if serial else (instance, value)
            self._iteration(loop, loop.body, value, parallel)
        for value in values[whole:]:
            self._iteration(loop, loop.remainder, value, None)

    def _iteration(
        self,
        loop: mir.Loop,
        body: mir.Body,
        value: int,
        parallel: tuple[int, int] | None,
    ) -> None:
        outer = self._cached
        self._cached = {what: _Cache(cache.ranges) for what, cache in outer.items()}
        self._vars[loop.var] = value
        self._event("loop", loop.var, value, value)
        with self._races.inside(parallel):
            self._body(body)
        self._event("done", loop.var, value, value)
        del self._vars[loop.var]
        self._cached = outer

    # ------------------------------------------------------------ walks

    def _op(self, op: mir.Op) -> list[Any]:
        forest, tiles = self._hir.forest, self._hir.tiles
        match op:
            case mir.GetTree(index=index):
                position = self._affine(index)
                if not 0 <= position < tiles.n_trees:
                    raise Fault(f"there is no tree {position}")
                return [position]
            case mir.GetTreeClassId(tree=tree):
                return [int(forest.tree_output[tiles.tree_order[self._names[tree]]])]
            case mir.WalkDecisionTree():
                return self._walk(op)
            case mir.GetRoot(trees=trees):
                return [int(tiles.item_offset[self._names[tree]]) for tree in trees]
            case mir.TraverseTreeTile(nodes=nodes):
                return self._hop(op, [self._names[node] for node in nodes])
            case mir.GetLeafValue(trees=trees, nodes=nodes):
                return [
                    self._leaf(self._names[tree], self._names[node])
                    for tree, node in zip(trees, nodes, strict=True)
                ]
            case _:
                raise AssertionError(f"no case for {op!r}")

    def _leaf(self, position: int, item: int) -> _Leaf:
        if not self._walks.is_leaf(item):
            raise Fault("a walk ended before its leaf")
        return _Leaf(position, item)

    def _walk(self, walk: mir.WalkDecisionTree) -> list[Any]:
        """Walk the unchecked hops, then on if a leaf may be deeper."""
        made = []
        hops = max(walk.unroll, walk.peel)
        for tree, row in zip(walk.trees, walk.rows, strict=True):
            position, at = self._names[tree], self._affine(row)
            self._is_made(walk.using, at, position)
            item = int(self._hir.tiles.item_offset[position])
            for _ in range(hops):
                item = self._step(position, item, at, False)
            depth = hops
            while depth < walk.max_depth and not self._walks.is_leaf(item):
                item = self._step(position, item, at, True)
                depth += 1
            made.append(self._leaf(position, item))
        return made

    def _is_made(self, using: str | None, row: int, position: int) -> None:
        """Check that the codes or predicates a walk reads are of its row and tree."""
        if using is None:
            return
        rows, trees = self._made.get(using, (range(0), range(0)))
        if row not in rows:
            raise Fault(f"there is no row {row} in {using}")
        if position not in trees:
            raise Fault(f"there is no tree {position} in {using}")

    def _hop(self, hop: mir.TraverseTreeTile, nodes: list[int]) -> list[int]:
        for tree, row in zip(hop.trees, hop.rows, strict=True):
            self._is_made(hop.using, self._affine(row), self._names[tree])
        return [
            self._step(self._names[tree], node, self._affine(row), hop.checked)
            for tree, node, row in zip(hop.trees, nodes, hop.rows, strict=True)
        ]

    def _step(self, position: int, item: int, row: int, checked: bool) -> int:
        """Return the item behind the exit a row takes."""
        if not 0 <= row < len(self._rows):
            raise Fault(f"there is no row {row}")
        for cache, what, used in (
            (self._cached["rows"], "row", row),
            (self._cached["trees"], "tree", position),
        ):
            if cache.lacks(used):
                raise Fault(f"{what} {used} is not in the cache of {cache.ranges}")
        tiles = self._hir.tiles
        if not tiles.item_offset[position] <= item < tiles.item_offset[position + 1]:
            raise Fault("a walk has left its tree")
        if item == tiles.item_offset[position]:
            self._event("walk", "", row, position)
        if self._walks.is_leaf(item):
            if checked:
                return item
            raise Fault("an unchecked hop goes past a leaf")
        return self._walks.next(item, row)

    def _walk_loop(self, stmt: mir.WalkLoop) -> None:
        nodes = [self._names[name] for name in stmt.inits]
        while not all(self._walks.is_leaf(node) for node in nodes):
            nodes = self._hop(stmt.step, nodes)
        self._names.update(zip(stmt.results, nodes, strict=True))

    # ------------------------------------------------------------ sums

    def _reduce(self, stmt: mir.Reduce) -> None:
        leaf: _Leaf = self._names[stmt.value]
        value = self._leaves[self._hir.tiles.leaf[leaf.item]]
        at = tuple(self._index(index) for index in stmt.indices)
        if not self._legal:
            tree = int(self._hir.tiles.tree_order[leaf.position])
            row, output = (-1 if isinstance(i, slice) else i for i in at)
            self._ordered.values.append((tree, row, output, value))
            return
        if not isinstance(at[-1], slice):
            value = value[0]
        self._memory.add(stmt.target, at, value, stmt.atomic)

    def _store_leaf(self, stmt: mir.StoreLeaf) -> None:
        leaf: _Leaf = self._names[stmt.value]
        tiles, forest = self._hir.tiles, self._hir.forest
        at = tuple(self._index(index) for index in stmt.indices)
        value: Any
        if self._function.result.element == "leaf_number":
            value = forest.source_node[tiles.node[leaf.item]]
        else:
            value = self._leaves[tiles.leaf[leaf.item]]
            if not isinstance(at[-1], slice):
                value = value[0]
        self._memory.write(stmt.target, at, value)

    def _reduce_dimension(self, stmt: mir.ReduceDimension) -> None:
        first, last = self._range(stmt.rows)
        from_ = self._affine(stmt.source_rows)
        there = slice(from_, from_ + last - first)
        dims = self._memory.shape(stmt.source)
        prefix = tuple(self._index(index) for index in stmt.prefix)
        start, end = 0, size_value(stmt.extent, len(self._rows))
        if stmt.trees is not None:
            start, stop = self._range(stmt.trees)
            end = stop - start
        if stmt.by_output:
            for slot in range(end):
                output = int(self._hir.forest.tree_output[start + slot])
                added = self._memory.read(stmt.source, (slot, there))
                at = (*prefix, slice(first, last), output)
                self._memory.add(stmt.target, at, added, stmt.atomic)
            return
        per_output = len(dims) > 2 or self._hir.forest.leaf_value.shape[1] > 1
        inner = (0,) * (len(dims) - 3) if per_output else ()
        columns: tuple[Cell, ...] = (slice(None),) if per_output else ()
        for slot in range(end):
            added = self._memory.read(stmt.source, (slot, *inner, there, *columns))
            added = added if per_output else added[:, None]
            at = (*prefix, slice(first, last), slice(None))
            self._memory.add(stmt.target, at, added, stmt.atomic)

    def _reduce_inplace(self, stmt: mir.ReduceDimensionInplace) -> None:
        first, last = self._range(stmt.rows)
        prefix = tuple(self._index(index) for index in stmt.prefix)
        deeper = len(self._memory.shape(stmt.array)) - len(prefix) - 3
        inner: tuple[Cell, ...] = (0,) * deeper
        rest: tuple[Cell, ...] = (*inner, slice(first, last), slice(None))
        for slot in range(1, size_value(stmt.extent, len(self._rows))):
            added = self._memory.read(stmt.array, (*prefix, slot, *rest))
            self._memory.add(stmt.array, (*prefix, 0, *rest), added.copy())
            self._memory.write(stmt.array, (*prefix, slot, *rest), 0)

    def _finish(self, stmt: mir.Finish) -> None:
        first, last = self._range(stmt.rows)
        from_ = self._affine(stmt.source_rows)
        there = (slice(from_, from_ + last - first), slice(None))
        sums = self._memory.read(stmt.source, there)
        values = finished(sums, self._hir, self._exponent)
        self._memory.write(mir.RESULT, (slice(first, last), slice(None)), values)

    # ------------------------------------------------------------ indices

    def _affine(self, index: mir.Affine) -> int:
        total = sum(self._vars[name] for name in index.terms) + index.constant
        n = len(self._rows)
        return total + sum(size_value(size, n) * k for size, k in index.sizes)

    def _bound(self, bound: mir.Bound) -> int:
        return size_value(bound.limit, len(self._rows)) - self._affine(bound.minus)

    def _range(self, where: mir.Range) -> tuple[int, int]:
        first = self._affine(where.start)
        return first, first + max(0, min(self._bound(b) for b in where.bounds))

    def _index(self, index: mir.Index) -> Cell:
        match index:
            case mir.Affine():
                return self._affine(index)
            case mir.Slot(value=value, start=start, step=step):
                n = len(self._rows)
                offset = self._affine(value) - size_value(start, n)
                if offset % size_value(step, n):
                    raise Fault("a slot is no iteration's number")
                return offset // size_value(step, n)
            case mir.ModelTree(position=position):
                return int(self._hir.tiles.tree_order[self._affine(position)])
            case mir.Class(name=name):
                return int(self._names[name])
            case mir.Outputs():
                return slice(None)
            case _:
                raise AssertionError(f"no case for {index!r}")


def _statements(body: mir.Body) -> Iterator[mir.Stmt]:
    for stmt in body:
        yield stmt
        match stmt:
            case mir.Loop():
                yield from _statements(stmt.body)
                yield from _statements(stmt.remainder)
            case mir.DepthSwitch(cases=cases):
                for case in cases:
                    yield from _statements(case)
            case _:
                pass


def _is_start(stmt: mir.Stmt) -> bool:
    """Whether this only stands in legalised functions."""
    return isinstance(stmt, (mir.Fill, mir.Finish, mir.StoreRows))


def finished(
    sums: NDArray[np.int64], hir: PredictEnsemble, exponent: int
) -> NDArray[Any]:
    """Return ``base + sums / 2 ** exponent`` in the accumulator's type.

    The sum is rounded to a double, added to the base, and rounded to the result type.
    """
    forest = hir.forest
    parts = sums.astype(np.float64) * np.ldexp(1.0, -exponent)
    total: NDArray[Any] = forest.base.astype(np.float64) + parts
    return total.astype(forest.leaf_value.dtype)
