"""Random LIR programs that never do what LIR leaves undefined.

``lir_programs()`` gives programs with fresh arguments, so that the interpreter, each
pass and each backend can be compared bit by bit (NaNs as NaNs). Indices are masked to
the buffers' lengths, shift counts to the width, divisors are positive, floats are
clamped before they become integers, and NaNs before their bits are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder, with_lanes
from skforge.compiler.ir.lir.nodes import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    Buffer,
    Function,
    Mask,
    Scalar,
    Type,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.printer import print_lir
from tests.lir_loops import for_, parallel_for, while_
from tests.oracles.lir_memory import DTYPES

INTEGERS = (U8, U16, U32, I32, I64)
FLOATS = (F32, F64)
NUMBERS = (*INTEGERS, *FLOATS)
LENGTH = 64  # of every buffer; a power of two, so that indices can be masked
BITS = {U8: 8, U16: 16, U32: 32, I32: 32, I64: 64}
ODD_FLOATS = (0.0, -0.0, 1.0, -1.5, 3.25e7, 1e-40, np.inf, -np.inf, np.nan)


@dataclass(frozen=True)
class Program:
    """A function and the seed of its arguments."""

    function: Function
    seed: int

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the program as text when an example fails."""
        printer.text(f"seed {self.seed}, {print_lir(self.function)}")

    def arguments(self) -> dict[str, Any]:
        """Return fresh arguments, the same at each call."""
        random = np.random.default_rng(self.seed)
        args: dict[str, Any] = {}
        for param in self.function.params:
            element = param.type if isinstance(param, Value) else param.element
            assert isinstance(element, Scalar)
            values = _numbers(random, element)
            args[param.name] = values[0].item() if isinstance(param, Value) else values
        return args


def _numbers(random: np.random.Generator, element: Scalar) -> np.ndarray[Any, Any]:
    dtype = DTYPES[element.name]
    if not element.is_float:
        wide = random.integers(-(1 << 63), (1 << 63) - 1, LENGTH, np.int64)
        small = random.integers(-3, 4, LENGTH)
        return np.where(random.random(LENGTH) < 0.5, wide, small).astype(dtype)
    values = random.normal(scale=100, size=LENGTH)
    odd = random.choice(ODD_FLOATS, LENGTH)
    return np.where(random.random(LENGTH) < 0.3, odd, values).astype(dtype)


@st.composite
def lir_programs(
    draw: st.DrawFn, vectors: bool = True, parallel: bool = True, size: int = 12
) -> Program:
    """Draw a program of about ``size`` statements, nested ones not counted."""
    return _Writer(draw, vectors, parallel).program(size)


class _Writer:
    def __init__(self, draw: st.DrawFn, vectors: bool, parallel: bool) -> None:
        self.draw = draw
        self.vectors, self.parallel = vectors, parallel
        self.b = Builder()
        self.inputs = {s: Buffer(f"in_{s.name}", s) for s in NUMBERS}
        self.outputs = {s: Buffer(f"out_{s.name}", s) for s in NUMBERS}
        self.scope: list[Value] = [Value(f"arg_{s.name}", s) for s in NUMBERS]
        self.slots = 0
        self.depth = 0
        self.in_parallel = False

    def program(self, size: int) -> Program:
        params = (*self.scope, *self.inputs.values(), *self.outputs.values())
        self.statements(self.number(1, size))
        for value in self.scope:
            self.observe(value)
        return Program(Function("f", params, self.b.finish()), self.number(0, 999))

    # ------------------------------------------------------------ choices

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def pick(self, items: Any) -> Any:
        return self.draw(st.sampled_from(items))

    def type(self, elements: tuple[Scalar, ...] = NUMBERS) -> Type:
        element = self.pick(elements)
        if self.vectors and self.number(0, 3) == 0:
            return Vec(element, self.pick((4, 8)))
        return element

    def value(self, type_: Type) -> Value:
        """Return a value in scope, or a new constant or load."""
        found = [v for v in self.scope if v.type == type_]
        if found and self.number(0, 3):
            return self.pick(found)
        if type_ == BOOL or isinstance(type_, Mask):
            element = self.pick(NUMBERS)
            like = with_lanes(element, type_)
            op = self.pick(("lt", "le", "gt", "ge", "eq", "ne"))
            unordered = self.draw(st.booleans())
            return self.b.compare(op, self.value(like), self.value(like), unordered)
        if self.number(0, 1):
            return self.load(type_)
        return self.b.const(self.constant(type_), type_)

    def constant(self, type_: Type) -> Any:
        element = type_.element if isinstance(type_, Vec) else type_
        assert isinstance(element, Scalar)
        if element.is_float:
            value = self.pick((0.0, -0.0, 1.0, -2.5, 0.1, np.inf))
            return float(DTYPES[element.name].type(value))
        if element in (I32, I64):
            return self.pick((-1, 0, 1, 2, 7, -(1 << (BITS[element] - 1))))
        return self.pick((0, 1, 2, 7, (1 << BITS[element]) - 1))

    def index(self, lanes: int = 0, room: int = 0) -> Value:
        """Return an index that leaves ``room`` elements after it."""
        element = self.pick((I32, I64))
        raw = self.value(Vec(element, lanes) if lanes else element)
        limit = LENGTH - 1 if room == 0 else LENGTH // 2 - 1
        return self.b.binary("and", raw, limit)

    def load(self, type_: Type) -> Value:
        if isinstance(type_, Vec) and self.number(0, 1):
            return self.gather(type_)
        element = type_.element if isinstance(type_, Vec) else type_
        assert isinstance(element, Scalar)
        # Integers may be read from the bytes of other buffers too.
        sources = [s for s in INTEGERS if s.bytes >= element.bytes]
        source = element if element.is_float else self.pick(sources)
        index = self.index(room=type_.lanes)
        return self.b.load(self.inputs[source], index, type_)

    def gather(self, type_: Vec) -> Value:
        index = self.index(type_.lanes)
        buffer = self.inputs[type_.element]
        if self.number(0, 1):
            return self.b.let(lir.Gather(buffer, index), type_, "gather")
        mask = self.value(Mask(type_.lanes))
        other = self.b.const(self.constant(type_), type_)
        # Lanes that are masked off may point anywhere.
        wild = self.value(index.type)
        where = self.b.select(mask, index, wild)
        return self.b.let(lir.Gather(buffer, where, mask, other), type_, "gather")

    # ------------------------------------------------------------ statements

    def statements(self, count: int) -> None:
        kinds: list[Callable[[], None]] = [self.arithmetic] * 6
        kinds += [self.conversion] * 3 + [self.choice] * 2 + [self.write] * 2
        if self.vectors:
            kinds += [self.lanes] * 2
        if self.depth < 3:
            kinds += [self.loop, self.loop, self.branch, self.switch, self.countdown]
            if self.parallel and not self.in_parallel:
                kinds.append(self.parallel_loop)
        for _ in range(count):
            self.pick(kinds)()

    def nested(self, *binds: Value) -> list[Value]:
        """Write some statements; return what they computed."""
        outer = list(self.scope)
        self.scope.extend(binds)
        self.depth += 1
        self.statements(self.number(1, 3))
        self.depth -= 1
        inner, self.scope = self.scope, outer
        return inner

    def last(self, inner: list[Value], types: list[Type]) -> list[Value]:
        """Return a value of each type, the newest in ``inner`` where there is one."""
        outer, self.scope = self.scope, inner
        result = []
        for type_ in types:
            found = [v for v in reversed(inner) if v.type == type_]
            result.append(found[0] if found else self.value(type_))
        self.scope = outer
        return result

    def arithmetic(self) -> None:
        type_ = self.type()
        element = type_.element if isinstance(type_, Vec) else type_
        a, b = self.value(type_), self.value(type_)
        if element.is_float:
            ops = ["add", "sub", "mul", "div"]
        else:
            ops = ["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor"]
            ops += ["shl", "shr", "not", "zeros"]
        op = self.pick(ops)
        if op in ("not", "zeros"):
            self.scope.append(self.b.let(lir.Unary(op, a), type_, op))
            return
        if op in ("div", "rem") and not element.is_float:
            b = self.b.binary("or", self.b.binary("and", b, 127), 1)
        if op in ("shl", "shr"):
            b = self.b.binary("and", b, BITS[element] - 1)
        self.scope.append(self.b.binary(op, a, b))

    def conversion(self) -> None:
        a, target = self.value(self.type()), self.pick(NUMBERS)
        element = a.type.element if isinstance(a.type, Vec) else a.type
        if self.number(0, 3) == 0:
            a = self.value(with_lanes(BOOL, a.type))
        elif element.is_float and not target.is_float:
            a = self.clamped(a, 100.0)
        elif self.number(0, 1):
            same = [s for s in NUMBERS if s.bytes == element.bytes]
            if element.is_float:
                a = self.clamped(a, np.inf)
            target = self.pick(same)
            self.scope.append(self.b.bitcast(a, target))
            return
        self.scope.append(self.b.convert(a, target))

    def clamped(self, a: Value, limit: float) -> Value:
        """Return ``a`` in [0, limit], 0 where it is not (NaN too)."""
        zero, most = self.b.const(0.0, a.type), self.b.const(limit, a.type)
        low = self.b.compare("gt", a, zero)
        a = self.b.select(low, a, zero)
        return self.b.select(self.b.compare("le", a, most), a, zero)

    def choice(self) -> None:
        type_ = self.type()
        cond: Type = BOOL
        if type_.lanes and self.number(0, 1):
            cond = Mask(type_.lanes)
        test = self.value(cond)
        if self.number(0, 2) == 0:
            test = self.b.invert(test)
        elif self.number(0, 2) == 0:
            test = self.b.binary(
                self.pick(("and", "or", "xor")), test, self.value(cond)
            )
        self.scope.append(test)
        self.scope.append(self.b.select(test, self.value(type_), self.value(type_)))

    def lanes(self) -> None:
        lanes = self.pick((4, 8))
        element = self.pick(NUMBERS)
        kind = self.pick(("iota", "splat", "extract", "bits", "any", "scatter"))
        match kind:
            case "iota":
                self.scope.append(self.b.iota(element, lanes))
            case "splat":
                self.scope.append(self.b.splat(self.value(element), lanes))
            case "extract":
                a = self.value(self.pick((Vec(element, lanes), Mask(lanes))))
                self.scope.append(self.b.extract(a, self.number(0, lanes - 1)))
            case "bits":
                mask = self.value(Mask(lanes))
                self.scope.append(self.b.mask_bits(mask, self.pick(INTEGERS)))
            case "any":
                self.scope.append(self.b.any_true(self.value(Mask(lanes))))
            case _:
                self.scatter(element, lanes)

    def scatter(self, element: Scalar, lanes: int) -> None:
        if self.in_parallel:
            return
        step = self.b.mul(self.b.iota(I32, lanes), self.pick((1, 3, 5)))
        index = self.b.add(step, self.b.binary("and", self.value(I32), 15))
        value = self.value(Vec(element, lanes))
        self.b.emit(lir.Scatter(self.outputs[element], index, value))

    def write(self) -> None:
        if self.in_parallel:
            return
        value = self.value(self.type())
        element = value.type.element if isinstance(value.type, Vec) else value.type
        index = self.index(room=value.type.lanes)
        self.b.store(self.outputs[element], index, value)
        if self.number(0, 2) == 0:
            self.b.emit(lir.Prefetch(self.inputs[element], self.value(I64)))
        elif not value.type.lanes and element in (*FLOATS, I32, I64):
            self.b.emit(lir.AtomicAdd(self.outputs[element], index, value))

    def observe(self, value: Value) -> None:
        """Store a value where nothing overwrites it."""
        if value.type == BOOL or isinstance(value.type, Mask):
            value = self.b.convert(value, I32)
        element = value.type.element if isinstance(value.type, Vec) else value.type
        step = max(1, value.type.lanes)
        where = self.slots % (LENGTH - 8)
        self.slots += step
        self.b.store(self.outputs[element], self.b.const(where), value)

    # ------------------------------------------------------------ control

    def carried(self) -> tuple[list[Type], list[Value]]:
        types = [self.type() for _ in range(self.number(0, 2))]
        return types, [self.value(t) for t in types]

    def loop(self) -> None:
        types, inits = self.carried()
        low, high = self.number(-2, 3), self.number(-2, 6)
        index = self.pick((I32, I64))
        bounds = [self.b.const(v, index) for v in (low, high, self.number(1, 3))]
        if self.number(0, 1):
            few = self.b.binary("and", self.value(index), 3)
            bounds[1] = self.b.add(few, bounds[0])

        def body(var: Value, params: tuple[Value, ...]) -> list[Value]:
            return self.last(self.nested(var, *params), types)

        self.scope.extend(for_(self.b, *bounds, body, inits))

    def countdown(self) -> None:
        types, inits = self.carried()
        start = self.b.binary("and", self.value(I32), 3)

        def body(params: tuple[Value, ...]) -> list[Value]:
            inner = self.nested(*params)
            return [self.b.binary("sub", params[0], 1), *self.last(inner, types)]

        def cond(params: tuple[Value, ...]) -> Value:
            return self.b.compare("gt", params[0], 0)

        self.scope.extend(while_(self.b, [start, *inits], cond, body))

    def branch(self) -> None:
        types, _ = self.carried()
        cond = self.value(BOOL)
        sides = []
        for _ in range(2):
            with self.b.body() as stmts:
                yields = self.last(self.nested(), types)
            sides.append((tuple(stmts), tuple(yields)))
        results = tuple(Value(self.b.name("out"), t) for t in types)
        (then, a), (orelse, b) = sides
        self.b.emit(lir.If(cond, then, orelse, a, b, results))
        self.scope.extend(results)

    def switch(self) -> None:
        types, _ = self.carried()
        selector = self.value(self.pick(INTEGERS))
        if self.number(0, 1):
            selector = self.b.binary("and", selector, 3)

        def case() -> list[Value]:
            return self.last(self.nested(), types)

        cases = [case] * self.number(1, 3)
        self.scope.extend(self.b.switch(selector, cases, types))

    def parallel_loop(self) -> None:
        """Each iteration writes its own element, then adds to a shared integer."""
        element = self.pick(NUMBERS)
        count = self.b.const(self.number(0, 5))

        def body(var: Value) -> None:
            self.in_parallel = True
            inner = self.nested(var)
            (value,) = self.last(inner, [element])
            self.in_parallel = False
            self.b.store(self.outputs[element], self.b.add(var, LENGTH - 8), value)
            if element in INTEGERS:
                where = self.b.const(LENGTH - 1)
                self.b.emit(lir.AtomicAdd(self.outputs[element], where, value))

        parallel_for(self.b, count, body)
