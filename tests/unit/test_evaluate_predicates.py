"""``evaluate-predicates``: the MIR it makes, that it keeps the meaning, inspection."""

from __future__ import annotations

import pytest

from skforge.compiler import driver
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.printer import print_mir
from skforge.compiler.ir.mir.verifier import verify_mir
from skforge.compiler.ir.mir.walk import loops_in
from skforge.compiler.passes.mir import evaluate_predicates
from skforge.schedule.families import bitsliced_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits
from tests.exactness.forests import drawn
from tests.exactness.sliced import case, sliced
from tests.mir_stages import stages_of, statements
from tests.oracles.mir_interpreter import interpret_mir

BEFORE, AFTER = "legalize-reductions", "evaluate-predicates"
TREE_TILES = Schedule().tile("batch", "b0", "b1", 64).tile("tree", "t0", "t1", 4)
TREE_TILES = TREE_TILES.reorder("b0", "t0", "t1", "b1")
TREE_TILES = TREE_TILES.vectorize("b1").represent("bitsliced")
SCHEDULES = {
    "default": bitsliced_schedule(),
    "serial": sliced(64, parallel=False),
    "tree-tiles": TREE_TILES.cache_predicates("b0"),
    "by-tree-tiles": TREE_TILES.cache_predicates("t0"),
    "cached-rows": sliced(64).cache("b0"),
}


def stages(name: str, schedule: Schedule) -> tuple[dict, driver.PredictEnsemble]:
    hir = driver.build_hir(case(name)[0], schedule, "exact")
    return stages_of(hir), hir


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_loops_before_and_after(name, golden):
    hir = driver.build_hir(drawn(9, 4), SCHEDULES[name], "exact")
    made = stages_of(hir)
    text = f"{print_mir(made[BEFORE])}\nafter {AFTER}:\n\n{print_mir(made[AFTER])}"
    golden(text, "mir")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("forest", ["multiclass", "vector 3", "lists and folds"])
def test_every_stage_computes_the_same(forest: str, name: str) -> None:
    _, rows, raw = case(forest)
    made, hir = stages(forest, SCHEDULES[name])
    assert hir.forest.divisor == 1
    for n in (0, 1, 70):
        for stage, function in made.items():
            legal = stage not in ("lower-to-mir", "insert-caches")
            verify_mir(function, legal=legal, final=stage == "expand-walks")
            got = interpret_mir(function, hir, rows[:n], seed=n)
            assert_same_bits(got, raw[:n], (forest, name, stage, n))


def test_later_passes_leave_blocks_alone() -> None:
    made, _ = stages("lt", sliced(64))
    assert made["expand-walks"] == made[AFTER]


def test_other_functions_are_not_touched() -> None:
    made, _ = stages_of_walk()
    assert evaluate_predicates.run(made[BEFORE]) is not None
    assert evaluate_predicates.run(made[BEFORE]) == made[BEFORE]


def stages_of_walk() -> tuple[dict, driver.PredictEnsemble]:
    schedule = Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    return stages("lt", schedule)


def test_what_a_block_holds() -> None:
    made, hir = stages("vector 3", sliced(64))
    blocks = [loop for loop in loops_in(made[AFTER].body) if loop.var == "b0"]
    (block,) = blocks
    kinds = [type(stmt) for stmt in block.body]
    assert kinds[0] is mir.EvaluatePredicates
    assert kinds[-1] is mir.StoreRows
    (alloc,) = [s for s in block.body if isinstance(s, mir.AllocArray)]
    # rows of the block by outputs: what a thread sums in, whatever the batch
    assert alloc.array.dims == (64, None)
    inner = [loop for loop in loops_in(block.body) if loop.kind == "block"]
    assert [loop.var for loop in inner] == ["b1"]
    walks = [
        s.op
        for s in statements(made[AFTER].body)
        if isinstance(s, mir.Let) and isinstance(s.op, mir.WalkDecisionTree)
    ]
    assert {walk.using for walk in walks} == {evaluate_predicates.PREDICATES}
    assert hir.forest.n_outputs == 3
