"""Default GPU schedules: each range has one, it fits forest and GPU, and is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from skforge import load_forest
from skforge.compiler import driver
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.runtime.module import compile_forest
from skforge.compiler.schedule.directives import Interleave, Tile
from skforge.compiler.target import Target
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.defaults import default_gpu_schedules, walking_gpu_schedule
from tests.exactness.checks import assert_same_bits, expected, raw_of
from tests.exactness.forests import MAKERS, drawn, forest
from tests.gpu_binary import compile_text
from tests.gpu_kernels import CUDA, HIP, needs
from tests.turns import in_turns

ARCHES = (*CUDA, "sm_120", *HIP)
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


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["scalar", "multiclass many", "vector 3", "double"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_defaults_are_right(name: str, reduction: Reduction) -> None:
    made = forest(name)
    rows, raw, _ = expected(name)
    batch = np.resize(rows, (130, rows.shape[1]))
    wanted = np.resize(raw, (130, raw.shape[1]))
    table = default_gpu_schedules(made, Target.cuda("sm_90"), reduction)
    for schedule in set(table.values()):
        module = compile_forest(made, schedule, "emulated", reduction)
        for n in (1, 33, 130):
            got = raw_of(module, batch[:n])
            if reduction == "exact":
                assert_same_bits(got, wanted[:n], (name, n, schedule))
            else:
                np.testing.assert_allclose(got, wanted[:n], rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["many trees", "shallow", "deep", "categories"])
def test_defaults_of_larger_forests_are_exact(kind: str) -> None:
    made = {
        "many trees": lambda: drawn(300, 3, n_outputs=3),
        "shallow": lambda: drawn(70, 4, shape="full"),
        "deep": lambda: drawn(40, 12),
        "categories": lambda: drawn(40, 5, category_words=4),
    }[kind]()
    from skforge.compiler.forest.reference import reference_raw

    rows = np.random.default_rng(0).standard_normal((70, made.n_features))
    rows = rows.astype(np.float32)
    wanted = reference_raw(made, rows)
    table = default_gpu_schedules(made, Target.cuda("sm_90"))
    for schedule in set(table.values()):
        got = raw_of(compile_forest(made, schedule, "emulated"), rows)
        assert_same_bits(got, wanted, (kind, schedule))


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


def test_ranges_follow_the_work() -> None:
    target = Target.cuda("sm_90")
    few, many = drawn(100, 4), drawn(3000, 3)

    def firsts(made, target=target, mode="exact"):
        return [first for first, _ in default_gpu_schedules(made, target, mode)]

    # A row's trees by threads, by warps, a thread a row or shared predicates.
    assert firsts(few) == [1, 32, 1024, 32768]
    assert firsts(many) == [1, 32, 513, 32768]
    assert firsts(few, replace(target, n_cores=20)) == [1, 32, 1024, 4096]
    *_, exact = default_gpu_schedules(few, target).values()
    *_, integers = default_gpu_schedules(few, target, "reproducible").values()
    # Predicates are shared where floats are added in order.
    assert "bitsliced" in repr(exact) and "bitsliced" not in repr(integers)


def test_shared_predicates_wait_for_batches_that_fill_the_gpu(shared_models) -> None:
    target = Target.cuda("sm_90")
    airline = load_forest(shared_models / "airline.json")
    *_, walks, bits = default_gpu_schedules(airline, target).items()
    assert walks[0] == (32768, 131071) and "bitsliced" not in repr(walks[1])
    assert "bitsliced" in repr(bits[1]) and '"b0", "b1", 1024' in repr(bits[1])
    # Less shared memory: smaller tables, two of them at a time.
    made = drawn(100, 6, shape="full")
    *_, small = default_gpu_schedules(made, Target.cuda("sm_75")).values()
    assert '"b0", "b1", 256' in repr(small) and "bitsliced" in repr(small)


def test_trees_are_dealt_out_so_that_none_is_left_over() -> None:
    target = Target.cuda("sm_90")
    for n_trees, dealt in ((100, 20), (300, 25), (1000, 25), (7 * 11, 11)):
        made = drawn(n_trees, 6, shape="full")
        table = default_gpu_schedules(made, target)
        (some,) = (s for (_, last), s in table.items() if last == 32767)
        tile = next(d for d in some.directives if isinstance(d, Tile) and d.size != 32)
        flight = next(d for d in some.directives if isinstance(d, Interleave))
        assert tile.size == dealt and n_trees % dealt == 0
        assert n_trees // dealt % flight.factor == 0


def test_wide_rows_may_take_all_shared_memory() -> None:
    target = Target.cuda("sm_90")
    table = default_gpu_schedules(drawn(100, 6, n_features=2000), target)
    some = table[1024, 32767]
    assert '"b0", "b1", 16' in repr(some) and 'cache("b0")' in repr(some)
    # 1,000 sums of 32 rows: 128 KB, which leaves room for one block, are shared.
    table = default_gpu_schedules(drawn(1000, 4), target)
    assert 'shared_reduce("t1")' in repr(table[513, 32767])


def test_what_suits_a_forest() -> None:
    target = Target.cuda("sm_90")
    *_, full = default_gpu_schedules(drawn(100, 6, shape="full"), target).values()
    assert "bitsliced" in repr(full)  # a few hundred distinct predicates
    whole = drawn(100, 6, shape="full")
    *_, padded = default_gpu_schedules(whole, target, "reproducible").values()
    assert "unroll_walk" in repr(padded) and 'cache("b0")' in repr(padded)
    wide = drawn(100, 9, dtype="float64", sums="float64")
    *_, codes = default_gpu_schedules(wide, target, "reproducible").values()
    assert "quantize" in repr(codes)  # reads of 64 bits take four cycles
    single, *_ = default_gpu_schedules(drawn(100, 6), target).values()
    assert 'gpu_dimension("t1", "block.x")' in repr(single)
    single, *_ = default_gpu_schedules(drawn(9000, 1), target).values()
    assert 'gpu_dimension("t0", "grid.y")' in repr(single)
    assert "quantize" not in repr(walking_gpu_schedule(wide, target))


def test_shared_models_bind(shared_models) -> None:
    for name in ("airline.json", "lightgbm/NYC_taxi.txt", "epsilon.json"):
        made = load_forest(shared_models / name)
        for arch in ("sm_75", "gfx1030"):
            for schedule in default_gpu_schedules(made, target_of(arch)).values():
                driver.build_hir(made, schedule, "exact", kind="gpu")
                lowered(made, schedule, target_of(arch))
