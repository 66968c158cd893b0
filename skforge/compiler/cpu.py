"""CPUs: what :mod:`skforge.compiler.backend` asks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skforge.compiler.backend import Backend
from skforge.compiler.runtime.kernels import Kernel
from skforge.compiler.target import Target

if TYPE_CHECKING:
    from skforge.compiler.cost.shape import ForestShape
    from skforge.compiler.driver import Lowered
    from skforge.compiler.forest.forest import Forest
    from skforge.compiler.ir.hir.nodes import Reduction
    from skforge.compiler.ir.lir import nodes as lir
    from skforge.compiler.lowering.kernel import LoweredKernel
    from skforge.compiler.schedule.ranges import BatchRange
    from skforge.compiler.schedule.schedule import Schedule
    from skforge.runtime.stored_kernels import StoredKernel


class CpuBackend(Backend):
    native = True

    def lower(self, *args: Any, **kwargs: Any) -> LoweredKernel:
        from skforge.compiler.lowering import lower_to_lir

        return lower_to_lir.run(*args, **kwargs)

    def in_process(
        self, function: lir.Function, target: Target
    ) -> tuple[lir.Function, Target]:
        return function, target

    def code_levels(self, target: Target) -> tuple[str, ...]:
        return ("llvm", "asm")

    def shape(self, forest: Forest | ForestShape, target: Target) -> ForestShape:
        from skforge.compiler.cost.counts import counted

        return counted(forest, target)

    def default_table(
        self, forest: Forest | ForestShape, target: Target, reduction: Reduction
    ) -> dict[BatchRange, Schedule]:
        from skforge.compiler.defaults.cpu import default_schedules
        from skforge.compiler.runtime.machine import machine_profile

        return default_schedules(forest, target, reduction, machine_profile(target))

    def walking(self, forest: Forest, target: Target) -> Schedule:
        from skforge.compiler.defaults.walks import walking_schedules

        return walking_schedules(forest, target)[(128, 2048)]

    def contribution_table(self, forest: Forest) -> dict[BatchRange, Schedule]:
        from skforge.compiler.defaults.cpu import contribution_schedules

        return contribution_schedules(forest, "contributions")

    def stored(self, target: Target) -> Any:
        return "cpu" if target == Target.host() else target

    def available(self, target: Target, name: object) -> Target:
        target.check_runs_here()
        return target

    def kernel(self, source: Lowered | StoredKernel, target: Target) -> Kernel:
        return Kernel(source, target)


BACKEND = CpuBackend()
