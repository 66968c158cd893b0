"""Kernels that stop early: a part's time is what its stores cost.

The parts of a kernel tell themselves apart by the scratch they write: columns, bits of
codes, lists of rows, sums, the result. A kernel up to a part is the slice of its stores
(Weiser, 1981): these, what they are computed from, and the loops and branches around
them. So it reads nothing that it does not write, and parts that need each other in
turns, such as the rows and the tiles they are at, are one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import walk

#: The buffers that parts write; another buffer is a part of its own name. Of parts that
#: do not need each other, the first comes first.
_WRITES = {
    "columns": ("columns", "missing_seen"),
    "codes": ("codes", "code_words", "category_at"),
    "search": ("code_planes", "categories", "bucket_places"),
    "lines": ("lines", "code_steps", "ties", "least_tie"),
    "fold": ("leaf_planes",),
    "index": ("leaf_numbers",),
    "tests": ("found",),
    "top": ("top_bits", "exits"),
    "tiles": ("live", "done", "tile_bits", "tile_exits"),
    "leaves": ("reached",),
    "buckets": ("counts", "buckets"),
    "pieces": ("piece_columns", "piece_exits"),
    "sums": ("block_sums",),
    "output": ("result",),
}

_AND = " + "  # between the names of parts that are one

#: Leaf values. No place depends on them, so a leaf's number can stand for its value.
_LEAVES = ("leaf_values", "lane_leaves", "leaf_rows")

LOOK_UP = "look-up"  # a part that changes what is loaded


class Cuts:
    """A kernel's parts in their order, and the kernel with only some of them.

    What such a kernel computes is of no use; how long it takes is.
    """

    def __init__(self, function: lir.Function) -> None:
        self._function = function
        stmts = [*walk.statements(function.body)]
        scratch = {_hint(s.buffer) for s in stmts if isinstance(s, lir.Alloc)}
        part_of = {b: part for part, all_ in _WRITES.items() for b in all_}
        self.by_bits = "leaf_numbers" in scratch
        if self.by_bits:
            part_of["block_sums"] = LOOK_UP
        elif "block_sums" not in scratch:
            part_of["result"] = "sums" if scratch else "walk"
        self._part_of = part_of
        flow = _Flow(_with_numbers(function), part_of)
        groups: dict[frozenset[str], list[str]] = defaultdict(list)
        for part in flow.parts:
            groups[flow.parts_below(f"part {part}")].append(part)
        # A part needs more than each of those that it needs.
        self.parts = [_AND.join(groups[below]) for below in sorted(groups, key=len)]
        if not self.by_bits and any(map(_loads_leaf, stmts)):
            adding = part_of["block_sums" if "block_sums" in scratch else "result"]
            where = [adding in part.split(_AND) for part in self.parts].index(True)
            self.parts.insert(where + 1, LOOK_UP)

    def prefixes(self) -> dict[str, lir.Function]:
        """Return the kernel up to each part, by the part's name; the last is whole."""
        return {p: self.cut(self.parts[: i + 1]) for i, p in enumerate(self.parts)}

    def without_each(self) -> dict[str, lir.Function]:
        """Return the kernel without each of its parts that can be missing alone.

        These are parts of predicates for blocks of rows: no loop depends on them. But
        leaf numbers stay, as any bytes in their place would be looked up out of bounds.
        """
        some = [p for p in self.parts if self.by_bits and "index" not in p.split(_AND)]
        return {part: self.cut([p for p in self.parts if p != part]) for part in some}

    def cut(self, kept: Collection[str]) -> lir.Function:
        """Scratch that is only written or only read becomes a parameter, the last ones.

        LLVM drops what is stored to memory that nobody reads.
        """
        function = self._function
        if set(kept) == {*self.parts}:
            return function
        parts = {part for name in kept for part in name.split(_AND)}
        if LOOK_UP not in kept:
            if "index" in parts:
                function = _with_numbers(function)
            function = _changed(function, _number)
        return _Flow(function, self._part_of).slice(parts)


def _hint(buffer: lir.Buffer) -> str:
    return buffer.name.partition(".")[0]


# ------------------------------------------------------------ what needs what


class _Flow:
    """What values, stores, loops and branches need, as a graph.

    A node is the name of a value, ``@buffer`` for its memory, ``=buffer`` for what is
    written there, ``part name`` for the stores of a part, or the id of a statement.
    """

    def __init__(self, function: lir.Function, part_of: dict[str, str]) -> None:
        self._function, self._part_of = function, part_of
        self._needs: dict[Any, set[Any]] = defaultdict(set)
        self._prefetches: list[lir.Prefetch] = []
        self._base: dict[str, str] = {}  # of a window: what it is a part of
        self._visit(function.body, set())
        found = [n[5:] for n in self._needs if str(n).startswith("part ")]
        self.parts = [
            part for part in dict.fromkeys([*_WRITES, *found]) if part in found
        ]

    def _part(self, stmt: lir.Stmt, buffer: lir.Buffer) -> str:
        if isinstance(stmt, lir.StorePlane):
            return "fold"  # lists of operations write their lines beside predicates
        return self._part_of.get(_hint(buffer), _hint(buffer))

    def _visit(self, body: lir.Body, around: set[Any]) -> None:
        needs = self._needs
        for stmt in body:
            read = {value.name for value in walk.operands(stmt)} | around
            match stmt:
                case lir.Let(value=value, op=op):
                    reads = walk.buffers_of(op, "reads")
                    needs[value.name] |= read | {f"={b.name}" for b in reads}
                    for b in reads:
                        # Lines that operations write are only read by others.
                        if isinstance(op, lir.LoadPlane) or _hint(b) != "lines":
                            needs[value.name].add(f"=planes {b.name}")
                case lir.Alloc(buffer=buffer):
                    needs[f"@{buffer.name}"] |= read
                    needs[f"={buffer.name}"].add(f"@{buffer.name}")
                case lir.Window(buffer=buffer, base=base):  # the same memory
                    needs[id(stmt)] |= read
                    needs[f"@{buffer.name}"] |= {id(stmt), f"@{base.name}"}
                    self._base[buffer.name] = base.name
                    for what in ("=", "=planes "):
                        needs[what + buffer.name] |= {id(stmt), what + base.name}
                case lir.Prefetch():
                    needs[id(stmt)] |= read
                    self._prefetches.append(stmt)
                case _ if written := walk.buffers_of(stmt, "writes"):
                    part = f"part {self._part(stmt, written[0])}"
                    needs[part] |= read | {f"@{written[0].name}"}
                    planes = "planes " * isinstance(stmt, lir.StorePlane)
                    name = written[0].name
                    for same in {name, self._base.get(name, name)}:
                        needs[f"={planes}{same}"].add(part)
                case _:
                    needs[id(stmt)] |= read
                    for value in walk.bound_in(stmt):
                        needs[value.name].add(id(stmt))
                    for inner in walk.bodies(stmt):
                        self._visit(inner, {id(stmt)})

    def _below(self, seeds: Iterable[Any], missing: Collection[Any] = ()) -> set[Any]:
        found, stack = set(), [*seeds]
        while stack:
            node = stack.pop()
            if node not in found and node not in missing:
                found.add(node)
                stack += self._needs.get(node, ())
        return found

    def parts_below(self, node: Any) -> frozenset[str]:
        below = self._below([node])
        return frozenset(p for p in self.parts if f"part {p}" in below)

    def slice(self, kept: Collection[str]) -> lir.Function:
        missing = {f"part {part}" for part in self.parts if part not in kept}
        live = self._below([f"part {part}" for part in kept], missing)
        # A prefetch stays where what it fetches is read, if it needs no other part.
        for stmt in self._prefetches:
            if f"={stmt.buffer.name}" in live and self.parts_below(id(stmt)) <= {*kept}:
                live |= self._below([id(stmt)])
        lent: list[lir.Buffer] = []
        body = self._sliced(self._function.body, live, lent)
        params = (*self._function.params, *lent)
        return replace(self._function, params=params, body=body)

    def _writers(self, read: str) -> set[Any]:
        return {n for n in self._needs[read] if str(n).startswith("part ")}

    def _sliced(
        self, body: lir.Body, live: set[Any], lent: list[lir.Buffer]
    ) -> lir.Body:
        made: list[lir.Stmt] = []
        for stmt in body:
            match stmt:
                case lir.Let(value=value):
                    stays = value.name in live
                case lir.Alloc(buffer=buffer):
                    name = buffer.name
                    read = live & {f"={name}", f"=planes {name}"}
                    # LLVM takes any value for memory of a function that none writes.
                    stays = bool(live & {p for r in read for p in self._writers(r)})
                    if f"@{name}" in live and not stays:
                        lent.append(buffer)
                case _ if written := walk.buffers_of(stmt, "writes"):
                    stays = f"part {self._part(stmt, written[0])}" in live
                case _:
                    stays = id(stmt) in live
            if stays:
                inner = partial(self._sliced, live=live, lent=lent)
                made.append(walk.map_bodies(stmt, inner))
        return tuple(made)


# ------------------------------------------------------------ what is loaded


def _loads_leaf(stmt: lir.Stmt) -> bool:
    loads = isinstance(stmt, lir.Let) and isinstance(stmt.op, lir.Load | lir.Gather)
    return loads and _hint(stmt.op.buffer) in _LEAVES


def _changed(
    function: lir.Function, change: Callable[[lir.Stmt], list[lir.Stmt] | None]
) -> lir.Function:
    def changed(body: lir.Body) -> lir.Body:
        made: list[lir.Stmt] = []
        for stmt in body:
            made += change(stmt) or [walk.map_bodies(stmt, changed)]
        return tuple(made)

    return replace(function, body=changed(function.body))


def _number(stmt: lir.Stmt) -> list[lir.Stmt] | None:
    """Take a leaf's number for its value."""
    if not _loads_leaf(stmt):
        return None
    value, index = stmt.value, stmt.op.index
    if not isinstance(value.type, lir.Vec) or isinstance(index.type, lir.Vec):
        return [lir.Let(value, lir.Convert(index))]
    number = lir.Value(f"{value.name}.number", value.type.element)
    return [lir.Let(number, lir.Convert(index)), lir.Let(value, lir.Splat(number))]


def _with_numbers(function: lir.Function) -> lir.Function:
    """Store leaf numbers of bytes, which the kernel holds in registers only."""
    buffers = [
        s.buffer for s in walk.statements(function.body) if isinstance(s, lir.Alloc)
    ]
    to = next((b for b in buffers if _hint(b) == "leaf_numbers"), None)
    if to is None or to.element != lir.U8:
        return function

    def stored(stmt: lir.Stmt) -> list[lir.Stmt] | None:
        if not (isinstance(stmt, lir.Let) and isinstance(stmt.op, lir.PlanesToIndex)):
            return None
        zero = lir.Value(f"{stmt.value.name}.zero", lir.I64)
        store = lir.Store(to, zero, stmt.value)
        return [stmt, lir.Let(zero, lir.Const(0)), store]

    return _changed(function, stored)
