"""Threads of an emulated block: their scratch and the code each of them runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Any

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir import walk
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import Body, Buffer, Stmt, Value
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

    def place(
        self, region: lir.BlockRegion, value: Value, thread: Value
    ) -> Value | None:
        for dim, var, _ in region.dims:
            if var.name == value.name:
                before = _ORDER[: _ORDER.index(dim)]
                inner = prod(self.shape.get(name, 1) for name in before)
                at = thread // inner if inner > 1 else thread
                if inner * self.shape[dim] < self.threads:
                    at = at % self.shape[dim]
                assert isinstance(var.type, lir.Scalar)
                return at.to(var.type)
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
        writer = _StateWriter(self, values or {}, first)
        for stmt in body:
            writer.stmt(stmt)


class _StateWriter:
    def __init__(
        self,
        block: EmulatedBlock,
        values: Mapping[str, Value],
        first: Mapping[str, Value],
    ) -> None:
        self._block, self._values, self._first = block, values, first

    def stmt(self, stmt: Stmt) -> None:
        new = walk.map_operands(stmt, self._value)
        if isinstance(new, lir.Let):
            op = walk.map_operands(new.op, self._value)
            new = lir.Let(new.value, self._placed(op))
        else:
            new = self._placed(walk.map_bodies(new, self._body))
        self._block.b.emit(new)

    def _body(self, body: Body) -> Body:
        return self._block.b.rewritten(body, self.stmt)

    def _value(self, value: Value) -> Value:
        return self._values.get(value.name, value)

    def _placed(self, node: Any) -> Any:
        changes: dict[str, Any] = {}
        for name in (f.name for f in fields(node)):
            buffer = getattr(node, name)
            if not isinstance(buffer, Buffer) or buffer.name not in self._block.buffers:
                continue
            changes[name] = self._block.buffers[buffer.name]
            if buffer.name in self._first:
                # Other operands index planes or rows, which this scratch does not have.
                if name != "buffer":
                    raise self._block.fail(
                        f"{type(node).__name__} on @{buffer.name}, which each thread "
                        "has its own of; allocate it in the region."
                    )
                index = node.index
                first = self._first[buffer.name].to(index.type.element)
                changes["index"] = self._block.b.splat(first, index.type.lanes) + index
        return replace(node, **changes) if changes else node
