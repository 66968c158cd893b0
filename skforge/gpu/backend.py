"""GPUs: what :mod:`skforge.compiler.backend` asks of them."""

from __future__ import annotations

import math

from skforge.compiler.backend import Backend, LirPass, MirPass
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.driver import Lowered
from skforge.compiler.ir.hir.nodes import PredictEnsemble, Reduction
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.layouts.base import AnyLayout, get
from skforge.compiler.target import Target
from skforge.exceptions import TargetError
from skforge.forest.forest import Forest
from skforge.gpu import defaults
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.layouts.contributions import RowsByThread
from skforge.gpu.lowering import lower_grids
from skforge.gpu.passes import (
    chunk_leaves,
    emulate_grids,
    insert_transfers,
    keep_sums,
    narrow_indices,
    scale_shared,
)
from skforge.gpu.runtime import cupy
from skforge.gpu.runtime.compilers import compile_ptx
from skforge.gpu.runtime.kernel import EmulatedKernel, GpuKernel
from skforge.runtime.stored_kernels import StoredKernel
from skforge.schedule.ranges import SchedulesByRange

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


def _lay_out_rows(hir: PredictEnsemble) -> AnyLayout | None:
    is_own = get(hir.nest.representation).takes_rows_by_thread
    return RowsByThread.of(hir) if is_own else None


def _code_levels(target: Target) -> tuple[str, ...]:
    if target.kind == "hip":
        return ("cuda",)  # as HIP has it; PTX is NVIDIA's
    device = ("cuda", "ptx")
    return ("llvm", "asm", *device) if target.kind == "emulated" else device


def _device_text(function: lir.Function, target: Target, level: str) -> str:
    source = emit_gpu(function, target).source
    if level == "cuda":
        return source
    arch = target.cpu if target.cpu.startswith("sm_") else "sm_80"
    return compile_ptx(source, arch)


def _default_table(
    forest: Forest | ForestShape, target: Target, reduction: Reduction, _: bool
) -> SchedulesByRange:
    whole = ForestShape.of(forest).forest
    return defaults.default_gpu_schedules(whole, target, reduction)


def _available(target: Target, name: object) -> Target:
    if target.kind not in ("cuda", "hip"):
        target.check_runs_here()
        return target
    device = cupy.current(target.kind)
    if name in ("cuda", "hip"):
        return device.target()
    if not _runs(target.cpu, device.arch):
        raise TargetError(
            f"Code for {target.cpu} does not run on {device.name}, which is "
            f"{device.arch}; use target={target.kind!r}."
        )
    return target


def _for_schedules() -> Target:
    try:
        return cupy.current().target()
    except TargetError as error:
        raise TargetError(
            f"the schedule maps loops to a GPU, but no GPU can be used: {error} To "
            "run such schedules on the CPU, use target='emulated'."
        ) from error


def _kernel(
    source: Lowered | StoredKernel, target: Target
) -> EmulatedKernel | GpuKernel:
    if target.kind == "emulated":
        return EmulatedKernel(source, target)
    assert not isinstance(source, StoredKernel)
    return GpuKernel(source, target)


#: Rows that a GPU, whose threads take a row each, explains sooner than one thread of
#: the CPU (five forests, an H200 and 16 cores: 500 to 790).
EXPLAINED = 650

#: Most sums of a thread, one for each feature, and for each output of vector leaves:
#: the forests above have up to 90, and many threads have no memory for thousands.
MOST_SUMS = 128


def _least_explained(forest: Forest, target: Target) -> float:
    if target.kind == "emulated":
        return 0
    n_sums = forest.n_features * (forest.n_outputs if forest.vector_leaves else 1)
    return EXPLAINED if n_sums <= MOST_SUMS else math.inf


def _runs(wanted: str, available: str) -> bool:
    """Tell whether a schedule bound to one architecture can be compiled for another.

    Code is compiled for the GPU found, which has at least the resources of the older
    architectures of its family.
    """
    if wanted == available:
        return True
    numbers = [name.removeprefix("sm_") for name in (wanted, available)]
    if not all(number.isdigit() for number in numbers):
        return False
    old, new = (divmod(int(number), 10) for number in numbers)
    return old[0] == new[0] and old[1] <= new[1]


#: Every GPU, and its emulation.
BACKEND = Backend(
    native=False,
    lower=lower_grids.run,
    in_process=lambda f, target: (emulate_grids.run(f), Target.host()),
    code_levels=_code_levels,
    shape=lambda forest, target: ForestShape.of(forest),
    default_table=_default_table,
    walking=defaults.walking_gpu_schedule,
    contribution_table=lambda forest: {(1, None): defaults.gpu_contribution_schedule()},
    least_explained=_least_explained,
    available=_available,
    kernel=_kernel,
    for_schedules=_for_schedules,
    stored=lambda target: target.kind if target.kind in ("cuda", "hip") else target,
    mir_passes=GPU_MIR_PASSES,
    lir_passes=GPU_LIR_PASSES,
    lay_out_rows=_lay_out_rows,
    device_text=_device_text,
)
