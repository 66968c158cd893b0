"""Turn ``cache`` into operations at the top of the loop's body (papers/000 §7).

Before: ``for b0 in 0 to rows step 64   cache``. After: the body begins with
``cache_rows(b0, min(64, rows - b0))``; on a tree loop, ``cache_trees`` likewise. The
working set is that of one iteration: everything the loops inside reach.
"""

from __future__ import annotations

from dataclasses import replace

from skforge.compiler.ir.mir import (
    Affine,
    Body,
    Bound,
    CacheRows,
    CacheTrees,
    DepthSwitch,
    Function,
    Loop,
    Range,
    Stmt,
)
from skforge.compiler.ir.mir_tools import loops_in
from skforge.compiler.loop_nest import Size


def run(function: Function) -> Function:
    """Insert the cache operations and take the directive off."""
    return replace(function, body=_body(function.body, ()))


def _body(body: Body, outside: tuple[Loop, ...]) -> Body:
    made: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Loop():
                made.append(_loop(stmt, outside))
            case DepthSwitch(cases=cases):
                switched = tuple(_body(case, outside) for case in cases)
                made.append(replace(stmt, cases=switched))
            case _:
                made.append(stmt)
    return tuple(made)


def _loop(loop: Loop, outside: tuple[Loop, ...]) -> Loop:
    outside = (*outside, loop)
    body = _body(loop.body, outside)
    if loop.directives.cache:
        working_set = _working_set(loop, outside)
        op: Stmt = (
            CacheRows(working_set)
            if loop.root == "batch"
            else CacheTrees(working_set)
        )
        body = (op, *body)
    directives = replace(loop.directives, cache=False)
    return replace(loop, body=body, directives=directives)


def _working_set(loop: Loop, outside: tuple[Loop, ...]) -> Range:
    """Return the rows or trees of one iteration, as one range that covers them.

    Loops inside that count in larger steps than this one reach further apart; then
    the range is what lies between the first and the last.
    """
    same_root = [o for o in outside if o.root == loop.root]
    inner_limits = {
        bound.limit
        for inner in loops_in(loop.body)
        if inner.root == loop.root
        for bound in inner.bounds
    }
    length: Size = loop.step
    wider = [
        limit
        for limit in inner_limits
        if not (isinstance(limit, int) and isinstance(length, int) and limit <= length)
        and limit != length
    ]
    start = Affine(tuple(o.var for o in same_root))
    bounds = [] if wider else [Bound(length)]
    for o in same_root:
        here = Affine((o.var,))
        bounds += [Bound(b.limit, b.minus.plus(here)) for b in o.bounds]
    if wider:
        bounds = [Bound(limit) for limit in wider][:1] + [
            bound for bound in bounds if bound.limit not in wider
        ]
    return Range(start, tuple(dict.fromkeys(bounds)))
