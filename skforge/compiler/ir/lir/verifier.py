"""Check that a function is valid LIR; report the failing statement and the reason.

Names are bound once and used in scope with their types; operations and control match
their docstrings; no value computed in a block region decides the control flow around
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NoReturn

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import operations, walk
from skforge.compiler.ir.lir.nodes import Body, Grid, Stmt, Type, Value
from skforge.compiler.ir.lir.printer import name_of, print_stmt, print_type
from skforge.exceptions import CompilerError

# Where a statement runs: outside any launch, in a block, or in a thread of a block.
_Scope = Literal["host", "block", "thread"]


def verify_lir(function: lir.Function) -> None:
    stmts = walk.statements(function.body)
    launches = any(isinstance(stmt, lir.Grid) for stmt in stmts)
    verifier = _Verifier(launches, function)
    try:
        for param in function.params:
            verifier.param(param)
        verifier.check(function.body)
        verifier.end(function.body)
    except _NotValid as error:
        text = verifier.statement_text
        where = f"in {text!r} of " if text else "in the parameters of "
        raise CompilerError(f"{error}, {where}{function.name}.") from None


class _NotValid(Exception):
    """Reason why a statement is not valid LIR."""


def refuse(reason: str) -> NoReturn:
    raise _NotValid(reason)


def check_index(index: Value) -> None:
    if not operations.is_index(index.type):
        refuse(f"index %{index.name} is {print_type(index.type)}, not i32 or i64")


def check_bool(value: Value) -> None:
    if value.type != lir.BOOL:
        refuse(f"%{value.name} is {print_type(value.type)}, not bool")


def check_same(what: str, *types: Type) -> None:
    if any(t != types[0] for t in types):
        refuse(f"{what} differ in type: {', '.join(map(print_type, types))}")


def check_type(type_: Type) -> None:
    match type_:
        case lir.Scalar():
            pass
        case lir.Vec(element, lanes) if lanes < 1 or element == lir.BOOL:
            refuse(f"{print_type(type_)} is not a vector; bools make a mask")
        case lir.Mask(lanes) if lanes < 1:
            refuse(f"{print_type(type_)} has no lanes")
        case lir.Plane(rows) if rows < 8 or rows % 8:
            refuse(f"{print_type(type_)}: rows come in whole bytes")


class _Verifier:
    def __init__(self, launches: bool, function: lir.Function) -> None:
        self._launches = launches
        self._routine = function if isinstance(function, lir.Routine) else None
        self._called: dict[str, tuple[int | lir.Type, ...]] = {}  # types by symbol
        self._bound: set[str] = set()  # every name, in scope or not
        self._values: dict[str, lir.Value] = {}  # in scope
        self._buffers: dict[str, lir.Buffer] = {}
        self._scope: _Scope = "host"
        self._depth = 0  # of the open body
        self._params: set[str] = set()  # buffers that the caller gives
        self._launched = self._returned = False  # by a grid, a copy_out
        self._private: set[str] = set()  # private buffers of the open block
        self._regions: tuple[tuple[str, ...], ...] = ()
        self._stmt: lir.Stmt | None = None

    @property
    def statement_text(self) -> str:
        return "" if self._stmt is None else print_stmt(self._stmt)

    # ------------------------------------------------------------ names

    def param(self, param: lir.Value | lir.Buffer) -> None:
        if isinstance(param, lir.Value):
            if not isinstance(param.type, lir.Scalar):
                refuse(f"%{param.name} is {print_type(param.type)}, not a number")
            self._bind(param)
            return
        if param.space != "global":
            refuse(f"@{param.name} is a parameter in {param.space} memory")
        self._bind_buffer(param)
        self._params.add(param.name)

    def _once(self, name: str) -> None:
        if name in self._bound:
            refuse(f"{name} is bound twice")
        self._bound.add(name)

    def _bind(self, *values: lir.Value) -> None:
        for value in values:
            self._once(value.name)
            check_type(value.type)
            self._values[value.name] = value

    def _bind_buffer(self, buffer: lir.Buffer) -> None:
        self._once("@" + buffer.name)
        if buffer.alignment < 0 or buffer.alignment & (buffer.alignment - 1):
            refuse(f"alignment {buffer.alignment} is not a power of two")
        self._buffers[buffer.name] = buffer

    def _use(self, *values: lir.Value) -> None:
        known = self._values
        for value in values:
            bound_value = known.get(value.name)
            if bound_value is value:
                continue
            if bound_value is None:
                bound = value.name in self._bound
                why = "is used outside its body" if bound else "is not defined"
                refuse(f"%{value.name} {why}")
            if bound_value != value:
                refuse(
                    f"%{value.name} is used as {print_type(value.type)} but bound as "
                    f"{print_type(bound_value.type)}"
                )

    def _read(self, buffer: lir.Buffer) -> None:
        bound_buffer = self._buffers.get(buffer.name)
        if bound_buffer is not buffer:
            if bound_buffer is None:
                bound = "@" + buffer.name in self._bound
                why = "is used outside its body" if bound else "is not defined"
                refuse(f"@{buffer.name} {why}")
            if bound_buffer != buffer:
                refuse(
                    f"@{buffer.name} is used with other facts than it was bound with"
                )
        if buffer.name in self._private and self._scope != "thread":
            refuse(f"@{buffer.name} belongs to threads and is used outside a region")

    def _write(self, buffer: lir.Buffer) -> None:
        self._read(buffer)
        if self._scope == "block":
            refuse("every thread would write; a grid writes in its regions only")

    def _hand_on(
        self, values: Sequence[Value], names: Sequence[Value], wrong: str
    ) -> None:
        if len(values) != len(names):
            refuse(wrong.format(len(values), len(names)))
        self._use(*values)
        for value, name in zip(values, names, strict=True):
            check_same(f"%{value.name} and %{name.name}", value.type, name.type)

    # ------------------------------------------------------------ statements

    def check(
        self,
        body: Sequence[lir.Stmt],
        binds: Sequence[lir.Value] = (),
        yields: Sequence[lir.Value] = (),
        results: Sequence[lir.Value] = (),
        before: tuple[Sequence[lir.Stmt], lir.Value] | None = None,
    ) -> None:
        owner = self._stmt
        values, buffers = len(self._values), len(self._buffers)
        private = self._private
        self._depth += 1
        self._bind(*binds)
        if before is not None:
            for stmt in before[0]:
                self._check_stmt(stmt)
            self._stmt = owner
            self._use(before[1])
        for stmt in body:
            self._check_stmt(stmt)
        self._stmt = owner
        self._hand_on(yields, results, "yields {} values for {} results")
        # Dicts keep insertion order: this body's bindings are at the end.
        while len(self._values) > values:
            self._values.popitem()
        while len(self._buffers) > buffers:
            self._buffers.popitem()
        self._private = private
        self._depth -= 1

    def _check_stmt(self, stmt: lir.Stmt) -> None:
        self._stmt = stmt
        if self._launches and self._scope == "host":
            check_host(stmt)
        match stmt:
            case lir.Let():
                return self._let(stmt.value, stmt.op)
            case lir.For():
                self._for(stmt)
            case lir.If():
                self._if(stmt)
            case lir.While():
                check_bool(stmt.cond)
                self._loop(stmt, (), (stmt.before, stmt.cond))
            case lir.Alloc(buffer=buffer, size=size):
                self._use(size)
                check_index(size)
                self._alloc(buffer)
            case lir.Switch():
                self._switch(stmt)
            case lir.ParallelFor(var=var, count=count, body=body):
                if self._scope != "host":
                    refuse("a parallel loop in a launch")
                self._count(var, count)
                self.check(body, (var,))
            case lir.Grid():
                self._grid(stmt)
            case lir.BlockRegion():
                self._region(stmt)
            case lir.Transfer():
                self._transfer(stmt)
            case lir.Named():
                self._named(stmt)
            case lir.Window(buffer=buffer, base=base, index=index):
                self._read(base)
                self._use(index)
                check_index(index)
                self._bind_buffer(buffer)
            case lir.View() | lir.Call() | lir.Atomic() | lir.Return():
                self._foreign(stmt)
            case _:
                self._access(stmt)
        self._bind(*walk.bound_by(stmt))

    def _count(self, var: lir.Value, count: lir.Value) -> None:
        self._use(count)
        check_index(count)
        check_same("variable and count", var.type, count.type)

    def _access(self, stmt: lir.Access) -> None:
        for buffer in walk.buffers_of(stmt, "reads"):
            self._read(buffer)
        for buffer in walk.buffers_of(stmt, "writes"):
            self._write(buffer)
        self._use(*walk.operands(stmt))
        index = stmt.index
        if not isinstance(stmt, lir.Scatter):
            check_index(index)
        match stmt:
            case lir.Store(buffer=buffer, value=value):
                self._check_element(buffer, value)
            case lir.Scatter(buffer=buffer, value=value):
                lanes = value.type.lanes
                if not operations.are_indices(index.type) or index.type.lanes != lanes:
                    refuse(f"%{index.name} is no vector of {lanes} indices")
                self._check_element(buffer, value)
            case lir.AtomicAdd(buffer=buffer, value=value):
                if value.type != buffer.element or value.type == lir.BOOL:
                    added = print_type(value.type)
                    refuse(f"adds {added} to a {buffer.element.name} buffer")
            case lir.StorePlane(table=table, value=value):
                if not operations.holds_planes(table, value.type):
                    refuse(f"@{table.name} does not hold {print_type(value.type)}")
            case lir.Prefetch() | lir.Touch():
                pass

    def _check_element(self, buffer: lir.Buffer, value: lir.Value) -> None:
        if value.type == buffer.element:
            return
        if buffer.element == lir.U8 and isinstance(value.type, lir.Scalar | lir.Vec):
            return  # a u8 buffer takes the bytes of any number
        if not isinstance(value.type, lir.Vec) or value.type.element != buffer.element:
            refuse(f"stores {print_type(value.type)} in a {buffer.element.name} buffer")

    def _alloc(self, buffer: lir.Buffer) -> None:
        if buffer.space == "shared" and self._scope != "block":
            refuse("shared memory is allocated in a grid, outside its regions")
        if buffer.space == "global" and self._scope != "host":
            refuse("global memory is allocated outside a launch")
        self._bind_buffer(buffer)
        if self._scope == "block" and buffer.space == "private":
            self._private = self._private | {buffer.name}

    # ------------------------------------------------------------ operations

    def _let(self, value: lir.Value, op: lir.Op) -> None:
        for buffer in walk.buffers_of(op):
            self._read(buffer)
        self._use(*walk.operands(op))
        if not operations.OPERATIONS[type(op)].gives(op, value.type):
            taken = ", ".join(print_type(v.type) for v in walk.operands(op))
            refuse(f"{name_of(op)}({taken}) does not give {print_type(value.type)}")
        if isinstance(op, lir.WarpReduce) and self._scope != "thread":
            refuse("a warp reduction outside a block region")
        self._bind(value)

    # ------------------------------------------------------------ control

    def _for(self, stmt: lir.For) -> None:
        bounds = walk.steers(stmt)
        self._use(*bounds)
        check_index(stmt.lo)
        check_same("variable and bounds", stmt.var.type, *(v.type for v in bounds))
        self._loop(stmt, (stmt.var,))

    def _loop(
        self,
        stmt: lir.For | lir.While,
        binds: Sequence[lir.Value],
        before: tuple[Sequence[lir.Stmt], lir.Value] | None = None,
    ) -> None:
        params = stmt.params
        wrong = "{} initial values for {} carried values"
        self._hand_on(stmt.inits, params, wrong)
        self._bind(*params)
        if len(stmt.results) != len(params):
            refuse(f"{len(stmt.results)} results for {len(params)} carried values")
        self.check(stmt.body, binds, stmt.yields, stmt.results, before)
        for param in params:
            del self._values[param.name]

    def _if(self, stmt: lir.If) -> None:
        self._use(stmt.cond)
        check_bool(stmt.cond)
        self.check(stmt.then, (), stmt.then_yields, stmt.results)
        self.check(stmt.orelse, (), stmt.else_yields, stmt.results)

    def _switch(self, stmt: lir.Switch) -> None:
        self._use(stmt.selector)
        if stmt.selector.type.lanes or not operations.is_integer(stmt.selector.type):
            refuse(f"%{stmt.selector.name} is not an integer")
        if not stmt.cases:
            refuse("a switch without cases")
        yields = stmt.yields or ((),) * len(stmt.cases)
        if len(yields) != len(stmt.cases):
            refuse(f"{len(yields)} yields for {len(stmt.cases)} cases")
        for case, values in zip(stmt.cases, yields, strict=True):
            self.check(case, (), values, stmt.results)

    def _named(self, stmt: lir.Named) -> None:
        self._use(*stmt.args)
        for inner in stmt.body:
            self._check_stmt(inner)
        self._stmt = stmt
        self._hand_on(stmt.values, stmt.results, "{} values for {} results")

    # ------------------------------------------------------------ routines

    def end(self, body: lir.Body) -> None:
        result = None if self._routine is None else self._routine.result
        if result is not None and not (body and isinstance(body[-1], lir.Return)):
            refuse("the routine ends without a result")

    def _foreign(self, stmt: lir.Foreign) -> None:
        if self._routine is None:
            refuse("only a routine has views, calls, atomics and returns")
        self._use(*walk.operands(stmt))
        match stmt:
            case lir.View(buffer=buffer, address=address):
                check_same("address and i64", address.type, lir.I64)
                self._bind_buffer(buffer)
            case lir.Call(symbol=symbol, args=args, results=results):
                if not symbol and (not args or args[0].type != lir.I64):
                    refuse("a call without a symbol or an address")
                if len(results) > 1:
                    refuse("a function has one result")
                if not all(isinstance(v.type, lir.Scalar) for v in (*args, *results)):
                    refuse("a function takes and gives scalars")
                types = len(results), *(v.type for v in (*results, *args))
                if symbol and self._called.setdefault(symbol, types) != types:
                    refuse(f"{symbol} is called with other types before")
            case lir.Atomic():
                self._atomic(stmt)
            case lir.Return(values=values):
                result = self._routine.result
                if [v.type for v in values] != ([] if result is None else [result]):
                    refuse("the routine has another result")

    def _atomic(self, stmt: lir.Atomic) -> None:
        touch = self._read if stmt.op == "load" else self._write
        touch(stmt.buffer)
        check_index(stmt.index)
        element = stmt.buffer.element
        if not operations.is_integer(element):
            refuse(f"@{stmt.buffer.name} holds no integers")
        n_args = {"load": 0, "replace": 2}.get(stmt.op, 1)
        gives = {"store": [], "replace": [lir.BOOL]}.get(stmt.op, [element])
        if [v.type for v in stmt.args] != [element] * n_args:
            refuse(f"{stmt.op} takes {n_args} of {element.name}")
        if [v.type for v in stmt.results] != gives:
            refuse(f"{stmt.op} does not give this")

    # ------------------------------------------------------------ launches

    def _transfer(self, stmt: lir.Transfer) -> None:
        if not self._launches or self._depth > 1:
            refuse(f"{stmt.kind} is beside launches, in no body")
        self._read(stmt.buffer)
        if stmt.buffer.name not in self._params:
            refuse(f"@{stmt.buffer.name} is scratch, which the host does not have")
        if (stmt.kind == "upload") != (not stmt.shape):
            refuse("an upload is of all elements, a copy has a shape")
        self._use(*stmt.shape)
        for extent in stmt.shape:
            check_index(extent)
        self._returned = self._returned or stmt.kind == "copy_out"
        if self._returned != self._launched:
            when = "after" if self._launched else "before"
            refuse(f"{stmt.kind} {when} the launches")

    def _dims(
        self, dims: Sequence[tuple[lir.GridDim, lir.Value, lir.Value]], kind: str
    ) -> tuple[str, ...]:
        names = tuple(dim for dim, _, _ in dims)
        if not names or len(set(names)) < len(names):
            refuse("each dimension is given once, and at least one")
        for name, var, count in dims:
            if not name.startswith(kind):
                refuse(f"{name} is not a dimension of a {kind}")
            self._count(var, count)
        return names

    def _grid(self, stmt: lir.Grid) -> None:
        if self._scope != "host":
            refuse("a launch in a launch")
        if self._returned:
            refuse("a launch after copy_out")
        self._launched = True
        self._dims(stmt.dims, "grid")
        self._scope, self._regions = "block", ()
        self.check(stmt.body, [var for _, var, _ in stmt.dims])
        self._scope = "host"
        check_uniform(stmt)

    def _region(self, stmt: lir.BlockRegion) -> None:
        if self._scope != "block":
            refuse("a block region that is not in a grid, or in another region")
        names = self._dims(stmt.dims, "block")
        if self._regions and self._regions[0] != names:
            refuse(f"a region over {names} beside one over {self._regions[0]}")
        self._regions = (names,)
        self._scope = "thread"
        self.check(stmt.body, [var for _, var, _ in stmt.dims])
        self._scope = "block"


# ------------------------------------------------------------ launches


def check_uniform(grid: Grid) -> None:
    """Refuse control flow around a region that depends on what a region wrote.

    A region's values end with it, so only memory can carry them out. A value loaded
    outside regions from a buffer that a region of this grid writes is *computed in a
    region*, and so is every value derived from it.
    """
    from_regions: set[str] = set()
    stored, before = walk.written(grid.body), -1
    while before < len(from_regions):
        before = len(from_regions)
        _spread(grid.body, stored, from_regions)
    for stmt in _outside_regions(grid.body):
        for value in walk.steers(stmt):
            if value.name in from_regions and walk.holds_region(stmt):
                refuse(f"%{value.name} was computed in a region and steers control")


def _outside_regions(body: Body) -> Iterable[Stmt]:
    for stmt in body:
        if not isinstance(stmt, lir.BlockRegion):
            yield stmt
            for inner in walk.bodies(stmt):
                yield from _outside_regions(inner)


def _spread(body: Body, stored: set[str], names: set[str]) -> None:
    for stmt in _outside_regions(body):
        if isinstance(stmt, lir.Let):
            read = [v.name for v in walk.operands(stmt.op)]
            loaded = any(b.name in stored for b in walk.buffers_of(stmt.op))
            if loaded or not names.isdisjoint(read):
                names.add(stmt.value.name)
            continue
        if any(v.name in names for v in walk.steers(stmt)):
            names.update(v.name for v in walk.bound_in(stmt))
        for sources, targets in walk.flows(stmt):
            if any(v.name in names for v in sources):
                names.update(v.name for v in targets)


# ---------------------------------------------------------------- hosts


def check_host(stmt: Stmt) -> None:
    """Refuse a statement that the host cannot run between launches.

    The memory of a function with grids is the device's. The host computes integers (and
    knows constants), allocates global memory, copies, and loops around launches.
    """
    match stmt:
        case lir.Let(value=value, op=op):
            if not isinstance(value.type, lir.Scalar):
                refuse(f"the host of a launch has no {print_type(value.type)}")
            if isinstance(op, lir.Const):
                return
            if not isinstance(op, operations.HOST_OPS):
                refuse("the host of a launch computes integers and nothing else")
            for number in (value, *walk.operands(op)):
                if number.type.element.is_float:
                    refuse("the host of a launch computes with no floats")
        case lir.Alloc(buffer=buffer):
            if buffer.space == "private":
                refuse("private memory is allocated in a launch")
        case lir.For() | lir.Grid() | lir.BlockRegion() | lir.Transfer():
            pass
        case _:
            refuse("the host of a launch computes, allocates, loops and launches only")
