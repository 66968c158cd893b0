"""LIR statements as Python text: what the interpreter runs.

    for i in 0 to n:                  for v3 in range(0, v1, 1):
      x = load @x[i]                    if not 0 <= v3 < n2: out_of_range(v3, n2)
      y = add x, 3        becomes       v4 = m2[v3]
      store @x[i] = y                   v5 = v4 + 3
                                        if not -2147483648 <= v5 <= 2147483647: v5 = …
                                        m2[v3] = v5

Buffer number 2 is four names: a2 the array, m2 its memoryview, n2 its length, r2 its
bytes. A line's number leads back to its statement when it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Buffer, Scalar, Stmt, Value
from skforge.compiler.ir.lir.walk import statements, written
from tests.oracles.lir_memory import Block, Private
from tests.oracles.lir_planes import load_plane, planes_to_index, store_plane
from tests.oracles.lir_races import Races
from tests.oracles.lir_values import NAMESPACE, constant, op_lines, scalar_text, wrapped

# Names that the text may use.
GLOBALS: dict[str, Any] = {
    **NAMESPACE, "Block": Block, "Private": Private, "Races": Races,
    "load_plane": load_plane, "planes_to_index": planes_to_index,
    "store_plane": store_plane,
}  # fmt: skip
# Python refuses more than 20 nested loops; deeper bodies become inner functions.
_MAX_LOOPS = 15


class Translator:
    """Writes the Python text of one function."""

    def __init__(self, function: lir.Function) -> None:
        self._function = function
        self._ids: dict[str, str] = {}
        self._lines: list[str] = []
        self._loops = 0
        self._count = 0
        self._privates: list[Buffer] = []  # of the open grid, outside its regions
        self._in_grid = False
        self._in_region = False
        self._shared: set[str] = set()  # what threads of the open grid may race for
        self.constants: dict[str, Any] = {}
        self.stmts: dict[int, Stmt] = {}  # by line number
        self.stored: set[str] = set()

    def text(self) -> str:
        """Return the Python source of ``run(order, *params)``."""
        names, unpack = [], []
        for param in self._function.params:
            if isinstance(param, Value):
                names.append(self._new(param))
            else:
                number = self._new_buffer(param)
                names.append(f"b{number}")
                unpack.append(f"{self._views(number)} = b{number}")
        self._line(0, f"def run({', '.join(['order', *names])}):")
        for line in unpack:
            self._line(1, line)
        self._body(self._function.body, 1)
        return "\n".join([*self._lines, ""])

    # ------------------------------------------------------------ names

    def _fresh(self) -> int:
        self._count += 1
        return self._count

    def _new(self, value: Value) -> str:
        name = self._ids[value.name] = f"v{self._fresh()}"
        return name

    def _name(self, value: Value) -> str:
        return self._ids[value.name]

    def _names(self, values: Sequence[Value]) -> str:
        return ", ".join(map(self._name, values))

    def _new_buffer(self, buffer: Buffer) -> int:
        number = self._fresh()
        self._ids["@" + buffer.name] = str(number)
        return number

    @staticmethod
    def _views(number: int | str) -> str:
        return f"a{number}, m{number}, n{number}, r{number}"

    def _buffer(self, buffer: Buffer) -> str:
        return self._ids["@" + buffer.name]

    # ------------------------------------------------------------ statements

    def _line(self, depth: int, text: str, stmt: Stmt | None = None) -> None:
        self._lines.append(" " * depth + text)
        if stmt is not None:
            self.stmts[len(self._lines)] = stmt

    def _assign(self, depth: int, targets: Sequence[Value], values: str) -> None:
        if targets:
            self._line(depth, f"{', '.join(map(self._new, targets))} = {values}")

    def _again(self, depth: int, targets: Sequence[Value], values: str) -> None:
        if targets:
            self._line(depth, f"{self._names(targets)} = {values}")

    def _body(self, body: Sequence[Stmt], depth: int) -> None:
        start, private = len(self._lines), len(self._privates)
        for stmt in body:
            self._stmt(stmt, depth)
        del self._privates[private:]  # what this body allocated ends with it
        if len(self._lines) == start:
            self._line(depth, "pass")

    def _stmt(self, stmt: Stmt, depth: int) -> None:
        def line(text: str) -> None:
            self._line(depth, text, stmt)

        match stmt:
            case lir.Let(value=value, op=op):
                self._let(value, op, stmt, depth)
            case lir.Store(buffer=buffer, index=index, value=value):
                index_name = self._name(index)
                n_bytes = value.type.element.bytes * max(1, value.type.lanes)
                for text in self._noted("write", buffer, index_name, n_bytes):
                    line(text)
                self._store(buffer, index_name, value, line)
            case lir.Scatter(buffer=buffer, index=index, value=value):
                self.stored.add(buffer.name)
                index_name = self._name(index)
                n_bytes = value.type.element.bytes
                for text in self._noted("write", buffer, index_name, n_bytes):
                    line(text)
                place = f"r{self._buffer(buffer)}, {index_name}"
                size = buffer.element.bytes
                line(f"scatter({place}, {size}, {self._name(value)})")
            case lir.AtomicAdd(buffer=buffer, index=index, value=value):
                self.stored.add(buffer.name)
                b, i = self._buffer(buffer), self._name(index)
                for text in self._noted("add", buffer, i, buffer.element.bytes):
                    line(text)
                line(f"if not 0 <= {i} < n{b}: out_of_range({i}, n{b})")
                text = f"{'a' if buffer.element.is_float else 'm'}{b}[{i}]"
                total = f"{text} + {self._name(value)}"
                if not buffer.element.is_float:
                    total = wrapped(buffer.element, total)
                line(f"{text} = {total}")
            case lir.Prefetch():
                pass
            case lir.Touch(buffer=buffer, index=index):
                b, i = self._buffer(buffer), self._name(index)
                line(f"if not 0 <= {i} < n{b}: out_of_range({i}, n{b})")
            case lir.StorePlane(table=table, index=index, value=value):
                self.stored.add(table.name)
                b = self._buffer(table)
                place = f"r{b}, {self._name(index)}, {self._name(value)}"
                line(f"store_plane({place}, {table.element == lir.I64})")
            case lir.Alloc(buffer=buffer, size=size):
                self._alloc(buffer, self._name(size), line)
            case lir.Window(buffer=buffer, base=base, index=index):
                start = f"{self._name(index)} * {base.element.bytes}"
                source = f"r{self._buffer(base)}, {start}, d_{buffer.element.name}"
                number = self._new_buffer(buffer)
                line(f"{self._views(number)} = window({source})")
            case lir.For():
                self._for(stmt, depth)
            case lir.While():
                self._while(stmt, depth)
            case lir.If():
                sides = [(f"if {self._name(stmt.cond)}:", stmt.then, stmt.then_yields)]
                if stmt.orelse or stmt.results:
                    sides.append(("else:", stmt.orelse, stmt.else_yields))
                self._branches(sides, stmt.results, depth)
            case lir.Switch():
                self._switch(stmt, depth)
            case lir.ParallelFor(var=var, count=count, body=body):
                items = f"order.items(range({self._name(count)}))"
                loop = f"for {self._new(var)} in {items}:"
                self._loop(loop, body, (), (), depth, stmt)
            case lir.Grid(dims=dims, body=body):
                self._in_grid, self._privates = True, []
                self._shared = written(body)
                line("races = Races()")
                position = "".join(f"{self._new(var)}, " for _, var, _ in dims)
                counts = "".join(f"{self._name(count)}, " for _, _, count in dims)
                line(f"for {position} in order.blocks(({counts})):")
                self._line(depth + 1, "block = Block(order)")
                self._line(depth + 1, "races.next_block()")
                self._loops += 1
                self._body(body, depth + 1)
                self._loops -= 1
                self._in_grid, self._shared = False, set()
            case lir.BlockRegion():
                self._region(stmt, depth)
            case lir.Transfer():
                pass  # host and device are one
            case _:
                raise AssertionError(f"no case for {stmt!r}")

    def _alloc(self, buffer: Buffer, size: str, line: Callable[[str], None]) -> None:
        number = self._new_buffer(buffer)
        element = f"e{number}"
        self.constants[element] = buffer.element
        if self._in_grid and not self._in_region and buffer.space == "private":
            self._privates.append(buffer)
            self._shared.discard(buffer.name)
            line(f"p{number} = Private({element}, {size})")
        else:
            line(f"{self._views(number)} = allocate({element}, {size})")
            if buffer.space == "private":
                self._shared.discard(buffer.name)
            elif buffer.name in self._shared:
                line(f"races.fresh({number})")

    def _noted(self, what: str, buffer: Buffer, index: str, n_bytes: int) -> list[str]:
        """Return the line that notes an access another thread may race with."""
        if buffer.name not in self._shared:
            return []
        count = -(-n_bytes // buffer.element.bytes)
        note = f"races.{what}({self._buffer(buffer)}, {index}, {count}"
        if self._in_region:
            return [f"{note}, thread)"]
        return [f"{note})", "races.barrier()"]  # all threads load, then all go on

    def _store(
        self, buffer: Buffer, index: str, value: Value, line: Callable[[str], None]
    ) -> None:
        self.stored.add(buffer.name)
        b, text = self._buffer(buffer), self._name(value)
        if value.type == buffer.element:
            line(f"if not 0 <= {index} < n{b}: out_of_range({index}, n{b})")
            line(f"{'a' if buffer.element.is_float else 'm'}{b}[{index}] = {text}")
            return
        if isinstance(value.type, Scalar):
            text = f"np.full(1, {text}, d_{value.type.name})"
        line(f"store_bytes(r{b}, {index}, {buffer.element.bytes}, {text})")

    # ------------------------------------------------------------ control

    def _for(self, stmt: lir.For, depth: int) -> None:
        self._assign(depth, stmt.params, self._names(stmt.inits))
        step = self._name(stmt.step)
        bounds = f"{self._name(stmt.lo)}, {self._name(stmt.hi)}, {step}"
        if not step.isdecimal() or step == "0":
            text = f"if {step} <= 0: fault('the step is not positive')"
            self._line(depth, text, stmt)
        loop = f"for {self._new(stmt.var)} in range({bounds}):"
        self._loop(loop, stmt.body, stmt.params, stmt.yields, depth, stmt)
        self._assign(depth, stmt.results, self._names(stmt.params))

    def _loop(
        self,
        head: str,
        body: lir.Body,
        params: Sequence[Value],
        yields: Sequence[Value],
        depth: int,
        stmt: Stmt,
    ) -> None:
        self._line(depth, head, stmt)
        self._loops += 1
        if self._loops < _MAX_LOOPS:
            self._body(body, depth + 1)
            if yields:
                self._again(depth + 1, params, self._names(yields))
        else:
            saved, self._loops = self._loops, 0
            number = self._fresh()
            self._line(depth + 1, f"def part{number}():")
            self._body(body, depth + 2)
            self._line(depth + 2, f"return ({self._names(yields)})")
            pauses = "yield from " if self._in_region and _has_warp_reduce(body) else ""
            self._again(depth + 1, params, f"{pauses}part{number}()")
            if not params:
                self._line(depth + 1, f"{pauses}part{number}()")
            self._loops = saved
        self._loops -= 1

    def _while(self, stmt: lir.While, depth: int) -> None:
        self._assign(depth, stmt.params, self._names(stmt.inits))
        self._line(depth, "while True:", stmt)
        self._loops += 1
        for inner in stmt.before:
            self._stmt(inner, depth + 1)
        self._line(depth + 1, f"if not {self._name(stmt.cond)}: break")
        self._body(stmt.body, depth + 1)
        self._again(depth + 1, stmt.params, self._names(stmt.yields))
        self._loops -= 1
        self._assign(depth, stmt.results, self._names(stmt.params))

    def _branches(
        self,
        sides: Sequence[tuple[str, Sequence[Stmt], Sequence[Value]]],
        results: Sequence[Value],
        depth: int,
    ) -> None:
        for result in results:
            self._new(result)
        for head, body, yields in sides:
            self._line(depth, head)
            self._body(body, depth + 1)
            self._again(depth + 1, results, self._names(yields))

    def _switch(self, stmt: lir.Switch, depth: int) -> None:
        selector = self._name(stmt.selector)
        last = len(stmt.cases) - 1
        sides = []
        for number, case in enumerate(stmt.cases):
            head = f"{'elif' if number else 'if'} {selector} == {number}:"
            if number == last:
                head = "else:" if number else "if True:"
            sides.append((head, case, stmt.yields[number] if stmt.results else ()))
        self._branches(sides, stmt.results, depth)

    def _region(self, stmt: lir.BlockRegion, depth: int) -> None:
        names = tuple(dim for dim, _, _ in stmt.dims)
        position = ", ".join(["thread", *(self._new(var) for _, var, _ in stmt.dims)])
        counts = "".join(f"{self._name(count)}, " for _, _, count in stmt.dims)
        threads = f"block.threads({names!r}, ({counts}))"
        pauses = _has_warp_reduce(stmt.body)
        number = self._fresh()
        if pauses:
            self._line(depth, f"def part{number}({position}):", stmt)
            saved, self._loops = self._loops, 0
        else:
            self._line(depth, f"for {position} in {threads}:", stmt)
            self._loops += 1
        for buffer in self._privates:
            b = self._buffer(buffer)
            self._line(depth + 1, f"{self._views(b)} = p{b}.of(thread)")
        self._in_region = True
        self._body(stmt.body, depth + 1)
        self._in_region = False
        if pauses:
            self._line(depth, f"run_warps(part{number}, {threads})", stmt)
            self._loops = saved
        else:
            self._loops -= 1
        self._line(depth, "races.barrier()")

    # ------------------------------------------------------------ operations

    def _let(self, value: Value, op: lir.Op, stmt: Stmt, depth: int) -> None:
        if isinstance(op, lir.Const):
            self._const(value, op)
            return
        lines = self._op(self._new(value), value, op)
        for text in lines:
            self._line(depth, text, stmt)

    def _const(self, value: Value, op: lir.Const) -> None:
        held = constant(op.value, value.type)
        if isinstance(held, bool) or (isinstance(held, int) and held >= 0):
            self._ids[value.name] = str(held)
        elif isinstance(held, int):
            self._ids[value.name] = f"({held})"
        else:
            self.constants[self._new(value)] = held

    def _op(self, out: str, value: Value, op: lir.Op) -> list[str]:
        element, lanes = value.type.element, value.type.lanes
        name = self._name
        match op:
            case lir.Threads():
                return [f"{out} = order.threads()"]
            case lir.Load(buffer=buffer, index=index):
                n_bytes = element.bytes * max(1, lanes)
                noted = self._noted("read", buffer, name(index), n_bytes)
                return noted + self._load(out, value, buffer, name(index))
            case lir.Gather(buffer=buffer, index=index, mask=mask, other=other):
                more = "".join(f", {name(v)}" for v in (mask, other) if v is not None)
                place = f"r{self._buffer(buffer)}, {name(index)}"
                size = buffer.element.bytes
                where = name(index) if mask is None else f"{name(index)}[{name(mask)}]"
                noted = self._noted("read", buffer, where, element.bytes)
                text = f"{out} = gather({place}, {size}, d_{element.name}{more})"
                return [*noted, text]
            case lir.PlaneMux(select=select, a=a, b=b):
                return [f"{out} = np.where({name(select)}, {name(a)}, {name(b)})"]
            case lir.LoadPlane(table=table, index=index):
                place = f"r{self._buffer(table)}, {name(index)}"
                words = table.element == lir.I64
                return [f"{out} = load_plane({place}, {_rows(value)}, {words})"]
            case lir.PlanesToIndex(planes=planes):
                bits = "".join(f"{name(p)}, " for p in planes)
                return [f"{out} = planes_to_index(({bits}), d_{element.name})"]
            case lir.WarpReduce(a=a, width=width):
                lines = [f"{out} = yield ({self._fresh()}, {width}, {name(a)})"]
                if not element.is_float:
                    lines.append(f"{out} = {wrapped(element, out)}")
                return lines
            case _:
                return op_lines(out, value.type, op, name)

    def _load(self, out: str, value: Value, buffer: Buffer, index: str) -> list[str]:
        b = self._buffer(buffer)
        element, lanes = value.type.element, value.type.lanes
        if value.type == buffer.element:
            check = f"if not 0 <= {index} < n{b}: out_of_range({index}, n{b})"
            return [check, f"{out} = {'a' if element.is_float else 'm'}{b}[{index}]"]
        place = f"r{b}, {index}, {buffer.element.bytes}"
        text = f"load_bytes({place}, d_{element.name}, {lanes or 1})"
        if not lanes:
            text = scalar_text(element, 0, f"{text}[0]")
        return [f"{out} = {text}"]


def _rows(value: Value) -> int:
    assert isinstance(value.type, lir.Plane)
    return value.type.rows


def _has_warp_reduce(body: lir.Body) -> bool:
    return any(
        isinstance(stmt, lir.Let) and isinstance(stmt.op, lir.WarpReduce)
        for stmt in statements(body)
    )
