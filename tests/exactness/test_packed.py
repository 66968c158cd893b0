"""Tiles of three levels in sixteen bytes, on the CPU and as a GPU walks them."""

from __future__ import annotations

import pytest

from skforge.compiler.runtime.module import compile_forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import ScheduleError
from tests.exactness.checks import check_exact
from tests.exactness.forests import MAKERS, forest

BLOCKS = (
    Schedule()
    .tile("batch", "b0", "b1", 64)
    .reorder("b0", "tree", "b1")
    .quantize("b0")
    .tile_nodes(7, "complete")
    .represent("packed")
)
REFUSED = {"chains": "levels", "wide records": "column"}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [n for n in MAKERS if n not in REFUSED])
def test_same_bits(name: str) -> None:
    check_exact(name, BLOCKS.interleave("b1", 4), batches=(1, 3, 65))


@pytest.mark.parametrize("name", REFUSED)
def test_forests_that_do_not_fit(name: str) -> None:
    with pytest.raises(ScheduleError, match=REFUSED[name]):
        compile_forest(forest(name), BLOCKS).compile_all()


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (BLOCKS.unroll_walk("tree", 3), "unroll_walk has no effect"),
        (BLOCKS.vectorize("b1"), "vectorize has no effect"),
        (BLOCKS.pad_trees(), "pad_trees has no effect"),
        (Schedule().represent("packed"), "tile_nodes"),
        (
            Schedule().tile_nodes(7, "complete").represent("packed"),
            "compares one-byte codes",
        ),
    ],
)
def test_schedules_that_do_not_fit(schedule: Schedule, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        compile_forest(forest("scalar"), schedule).compile_all()


def test_a_tile_is_sixteen_bytes() -> None:
    made = forest("full")
    text = compile_forest(made, BLOCKS).inspect("lir")
    assert text.count("vec<u32 x 4> = load @tiles") or "load @tiles" in text
    # trees of four levels are two tiles high: one and eight of them
    assert made.n_trees * 9 * 16 == _tile_bytes(made)


def _tile_bytes(made: object) -> int:
    from skforge.compiler.driver import build_hir
    from skforge.compiler.layouts import base

    hir = build_hir(made, BLOCKS, "exact")  # type: ignore[arg-type]
    layout = base.get("packed").lay_out(hir)
    return sum(item.data.nbytes for item in layout.buffers())
