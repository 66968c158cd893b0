"""Default GPU schedules: each range has one, it fits forest and GPU, and is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from skforge import load_forest
from skforge.compiler import driver
from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.cost.shape import Setting
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.target import Target
from skforge.gpu import defaults as gpu_defaults
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.cost import GpuWork
from skforge.gpu.defaults import default_gpu_schedules, walking_gpu_schedule
from tests.exactness.forests import MAKERS, drawn, forest
from tests.gpu_binary import compile_text
from tests.gpu_kernels import needs
from tests.turns import in_turns

#: The least and the most shared memory, and both vendors.
EXTREMES = ("sm_75", "sm_90", "gfx90a", "gfx1030")
REDUCTIONS: tuple[Reduction, ...] = ("exact", "reproducible", "fast")


def target_of(arch: str) -> Target:
    return Target.hip(arch) if arch.startswith("gfx") else Target.cuda(arch)


def lowered(made, schedule, target: Target, reduction: Reduction = "exact"):
    hir = driver.build_hir(made, schedule, reduction, kind="gpu")
    return driver.lower(hir, target).kernel


def check_ranges(table) -> None:
    firsts, lasts = zip(*table, strict=True)
    assert firsts == (1, *(last + 1 for last in lasts[:-1]))  # no gap, no overlap
    assert lasts[-1] is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "arch"),
    in_turns([n for n in MAKERS if n != "wide records"], EXTREMES, often=2),
)
def test_every_forest_has_schedules_that_bind(name: str, arch: str) -> None:
    made = forest(name)
    for reduction in REDUCTIONS:
        table = default_gpu_schedules(made, target_of(arch), reduction)
        check_ranges(table)
        for schedule in set(table.values()):
            assert lowered(made, schedule, target_of(arch), reduction).function


def test_rows_of_a_million_columns_stay_in_memory() -> None:
    table = default_gpu_schedules(forest("wide records"), Target.cuda("sm_90"))
    for schedule in table.values():
        assert ".cache(" not in repr(schedule)  # codes are of the few that are read


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n_features", [3, 100, 1000, 8000, 50_000])
@pytest.mark.parametrize("arch", EXTREMES)
def test_shared_memory_is_respected(arch: str, n_features: int) -> None:
    made = drawn(90, 5, n_features=n_features)
    for reduction in REDUCTIONS:
        for schedule in default_gpu_schedules(
            made, target_of(arch), reduction
        ).values():
            lowered(made, schedule, target_of(arch), reduction)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arch", "kind"),
    in_turns(
        ["sm_75", "sm_90", "sm_120", "gfx90a", "gfx1030"],
        ["float32", "categories", "float64"],
    ),
)
def test_defaults_compile_without_spills(kind: str, arch: str) -> None:
    needs("hip" if arch.startswith("gfx") else "cuda")
    made = {
        "float32": lambda: drawn(100, 6),
        "categories": lambda: drawn(40, 6, category_words=4),
        "float64": lambda: drawn(40, 9, dtype="float64", sums="float64"),
    }[kind]()
    target = target_of(arch)
    for schedule in set(default_gpu_schedules(made, target).values()):
        plan = emit_gpu(lowered(made, schedule, target).function, target)
        binary = compile_text(plan.source, arch, target.kind)  # type: ignore[arg-type]
        for name, used in binary.resources.items():
            assert not used.spill_bytes and not used.stack_bytes, (name, schedule)
        for launch in plan.launches.values():
            assert launch.threads <= 1024
            assert launch.shared_bytes <= target.shared_bytes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n_outputs", [20, 100])
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("arch", EXTREMES)
def test_sums_of_many_outputs_fit(arch: str, vector: bool, n_outputs: int) -> None:
    made = drawn(200, 4, n_outputs=n_outputs, vector=vector)
    for reduction in REDUCTIONS:
        table = default_gpu_schedules(made, target_of(arch), reduction)
        for schedule in table.values():
            lowered(made, schedule, target_of(arch), reduction)


def at(made, rows: int, target: Target, mode: Reduction = "exact") -> str:
    """Return the schedule of a batch size, as text."""
    for (first, last), schedule in default_gpu_schedules(made, target, mode).items():
        if first <= rows <= (last or rows):
            return repr(schedule)
    raise AssertionError(rows)


def test_few_rows_share_their_trees_and_many_do_not() -> None:
    target = Target.cuda("sm_90")
    made = drawn(100, 6, shape="full")
    assert 'gpu_dimension("t1", "block.' in at(made, 1, target)
    # Lanes are rows, and warps take parts of the trees.
    some = at(made, 8192, target)
    assert some.count("block.x") == some.count("block.y") == 1
    assert 'gpu_dimension("b1", "block.x")' in some and 'cache("b0")' in some
    # A smaller GPU is full of fewer rows.
    small = replace(target, n_cores=20)
    assert at(made, 2048, small) != at(made, 2048, target)
    # Too few trees to share.
    assert "block.y" not in at(drawn(5, 6), 100, target)


def test_no_schedule_is_much_slower_than_another_candidate() -> None:
    """What is kept, so that there are fewer kernels, costs little by the estimate."""
    target = Target.cuda("sm_90")
    for made in (drawn(100, 6), drawn(300, 9), drawn(60, 5, n_features=2400)):
        facts = gpu_defaults._Facts(made, target, "exact")
        known = list(gpu_defaults._candidates(facts))
        table = default_gpu_schedules(made, target)
        assert len(set(table.values())) <= 8
        for rows in gpu_defaults.SIZES:
            (kept,) = [
                schedule
                for (first, last), schedule in table.items()
                if first <= rows <= (last or rows)
            ]
            work = GpuWork(Setting(facts, target, rows), facts_of([kept, *known]))
            takes = np.where(work.fits, work.estimate, np.inf)
            assert takes[0] <= gpu_defaults.KEPT * takes.min()


def test_trees_are_dealt_out_so_that_none_is_left_over() -> None:
    target = Target.cuda("sm_90")
    for n_trees in (100, 300, 1000, 7 * 11):
        facts = gpu_defaults._Facts(drawn(n_trees, 6, shape="full"), target, "exact")
        parts, in_flight = facts.shares(8, 32, 16)
        assert n_trees % parts == 0 and n_trees // parts % in_flight == 0


def test_wide_rows_stay_in_memory_where_few_columns_are_read() -> None:
    """On an H100, to copy 2,400 columns for 60 trees took four times as long."""
    target = Target.cuda("sm_90")
    wide = drawn(60, 5, n_features=20_000)
    assert ".cache(" not in at(wide, 1, target) and ".cache(" not in at(
        wide, 64, target
    )
    narrow = drawn(60, 5, n_features=20)
    assert 'cache("b0")' in at(narrow, 8192, target)


def test_what_suits_a_forest() -> None:
    target = Target.cuda("sm_90")
    # Bits are added in the order of floats.
    mixed = default_gpu_schedules(drawn(100, 6), target, "reproducible").values()
    assert "bitsliced" not in repr([*mixed])
    wide = drawn(100, 9, dtype="float64", sums="float64")
    assert "quantize" not in repr(walking_gpu_schedule(wide, target))


def test_shared_models_bind(shared_models) -> None:
    for name in ("airline.json", "lightgbm/NYC_taxi.txt", "epsilon.json"):
        made = load_forest(shared_models / name)
        for arch in ("sm_75", "gfx1030"):
            for schedule in default_gpu_schedules(made, target_of(arch)).values():
                driver.build_hir(made, schedule, "exact", kind="gpu")
                lowered(made, schedule, target_of(arch))
