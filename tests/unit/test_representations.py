"""Representations: what they store, what they refuse, and a toy from outside."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.backend import backend_of
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts import base as representations
from skforge.compiler.layouts import encoding as encodings
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Missing
from skforge.modules.compiled import compile_forest
from skforge.schedule import families
from skforge.schedule.directives import Interleave, Unroll
from skforge.schedule.schedule import Schedule
from tests import toy_blocks, toy_representation
from tests.exactness.forests import drawn, forest

_WALKS = (toy_representation.Toy, toy_representation.WholeToy)
assert {toy.name for toy in _WALKS} < {*representations.names()}
assert {toy_blocks.ToyBlocks.name, toy_blocks.ToyRows.name} < {*representations.names()}

BLOCKS = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
LANES = Schedule().quantize("batch").vectorize("tree")
COMPLETE = BLOCKS.vectorize("b1").tile_nodes(7, "complete")

#: A schedule of each interface, from outside and of ours.
TOYS = {
    "toy blocks": BLOCKS.vectorize("b1").represent("toy_blocks"),
    "toy blocks in parallel": (
        BLOCKS.vectorize("b1").parallel("b0").represent("toy_blocks")
    ),
    "toy rows": LANES.represent("toy_rows"),
    "toy walks": BLOCKS.quantize("b0").interleave("b1", 4).represent("toy_walks"),
}
OURS = {
    "sparse": Schedule().represent("sparse"),
    "array": BLOCKS.vectorize("b1").represent("array"),
    "lanes": LANES.represent("lanes"),
    "tiles of codes": COMPLETE.quantize("b0").represent("tiles"),
    "tiles of values": COMPLETE.represent("tiles"),
    "tiles of a row": LANES.tile_nodes(7, "complete").represent("tiles"),
    "bitsliced": Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    .cache_predicates("b0").vectorize("b1").represent("bitsliced"),
}  # fmt: skip
ON_GPU = {
    "rapids on a GPU": Schedule.preset("rapids", threads=8),
    "a shared forest": Schedule.preset("tahoe-shared-forest", rows=8),
    "toy walks on a GPU": (
        Schedule.preset("tahoe-direct").quantize("b0").represent("toy_walks")
    ),
}


@pytest.mark.parametrize("name", ["array", "reorg"])
@pytest.mark.parametrize(
    ("depth", "size"), [(40, "50,331,648 MiB"), (1200, "over 2**60 bytes")]
)
def test_complete_trees_too_deep_are_refused(name: str, depth: int, size: str) -> None:
    made = drawn(3 if depth == 40 else 1, depth, shape="chain")
    with pytest.raises(ScheduleError) as error:
        compile_forest(made, Schedule().represent(name))
    assert error.value.why == (
        f'represent("{name}") would take {size} for this forest, more than its limit '
        'of 4,096 MiB; use represent("sparse").'
    )


def test_what_a_representation_cannot_hold_is_refused_when_it_is_bound() -> None:
    for schedule, message in (
        (
            Schedule().tile_nodes(2).represent("reorg"),
            'represent("reorg") stores single nodes; leave out tile_nodes or use '
            'represent("array").',
        ),
        (
            Schedule().represent("cloud"),
            'there is no representation "cloud"; the representations are '
            f"{', '.join(representations.names())}. If a package registers it, import "
            "that package first.",
        ),
    ):
        with pytest.raises(ScheduleError) as error:
            compile_forest(forest("scalar"), schedule)
        assert error.value.why == message


def test_those_that_predict_are_named() -> None:
    others = {toy.name for toy in _WALKS}
    others |= {toy_blocks.ToyBlocks.name, toy_blocks.ToyRows.name}
    assert [name for name in representations.names() if name not in others] == [
        *("array", "bitsliced", "lanes", "pieces", "reorg", "sparse", "tiles")
    ]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (BLOCKS.represent("toy_blocks"),
         'represent("toy_blocks") takes blocks of rows; tile the batch, put the '
         "loop over trees outside the loop over the rows of a block, and vectorize "
         "the latter."),
        (LANES.represent("toy_blocks"),
         'represent("toy_blocks") does not put trees in lanes; use '
         'represent("lanes") where a loop over trees is vectorised.'),
        (BLOCKS.represent("toy_rows"),
         'represent("toy_rows") takes one row through all trees at once; quantize '
         "the loop over rows and vectorize the loop over trees in it."),
        (BLOCKS.represent("bitsliced"),
         'represent("bitsliced") evaluates blocks of rows; mark their loop with '
         "cache_predicates."),
        (BLOCKS.vectorize("b1").cache_predicates("b0").represent("toy"),
         'represent("toy") walks single rows, so it does not work with '
         'cache_predicates; use represent("bitsliced").'),
        (BLOCKS.vectorize("b1").cache_predicates("tree").represent("toy_blocks"),
         'represent("toy_blocks") does not evaluate predicates by tiles of trees; mark '
         "the loop over blocks of rows with cache_predicates."),
        (COMPLETE.represent("toy_blocks"),
         'represent("toy_blocks") does not support complete tiles; use '
         'represent("tiles"), or another kind of tile_nodes.'),
        (COMPLETE.cache("tree").represent("tiles"),
         "cache prefetches the nodes of walks, but this schedule evaluates blocks of "
         "rows without walks; leave out the cache of trees."),
    ],
)  # fmt: skip
def test_loops_of_another_interface_are_refused(schedule, message):
    with pytest.raises(ScheduleError) as error:
        driver.build_hir(forest("scalar"), schedule, "exact")
    assert error.value.why == message


TILES = COMPLETE.quantize("b0").represent("tiles")
ROWS = LANES.tile_nodes(7, "complete").represent("tiles")
ORDER = 'sums floats in model order; use reduction="exact" or another representation.'
BY_VALUES = (
    'represent("tiles") compares values of rows unless they are quantised, which '
    "this forest does not allow, because it has {}; mark the loop over blocks of rows "
    "with quantize."
)
#: What a layout refuses of a forest and a way to add, or of other directives.
REFUSED = {
    "lanes of leaves": ("leaves", LANES.represent("lanes"), "exact",
        'represent("lanes") does not take a forest of single leaves; use '
        'represent("sparse").'),
    "lanes of many columns": ("wide records", LANES.represent("lanes"), "exact",
        'represent("lanes") does not take 1370 columns of codes, more than 1024; use '
        "another representation."),
    "fixed-point lanes": ("scalar", LANES.represent("lanes"), "reproducible",
        f'represent("lanes") {ORDER}'),
    "lanes in another order": ("scalar", LANES.represent("lanes").reorder_trees(),
        "exact",
        'vectorize("tree") takes one row at a time and adds its trees in the order of '
        "the model, with exact or fast reduction; leave out reorder_trees and loops "
        "that take several rows."),
    "fixed-point tiles": ("scalar", TILES, "reproducible",
        f'represent("tiles") {ORDER}'),
    "tiles of single nodes": ("scalar",
        BLOCKS.quantize("b0").vectorize("b1").represent("tiles"), "exact",
        'represent("tiles") needs tile_nodes(7, "complete") or '
        'tile_nodes(15, "complete").'),
    "padded tiles": ("deep", TILES.pad_trees(), "exact",
        'represent("tiles") ends a walk at its leaf; leave out pad_trees and '
        "unroll_walk."),
    "tiles of many columns": ("wide records", TILES, "exact",
        'represent("tiles") holds a row of at most 128 codes in registers, but this '
        "forest has 1369 columns; leave quantize out, or use another representation."),
    "tiles of many trees by row": (1025, ROWS, "exact",
        'represent("tiles") takes a row through at most 1024 trees at once, but this '
        "forest has 1025; use blocks of rows."),
    "tiles of odd blocks": ("scalar", families.tiled_schedule(40), "exact",
        'represent("tiles") takes blocks whose size is a multiple of 16 rows, at most '
        "4096; this schedule has blocks of 40."),
    "values of sets": ("categories", COMPLETE.represent("tiles"), "exact",
        BY_VALUES.format("tests for categories")),
    "values that are zero": ("any missing", COMPLETE.represent("tiles"), "exact",
        BY_VALUES.format(
            "zeros that count as missing, or several rules for missing values")),
    "values of many features": ("wide records", COMPLETE.represent("tiles"), "exact",
        BY_VALUES.format("1048576 features")),
    "tiles of predicates": ("scalar",
        COMPLETE.cache_predicates("b0").represent("tiles"), "exact",
        'represent("tiles") compares codes or values of rows, so it does not work '
        "with cache_predicates; mark the loop over blocks of rows with quantize or "
        "with nothing."),
    "tiles of trees in parallel": ("scalar",
        COMPLETE.parallel("tree").represent("tiles"), "exact",
        'represent("tiles") needs serial tree loops over all trees inside it and one '
        "vectorised loop over the block's rows inside those."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_layout_cannot_express_is_refused(case: str) -> None:
    name, schedule, reduction, message = REFUSED[case]
    made = drawn(name, 1) if isinstance(name, int) else forest(name)
    with pytest.raises(ScheduleError) as error:
        hir = driver.build_hir(made, schedule, reduction)
        driver.lower(hir, Target.x86_64("v3"))
    assert error.value.why == message


@pytest.mark.parametrize("name", ["bitsliced", "pieces", "lanes", "interactions"])
def test_what_only_cpus_have_is_refused_on_gpus(name: str) -> None:
    schedule = Schedule.preset("tahoe-direct").quantize("b0").represent(name)
    element = "interaction" if name == "interactions" else "accumulator"
    with pytest.raises(ScheduleError) as error:
        driver.build_hir(
            forest("scalar"), schedule, "exact", kind="gpu", element=element
        )
    assert error.value.why == (
        f'represent("{name}") is for CPUs, but this schedule is for a GPU; use '
        'represent("sparse"), "array" or "reorg".'
    )


BLOCK = Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
WHOLE = BLOCK.quantize("b0")


@pytest.mark.parametrize(
    "schedule",
    [
        WHOLE.interleave("b1", 8).tile_nodes(7, "complete").represent("tiles"),
        WHOLE.unroll("b1").represent("bitsliced"),
    ],
)
def test_rows_that_are_taken_as_one_block_are_not_run_one_by_one(schedule):
    (mark,) = (
        one for one in schedule.directives if isinstance(one, Interleave | Unroll)
    )
    with pytest.raises(ScheduleError) as error:
        compile_forest(forest("scalar"), schedule)
    first, *loops = str(error.value).splitlines()
    assert first == (
        f'{mark} has no effect, because quantize("b0") takes the rows of "b1" as one '
        "block; use vectorize instead."
    )
    assert loops[1:] == [
        "  for b0 in 0 to n_rows step 64:   quantize",
        f"    for tree in 0 to {forest('scalar').n_trees}:",
        f"      for b1 in 0 to min(64, n_rows - b0):   {mark.text('batch')}"
        "        <-- here",
        "        result[b0 + b1] += walk(trees[tree], rows[b0 + b1])",
    ]


def test_an_error_without_a_loop_marks_the_line_of_options() -> None:
    with pytest.raises(ScheduleError) as error:
        compile_forest(forest("scalar"), BLOCK.tile_nodes(2).represent("reorg"))
    assert str(error.value).splitlines()[:3] == [
        'represent("reorg") stores single nodes; leave out tile_nodes or use '
        'represent("array").',
        f"  # {forest('scalar').n_trees} trees, reorg, tiles of 2 nodes (uniform)"
        "        <-- here",
        "  for b0 in 0 to n_rows step 64:",
    ]


@pytest.mark.parametrize("name", [*OURS, *TOYS, *ON_GPU])
def test_lowering_leaves_a_layout_as_it_was(name, monkeypatch):
    """One layout may serve several kernels, so that nothing is noted in it."""
    target = Target.x86_64("v4")
    if name in ON_GPU:
        target = Target.cuda("sm_90", kind="emulated")
    schedule = {**OURS, **TOYS, **ON_GPU}[name]
    kind = "gpu" if target.is_gpu else "cpu"
    hir = driver.build_hir(forest("full"), schedule, "exact", kind=kind)
    laid: list[object] = []
    own = backend_of(target)
    run = own.lower

    def twice(function, hir, layout, **how):
        before = dict(vars(layout))
        texts = []
        for _ in range(2):
            made = run(function, hir, layout, **how)
            texts.append(print_lir(made.function))
            after = vars(layout)
            assert before.keys() == after.keys()
            assert all(after[key] is value for key, value in before.items())
        assert texts[0] == texts[1]
        laid.append(layout)
        return made

    monkeypatch.setattr(own, "lower", twice)
    driver.lower(hir, target)
    assert len(laid) == 1


# ------------------------------------------------------------------------- buffers


def laid_out(name: str, schedule: Schedule) -> representations.HopLayout:
    hir = driver.build_hir(forest(name), schedule, "exact")
    return representations.get(hir.nest.representation).lay_out(hir)


def bytes_of(layout: representations.HopLayout) -> int:
    return sum(item.data.nbytes for item in layout.buffers())


@pytest.mark.parametrize("name", ["array", "sparse", "reorg", "toy"])
@pytest.mark.parametrize("size", [1, 3])
def test_every_leaf_has_an_item_of_its_own(name: str, size: int) -> None:
    schedule = Schedule().represent(name)
    if size > 1:
        if name == "reorg":
            return  # stores single nodes
        schedule = schedule.tile_nodes(size)
    hir = driver.build_hir(forest("mixed trees"), schedule, "exact")
    layout = representations.get(name).lay_out(hir)
    item = layout.item_of()[hir.tiles.leaf >= 0]
    assert len(np.unique(item)) == len(item)
    assert item.min() >= 0
    assert item.max() < layout.n_items


@pytest.mark.parametrize("kind", ["scalar", "mixed trees", "chains", "one leaf"])
@pytest.mark.parametrize("padded", [False, True])
def test_leaves_of_sparse_tiles_take_no_tile(kind: str, padded: bool) -> None:
    """Treebeard, Fig. 5: a leaf beside a tile takes a hop more, others none."""
    schedule = Schedule().tile_nodes(3)
    schedule = schedule.pad_trees() if padded else schedule
    hir = driver.build_hir(forest(kind), schedule, "exact")
    tiles, layout = hir.tiles, representations.get("sparse").lay_out(hir)
    exits = [child[child >= 0] for child in tiles.child[tiles.leaf < 0]]
    leaves = [tiles.leaf[found] >= 0 for found in exits]
    hops = sum(int(leaf.sum()) for leaf in leaves if not leaf.all())
    assert bool(hops) == (kind != "one leaf" and not padded)
    idle = hir.tiles.tile_size
    words = (idle + len(exits) + hops) * layout.shape.words
    assert layout.buffers()[0].data.nbytes == 4 * words
    assert layout.n_items == forest(kind).leaf_value.shape[0]


@pytest.mark.parametrize("name", ["array", "sparse", "reorg", "sparse tiles"])
@pytest.mark.parametrize("kind", ["scalar", "double", "categories"])
def test_the_size_announced_is_the_size_of_the_nodes(name: str, kind: str) -> None:
    name, _, tiled = name.partition(" ")
    schedule = Schedule().represent(name)
    schedule = schedule.tile_nodes(3) if tiled else schedule
    hir = driver.build_hir(forest(kind), schedule, "exact")
    representation = representations.get(name)
    (nodes, *_) = representation.lay_out(hir).buffers()
    assert nodes.buffer.name == "nodes"
    assert nodes.data.nbytes == representation.size_in_bytes(hir)


def test_records_are_packed_where_numbers_fit_one_word() -> None:
    """8 bytes a node: threshold, and feature and child together."""
    sparse = Schedule().represent("sparse")
    records = laid_out("scalar", sparse)
    assert records.shape.words == 2
    wide = laid_out("wide records", sparse)
    assert wide.shape.words == 3
    assert laid_out("double", sparse).shape.words == 4  # thresholds stay aligned
    assert laid_out("scalar", sparse.tile_nodes(4)).shape.words == 4 + 4 + 1 + 1


def test_reorg_interleaves_the_trees() -> None:
    """RAPIDS' order: all roots first, then all left children, and so on."""
    hir = driver.build_hir(forest("full"), Schedule().represent("reorg"), "exact")
    layout = representations.get("reorg").lay_out(hir)
    roots = layout.item_of()[hir.tiles.item_offset[:-1]]
    assert roots.tolist() == list(range(hir.tiles.n_trees))


@pytest.mark.parametrize("kind", ["full", "mixed trees"])
def test_array_numbers_the_nodes_of_all_trees_as_one_heap(kind: str) -> None:
    hir = driver.build_hir(forest(kind), Schedule().represent("array"), "exact")
    layout, tiles = representations.get("array").lay_out(hir), hir.tiles
    number = layout.item_of() + tiles.n_trees
    assert number[tiles.item_offset[:-1]].tolist() == [
        *range(tiles.n_trees, 2 * tiles.n_trees)
    ]
    inner = np.flatnonzero(tiles.leaf < 0)
    for side in (0, 1):
        assert (number[tiles.child[inner, side]] == 2 * number[inner] + side).all()


def test_tiles_of_an_array_lie_tree_by_tree() -> None:
    schedule = Schedule().tile_nodes(3).represent("array")
    hir = driver.build_hir(forest("full"), schedule, "exact")
    layout = representations.get("array").lay_out(hir)
    roots = layout.item_of()[hir.tiles.item_offset[:-1]]
    assert set(np.diff(roots)) == {layout.n_items // hir.tiles.n_trees}


@pytest.mark.parametrize(("name", "masks"), [("array", 0), ("reorg", 1)])
def test_leaves_of_equal_depth_need_no_flag_beside_the_feature(name, masks):
    """The feature word of a hop is then the feature, without a mask."""
    made = drawn(9, 4, shape="full", missing=(Missing.NEVER,))
    hir = driver.build_hir(made, Schedule().represent(name), "exact")
    function = driver.lower(hir, Target.x86_64("v3")).kernel.function
    found = [
        stmt.op
        for stmt in statements(function.body)
        if isinstance(stmt, lir.Let) and isinstance(stmt.op, lir.Binary)
    ]
    words = [op for op in found if op.op == "and" and op.a.type == lir.U32]
    assert bool(words) == bool(masks)


# ------------------------------------------------------------------------ encoding


ALL_KINDS = ("default_left", "category", "nan_is_zero", "zero_is_missing")


@pytest.mark.parametrize(
    ("kind", "flags", "all_nan_is_zero"),
    [
        ("leaves", (), False),
        ("scalar", ("default_left",), False),
        ("never missing", (), True),
        ("categories", ALL_KINDS, False),
        ("zero missing", ("default_left", "zero_is_missing"), False),
        ("any missing", ("default_left", "nan_is_zero", "zero_is_missing"), False),
    ],
)
def test_only_flags_a_forest_needs_take_bits(kind, flags, all_nan_is_zero):
    hir = driver.build_hir(forest(kind), Schedule(), "exact")
    tests = encodings.EncodedTests.of(hir)
    assert (tuple(tests.flags), tests.all_nan_is_zero) == (flags, all_nan_is_zero)
    encoding = encodings.TestEncoding.of(hir)
    assert encoding.bits == encoding.feature_bits + len(flags)


def test_plain_arrays_hold_what_the_words_encode() -> None:
    hir = driver.build_hir(forest("categories"), Schedule().tile_nodes(3), "exact")
    tests = representations.node_tests(hir)
    encoding = encodings.TestEncoding.of(hir)
    word = encoding.encode(hir.tiles.predicate)
    mask = (1 << encoding.feature_bits) - 1
    np.testing.assert_array_equal(tests.feature, word & mask)
    assert tuple(tests.flags) == tuple(encoding.tests.flags)
    for i, values in enumerate(tests.flags.values()):
        bit = (word >> (encoding.feature_bits + i)) & 1
        np.testing.assert_array_equal(values, bit != 0)
    dummy = hir.tiles.predicate < 0
    assert dummy.any()
    assert np.isnan(tests.threshold[dummy]).all()
    assert not tests.feature[dummy].any()
    assert forest("categories").missing.max() == max(Missing)
