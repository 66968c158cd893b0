"""How many bytes a kernel loads and stores, by buffer, counted while it runs.

A copy of its LIR counts how often each body runs; what one run of a body loads and
stores is known. Memory that LLVM keeps in registers counts, too, and all lanes of a
gather.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import walk

#: Where a body counts its runs.
RUNS = lir.Buffer("body_runs", lir.I64)


@dataclass(frozen=True, slots=True)
class Counting:
    """A kernel that counts its runs of bodies, and the bytes of one run of each."""

    function: lir.Function  # with RUNS as its last parameter
    of_body: tuple[Counter[str], ...]  # by buffer

    @classmethod
    def of(cls, function: lir.Function) -> Counting:
        """Write the copy that counts."""
        base: dict[str, str] = {}  # of windows
        of_body: list[Counter[str]] = []

        def counted(body: lir.Body) -> lir.Body:
            if not body:
                return body
            number = len(of_body)
            of_body.append(moved := Counter())
            for stmt in body:
                if isinstance(stmt, lir.Window):
                    base[stmt.buffer.name] = base.get(stmt.base.name, stmt.base.name)
                for buffer, size in _moves(stmt):
                    moved[base.get(buffer.name, buffer.name)] += size
            inside = [walk.map_bodies(stmt, counted) for stmt in body]
            return (*_increment(number), *inside)

        body = counted(function.body)
        params = (*function.params, RUNS)
        return cls(replace(function, params=params, body=body), tuple(of_body))

    def bytes(self, runs: NDArray[np.int64]) -> Counter[str]:
        """Return the bytes of each buffer, by how often the bodies ran."""
        total: Counter[str] = Counter()
        for moved, times in zip(self.of_body, runs.tolist(), strict=True):
            total += Counter({name: times * size for name, size in moved.items()})
        return total


def _increment(number: int) -> list[lir.Stmt]:
    place, one, before, after = (
        lir.Value(f"runs.{number}.{name}", lir.I64)
        for name in ("place", "one", "before", "after")
    )
    return [
        lir.Let(place, lir.Const(number)),
        lir.Let(one, lir.Const(1)),
        lir.Let(before, lir.Load(RUNS, place)),
        lir.Let(after, lir.Binary("add", before, one)),
        lir.Store(RUNS, place, after),
    ]


def _moves(stmt: lir.Stmt) -> list[tuple[lir.Buffer, int]]:
    match stmt:
        case lir.Let(value=value, op=lir.Load(buffer=buffer) | lir.Gather(buffer)):
            return [(buffer, size_of(value.type))]
        case lir.Let(value=value, op=lir.LoadPlane(table=buffer)):
            return [(buffer, size_of(value.type))]
        case lir.Store(buffer=buffer, value=value) | lir.Scatter(buffer, _, value):
            return [(buffer, size_of(value.type))]
        case lir.StorePlane(table=buffer, value=value):
            return [(buffer, size_of(value.type))]
        case lir.AtomicAdd(buffer=buffer, value=value):
            return [(buffer, 2 * size_of(value.type))]
    return []


def size_of(kind: lir.Type) -> int:
    """Return the bytes of a value in memory."""
    if isinstance(kind, lir.Plane):
        return kind.rows // 8
    return kind.element.bytes * max(1, kind.lanes)


def grown(after: Mapping[str, int], before: Mapping[str, int]) -> Counter[str]:
    """Return what a kernel moves more than the one that stops a part earlier."""
    return Counter(after) - Counter(before)
