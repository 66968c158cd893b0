"""Generic access to operands, buffers and bodies of LIR operations and statements.

It is derived from the fields of the classes: a value is an operand unless the statement
binds it, and a tuple of statements is a body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Body, Buffer, Op, Stmt, Value

OpOrStmt = TypeVar("OpOrStmt")
P = ParamSpec("P")
T = TypeVar("T")

# Fields that a statement binds; its other values are operands.
_BINDS = {"var", "params", "results"}
VALUE_TYPES = ("Value", "Value | None", "tuple[Value, ...]")


def per_class(make: Callable[P, T]) -> Callable[P, T]:
    """Cache the results of a function of a class."""
    return cache(make)  # type: ignore[return-value]  # classes are hashable


@per_class
def _fields(kind: type[Any], *types: str) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.type in types)


@per_class
def _operand_names(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields of a class that hold operands."""
    binds = _BINDS | {"value"} if kind is lir.Let else _BINDS
    return tuple(name for name in _fields(kind, *VALUE_TYPES) if name not in binds)


def operands(op: Op) -> tuple[Value, ...]:
    """Return the values an operation reads."""
    return _reader(type(op))(op)


@per_class
def _reader(kind: type[Any]) -> Callable[[Any], tuple[Value, ...]]:
    """Return the fastest function that reads a class's operands."""
    names = _operand_names(kind)
    if not names:
        return lambda op: ()
    if not {*names} <= {*_fields(kind, "Value")}:
        return lambda op: _listed(op, names)
    read: Callable[[Any], Any] = attrgetter(*names)
    if len(names) == 1:
        return lambda op: (read(op),)
    return read


def _listed(op: Any, names: tuple[str, ...]) -> tuple[Value, ...]:
    found: list[Value] = []
    for name in names:
        part = getattr(op, name)
        if isinstance(part, Value):
            found.append(part)
        elif part is not None:
            found.extend(part)
    return tuple(found)


def scalars_of(op: Op) -> Any:
    """Return the non-value fields of an operation: kinds, lanes, flags."""
    return _scalar_reader(type(op))(op)


@per_class
def _scalar_reader(kind: type[Any]) -> Callable[[Any], Any]:
    known = _operand_names(kind)
    names = [f.name for f in fields(kind) if f.name not in known]
    return attrgetter(*names) if names else lambda op: None


def buffers_of(node: Op | Stmt) -> list[Buffer]:
    """Return the buffers an operation or statement names."""
    return [getattr(node, name) for name in _fields(type(node), "Buffer")]


def map_operands(node: OpOrStmt, change: Callable[[Value], Value]) -> OpOrStmt:
    """Return an operation or statement with its operands changed.

    Bound values and bodies stay.
    """
    changes: dict[str, Any] = {}
    for name in _operand_names(type(node)):
        part = getattr(node, name)
        new: Any
        if isinstance(part, Value):
            new = change(part)
        elif part:
            new = tuple(map(change, part))
        else:
            continue
        if new is not part and new != part:
            changes[name] = new
    if isinstance(node, lir.Grid | lir.BlockRegion):
        changes["dims"] = tuple((d, var, change(count)) for d, var, count in node.dims)
    elif isinstance(node, lir.Switch):
        changes["yields"] = tuple(tuple(map(change, case)) for case in node.yields)
    return replace(node, **changes) if changes else node  # type: ignore[type-var]


def operands_of_stmt(stmt: Stmt) -> Sequence[Value]:
    """Return the values a statement reads: operands, conditions and yields."""
    found: list[Value] = []

    def note(value: Value) -> Value:
        found.append(value)
        return value

    if isinstance(stmt, lir.Let):
        return operands(stmt.op)
    map_operands(stmt, note)
    return found


@per_class
def _body_names(kind: type[Any]) -> tuple[str, ...]:
    return _fields(kind, "tuple[Stmt, ...]")


def bodies(stmt: Stmt) -> tuple[Body, ...]:
    """Return the bodies of a statement in execution order."""
    if isinstance(stmt, lir.Switch):
        return stmt.cases
    return tuple(getattr(stmt, name) for name in _body_names(type(stmt)))


def map_bodies(stmt: Stmt, change: Callable[[Body], Body]) -> Stmt:
    """Return a statement with its bodies changed, in execution order."""
    if isinstance(stmt, lir.Switch):
        return replace(stmt, cases=tuple(map(change, stmt.cases)))
    names = _body_names(type(stmt))
    changes: dict[str, Any] = {name: change(getattr(stmt, name)) for name in names}
    return replace(stmt, **changes) if changes else stmt


def statements(body: Body) -> Iterator[Stmt]:
    """Yield every statement of a body, including nested ones."""
    for stmt in body:
        yield stmt
        for inner in bodies(stmt):
            yield from statements(inner)


def holds_region(stmt: Stmt) -> bool:
    """Whether a statement contains a block region."""
    inside = (inner for body in bodies(stmt) for inner in statements(body))
    return any(isinstance(inner, lir.BlockRegion) for inner in inside)


def written(body: Body) -> set[str]:
    """Return the names of the buffers that a body writes: each statement's first."""
    reads = (lir.Let, lir.Prefetch, lir.Alloc, lir.Transfer, lir.View)
    found = (buffers_of(s)[:1] for s in statements(body) if not isinstance(s, reads))
    return {buffer.name for first in found for buffer in first}


# ---------------------------------------------------------------- names


def bound_by(stmt: Stmt) -> tuple[Value, ...]:
    """Return the values that a statement binds for later statements."""
    if isinstance(stmt, lir.Let):
        return (stmt.value,)
    found: tuple[Value, ...] = getattr(stmt, "results", ())
    return found


def bound_in(stmt: Stmt) -> tuple[Value, ...]:
    """Return all values that a statement binds itself, without those in its bodies."""
    match stmt:
        case lir.For(var=var, params=params):
            return (var, *params, *stmt.results)
        case lir.While(params=params):
            return (*params, *stmt.results)
        case lir.ParallelFor(var=var):
            return (var,)
        case lir.Grid(dims=dims) | lir.BlockRegion(dims=dims):
            return tuple(var for _, var, _ in dims)
        case _:
            return bound_by(stmt)


def free_values(body: Body) -> dict[str, Value]:
    """Return, by name, the values that a body reads but does not bind."""
    read: dict[str, Value] = {}
    bound: set[str] = set()
    for stmt in statements(body):
        read.update((v.name, v) for v in operands_of_stmt(stmt))
        bound.update(v.name for v in bound_in(stmt))
    return {name: value for name, value in read.items() if name not in bound}


# ---------------------------------------------------------------- control


def steers(stmt: Stmt) -> tuple[Value, ...]:
    """Return the values that decide which bodies of a statement run, and how often."""
    match stmt:
        case lir.For(lo=lo, hi=hi, step=step):
            return (lo, hi, step)
        case lir.While(cond=cond) | lir.If(cond=cond):
            return (cond,)
        case lir.Switch(selector=selector):
            return (selector,)
        case lir.BlockRegion(dims=dims):
            return tuple(count for _, _, count in dims)
        case _:
            return ()


def flows(stmt: Stmt) -> Iterable[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """Return, for each value that control carries, its sources and its names."""
    match stmt:
        case lir.For() | lir.While():
            sources: tuple[tuple[Value, ...], ...] = (stmt.inits, stmt.yields)
            names: tuple[tuple[Value, ...], ...] = (stmt.params, stmt.results)
        case lir.If():
            sources, names = (stmt.then_yields, stmt.else_yields), (stmt.results,)
        case lir.Switch(yields=yields, results=results) if results:
            sources, names = yields, (results,)
        case _:
            return ()
    return zip(zip(*sources, strict=True), zip(*names, strict=True), strict=True)
