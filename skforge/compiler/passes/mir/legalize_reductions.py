"""Make every ``reduce`` legal, by storing leaves or by privatising sums.

SilvanForge §5 and Treebeard draft §4. A parallel tree loop around a reduce is a
*conflicting* loop: its iterations would add to the same element. Before::

    par t0 in 0 to 100 step 50:
      for t1 in 0 to 50:
        for batch in 0 to rows:
          reduce(result[batch], p)

``fast`` privatises: each iteration of a conflicting loop gets a slot of its own, which
the inner reduce writes, and the slots are reduced afterwards::

    result_1 = zeros[2, rows]
    par t0 in 0 to 100 step 50:
      for t1 in 0 to 50:
        for batch in 0 to rows:
          reduce(result_1[t0 / 50, batch], p)
    result[0 : rows] = reduce_dimension(result_1, 0)

``exact`` instead stores one leaf value per tree and row and adds them in model order.
``reproducible`` works like ``fast`` on fixed-point integers, whose sum does not depend
on the order (``privatize``).

Storage is allocated in the *scope* of a block of rows: inside every leading batch loop
whose iterations own consecutive rows, so that it is small and private to parallel rows.
If threads share blocks of rows and, inside, trees, it is outside both loops; if it
holds leaves, for part of the batch at a time, whose rows threads share, too::

    for part_1 in 0 to rows step 960:
      leaves_2 = alloc[100, 960]
      par b0 in 0 to min(960, rows - part_1) step 64: par t0 ...: leaves_2[...] = p
      par rows_3 in 0 to min(960, rows - part_1) step 8:
        result[part_1 + rows_3 : ...] += reduce_dimension(leaves_2, 0)

Invariant restored: no two parallel iterations write one element, unless atomically.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir import walk
from skforge.compiler.ir.mir.walk import loops_in, map_statements, substitute
from skforge.compiler.passes.mir import reduces
from skforge.compiler.passes.mir.reduces import (
    RowScope,
    is_conflicting,
    owns_rows,
    shared_with,
)
from skforge.schedule import directives as d
from skforge.schedule.nest import Size

#: Whether iterations of a loop need slots of their own.
_Conflicts: TypeAlias = Callable[[mir.Loop], bool]


@dataclass(frozen=True, slots=True)
class SumPlace:
    """Where sums end up: an array, and whether its rows are those of the scope."""

    target: str
    rows: mir.Range
    local: bool


def privatize(
    body: mir.Body, scope: RowScope, sums: SumPlace, name: Callable[[str], str]
) -> mir.Body:
    """Give each iteration of conflicting loops a slot of its own, then sum the slots.

    On a GPU, loops over threads are privatised first, in the block's own memory; their
    sums then go to the slots of the loops over blocks. Threads do not synchronise
    between the nests of a block, so a slot must always belong to the same thread: each
    dimension of threads has its own dimension of slots, whichever loop runs on it. For
    the same reason, if one nest adds atomically, all of them do.
    """
    conflicts: _Conflicts = is_conflicting
    if any(map(_on_grid, loops_in(body))) and not _scatters(body, scope):
        body = _Blocks(scope, sums, name).body(body, scope)
        conflicts = _on_grid
    return _Slots(body, scope, sums, conflicts).run(name)


def _on_grid(loop: mir.Loop) -> bool:
    return loop.on_grid and is_conflicting(loop)


def _scatters(body: mir.Body, scope: RowScope) -> bool:
    """Whether threads share sums of rows that are not contiguous.

    A block cannot hold these sums itself: slots then cover all rows, one slot for each
    thread of each block.
    """
    for stmt in body:
        if not isinstance(stmt, mir.Loop):
            continue
        here = scope
        if stmt.root == "batch":
            if not owns_rows(stmt, scope):
                if any(i.on_threads and is_conflicting(i) for i in loops_in((stmt,))):
                    return True
                continue
            here = scope.enter(stmt)
        inside = any(loop.on_grid for loop in loops_in(stmt.body))
        if inside and _scatters(stmt.body, here):
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Legalises the code of each block of a grid; blocks still combine in ``sums``."""

    outer: RowScope
    sums: SumPlace
    name: Callable[[str], str]

    def body(self, body: mir.Body, scope: RowScope) -> mir.Body:
        stmts: list[mir.Stmt] = []
        for stmt in body:
            if not isinstance(stmt, mir.Loop):
                stmts.append(stmt)
                continue
            by_block = stmt.root == "tree" or stmt.on_threads
            if by_block and not any(i.on_grid for i in loops_in((stmt,))):
                # Threads beside a loop over blocks combine their sums separately.
                stmts.extend(self._meet((stmt,), scope))
                continue
            here = scope
            if stmt.root == "batch":
                if not owns_rows(stmt, scope):
                    stmts.append(stmt)  # no threads share sums here
                    continue
                here = scope.enter(stmt)
            on_grid = any(loop.on_grid for loop in loops_in(stmt.body))
            inner = (self.body if on_grid else self._meet)(stmt.body, here)
            stmts.append(replace(stmt, body=inner))
        return tuple(stmts)

    def _meet(self, body: mir.Body, scope: RowScope) -> mir.Body:
        if not any(map(is_conflicting, loops_in(body))):
            return body
        rows = scope.rows
        if self.sums.local:
            rows = replace(rows, start=self.outer.local(rows.start))
        below = replace(self.sums, rows=rows)
        return _Slots(body, scope, below, is_conflicting).run(self.name)


#: A dimension of slots: a dimension of threads, or a loop's depth among the conflicting
#: loops of a nest.
_Key: TypeAlias = str | int


@dataclass(slots=True)
class _Level:
    """A dimension of slots: the most slots, and the vector width of their sum."""

    slots: int = 1
    width: int | None = None


def _key(loop: mir.Loop, depth: int) -> _Key:
    return loop.kind if loop.on_threads else depth


class _Slots:
    """Gives each iteration of a scope's conflicting loops a slot, then sums the slots.

    Without slots, because every conflicting loop adds atomically, it marks the reduces.
    """

    def __init__(
        self, body: mir.Body, scope: RowScope, sums: SumPlace, conflicts: _Conflicts
    ) -> None:
        self._body, self._scope, self._sums = body, scope, sums
        self._conflicts = conflicts
        self._levels: dict[_Key, _Level] = {}
        self._measure(body, 0)
        self._name = ""  # of the privatised array
        # Nests may number threads in different dimensions: every slot has been used
        # only after all of the nests.
        by_thread = any(isinstance(key, str) for key in self._levels)
        self._deferred = len(self._levels) > 1 and by_thread

    def _measure(self, body: mir.Body, depth: int) -> None:
        for stmt in body:
            if not isinstance(stmt, mir.Loop):
                continue
            below = depth
            if self._has_slots(stmt):
                level = self._levels.setdefault(_key(stmt, depth), _Level())
                level.slots = max(level.slots, stmt.most_trips)
                level.width = reduces.vector_width(stmt) or level.width
                below = depth + 1
            self._measure(stmt.body, below)

    def _has_slots(self, loop: mir.Loop) -> bool:
        return self._conflicts(loop) and not loop.has(d.AtomicReduce)

    def run(self, name: Callable[[str], str]) -> mir.Body:
        loops = list(loops_in(self._body))
        atomic = any(
            loop.on_threads and self._conflicts(loop) and loop.has(d.AtomicReduce)
            for loop in loops
        )
        if not self._levels:
            return self._rewrite(self._body, {}, atomic, True)
        self._name = name("result")
        # The blocks of a grid have only global memory in common.
        in_block = not any(map(_on_grid, loops))
        shared = in_block and any(loop.has(d.SharedReduce) for loop in loops)
        levels = list(self._levels.values())
        dims = (*(level.slots for level in levels), self._scope.extent, None)
        inner = self._rewrite(self._body, {}, atomic, True)
        total = mir.ReduceDimension(
            self._sums.target,
            self._name,
            levels[0].slots,
            self._sums.rows,
            mir.Affine(),
            levels[0].width,
            ordered=False,
        )
        alloc = mir.AllocArray(
            mir.NamedArray(self._name, dims, shared=shared), zero=True
        )
        return (alloc, *inner, *self._later(), total)

    def _rewrite(
        self, body: mir.Body, slots: dict[_Key, mir.Slot], atomic: bool, tree_only: bool
    ) -> mir.Body:
        stmts: list[mir.Stmt] = []
        for stmt in body:
            match stmt:
                case mir.Loop():
                    stmt = self._loop(stmt, slots, atomic, tree_only)
                case mir.Reduce(target=self._sums.target):
                    stmt = self._reduce(stmt, slots, atomic or stmt.atomic)
                case mir.ReduceDimension(target=self._sums.target):
                    stmt = self._total(stmt, slots, atomic or stmt.atomic)
                case _:
                    pass
            stmts.append(stmt)
        return tuple(stmts)

    def _loop(
        self, loop: mir.Loop, slots: dict[_Key, mir.Slot], atomic: bool, tree_only: bool
    ) -> mir.Loop:
        tree_only = tree_only and loop.root == "tree"
        if not self._has_slots(loop):
            atomic = atomic or self._conflicts(loop)
            inner = self._rewrite(loop.body, slots, atomic, tree_only)
            return replace(loop, body=inner)
        slot = mir.Slot(mir.Affine((loop.var,)), loop.start, loop.step)
        slots = {**slots, _key(loop, len(slots)): slot}
        body = self._rewrite(loop.body, slots, atomic, tree_only)
        has_inner = any(map(self._has_slots, loops_in(loop.body)))
        mapped = loop.on_grid or loop.on_threads
        if has_inner and tree_only and not atomic and not mapped:
            body += (self._inplace(tuple(slots.values())),)
        elif has_inner:
            # Other rows, or atomic adds of an outer loop, may still be writing the
            # same slots, and GPU threads do not synchronise here: sum when all are
            # done.
            self._deferred = True
        return replace(loop, body=body)

    def _inplace(self, prefix: tuple[mir.Index, ...]) -> mir.ReduceDimensionInplace:
        level = list(self._levels.values())[len(prefix)]
        return mir.ReduceDimensionInplace(
            self._name, prefix, level.slots, self._scope.local_rows, level.width
        )

    def _later(self) -> mir.Body:
        if not self._deferred:
            return ()
        stmts: list[mir.Stmt] = []
        sizes = [level.slots for level in self._levels.values()]
        for level in reversed(range(1, len(sizes))):
            names = tuple(f"%slot{i}" for i in range(level))
            stmt: mir.Stmt = self._inplace(tuple(mir.Affine((name,)) for name in names))
            for name, trips in reversed(list(zip(names, sizes, strict=False))):
                bound = (mir.Bound(trips),)
                stmt = mir.Loop(name, "tree", 0, 1, bound, "serial", (stmt,), trips)
            stmts.append(stmt)
        return tuple(stmts)

    def _prefix(self, slots: dict[_Key, mir.Slot]) -> tuple[mir.Index, ...]:
        # With fewer conflicting loops than elsewhere in the scope, the rest use slot 0.
        return tuple(slots.get(key, mir.Affine()) for key in self._levels)

    def _reduce(
        self, stmt: mir.Reduce, slots: dict[_Key, mir.Slot], atomic: bool
    ) -> mir.Reduce:
        if not self._levels:
            return replace(stmt, atomic=atomic)
        row, *rest = stmt.indices
        assert isinstance(row, mir.Affine)
        indices = (*self._prefix(slots), self._scope.local(row), *rest)
        return replace(stmt, target=self._name, indices=indices, atomic=atomic)

    def _total(
        self, stmt: mir.ReduceDimension, slots: dict[_Key, mir.Slot], atomic: bool
    ) -> mir.ReduceDimension:
        if not self._levels:
            return replace(stmt, atomic=atomic)
        rows = replace(stmt.rows, start=self._scope.local(stmt.rows.start))
        prefix = self._prefix(slots)
        return replace(stmt, target=self._name, rows=rows, prefix=prefix, atomic=atomic)


#: Rows that a thread adds up at a time: one cache line of float64 sums.
ROWS_AT_ONCE = 8

#: Most bytes of the leaves of a part of a batch, and its least rows. A cache of 2 MB
#: holds them, and 16 threads have 8 tiles of trees for 8 rows each.
PART_BYTES, LEAST_ROWS = 1 << 20, 64


def run(function: mir.Function, hir: PredictEnsemble) -> mir.Function:
    """Legalise a prediction function; ``apply`` functions have no reduces."""
    body = function.body
    if function.result.holds_sums:
        body = _Legalizer(function, hir).descend(body, RowScope())

    def carried_out(loop: mir.Loop) -> mir.Loop:
        marks = loop.without(d.AtomicReduce, d.SharedReduce, d.VectorReduce)
        return replace(loop, marks=marks)

    return replace(function, body=walk.map_loops(body, carried_out))


def _without_caches(body: mir.Body, scope: RowScope) -> list[mir.Stmt]:
    """Drop a GPU block's caches, which serve the block wherever rows are summed."""
    if not any(loop.on_grid or loop.on_threads for loop in scope.outside):
        return list(body)
    return [
        stmt for stmt in body if not isinstance(stmt, mir.CacheRows | mir.CacheTrees)
    ]


def _can_enter(stmt: mir.Stmt, scope: RowScope) -> bool:
    if not isinstance(stmt, mir.Loop) or stmt.root != "batch":
        return False
    if not owns_rows(stmt, scope) or _is_split(stmt) or shared_with(stmt):
        return False
    inside = scope.enter(stmt)
    below = tuple(loops_in(stmt.body))
    in_thread = any(loop.on_threads for loop in inside.outside)
    apart = any(i.on_grid or (in_thread and i.on_threads) for i in below)
    # Launches inside share nothing, and threads do not synchronise inside loops over
    # other threads, so sums are inside every one of these loops or inside none.
    return not apart or all(
        _can_enter(i, inside) for i in _without_caches(stmt.body, inside)
    )


def _is_split(loop: mir.Loop) -> bool:
    """Whether the trees of one iteration are distributed over blocks or threads.

    Blocks of a GPU's grid share only global memory, and threads of a block synchronise
    only between loops over threads, so sums over several lie outside such a loop.
    """
    inside = [i for i in loops_in(loop.body) if reduces.is_conflicting(i)]
    if loop.on_threads:
        return bool(inside)
    return loop.on_grid and any(i.on_grid for i in inside)


class _Legalizer:
    def __init__(self, function: mir.Function, hir: PredictEnsemble) -> None:
        self._hir = hir
        self._n_trees = function.n_trees
        self._arrays = 0
        order = hir.tiles.tree_order
        in_order = bool((order == range(len(order))).all())
        self._ordered_already = hir.nest.trees_in_order and in_order
        self._vector_leaves = hir.forest.leaf_value.shape[1] > 1
        self._position: dict[str, mir.Affine] = {}
        self._tree_of: dict[str, str] = {}
        self._parts: set[str] = set()  # loops over parts of a batch

    # ------------------------------------------------------------ scopes

    def descend(self, body: mir.Body, scope: RowScope) -> mir.Body:
        body = tuple(self._in_parts(stmt, scope) for stmt in body)
        if all(_can_enter(stmt, scope) for stmt in _without_caches(body, scope)):
            return tuple(
                replace(stmt, body=self.descend(stmt.body, scope.enter(stmt)))
                if isinstance(stmt, mir.Loop)
                else stmt
                for stmt in body
            )
        return self._legalize(body, scope)

    def _in_parts(self, stmt: mir.Stmt, scope: RowScope) -> mir.Stmt:
        if (
            scope.outside
            or self._hir.reduction != "exact"
            or not isinstance(stmt, mir.Loop)
            or stmt.root != "batch"
            or stmt.start != 0
            or not isinstance(stmt.step, int)
            or not (shared_with(stmt) and owns_rows(stmt, scope))
        ):
            return stmt
        width = self._hir.forest.leaf_value.shape[1]
        rows = max(LEAST_ROWS, PART_BYTES // (8 * max(1, self._n_trees) * width))
        # An odd number of blocks, so that the leaves of a row share few cache sets.
        step = (rows // stmt.step | 1) * stmt.step
        name = self._name("part")
        here = mir.Affine((name,))
        ends = [mir.Bound(b.limit, b.minus.plus(here)) for b in stmt.bounds]
        body = substitute(stmt.body, stmt.var, mir.Affine((name, stmt.var)))
        inner = replace(stmt, bounds=(mir.Bound(step), *ends), body=body)
        self._parts.add(name)
        return mir.Loop(name, "batch", 0, step, stmt.bounds, "serial", (inner,))

    def _legalize(self, body: mir.Body, scope: RowScope) -> mir.Body:
        legal = self._made_legal(body, scope)
        whole = all(loop.var in self._parts for loop in scope.outside)
        whole = whole and self._hir.reduction == "exact"
        roots = {loop.root for loop in loops_in(body) if loop.kind == "parallel"}
        if not whole or "tree" not in roots:  # CPU threads share rows alone
            return legal
        return tuple(self._add_in_parallel(stmt, scope) for stmt in legal)

    def _add_in_parallel(self, stmt: mir.Stmt, scope: RowScope) -> mir.Stmt:
        if not isinstance(stmt, mir.ReduceDimension):
            return stmt
        name = self._name("rows")
        here, ends = mir.Affine((name,)), scope.rows.bounds
        bounds = (
            mir.Bound(ROWS_AT_ONCE),
            *(mir.Bound(b.limit, b.minus.plus(here)) for b in ends),
        )
        rows = mir.Range(stmt.rows.start.plus(here), bounds)
        part = replace(stmt, rows=rows, source_rows=here)
        return mir.Loop(name, "batch", 0, ROWS_AT_ONCE, ends, "parallel", (part,))

    def _made_legal(self, body: mir.Body, scope: RowScope) -> mir.Body:
        if self._hir.reduction == "exact":
            fill = mir.Fill(mir.RESULT, scope.rows)
            if self._ordered_already:
                return (fill, *body)
            return (fill, *self._store_leaves(body, scope))
        if self._hir.reduction == "fast":
            fill = mir.Fill(mir.RESULT, scope.rows)
            sums = SumPlace(mir.RESULT, scope.rows, local=False)
            return (fill, *privatize(body, scope, sums, self._name))
        array = mir.NamedArray(self._name("sums"), (scope.extent, None))
        body = reduces.retarget(body, array.name, scope.local)
        sums = SumPlace(array.name, scope.local_rows, local=True)
        return (
            mir.AllocArray(array, zero=True),
            *privatize(body, scope, sums, self._name),
            mir.Finish(array.name, scope.rows, mir.Affine()),
        )

    def _name(self, base: str) -> str:
        self._arrays += 1
        return f"{base}_{self._arrays}"

    # ------------------------------------------------------------ exact

    def _store_leaves(self, body: mir.Body, scope: RowScope) -> mir.Body:
        self._note_names(body)
        width: tuple[Size | None, ...] = (None,) if self._vector_leaves else ()
        shared = any(loop.has(d.SharedReduce) for loop in loops_in(body))
        leaves = mir.NamedArray(
            self._name("leaves"), (self._n_trees, scope.extent, *width), shared=shared
        )

        def store(stmt: mir.Stmt) -> mir.Stmt:
            if not isinstance(stmt, mir.Reduce):
                return stmt
            row = stmt.indices[0]
            assert isinstance(row, mir.Affine)
            tree = mir.ModelTree(self._position[self._tree_of[stmt.value]])
            indices: tuple[mir.Index, ...] = (tree, scope.local(row))
            if self._vector_leaves:
                indices += (mir.Outputs(),)
            return mir.StoreLeaf(leaves.name, indices, stmt.value)

        widths = [reduces.vector_width(loop) for loop in loops_in(body)]
        total = mir.ReduceDimension(
            mir.RESULT,
            leaves.name,
            self._n_trees,
            scope.rows,
            mir.Affine(),
            vector_width=max((w for w in widths if w is not None), default=None),
            by_output=not self._vector_leaves and self._hir.forest.n_outputs > 1,
        )
        return (mir.AllocArray(leaves, zero=False), *map_statements(body, store), total)

    def _note_names(self, body: mir.Body) -> None:
        for stmt in walk.statements(body):
            match stmt:
                case mir.Let(names=(name, *_), op=mir.GetTree(index=index)):
                    self._position[name] = index
                case mir.Let(
                    names=(name, *_), op=mir.WalkDecisionTree(trees=(tree, *_))
                ):
                    self._tree_of[name] = tree
                case _:
                    pass
