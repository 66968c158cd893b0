"""Random arithmetic on numbers that may be 32 bits wide, among others that may not."""

from __future__ import annotations

from hypothesis import strategies as st

from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F32, F64, I32, I64, U8, U32, Buffer, Value
from tests.lir_loops import for_

N = Value("n", I64)
X, OUT = Buffer("x", F32), Buffer("out", F32)
WIDE, COUNTS = Buffer("wide", I64), Buffer("counts", U32)
DOUBLES, LINKS, BYTES = Buffer("doubles", F64), Buffer("links", I32), Buffer("b", U8)


class IndexWriter:
    """Writes arithmetic on small numbers, and on large ones from memory."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.b = draw, Builder()
        self.scope = [N]  # below 1024 in size
        self.large: list[Value] = []
        self.stored = 0

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def any(self) -> Value:
        if self.number(0, 3) == 0:
            return self.b.const(self.number(-3, 40))
        return self.draw(st.sampled_from(self.scope))

    def index(self) -> Value:
        values = [*self.scope, *self.large]
        raw = self.draw(st.sampled_from(values))
        return self.b.binary("and", raw, self.b.const(63))

    def small(self, value: Value) -> Value:
        return self.b.binary("rem", value, self.b.const(1000))

    def step(self, depth: int = 0) -> None:
        b = self.b
        match self.number(0, 9 if depth < 2 else 7):
            case 0:
                op = self.draw(st.sampled_from(["add", "sub", "mul", "min", "max"]))
                self.scope.append(self.small(b.binary(op, self.any(), self.any())))
            case 1:
                divisor = b.const(self.number(1, 9))
                op = self.draw(st.sampled_from(["div", "rem"]))
                self.scope.append(b.binary(op, self.any(), divisor))
            case 2:
                cond = b.compare("lt", self.any(), self.any())
                self.scope.append(b.select(cond, self.any(), self.any()))
            case 3:
                table = self.draw(st.sampled_from([COUNTS, LINKS, BYTES]))
                self.scope.append(b.convert(b.load(table, self.index()), I64))
            case 4:
                self.large.append(b.load(WIDE, self.index()))
            case 5:
                if self.large:
                    other = self.draw(st.sampled_from([*self.scope, *self.large]))
                    self.large.append(b.binary("mul", self.large[-1], other))
                    self.scope.append(self.small(self.large[-1]))
            case 6:
                self.store()
            case 7:
                back = b.convert(b.convert(self.any(), I32), I64)
                self.scope.append(back)
            case 8:
                self.loop(depth)
            case _:
                self.branch(depth)

    def store(self) -> None:
        b, self.stored = self.b, self.stored + 1
        value = self.draw(st.sampled_from([*self.scope, *self.large]))
        match self.number(0, 2):
            case 0:
                b.store(OUT, self.index(), b.const(float(self.stored), F32))
            case 1:
                b.store(WIDE, self.index(), value)
            case _:
                b.store(DOUBLES, self.index(), b.convert(value, F64))

    def inner(self, depth: int, *binds: Value) -> Value:
        scope, large = list(self.scope), list(self.large)
        self.scope += binds
        for _ in range(self.number(1, 3)):
            self.step(depth + 1)
        last, self.scope, self.large = self.scope[-1], scope, large
        return last

    def loop(self, depth: int) -> None:
        b = self.b
        stop = b.binary("and", self.any(), b.const(3))
        init = self.any()
        results = for_(
            b,
            b.const(0),
            stop,
            b.const(1),
            lambda i, c: [self.inner(depth, i, *c)],
            [init],
        )
        self.scope.extend(results)

    def branch(self, depth: int) -> None:
        b = self.b
        selector = b.binary("and", self.any(), b.const(1))
        cases = [lambda: [self.inner(depth)]] * 2
        results = b.switch(selector, cases, [I64])
        self.scope.extend(results)


@st.composite
def index_programs(draw: st.DrawFn) -> Builder:
    """Draw what a function does with ``n`` and the buffers above."""
    writer = IndexWriter(draw)
    for _ in range(writer.number(1, 12)):
        writer.step()
    for value in writer.scope:
        at = writer.b.const(writer.number(0, 63))
        writer.b.store(LINKS, at, writer.b.convert(value, I32))
    return writer.b
