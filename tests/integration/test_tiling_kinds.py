"""Tests of ``unit/test_tiling_kinds.py`` that compile or start processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import skforge
from skforge.compiler import driver
from skforge.modules.compiled import compile_forest
from skforge.persistence import artifact
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, check_exact, expected, raw_of
from tests.exactness.forests import forest
from tests.unit import test_tiling_kinds
from tests.unit.test_tiling_kinds import BLOCKS, by_tree, depth_first

register = test_tiling_kinds.register


def test_a_kind_from_json_to_predictions(register: Callable[..., None]) -> None:
    register("depth-first", "along their leftmost paths", depth_first)
    schedule = BLOCKS.tile_nodes(3, "depth-first").interleave("b1", 4)
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert "grouped along their leftmost paths" in schedule.explain(10)
    assert "tiles of 3 nodes (depth-first)" in str(schedule.loop_nest(10))
    for name in ("scalar", "multiclass"):
        check_exact(name, schedule, batches=(1, 17, 65))
        padded = schedule.pad_trees().represent("array")
        check_exact(name, padded, batches=(1, 65))
    made = forest("scalar")
    hir = driver.build_hir(made, schedule, "exact")
    driver.verify_hir(hir)
    uniform = driver.build_hir(made, BLOCKS.tile_nodes(3), "exact")
    # other tiles, and neither kind has fewer
    assert not np.array_equal(hir.tiles.shape, uniform.tiles.shape)


@pytest.mark.parametrize("kind", ["scalar", "multiclass", "mixed trees", "categories"])
@pytest.mark.parametrize("size", [2, 5])
def test_numbers_of_tiles_from_json_to_predictions(kind: str, size: int) -> None:
    made = forest(kind)
    tiles = by_tree(made, depth_first(made, size))
    schedule = BLOCKS.tile_nodes(size, tiles).interleave("b1", 4)
    again = Schedule.from_json(schedule.to_json())
    assert again == schedule == pickle.loads(pickle.dumps(schedule))
    assert hash(again) == hash(schedule)
    assert eval(repr(schedule)) == schedule
    check_exact(kind, schedule, batches=(1, 17, 65))
    check_exact(kind, schedule.pad_trees(), batches=(1, 65))
    leaves_alone = np.where(made.leaf < 0, depth_first(made, size), 10**6)
    leaves_alone += np.where(made.leaf < 0, 0, np.arange(made.n_nodes))
    alone = BLOCKS.tile_nodes(size, by_tree(made, leaves_alone))
    one, other = (
        driver.build_hir(made, chosen, "exact").tiles for chosen in (schedule, alone)
    )
    driver.verify_hir(driver.build_hir(made, schedule, "exact"))
    np.testing.assert_array_equal(one.predicate, other.predicate)


def test_an_artifact_keeps_given_tiles(tmp_path: Path) -> None:
    made = forest("scalar")
    schedule = BLOCKS.tile_nodes(3, by_tree(made, depth_first(made, 3)))
    rows, raw, _ = expected("scalar")
    module = compile_forest(made, {(1, None): schedule})
    artifact.save(module, tmp_path / "forest.skforge")
    loaded = skforge.load(tmp_path / "forest.skforge")
    assert schedule in loaded.schedules.values()
    assert_same_bits(raw_of(loaded, rows), raw, "loaded")
