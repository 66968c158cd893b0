"""Tests of ``unit/test_lanes.py`` that compile or start processes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.layouts.lanes import lanes
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import emit_assembly
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import lanes_schedule
from tests.exactness.checks import interpreted
from tests.exactness.forests import drawn, forest_of, tree
from tests.llvm_kernels import targets
from tests.strategies_forest import edge_rows
from tests.unit.test_lanes import layout


def assembly(made: Forest, target: Target) -> str:
    hir = driver.build_hir(made, lanes_schedule(), "exact")
    return emit_assembly(driver.lower(hir, target).kernel.function, target)


def loop_with(text: str, instruction: str) -> list[str]:
    """Return the lines of the one block that holds an instruction most often."""
    blocks = re.split(r"^\.L\w+:.*$", text, flags=re.MULTILINE)
    best = max(blocks, key=lambda block: len(re.findall(instruction, block)))
    return [
        line for line in best.splitlines() if line.startswith("\t") and line[1] != "."
    ]


def depth_6(n_features: int) -> Forest:
    made = drawn(
        100,
        6,
        shape="full",
        n_features=n_features,
        comparisons=(Comparison.LT,),
        missing=(Missing.NEVER,),
    )
    return one_column_a_feature(made)


def one_column_a_feature(made: Forest) -> Forest:
    return replace(made, missing_left=np.zeros_like(made.missing_left))


@pytest.mark.parametrize(
    ("features", "permute", "permutes"), [(12, "vpermb", 63), (90, "vperm[it]2b", 6)]
)
def test_a_position_takes_three_and_a_half_instructions(
    features: int, permute: str, permutes: int
) -> None:
    """Codes in two registers are looked up once a level, those in one once a node."""
    host = targets()["host"]
    if not host.has("avx512vbmi"):
        pytest.skip("this machine has no AVX-512 VBMI")
    text = assembly(depth_6(features), host)
    lines = loop_with(text, permute)
    assert len(re.findall(rf"\t{permute}\s", text)) == permutes
    # load, permute, subtract, and a masked move for every second position; or two loads
    # and, for every second position, two masked moves
    assert len(lines) <= 3.5 * 63 + 30
    # the columns' loop has the constants it needs: nothing goes to the stack and back
    assert not [line for line in lines if "vmov" in line and "rbp" in line]
    assert "gather" not in text


def even(made: Forest) -> Forest:
    """Return full trees whose levels have one test each."""
    predicate = made.predicate.copy()
    depth = made.node_depths()
    for first, end in pairwise(made.tree_offset.tolist()):
        for level in range(int(depth[first:end].max())):
            nodes = first + np.flatnonzero(depth[first:end] == level)
            predicate[nodes] = predicate[nodes[0]]
    return replace(made, predicate=predicate)


@pytest.mark.parametrize("depths", [(6,), (8, 3, 0, 1), (2, 7)])
def test_a_level_of_even_trees_is_one_position(depths: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    trees = [tree("full", depth, random) for depth in depths for _ in range(30)]
    made = even(forest_of(trees, n_features=20))
    top = layout(made).top
    assert top is not None
    assert top.even
    assert top.levels == min(8, max(depths))
    assert top.tests.shape[1] == top.levels
    rows = edge_rows(made, 40, seed=1)
    module = compile_forest(made, lanes_schedule())
    wanted = reference_raw(made, rows)[:, 0]
    np.testing.assert_array_equal(module.predict_raw(rows), wanted)
    mixed = made.predicate.copy()
    mixed[2] = (mixed[1] + 1) % made.n_predicates
    assert not layout(replace(made, predicate=mixed)).top.even


@pytest.mark.parametrize("n_features", [25, 40])
@pytest.mark.parametrize("target", ["host", "v2", "v3"])
def test_whole_thresholds_need_no_search(n_features: int, target: str) -> None:
    if target not in targets():
        pytest.skip(f"this machine does not run x86-64-{target}")
    random = np.random.default_rng(0)
    made = drawn(
        40,
        6,
        n_features=n_features,
        comparisons=(Comparison.LE,),
        missing=(Missing.NAN,),
    )
    whole = made.feature >= 5
    threshold = np.where(
        whole, random.integers(-1, 254, made.n_predicates), made.threshold
    )
    made = replace(
        made,
        threshold=threshold.astype(made.threshold.dtype),
        missing_left=np.ones_like(made.missing_left),
    )
    assert lanes.first_whole(made) == 5
    assert lanes.code_columns(made)[0].n_columns <= 5
    rows = edge_rows(made, 60, seed=2)
    near = made.threshold[random.integers(0, made.n_predicates, rows.shape)]
    near = np.nextafter(near, random.choice([-np.inf, np.inf], rows.shape))
    tiny = random.choice([0.0, 1e-40, -1e-40, 0.5, -0.5, -1.0, 254.0, 1e9], rows.shape)
    other = np.where(random.random(rows.shape) < 0.5, near, tiny).astype(rows.dtype)
    rows = np.concatenate([rows, other])
    module = compile_forest(made, lanes_schedule(), targets()[target])
    wanted = reference_raw(made, rows)[:, 0]
    np.testing.assert_array_equal(module.predict_raw(rows), wanted)
    found = interpreted(made, lanes_schedule(), rows[-2:], target=targets()[target])
    np.testing.assert_array_equal(found[:, 0], wanted[-2:])
    wide = replace(made, n_features=2000)  # most columns are not tested
    assert lanes.first_whole(wide) == 2000
    assert lanes.refusal(wide) is None
    odd = replace(made, threshold=(threshold + 0.5).astype(made.threshold.dtype))
    assert lanes.first_whole(odd) == n_features


def test_avx2_looks_sixteen_codes_up_with_one_shuffle() -> None:
    text = assembly(depth_6(12), Target.x86_64("v3"))
    positions = (1 << layout(depth_6(12), Target.x86_64("v3")).top.levels) - 1
    assert len(re.findall(r"\tvpshufb\s", text)) == positions
    assert "gather" not in text


def test_masks_take_one_instruction_a_plane() -> None:
    host = targets()["host"]
    if not host.has("avx512vbmi"):
        pytest.skip("this machine has no AVX-512 VBMI")
    made = drawn(100, 20, shape="chain", n_features=12, missing=(Missing.NEVER,))
    made = one_column_a_feature(made)
    masks = layout(made, host).masks
    assert masks is not None
    assert masks.planes == 4
    text = assembly(made, host)
    loops = [block for block in re.split(r"^\.L\w+:.*$", text, flags=re.MULTILINE)]
    loops = [block for block in loops if "vpermb" in block]
    assert len(loops) == len(masks.parts) > 2
    for (_, first, last), block in zip(masks.parts, loops, strict=True):
        planes = last - first
        assert len(re.findall(r"\tvpternlogq|\tvpandnq", block)) == planes
        # places, permute, compare, to a vector, the planes, three that count
        lines = re.split(r"\n\tj\w+", block)[0].strip().splitlines()
        assert len(lines) <= 7 + planes
