"""CPUs: what :mod:`skforge.compiler.backend` asks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skforge.compiler.backend import Backend

if TYPE_CHECKING:
    from skforge.compiler.ir.hir.nodes import PredictEnsemble
    from skforge.compiler.ir.mir import nodes as mir
    from skforge.compiler.layouts.base import AnyLayout
    from skforge.compiler.lowering.kernel import LoweredKernel
    from skforge.compiler.target import Target


class Cpu(Backend):
    def lower(
        self,
        function: mir.Function,
        hir: PredictEnsemble,
        layout: AnyLayout,
        target: Target,
        name: str,
    ) -> LoweredKernel:
        from skforge.compiler.lowering import lower_to_lir

        return lower_to_lir.run(function, hir, layout, target=target, name=name)


BACKEND = Cpu()
