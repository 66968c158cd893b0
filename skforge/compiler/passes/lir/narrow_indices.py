"""Index arithmetic in 32 bits: on a GPU, 64 bits cost twice the registers and time.

    f(@x: f32, %n: i64)                          f(@x: f32, %n: i32)
    %c: i64 = const 4                            %c: i32 = const 4
    %i: i64 = mul %n, %c                   =>    %i: i32 = mul %n, %c
    %w: f32 = load @x[%i]                        %w: f32 = load @x[%i]

The caller promises that buffers have fewer than 2**31 elements and counts, rounded up
to whole blocks, are below 2**31 too; batches of more rows come in parts. Every i64
parameter (``n_rows`` and ``row_stride``) is such a count and becomes an i32 one, which
the host passes as int32. A 32-bit unsigned number that is loaded and made an i64 is
taken for a number of something, so below 2**31; how it was computed says so of others.

An i64 stays one where more than an index may be in it: where it comes from or goes to
memory, a float or a bit cast; with constants, shifts or lanes that need the bits; and
all that is tied to it by arithmetic, choices and loops. Parameters, constants, loop
variables and converted numbers tie nothing: they are there in both widths. What nobody
reads is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import with_lanes
from skforge.compiler.ir.lir.nodes import I32, I64, Body, Buffer, Function, Stmt, Value
from skforge.compiler.ir.lir.walk import map_operands
from skforge.compiler.passes.lir.index_widths import TIED, IndexWidths, groups_of
from skforge.compiler.passes.lir.lir_rewrite import FreshBuilder, map_bodies
from skforge.compiler.passes.lir.simplify_dead import drop_dead


def run(function: Function) -> Function:
    """Return ``function`` with its index arithmetic, and its counts, in 32 bits."""
    return _Rewriter(function).function()


def _is_wide(value: Value) -> bool:
    return value.type.element == I64


class _Rewriter:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._widths = IndexWidths(function)
        self._b = FreshBuilder(function)
        self._twins: dict[str, Value] = {}  # the 64-bit form of what has both
        self._alias: dict[str, Value] = {}  # conversions that became nothing

    def function(self) -> Function:
        """Return the function in its new widths."""
        params: list[Value | Buffer] = []
        with self._b.body() as stmts:
            for param in self._function.params:
                if isinstance(param, Value) and _is_wide(param):
                    self._widen(param)
                    param = self._narrow(param)
                params.append(param)
            for stmt in self._function.body:
                self._stmt(stmt)
        return replace(
            self._function, params=tuple(params), body=drop_dead(tuple(stmts))
        )

    # ------------------------------------------------------------ forms of a value

    def _narrow(self, value: Value) -> Value:
        """Return the form that a value is bound with, 32 bits where that will do."""
        if not _is_wide(value) or value.name in self._widths.wide:
            return value
        return Value(value.name, with_lanes(I32, value.type))

    def _widen(self, value: Value, op: lir.Op | None = None) -> None:
        """Write the 64-bit form of a value that has both."""
        if not _is_wide(value) or value.name in self._widths.wide:
            return
        twin = Value(self._b.name(f"{value.name}.wide"), value.type)
        self._twins[value.name] = twin
        self._b.emit(lir.Let(twin, op or lir.Convert(self._narrow(value))))

    def _any(self, value: Value) -> Value:
        found = self._alias.get(value.name)
        return self._narrow(value) if found is None else found

    def _as(self, wide: bool) -> Callable[[Value], Value]:
        """Return what gives values in 64 bits, or else as narrow as they are."""

        def form(value: Value) -> Value:
            twin = self._twins.get(value.name) if wide else None
            return self._any(value) if twin is None else twin

        return form

    def _wide(self, values: Sequence[Value]) -> bool:
        return any(v.name in self._widths.wide for v in values)

    # ------------------------------------------------------------ statements

    def _body(self, body: Body, bound: Sequence[Value] = ()) -> Body:
        with self._b.body() as stmts:
            for value in bound:
                self._widen(value)
            for stmt in body:
                self._stmt(stmt)
        return tuple(stmts)

    def _stmt(self, stmt: Stmt) -> None:
        match stmt:
            case lir.Let(value=value, op=op):
                self._let(value, op)
                return
            case lir.Store() | lir.Scatter() | lir.AtomicAdd():
                new = map_operands(stmt, self._as(True))
                made: Stmt = replace(new, index=self._any(stmt.index))
            case lir.For(var=var):
                made = self._for(stmt)
            case lir.While() | lir.If() | lir.Switch():
                made = self._joined(map_bodies(stmt, self._body), stmt)
            case lir.ParallelFor(var=var, count=count, body=body):
                inside = self._body(body, (var,))
                count = self._as(self._wide((var,)))(count)
                made = lir.ParallelFor(self._narrow(var), count, inside)
            case lir.Grid(dims=dims) | lir.BlockRegion(dims=dims):
                inside = self._body(stmt.body, [var for _, var, _ in dims])
                new_dims = tuple(
                    (dim, self._narrow(var), self._as(self._wide((var,)))(count))
                    for dim, var, count in dims
                )
                made = type(stmt)(new_dims, inside)
            case lir.Alloc() | lir.Prefetch() | lir.StorePlane():
                made = map_operands(stmt, self._any)
            case lir.TransposeBlock() | lir.UnpermuteStore():
                made = map_operands(stmt, self._as(True))
        self._b.emit(made)

    def _for(self, stmt: lir.For) -> lir.For:
        body = self._body(stmt.body, (stmt.var,))
        bound = self._as(self._wide((stmt.var,)))
        new = replace(
            stmt,
            var=self._narrow(stmt.var),
            lo=bound(stmt.lo),
            hi=bound(stmt.hi),
            step=bound(stmt.step),
            body=body,
        )
        joined = self._joined(new, stmt)
        assert isinstance(joined, lir.For)
        return joined

    def _joined(self, new: Stmt, stmt: Stmt) -> Stmt:
        """Give what meets in control one width, in ``new`` as in ``stmt``."""

        def each(values: Sequence[Value]) -> tuple[Value, ...]:
            pairs = zip(values, results, strict=True)
            return tuple(self._as(self._wide((r,)))(v) for v, r in pairs)

        assert isinstance(new, lir.For | lir.While | lir.If | lir.Switch)
        assert isinstance(stmt, lir.For | lir.While | lir.If | lir.Switch)
        results = stmt.results
        bound = tuple(map(self._narrow, results))
        match new:
            case lir.For() | lir.While():
                assert isinstance(stmt, lir.For | lir.While)
                params = tuple(map(self._narrow, stmt.params))
                inits, yields = each(stmt.inits), each(stmt.yields)
                return replace(
                    new, inits=inits, params=params, yields=yields, results=bound
                )
            case lir.If():
                then, orelse = each(new.then_yields), each(new.else_yields)
                return replace(new, then_yields=then, else_yields=orelse, results=bound)
            case lir.Switch(selector=selector):
                return replace(
                    new,
                    selector=self._any(selector),
                    yields=tuple(map(each, new.yields)),
                    results=bound,
                )

    # ------------------------------------------------------------ operations

    def _let(self, value: Value, op: lir.Op) -> None:
        if isinstance(op, lir.Convert) and not op.a.type.element.is_float:
            bound = self._narrow(value)
            source = self._as(bound.type == op.a.type)(op.a)
            if source.type == bound.type:
                self._alias[value.name] = source
                if value.name in self._widths.both:
                    self._widen(value, lir.Convert(source))
                return
        if isinstance(op, TIED):
            tied = [v for group in groups_of(lir.Let(value, op)) for v in group]
            op = map_operands(op, self._as(self._wide(tied)))
        elif isinstance(op, lir.Gather):
            other = None if op.other is None else self._as(True)(op.other)
            op = replace(map_operands(op, self._any), other=other)
        elif self._widths.takes_any(op, value):
            op = map_operands(op, self._any)
        else:
            op = map_operands(op, self._as(True))
        self._b.emit(lir.Let(self._narrow(value), op))
        if value.name in self._widths.both:
            self._widen(value, op)
