"""Rewriting MIR: substitution of loop variables, renaming, depth-first maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from skforge.compiler.ir.mir.nodes import (
    Affine,
    Body,
    Bound,
    DepthSwitch,
    Let,
    Loop,
    Stmt,
    WalkLoop,
)

T = TypeVar("T")


def substitute(node: T, var: str, by: Affine) -> T:
    """Return a statement, body or index with a loop variable replaced by a sum."""
    made: T = _rewrite(node, _Substitution(var, by))
    return made


def rename(node: T, suffix: str, names: frozenset[str]) -> T:
    """Return a body in which each bound name in ``names`` gets a suffix."""
    made: T = _rewrite(node, _Renaming(suffix, names))
    return made


class _Substitution:
    def __init__(self, var: str, by: Affine) -> None:
        self.var, self.by = var, by

    def affine(self, a: Affine) -> Affine:
        if self.var not in a.terms:
            return a
        terms = list(a.terms)
        terms.remove(self.var)
        return Affine(tuple(terms), a.constant, a.sizes).plus(self.by)

    def text(self, text: str) -> str:
        return text


class _Renaming:
    def __init__(self, suffix: str, names: frozenset[str]) -> None:
        self.suffix, self.names = suffix, names

    def affine(self, a: Affine) -> Affine:
        return a

    def text(self, text: str) -> str:
        return text + self.suffix if text in self.names else text


def _rewrite(node: Any, how: _Substitution | _Renaming) -> Any:
    """Rebuild a tree of frozen dataclasses, sharing what does not change."""
    match node:
        case Affine():
            return how.affine(node)
        case str():
            return how.text(node)
        case tuple():
            made = tuple(_rewrite(item, how) for item in node)
            same = all(a is b for a, b in zip(made, node, strict=True))
            return node if same else made
        case _ if is_dataclass(node) and not isinstance(node, type):
            changes = {}
            for f in fields(node):
                old = getattr(node, f.name)
                new = _rewrite(old, how)
                if new is not old:
                    changes[f.name] = new
            return replace(node, **changes) if changes else node
        case _:
            return node


def bound_names(body: Body) -> Iterator[str]:
    """Yield every name that Lets and walk loops of a body bind, nested ones too."""
    for stmt in body:
        match stmt:
            case Let(names=names):
                yield from names
            case WalkLoop(results=results, params=params):
                yield from (*results, *params)
            case Loop(body=inner, remainder=remainder):
                yield from bound_names(inner)
                yield from bound_names(remainder)
            case DepthSwitch(cases=cases):
                for case in cases:
                    yield from bound_names(case)
            case _:
                pass


def copy_body(body: Body, suffix: str) -> Body:
    """Return a copy of a body that binds other names."""
    return rename(body, suffix, frozenset(bound_names(body)))


def map_loops(body: Body, change: Callable[[Loop], Stmt | Body]) -> Body:
    """Rebuild a body with ``change`` applied to every loop, innermost first."""
    made: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Loop():
                inner = replace(
                    stmt,
                    body=map_loops(stmt.body, change),
                    remainder=map_loops(stmt.remainder, change),
                )
                new = change(inner)
                made.extend(new if isinstance(new, tuple) else (new,))
            case DepthSwitch():
                cases = tuple(map_loops(case, change) for case in stmt.cases)
                made.append(replace(stmt, cases=cases))
            case _:
                made.append(stmt)
    return tuple(made)


def map_statements(body: Body, change: Callable[[Stmt], Stmt | Body]) -> Body:
    """Rebuild a body with ``change`` applied to every statement that is no loop."""
    made: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Loop():
                made.append(
                    replace(
                        stmt,
                        body=map_statements(stmt.body, change),
                        remainder=map_statements(stmt.remainder, change),
                    )
                )
            case DepthSwitch():
                cases = tuple(map_statements(case, change) for case in stmt.cases)
                made.append(replace(stmt, cases=cases))
            case _:
                new = change(stmt)
                made.extend(new if isinstance(new, tuple) else (new,))
    return tuple(made)


def tightest(bounds: Iterable[Bound]) -> tuple[Bound, ...]:
    """Return bounds without repetitions and those that another one implies.

    Loop variables are never negative, so of two bounds with one limit the one that
    takes off more is the lower.
    """

    def implies(one: Bound, two: Bound) -> bool:
        a, b = one.minus, two.minus
        rest = list(a.terms)
        for term in b.terms:
            if term not in rest:
                return False
            rest.remove(term)
        same = (one.limit, a.constant, a.sizes) == (two.limit, b.constant, b.sizes)
        return same and one != two

    kept = tuple(dict.fromkeys(bounds))
    return tuple(b for b in kept if not any(implies(other, b) for other in kept))


def loops_in(body: Body) -> Iterator[Loop]:
    """Yield every loop of a body, outermost first."""
    for stmt in body:
        match stmt:
            case Loop():
                yield stmt
                yield from loops_in(stmt.body)
                yield from loops_in(stmt.remainder)
            case DepthSwitch(cases=cases):
                for case in cases:
                    yield from loops_in(case)
            case _:
                pass
