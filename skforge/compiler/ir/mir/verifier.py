"""Check the invariants of MIR functions that passes and lowering rely on.

Names are bound once along a path and before use, loop variables are in scope, groups
have a remainder where they need one, unchecked hops never pass a leaf, arrays are
allocated before use. Once reductions are legal, no two iterations of a parallel loop
write one element unless atomically: every write to an array is indexed by each parallel
loop inside the array's allocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from textwrap import indent
from typing import Literal, NoReturn, TypeAlias

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.printer import loop_line, print_statement
from skforge.compiler.ir.mir.walk import variables
from skforge.exceptions import CompilerError
from skforge.schedule.directives import Interleave, Vectorize

_Kind: TypeAlias = Literal["tree", "class", "node", "leaf", "predicates", "codes"]

#: What the names in a field of a statement or an operation are bound to.
_NAMES: dict[str, _Kind] = {
    **dict.fromkeys(("tree", "trees"), "tree"),
    **dict.fromkeys(("nodes", "inits"), "node"),
    "value": "leaf",
}
#: What the loop variables in a field count along.
_COUNTS = {
    **dict.fromkeys(("rows", "source_rows"), "batch"),
    **dict.fromkeys(("trees", "position", "index"), "tree"),
}


def verify_mir(
    function: mir.Function, *, legal: bool = False, final: bool = False
) -> None:
    """Raise CompilerError, naming the statement, if a function is malformed.

    ``legal``: reductions have been legalised, so parallel iterations must not share
    elements. ``final``: every pass has run, so no directive and no unexpanded walk may
    be left; implies ``legal``.
    """
    arrays = {function.result.name: _KnownArray(function.result, 0)}
    verifier = _Verifier(function, legal or final, final)
    verifier.body(function.body, _Scope((), {}, arrays))


@dataclass(frozen=True, slots=True)
class _KnownArray:
    """An array, and how many loops are outside its allocation."""

    array: mir.NamedArray
    level: int


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a statement may use; the dictionaries are never changed in place."""

    loops: tuple[mir.Loop, ...]
    names: dict[str, _Kind]
    arrays: dict[str, _KnownArray]
    blocks: dict[str, mir.Affine] = field(default_factory=dict)  # first rows of tables

    def root(self, var: str) -> str | None:
        return next((loop.root for loop in self.loops if loop.var == var), None)


class _Verifier:
    def __init__(self, function: mir.Function, legal: bool, final: bool) -> None:
        self._function, self._legal, self._final = function, legal, final
        self._stmt: mir.Stmt  # the statement being checked
        self._scope: _Scope  # its scope

    def _fail(self, why: str) -> NoReturn:
        stmt = self._stmt
        text = loop_line(stmt) if isinstance(stmt, mir.Loop) else print_statement(stmt)
        raise CompilerError(f"{why} in:\n" + indent(text, "  "))

    # ------------------------------------------------------------ statements

    def body(self, body: mir.Body, scope: _Scope) -> None:
        for self._stmt in body:
            self._scope = scope
            self._fields(self._stmt)
            self._statement(self._stmt)
            scope = self._scope

    def _fields(self, node: mir.Stmt | mir.Op) -> None:
        for part in fields(node):
            value = getattr(node, part.name)
            for used in value if isinstance(value, tuple) else (value,):
                match used:
                    case str() if part.name in _NAMES:
                        self._names(_NAMES[part.name], (used,))
                    case mir.Affine():
                        self._affine(used, _COUNTS.get(part.name))
                    case mir.Slot(value=at) | mir.ModelTree(position=at):
                        self._affine(at, "tree")
                    case mir.Class(name=name):
                        self._names("class", (name,))
                    case mir.Range():
                        self._range(used, _COUNTS[part.name])
                    case _:
                        pass

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
                self._reduce(stmt)
            case mir.StoreLeaf():
                self._write(stmt.target, stmt.indices)
            case mir.ReduceDimension():
                self._reduce_dimension(stmt)
            case mir.ReduceDimensionInplace():
                self._reduce_inplace(stmt)
            case mir.AllocArray():
                self._alloc(stmt)
            case mir.Fill(target=target, rows=rows):
                self._rows_of(target, rows.start)
            case mir.Finish() | mir.StoreRows():
                self._array(stmt.source)
                self._rows_of(mir.RESULT, stmt.rows.start)
            case mir.CacheRows(share=(var, _, _)):
                self._affine(mir.Affine((var,)), "tree")
            case mir.CacheTrees() | mir.CacheRows() | mir.TakeRows():
                pass
            case mir.EvaluatePredicates(name=name):
                self._alone(name)
                self._table(name, "predicates", stmt.rows)
            case mir.QuantizeRows(name=name):
                if stmt.size < 1:
                    self._fail("a block of codes has at least one row")
                self._alone(name)
                self._table(name, "codes", stmt.rows)

    def _table(self, name: str, kind: _Kind, rows: mir.Range) -> None:
        self._bind((name,), kind)
        blocks = {**self._scope.blocks, name: rows.start}
        self._scope = replace(self._scope, blocks=blocks)

    def _loop(self, loop: mir.Loop) -> None:
        if self._scope.root(loop.var) is not None:
            self._fail(f'the loop variable "{loop.var}" is taken')
        if not loop.bounds:
            self._fail("a loop has no bound")
        if isinstance(loop.step, int) and loop.step < 1:
            self._fail("a loop does not advance")
        for bound in loop.bounds:
            self._affine(bound.minus, loop.root)
        self._groups(loop)
        if self._final and loop.marks:
            self._fail("directives are left after the last pass")
        holds_loop = any(isinstance(stmt, mir.Loop) for stmt in loop.body)
        if holds_loop and loop.has(Interleave, Vectorize):
            self._fail("only an innermost loop can be interleaved or vectorised")
        # The remainder runs one by one, and serially.
        alone = replace(loop, kind="serial", group=1)
        outside = self._scope
        for body, around in ((loop.body, loop), (loop.remainder, alone)):
            self.body(body, replace(outside, loops=(*outside.loops, around)))
        self._scope = outside

    def _groups(self, loop: mir.Loop) -> None:
        if loop.group < 1:
            self._fail("a group has at least one iteration")
        if loop.group == 1 and loop.remainder:
            self._fail("there is a remainder, but groups are single iterations")
        if loop.kind == "vector" and (loop.group == 1 or loop.root != "batch"):
            self._fail("a vector loop has a row in each of several lanes")
        whole = loop.trip_count is not None and loop.trip_count % loop.group == 0
        if loop.group > 1 and not loop.remainder and not whole:
            self._fail("groups need a remainder unless they divide the iterations")

    def _depth_switch(self, stmt: mir.DepthSwitch) -> None:
        if not stmt.cases or len(stmt.classes) != len(stmt.cases):
            self._fail("a switch needs one case for each class of depths")
        if len(stmt.class_of) != self._function.n_trees:
            self._fail("a switch needs the class of every position")
        if not all(0 <= k < len(stmt.cases) for k in stmt.class_of):
            self._fail("a position is of a class without a case")
        outside = self._scope
        for case in stmt.cases:
            self.body(case, outside)
        self._scope = outside

    # ------------------------------------------------------------ walks

    def _let(self, stmt: mir.Let) -> None:
        op = stmt.op
        kind: _Kind
        self._fields(op)
        match op:
            case mir.GetTree():
                kind, count = "tree", 1
            case mir.GetTreeClassId():
                kind, count = "class", 1
            case mir.WalkDecisionTree():
                self._walk(op)
                kind, count = "leaf", len(op.trees)
            case mir.GetRoot(trees=trees):
                kind, count = "node", len(trees)
            case mir.TraverseTreeTile():
                self._hop(op)
                kind, count = "node", len(op.trees)
            case mir.GetLeafValue(trees=trees, nodes=nodes, element=element):
                self._is_element(element)
                if len(trees) != len(nodes):
                    self._fail(f"{len(trees)} trees, but {len(nodes)} nodes")
                kind, count = "leaf", len(trees)
        if len(stmt.names) != count or not count:
            self._fail(f"{len(stmt.names)} names for {count} results")
        self._bind(stmt.names, kind)

    def _walk(self, walk: mir.WalkDecisionTree) -> None:
        if walk.using is not None:
            self._using(walk.using, walk.rows, walk.block)
        if self._final and not walk.is_whole:
            self._fail("a walk was not expanded")
        if len(walk.trees) != len(walk.rows):
            self._fail(f"{len(walk.trees)} trees, but {len(walk.rows)} rows")
        if walk.min_depth > walk.max_depth:
            self._fail("the shallowest leaf is deeper than the deepest")
        if max(walk.unroll, walk.peel) > walk.min_depth:
            self._fail("unchecked hops go past the shallowest leaf")
        self._is_element(walk.element)

    def _using(
        self, name: str, rows: Sequence[mir.Affine], block: bool = False
    ) -> None:
        if not (block and self._scope.names.get(name) == "predicates"):
            self._names("codes", (name,))
        for row in rows:
            if not set(self._scope.blocks[name].terms) <= set(row.terms):
                self._fail(f"{name} is of other rows")

    def _hop(self, hop: mir.TraverseTreeTile) -> None:
        if hop.using is not None:
            self._using(hop.using, hop.rows)
        if not len(hop.trees) == len(hop.nodes) == len(hop.rows):
            self._fail(
                f"{len(hop.trees)} trees, {len(hop.nodes)} nodes and {len(hop.rows)} "
                "rows"
            )

    def _walk_loop(self, stmt: mir.WalkLoop) -> None:
        if not len(stmt.results) == len(stmt.step.nodes) == len(stmt.inits):
            self._fail("a walk loop carries other nodes than it starts with")
        if not stmt.step.checked:
            self._fail("hops of a walk loop must be checked")
        outside = self._scope
        self._bind(stmt.step.nodes, "node")
        self._fields(stmt.step)
        self._hop(stmt.step)
        self._scope = outside
        self._bind(stmt.results, "node")

    def _is_element(self, element: mir.Element) -> None:
        if element != self._function.result.element:
            self._fail(f"the function's walks do not give back a {element}")

    # ------------------------------------------------------------ reductions

    def _reduce(self, stmt: mir.Reduce) -> None:
        known = self._array(stmt.target)
        if not known.array.holds_sums:
            self._fail(f"{stmt.target} does not hold sums")
        self._write(stmt.target, stmt.indices, stmt.atomic)

    def _reduce_dimension(self, stmt: mir.ReduceDimension) -> None:
        source = self._array(stmt.source)
        if source.array.dims[0] != stmt.extent:
            self._fail(f"{stmt.source} has another extent")
        bounds = None if stmt.trees is None else stmt.trees.bounds
        if bounds and all(bound.limit != stmt.extent for bound in bounds):
            self._fail(f"{stmt.source} has fewer slots than trees")
        if stmt.source == stmt.target:
            self._fail("an array cannot be reduced to itself")
        known = self._array(stmt.target)
        if len(known.array.dims) != len(stmt.prefix) + 2:
            self._fail(f"{stmt.target} has other dimensions than slots, rows, outputs")
        if not stmt.atomic:
            self._owned(known, (*stmt.prefix, stmt.rows.start))

    def _reduce_inplace(self, stmt: mir.ReduceDimensionInplace) -> None:
        known = self._array(stmt.array)
        dims, place = known.array.dims, len(stmt.prefix)
        if place + 2 > len(dims) or dims[place] != stmt.extent:
            self._fail(f"{stmt.array} has no dimension {place} of that extent")
        self._owned(known, (*stmt.prefix, stmt.rows.start))

    def _alloc(self, stmt: mir.AllocArray) -> None:
        name = stmt.array.name
        if name in self._scope.arrays:
            self._fail(f'the array "{name}" is taken')
        if not stmt.array.lanes:
            self._alone(name)
        if not stmt.array.dims:
            self._fail("an array has at least one dimension")
        known = _KnownArray(stmt.array, len(self._scope.loops))
        arrays = {**self._scope.arrays, name: known}
        self._scope = replace(self._scope, arrays=arrays)

    def _rows_of(self, target: str, start: mir.Affine) -> None:
        known = self._array(target)
        if len(known.array.dims) - known.array.by_feature != 2:
            self._fail(f"{target} is not an array of rows and outputs")
        self._owned(known, (start,))

    def _write(
        self, target: str, indices: Sequence[mir.Index], atomic: bool = False
    ) -> None:
        known = self._array(target)
        dims = len(known.array.dims) - known.array.by_feature
        if len(indices) != dims:
            self._fail(f"{len(indices)} indices, but {dims} dimensions")
        for index in indices[:-1]:
            if isinstance(index, (mir.Class, mir.Outputs)):
                self._fail("only the last dimension runs over outputs")
        if not atomic:
            self._owned(known, indices)

    def _owned(self, known: _KnownArray, indices: Sequence[mir.Index]) -> None:
        if not self._legal:
            return
        used = {name for index in indices for name in variables(index)}
        for loop in self._scope.loops[known.level :]:
            serial = loop.kind == "serial" or loop.in_order
            if not serial and loop.var not in used:
                self._fail(
                    f'iterations of the parallel loop "{loop.var}" share elements of '
                    f"{known.array.name}"
                )

    def _alone(self, name: str) -> None:
        for loop in self._scope.loops:
            if loop.group > 1 or loop.kind in ("vector", "block"):
                self._fail(f'iterations of "{loop.var}" that run as one share {name}')

    # ------------------------------------------------------------ uses

    def _bind(self, names: Sequence[str], kind: _Kind) -> None:
        for place, name in enumerate(names):
            if name in self._scope.names or name in names[:place]:
                self._fail(f"{name} is bound twice")
        known = {**self._scope.names, **dict.fromkeys(names, kind)}
        self._scope = replace(self._scope, names=known)

    def _names(self, kind: _Kind, names: Sequence[str]) -> None:
        for name in names:
            known = self._scope.names.get(name)
            if known is None:
                self._fail(f"{name} is not bound here")
            if known != kind:
                self._fail(f"{name} is a {known}, not a {kind}")

    def _array(self, name: str) -> _KnownArray:
        known = self._scope.arrays.get(name)
        if known is None:
            self._fail(f'the array "{name}" is not allocated here')
        return known

    def _affine(self, index: mir.Affine, root: str | None) -> None:
        for var in index.terms:
            known = self._scope.root(var)
            if known is None:
                self._fail(f'the loop variable "{var}" is not in scope')
            if root is not None and known != root:
                self._fail(f'"{var}" counts along {known}, not {root}')
        if len(set(index.terms)) < len(index.terms):
            self._fail("an index adds a loop variable twice")

    def _range(self, where: mir.Range, root: str) -> None:
        self._affine(where.start, root)
        if not where.bounds:
            self._fail("a range has no end")
        for bound in where.bounds:
            self._affine(bound.minus, root)
