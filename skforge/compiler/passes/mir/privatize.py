"""Give each iteration of conflicting loops a slot of its own, then sum the slots.

SilvanForge §5.1, Treebeard draft §4.1. Before::

    par t0 in 0 to 100 step 50: for t1 ...: for batch ...: reduce(result[batch], p)

After::

    result_1 = zeros[2, rows]
    par t0 in 0 to 100 step 50: for t1 ...: for batch ...:
      reduce(result_1[t0 / 50, batch], p)
    result[0 : rows] = reduce_dimension(result_1, 0)

On a GPU, loops over threads are privatised first, in the block's own memory; their sums
then go to the slots of the loops over blocks. Threads do not synchronise between the
nests of a block, so a slot must always belong to the same thread: each dimension of
threads has its own dimension of slots, whichever loop runs on it. For the same reason,
if one nest adds atomically, all of them do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from skforge.compiler.ir.mir.nodes import (
    Affine,
    AllocArray,
    Array,
    Body,
    Bound,
    Index,
    Loop,
    Range,
    Reduce,
    ReduceDimension,
    ReduceDimensionInplace,
    Slot,
    Stmt,
)
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.passes.mir.reduces import (
    RowScope,
    is_conflicting,
    owns_rows,
    vector_width,
)
from skforge.compiler.schedule.directives import (
    AtomicReduce,
    SharedReduce,
)


@dataclass(frozen=True, slots=True)
class Sums:
    """Where sums end up: an array, and whether its rows are those of the scope."""

    target: str
    rows: Range
    local: bool


def privatize(
    body: Body, scope: RowScope, sums: Sums, name: Callable[[str], str]
) -> Body:
    """Make the reduces of a scope legal where any order of summation is allowed."""
    if any(loop.on_grid and is_conflicting(loop) for loop in loops_in(body)):
        if _scatters(body, scope):
            return _slots(body, scope, sums, name, is_conflicting, shared=False)
        body = _in_blocks(body, scope, scope, sums, name)
        return _slots(body, scope, sums, name, _on_grid, shared=False)
    shared = any(loop.has(SharedReduce) for loop in loops_in(body))
    return _slots(body, scope, sums, name, is_conflicting, shared)


def _on_grid(loop: Loop) -> bool:
    return loop.on_grid and is_conflicting(loop)


def _scatters(body: Body, scope: RowScope) -> bool:
    """Whether threads share sums of rows that are not contiguous.

    A block cannot hold these sums itself: slots then cover all rows, one slot for each
    thread of each block.
    """
    for stmt in body:
        if not isinstance(stmt, Loop):
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


def _in_blocks(
    body: Body, outer: RowScope, scope: RowScope, sums: Sums, name: Callable[[str], str]
) -> Body:
    """Legalise the code of each block of a grid; blocks still combine in ``sums``."""
    made: list[Stmt] = []
    for stmt in body:
        if not isinstance(stmt, Loop):
            made.append(stmt)
            continue
        by_block = stmt.root == "tree" or stmt.on_threads
        if by_block and not any(i.on_grid for i in loops_in((stmt,))):
            # Threads beside a loop over blocks combine their sums separately.
            made.extend(_meet((stmt,), outer, scope, sums, name))
            continue
        here = scope
        if stmt.root == "batch":
            if not owns_rows(stmt, scope):
                made.append(stmt)  # no threads share sums here
                continue
            here = scope.enter(stmt)
        if any(loop.on_grid for loop in loops_in(stmt.body)):
            inner = _in_blocks(stmt.body, outer, here, sums, name)
        else:
            inner = _meet(stmt.body, outer, here, sums, name)
        made.append(replace(stmt, body=inner))
    return tuple(made)


def _meet(
    body: Body, outer: RowScope, scope: RowScope, sums: Sums, name: Callable[[str], str]
) -> Body:
    """Legalise the code that the threads of one block run."""
    if not any(map(is_conflicting, loops_in(body))):
        return body
    rows = scope.rows
    if sums.local:
        rows = replace(rows, start=outer.local(rows.start))
    shared = any(loop.has(SharedReduce) for loop in loops_in(body))
    below = Sums(sums.target, rows, sums.local)
    return _slots(body, scope, below, name, is_conflicting, shared)


def _slots(
    body: Body,
    scope: RowScope,
    sums: Sums,
    name: Callable[[str], str],
    conflicts: Callable[[Loop], bool],
    shared: bool,
) -> Body:
    """Give each iteration of the conflicting loops a slot, then sum the slots."""
    levels: _Levels = {}
    _measure(body, 0, levels, conflicts)
    atomic = any(
        loop.on_threads and conflicts(loop) and loop.has(AtomicReduce)
        for loop in loops_in(body)
    )
    if not levels:
        return _mark_atomic(body, atomic, sums.target, conflicts)
    sizes = [level.slots for level in levels.values()]
    private = Array(name("result"), (*sizes, scope.extent, None), shared=shared)
    rewriter = _Privatizer(private.name, scope, levels, sums, conflicts)
    inner = rewriter.body(body, {}, atomic, True)
    total = ReduceDimension(
        sums.target,
        private.name,
        sizes[0],
        sums.rows,
        Affine(),
        next(iter(levels.values())).width,
        ordered=False,
    )
    return (AllocArray(private, zero=True), *inner, *rewriter.later(), total)


#: A dimension of slots: a dimension of threads, or a loop's depth among the conflicting
#: loops of a nest.
_Key: TypeAlias = str | int


@dataclass(slots=True)
class _Level:
    """A dimension of slots: the most slots, and the vector width of their sum."""

    slots: int = 1
    width: int | None = None


_Levels: TypeAlias = dict[_Key, _Level]
_Slots: TypeAlias = dict[_Key, Slot]


def _key(loop: Loop, depth: int) -> _Key:
    return loop.kind if loop.on_threads else depth


def _measure(
    body: Body, depth: int, levels: _Levels, conflicts: Callable[[Loop], bool]
) -> None:
    """Collect the dimensions of slots below ``depth`` conflicting loops."""
    for stmt in body:
        if not isinstance(stmt, Loop):
            continue
        below = depth
        if conflicts(stmt) and not stmt.has(AtomicReduce):
            level = levels.setdefault(_key(stmt, depth), _Level())
            level.slots = max(level.slots, stmt.most_trips)
            level.width = vector_width(stmt) or level.width
            below = depth + 1
        _measure(stmt.body, below, levels, conflicts)


def _mark_atomic(
    body: Body, atomic: bool, target: str, conflicts: Callable[[Loop], bool]
) -> Body:
    """Set ``atomic`` on additions to ``target`` below a loop that requests it."""
    made: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Loop():
                asked = conflicts(stmt) and stmt.has(AtomicReduce)
                inner = _mark_atomic(stmt.body, atomic or asked, target, conflicts)
                made.append(replace(stmt, body=inner))
            case Reduce() | ReduceDimension() if stmt.target == target:
                made.append(replace(stmt, atomic=atomic or stmt.atomic))
            case _:
                made.append(stmt)
    return tuple(made)


class _Privatizer:
    """Rewrites the reduces of a scope to slots of a privatised array."""

    def __init__(
        self,
        name: str,
        scope: RowScope,
        levels: _Levels,
        sums: Sums,
        conflicts: Callable[[Loop], bool],
    ) -> None:
        self._name, self._scope, self._sums = name, scope, sums
        self._levels, self._conflicts = levels, conflicts
        # Nests may number threads in different dimensions: every slot has been used
        # only after all of the nests.
        self._deferred = len(levels) > 1 and any(isinstance(k, str) for k in levels)

    def body(self, body: Body, slots: _Slots, atomic: bool, tree_only: bool) -> Body:
        """Rewrite a body inside the loops that ``slots`` numbers."""
        made: list[Stmt] = []
        for stmt in body:
            match stmt:
                case Loop():
                    made.append(self._loop(stmt, slots, atomic, tree_only))
                case Reduce() if stmt.target == self._sums.target:
                    made.append(self._reduce(stmt, slots, atomic))
                case ReduceDimension() if stmt.target == self._sums.target:
                    made.append(self._total(stmt, slots, atomic))
                case _:
                    made.append(stmt)
        return tuple(made)

    def _loop(self, loop: Loop, slots: _Slots, atomic: bool, tree_only: bool) -> Loop:
        tree_only = tree_only and loop.root == "tree"
        if not self._conflicts(loop):
            return replace(loop, body=self.body(loop.body, slots, atomic, tree_only))
        if loop.has(AtomicReduce):
            return replace(loop, body=self.body(loop.body, slots, True, tree_only))
        slot = Slot(Affine((loop.var,)), loop.start, loop.step)
        slots = {**slots, _key(loop, len(slots)): slot}
        body = self.body(loop.body, slots, atomic, tree_only)
        has_inner = any(
            self._conflicts(i) and not i.has(AtomicReduce) for i in loops_in(loop.body)
        )
        on_gpu = loop.on_grid or loop.on_threads
        if has_inner and tree_only and not atomic and not on_gpu:
            body += (self._inplace(tuple(slots.values())),)
        elif has_inner:
            # Other rows, or atomic adds of an outer loop, may still be writing the
            # same slots, and GPU threads do not synchronise here: sum when all are
            # done.
            self._deferred = True
        return replace(loop, body=body)

    def _inplace(self, prefix: tuple[Index, ...]) -> ReduceDimensionInplace:
        level = list(self._levels.values())[len(prefix)]
        return ReduceDimensionInplace(
            self._name, prefix, level.slots, self._scope.local_rows, level.width
        )

    def later(self) -> Body:
        """Return the deferred reductions of inner levels, innermost first."""
        if not self._deferred:
            return ()
        made: list[Stmt] = []
        sizes = [level.slots for level in self._levels.values()]
        for level in reversed(range(1, len(sizes))):
            names = tuple(f"%slot{i}" for i in range(level))
            stmt: Stmt = self._inplace(tuple(Affine((name,)) for name in names))
            for name, trips in reversed(list(zip(names, sizes, strict=False))):
                bound = (Bound(trips),)
                stmt = Loop(name, "tree", 0, 1, bound, "serial", (stmt,), trips)
            made.append(stmt)
        return tuple(made)

    def _prefix(self, slots: _Slots) -> tuple[Index, ...]:
        # With fewer conflicting loops than elsewhere in the scope, the rest use slot 0.
        return tuple(slots.get(key, Affine()) for key in self._levels)

    def _reduce(self, stmt: Reduce, slots: _Slots, atomic: bool) -> Reduce:
        row = stmt.indices[0]
        assert isinstance(row, Affine)
        indices = (*self._prefix(slots), self._scope.local(row), *stmt.indices[1:])
        atomic = atomic or stmt.atomic
        return Reduce(self._name, indices, stmt.value, stmt.order, atomic)

    def _total(
        self, stmt: ReduceDimension, slots: _Slots, atomic: bool
    ) -> ReduceDimension:
        rows = replace(stmt.rows, start=self._scope.local(stmt.rows.start))
        prefix = self._prefix(slots)
        atomic = atomic or stmt.atomic
        return replace(stmt, target=self._name, rows=rows, prefix=prefix, atomic=atomic)
