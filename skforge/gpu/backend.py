"""GPUs: what :mod:`skforge.compiler.backend` asks of them."""

from __future__ import annotations

from skforge.compiler.backend import Backend, LirPass, MirPass
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.layouts.base import AnyLayout, BlockShape
from skforge.compiler.lowering.kernel import LoweredKernel
from skforge.compiler.target import Target
from skforge.gpu import nest
from skforge.gpu.lowering import lower_grids
from skforge.gpu.passes import (
    chunk_leaves,
    insert_transfers,
    keep_sums,
    narrow_indices,
    scale_shared,
)

GPU_MIR_PASSES: dict[str, MirPass] = {
    "warp-sums": lambda f, hir, shared: keep_sums.run_by_warp(f, hir),
    "keep-sums": lambda f, hir, shared: keep_sums.run(f, hir),
    "chunk-leaves": chunk_leaves.run,
}
GPU_LIR_PASSES = (
    LirPass("narrow-indices", lambda f, k: narrow_indices.run(f)),
    LirPass("scale-shared", lambda f, k: scale_shared.run(f)),
    LirPass("insert-transfers", lambda f, k: insert_transfers.run(f, k.width)),
)


class Gpu(Backend):
    """Every GPU, and its emulation."""

    mir_passes = GPU_MIR_PASSES
    lir_passes = GPU_LIR_PASSES

    def block_shape(self, body: mir.Body) -> BlockShape | None:
        return nest.block_shape(body)

    def lower(
        self,
        function: mir.Function,
        hir: PredictEnsemble,
        layout: AnyLayout,
        target: Target,
        name: str,
    ) -> LoweredKernel:
        return lower_grids.run(function, hir, layout, target=target, name=name)


BACKEND = Gpu()
