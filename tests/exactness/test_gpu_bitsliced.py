"""Shared predicates on GPUs: 32 rows a word, against the reference, bit by bit."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu.gpu_sass import disassemble
from skforge.compiler import driver
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import reference_raw
from skforge.compiler.ir.lir.nodes import AtomicAdd, BlockRegion
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError, TargetError
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.layouts.bitsliced.layout import GpuBitslicedLayout, lay_out
from skforge.gpu.nest import block_shape
from tests.exactness.bits_on_gpu import bits
from tests.exactness.checks import (
    assert_same_bits,
    check_exact,
    expected,
    interpreted,
    rounding_bound,
)
from tests.exactness.forests import MAKERS, drawn, forest
from tests.exactness.sliced import MAKERS as SLICED
from tests.exactness.sliced import case
from tests.gpu_binary import compile_text
from tests.oracles.mir_interpreter import interpret_mir
from tests.simt import EMULATED_SOURCE
from tests.strategies_forest import edge_rows

TARGET = Target.cuda("sm_90", kind="emulated")
#: A word a slot and two; all threads' shares of a word; tables for tiles of trees.
SHAPES = {
    "one lane": bits(32, 8),
    "two lanes": bits(64, 4),
    "a row a thread": bits(32, 1),
    "a word a thread": bits(64, 32),
    "three lanes": bits(96, 16),
    "tiles": bits(64, 2, trees=3),
}
#: Rows' own markers become NaN before a kernel sees them.
NAMES = tuple(name for name in MAKERS if name != "marked missing")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_forest(name: str) -> None:
    rows, raw, _ = expected(name)
    for key in ("two lanes", "tiles"):
        for n in (1, 3) if name == "wide records" else (1, 70):
            got = interpreted(
                forest(name), SHAPES[key], rows[:n], target=TARGET, shuffle=n
            )
            assert_same_bits(got, raw[:n], (name, key, n))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("key", SHAPES)
@pytest.mark.parametrize("name", ["mixed trees", "multiclass", "vector 3", "double"])
def test_every_shape_of_block(name: str, key: str) -> None:
    rows, raw, _ = expected(name)
    got = interpreted(
        forest(name), SHAPES[key], rows[:97], target=TARGET, shuffle=5, extra_stride=3
    )
    assert_same_bits(got, raw[:97], (name, key))


CASES = sorted(SLICED.keys() - {"marked"})


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "name",
    [
        *CASES[::2],
        *(pytest.param(name, marks=pytest.mark.slow) for name in CASES[1::2]),
    ],
)
def test_forests_of_the_cpu(name: str) -> None:
    made, rows, raw = case(name)
    got = interpreted(made, bits(32, 4), rows[:40], target=TARGET)
    assert_same_bits(got, raw[:40], name)


EQUAL = (Comparison.EQ, Comparison.NE, Comparison.LE, Comparison.GT)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equality_and_every_rule_for_missing_values(dtype: str) -> None:
    kinds = tuple(Missing)
    _check(
        drawn(6, 5, comparisons=EQUAL, dtype=dtype, missing=kinds, thresholds=(-0.0, 0))
    )


@pytest.mark.parametrize("truncate", [False, True])
def test_members_and_categories_cut_to_integers(truncate: bool) -> None:
    made = drawn(6, 5, category_words=2, missing=tuple(Missing))
    test = made.comparison.copy()
    test[(test == Comparison.IN) & (np.arange(len(test)) % 2 == 0)] = Comparison.MEMBER
    _check(replace(made, comparison=test, truncate_categories=truncate))


def _check(made: Forest) -> None:
    rows = edge_rows(made, 70, seed=2)
    got = interpreted(made, SHAPES["two lanes"], rows, target=TARGET, shuffle=1)
    assert_same_bits(got, reference_raw(made, rows), "drawn")


def test_fast_adds_trees_of_another_order() -> None:
    made, (rows, _, _) = forest("scalar"), expected("scalar")
    schedule = SHAPES["two lanes"].reorder_trees()
    rows = rows[:40]
    got = interpreted(made, schedule, rows, reduction="fast", target=TARGET)
    off = np.abs(got - reference_raw(made, rows))
    assert (off <= rounding_bound(made, rows)).all()


@pytest.mark.parametrize("key", ["two lanes", "tiles"])
def test_mir_computes_the_same_before_it_is_lowered(key: str) -> None:
    rows, raw, _ = expected("multiclass")
    made = forest("multiclass")
    hir = driver.build_hir(made, SHAPES[key], "exact", kind="gpu")
    lowered = driver.lower(hir, TARGET)
    got = interpret_mir(lowered.stages["evaluate-predicates"], hir, rows[:70])
    assert_same_bits(got, raw[:70], key)


# ---------------------------------------------------------------- other executors


# The interpreter has run these layouts; markers are replaced only here.
@pytest.mark.parametrize(
    "name",
    [
        *("categories", "marked missing"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("scalar", "vector 2")
        ),
    ],
)
def test_grids_as_loops(name: str) -> None:
    check_exact(name, bits(128, 4), target="emulated", batches=(0, 1, 65, 1000))


# Outputs change no operation: the first two have all that the emitter writes.
@pytest.mark.parametrize(
    "name",
    [
        *("mixed trees", "double categories"),
        pytest.param("multiclass", marks=pytest.mark.slow),
    ],
)
def test_the_text_on_a_cpu(name: str) -> None:
    try:
        check_exact(name, bits(64, 4), target=EMULATED_SOURCE, batches=(1, 200))
    except TargetError as error:
        pytest.skip(str(error))


# ---------------------------------------------------------------- what it does


def test_trees_cost_no_atomics_and_two_barriers_a_group() -> None:
    hir = driver.build_hir(forest("scalar"), bits(64, 4), "exact", kind="gpu")
    body = driver.lower(hir, TARGET).kernel.function.body
    regions = [s for s in statements(body) if isinstance(s, BlockRegion)]
    # base, clear, marks, thermometers, fold, add, result
    assert len(regions) == 7
    with_atomics = [
        any(isinstance(s, AtomicAdd) for s in statements(region.body))
        for region in regions
    ]
    assert with_atomics == [False, False, True, False, False, False, False]


def test_a_tile_of_trees_has_a_smaller_table() -> None:
    made = drawn(40, 5, n_features=20)
    whole, tiles = (_layout(made, bits(64, 4, trees)) for trees in (None, 5))
    assert whole.tests.n_lines > 2 * tiles.tests.n_lines


def _layout(made: Forest, schedule: Schedule) -> GpuBitslicedLayout:
    hir = driver.build_hir(made, schedule, "exact", kind="gpu")
    shape = block_shape(driver.lower(hir, TARGET).stages["expand-walks"].body)
    assert shape is not None
    return lay_out(hir, shape, TARGET.shared_bytes)


# ---------------------------------------------------------------- refusals

REFUSED = {
    "no lanes": (bits(48, 4), "packs 32 rows into a word"),
    "too many rows a thread": (bits(128, 64), "packs 32 rows into a word"),
    "rows that are no power": (bits(96, 12), "packs 32 rows into a word"),
    "no threads": (
        Schedule()
        .tile("batch", "b0", "b1", 64)
        .reorder("b0", "tree", "b1")
        .gpu_dimension("b0", "grid.x")
        .cache_predicates("b0")
        .vectorize("b1")
        .represent("bitsliced"),
        "innermost: one over threads",
    ),
    "walks": (bits(representation="array"), "walks single rows"),
    "parts of trees": (
        bits(trees=3).split("t1", "front", "back", 2),
        "one inside the other",
    ),
}


@pytest.mark.parametrize("key", REFUSED)
def test_refused_when_bound(key: str) -> None:
    schedule, why = REFUSED[key]
    with pytest.raises(ScheduleError, match=why):
        driver.build_hir(forest("scalar"), schedule, "exact", kind="gpu")


def test_refuses_what_no_block_holds() -> None:
    hir = driver.build_hir(drawn(60, 7), bits(1024, 4), "exact", kind="gpu")
    with pytest.raises(ScheduleError, match="Use blocks of fewer rows"):
        driver.lower(hir, replace(TARGET, shared_bytes=32 << 10))
    with pytest.raises(ScheduleError, match="shared memory to"):
        driver.lower(hir, Target.cuda("sm_75"))


def test_refuses_trees_of_too_many_leaves() -> None:
    with pytest.raises(ScheduleError, match="at most 256 leaves"):
        made = drawn(1, 10, shape="full")
        driver.build_hir(made, bits(), "exact", kind="gpu")


# ---------------------------------------------------------------- compiled code

GATED = {
    "full": lambda: drawn(40, 6, shape="full", n_features=10),
    "lists": lambda: drawn(30, 10),
    "multiclass": lambda: drawn(30, 6, n_outputs=3, n_features=10),
    "categories": lambda: drawn(40, 6, category_words=4),
}


def _straight_line(cubin: bytes) -> int:
    """Return the instructions of the longest run without a branch: a tree's fold."""
    try:
        text = disassemble(cubin)
    except TargetError as error:
        pytest.skip(str(error))
    runs = re.split(r"^\.L_x_\d+:|\bBRA\b", text, flags=re.MULTILINE)
    return max(len(re.findall(r"/\*[0-9a-f]{4,}\*/ +\S", run)) for run in runs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("key", GATED)
def test_nothing_spills(key: str, arch: str) -> None:
    target = Target.cuda(arch)
    hir = driver.build_hir(GATED[key](), bits(1024, 4), "exact", kind="gpu")
    lowered = driver.lower(hir, target)
    plan = emit_gpu(lowered.kernel.function, target)
    try:
        made = compile_text(plan.source, arch, "cuda")
    except TargetError as error:
        pytest.skip(str(error))
    ((_, used),) = made.resources.items()
    assert (used.spill_bytes, used.stack_bytes, used.shared_bytes) == (0, 0, 0)
    assert used.registers <= 128
    shape = block_shape(lowered.stages["expand-walks"].body)
    assert shape is not None
    (launch,) = plan.launches.values()
    layout = lay_out(hir, shape, target.shared_bytes)
    assert launch.shared_bytes == layout.shared_bytes()
    if key == "full":
        assert layout.geometry.wide == 2
        # 63 nodes and a transpose of bits, for 64 rows: 7 a row and tree.
        assert _straight_line(made.code) <= 450
