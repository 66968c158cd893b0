"""Simplify LIR: fold constants, share and hoist pure operations, drop dead ones.

Named operations give way to their code.

    %c: i64 = const 2                        %c: i64 = const 2
    for %i: i64 = %lo to %n step %s {        %k: i64 = mul %n, %c
      %k: i64 = mul %n, %c            =>     for %i: i64 = %lo to %n step %s {
      %j: i64 = add %k, %zero                  prefetch l1 @x[%k]
      prefetch l1 @x[%j]                     }
    }

Floats are folded only where the result has the bits that the machine computes, and are
never reassociated. Loads are not moved; a load whose result is unused is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import operations, walk
from skforge.compiler.ir.lir.nodes import Const, Function, Op, Scalar, Stmt, Type, Value
from skforge.compiler.ir.lir.printer import name_of
from skforge.compiler.ir.lir.types import dtype_of

_ValueKey: TypeAlias = tuple[Any, ...]


def run(function: Function) -> Function:
    simplifier = _Simplifier()
    new = simplifier.function(function)
    if simplifier.again:
        new = _Simplifier().function(new)
    return function if new == function else new


@dataclass(slots=True)
class _FoldingScope:
    base: int  # depth of the outermost body that its operations may be hoisted to
    opened: int  # number of bodies closed before this one opened
    out: list[Stmt] = field(default_factory=list)
    keys: list[_ValueKey] = field(default_factory=list)  # operations first seen here


class _Simplifier:
    """Simplifies in one walk; hoists each operation out of as many loops as it may."""

    def __init__(self) -> None:
        self._alias: dict[str, Value] = {}
        self._constants: dict[str, Const] = {}
        self._seen: dict[_ValueKey, Value] = {}  # pure operations in scope
        self._scopes: list[_FoldingScope] = []
        self._depth: dict[str, int] = {}  # depth of the body that binds a name
        self._closed: dict[
            _ValueKey, int
        ] = {}  # last closed body that had the operation
        self._n_closed = 0
        self._types: dict[Type, int] = {}
        self._type_ids: dict[int, int] = {}
        # Constants of closed bodies, with the number of the body.
        self._ended: dict[_ValueKey, list[tuple[int, Value]]] = {}
        self._late: dict[str, Value] = {}  # constants replaced by one hoisted above
        #: Whether an operation was hoisted above an equal one: simplify once more.
        self.again = False

    def function(self, function: Function) -> Function:
        body = self._body(function.body)
        if self._late and not self.again:
            body = _renamed(body, self._late)
        return replace(function, body=drop_dead(body))

    def _resolve(self, value: Value) -> Value:
        return self._alias.get(value.name, value)

    def _body(
        self, body: Sequence[Stmt], loop: bool = False, bound: Iterable[Value] = ()
    ) -> tuple[Stmt, ...]:
        self._open(loop, bound)
        self._here(body)
        return self._close()

    def _open(self, loop: bool, bound: Iterable[Value] = ()) -> None:
        depth = len(self._scopes)
        base = self._scopes[-1].base if loop else depth
        self._scopes.append(_FoldingScope(base, self._n_closed))
        for value in bound:
            self._depth[value.name] = depth

    def _close(self) -> tuple[Stmt, ...]:
        scope = self._scopes.pop()
        for key in scope.keys:
            value = self._seen.pop(key)
            if key[0] is Const:
                self._ended.setdefault(key, []).append((self._n_closed, value))
        self._closed.update(dict.fromkeys(scope.keys, self._n_closed))
        self._n_closed += 1
        return tuple(scope.out)

    def _emit(self, stmt: Stmt, results: Sequence[Value] = ()) -> None:
        self._scopes[-1].out.append(stmt)
        for value in results:
            self._depth[value.name] = len(self._scopes) - 1

    def _here(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            match stmt:
                case lir.Let():
                    self._let(stmt)
                case lir.For():
                    self._for(stmt)
                case lir.While():
                    self._while(stmt)
                case lir.If():
                    self._if(stmt)
                case lir.Switch():
                    self._switch(stmt)
                case lir.Named():
                    self._here(stmt.body)
                    self._rename(stmt.results, stmt.values)
                case _:
                    self._other(stmt)

    def _other(self, stmt: Stmt) -> None:
        inner = walk.map_bodies(stmt, self._body)
        self._emit(walk.map_operands(inner, self._resolve), walk.bound_by(stmt))

    def _let(self, stmt: lir.Let) -> None:
        op, value = stmt.op, stmt.value
        values = walk.operands(op)
        for source in values:
            if source.name in self._alias:
                op = walk.map_operands(op, self._resolve)
                values = walk.operands(op)
                break
        result = known(op, value.type, self._constants)
        if result is not None:
            if isinstance(result, Value):
                self._alias[value.name] = result
                return
            op, values = result, ()
        at = len(self._scopes) - 1
        if operations.is_pure(type(op)):
            key = self._key(op, values, value.type)
            same = self._seen.get(key)
            if same is not None:
                self._alias[value.name] = same
                return
            if isinstance(op, Const):
                self._constants[value.name] = op
            at = self._place(op, values, value.type, at)
            if at < len(self._scopes) - 1:
                # A closed branch of the loop it leaves may already compute it.
                opened = self._scopes[at + 1].opened
                if self._closed.get(key, -1) < opened:
                    pass
                elif isinstance(op, Const):
                    for ended, other in self._ended[key]:
                        if ended >= opened:
                            self._late[other.name] = value
                else:
                    self.again = True
            self._seen[key] = value
            self._scopes[at].keys.append(key)
        self._depth[value.name] = at
        self._scopes[at].out.append(stmt if op is stmt.op else lir.Let(value, op))

    def _key(self, op: Op, values: Sequence[Value], type_: Type) -> _ValueKey:
        number = self._type_ids.get(id(type_))
        if number is None:
            number = self._types.setdefault(type_, len(self._types))
            self._type_ids[id(type_)] = number  # the function keeps the type alive
        if isinstance(op, Const):
            # The text distinguishes 0.0 from -0.0 and 1 from True.
            return Const, number, op.value, repr(op.value)
        fields = walk.scalar_reader(type(op))(op)
        return (type(op), number, fields, *[v.name for v in values])

    def _place(self, op: Op, values: Sequence[Value], type_: Type, here: int) -> int:
        at = self._scopes[here].base
        if at == here:
            return here
        for value in values:
            bound = self._depth.get(value.name, 0)
            if bound > at:
                if bound == here:
                    return here
                at = bound
        return at if operations.may_hoist(op, type_) else here

    # ------------------------------------------------------------ control

    def _constant(self, value: Value) -> int | float | bool | None:
        constant = self._constants.get(self._resolve(value).name)
        return None if constant is None else constant.value

    def _rename(self, names: Sequence[Value], values: Sequence[Value]) -> None:
        for name, value in zip(names, values, strict=True):
            self._alias[name.name] = self._resolve(value)

    def _for(self, stmt: lir.For) -> None:
        bounds = [self._constant(v) for v in (stmt.lo, stmt.hi, stmt.step)]
        if None not in bounds:
            lo, hi, step = (int(b) for b in bounds if b is not None)
            if lo >= hi:
                self._rename(stmt.results, stmt.inits)
                return
            if lo + step >= hi:
                self._rename((stmt.var, *stmt.params), (stmt.lo, *stmt.inits))
                self._here(stmt.body)
                self._rename(stmt.results, stmt.yields)
                return
        body = self._body(stmt.body, True, (stmt.var, *stmt.params))
        new = walk.map_operands(replace(stmt, body=body), self._resolve)
        self._emit(new, stmt.results)

    def _while(self, stmt: lir.While) -> None:
        self._open(True, stmt.params)
        self._here(stmt.before)
        scope = self._scopes[-1]
        before, scope.out = tuple(scope.out), []
        self._here(stmt.body)
        new = replace(stmt, before=before, body=self._close())
        self._emit(walk.map_operands(new, self._resolve), stmt.results)

    def _if(self, stmt: lir.If) -> None:
        cond = self._constant(stmt.cond)
        if cond is not None:
            self._here(stmt.then if cond else stmt.orelse)
            yields = stmt.then_yields if cond else stmt.else_yields
            self._rename(stmt.results, yields)
            return
        self._other(stmt)

    def _switch(self, stmt: lir.Switch) -> None:
        selector = self._constant(stmt.selector)
        if selector is not None or len(stmt.cases) == 1:
            last = len(stmt.cases) - 1
            number = last if selector is None else int(selector)
            number = number if 0 <= number < last else last
            self._here(stmt.cases[number])
            self._rename(stmt.results, stmt.yields[number] if stmt.results else ())
            return
        self._other(stmt)


def _renamed(body: Sequence[Stmt], names: dict[str, Value]) -> tuple[Stmt, ...]:
    def change(value: Value) -> Value:
        while value.name in names:
            value = names[value.name]
        return value

    out: list[Stmt] = []
    for stmt in body:
        if not isinstance(stmt, lir.Let):
            inner = walk.map_bodies(stmt, lambda one: _renamed(one, names))
            out.append(walk.map_operands(inner, change))
        elif stmt.value.name not in names:
            if any(v.name in names for v in walk.operands(stmt.op)):
                stmt = lir.Let(stmt.value, walk.map_operands(stmt.op, change))
            out.append(stmt)
    return tuple(out)


# ---------------------------------------------------------------- known results

KnownConstants = Mapping[str, Const]
_COMMUTES = ("add", "mul", "and", "or", "xor", "min", "max")


def known(op: Op, type_: Type, constants: KnownConstants) -> Const | Value | None:
    match op:
        case lir.Binary(op=kind, a=a, b=b):
            # Most operands are not constants, so this test rejects most operations.
            if a.name in constants or b.name in constants or a.name == b.name:
                same = _identity(kind, a, b, type_, constants)
                return _fold(op, type_, constants) if same is None else same
            return None
        case lir.Splat(a=a):
            return constants.get(a.name)
        case lir.Select(cond=cond, a=a, b=b):
            if a.name == b.name:
                return a
            if cond.name in constants and cond.type == lir.BOOL:
                return a if constants[cond.name].value else b
            return _fold(op, type_, constants)
        case lir.Compare() | lir.Convert() | lir.Unary() | lir.Bitcast():
            return _fold(op, type_, constants)
        case _:
            return None


def _identity(
    kind: lir.BinaryOp, a: Value, b: Value, type_: Type, constants: KnownConstants
) -> Const | Value | None:
    """Apply integer identities; no float identity keeps every bit."""
    element = type_.element
    if element.is_float:
        return None
    if a == b and kind in ("and", "or", "min", "max"):
        return a
    if element == lir.BOOL:
        return None
    if a == b and kind in ("sub", "xor"):
        return Const(0)
    left, right = constants.get(a.name), constants.get(b.name)
    if right is None and left is not None and kind in _COMMUTES:
        a, right = b, left
    if right is None:
        return None
    if right.value == 0:
        if kind in ("add", "sub", "or", "xor", "shl", "shr"):
            return a
        if kind in ("mul", "and"):
            return Const(0)
    if right.value == 1 and kind in ("mul", "div"):
        return a
    return None


def _fold(op: Op, type_: Type, constants: KnownConstants) -> Const | None:
    values = walk.operands(op)
    if not isinstance(type_, Scalar):
        return None
    args = []
    for value in values:
        if value.name not in constants or not isinstance(value.type, Scalar):
            return None
        args.append(_number(constants[value.name].value, value.type))
    if any(isinstance(a, np.floating) and math.isnan(a) for a in args):
        return None  # a constant does not say which NaN
    with np.errstate(all="ignore"):
        result = _evaluate(op, type_, args)
    if result is None:
        return None
    if type_.is_float:
        return None if math.isnan(result) else Const(float(result))
    return Const(operations.wrapped(result, type_))


def _number(value: Any, type_: Scalar) -> Any:
    if type_.is_float:
        return dtype_of(type_).type(value)
    return bool(value) if type_ == lir.BOOL else int(value)


def _evaluate(op: Op, type_: Scalar, args: list[Any]) -> Any:
    match op:
        case lir.Bitcast(a=a):
            same = np.array(args[0], dtype_of(a.type.element))
            return same.view(dtype_of(type_)).item()
        case lir.Convert(a=a) if a.type.element.is_float and not type_.is_float:
            return None  # it may be out of range, where any value is right
        case lir.Convert() if type_.is_float:
            # Through i64, since Python would round an int to f64 first.
            exact = np.int64(args[0]) if isinstance(args[0], int) else args[0]
            return exact.astype(dtype_of(type_))
        case _:
            return operations.evaluate(name_of(op), type_, *args)


def constants_of(
    function: lir.Function, given: Mapping[str, int] | None = None
) -> dict[str, int]:
    constants = {name: lir.Const(value) for name, value in (given or {}).items()}
    for stmt in walk.statements(function.body):
        if not isinstance(stmt, lir.Let) or stmt.value.type not in (lir.I32, lir.I64):
            continue
        value, op = stmt.value, stmt.op
        result = op if isinstance(op, lir.Const) else known(op, value.type, constants)
        if isinstance(result, lir.Const):
            constants[value.name] = result
        elif result is not None and result.name in constants:
            constants[value.name] = constants[result.name]
    return {name: int(const.value) for name, const in constants.items()}


# ---------------------------------------------------------------- dead operations


def drop_dead(body: lir.Body, live: set[str] | None = None) -> lir.Body:
    """Return ``body`` without dead operations; ``live`` gains the names it reads."""
    names: set[str] = set() if live is None else live
    live_stmts: list[Stmt] = []
    for stmt in reversed(body):
        match stmt:
            case lir.Let(value=value, op=op):
                if value.name in names or operations.OPERATIONS[type(op)].stays:
                    names.update([v.name for v in walk.operands(op)])
                    live_stmts.append(stmt)
                continue
            case lir.While(before=before, body=inner):
                _read(stmt, names)
                inner = drop_dead(inner, names)
                stmt = replace(stmt, before=drop_dead(before, names), body=inner)
            case _:
                if walk.bound_by(stmt):
                    _read(stmt, names)
                stmt = walk.map_bodies(stmt, lambda inner: drop_dead(inner, names))
                idle = isinstance(stmt, lir.For | lir.If | lir.ParallelFor)
                if idle and not walk.bound_by(stmt) and not any(walk.bodies(stmt)):
                    continue
        _read(stmt, names)
        live_stmts.append(stmt)
    return tuple(reversed(live_stmts))


def _read(stmt: Stmt, live: set[str]) -> None:
    live.update(v.name for v in walk.operands(stmt))
