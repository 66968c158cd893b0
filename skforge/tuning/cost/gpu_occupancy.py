"""Whether a GPU kernel would spill registers, told before it runs."""

from __future__ import annotations

from skforge.compiler.codegen.cuda.emitter import emit_gpu
from skforge.compiler.cost.occupancy import MULTIPROCESSORS, occupancy
from skforge.compiler.pipeline import Lowered
from skforge.compiler.runtime.gpu.compilers import Kind, resources_of
from skforge.compiler.schedule.directives import Interleave
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import TargetError

#: Maximum 32-bit registers of a block and of a thread, on all supported NVIDIA
#: architectures; AMD GPUs have no fewer.
REGISTERS, MOST_OF_THREAD = 65536, 255

#: Minimum registers of a traversal, and of each interleaved one for its node and value.
#: On sm_90, 18 and 3.3 were measured (docs/schedules.md).
WALK, IN_FLIGHT = 12, 2


def problem(schedule: Schedule, lowered: Lowered, target: Target) -> str:
    """Return why a kernel should not be run; empty if it should.

    An emulated GPU is treated like the GPU it emulates.
    """
    plan = emit_gpu(lowered.kernel.function, target)
    kind: Kind = "hip" if target.kind == "hip" else "cuda"
    try:
        found = resources_of(plan.source, target.cpu, kind)
    except TargetError:  # no compiler available
        threads = max((launch.threads for launch in plan.launches()), default=1)
        return _by_model(schedule, threads)
    for launch in plan.launches():
        used = found[launch.kernel]
        local = max(used.stack_bytes, used.spill_bytes)
        if local:
            return (
                f"{launch.kernel} uses {local} bytes of local memory per thread, "
                f"besides {used.registers} registers ({target.cpu})"
            )
    return ""


def _by_model(schedule: Schedule, threads: int) -> str:
    """Check a lower bound on registers, computed from the interleaving factor."""
    walks = max(
        (d.factor or 1 for d in schedule.directives if isinstance(d, Interleave)),
        default=1,
    )
    least, most = WALK + IN_FLIGHT * walks, min(MOST_OF_THREAD, REGISTERS // threads)
    if least <= most:
        return ""
    return (
        f"{walks} walks in flight need at least {least} registers per thread "
        f"(estimated, because no compiler is installed), but a block of {threads} "
        f"threads leaves {most}"
    )


__all__ = ["MULTIPROCESSORS", "occupancy", "problem"]
