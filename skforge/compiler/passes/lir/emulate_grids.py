"""Turn grids into loops, so that the CPU can run GPU kernels.

    grid grid.x %b: i64 < %blocks {            parallel_for %b: i64 < %blocks {
      alloc @tile: f32 shared size %c            alloc @tile: f32 private size %c
      block_region block.x %t: i64 < %c {   =>   for %t: i64 = %zero to %c step %one {
        store @tile[%t] = %v                       store @tile[%t] = %v
      }                                          }
    }                                          }

Blocks become iterations of a parallel loop over their number, x fastest. Regions become
loops over threads, x innermost, that end at the barrier. A private buffer allocated
outside regions becomes scratch for all threads of the block. ``emulate_warps`` handles
regions with warp operations. Host and device are one, so transfers are dropped.
Afterwards no grid, region, shared buffer or warp operation is left.

The number of threads along each dimension and the sizes of private buffers must be
constants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import I64, Body, Function, Value
from skforge.compiler.ir.lir.walk import map_bodies, statements
from skforge.compiler.passes.lir.emulate_threads import EmulatedBlock
from skforge.compiler.passes.lir.emulate_warps import emit_warps, has_warp_reduce
from skforge.compiler.passes.lir.lir_rewrite import FreshBuilder, constants_of


def run(function: Function) -> Function:
    """Return ``function`` with its grids as loops.

    Raises CompilerError if a block's shape is not constant or differs between regions,
    or its threads are not a whole number of warps.
    """
    if not any(isinstance(stmt, lir.Grid) for stmt in statements(function.body)):
        return function
    builder = FreshBuilder(function)
    with builder:
        return replace(function, body=_Emulator(function, builder).host(function.body))


_Dim: TypeAlias = tuple[lir.GpuDim, Value, Value]


def _name(dim: _Dim) -> str:
    return dim[0]


class _Emulator:
    def __init__(self, function: Function, builder: FreshBuilder) -> None:
        self._name, self._b = function.name, builder
        self._constants = constants_of(function)

    def host(self, body: Body) -> Body:
        """Return host code with its grids replaced."""
        with self._b.body() as stmts:
            for stmt in body:
                if isinstance(stmt, lir.Grid):
                    self._grid(stmt)
                elif not isinstance(stmt, lir.Transfer):
                    self._b.emit(map_bodies(stmt, self.host))
        return tuple(stmts)

    # ------------------------------------------------------------ blocks

    def _grid(self, grid: lir.Grid) -> None:
        block = EmulatedBlock(self._b, self._name, self._constants)
        for stmt in statements(grid.body):
            if isinstance(stmt, lir.BlockRegion):
                shape = block.shape_of(stmt)
                if block.shape and block.shape != shape:
                    raise block.fail(f"regions of {block.shape} and {shape}.")
                block.shape = shape
        if len(grid.dims) == 1:
            ((_, var, count),) = grid.dims
            with self._b.body() as stmts:
                self._block(block, grid.body)
            self._b.emit(lir.ParallelFor(var, count, tuple(stmts)))
            return
        counts = [self._count(count) for _, _, count in sorted(grid.dims, key=_name)]
        total = counts[0]
        for count in counts[1:]:
            total = total * count
        number = Value(self._b.name("block"), I64)
        with self._b.body() as stmts:
            self._places(grid, counts, number)
            self._block(block, grid.body)
        self._b.emit(lir.ParallelFor(number, total, tuple(stmts)))

    def _count(self, value: Value) -> Value:
        # Two negative counts multiply to a positive one, but mean no blocks.
        wide = value.to(I64)
        return wide if self._constants.get(value.name, -1) >= 0 else wide.max(0)

    def _places(self, grid: lir.Grid, counts: list[Value], number: Value) -> None:
        """Bind a grid's variables to the coordinates of block ``number``."""
        b, rest = self._b, number
        pairs = list(zip(sorted(grid.dims, key=_name), counts, strict=True))
        for left, ((_, var, _), count) in enumerate(pairs, start=1 - len(pairs)):
            wide = var if var.type == I64 else Value(b.name("place"), I64)
            b.emit(lir.Let(wide, lir.Binary("rem", rest, count)))
            if wide is not var:
                b.emit(lir.Let(var, lir.Convert(wide)))
            if left:
                rest = rest // count

    def _block(self, block: EmulatedBlock, body: Body) -> None:
        for stmt in body:
            match stmt:
                case lir.BlockRegion():
                    self._region(block, stmt)
                case lir.Alloc(buffer=buffer):
                    block.alloc(stmt, private=buffer.space == "private")
                case lir.For() | lir.While() | lir.If() | lir.Switch():
                    self._b.emit(map_bodies(stmt, lambda b: self._inner(block, b)))
                case _:
                    block.emit((stmt,))

    def _inner(self, block: EmulatedBlock, body: Body) -> Body:
        with self._b.body() as stmts:
            self._block(block, body)
        return tuple(stmts)

    # ------------------------------------------------------------ threads

    def _region(self, block: EmulatedBlock, region: lir.BlockRegion) -> None:
        if has_warp_reduce(region.body):
            emit_warps(block, region)
            return
        self._loops(block, region, sorted(region.dims, key=_name, reverse=True))

    def _loops(
        self, block: EmulatedBlock, region: lir.BlockRegion, dims: list[_Dim]
    ) -> None:
        """Write loops over ``dims``, x innermost, around one thread's code."""
        if not dims:
            block.emit(region.body, thread=lambda: block.number(region))
            return
        (_, var, count), *inner = dims
        zero, one = (self._b.const(k, var.type) for k in (0, 1))
        with self._b.body() as stmts:
            self._loops(block, region, inner)
        self._b.emit(lir.For(var, zero, count, one, tuple(stmts)))
