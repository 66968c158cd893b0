"""Rewrite MIR: substitute loop variables, rename, and map depth-first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, TypeVar

from skforge.compiler.ir.mir import nodes as mir
from skforge.schedule.nest import Size

T = TypeVar("T")


def substitute(node: T, var: str, by: mir.Affine) -> T:
    def change(a: mir.Affine) -> mir.Affine:
        if var not in a.terms:
            return a
        terms = list(a.terms)
        terms.remove(var)
        return mir.Affine(tuple(terms), a.constant, a.sizes).plus(by)

    return _rewrite(node, change, lambda text: text)


def _rewrite(
    node: Any,
    change_affine: Callable[[mir.Affine], mir.Affine],
    change_text: Callable[[str], str],
) -> Any:
    match node:
        case mir.Affine():
            return change_affine(node)
        case str():
            return change_text(node)
        case tuple():
            items = tuple(_rewrite(item, change_affine, change_text) for item in node)
            same = all(a is b for a, b in zip(items, node, strict=True))
            return node if same else items
        case _ if is_dataclass(node) and not isinstance(node, type):
            changes = {}
            for f in fields(node):
                old = getattr(node, f.name)
                new = _rewrite(old, change_affine, change_text)
                if new is not old:
                    changes[f.name] = new
            return replace(node, **changes) if changes else node
        case _:
            return node


def bodies(stmt: mir.Stmt) -> tuple[mir.Body, ...]:
    match stmt:
        case mir.Loop():
            return (stmt.body, stmt.remainder)
        case mir.DepthSwitch():
            return stmt.cases
        case _:
            return ()


def map_bodies(stmt: mir.Stmt, change: Callable[[mir.Body], mir.Body]) -> mir.Stmt:
    match stmt:
        case mir.Loop():
            body, remainder = map(change, bodies(stmt))
            return replace(stmt, body=body, remainder=remainder)
        case mir.DepthSwitch():
            return replace(stmt, cases=tuple(map(change, stmt.cases)))
        case _:
            return stmt


def statements(body: mir.Body) -> Iterator[mir.Stmt]:
    for stmt in body:
        yield stmt
        for inner in bodies(stmt):
            yield from statements(inner)


def loops_in(body: mir.Body) -> Iterator[mir.Loop]:
    return (stmt for stmt in statements(body) if isinstance(stmt, mir.Loop))


def map_nest(
    body: mir.Body,
    change: Callable[[mir.Stmt, tuple[mir.Loop, ...]], mir.Stmt | mir.Body],
    outside: tuple[mir.Loop, ...] = (),
) -> mir.Body:
    def changed(stmt: mir.Stmt) -> mir.Body:
        path = (*outside, stmt) if isinstance(stmt, mir.Loop) else outside
        inside = map_bodies(stmt, lambda inner: map_nest(inner, change, path))
        new = change(inside, outside)
        return new if isinstance(new, tuple) else (new,)

    return tuple(chain.from_iterable(map(changed, body)))


def map_loops(
    body: mir.Body, change: Callable[[mir.Loop], mir.Stmt | mir.Body]
) -> mir.Body:
    return map_nest(body, lambda o, _: change(o) if isinstance(o, mir.Loop) else o)


def map_statements(
    body: mir.Body, change: Callable[[mir.Stmt], mir.Stmt | mir.Body]
) -> mir.Body:
    nested = mir.Loop | mir.DepthSwitch
    return map_nest(body, lambda o, _: o if isinstance(o, nested) else change(o))


def map_walks(
    body: mir.Body, change: Callable[[mir.WalkDecisionTree], mir.WalkDecisionTree]
) -> mir.Body:
    def changed(stmt: mir.Stmt) -> mir.Stmt:
        if isinstance(stmt, mir.Let) and isinstance(stmt.op, mir.WalkDecisionTree):
            return replace(stmt, op=change(stmt.op))
        return stmt

    return map_statements(body, changed)


def copy_body(body: mir.Body, suffix: str) -> mir.Body:
    bound: set[str] = set()
    for stmt in statements(body):
        match stmt:
            case mir.Let(names=names):
                bound.update(names)
            case mir.WalkLoop(results=results, step=step):
                bound.update((*results, *step.nodes))
            case mir.EvaluatePredicates(name=name):
                bound.add(name)
            case _:
                pass

    def change(text: str) -> str:
        return text + suffix if text in bound else text

    return _rewrite(body, lambda affine: affine, change)


def variables(index: mir.Index) -> tuple[str, ...]:
    match index:
        case mir.Affine(terms=terms):
            return terms
        case mir.Slot(value=value):
            return value.terms
        case mir.ModelTree(position=position):
            return position.terms
        case mir.Class() | mir.Outputs():
            return ()


def stays_within(loop: mir.Loop, step: Size) -> bool:
    limits = [bound.limit for bound in loop.bounds]
    known = [limit for limit in limits if isinstance(limit, int)]
    return step in limits or (isinstance(step, int) and min(known, default=step) < step)


def tightest(bounds: Iterable[mir.Bound]) -> tuple[mir.Bound, ...]:
    """Drop what another bound implies: loop variables are never negative."""

    def implies(first: mir.Bound, second: mir.Bound) -> bool:
        a, b = first.minus, second.minus
        rest = list(a.terms)
        for term in b.terms:
            if term not in rest:
                return False
            rest.remove(term)
        same = (first.limit, a.constant, a.sizes) == (second.limit, b.constant, b.sizes)
        return same and first != second

    known = tuple(dict.fromkeys(bounds))
    return tuple(b for b in known if not any(implies(other, b) for other in known))
