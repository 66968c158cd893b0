"""GPU kernels that are not worth a run: known from their code before it is loaded.

Shared memory and threads of a block are judged by the language when a schedule is bound
and lowered. What is left are registers: a kernel that spills them, or keeps arrays in
local memory, reads memory for what others have in registers. The vendor's compiler says
so; it needs no GPU. Where there is none, a bound on the registers has to do.
"""

from __future__ import annotations

from skforge.compiler.codegen.cuda.emitter import emit_gpu
from skforge.compiler.pipeline import Lowered
from skforge.compiler.runtime.gpu.cache import resources_of
from skforge.compiler.runtime.gpu.compilers import Kind
from skforge.compiler.schedule.directives import Interleave
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import TargetError

#: Registers of 32 bits that a block may have, and a thread at most: NVIDIA's, on all
#: architectures there are targets for; AMD's have no fewer.
REGISTERS, MOST_OF_THREAD = 65536, 255

#: Registers of a walk at least, and of each further one in flight: its node and its
#: value. sm_90 takes 18 and 3.3 (docs/schedules.md).
WALK, IN_FLIGHT = 12, 2


def problem(schedule: Schedule, lowered: Lowered, target: Target) -> str:
    """Return why a kernel is not worth a run; empty if nothing speaks against it.

    An emulated GPU is judged as the GPU would be.
    """
    plan = emit_gpu(lowered.kernel.function, target)
    kind: Kind = "hip" if target.kind == "hip" else "cuda"
    try:
        found = resources_of(plan.source, target.cpu, kind)
    except TargetError:  # no compiler here
        threads = max((launch.threads for launch in plan.launches()), default=1)
        return _by_model(schedule, threads)
    for launch in plan.launches():
        used = found[launch.kernel]
        local = max(used.stack_bytes, used.spill_bytes)
        if local:
            return (
                f"{launch.kernel} keeps {local} bytes of each thread in local memory, "
                f"beside its {used.registers} registers ({target.cpu})"
            )
    return ""


def _by_model(schedule: Schedule, threads: int) -> str:
    """Judge registers by walks in flight, which are known without a compiler."""
    walks = max(
        (d.factor or 1 for d in schedule.directives if isinstance(d, Interleave)),
        default=1,
    )
    least, most = WALK + IN_FLIGHT * walks, min(MOST_OF_THREAD, REGISTERS // threads)
    if least <= most:
        return ""
    return (
        f"{walks} walks in flight take {least} registers at least, by a model, and a "
        f"block of {threads} threads leaves each {most}; no compiler is here to tell"
    )
