"""Builds LIR: every method appends one statement and returns its value.

A scalar operand of a vector operation is splat to the vector's lanes, so that the same
code lowers a walk for one row and for a vector of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import BOOL, Buffer, Scalar, Stmt, Type, Value, Vec
from skforge.compiler.ir.lir.types import BUILDER
from skforge.compiler.ir.lir.walk import bound_in, statements


def with_lanes(element: Scalar, like: Type) -> Type:
    match like:
        case Vec(lanes=lanes) | lir.Mask(lanes=lanes):
            return lir.Mask(lanes) if element == BOOL else Vec(element, lanes)
        case _:
            return element


def parts(first: int, end: int, lanes: int) -> Iterator[tuple[int, int]]:
    while first < end:
        while lanes > end - first:
            lanes //= 2
        yield first, lanes
        first += lanes


class Builder:
    """Appends statements, and in a ``with`` expressions, to the innermost open body."""

    def __init__(self) -> None:
        self._bodies: list[list[Stmt]] = [[]]
        self._count = self._named = 0
        self._constants: list[dict[tuple[Type, str], Value]] = [{}]

    def __enter__(self) -> Builder:
        self._outer = BUILDER.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        BUILDER.reset(self._outer)

    # ------------------------------------------------------------ plumbing

    def name(self, hint: str) -> str:
        self._count += 1
        return f"{hint}.{self._count}"

    def emit(self, stmt: Stmt) -> None:
        self._bodies[-1].append(stmt)

    def let(self, op: lir.Op, type_: Type, hint: str = "v") -> Value:
        value = Value(self.name(hint), type_)
        self.emit(lir.Let(value, op))
        return value

    @contextmanager
    def _open(self) -> Iterator[list[Stmt]]:
        stmts: list[Stmt] = []
        self._bodies.append(stmts)
        try:
            yield stmts
        finally:
            self._bodies.pop()

    @contextmanager
    def body(self) -> Iterator[list[Stmt]]:
        self._constants.append({})
        try:
            with self._open() as stmts:
                yield stmts
        finally:
            self._constants.pop()

    def rewritten(self, body: lir.Body, emit: Callable[[Stmt], None]) -> lir.Body:
        with self.body() as stmts:
            for stmt in body:
                emit(stmt)
        return tuple(stmts)

    def finish(self) -> lir.Body:
        assert len(self._bodies) == 1
        return tuple(self._bodies[0])

    def named(
        self, name: str, args: Sequence[Value], emit: Callable[[], Sequence[Value]]
    ) -> tuple[Value, ...]:
        """Append what ``emit`` emits, after its constants, as one named operation."""
        with self._open() as stmts:
            values = tuple(emit())
        body: list[Stmt] = []
        for stmt in stmts:
            constant = isinstance(stmt, lir.Let) and isinstance(stmt.op, lir.Const)
            (self._bodies[-1] if constant else body).append(stmt)
        hint = name.removeprefix("load_").removeprefix("get_").removeprefix("move_to_")
        numbers = range(self._named + 1, self._named + len(values) + 1)
        self._named += len(values)
        results = tuple(  # all other names have a dot
            Value(f"{hint}{number}", value.type)
            for number, value in zip(numbers, values, strict=True)
        )
        self.emit(lir.Named(name, tuple(args), tuple(body), values, results))
        return results

    # ------------------------------------------------------------ operations

    def const(self, value: int | float | bool, type_: Type = lir.I64) -> Value:
        key = (type_, repr(value))
        for scope in reversed(self._constants):
            if key in scope:
                return scope[key]
        constant = self.let(lir.Const(value), type_, "c")
        self._constants[-1][key] = constant
        return constant

    def same_lanes(self, a: Value, b: Value) -> tuple[Value, Value]:
        la, lb = a.type.lanes, b.type.lanes
        if la and not lb:
            return a, self.splat(b, la)
        return (self.splat(a, lb), b) if lb and not la else (a, b)

    def splat(self, a: Value, lanes: int) -> Value:
        if a.type.lanes or lanes == 0:
            return a
        assert isinstance(a.type, Scalar)
        type_: Type = lir.Mask(lanes) if a.type == BOOL else Vec(a.type, lanes)
        return self.let(lir.Splat(a), type_, "splat")

    def iota(self, element: Scalar, lanes: int) -> Value:
        return self.let(lir.Iota(), Vec(element, lanes), "iota")

    def threads(self) -> Value:
        return self.let(lir.Threads(), lir.I64, "threads")

    def binary(self, op: lir.BinaryOp, a: Value | float, b: Value | float) -> Value:
        a, b = self._operands(a, b)
        return self.let(lir.Binary(op, a, b), a.type, op)

    def _operands(self, a: Value | float, b: Value | float) -> tuple[Value, Value]:
        """Return both with the same lanes; one of them may be a number."""
        if not isinstance(a, Value):
            assert isinstance(b, Value)
            a = self.const(a, b.type)
        elif not isinstance(b, Value):
            b = self.const(b, a.type)
        return self.same_lanes(a, b)

    def add(self, a: Value, b: Value | int) -> Value:
        """Return a + b; adding the int 0 emits nothing."""
        return a if isinstance(b, int) and b == 0 else self.binary("add", a, b)

    def mul(self, a: Value, b: Value | int) -> Value:
        """Return a * b; multiplying by the int 1 emits nothing."""
        return a if isinstance(b, int) and b == 1 else self.binary("mul", a, b)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        return self.let(lir.MultiplyAdd(a, b, c), a.type, "fma")

    def compare(
        self, op: lir.CompareOp, a: Value, b: Value | float, unordered: bool = False
    ) -> Value:
        a, b = self._operands(a, b)
        type_ = with_lanes(BOOL, a.type)
        return self.let(lir.Compare(op, a, b, unordered), type_, "cmp")

    def count_zeros(self, a: Value) -> Value:
        """Return the index of an integer's lowest set bit."""
        return self.let(lir.Unary("zeros", a), a.type, "zeros")

    def is_nan(self, a: Value) -> Value:
        return self.compare("ne", a, a, unordered=True)

    def invert(self, a: Value) -> Value:
        return self.let(lir.Unary("not", a), a.type, "not")

    def negate(self, a: Value) -> Value:
        return self._on_sign("xor", a)

    def magnitude(self, a: Value) -> Value:
        return self._on_sign("and", a)

    def _on_sign(self, op: lir.BinaryOp, a: Value) -> Value:
        word = lir.I32 if a.type.element == lir.F32 else lir.I64
        sign = -1 << (8 * word.bytes - 1)
        mask = sign if op == "xor" else ~sign
        bits = self.binary(op, self.bitcast(a, word), mask)
        assert isinstance(a.type.element, Scalar)
        return self.bitcast(bits, a.type.element)

    def select(self, cond: Value, a: Value | float, b: Value | float) -> Value:
        """Return a where ``cond``, else b; one of the two may be a number."""
        a, b = self._operands(a, b)
        if isinstance(cond.type, lir.Plane):
            return self.let(lir.PlaneMux(cond, a, b), a.type, "plane")
        a, b = (self.splat(one, cond.type.lanes) for one in (a, b))
        return self.let(lir.Select(cond, a, b), a.type, "sel")

    def convert(self, a: Value, element: Scalar) -> Value:
        type_ = with_lanes(element, a.type)
        return a if type_ == a.type else self.let(lir.Convert(a), type_, "conv")

    def bitcast(self, a: Value, element: Scalar) -> Value:
        return self.reinterpret(a, with_lanes(element, a.type))

    def extract(self, a: Value, lane: int) -> Value:
        return self.let(lir.Extract(a, lane), a.type.element, "lane")

    def pack(self, parts: Sequence[Value]) -> Value:
        element = parts[0].type
        assert isinstance(element, Scalar)
        return self.let(lir.Pack(tuple(parts)), Vec(element, len(parts)), "pack")

    def permute(
        self, tables: Sequence[Value], index: Value, within: bool = False
    ) -> Value:
        assert isinstance(tables[0].type, Vec)
        type_ = Vec(tables[0].type.element, index.type.lanes)
        return self.let(lir.Permute(tuple(tables), index, within), type_, "perm")

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        assert isinstance(a.type, Vec)
        type_ = Vec(a.type.element, len(lanes))
        return self.let(lir.Shuffle(a, b, tuple(lanes)), type_, "shuf")

    def compress(self, a: Value, mask: Value) -> Value:
        return self.let(lir.Compress(a, mask), a.type, "packed")

    def popcount(self, a: Value) -> Value:
        return self.let(lir.Unary("popcount", a), a.type, "count")

    def numbers_of(self, planes: Sequence[Value], hint: str) -> Value:
        """Return each row's number, whose bits are the planes, the highest first."""
        assert isinstance(planes[0].type, lir.Plane)
        type_ = Vec(lir.U8, planes[0].type.rows)
        return self.let(lir.PlanesToIndex(tuple(planes)), type_, hint)

    def reinterpret(self, a: Value, type_: Type) -> Value:
        return a if a.type == type_ else self.let(lir.Bitcast(a), type_, "bits")

    def mask_bits(self, a: Value, type_: Scalar) -> Value:
        return self.let(lir.MaskBits(a), type_, "bits")

    def any_true(self, a: Value) -> Value:
        return a if a.type == BOOL else self.let(lir.AnyTrue(a), BOOL, "any")

    def load(
        self, buffer: Buffer, index: Value | int, type_: Type | None = None
    ) -> Value:
        """Load a scalar or vector; an index vector gathers."""
        (index,) = self._bounds(index)
        if type_ is None:
            type_ = buffer.element
        if isinstance(type_, lir.Plane):
            return self.let(lir.LoadPlane(buffer, index), type_, "line")
        if index.type.lanes:
            assert isinstance(type_, Scalar)
            result = with_lanes(type_, index.type)
            return self.let(lir.Gather(buffer, index), result, "gather")
        return self.let(lir.Load(buffer, index), type_, "load")

    # ------------------------------------------------------------ statements

    def store(self, buffer: Buffer, index: Value | int, value: Value | float) -> None:
        """Store a value, or a number as an element; an index vector scatters."""
        (index,) = self._bounds(index)
        if not isinstance(value, Value):
            value = self.const(value, buffer.element)
        if isinstance(value.type, lir.Plane):
            self.emit(lir.StorePlane(buffer, index, value))
        elif index.type.lanes:
            self.emit(lir.Scatter(buffer, index, value))
        else:
            self.emit(lir.Store(buffer, index, value))

    def prefetch(
        self, buffer: Buffer, index: Value | int, level: Literal[1, 2] = 1
    ) -> None:
        (place,) = self._bounds(index)
        self.emit(lir.Prefetch(buffer, place, level))

    def touch(self, buffer: Buffer, index: Value | int) -> None:
        self.emit(lir.Touch(buffer, *self._bounds(index)))

    def if_(
        self,
        cond: Value,
        then: Callable[[], None],
        orelse: Callable[[], None] | None = None,
    ) -> None:
        with self.body() as yes:
            then()
        with self.body() as no:
            if orelse is not None:
                orelse()
        self.emit(lir.If(cond, tuple(yes), tuple(no)))

    def symbol(self, name: str) -> Value:
        return self.let(lir.Symbol(name), lir.I64, name)

    def address(self, buffer: Buffer, index: Value | int = 0) -> Value:
        (place,) = self._bounds(index)
        return self.let(lir.Address(buffer, place), lir.I64, buffer.name)

    def view(
        self, hint: str, element: Scalar, source: Value | Buffer, index: Value | int = 0
    ) -> Buffer:
        """Return the memory at an address, or from a buffer's element on, as a buffer.

        In loops over memory of one's own, take a buffer: see ``Window``.
        """
        buffer = Buffer(self.name(hint), element)
        if isinstance(source, Buffer):
            (place,) = self._bounds(index)
            self.emit(lir.Window(buffer, source, place))
        else:
            self.emit(lir.View(buffer, source))
        return buffer

    def local(self, hint: str, element: Scalar, size: int = 1) -> Buffer:
        return self.alloc(hint, element, size, alignment=0)

    def call(
        self, function: str | Value, *args: Value, gives: Scalar = lir.I64
    ) -> Value:
        symbol = "" if isinstance(function, Value) else function
        args = (function, *args) if isinstance(function, Value) else args
        result = Value(self.name(symbol.removeprefix("skf_") or "given"), gives)
        self.emit(lir.Call(symbol, args, (result,)))
        return result

    def run(self, function: str | Value, *args: Value) -> None:
        if isinstance(function, Value):
            self.emit(lir.Call("", (function, *args)))
        else:
            self.emit(lir.Call(function, args))

    def give(self, value: Value | int | None = None) -> None:
        self.emit(lir.Return(() if value is None else tuple(self._bounds(value))))

    def atomic(
        self,
        op: lir.AtomicOp,
        order: lir.MemoryOrder,
        buffer: Buffer,
        *args: Value,
        at: Value | int = 0,
    ) -> Value:
        (index,) = self._bounds(at)
        type_ = BOOL if op == "replace" else buffer.element
        result = Value(self.name(op), type_)
        results = () if op == "store" else (result,)
        self.emit(lir.Atomic(op, buffer, index, args, order, results))
        return result

    def either(
        self, cond: Value, then: Callable[[], Value], orelse: Callable[[], Value]
    ) -> Value:
        with self.body() as yes:
            a = then()
        with self.body() as no:
            b = orelse()
        result = Value(self.name("out"), a.type)
        self.emit(lir.If(cond, tuple(yes), tuple(no), (a,), (b,), (result,)))
        return result

    @contextmanager
    def when(self, cond: Value) -> Iterator[None]:
        with self.body() as yes:
            yield
        self.emit(lir.If(cond, tuple(yes)))

    def _bounds(self, *bounds: Value | int) -> Sequence[Value]:
        if len(bounds) == 1 and isinstance(bounds[0], Value):  # most are
            return cast(tuple[Value], bounds)
        type_ = next((v.type for v in bounds if isinstance(v, Value)), lir.I64)
        return [v if isinstance(v, Value) else self.const(v, type_) for v in bounds]

    @contextmanager
    def loop(
        self, *bounds: Value | int, carry: list[Value] | None = None, hint: str = "i"
    ) -> Iterator[Value]:
        """Open the body of a loop with the bounds of ``range``; yield its variable.

        ``carry`` lists the values that turns hand on: before the loop the first ones,
        in the body those of a turn, which the body replaces by the next, and after the
        loop the last ones.
        """
        ends = (0, *bounds) if len(bounds) == 1 else bounds
        lo, hi, step = self._bounds(*(*ends, 1)[:3])
        var, carried = Value(self.name(hint), lo.type), [] if carry is None else carry
        inits, params = self._renamed(carried, "carry")
        with self.body() as stmts:
            yield var
        yields, results = self._renamed(carried, "out")
        self.emit(
            lir.For(var, lo, hi, step, tuple(stmts), inits, params, yields, results)
        )

    @contextmanager
    def turns(self, end: Value | int, step: int, hint: str) -> Iterator[Value]:
        """Open the body of a loop over ``range(0, end, step)``, or of its only turn."""
        if end == step:
            yield self.const(0)
            return
        with self.loop(0, end, step, hint=hint) as i:
            yield i

    def _renamed(
        self, carried: list[Value], hint: str
    ) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        values = tuple(carried)
        carried[:] = [Value(self.name(hint), value.type) for value in values]
        return values, tuple(carried)

    @contextmanager
    def repeat(self, cond: Callable[[], Value], carry: list[Value]) -> Iterator[None]:
        """Open the body of a loop that runs while ``cond``; it carries as ``loop``."""
        inits, params = self._renamed(carry, "carry")
        with self.body() as before:
            test = cond()
        with self.body() as stmts:
            yield
        yields, results = self._renamed(carry, "out")
        head = inits, params, tuple(before), test
        self.emit(lir.While(*head, tuple(stmts), yields, results))

    @contextmanager
    def parallel(self, count: Value) -> Iterator[Value]:
        var = Value(self.name("p"), count.type)
        with self.body() as stmts:
            yield var
        self.emit(lir.ParallelFor(var, count, tuple(stmts)))

    def switch(
        self,
        selector: Value,
        cases: Sequence[Callable[[], Sequence[Value] | None]],
        types: Sequence[Type] = (),
    ) -> tuple[Value, ...]:
        """Append a switch; each case returns one value for each of ``types``."""
        bodies, yields = [], []
        for case in cases:
            with self.body() as stmts:
                yields.append(tuple(case() or ()))
            bodies.append(tuple(stmts))
        results = tuple(Value(self.name("out"), t) for t in types)
        self.emit(lir.Switch(selector, tuple(bodies), tuple(yields), results))
        return results

    def choose(
        self, selector: Callable[[], Value], cases: Sequence[Callable[[], None]]
    ) -> None:
        """Append a switch, or its only case."""
        if len(cases) == 1:
            cases[0]()
        elif cases:
            self.switch(selector(), cases)

    def alloc(
        self,
        hint: str,
        element: Scalar,
        size: Value | int,
        space: lir.Space = "global",
        alignment: int | None = None,
    ) -> Buffer:
        """Return scratch; in global memory, it begins with a cache line."""
        (count,) = self._bounds(size)
        if alignment is None:
            alignment = 64 if space == "global" else 0
        buffer = Buffer(self.name(hint), element, space, alignment)
        self.emit(lir.Alloc(buffer, count))
        return buffer


class _OpenBuilder:
    def __getattr__(self, name: str) -> Any:
        if (builder := BUILDER.get(None)) is None:
            raise AttributeError(f"no builder is open, so there is no {name!r}")
        return getattr(builder, name)


#: The builder whose ``with`` is open, for code that is called there.
b = cast(Builder, _OpenBuilder())


class FreshBuilder(Builder):
    """Builds LIR whose names do not clash with an existing function's."""

    def __init__(self, function: lir.Function) -> None:
        super().__init__()
        self._taken = {param.name for param in function.params}
        for stmt in statements(function.body):
            self._taken.update(v.name for v in bound_in(stmt))
            if isinstance(stmt, lir.Alloc):
                self._taken.add(stmt.buffer.name)

    def name(self, hint: str) -> str:
        fresh = super().name(hint)
        while fresh in self._taken:
            fresh = super().name(hint)
        return fresh
