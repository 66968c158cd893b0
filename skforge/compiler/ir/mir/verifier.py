"""What every MIR function must satisfy; passes and lowering rely on it.

Names are bound once along a path and before use, loop variables are in scope, groups
have a remainder where they need one, unchecked hops never pass a leaf, arrays are
allocated before use. Once reductions are legal, no two iterations of a parallel loop
write one element unless atomically: every write is indexed by each parallel loop that
its array is outside of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, TypeAlias

from skforge._compat import assert_never
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.printer import loop_line, print_statement
from skforge.compiler.ir.mir.walk import variables
from skforge.compiler.schedule.directives import Interleave, Vectorize
from skforge.exceptions import CompilerError

_Kind: TypeAlias = Literal["tree", "class", "node", "leaf", "predicates", "codes"]


def verify_mir(
    function: mir.Function, *, legal: bool = False, final: bool = False
) -> None:
    """Raise if a function is malformed.

    Parameters
    ----------
    function : Function
        MIR after any pass.
    legal : bool, default=False
        Whether reductions have been legalised, so that parallel iterations must not
        share elements.
    final : bool, default=False
        Whether every pass has run: no directive and no unexpanded walk may be left.
        Implies ``legal``.

    Raises
    ------
    CompilerError
        Naming what is wrong, with the statement.
    """
    arrays = {function.result.name: _Known(function.result, 0)}
    scope = _Scope((), {}, arrays)
    _Verifier(function, legal or final, final).body(function.body, scope)


@dataclass(frozen=True, slots=True)
class _Known:
    """An array, and how many loops are outside its allocation."""

    array: mir.Array
    level: int


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a statement may use; the dictionaries are never changed in place."""

    loops: tuple[mir.Loop, ...]
    names: dict[str, _Kind]
    arrays: dict[str, _Known]
    blocks: dict[str, mir.Affine] = field(default_factory=dict)  # first rows of tables

    def bind(self, names: Iterable[str], kind: _Kind) -> _Scope:
        return replace(self, names={**self.names, **dict.fromkeys(names, kind)})

    def root(self, var: str) -> str | None:
        """Return the root of a loop variable, or None if it is not in scope."""
        return next((loop.root for loop in self.loops if loop.var == var), None)


def _fail(stmt: mir.Stmt, why: str) -> NoReturn:
    text = loop_line(stmt) if isinstance(stmt, mir.Loop) else print_statement(stmt)
    raise CompilerError(f"{why} in:\n" + "\n".join("  " + t for t in text.split("\n")))


class _Verifier:
    def __init__(self, function: mir.Function, legal: bool, final: bool) -> None:
        self._function, self._legal, self._final = function, legal, final

    # ------------------------------------------------------------ statements

    def body(self, body: mir.Body, scope: _Scope) -> None:
        for stmt in body:
            scope = self._statement(stmt, scope)

    def _statement(self, stmt: mir.Stmt, scope: _Scope) -> _Scope:
        match stmt:
            case mir.Let():
                return self._let(stmt, scope)
            case mir.WalkLoop():
                return self._walk_loop(stmt, scope)
            case mir.Loop():
                self._loop(stmt, scope)
            case mir.DepthSwitch():
                self._depth_switch(stmt, scope)
            case mir.Reduce():
                self._reduce(stmt, scope)
            case mir.StoreLeaf():
                self._names(stmt, scope, "leaf", (stmt.value,))
                self._write(stmt, scope, stmt.target, stmt.indices)
            case mir.ReduceDimension():
                self._reduce_dimension(stmt, scope)
            case mir.ReduceDimensionInplace():
                self._reduce_inplace(stmt, scope)
            case mir.AllocArray():
                return self._alloc(stmt, scope)
            case mir.Fill(target=target, rows=rows):
                self._range(stmt, scope, rows, "batch")
                self._rows_of(stmt, scope, target, rows.start)
            case mir.Finish():
                self._range(stmt, scope, stmt.rows, "batch")
                self._affine(stmt, scope, stmt.source_rows, "batch")
                self._array(stmt, scope, stmt.source)
                self._rows_of(stmt, scope, mir.RESULT, stmt.rows.start)
            case mir.CacheTrees(trees=trees):
                self._range(stmt, scope, trees, "tree")
            case mir.CacheRows(rows=rows, share=share):
                self._range(stmt, scope, rows, "batch")
                if share is not None:
                    self._affine(stmt, scope, mir.Affine((share[0],)), "tree")
            case mir.StoreRows():
                self._range(stmt, scope, stmt.rows, "batch")
                self._array(stmt, scope, stmt.source)
                self._rows_of(stmt, scope, mir.RESULT, stmt.rows.start)
            case mir.EvaluatePredicates(name=name):
                self._alone(stmt, scope, name)
                self._range(stmt, scope, stmt.trees, "tree")
                self._range(stmt, scope, stmt.rows, "batch")
                scope = self._bind(stmt, scope, (name,), "predicates")
                return replace(scope, blocks={**scope.blocks, name: stmt.rows.start})
            case mir.QuantizeRows(name=name):
                if stmt.size < 1:
                    _fail(stmt, "a block of codes has at least one row")
                self._alone(stmt, scope, name)
                self._range(stmt, scope, stmt.rows, "batch")
                scope = self._bind(stmt, scope, (name,), "codes")
                return replace(scope, blocks={**scope.blocks, name: stmt.rows.start})
            case _:
                assert_never(stmt)
        return scope

    def _loop(self, loop: mir.Loop, scope: _Scope) -> None:
        if scope.root(loop.var) is not None:
            _fail(loop, f'the loop variable "{loop.var}" is taken')
        if not loop.bounds:
            _fail(loop, "a loop has no bound")
        if isinstance(loop.step, int) and loop.step < 1:
            _fail(loop, "a loop does not advance")
        for bound in loop.bounds:
            self._affine(loop, scope, bound.minus, loop.root)
        self._groups(loop)
        if self._final and loop.marks:
            _fail(loop, "directives are left after the last pass")
        holds_loop = any(isinstance(stmt, mir.Loop) for stmt in loop.body)
        if holds_loop and loop.has(Interleave, Vectorize):
            _fail(loop, "only an innermost loop can be interleaved or vectorised")
        inside = replace(scope, loops=(*scope.loops, loop))
        self.body(loop.body, inside)
        # What is left over runs one by one, and serially.
        alone = replace(loop, kind="serial", group=1)
        self.body(loop.remainder, replace(scope, loops=(*scope.loops, alone)))

    def _groups(self, loop: mir.Loop) -> None:
        if loop.group < 1:
            _fail(loop, "a group has at least one iteration")
        if loop.group == 1 and loop.remainder:
            _fail(loop, "there is a remainder, but groups are single iterations")
        if loop.kind == "vector" and (loop.group == 1 or loop.root != "batch"):
            _fail(loop, "a vector loop has a row in each of several lanes")
        whole = loop.trip_count is not None and loop.trip_count % loop.group == 0
        if loop.group > 1 and not loop.remainder and not whole:
            _fail(loop, "groups need a remainder unless they divide the iterations")

    def _depth_switch(self, stmt: mir.DepthSwitch, scope: _Scope) -> None:
        self._affine(stmt, scope, stmt.position, "tree")
        if not stmt.cases or len(stmt.classes) != len(stmt.cases):
            _fail(stmt, "a switch needs one case for each class of depths")
        if len(stmt.class_of) != self._function.n_trees:
            _fail(stmt, "a switch needs the class of every position")
        if not all(0 <= k < len(stmt.cases) for k in stmt.class_of):
            _fail(stmt, "a position is of a class without a case")
        for case in stmt.cases:
            self.body(case, scope)

    # ------------------------------------------------------------ walks

    def _let(self, stmt: mir.Let, scope: _Scope) -> _Scope:
        op = stmt.op
        kind: _Kind
        match op:
            case mir.GetTree(index=index):
                self._affine(stmt, scope, index, "tree")
                kind, count = "tree", 1
            case mir.GetTreeClassId(tree=tree):
                self._names(stmt, scope, "tree", (tree,))
                kind, count = "class", 1
            case mir.WalkDecisionTree():
                self._walk(stmt, op, scope)
                kind, count = "leaf", len(op.trees)
            case mir.GetRoot(trees=trees):
                self._names(stmt, scope, "tree", trees)
                kind, count = "node", len(trees)
            case mir.TraverseTreeTile():
                self._hop(stmt, op, scope)
                kind, count = "node", len(op.trees)
            case mir.GetLeafValue(trees=trees, nodes=nodes, element=element):
                self._names(stmt, scope, "tree", trees)
                self._names(stmt, scope, "node", nodes)
                self._is_element(stmt, element)
                if len(trees) != len(nodes):
                    _fail(stmt, f"{len(trees)} trees, but {len(nodes)} nodes")
                kind, count = "leaf", len(trees)
            case _:
                assert_never(op)
        if len(stmt.names) != count or not count:
            _fail(stmt, f"{len(stmt.names)} names for {count} results")
        return self._bind(stmt, scope, stmt.names, kind)

    def _walk(self, stmt: mir.Let, walk: mir.WalkDecisionTree, scope: _Scope) -> None:
        if walk.using is not None:
            self._table(stmt, scope, walk.using, walk.rows, walk.block)
        if self._final and not walk.block:
            _fail(stmt, "a walk was not expanded")
        self._names(stmt, scope, "tree", walk.trees)
        for row in walk.rows:
            self._affine(stmt, scope, row, "batch")
        if len(walk.trees) != len(walk.rows):
            _fail(stmt, f"{len(walk.trees)} trees, but {len(walk.rows)} rows")
        if walk.min_depth > walk.max_depth:
            _fail(stmt, "the shallowest leaf is deeper than the deepest")
        if max(walk.unroll, walk.peel) > walk.min_depth:
            _fail(stmt, "unchecked hops go past the shallowest leaf")
        self._is_element(stmt, walk.element)

    def _table(
        self,
        stmt: mir.Stmt,
        scope: _Scope,
        name: str,
        rows: Sequence[mir.Affine],
        block: bool = False,
    ) -> None:
        """Check what a walk compares: codes, or in a block predicates as well.

        Its rows are of the iteration that made them.
        """
        if not (block and scope.names.get(name) == "predicates"):
            self._names(stmt, scope, "codes", (name,))
        for row in rows:
            if not set(scope.blocks[name].terms) <= set(row.terms):
                _fail(stmt, f"{name} is of other rows")

    def _hop(self, stmt: mir.Stmt, hop: mir.TraverseTreeTile, scope: _Scope) -> None:
        if hop.using is not None:
            self._table(stmt, scope, hop.using, hop.rows)
        self._names(stmt, scope, "tree", hop.trees)
        self._names(stmt, scope, "node", hop.nodes)
        for row in hop.rows:
            self._affine(stmt, scope, row, "batch")
        if not len(hop.trees) == len(hop.nodes) == len(hop.rows):
            _fail(
                stmt,
                f"{len(hop.trees)} trees, {len(hop.nodes)} nodes and {len(hop.rows)} "
                "rows",
            )

    def _walk_loop(self, stmt: mir.WalkLoop, scope: _Scope) -> _Scope:
        self._names(stmt, scope, "node", stmt.inits)
        if not len(stmt.results) == len(stmt.params) == len(stmt.inits):
            _fail(stmt, "a walk loop carries other nodes than it starts with")
        if stmt.step.nodes != stmt.params:
            _fail(stmt, "a walk loop does not move the nodes it carries")
        if not stmt.step.checked:
            _fail(stmt, "hops of a walk loop must be checked")
        inside = self._bind(stmt, scope, stmt.params, "node")
        self._hop(stmt, stmt.step, inside)
        return self._bind(stmt, scope, stmt.results, "node")

    def _is_element(self, stmt: mir.Stmt, element: mir.Element) -> None:
        if element != self._function.result.element:
            _fail(stmt, f"the function's walks do not give back a {element}")

    # ------------------------------------------------------------ reductions

    def _reduce(self, stmt: mir.Reduce, scope: _Scope) -> None:
        self._names(stmt, scope, "leaf", (stmt.value,))
        known = self._array(stmt, scope, stmt.target)
        if known.array.element != "accumulator":
            _fail(stmt, f"{stmt.target} does not hold sums")
        self._write(stmt, scope, stmt.target, stmt.indices, stmt.atomic)

    def _reduce_dimension(self, stmt: mir.ReduceDimension, scope: _Scope) -> None:
        self._range(stmt, scope, stmt.rows, "batch")
        self._affine(stmt, scope, stmt.source_rows, "batch")
        source = self._array(stmt, scope, stmt.source)
        if source.array.dims[0] != stmt.extent:
            _fail(stmt, f"{stmt.source} has another extent")
        if stmt.source == stmt.target:
            _fail(stmt, "an array cannot be reduced to itself")
        known = self._array(stmt, scope, stmt.target)
        if len(known.array.dims) != len(stmt.prefix) + 2:
            _fail(stmt, f"{stmt.target} has other dimensions than slots, rows, outputs")
        for index in stmt.prefix:
            self._index(stmt, scope, index)
        if not stmt.atomic:
            self._owned(stmt, scope, known, (*stmt.prefix, stmt.rows.start))

    def _reduce_inplace(self, stmt: mir.ReduceDimensionInplace, scope: _Scope) -> None:
        self._range(stmt, scope, stmt.rows, "batch")
        known = self._array(stmt, scope, stmt.array)
        dims, place = known.array.dims, len(stmt.prefix)
        if place + 2 > len(dims) or dims[place] != stmt.extent:
            _fail(stmt, f"{stmt.array} has no dimension {place} of that extent")
        for index in stmt.prefix:
            self._index(stmt, scope, index)
        self._owned(stmt, scope, known, (*stmt.prefix, stmt.rows.start))

    def _alloc(self, stmt: mir.AllocArray, scope: _Scope) -> _Scope:
        name = stmt.array.name
        if name in scope.arrays:
            _fail(stmt, f'the array "{name}" is taken')
        if not stmt.array.lanes:
            self._alone(stmt, scope, name)
        if not stmt.array.dims:
            _fail(stmt, "an array has at least one dimension")
        known = _Known(stmt.array, len(scope.loops))
        return replace(scope, arrays={**scope.arrays, name: known})

    def _rows_of(
        self, stmt: mir.Stmt, scope: _Scope, target: str, start: mir.Affine
    ) -> None:
        """Check a write to a range of rows of a two-dimensional array."""
        known = self._array(stmt, scope, target)
        if len(known.array.dims) != 2:
            _fail(stmt, f"{target} is not an array of rows and outputs")
        self._owned(stmt, scope, known, (start,))

    def _write(
        self,
        stmt: mir.Stmt,
        scope: _Scope,
        target: str,
        indices: Sequence[mir.Index],
        atomic: bool = False,
    ) -> None:
        known = self._array(stmt, scope, target)
        if len(indices) != len(known.array.dims):
            _fail(
                stmt, f"{len(indices)} indices, but {len(known.array.dims)} dimensions"
            )
        for index in indices:
            self._index(stmt, scope, index)
        for index in indices[:-1]:
            if isinstance(index, (mir.Class, mir.Outputs)):
                _fail(stmt, "only the last dimension runs over outputs")
        if not atomic:
            self._owned(stmt, scope, known, indices)

    def _owned(
        self,
        stmt: mir.Stmt,
        scope: _Scope,
        known: _Known,
        indices: Sequence[mir.Index],
    ) -> None:
        """Check that no other parallel iteration writes the same elements."""
        if not self._legal:
            return
        used = {name for index in indices for name in variables(index)}
        for loop in scope.loops[known.level :]:
            serial = loop.kind == "serial" or loop.in_order
            if not serial and loop.var not in used:
                _fail(
                    stmt,
                    f'iterations of the parallel loop "{loop.var}" share elements of '
                    f"{known.array.name}",
                )

    def _alone(self, stmt: mir.Stmt, scope: _Scope, name: str) -> None:
        """Check that no iterations that run as one make a buffer of one name."""
        for loop in scope.loops:
            if loop.group > 1 or loop.kind in ("vector", "block"):
                _fail(stmt, f'iterations of "{loop.var}" that run as one share {name}')

    # ------------------------------------------------------------ uses

    def _bind(
        self, stmt: mir.Stmt, scope: _Scope, names: Sequence[str], kind: _Kind
    ) -> _Scope:
        for place, name in enumerate(names):
            if name in scope.names or name in names[:place]:
                _fail(stmt, f"{name} is bound twice")
        return scope.bind(names, kind)

    def _names(
        self, stmt: mir.Stmt, scope: _Scope, kind: _Kind, names: Sequence[str]
    ) -> None:
        for name in names:
            found = scope.names.get(name)
            if found is None:
                _fail(stmt, f"{name} is not bound here")
            if found != kind:
                _fail(stmt, f"{name} is a {found}, not a {kind}")

    def _array(self, stmt: mir.Stmt, scope: _Scope, name: str) -> _Known:
        known = scope.arrays.get(name)
        if known is None:
            _fail(stmt, f'the array "{name}" is not allocated here')
        return known

    def _affine(
        self, stmt: mir.Stmt, scope: _Scope, index: mir.Affine, root: str | None
    ) -> None:
        for var in index.terms:
            found = scope.root(var)
            if found is None:
                _fail(stmt, f'the loop variable "{var}" is not in scope')
            if root is not None and found != root:
                _fail(stmt, f'"{var}" counts along {found}, not {root}')
        if len(set(index.terms)) < len(index.terms):
            _fail(stmt, "an index adds a loop variable twice")

    def _index(self, stmt: mir.Stmt, scope: _Scope, index: mir.Index) -> None:
        match index:
            case mir.Affine():
                self._affine(stmt, scope, index, None)
            case mir.Slot(value=value):
                self._affine(stmt, scope, value, "tree")
            case mir.ModelTree(position=position):
                self._affine(stmt, scope, position, "tree")
            case mir.Class(name=name):
                self._names(stmt, scope, "class", (name,))
            case mir.Outputs():
                pass
            case _:
                assert_never(index)

    def _range(
        self, stmt: mir.Stmt, scope: _Scope, where: mir.Range, root: str
    ) -> None:
        self._affine(stmt, scope, where.start, root)
        if not where.bounds:
            _fail(stmt, "a range has no end")
        for bound in where.bounds:
            self._affine(stmt, scope, bound.minus, root)
