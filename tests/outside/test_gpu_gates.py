"""Kernels of schedules compiled for GPUs that are not here: nothing spills, all counts.

What compilers report is the same on every machine, so that it can be held: registers,
local and shared memory, barriers, exchanges, atomic operations, bytes of arguments, and
instructions of a node visit. The kernels of all schedules make one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import pytest

from benchmarks.gpu.gpu_sass import nvdisasm
from skforge import load_forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError, ScheduleError
from skforge.forest.arrays import Missing
from skforge.forest.forest import Forest
from skforge.gpu.cost import MULTIPROCESSORS
from skforge.gpu.runtime.compilers import CompilerKind, compile_ptx
from skforge.schedule import PRESETS
from skforge.schedule.directives import Represent
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn, forest
from tests.exactness.gpu_families import FAMILIES
from tests.gpu_binary import compile_text
from tests.gpu_gates import (
    Built,
    arguments_bytes,
    barriers,
    build,
    hip_argument_bytes,
    launches_of,
    of_type,
    one_text,
    ptx_kernels,
    shared_bytes,
    shuffles,
    visits,
)
from tests.gpu_kernels import CUDA, HIP, needs
from tests.occupancy import occupancy

ARCHS = (*CUDA, "sm_120", *HIP)
PRESET_SCHEDULES = {
    name: Schedule.preset(name)
    for name in PRESETS
    if Schedule.preset(name).kind == "gpu"
}
SCHEDULES = {**FAMILIES, **PRESET_SCHEDULES}
#: One of each kind of launch, region, sum and node, for architectures beside the first.
FEW = (
    "shared data, shared sums",
    "splitting",
    "two dimensions, interleaved",
    "codes, trees cached",
    "forest stationary",
    "rapids",
)
WIDE = 40  # registers with which 256 threads have three quarters of the warps


@lru_cache(maxsize=4)
def model(name: str, folder: Path | None = None) -> Forest:
    """Return a public model, or a small forest by name."""
    return forest(name) if folder is None else load_forest(folder / name)


def kind_of(arch: str) -> CompilerKind:
    return "hip" if arch.startswith("gfx") else "cuda"


def built(
    made: Forest, schedules: Mapping[str, Schedule], reduction: Reduction, arch: str
) -> dict[str, Built]:
    """Lower schedules; those whose blocks do not fit an architecture are left out."""
    found = {}
    for number, (name, schedule) in enumerate(schedules.items()):
        try:
            found[name] = build(made, schedule, reduction, arch, f"s{number}")
        except ScheduleError as error:
            known = (
                "shared memory",
                "bytes",
                "represent(",
                "levels",
                "takes 64",
                "at most 64",
            )
            assert any(words in str(error) for words in known), (name, error)
    return found


def check(
    made: Forest, schedules: Mapping[str, Schedule], reduction: Reduction, arch: str
) -> list[str]:
    """Compile schedules for an architecture, and hold all that compilers say.

    Returns the names of those that fit.
    """
    kind = kind_of(arch)
    needs(kind)
    found = built(made, schedules, reduction, arch)
    text = one_text(found)
    binary = compile_text(text, arch, kind)
    ptx = ptx_kernels(compile_ptx(text, arch)) if kind == "cuda" else {}
    own = hip_argument_bytes(binary.code) if kind == "hip" else {}
    target = Target.hip(arch) if kind == "hip" else Target.cuda(arch)
    for name, one in found.items():
        for _, launch, grid in launches_of([one]):
            what = (name, launch.kernel, arch, reduction)
            used = binary.resources[launch.kernel]
            assert (used.spill_bytes, used.stack_bytes) == (0, 0), what
            assert used.shared_bytes == 0, what  # all of it is dynamic
            most = 64 if launch.threads < 256 else WIDE
            assert used.registers <= most, (what, used)
            needed = shared_bytes(one.lowered.kernel.function, grid)
            assert launch.shared_bytes == needed <= target.shared_bytes, what
            place = occupancy(arch, launch.threads, used.registers, needed)
            assert place.blocks >= 1, what
            if place.limit == "registers":
                assert place.fraction >= 0.5, (what, place)
            if reduction == "exact":  # bits of tables may come in any order
                atomics = of_type(grid, lir.AtomicAdd)
                assert not any(add.value.type.is_float for add in atomics), what
            if kind == "hip":
                assert own[launch.kernel] == arguments_bytes(launch.args), what
                continue
            seen = ptx[launch.kernel]
            assert seen.argument_bytes == arguments_bytes(launch.args), what
            counts = seen.counts
            assert counts["bar"] == barriers(grid), what
            assert counts["shfl"] == shuffles(grid), what
            assert counts["atom"] + counts["red"] == grid_atomics(grid), what
    return list(found)


def grid_atomics(grid: lir.Grid) -> int:
    return len(of_type(grid, lir.AtomicAdd))


def few() -> dict[str, Schedule]:
    return {name: SCHEDULES[name] for name in FEW}


@pytest.mark.parametrize("arch", ["sm_90", "gfx90a"])
def test_every_schedule_of_a_small_forest(arch: str) -> None:
    assert check(model("multiclass"), SCHEDULES, "exact", arch) == list(SCHEDULES)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", [a for a in ARCHS if a not in ("sm_90", "gfx90a")])
def test_every_architecture(arch: str) -> None:
    try:
        assert check(model("multiclass"), few(), "fast", arch) == list(FEW)
    except CompilerError as error:
        if arch == "sm_120" and "invalid value for --gpu-architecture" in str(error):
            pytest.skip("this NVRTC is older than sm_120")
        raise


def test_sums_in_any_order() -> None:
    """Several outputs of a thread are in registers, too, whichever a tree adds to."""
    check(model("multiclass"), few(), "reproducible", "sm_90")


@pytest.mark.slow
def test_presets_of_a_real_model(shared_models: Path) -> None:
    made = model("airline.json", shared_models)
    fit = check(made, PRESET_SCHEDULES, "exact", "sm_90")
    # 100 trees of depth 8 are more than a block's shared memory
    assert set(PRESET_SCHEDULES) - set(fit) == {"tahoe-shared-forest"}


def represented(schedule: Schedule, name: str) -> Schedule:
    """Return a schedule with another representation than it may have."""
    rest = (d for d in schedule.directives if not isinstance(d, Represent))
    return Schedule(tuple(rest)).represent(name)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("representation", [None, "sparse", "array", "reorg"])
@pytest.mark.parametrize("reduction", ["exact", "fast", "reproducible"])
def test_every_representation(
    arch: str, representation: str | None, reduction: Reduction, shared_models: Path
) -> None:
    schedules = SCHEDULES
    if representation is not None:
        schedules = {
            name: represented(schedule, representation)
            for name, schedule in SCHEDULES.items()
        }
    check(model("multiclass"), schedules, reduction, arch)
    check(model("airline.json", shared_models), schedules, reduction, arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_occupancy_is_known_of_every_architecture(arch: str) -> None:
    assert arch in MULTIPROCESSORS


# ------------------------------------------------------------ instructions of a visit

DIRECT = Schedule.preset("tahoe-direct").cache("b0")
CODES = Schedule.preset("tahoe-direct").quantize("b0")
SUBTREES = Schedule.preset("subtrees")
#: Schedule, walks in flight, and the most instructions that a visit may take.
VISITS: dict[str, tuple[Schedule, int, float]] = {
    "sparse": (DIRECT, 1, 15),
    "array": (DIRECT.represent("array"), 1, 15),
    "sparse, padded, 4": (DIRECT.interleave("tree", 4).unroll_walk("tree", 8), 4, 13),
    "array, padded, 4": (
        DIRECT.interleave("tree", 4).unroll_walk("tree", 8).represent("array"),
        4,
        13,
    ),
    "sparse, peeled, 4": (DIRECT.interleave("tree", 4).peel_walk("tree", 4), 4, 14),
    "codes": (CODES, 1, 16),
    "subtrees": (SUBTREES.unroll_walk("t1", 8), 4, 11.75),
    "subtrees, checked": (Schedule.preset("subtrees", interleave=1), 1, 15),
}


def check_visits(made: Forest, more: float = 0) -> None:
    needs("cuda")
    if nvdisasm() is None:
        pytest.skip("nvdisasm was not found: pip install nvidia-cuda-nvdisasm")
    found = built(made, {k: v[0] for k, v in VISITS.items()}, "exact", "sm_90")
    code = compile_text(one_text(found), "sm_90", "cuda").code
    for name, one in found.items():
        _, walks, most = VISITS[name]
        (launch,) = one.plan.launches.values()
        counted = visits(code, walks)[launch.kernel]
        assert counted, (name, "no loop of hops was found")
        assert min(counted) <= most + more, (name, counted)


def test_visits_take_few_instructions() -> None:
    """Here NaN counts as zero, which is a test and a choice more."""
    check_visits(drawn(40, 8, shape="full", missing=(Missing.NEVER,)), more=2)


@pytest.mark.slow
def test_visits_of_a_real_model_take_few_instructions(shared_models: Path) -> None:
    check_visits(model("airline.json", shared_models))
