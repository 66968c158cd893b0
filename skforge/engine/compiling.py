"""What makes kernels: schedules bound to forests, lowered, and shown as text.

Only :mod:`.kernels` imports it, where the cache has no kernel: it imports the compiler.
"""

from __future__ import annotations

import math

from skforge.compiler.backend import backend_of
from skforge.compiler.driver import Lowered, build_hir, lower
from skforge.compiler.ir.hir.nodes import HirCache, PredictEnsemble, Reduction
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import statements
from skforge.compiler.layouts import base as representations
from skforge.compiler.target import Target
from skforge.engine.cpu.code import MachineCode
from skforge.engine.cpu.jit import compile_functions, emit_assembly, emit_ir
from skforge.forest.forest import Forest
from skforge.schedule.directives import Represent
from skforge.schedule.nest import size_value
from skforge.schedule.schedule import Schedule

#: Bytes of scratch per kernel above which a batch runs in parts.
SCRATCH_BYTES = 64 << 20


class ScheduleLowering:
    def __init__(
        self,
        forest: Forest,
        target: Target,
        reduction: Reduction,
        hashes: bool = False,
    ) -> None:
        self._forest, self._target, self._hashes = forest, target, hashes
        self._reduction: Reduction = reduction
        self._hir = HirCache()

    def bind(self, schedule: Schedule, element: mir.Element) -> PredictEnsemble:
        kind = self._target.schedule_kind
        how = self._reduction, self._hir, kind, element, self._hashes
        return build_hir(self._forest, schedule, *how)

    def lowered(self, schedule: Schedule, element: mir.Element) -> Lowered:
        return lower(self.bind(schedule, element), self._target, element=element)

    def walking(self, schedule: Schedule) -> Schedule:
        walks = representations.WalkRepresentation
        chosen = (d for d in schedule.directives if isinstance(d, Represent))
        kinds = (representations.get(d.representation) for d in chosen)
        if all(isinstance(kind, walks) for kind in kinds):
            return schedule
        return backend_of(self._target).walking(self._forest, self._target)


def compiled(lowered: Lowered, target: Target) -> MachineCode:
    function, host = backend_of(target).in_process(lowered.kernel.function, target)
    return compile_functions([function], host)


def most_rows(lowered: Lowered, limit: int) -> int | None:
    """Return how many rows keep a kernel's scratch below ``limit`` bytes.

    Parallel trees may need a number per tree and row, more than fits in memory for a
    million rows. Rows are independent, so they can run in parts.
    """
    body = list(lowered.stages.values())[-1].body
    arrays = [s.array.dims for s in statements(body) if isinstance(s, mir.AllocArray)]
    n_outputs = lowered.hir.forest.n_outputs

    def scratch(n_rows: int) -> int:
        sizes = [
            [n_outputs if dim is None else size_value(dim, n_rows) for dim in dims]
            for dims in arrays
        ]
        return sum(8 * math.prod(size) for size in sizes)

    if scratch(1 << 40) == scratch(1):
        return None
    most = 1 << 40
    while most > 1 and scratch(most) > limit:
        most //= 2
    return most


def code_text(lowered: Lowered, target: Target, level: str) -> str:
    """Return a level below LIR, also for machines whose code does not run here."""
    backend, function = backend_of(target), lowered.kernel.function
    if level not in ("llvm", "asm"):
        return backend.device_text(function, target, level)
    emit = emit_assembly if level == "asm" else emit_ir
    return emit(*backend.in_process(function, target))
