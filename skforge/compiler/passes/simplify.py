"""Simplify LIR: fold constants, share and hoist pure operations, drop dead ones.

    %c: i64 = const 2                        %c: i64 = const 2
    for %i: i64 = %lo to %n step %s {        %k: i64 = mul %n, %c
      %k: i64 = mul %n, %c            =>     for %i: i64 = %lo to %n step %s {
      %j: i64 = add %k, %zero                  prefetch @x[%k]
      prefetch @x[%j]                        }
    }

Floats are folded only to the bit that the machine would compute and never
rearranged. Loads stay where they are; one whose result is unused is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from skforge.compiler._compat import assert_never
from skforge.compiler.interpreter_values import element_of
from skforge.compiler.ir import lir
from skforge.compiler.ir.lir import Const, Function, Op, Stmt, Type, Value
from skforge.compiler.ir.lir_walk import map_operands, operands
from skforge.compiler.passes.simplify_dead import drop_dead
from skforge.compiler.passes.simplify_fold import known

_PURE = (
    lir.Const,
    lir.Unary,
    lir.Binary,
    lir.Compare,
    lir.Select,
    lir.Convert,
    lir.Bitcast,
    lir.Splat,
    lir.Iota,
    lir.Extract,
    lir.Pack,
    lir.Permute,
    lir.Shuffle,
    lir.Compress,
    lir.MaskBits,
    lir.AnyTrue,
    lir.CompareToPlane,
    lir.PlaneBinary,
    lir.PlaneNot,
    lir.PlaneMux,
    lir.PlanesToIndex,
)
_Key: TypeAlias = tuple[Op, str, Type]


def run(function: Function) -> Function:
    """Return ``function`` simplified; what it computes keeps every bit."""
    for _ in range(2):  # again, to share what was hoisted to one place
        new = _Simplifier().function(function)
        if new == function:
            break
        function = new
    return function


class _Simplifier:
    def __init__(self) -> None:
        self._alias: dict[str, Value] = {}
        self._constants: dict[str, Const] = {}
        self._seen: dict[_Key, Value] = {}  # pure operations in scope

    def function(self, function: Function) -> Function:
        return replace(function, body=drop_dead(tuple(self._body(function.body))))

    def _resolve(self, value: Value) -> Value:
        return self._alias.get(value.name, value)

    def _body(self, body: Sequence[Stmt]) -> list[Stmt]:
        outer = self._seen
        self._seen = dict(outer)
        out = self._here(body)
        self._seen = outer
        return out

    def _here(self, body: Sequence[Stmt]) -> list[Stmt]:
        """Simplify statements into the scope that is open."""
        out: list[Stmt] = []
        for stmt in body:
            match stmt:
                case lir.Let():
                    out.extend(self._let(stmt))
                case lir.For():
                    out.extend(self._for(stmt))
                case lir.While():
                    out.extend(self._while(stmt))
                case lir.If():
                    out.extend(self._if(stmt))
                case lir.Switch():
                    out.extend(self._switch(stmt))
                case lir.ParallelFor() | lir.Grid() | lir.BlockRegion():
                    inner = tuple(self._body(stmt.body))
                    out.append(map_operands(replace(stmt, body=inner), self._resolve))
                case (
                    lir.Store()
                    | lir.Scatter()
                    | lir.AtomicAdd()
                    | lir.Prefetch()
                    | lir.StorePlane()
                    | lir.TransposeBlock()
                    | lir.UnpermuteStore()
                    | lir.Alloc()
                ):
                    out.append(map_operands(stmt, self._resolve))
                case _:
                    assert_never(stmt)
        return out

    def _let(self, stmt: lir.Let) -> list[Stmt]:
        op, value = map_operands(stmt.op, self._resolve), stmt.value
        found = known(op, value.type, self._constants)
        if isinstance(found, Value):
            self._alias[value.name] = found
            return []
        if found is not None:
            op = found
        if isinstance(op, _PURE):
            # By its text too: 0.0 equals -0.0, and 1 equals True.
            text = repr(op.value) if isinstance(op, Const) else ""
            key = (op, text, value.type)
            if key in self._seen:
                self._alias[value.name] = self._seen[key]
                return []
            self._seen[key] = value
            if isinstance(op, Const):
                self._constants[value.name] = op
        return [lir.Let(value, op)]

    # ------------------------------------------------------------ control

    def _constant(self, value: Value) -> int | float | bool | None:
        found = self._constants.get(self._resolve(value).name)
        return None if found is None else found.value

    def _rename(self, names: Sequence[Value], values: Sequence[Value]) -> None:
        for name, value in zip(names, values, strict=True):
            self._alias[name.name] = self._resolve(value)

    def _for(self, stmt: lir.For) -> list[Stmt]:
        bounds = [self._constant(v) for v in (stmt.lo, stmt.hi, stmt.step)]
        if None not in bounds:
            lo, hi, step = (int(b) for b in bounds if b is not None)
            if lo >= hi:
                self._rename(stmt.results, stmt.inits)
                return []
            if lo + step >= hi:
                self._rename((stmt.var, *stmt.params), (stmt.lo, *stmt.inits))
                out = self._here(stmt.body)
                self._rename(stmt.results, stmt.yields)
                return out
        body = self._body(stmt.body)
        hoisted, body = _hoist(body, {stmt.var.name, *(p.name for p in stmt.params)})
        new = map_operands(replace(stmt, body=tuple(body)), self._resolve)
        return [*hoisted, new]

    def _while(self, stmt: lir.While) -> list[Stmt]:
        outer = self._seen
        self._seen = dict(outer)
        before, body = self._here(stmt.before), self._here(stmt.body)
        self._seen = outer
        inside = {p.name for p in stmt.params}
        hoisted, before = _hoist(before, inside)
        more, body = _hoist(body, inside)
        new = replace(stmt, before=tuple(before), body=tuple(body))
        return [*hoisted, *more, map_operands(new, self._resolve)]

    def _if(self, stmt: lir.If) -> list[Stmt]:
        cond = self._constant(stmt.cond)
        if cond is not None:
            out = self._here(stmt.then if cond else stmt.orelse)
            yields = stmt.then_yields if cond else stmt.else_yields
            self._rename(stmt.results, yields)
            return out
        then, orelse = tuple(self._body(stmt.then)), tuple(self._body(stmt.orelse))
        return [map_operands(replace(stmt, then=then, orelse=orelse), self._resolve)]

    def _switch(self, stmt: lir.Switch) -> list[Stmt]:
        selector = self._constant(stmt.selector)
        if selector is not None or len(stmt.cases) == 1:
            last = len(stmt.cases) - 1
            number = last if selector is None else int(selector)
            number = number if 0 <= number < last else last
            out = self._here(stmt.cases[number])
            self._rename(stmt.results, stmt.yields[number] if stmt.results else ())
            return out
        cases = tuple(tuple(self._body(case)) for case in stmt.cases)
        return [map_operands(replace(stmt, cases=cases), self._resolve)]


# ---------------------------------------------------------------- hoisting


def _hoist(body: Sequence[Stmt], inside: set[str]) -> tuple[list[Stmt], list[Stmt]]:
    """Split off what does not depend on the loop; ``inside`` gains what stays."""
    hoisted: list[Stmt] = []
    kept: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, lir.Let):
            sources = {v.name for v in operands(stmt.op)}
            if sources.isdisjoint(inside) and _may_hoist(stmt.op, stmt.value.type):
                hoisted.append(stmt)
                continue
        inside.update(v.name for v in _bound(stmt))
        kept.append(stmt)
    return hoisted, kept


def _bound(stmt: Stmt) -> tuple[Value, ...]:
    match stmt:
        case lir.Let(value=value):
            return (value,)
        case (
            lir.For(results=results)
            | lir.While(results=results)
            | lir.If(results=results)
            | lir.Switch(results=results)
        ):
            return results
        case _:
            return ()


def _may_hoist(op: Op, type_: Type) -> bool:
    """Whether ``op`` is cheap, and defined even where the loop would not run it."""
    match op:
        case lir.Const() | lir.Splat() | lir.Iota():
            return True
        case lir.Binary(op=kind):
            total = kind not in ("div", "rem", "shl", "shr")
            return total and not element_of(type_).is_float
        case lir.Unary() | lir.Select():
            return not element_of(type_).is_float
        case lir.Convert(a=a) | lir.Bitcast(a=a):
            return not (element_of(type_).is_float or element_of(a.type).is_float)
        case lir.Compare(a=a):
            return not element_of(a.type).is_float
        case _:
            return False
