"""Kernels of schedules, compiled for GPUs that are not here, and what they use."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from benchmarks.gpu.gpu_sass import disassemble, innermost, kernels_of, operations
from skforge.compiler import driver
from skforge.compiler.driver import Lowered
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.codegen.host_plan import HostPlan
from skforge.gpu.codegen.writer import PRELUDE
from skforge.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A schedule's kernels as LIR and text."""

    lowered: Lowered
    plan: HostPlan

    @property
    def grids(self) -> list[lir.Grid]:
        """The launches, in order."""
        body = self.lowered.kernel.function.body
        return [stmt for stmt in statements(body) if isinstance(stmt, lir.Grid)]


def build(
    made: Forest,
    schedule: Schedule,
    reduction: Reduction = "exact",
    arch: str = "sm_90",
    name: str = "predict",
) -> Built:
    """Lower a schedule; ScheduleError if the GPU cannot take it."""
    target = Target.hip(arch) if arch.startswith("gfx") else Target.cuda(arch)
    hir = driver.build_hir(made, schedule, reduction, kind="gpu")
    lowered = driver.lower(hir, target, name=name)
    return Built(lowered, emit_gpu(lowered.kernel.function, target))


def one_text(found: Mapping[str, Built]) -> str:
    """Return the kernels of several schedules as one text; their names differ."""
    kernels = [one.plan.source.removeprefix(PRELUDE) for one in found.values()]
    return "\n".join([PRELUDE, *kernels])


def arguments_bytes(args: Sequence[lir.Buffer | lir.Value]) -> int:
    """Return the size of a kernel's arguments as a C struct."""
    end = 0
    for arg in args:
        size = 8 if isinstance(arg, lir.Buffer) else arg.type.element.bytes
        end = -(-end // size) * size + size
    return end


# ------------------------------------------------------------ what LIR says


def of_type(body: Any, kind: type) -> list[Any]:
    """Return the statements of a kind in a function, a grid or a body."""
    inside = getattr(body, "body", body)
    return [stmt for stmt in statements(inside) if isinstance(stmt, kind)]


def ops(body: Any, kind: type) -> list[Any]:
    """Return the operations of a kind."""
    return [s.op for s in of_type(body, lir.Let) if isinstance(s.op, kind)]


def constants(function: lir.Function) -> dict[str, Any]:
    """Return the numbers that names stand for."""
    lets = of_type(function, lir.Let)
    return {s.value.name: s.op.value for s in lets if isinstance(s.op, lir.Const)}


def shared_bytes(function: lir.Function, grid: lir.Grid) -> int:
    """Return the shared memory of a block: arrays begin at multiples of 16 bytes."""
    known = constants(function)
    total = 0
    for alloc in of_type(grid, lir.Alloc):
        if alloc.buffer.space == "shared":
            n_bytes = known[alloc.size.name] * alloc.buffer.element.bytes
            total = -(-total // 16) * 16 + n_bytes
    return total


def barriers(grid: lir.Grid) -> int:
    """Return how often a thread waits: after all regions but the kernel's last."""
    regions = of_type(grid, lir.BlockRegion)
    holding = [stmt for stmt in grid.body if of_type((stmt,), lir.BlockRegion)]
    ends = bool(holding) and isinstance(holding[-1], lir.BlockRegion)
    return len(regions) - ends


def shuffles(grid: lir.Grid) -> int:
    """Return the exchanges of warp sums: 32 bits of a value each."""
    lets = of_type(grid, lir.Let)
    sums = [s for s in lets if isinstance(s.op, lir.WarpReduce)]
    return sum(
        (s.op.width.bit_length() - 1) * max(1, s.value.type.bytes // 4) for s in sums
    )


# ------------------------------------------------------------ what compilers say

_ENTRY = re.compile(r"\.entry (\w+)\((.*?)\)(.*?)\n}", re.DOTALL)
_PARAM = re.compile(r"\.param \.[a-z](\d+)")


@dataclass(frozen=True, slots=True)
class PtxKernel:
    """What a kernel's PTX holds: bytes of its arguments, and some instructions."""

    argument_bytes: int
    counts: Counter[str]


def ptx_kernels(text: str) -> dict[str, PtxKernel]:
    """Return the kernels of a PTX text."""
    found = {}
    for name, params, body in _ENTRY.findall(text):
        end = 0
        for bits in _PARAM.findall(params):
            size = int(bits) // 8
            end = -(-end // size) * size + size
        words = re.findall(r"\b(bar|shfl|atom|red)\.", body)
        found[name] = PtxKernel(end, Counter(words))
    return found


def hip_argument_bytes(code: bytes) -> dict[str, int]:
    """Return where each kernel's own arguments end, from a code object's note."""
    at = code.find(b"AMDGPU\0\0")
    size = int.from_bytes(code[at - 8 : at - 4], "little")
    notes = msgpack.unpackb(code[at + 8 : at + 8 + size])
    return {
        kernel[".name"]: max(
            (
                one[".offset"] + one[".size"]
                for one in kernel.get(".args", ())
                if not one[".value_kind"].startswith("hidden")
            ),
            default=0,
        )
        for kernel in notes["amdhsa.kernels"]
    }


#: Instructions that read memory, and that write it.
_LOADS, _STORES = ("LDS", "LDG", "LD"), ("STS", "STG", "ST", "ATOMG", "ATOMS", "RED")


def visits(cubin: bytes, walks: int) -> dict[str, list[float]]:
    """Return instructions of a node visit, of each loop of hops with so many walks.

    Such a loop is innermost, reads a node and a value for each walk at least, and
    writes nothing: what fills shared memory stores, and sums read one number a time.
    """
    return {
        name: list(_visits(lines, walks))
        for name, lines in kernels_of(disassemble(cubin)).items()
    }


def _visits(lines: list[str], walks: int) -> Iterator[float]:
    names = operations(lines)
    for loop in innermost(lines):
        inside = Counter(names[loop.first : loop.last + 1])
        if sum(inside[name] for name in _STORES):
            continue
        if 2 * walks <= sum(inside[name] for name in _LOADS) < 4 * walks:
            yield loop.instructions / walks


def launches_of(found: Sequence[Built]) -> Iterator[tuple[Built, Any, lir.Grid]]:
    """Yield each launch beside the grid that it comes from."""
    for one in found:
        for launch, grid in zip(one.plan.launches.values(), one.grids, strict=True):
            yield one, launch, grid
