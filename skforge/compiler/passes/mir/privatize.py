"""Give each iteration of conflicting loops a slot of its own, then sum the slots.

SilvanForge §5, Treebeard draft §4. Before::

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

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.passes.mir import reduces
from skforge.compiler.passes.mir.reduces import RowScope, is_conflicting, owns_rows
from skforge.compiler.schedule.directives import AtomicReduce, SharedReduce

#: Whether iterations of a loop need slots of their own.
_Conflicts: TypeAlias = Callable[[mir.Loop], bool]


@dataclass(frozen=True, slots=True)
class Sums:
    """Where sums end up: an array, and whether its rows are those of the scope."""

    target: str
    rows: mir.Range
    local: bool


def privatize(
    body: mir.Body, scope: RowScope, sums: Sums, name: Callable[[str], str]
) -> mir.Body:
    """Make the reduces of a scope legal where any order of summation is allowed."""
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
    sums: Sums
    name: Callable[[str], str]

    def body(self, body: mir.Body, scope: RowScope) -> mir.Body:
        """Rewrite the statements around and inside the loops over blocks."""
        made: list[mir.Stmt] = []
        for stmt in body:
            if not isinstance(stmt, mir.Loop):
                made.append(stmt)
                continue
            by_block = stmt.root == "tree" or stmt.on_threads
            if by_block and not any(i.on_grid for i in loops_in((stmt,))):
                # Threads beside a loop over blocks combine their sums separately.
                made.extend(self._meet((stmt,), scope))
                continue
            here = scope
            if stmt.root == "batch":
                if not owns_rows(stmt, scope):
                    made.append(stmt)  # no threads share sums here
                    continue
                here = scope.enter(stmt)
            on_grid = any(loop.on_grid for loop in loops_in(stmt.body))
            inner = (self.body if on_grid else self._meet)(stmt.body, here)
            made.append(replace(stmt, body=inner))
        return tuple(made)

    def _meet(self, body: mir.Body, scope: RowScope) -> mir.Body:
        """Legalise the code that the threads of one block run."""
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
        self, body: mir.Body, scope: RowScope, sums: Sums, conflicts: _Conflicts
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
        """Collect the dimensions of slots below ``depth`` conflicting loops."""
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
        return self._conflicts(loop) and not loop.has(AtomicReduce)

    def run(self, name: Callable[[str], str]) -> mir.Body:
        """Return the body with its slots and their sum; ``name`` makes unique names."""
        loops = list(loops_in(self._body))
        atomic = any(
            loop.on_threads and self._conflicts(loop) and loop.has(AtomicReduce)
            for loop in loops
        )
        if not self._levels:
            return self._rewrite(self._body, {}, atomic, True)
        self._name = name("result")
        # The blocks of a grid have only global memory in common.
        in_block = not any(map(_on_grid, loops))
        shared = in_block and any(loop.has(SharedReduce) for loop in loops)
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
        private = mir.Array(self._name, dims, shared=shared)
        alloc = mir.AllocArray(private, zero=True)
        return (alloc, *inner, *self._later(), total)

    def _rewrite(
        self, body: mir.Body, slots: dict[_Key, mir.Slot], atomic: bool, tree_only: bool
    ) -> mir.Body:
        """Rewrite a body inside the loops that ``slots`` numbers."""
        made: list[mir.Stmt] = []
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
            made.append(stmt)
        return tuple(made)

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
        on_gpu = loop.on_grid or loop.on_threads
        if has_inner and tree_only and not atomic and not on_gpu:
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
        """Return the deferred reductions of inner levels, innermost first."""
        if not self._deferred:
            return ()
        made: list[mir.Stmt] = []
        sizes = [level.slots for level in self._levels.values()]
        for level in reversed(range(1, len(sizes))):
            names = tuple(f"%slot{i}" for i in range(level))
            stmt: mir.Stmt = self._inplace(tuple(mir.Affine((name,)) for name in names))
            for name, trips in reversed(list(zip(names, sizes, strict=False))):
                bound = (mir.Bound(trips),)
                stmt = mir.Loop(name, "tree", 0, 1, bound, "serial", (stmt,), trips)
            made.append(stmt)
        return tuple(made)

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
