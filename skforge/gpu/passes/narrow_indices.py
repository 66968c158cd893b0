"""Narrow index arithmetic to 32 bits: on a GPU, 64 bits double registers and time.

    f(@x: f32, %n: i64)                          f(@x: f32, %n: i32)
    %c: i64 = const 4                            %c: i32 = const 4
    %i: i64 = mul %n, %c                   =>    %i: i32 = mul %n, %c
    %w: f32 = load @x[%i]                        %w: f32 = load @x[%i]

The caller guarantees that buffers have fewer than 2**31 elements and that counts,
rounded up to whole blocks, are below 2**31; larger batches arrive in parts. Every i64
parameter (``n_rows`` and ``row_stride``) is such a count and becomes an i32, which the
host passes as int32. A loaded u32 that is converted to i64 is assumed to be an index or
a count, so below 2**31. For other u32 values the operations must prove it.

An i64 stays wide if it may hold more than an index: if it is loaded from or stored to
memory, converted from or to a float, or bit-cast; if constants, shifts or lanes need
the bits; and if arithmetic, selects or loops tie it to such a value. Parameters,
constants, loop variables and converted numbers tie nothing: both widths of them are
available. Unused values are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import walk
from skforge.compiler.ir.lir.builder import FreshBuilder, with_lanes
from skforge.compiler.ir.lir.operations import OPERATIONS
from skforge.compiler.passes.lir.simplify import drop_dead
from skforge.exceptions import CompilerError


def run(function: lir.Function) -> lir.Function:
    return _Rewriter(function).function()


class _Rewriter:
    def __init__(self, function: lir.Function) -> None:
        self._function = function
        self._widths = _IndexWidths(function)
        self._b = FreshBuilder(function)
        self._twins: dict[str, lir.Value] = {}  # 64-bit forms of values with both
        self._alias: dict[str, lir.Value] = {}  # conversions that became no-ops

    def function(self) -> lir.Function:
        params = self._function.params
        values = [param for param in params if isinstance(param, lir.Value)]
        body = drop_dead(self._body(self._function.body, values))
        params = tuple(self._narrow(p) if p in values else p for p in params)
        return replace(self._function, params=params, body=body)

    # ------------------------------------------------------------ widths of a value

    def _narrow(self, value: lir.Value) -> lir.Value:
        if not _is_i64(value) or value.name in self._widths.wide:
            return value
        return lir.Value(value.name, with_lanes(lir.I32, value.type))

    def _widen(self, value: lir.Value, op: lir.Op | None = None) -> None:
        if not _is_i64(value) or value.name in self._widths.wide:
            return
        twin = lir.Value(self._b.name(f"{value.name}.wide"), value.type)
        self._twins[value.name] = twin
        self._b.emit(lir.Let(twin, op or lir.Convert(self._narrow(value))))

    def _any(self, value: lir.Value) -> lir.Value:
        alias = self._alias.get(value.name)
        return self._narrow(value) if alias is None else alias

    def _as(self, wide: bool) -> Callable[[lir.Value], lir.Value]:
        def form(value: lir.Value) -> lir.Value:
            twin = self._twins.get(value.name) if wide else None
            return self._any(value) if twin is None else twin

        return form

    def _wide(self, values: Sequence[lir.Value]) -> bool:
        return any(v.name in self._widths.wide for v in values)

    # ------------------------------------------------------------ statements

    def _body(self, body: lir.Body, bound: Sequence[lir.Value] = ()) -> lir.Body:
        with self._b.body() as stmts:
            for value in bound:
                self._widen(value)
            for stmt in body:
                self._stmt(stmt)
        return tuple(stmts)

    def _stmt(self, stmt: lir.Stmt) -> None:
        match stmt:
            case lir.Let(value=value, op=op):
                self._let(value, op)
                return
            case lir.Store() | lir.Scatter() | lir.AtomicAdd():
                new = walk.map_operands(stmt, self._as(True))
                narrow: lir.Stmt = replace(new, index=self._any(stmt.index))
            case lir.For() | lir.While() | lir.If() | lir.Switch():
                narrow = self._control(stmt)
            case lir.ParallelFor(var=var, count=count, body=body):
                inside = self._body(body, (var,))
                count = self._as(self._wide((var,)))(count)
                narrow = lir.ParallelFor(self._narrow(var), count, inside)
            case lir.Grid(dims=dims) | lir.BlockRegion(dims=dims):
                inside = self._body(stmt.body, [var for _, var, _ in dims])
                new_dims = tuple(
                    (dim, self._narrow(var), self._as(self._wide((var,)))(count))
                    for dim, var, count in dims
                )
                narrow = type(stmt)(new_dims, inside)
            case lir.Alloc() | lir.Prefetch() | lir.StorePlane():
                narrow = walk.map_operands(stmt, self._any)
            case _:
                raise CompilerError(f"{type(stmt).__name__} before narrow-indices")
        self._b.emit(narrow)

    def _control(self, stmt: lir.For | lir.While | lir.If | lir.Switch) -> lir.Stmt:
        bound = (stmt.var,) if isinstance(stmt, lir.For) else ()
        changed = walk.map_bodies(stmt, lambda body: self._body(body, bound))
        results = stmt.results

        def each(values: Sequence[lir.Value]) -> tuple[lir.Value, ...]:
            pairs = zip(values, results, strict=True)
            return tuple(self._as(self._wide((r,)))(v) for v, r in pairs)

        changes: dict[str, Any] = {"results": tuple(map(self._narrow, results))}
        if isinstance(stmt, lir.For):
            changes["var"] = self._narrow(stmt.var)
        if isinstance(stmt, lir.For | lir.While):
            changes["params"] = tuple(map(self._narrow, stmt.params))
        for name in walk.names_of(type(stmt), "operand"):
            rows = getattr(stmt, name)
            several = isinstance(stmt, lir.Switch)
            changes[name] = tuple(map(each, rows)) if several else each(rows)
        limit = self._as(self._wide(bound))
        for name in walk.names_of(type(stmt), "steers"):
            changes[name] = limit(getattr(stmt, name))
        return replace(changed, **changes)

    # ------------------------------------------------------------ operations

    def _let(self, value: lir.Value, op: lir.Op) -> None:
        if isinstance(op, lir.Convert) and not op.a.type.element.is_float:
            bound = self._narrow(value)
            source = self._as(bound.type == op.a.type)(op.a)
            if source.type == bound.type:
                self._alias[value.name] = source
                if value.name in self._widths.both:
                    self._widen(value, lir.Convert(source))
                return
        if _is_tied(op):
            tied = [v for group in _groups_of(lir.Let(value, op)) for v in group]
            op = walk.map_operands(op, self._as(self._wide(tied)))
        elif isinstance(op, lir.Gather):
            other = None if op.other is None else self._as(True)(op.other)
            op = replace(walk.map_operands(op, self._any), other=other)
        else:
            takes_any = self._widths.takes_any(op, value)
            op = walk.map_operands(op, self._any if takes_any else self._as(True))
        self._b.emit(lir.Let(self._narrow(value), op))
        if value.name in self._widths.both:
            self._widen(value, op)


# ---------------------------------------------------------------- widths

_LIMIT = 1 << 31


def _is_i64(value: lir.Value) -> bool:
    return value.type.element == lir.I64


def _is_tied(op: lir.Op) -> bool:
    return OPERATIONS[type(op)].one_width


def _groups_of(stmt: lir.Stmt) -> Iterator[list[lir.Value]]:
    groups: list[tuple[lir.Value, ...]] = [
        (*froms, *to) for froms, to in walk.flows(stmt)
    ]
    match stmt:
        case lir.Let(value=value, op=op) if _is_tied(op):
            groups = [(value, *walk.operands(op))]
        case lir.Let(value=value, op=lir.Convert(a=a)) if _is_i64(a):
            groups = [(value, a)] if _is_i64(value) else []
        case _:
            pass
    for group in groups:
        yield [v for v in group if _is_i64(v)]


class _IndexWidths:
    def __init__(self, function: lir.Function) -> None:
        self.wide: set[str] = set()  # values that exist only in 64 bits
        #: Values that are not computed from values of either width. A 64-bit use widens
        #: neither them nor their sources.
        self.both: set[str] = set()
        self._ops: dict[str, lir.Op] = {}
        self._groups: list[list[lir.Value]] = []
        self._bounds: list[tuple[lir.Value, tuple[lir.Value, ...]]] = []
        for param in function.params:
            if isinstance(param, lir.Value) and _is_i64(param):
                self.both.add(param.name)
        stmts = list(walk.statements(function.body))
        for stmt in stmts:  # the rules below look up where operands come from
            if isinstance(stmt, lir.Let):
                self._ops[stmt.value.name] = stmt.op
                if _is_i64(stmt.value):
                    self._bind(stmt.value, stmt.op)
            else:
                self._variables(stmt)
        for stmt in stmts:
            self._groups += _groups_of(stmt)
            if isinstance(stmt, lir.Let):
                self._read(stmt.value, stmt.op)
            elif isinstance(stmt, lir.Store | lir.Scatter | lir.AtomicAdd):
                self._pin(stmt.value)
        self._spread()

    def takes_any(self, op: lir.Op, value: lir.Value) -> bool:
        if isinstance(op, lir.Convert):
            return not value.type.element.is_float
        return bool(walk.buffers_of(op))  # all operands are indices

    # ------------------------------------------------------------ rules

    def _bind(self, value: lir.Value, op: lir.Op) -> None:
        match op:
            case lir.Const(value=number):
                fits = -_LIMIT <= number < _LIMIT
                (self.both if fits else self.wide).add(value.name)
            case lir.Iota():
                self.both.add(value.name)
            case lir.MaskBits(a=a):
                (self.both if a.type.lanes < 32 else self.wide).add(value.name)
            case lir.Convert(a=a) if not _is_i64(a):
                (self.both if self._fits(a) else self.wide).add(value.name)
            case _ if not (_is_tied(op) or isinstance(op, lir.Convert)):
                self.wide.add(value.name)

    def _variables(self, stmt: lir.Stmt) -> None:
        pairs: list[tuple[lir.Value, tuple[lir.Value, ...]]] = []
        match stmt:
            case lir.For(var=var) | lir.ParallelFor(var=var):
                pairs = [(var, walk.steers(stmt))]
            case lir.Grid(dims=dims) | lir.BlockRegion(dims=dims):
                pairs = [(var, (count,)) for _, var, count in dims]
            case _:
                pass
        for var, bounds in pairs:
            if _is_i64(var):
                self.both.add(var.name)
                self._bounds.append((var, bounds))

    def _fits(self, value: lir.Value, depth: int = 0) -> bool:
        element = value.type.element
        if element != lir.U32:
            return not element.is_float
        op = self._ops.get(value.name)
        if depth > 8:
            return False
        deeper = depth + 1
        match op:
            case lir.Load() | lir.Gather():
                return True  # by the module's assumption about loads
            case lir.Const(value=number):
                return number < _LIMIT
            case lir.Convert(a=a):
                return a.type.element not in (lir.I32, lir.I64) and self._fits(
                    a, deeper
                )
            case lir.Splat(a=a) | lir.Extract(a=a):
                return self._fits(a, deeper)
            case lir.Binary(op="and" | "min", a=a, b=b):
                return any(self._masks(v, deeper) for v in (a, b))
            case lir.Binary(op="shr", b=b):
                return 1 <= self._constant(b) < 32
            case lir.Select(cond=cond, a=a, b=b):
                fits = self._fits(a, deeper) or self._below(a, cond)
                return fits and self._fits(b, deeper)
            case _:
                return False

    def _masks(self, value: lir.Value, depth: int) -> bool:
        """Whether a number is below 2**31 without the assumption about loads."""
        if isinstance(self._ops.get(value.name), lir.Load | lir.Gather):
            return False
        return self._fits(value, depth)

    def _below(self, value: lir.Value, cond: lir.Value) -> bool:
        """Whether ``cond`` implies that a number is below a constant < 2**31."""
        match self._ops.get(cond.name):
            case lir.Compare(op="lt" | "le", a=a, b=b):
                return a == value and 0 <= self._constant(b) < _LIMIT
            case _:
                return False

    def _constant(self, value: lir.Value) -> int:
        op = self._ops.get(value.name)
        if isinstance(op, lir.Splat):
            return self._constant(op.a)
        return int(op.value) if isinstance(op, lir.Const) else -1

    def _read(self, value: lir.Value, op: lir.Op) -> None:
        match op:
            case lir.Binary(op="shl" | "shr", a=a, b=b):
                most = 31 if op.op == "shr" else 30
                if not 0 <= self._constant(b) <= most:
                    self._pin(value, a, b)
            case lir.Unary(op="popcount" | "zeros", a=a):
                self._pin(value, a)
            case lir.Gather(other=other):
                self._pin(*(() if other is None else (other,)))
            case _:
                if not _is_tied(op) and not self.takes_any(op, value):
                    self._pin(*walk.operands(op))

    def _pin(self, *values: lir.Value) -> None:
        for value in values:
            if _is_i64(value) and value.name not in self.both:
                self.wide.add(value.name)

    def _spread(self) -> None:
        before = -1
        while before < len(self.wide):
            before = len(self.wide)
            for group in self._groups:
                if any(v.name in self.wide for v in group):
                    self._pin(*group)
            for var, bounds in self._bounds:
                if any(v.name in self.wide for v in bounds):
                    self.both.discard(var.name)
                    self.wide.add(var.name)
