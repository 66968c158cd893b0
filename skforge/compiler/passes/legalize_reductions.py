"""Make every ``reduce`` legal: ordered sums in storage, or privatised arrays.

SilvanForge §5 and Treebeard draft §4. A parallel tree loop around a reduce is a
*conflicting* loop: its iterations would add to the same element. Before::

    par t0 in 0 to 100 step 50:
      for t1 in 0 to 50:
        for batch in 0 to rows:
          reduce(result[batch], p)

``fast`` privatises, one slot for each iteration of a conflicting loop, and reduces the
slots afterwards; the privatised array is what the inner reduce writes::

    result_1 = zeros[2, rows]
    par t0 in 0 to 100 step 50:
      for t1 in 0 to 50:
        for batch in 0 to rows:
          reduce(result_1[t0 / 50, batch], p)
    result[0 : rows] = reduce_dimension(result_1, 0)

``exact`` stores one leaf value a tree and row instead, and adds them in model order.
``reproducible`` does as ``fast`` on fixed-point integers, whose sum has no order.

Storage lives in the *scope* of a block of rows: inside every leading batch loop whose
iterations own consecutive rows, so that it is small and private to parallel rows.

Invariant restored: no two parallel iterations write one element, unless atomically.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from skforge.compiler.ir.hir import PredictEnsemble
from skforge.compiler.ir.mir import (
    RESULT,
    Affine,
    AllocArray,
    Array,
    Body,
    Bound,
    Fill,
    Finish,
    Function,
    GetTree,
    Index,
    Let,
    Loop,
    ModelTree,
    Outputs,
    Range,
    Reduce,
    ReduceDimension,
    ReduceDimensionInplace,
    Slot,
    Stmt,
    StoreLeaf,
    WalkDecisionTree,
)
from skforge.compiler.ir.mir_tools import (
    loops_in,
    map_loops,
    map_statements,
    tightest,
)
from skforge.compiler.loop_nest import Rows, Size, size_value


def run(function: Function, hir: PredictEnsemble) -> Function:
    """Legalise a prediction function; ``apply`` functions have nothing to reduce."""
    body = function.body
    if function.result.element == "accumulator":
        body = _Legalizer(function, hir).descend(body, _Scope())
    return replace(function, body=map_loops(body, _carried_out))


def _carried_out(loop: Loop) -> Loop:
    """Take the reduction directives off a loop."""
    directives = replace(
        loop.directives, atomic_reduce=False, shared_reduce=False, vector_reduce=None
    )
    return replace(loop, directives=directives)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The batch loops outside a block of rows."""

    outside: tuple[Loop, ...] = ()

    def enter(self, loop: Loop) -> _Scope:
        return _Scope((*self.outside, loop))

    @property
    def extent(self) -> Size:
        """Most rows of a block: the smallest step outside."""
        steps = [loop.step for loop in self.outside]
        if not steps:
            return Rows()
        numbers = [step for step in steps if isinstance(step, int)]
        return min(numbers) if numbers else steps[-1]

    @property
    def start(self) -> Affine:
        return Affine(tuple(loop.var for loop in self.outside))

    @property
    def rows(self) -> Range:
        """The rows of a block, those past any bound left out."""
        bounds = [Bound(self.extent)]
        if self.extent == 1:  # the loops outside have checked this very row
            return Range(self.start, tuple(bounds))
        for loop in self.outside:
            here = Affine((loop.var,))
            bounds += [Bound(b.limit, b.minus.plus(here)) for b in loop.bounds]
        return Range(self.start, tightest(bounds))

    @property
    def local_rows(self) -> Range:
        """The same rows numbered from the block's first."""
        return replace(self.rows, start=Affine())

    def local(self, row: Affine) -> Affine:
        """Return a row's number within the block."""
        names = {loop.var for loop in self.outside}
        terms = tuple(term for term in row.terms if term not in names)
        return replace(row, terms=terms)


def _owns_rows(loop: Loop, scope: _Scope) -> bool:
    """Whether an iteration of a batch loop owns consecutive rows.

    It does when every batch loop inside only counts within the smallest step outside.
    """
    extent = scope.enter(loop).extent

    def within(inner: Loop) -> bool:
        for bound in inner.bounds:
            if bound.limit == extent:
                return True
            known = isinstance(bound.limit, int) and isinstance(extent, int)
            if known and size_value(bound.limit, 0) <= size_value(extent, 0):
                return True
        return False

    return all(within(i) for i in loops_in(loop.body) if i.root == "batch")


def _is_conflicting(loop: Loop) -> bool:
    return loop.root == "tree" and loop.kind not in ("serial", "vector")


class _Legalizer:
    def __init__(self, function: Function, hir: PredictEnsemble) -> None:
        self._hir = hir
        self._n_trees = function.n_trees
        self._arrays = 0
        order = hir.tiles.tree_order
        in_order = bool((order == range(len(order))).all())
        self._ordered_already = hir.nest.trees_in_order and in_order
        self._vector_leaves = hir.forest.leaf_value.shape[1] > 1
        self._position: dict[str, Affine] = {}
        self._tree_of: dict[str, str] = {}

    # ------------------------------------------------------------ scopes

    def descend(self, body: Body, scope: _Scope) -> Body:
        """Enter batch loops while one iteration owns its rows, then legalise."""
        loops = [stmt for stmt in body if isinstance(stmt, Loop)]
        if len(loops) == len(body) and all(
            loop.root == "batch" and _owns_rows(loop, scope) for loop in loops
        ):
            return tuple(
                replace(loop, body=self.descend(loop.body, scope.enter(loop)))
                for loop in loops
            )
        return self._legalize(body, scope)

    def _legalize(self, body: Body, scope: _Scope) -> Body:
        if self._hir.reduction == "exact":
            fill = Fill(RESULT, scope.rows)
            if self._ordered_already:
                return (fill, *body)
            return (fill, *self._store_leaves(body, scope))
        if self._hir.reduction == "fast":
            fill = Fill(RESULT, scope.rows)
            private = self._privatize(body, scope, RESULT, scope.rows, local=False)
            return (fill, *private)
        sums = Array(self._name("sums"), (scope.extent, None))
        body = _retarget(body, sums.name, scope)
        rows = scope.local_rows
        return (
            AllocArray(sums, zero=True),
            *self._privatize(body, scope, sums.name, rows, local=True),
            Finish(sums.name, scope.rows, Affine()),
        )

    def _name(self, base: str) -> str:
        self._arrays += 1
        return f"{base}_{self._arrays}"

    # ------------------------------------------------------------ exact

    def _store_leaves(self, body: Body, scope: _Scope) -> Body:
        """Keep a leaf value for each tree and row; add them in model order."""
        self._note_names(body)
        width: tuple[Size | None, ...] = (None,) if self._vector_leaves else ()
        shared = any(loop.directives.shared_reduce for loop in loops_in(body))
        leaves = Array(
            self._name("leaves"),
            (self._n_trees, scope.extent, *width),
            shared=shared,
        )

        def store(stmt: Stmt) -> Stmt:
            if not isinstance(stmt, Reduce):
                return stmt
            row = stmt.indices[0]
            assert isinstance(row, Affine)
            tree = ModelTree(self._position[self._tree_of[stmt.value]])
            indices: tuple[Index, ...] = (tree, scope.local(row))
            if self._vector_leaves:
                indices += (Outputs(),)
            return StoreLeaf(leaves.name, indices, stmt.value)

        widths = [loop.directives.vector_reduce for loop in loops_in(body)]
        total = ReduceDimension(
            RESULT,
            leaves.name,
            self._n_trees,
            scope.rows,
            Affine(),
            vector_width=max((w for w in widths if w is not None), default=None),
            by_output=not self._vector_leaves and self._hir.forest.n_outputs > 1,
        )
        return (AllocArray(leaves, zero=False), *map_statements(body, store), total)

    def _note_names(self, body: Body) -> None:
        """Remember which tree each walk's value comes from."""

        def note(stmt: Stmt) -> Stmt:
            if isinstance(stmt, Let):
                if isinstance(stmt.op, GetTree):
                    self._position[stmt.names[0]] = stmt.op.index
                elif isinstance(stmt.op, WalkDecisionTree):
                    self._tree_of[stmt.names[0]] = stmt.op.trees[0]
            return stmt

        map_statements(body, note)

    # ------------------------------------------------------------ fast

    def _privatize(
        self, body: Body, scope: _Scope, target: str, rows: Range, local: bool
    ) -> Body:
        """Give each iteration of the conflicting loops a slot, then sum the slots."""
        levels: list[int] = []
        widths: list[int | None] = []
        _measure(body, 0, levels, widths)
        if not levels:
            return _mark_atomic(body, False)
        shared = any(loop.directives.shared_reduce for loop in loops_in(body))
        private = Array(
            self._name("result"), (*levels, scope.extent, None), shared=shared
        )
        rewriter = _Privatizer(private.name, scope, levels, widths, local)
        inner = rewriter.body(body, (), False, True)
        total = ReduceDimension(
            target, private.name, levels[0], rows, Affine(), widths[0]
        )
        return (AllocArray(private, zero=True), *inner, *rewriter.later(), total)


def _trips(loop: Loop) -> int:
    """Most iterations of a tree loop; its limits are known."""
    limit = min(size_value(b.limit, 0) for b in loop.bounds)
    start, step = size_value(loop.start, 0), size_value(loop.step, 0)
    return max(1, -(-(limit - start) // step))


def _measure(
    body: Body, level: int, levels: list[int], widths: list[int | None]
) -> None:
    """Collect the most slots and the vector width of each level of conflicts."""
    for stmt in body:
        if not isinstance(stmt, Loop):
            continue
        below = level
        if _is_conflicting(stmt) and not stmt.directives.atomic_reduce:
            if level == len(levels):
                levels.append(1)
                widths.append(None)
            levels[level] = max(levels[level], _trips(stmt))
            widths[level] = stmt.directives.vector_reduce or widths[level]
            below = level + 1
        _measure(stmt.body, below, levels, widths)


def _mark_atomic(body: Body, atomic: bool) -> Body:
    """Set ``atomic`` on the reduces below a loop that asks for it."""
    made: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Loop():
                below = atomic or (
                    _is_conflicting(stmt) and stmt.directives.atomic_reduce
                )
                made.append(replace(stmt, body=_mark_atomic(stmt.body, below)))
            case Reduce():
                made.append(replace(stmt, atomic=atomic))
            case _:
                made.append(stmt)
    return tuple(made)


def _retarget(body: Body, name: str, scope: _Scope) -> Body:
    """Point the reduces at scratch rows of the scope."""

    def change(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Reduce):
            return stmt
        row = stmt.indices[0]
        assert isinstance(row, Affine)
        return replace(stmt, target=name, indices=(scope.local(row), *stmt.indices[1:]))

    return map_statements(body, change)


class _Privatizer:
    """Rewrites the reduces of a scope to slots of a privatised array."""

    def __init__(
        self,
        name: str,
        scope: _Scope,
        levels: list[int],
        widths: list[int | None],
        local: bool,
    ) -> None:
        self._name, self._scope, self._local = name, scope, local
        self._levels, self._widths = levels, widths
        self._deferred = False

    def body(
        self, body: Body, slots: tuple[Slot, ...], atomic: bool, tree_only: bool
    ) -> Body:
        """Rewrite a body below the loops that ``slots`` number."""
        made: list[Stmt] = []
        for stmt in body:
            match stmt:
                case Loop():
                    made.append(self._loop(stmt, slots, atomic, tree_only))
                case Reduce():
                    made.append(self._reduce(stmt, slots, atomic))
                case _:
                    made.append(stmt)
        return tuple(made)

    def _loop(
        self, loop: Loop, slots: tuple[Slot, ...], atomic: bool, tree_only: bool
    ) -> Loop:
        tree_only = tree_only and loop.root == "tree"
        if not _is_conflicting(loop):
            return replace(loop, body=self.body(loop.body, slots, atomic, tree_only))
        if loop.directives.atomic_reduce:
            return replace(loop, body=self.body(loop.body, slots, True, tree_only))
        slot = Slot(Affine((loop.var,)), loop.start, loop.step)
        slots = (*slots, slot)
        body = self.body(loop.body, slots, atomic, tree_only)
        has_inner = any(
            _is_conflicting(i) and not i.directives.atomic_reduce
            for i in loops_in(loop.body)
        )
        if has_inner and tree_only and not atomic:
            body += (self._inplace(slots),)
        elif has_inner:
            # Other rows, or atomic adds of a loop outside, may be in flight here to
            # the same slots: sum when all are done.
            self._deferred = True
        return replace(loop, body=body)

    def _inplace(self, prefix: tuple[Index, ...]) -> ReduceDimensionInplace:
        level = len(prefix)
        return ReduceDimensionInplace(
            self._name,
            prefix,
            self._levels[level],
            self._scope.local_rows,
            self._widths[level],
        )

    def later(self) -> Body:
        """Return the reductions of inner levels that had to wait, innermost first."""
        if not self._deferred:
            return ()
        made: list[Stmt] = []
        for level in reversed(range(1, len(self._levels))):
            names = tuple(f"%slot{i}" for i in range(level))
            stmt: Stmt = self._inplace(tuple(Affine((name,)) for name in names))
            for name, trips in reversed(list(zip(names, self._levels, strict=False))):
                bound = (Bound(trips),)
                stmt = Loop(name, "tree", 0, 1, bound, "serial", (stmt,), trips)
            made.append(stmt)
        return tuple(made)

    def _reduce(self, stmt: Reduce, slots: tuple[Slot, ...], atomic: bool) -> Reduce:
        row = stmt.indices[0]
        assert isinstance(row, Affine)
        # Fewer conflicting loops here than elsewhere in the scope: slot 0 of the rest.
        rest = (Affine(),) * (len(self._levels) - len(slots))
        where = row if self._local else self._scope.local(row)
        return Reduce(
            self._name,
            (*slots, *rest, where, *stmt.indices[1:]),
            stmt.value,
            stmt.order,
            atomic,
        )
