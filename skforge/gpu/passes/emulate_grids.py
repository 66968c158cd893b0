"""Turn grids into loops, so that the CPU can run GPU kernels.

    grid grid.x %b: i64 < %blocks {            parallel_for %b: i64 < %blocks {
      alloc @tile: f32 shared size %c            alloc @tile: f32 private size %c
      block_region block.x %t: i64 < %c {   =>   for %t: i64 = %zero to %c step %one {
        store @tile[%t] = %v                       store @tile[%t] = %v
      }                                          }
    }                                          }

Blocks become iterations of a parallel loop over their number, x fastest. Regions become
loops over threads, x fastest, that end at the barrier. A private buffer allocated
outside regions becomes scratch for all threads of the block. ``_Region`` splits regions
with warp operations. Host and device are one, so transfers are dropped.
Afterwards no grid, region, shared buffer or warp operation is left.

The number of threads along each dimension and the sizes of private buffers must be
constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial, reduce
from math import prod
from operator import itemgetter, mul
from typing import Any, TypeAlias

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import walk
from skforge.compiler.ir.lir.builder import Builder, FreshBuilder
from skforge.compiler.ir.lir.nodes import I64, Body, Buffer, Function, Stmt, Value
from skforge.compiler.passes.lir.simplify import constants_of
from skforge.exceptions import CompilerError

_ORDER = ("block.x", "block.y", "block.z")


@dataclass(slots=True)
class EmulatedBlock:
    """State shared by the regions of one grid.

    ``buffers`` maps shared and private buffers, by name, to the scratch that replaces
    them; ``private`` holds each private buffer's number of elements per thread.
    """

    b: Builder
    name: str  # of the function
    constants: Mapping[str, int]
    shape: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    private: dict[str, int] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        return prod(self.shape.values())

    def fail(self, why: str) -> CompilerError:
        return CompilerError(f"Cannot emulate the grids of {self.name!r}: {why}")

    def constant(self, value: Value, what: str) -> int:
        if value.name not in self.constants:
            raise self.fail(f"{what} is %{value.name}, which is not a constant.")
        return self.constants[value.name]

    def shape_of(self, region: lir.BlockRegion) -> dict[str, int]:
        return {
            dim: self.constant(count, f"the number of threads along {dim}")
            for dim, _, count in region.dims
        }

    def alloc(self, stmt: lir.Alloc, private: bool) -> None:
        buffer = stmt.buffer
        scratch = self.buffers[buffer.name] = replace(buffer, space="private")
        size = stmt.size
        if private:
            each = self.constant(size, f"the size of @{buffer.name}")
            self.private[buffer.name] = each
            size = self.b.const(each * self.threads)
        self.b.emit(lir.Alloc(scratch, size))

    def thread_index(
        self, region: lir.BlockRegion, value: Value, thread: Value
    ) -> Value | None:
        for dim, var, _ in region.dims:
            if var.name == value.name:
                before = _ORDER[: _ORDER.index(dim)]
                inner = prod(self.shape.get(name, 1) for name in before)
                index = thread // inner if inner > 1 else thread
                if inner * self.shape[dim] < self.threads:
                    index = index % self.shape[dim]
                assert isinstance(var.type, lir.Scalar)
                return index.to(var.type)
        return None

    # ------------------------------------------------------------ code

    def emit(
        self,
        body: Body,
        values: Mapping[str, Value] | None = None,
        thread: Value | None = None,
    ) -> None:
        """Write a body with values replaced, as run by one thread.

        ``values`` replaces values from outside the body; ``thread`` is the thread's
        number (None for code that the block runs).
        """
        nodes = (s.op if isinstance(s, lir.Let) else s for s in walk.statements(body))
        names = {buffer.name for node in nodes for buffer in walk.buffers_of(node)}
        used = sorted(names & self.private.keys())
        first: dict[str, Value] = {}
        if used:
            assert thread is not None
            first = {name: thread * self.private[name] for name in used}

        def replaced(value: Value) -> Value:
            return values.get(value.name, value) if values else value

        def write(stmt: Stmt) -> None:
            new = walk.map_operands(stmt, replaced)
            if isinstance(new, lir.Let):
                op = walk.map_operands(new.op, replaced)
                new = lir.Let(new.value, self._placed(op, first))
            else:
                inner = walk.map_bodies(new, lambda body: self.b.rewritten(body, write))
                new = self._placed(inner, first)
            self.b.emit(new)

        for stmt in body:
            write(stmt)

    def _placed(self, node: Any, first: Mapping[str, Value]) -> Any:
        changes: dict[str, Any] = {}
        for name in (f.name for f in fields(node)):
            buffer = getattr(node, name)
            if not isinstance(buffer, Buffer) or buffer.name not in self.buffers:
                continue
            changes[name] = self.buffers[buffer.name]
            if buffer.name in first:
                # Other operands index planes or rows, which this scratch does not have.
                if name != "buffer":
                    raise self.fail(
                        f"{type(node).__name__} on @{buffer.name}, which each thread "
                        "has its own of; allocate it in the region."
                    )
                index = node.index
                start = first[buffer.name].to(index.type.element)
                changes["index"] = self.b.splat(start, index.type.lanes) + index
        return replace(node, **changes) if changes else node


def _widths(body: lir.Body) -> list[int]:
    lets = (s for s in walk.statements(body) if isinstance(s, lir.Let))
    return [let.op.width for let in lets if isinstance(let.op, lir.WarpReduce)]


# ---------------------------------------------------------------- parts


@dataclass(slots=True, eq=False)
class _ScratchSlot:
    """Scratch with one value per thread, or one per ``width`` threads.

    Among the parts of a region, it is a warp reduction in place.
    """

    buffer: lir.Buffer
    type: lir.Type
    width: int = 1


@dataclass(slots=True, eq=False)
class _Part:
    """Code that threads run one after another; it stores ``puts`` at its end."""

    stmts: list[lir.Stmt] = field(default_factory=list)
    puts: list[tuple[_ScratchSlot, lir.Value]] = field(default_factory=list)

    def reads(self) -> dict[str, lir.Value]:
        read = walk.free_values(tuple(self.stmts))
        bound = {v.name for stmt in self.stmts for v in walk.bound_by(stmt)}
        put = {v.name: v for _, v in self.puts if v.name not in bound}
        return read | put


@dataclass(slots=True, eq=False)
class _Control:
    """Control flow around warp operations, run once per warp."""

    stmt: lir.For | lir.While | lir.If | lir.Switch
    parts: tuple[_Parts, ...]  # of each body
    width: int  # the widest warp operation inside


_Parts: TypeAlias = "list[_Part | _ScratchSlot | _Control]"


class _Region:
    """Writes the loops that replace a region: one, unless it has warp operations.

    ::

        %s: f32 = warp_reduce %v, width 8      for each thread t: slot[t] = %v
        store @out[%t] = %s                =>  for each warp: sum its elements of slot
                                               for each thread t: out[t] = slot[t & -8]

    The region is split at its warp operations, and the code between two of them becomes
    a loop over threads. A value that one part binds and another reads has a slot:
    scratch with one element per thread. Control flow around a warp operation is uniform
    over the warp: it runs once per warp, decided by its first thread, and its carried
    values are kept in slots, too. A sum is the butterfly of ``lir.WarpReduce``, which
    gives every thread the same bits: only the half that leads to the warp's first
    thread is computed.
    """

    def __init__(self, block: EmulatedBlock, region: lir.BlockRegion) -> None:
        self._block, self._b, self._region = block, block.b, region
        self._parts_of: dict[str, _Part] = {}  # the part that binds a value
        self._splits = bool(_widths(region.body))
        self._slots: dict[str, _ScratchSlot] = {}  # by value name
        self._constants: dict[str, tuple[int | float | bool, lir.Type]] = {}

    def emit(self) -> None:
        parts = self._split(self._region.body)
        for part, read in _read(parts):
            for value in read:
                owner = self._parts_of.get(value.name)
                if owner not in (None, part) and value.name not in self._constants:
                    self._slot_of(value)
        self._emit(parts, self._b.const(0), self._block.threads)

    # ------------------------------------------------------------ splitting

    def _split(self, body: lir.Body) -> _Parts:
        parts: _Parts = [_Part()]
        for stmt in body:
            match stmt:
                case lir.Let(value=value, op=lir.WarpReduce() as op):
                    self._meet(value, op, parts)
                case _ if _widths((stmt,)):
                    self._control(stmt, parts)
                case _:
                    self._add(stmt, _last(parts))
        return parts

    def _add(self, stmt: lir.Stmt, part: _Part) -> None:
        if isinstance(stmt, lir.Alloc) and self._splits:  # other parts may use it
            self._block.alloc(stmt, private=True)
            return
        if isinstance(stmt, lir.Let) and isinstance(stmt.op, lir.Const):
            self._constants[stmt.value.name] = (stmt.op.value, stmt.value.type)
        part.stmts.append(stmt)
        self._parts_of.update((v.name, part) for v in walk.bound_by(stmt))

    def _meet(self, value: lir.Value, op: lir.WarpReduce, parts: _Parts) -> None:
        width = op.width
        if self._block.threads % width:
            raise self._block.fail(
                f"blocks of {self._block.threads} threads are not a whole number of "
                f"warps of {width}."
            )
        slot = self._slot_of(value, width)
        _last(parts).puts.append((slot, op.a))
        parts.append(slot)

    def _control(self, stmt: lir.Stmt, parts: _Parts) -> None:
        assert isinstance(stmt, lir.For | lir.While | lir.If | lir.Switch)
        carried: list[tuple[_ScratchSlot, tuple[lir.Value, ...]]] = []
        for sources, names in walk.flows(stmt):
            slot = self._slot_of(names[-1])
            self._slots[names[0].name] = slot
            carried.append((slot, sources))
        inside = [self._split(body) for body in walk.bodies(stmt)]
        loops = isinstance(stmt, lir.For | lir.While)
        ends = [_last(end) for end in ([parts, inside[-1]] if loops else inside)]
        for slot, sources in carried:
            for end, source in zip(ends, sources, strict=True):
                end.puts.append((slot, source))
        parts.append(_Control(stmt, tuple(inside), max(_widths((stmt,)))))

    # ------------------------------------------------------------ slots

    def _slot_of(self, value: lir.Value, width: int = 1) -> _ScratchSlot:
        if value.name in self._slots:
            return self._slots[value.name]
        match value.type:
            case lir.Scalar():
                element, lanes = value.type, 1
            case lir.Vec(element=element, lanes=lanes):
                pass
            case lir.Mask(lanes=lanes):
                element = lir.U8
            case _:
                raise self._block.fail(f"%{value.name} outlives a warp operation.")
        size = lanes * self._block.threads
        buffer = self._b.alloc("slot", element, size, "private")
        slot = self._slots[value.name] = _ScratchSlot(buffer, value.type, width)
        return slot

    def _slot_index(self, slot: _ScratchSlot, thread: lir.Value) -> lir.Value:
        first = thread if slot.width == 1 else thread & -slot.width
        return first * max(1, slot.type.lanes)

    def _put(self, slot: _ScratchSlot, thread: lir.Value, value: lir.Value) -> None:
        if isinstance(slot.type, lir.Mask):
            value = value.to(lir.U8)
        # Each thread stores its own argument of a warp operation.
        index = self._slot_index(slot, thread) if slot.type.lanes else thread
        slot.buffer[index] = value

    def _get(self, slot: _ScratchSlot, thread: lir.Value) -> lir.Value:
        index = self._slot_index(slot, thread)
        if isinstance(slot.type, lir.Mask):
            return slot.buffer[index, lir.Vec(lir.U8, slot.type.lanes)].ne(0)
        return slot.buffer[index, slot.type]

    # ------------------------------------------------------------ writing

    def _emit(self, parts: _Parts, first: lir.Value, count: int) -> None:
        for part in parts:
            match part:
                case _Part():
                    self._threads(part, first, count)
                case _ScratchSlot(width=width):
                    with self._groups(first, count, width) as warp:
                        self._sum(part, warp)
                case _Control(width=width):
                    with self._groups(first, count, width) as warp:
                        self._steer(part, warp)

    @contextmanager
    def _groups(self, first: lir.Value, count: int, width: int) -> Iterator[lir.Value]:
        if count == width:
            yield first
            return
        last = first + self._b.const(count)
        with self._b.loop(first, last, width, hint="warp") as warp:
            yield warp

    def _threads(self, part: _Part, first: lir.Value, count: int) -> None:
        bound = [v for stmt in part.stmts for v in walk.bound_by(stmt)]
        outlive = [(self._slots[v.name], v) for v in bound if v.name in self._slots]
        if not part.stmts and not part.puts:
            return
        last = first + self._b.const(count)
        with self._b.loop(first, last, hint="thread") as thread:
            read = part.reads().items()
            values = {name: self._value_in(value, thread) for name, value in read}
            self._block.emit(tuple(part.stmts), values, thread)
            for slot, value in (*outlive, *part.puts):
                self._put(slot, thread, values.get(value.name, value))

    def _value_in(self, value: lir.Value, thread: lir.Value) -> lir.Value:
        index = self._block.thread_index(self._region, value, thread)
        if index is not None:
            return index
        if value.name in self._constants:
            return self._b.const(*self._constants[value.name])
        slot = self._slots.get(value.name)
        return value if slot is None else self._get(slot, thread)

    def _sum(self, slot: _ScratchSlot, warp: lir.Value) -> None:
        b, sums = self._b, slot.buffer
        half = [b.const(slot.width // 2)]
        with b.repeat(lambda: half[0] > 0, half):
            with b.loop(warp, warp + half[0]) as thread:
                sums[thread] = sums[thread] + sums[thread + half[0]]
            half[0] = half[0] >> 1

    def _steer(self, control: _Control, first: lir.Value) -> None:
        b, stmt = self._b, control.stmt

        def body(number: int) -> lir.Body:
            with b.body() as stmts:
                self._emit(control.parts[number], first, control.width)
            return tuple(stmts)

        match stmt:
            case lir.For(var=var):
                lo, hi, step = (self._value_in(v, first) for v in walk.steers(stmt))
                b.emit(lir.For(var, lo, hi, step, body(0)))
            case lir.While():
                with b.body() as before:
                    self._emit(control.parts[0], first, control.width)
                    cond = self._value_in(stmt.cond, first)
                b.emit(lir.While((), (), tuple(before), cond, body(1), (), ()))
            case lir.If():
                cond = self._value_in(stmt.cond, first)
                b.emit(lir.If(cond, body(0), body(1)))
            case lir.Switch():
                selector = self._value_in(stmt.selector, first)
                b.emit(lir.Switch(selector, tuple(map(body, range(len(stmt.cases))))))


# ---------------------------------------------------------------- inspecting parts


def _last(parts: _Parts) -> _Part:
    if not parts or not isinstance(parts[-1], _Part):
        parts.append(_Part())
    part = parts[-1]
    assert isinstance(part, _Part)
    return part


def _read(parts: _Parts) -> Iterator[tuple[_Part | None, Sequence[lir.Value]]]:
    """Yield the values each part reads; the part is None for a warp's control flow."""
    for part in parts:
        if isinstance(part, _Part):
            yield part, list(part.reads().values())
        elif isinstance(part, _Control):
            yield None, walk.steers(part.stmt)
            for inner in part.parts:
                yield from _read(inner)


def run(function: Function) -> Function:
    """Return ``function`` with its grids as loops.

    Raises CompilerError if a block's shape is not constant or differs between regions,
    or its threads are not a whole number of warps.
    """
    if not any(isinstance(stmt, lir.Grid) for stmt in walk.statements(function.body)):
        return function
    builder = FreshBuilder(function)
    with builder:
        return replace(function, body=_Emulator(function, builder).host(function.body))


class _Emulator:
    def __init__(self, function: Function, builder: FreshBuilder) -> None:
        self._name, self._b = function.name, builder
        self._constants = constants_of(function)

    def host(self, body: Body) -> Body:
        with self._b.body() as stmts:
            for stmt in body:
                if isinstance(stmt, lir.Grid):
                    self._grid(stmt)
                elif not isinstance(stmt, lir.Transfer):
                    self._b.emit(walk.map_bodies(stmt, self.host))
        return tuple(stmts)

    # ------------------------------------------------------------ blocks

    def _grid(self, grid: lir.Grid) -> None:
        block = EmulatedBlock(self._b, self._name, self._constants)
        for stmt in walk.statements(grid.body):
            if isinstance(stmt, lir.BlockRegion):
                shape = block.shape_of(stmt)
                if block.shape and block.shape != shape:
                    raise block.fail(f"regions of {block.shape} and {shape}.")
                block.shape = shape
        if len(grid.dims) == 1:
            ((_, var, count),) = grid.dims
            body = self._body(block, grid.body)
            self._b.emit(lir.ParallelFor(var, count, body))
            return
        dims = tuple(sorted(grid.dims, key=itemgetter(0)))
        counts = [self._count(count) for _, _, count in dims]
        total = reduce(mul, counts)
        number = Value(self._b.name("block"), I64)
        with self._b.body() as stmts:
            self._places(dims, counts, number)
            for stmt in grid.body:
                self._stmt(block, stmt)
        self._b.emit(lir.ParallelFor(number, total, tuple(stmts)))

    def _count(self, value: Value) -> Value:
        # Two negative counts multiply to a positive one, but mean no blocks.
        wide = value.to(I64)
        return wide if self._constants.get(value.name, -1) >= 0 else wide.max(0)

    def _places(self, dims: lir.Dims, counts: list[Value], number: Value) -> None:
        b, remaining = self._b, number
        pairs = list(zip(dims, counts, strict=True))
        for left, ((_, var, _), count) in enumerate(pairs, start=1 - len(pairs)):
            wide = var if var.type == I64 else Value(b.name("place"), I64)
            b.emit(lir.Let(wide, lir.Binary("rem", remaining, count)))
            if wide is not var:
                b.emit(lir.Let(var, lir.Convert(wide)))
            if left:
                remaining = remaining // count

    def _stmt(self, block: EmulatedBlock, stmt: lir.Stmt) -> None:
        match stmt:
            case lir.BlockRegion():
                _Region(block, stmt).emit()
            case lir.Alloc(buffer=buffer):
                block.alloc(stmt, private=buffer.space == "private")
            case lir.For() | lir.While() | lir.If() | lir.Switch():
                self._b.emit(walk.map_bodies(stmt, partial(self._body, block)))
            case _:
                block.emit((stmt,))

    def _body(self, block: EmulatedBlock, body: Body) -> Body:
        return self._b.rewritten(body, partial(self._stmt, block))
