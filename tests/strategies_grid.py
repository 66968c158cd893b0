"""Random launches that never do what LIR leaves undefined.

Threads compute what ``strategies_lir`` draws, and meet in shared memory, in private
accumulators, in warp operations under control that is the warp's, and in atomics on
integers. Each thread writes elements of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import I32, I64, Buffer, Function, Scalar, Value
from tests.grid_tools import Place, grid, region, warp_sum
from tests.lir_loops import for_, while_
from tests.strategies_lir import NUMBERS, Program, _Writer

RESULTS = 2048  # elements of each result
MOST_THREADS = 32


@dataclass(frozen=True)
class GridProgram(Program):
    """A function of launches and the seed of its arguments."""

    def arguments(self) -> dict[str, Any]:
        """Return fresh arguments, the same at each call."""
        args = super().arguments()
        for param in self.function.params:
            if param.name.startswith("result"):
                args[param.name] = np.zeros(RESULTS, args[param.name].dtype)
        return args


@st.composite
def grid_programs(draw: st.DrawFn) -> GridProgram:
    """Draw a program of one or two launches."""
    return _GridWriter(draw, vectors=False, parallel=False).launches()


class _GridWriter(_Writer):
    results: dict[Scalar, Buffer]
    linear: Value  # number of the thread in its block
    place: Value  # number of the thread in the launch
    threads: int
    written: int

    def launches(self) -> GridProgram:
        params = (*self.scope, *self.inputs.values(), *self.outputs.values())
        self.results = {s: Buffer(f"result_{s.name}", s) for s in NUMBERS}
        self.in_parallel = True  # nothing but `result` writes from here on
        self.written = 0
        for _ in range(self.number(1, 2)):
            self.launch()
        everything = (*params, *self.results.values())
        function = Function("f", everything, self.b.finish())
        return GridProgram(function, self.number(0, 999))

    # ------------------------------------------------------------ blocks

    def launch(self) -> None:
        b = self.b
        self.shape = self.pick([(8,), (4, 2), (2, 2, 2), (16,), (4, 8), (1,), (3, 2)])
        self.threads = int(np.prod(self.shape))
        self.dims = self.pick(["xyz", "yxz", "zyx"])
        blocks = self.pick([(2,), (1,), (0,), (2, 2), (3, 1, 1)])
        self.counter = self.pick([I64, I32])
        outer = list(self.scope)

        def body(place: Place) -> None:
            self.block = b.const(0)
            for at, size in zip(place, blocks, strict=True):
                self.block = b.add(b.mul(self.block, size), b.convert(at, I64))
            self.scope += place
            self.block_statements(self.number(1, 3))

        grid(b, blocks, body, index=self.pick([I64, I32]))
        self.scope = outer

    def block_statements(self, count: int, depth: int = 0) -> None:
        b = self.b
        element = self.pick(NUMBERS)
        shared = b.alloc("shared", element, b.const(self.threads), space="shared")
        size = self.number(1, 3)
        private = b.alloc("private", element, b.const(size), space="private")
        self.region(lambda: self.fill(shared, private, size))
        outer = list(self.scope)
        for _ in range(count):
            self.scope = list(outer)
            kind = self.number(0, 3 if depth < 2 else 0)
            if kind == 1:  # what a block computes is the same in all its threads
                self.statements(2)
            elif kind == 2:
                bounds = b.const(0), b.const(self.number(0, 2)), b.const(1)
                for_(b, *bounds, lambda v, _: self.block_statements(1, depth + 1))
            elif kind == 3:
                cond = b.compare("gt", self.block, self.number(0, 2))
                b.if_(cond, lambda: self.block_statements(1, depth + 1))
            self.region(lambda: self.meet(shared, private, size))
            if self.number(0, 1):
                self.region(lambda: self.fill(shared, private, 1))
        self.scope = outer

    def region(self, write: Any) -> None:
        """Write a region, and end it with the results of each thread."""
        outer = list(self.scope)

        def body(place: Place) -> None:
            b, self.linear = self.b, self.b.const(0)
            sizes = sorted(
                zip(self.dims, place, self.shape, strict=False), reverse=True
            )
            for _, at, size in sizes:
                self.linear = b.add(b.mul(self.linear, size), b.convert(at, I64))
            self.place = b.add(b.mul(self.block, self.threads), self.linear)
            self.scope += place
            write()
            for _ in range(2):
                self.result(self.pick(self.scope))

        region(self.b, self.shape, body, self.dims, self.counter)
        self.scope = outer

    # ------------------------------------------------------------ threads

    def fill(self, shared: Buffer, private: Buffer, size: int) -> None:
        b = self.b
        b.store(shared, self.linear, self.value(shared.element))
        for k in range(size):
            b.store(private, b.const(k), self.value(shared.element))

    def meet(self, shared: Buffer, private: Buffer, size: int) -> None:
        b = self.b
        at = b.const(self.number(0, size - 1), self.pick([I32, I64]))
        self.scope.append(b.load(private, at))
        other = b.add(b.mul(self.linear, self.number(0, 3)), self.number(0, 5))
        other = b.binary("rem", other, b.const(self.threads))
        self.scope.append(b.load(shared, other))
        self.warp_statements(self.number(0, 4), 0)
        b.store(private, at, self.value(private.element))
        if self.number(0, 1) and not shared.element.is_float:
            value = self.value(shared.element)
            if shared.element in (I32, I64, lir.U32):
                b.emit(lir.AtomicAdd(self.results[shared.element], b.const(0), value))

    def warp_statements(self, count: int, depth: int) -> None:
        """Write statements among which the threads of a warp meet."""
        for _ in range(count):
            kind = self.number(0, 2 if depth >= 2 else 5)
            if kind == 0:
                self.statements(2)
            elif kind <= 2:
                self.scope.append(self.sum())
            elif kind == 3:
                self.warp_loop(depth)
            elif kind == 4:
                self.warp_branch(depth)
            else:
                self.warp_while(depth)

    def width(self) -> int:
        widths = [w for w in (1, 2, 4, 8, 16, 32) if self.threads % w == 0]
        return self.pick(widths)

    def sum(self) -> Value:
        return warp_sum(self.b, self.value(self.pick(NUMBERS)), self.width())

    def uniform(self) -> Value:
        """Return a small number that all threads of the widest warp agree on."""
        widest = max(w for w in (1, 2, 4, 8, 16, 32) if self.threads % w == 0)
        if self.number(0, 1):
            return self.b.binary("div", self.linear, self.b.const(widest))
        total = warp_sum(self.b, self.value(I64), widest)
        return self.b.binary("and", total, 3)

    def inner(self, depth: int, *binds: Value) -> list[Value]:
        outer = list(self.scope)
        self.scope.extend(binds)
        self.warp_statements(self.number(1, 2), depth + 1)
        self.scope.append(self.sum())
        inner, self.scope = self.scope, outer
        return inner

    def warp_loop(self, depth: int) -> None:
        types, inits = self.carried()
        b = self.b

        def body(var: Value, params: Place) -> list[Value]:
            return self.last(self.inner(depth, var, *params), types)

        self.scope.extend(for_(b, b.const(0), self.uniform(), b.const(1), body, inits))

    def warp_while(self, depth: int) -> None:
        types, inits = self.carried()
        b = self.b

        def body(params: Place) -> list[Value]:
            inner = self.inner(depth, *params)
            return [b.binary("sub", params[0], 1), *self.last(inner, types)]

        def cond(params: Place) -> Value:
            self.sum()
            return b.compare("gt", params[0], 0)

        self.scope.extend(while_(b, [self.uniform(), *inits], cond, body))

    def warp_branch(self, depth: int) -> None:
        types, _ = self.carried()
        b = self.b
        selector = self.uniform()

        def case() -> list[Value]:
            return self.last(self.inner(depth), types)

        if self.number(0, 1):
            cases = [case] * self.number(1, 3)
            self.scope.extend(b.switch(selector, cases, types))
            return
        sides = []
        for _ in range(2):
            with b.body() as stmts:
                yields = case()
            sides.append((tuple(stmts), tuple(yields)))
        results = tuple(Value(b.name("out"), t) for t in types)
        (then, yes), (orelse, no) = sides
        cond = b.compare("eq", selector, 0)
        b.emit(lir.If(cond, then, orelse, yes, no, results))
        self.scope.extend(results)

    def result(self, value: Value) -> None:
        """Store a value in an element of this thread's own."""
        if value.type == lir.BOOL:
            value = self.b.convert(value, I32)
        assert isinstance(value.type, Scalar)
        room = 4 * MOST_THREADS  # threads of a launch
        first = 1 + room * (self.written % (RESULTS // room - 1))
        self.written += 1
        at = self.b.add(self.place, first)
        self.b.store(self.results[value.type], at, value)
