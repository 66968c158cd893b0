"""Every layout of blocks of rows and of trees in lanes gives the source's own bits.

What a layout alone has, such as its codes and its sums, is in the file of its name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from skforge.compiler.layouts.tiles import tile_layout
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Missing
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule import families
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import (
    assert_same_bits,
    assert_sums,
    batches_for,
    check_exact,
    cpu,
    expected,
    interpreted,
    levels,
    raw_of,
)
from tests.exactness.forests import MAKERS, forest
from tests.exactness.sliced import sliced
from tests.exactness.test_tiles import by_row, kernel_data, of_features, tiles, trained
from tests.strategies_forest import edge_rows, random_forest
from tests.turns import in_turns, random_test

#: Tiles of three trees in blocks of 16 rows; what is asked of the rows is added.
PARTS = families.tiles(16, 3, "b0", "t0", "t1", "b1")
SCHEDULES: dict[str, Schedule] = {
    "lanes": families.lanes_schedule(),
    "lanes in parallel": families.lanes_schedule(parallel=True),
    "lanes in blocks": families.pairs_schedule(),
    "tiles": tiles(),
    "tiles of 7": tiles(7),
    "tiles in parallel": tiles(15, 48).parallel("b0"),
    "tiles, 512": tiles(7, 512),
    "tiles by row": by_row(),
    "tiles by row of 7": by_row(7),
    "tiles, rows in parallel": Schedule()
    .tile("batch", "b0", "b1", 3)
    .parallel("b0")
    .quantize("b1")
    .vectorize("tree")
    .tile_nodes(15, "complete")
    .represent("tiles"),
    "tiles, parts of trees": PARTS.quantize("b0")
    .vectorize("b1")
    .tile_nodes(7, "complete")
    .represent("tiles"),
    "values": families.tiled_schedule(64, 7, codes=False),
    "values of 15": families.tiled_schedule(48, 15, codes=False),
    "values, cached": families.tiled_schedule(32, 7, codes=False).cache("b0"),
    "values, parts of trees": PARTS.vectorize("b1")
    .tile_nodes(7, "complete")
    .represent("tiles"),
    "pieces": families.pieces_schedule(128),
    "pieces, parts of trees": PARTS.quantize("b0").vectorize("b1").represent("pieces"),
    "bits": sliced(64, parallel=False),
    "bits, 128": sliced(128, parallel=False),
    "bits, 256": sliced(256, parallel=False),
    "bits, 512": sliced(512),
    "bits, 1024": sliced(1024),
    "bits, parts of trees": families.tiles(64, 3, "b0", "t0", "t1", "b1")
    .cache_predicates("b0")
    .vectorize("b1")
    .represent("bitsliced"),
    "bits, specialized": sliced(128).specialize("tree"),
    "bits by tiles of trees": families.bitsliced_schedule(512, 3),
    "bits by single trees": families.bitsliced_schedule(64, 1),
}
#: What each layout does not take, by the first word of its schedules' names.
LEAVES = {"leaves", "one leaf", "no trees"}
SETS = {"categories", "double categories"}
ZEROS = {"double extremes", "any missing", "zero missing"}
REFUSED = {
    "lanes": {*LEAVES, "wide records"},
    "tiles": {*LEAVES, "wide records"},
    "values": {*SETS, *ZEROS, "wide records"},
    "pieces": {*LEAVES, *SETS, "wide records"},
    "bits": {*LEAVES, "categories", "double extremes", "any missing"},
}
#: Rows before, at and after the ends of blocks.
SIZES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 129, 511, 513, 1000)


def layout_of(name: str) -> str:
    return name.replace(",", "").split()[0]


@pytest.mark.sampled(44)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_forests(name: str, kind: str) -> None:
    """Leaves of ``apply`` are compared for random forests, below."""
    if kind in REFUSED[layout_of(name)]:
        with pytest.raises(ScheduleError):
            compile_forest(forest(kind), SCHEDULES[name]).compile_all()
        return
    sizes = SIZES if batches_for(kind) == batches_for("scalar") else batches_for(kind)
    check_exact(kind, SCHEDULES[name], batches=sizes, n_jobs=2)


@pytest.mark.sampled(14)
@pytest.mark.parametrize(
    ("kind", "level"),
    in_turns(
        ["extremes", "zero missing", "vector 10", "double", "deep"], ["v2", "v3", "v4"]
    ),
)
@pytest.mark.parametrize(
    "name", ["lanes", "tiles", "tiles by row", "bits, 128", "bits by tiles of trees"]
)
def test_x86_64_levels(name: str, kind: str, level: str) -> None:
    check_exact(kind, SCHEDULES[name], target=cpu(level), batches=(1, 65, 513))


@pytest.mark.sampled(14)
@pytest.mark.parametrize("level", ["v2", "v3", "v4", "aarch64", "host"])
@pytest.mark.parametrize("kind", ["scalar", "multiclass", "vector 2", "extremes"])
@pytest.mark.parametrize(
    "name",
    [
        *("tiles in parallel", "tiles by row", "values, cached", "values of 15"),
        *("bits", "bits by single trees"),
    ],
)
def test_nothing_is_read_or_written_out_of_bounds(
    name: str, kind: str, level: str
) -> None:
    """The interpreter stops there; rows lie apart, and threads come in any order."""
    target = {"aarch64": Target.aarch64(), "host": Target.host()}.get(level)
    rows, raw, _ = expected(kind)
    for n in (0, 1, 17, 70):
        got = interpreted(
            forest(kind),
            SCHEDULES[name],
            rows[:n],
            target=target or Target.x86_64(level),
            extra_stride=n % 3,
            shuffle=n or None,
        )
        assert_same_bits(got, raw[:n], (name, level, n))


@pytest.mark.parametrize("kind", ["multiclass", "vector 3", "averaged"])
@pytest.mark.parametrize("name", ["lanes", "tiles", "tiles by row", "bits, 128"])
def test_fast_sums_are_within_their_bound(name: str, kind: str) -> None:
    module = compile_forest(forest(kind), SCHEDULES[name], reduction="fast")
    rows = expected(kind)[0]
    assert_sums(raw_of(module, rows), forest(kind), rows, "fast", name)


# ------------------------------------------------------------ trees of full depth

KINDS = ("numbers", "extra", "classes", "vectors", "outputs", "few of many classes")
DEEP = [
    *("tiles", "tiles of 7", "tiles by row", "tiles by row of 7"),
    *("values", "values of 15"),
]


@pytest.mark.sampled(15)
@pytest.mark.parametrize(("kind", "level"), in_turns(KINDS, ["v2", "v3", "v4"]))
@pytest.mark.parametrize("name", [*DEEP, "pieces"])
def test_full_depth(name: str, kind: str, level: str) -> None:
    made, rows, raw = trained(kind)
    module = compile_forest(made, SCHEDULES[name], cpu(level))
    for n in (1, 33, 200):
        assert_same_bits(raw_of(module, rows[:n]), raw[:n], (kind, level, n))
    # Without missing values, rows are read from one copy of their codes.
    whole = np.nan_to_num(rows)
    assert_same_bits(raw_of(module, whole), reference_raw(made, whole), kind)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "n_features"),
    [
        (name, n)
        for name in ("tiles", "tiles by row", "values", "values of 15")
        for n in (1, 3, 17, 33, 70, 128, 129, 400)
        if n <= 128 or name.startswith("values")  # tiles of codes take no more
    ],
)
def test_features_of_any_number(name: str, n_features: int, dtype: type) -> None:
    made = of_features(n_features, dtype)
    rows = draw_rows(made, 100, 2)
    module = compile_forest(made, SCHEDULES[name])
    assert_same_bits(raw_of(module, rows), reference_raw(made, rows), n_features)


@pytest.mark.parametrize("name", DEEP)
def test_items_of_large_trees_are_numbered_by_32_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rows, raw = trained("numbers")
    monkeypatch.setattr(tile_layout, "needs_wide", lambda nodes: True)
    monkeypatch.setattr(tile_layout, "ROW_BITS", 31)
    module = compile_forest(made, SCHEDULES[name])
    assert_same_bits(raw_of(module, rows), raw, name)
    assert kernel_data(made, SCHEDULES[name])["tiles"].size % 64 == 0


# ------------------------------------------------------------ random forests

#: Kinds of missing values that go together, and words of what is refused.
RANDOM: dict[str, tuple[Any, tuple[str, ...]]] = {
    "tiles": (
        st.lists(st.sampled_from(list(Missing)), min_size=1).map(set),
        ("codes in registers", "single leaves", "tree loops"),
    ),
    "values": (
        st.sampled_from([{Missing.NAN}, {Missing.NEVER}]),
        ("categories", "several rules", "tree loops"),
    ),
    "bits": (
        st.sampled_from(list(Missing)).map(lambda kind: {kind}),
        ("leave it out", "tree loops", "single leaves", "at most 256 leaves"),
    ),
}


def check_random(layout: str, data: st.DataObject) -> None:
    """Compare a random forest on this machine, or as an older one runs it."""
    missing, known = RANDOM[layout]
    target = data.draw(st.sampled_from(["cpu", *levels().values()]))
    depth = data.draw(st.sampled_from([3, 4, 7, 9]))
    kind = {"max_depth": depth, "missing": tuple(data.draw(missing))}
    made = data.draw(random_forest(max_trees=7, **kind))
    names = [name for name in SCHEDULES if layout_of(name) == layout]
    schedule = SCHEDULES[data.draw(st.sampled_from(names))]
    rows = edge_rows(made, data.draw(st.integers(0, 700)), seed=3)
    try:
        module = compile_forest(made, schedule, target)
        raw = raw_of(module, rows)
    except ScheduleError as error:
        assert any(reason in str(error) for reason in known), error
        return
    assert_same_bits(raw, reference_raw(made, rows), len(rows))
    leaves = made.source_node[reference_leaves(made, rows)]
    assert_same_bits(module.apply(rows), leaves, "apply")


test_random_tiles, test_random_values, test_random_bits = (
    random_test(check_random, 4, 1500, st.just(layout), st.data()) for layout in RANDOM
)
