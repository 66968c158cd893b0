"""Every directive changes what it must: counted in LIR, LLVM, assembly and calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.driver import Lowered
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.walk import bodies, statements
from skforge.compiler.layouts import base as representations
from skforge.compiler.passes.mir.insert_caches import BYTES_AHEAD
from skforge.compiler.passes.mir.specialize_depths import MAX_CLASSES
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.schedule.families import bitsliced_schedule
from skforge.schedule.schedule import Schedule
from tests import toy_representation
from tests.exactness.forests import drawn, forest, forest_of, tree

ROWS = Schedule()
TREES = Schedule().reorder("tree", "batch")
BLOCKS = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
TILES = Schedule().tile("tree", "t0", "t1", 3).reorder("t0", "batch", "t1")


def lowered(
    made: Forest | str, schedule: Schedule, reduction: str = "exact", level: str = "v3"
) -> Lowered:
    made = forest(made) if isinstance(made, str) else made
    hir = driver.build_hir(made, schedule, reduction)
    return driver.lower(hir, Target.x86_64(level))


def function_of(*args: object, **kwargs: object) -> lir.Function:
    return lowered(*args, **kwargs).kernel.function


def of_type(function: lir.Function, kind: type) -> list:
    return [stmt for stmt in statements(function.body) if isinstance(stmt, kind)]


def ops(function: lir.Function, kind: type) -> list:
    """Return (value, operation) of every Let of a kind."""
    lets = of_type(function, lir.Let)
    return [(let.value, let.op) for let in lets if isinstance(let.op, kind)]


def constants(function: lir.Function) -> dict[str, object]:
    return {value.name: op.value for value, op in ops(function, lir.Const)}


def loops(function: lir.Function, hint: str) -> list[lir.For]:
    return [f for f in of_type(function, lir.For) if f.var.name.startswith(f"{hint}.")]


def loads_of(body: tuple, buffer: str) -> int:
    return sum(
        isinstance(stmt, lir.Let)
        and isinstance(stmt.op, (lir.Load, lir.Gather))
        and stmt.op.buffer.name == buffer
        for stmt in statements(body)
    )


def checked_hops(function: lir.Function) -> list[int]:
    """Return how many walks each loop with leaf checks carries."""
    return [len(loop.inits) - 1 for loop in of_type(function, lir.While)]


def free_hops(function: lir.Function) -> list[int]:
    """Return the rows read by hops without leaf checks: one count a body of a loop.

    A hop in a counted loop is read as often as the loop runs.
    """
    known = constants(function)

    def count(body: tuple) -> int:
        total = 0
        for stmt in body:
            if isinstance(stmt, lir.Let):
                total += loads_of((stmt,), "rows")
            elif isinstance(stmt, lir.For) and stmt.var.name.startswith("hop."):
                total += known[stmt.hi.name] * count(stmt.body)
        return total

    return [n for n in map(count, _bodies(function.body)) if n]


def _bodies(body: tuple) -> Iterator[tuple]:
    yield body
    for stmt in body:
        if isinstance(stmt, lir.While):
            continue
        if isinstance(stmt, lir.For) and stmt.var.name.startswith("hop."):
            continue
        for inner in bodies(stmt):
            yield from _bodies(inner)


# ------------------------------------------------------------------- walks in flight


@pytest.mark.parametrize("factor", [2, 3, 8, 16])
@pytest.mark.parametrize(
    "schedule", [BLOCKS.reorder("b0", "tree", "b1"), ROWS], ids=["rows", "trees"]
)
def test_interleave_keeps_walks_in_flight(factor: int, schedule: Schedule) -> None:
    index = "b1" if schedule is not ROWS else "tree"
    plain = function_of(drawn(40, 5), schedule)
    assert checked_hops(plain) == [1]
    found = function_of(drawn(40, 5), schedule.interleave(index, factor))
    # all in one loop of hops; what is left over, one by one (16 divides the block,
    # but the last block of a batch may be shorter)
    whole = index == "tree" and 40 % factor == 0
    assert checked_hops(found) == ([factor] if whole else [factor, 1])


def test_interleave_without_a_factor_takes_the_whole_loop() -> None:
    found = function_of(drawn(8, 4), ROWS.tile("tree", "t0", "t1", 4).interleave("t1"))
    assert checked_hops(found) == [4]


# ------------------------------------------------------------------------ leaf checks


@pytest.mark.parametrize(
    ("directive", "depth", "free", "checks"),
    [
        (None, 0, [], [1]),
        ("unroll_walk", 1, [1], [1]),
        ("unroll_walk", 2, [2], [1]),
        ("unroll_walk", 4, [4], []),  # as deep as all leaves: no check is left
        ("unroll_walk", 6, [6], []),  # padded further
        ("peel_walk", 2, [2], [1]),
        ("peel_walk", 4, [4], []),
        ("peel_walk", 9, [4], []),  # never past the shallowest leaf
    ],
)
def test_hops_without_leaf_checks(directive, depth, free, checks):
    """All leaves of "full" are 4 deep."""
    schedule = BLOCKS
    if directive is not None:
        schedule = getattr(BLOCKS, directive)("b1", depth)
    found = function_of("full", schedule)
    assert (free_hops(found), checked_hops(found)) == (free, checks)


def test_walks_are_padded_for_unroll_and_never_for_peel() -> None:
    items = {
        name: getattr(BLOCKS, name)("b1", 4) for name in ("unroll_walk", "peel_walk")
    }
    sizes = {
        name: lowered("scalar", schedule).hir.tiles.n_items
        for name, schedule in items.items()
    }
    plain = lowered("scalar", BLOCKS).hir.tiles
    assert plain.min_depth.min() == 1
    assert sizes["peel_walk"] == plain.n_items < sizes["unroll_walk"]
    # peeled to the shallowest leaf of all trees
    assert free_hops(function_of("scalar", items["peel_walk"])) == [1]


def test_padded_trees_have_leaves_at_one_depth() -> None:
    plain = lowered("scalar", ROWS).hir.tiles
    padded = lowered("scalar", ROWS.pad_trees()).hir.tiles
    assert (plain.min_depth < plain.max_depth).any()
    np.testing.assert_array_equal(padded.min_depth, padded.max_depth)
    np.testing.assert_array_equal(padded.max_depth, plain.max_depth)


# --------------------------------------------------------------------- separate code


def test_specialize_makes_a_case_for_each_depth() -> None:
    random = np.random.default_rng(0)
    made = forest_of([tree("full", depth, random) for depth in (2, 4, 3, 2, 4, 2)])
    assert of_type(function_of(made, BLOCKS), lir.Switch) == []
    found = function_of(made, BLOCKS.specialize("tree"))
    (switch,) = of_type(found, lir.Switch)
    assert len(switch.cases) == 3
    # each knows its trees' depth, so that none has a leaf check
    assert checked_hops(found) == []
    assert sorted(free_hops(found)) == [2, 3, 4]


def test_specialize_is_bounded_however_many_depths_there_are() -> None:
    random = np.random.default_rng(0)
    many = forest_of([tree("chain", 1 + i % 60, random) for i in range(300)])
    (switch,) = of_type(function_of(many, BLOCKS.specialize("tree")), lir.Switch)
    assert len(switch.cases) == MAX_CLASSES + 1  # the rest shares one


def test_specialize_needs_no_switch_where_all_trees_are_alike() -> None:
    found = function_of("full", BLOCKS.specialize("tree"))
    assert of_type(found, lir.Switch) == []
    assert (free_hops(found), checked_hops(found)) == ([4], [])


@pytest.mark.parametrize("size", [2, 5])
def test_unroll_copies_the_body(size: int) -> None:
    schedule = ROWS.tile("tree", "t0", "t1", size)
    plain = function_of(drawn(10, 4), schedule)
    copied = function_of(drawn(10, 4), schedule.unroll("t1"))
    assert (len(checked_hops(plain)), len(checked_hops(copied))) == (1, size)
    assert (len(loops(plain, "t1")), len(loops(copied, "t1"))) == (1, 0)


# ------------------------------------------------------------------------- vectorize


@pytest.mark.parametrize(
    ("level", "kind", "lanes"),
    [
        ("v2", "scalar", 4),
        ("v3", "scalar", 8),
        ("v4", "scalar", 16),
        ("v2", "double", 2),
        ("v3", "double", 4),
        ("v4", "double", 8),
    ],
)
def test_vectorize_walks_rows_in_the_targets_lanes(level, kind, lanes):
    assert ops(function_of(kind, BLOCKS, level=level), lir.Gather) == []
    found = function_of(kind, BLOCKS.vectorize("b1"), level=level)
    gathers = ops(found, lir.Gather)
    assert {value.type.lanes for value, _ in gathers} == {lanes}
    per_buffer = Counter(op.buffer.name for _, op in gathers)
    # a hop reads a feature, its word and its threshold; then a leaf and its sum
    assert per_buffer == {"rows": 1, "nodes": 2, "leaf_values": 1, "result": 1}
    assert checked_hops(found) == [1, 1]  # the vector of walks, and rows left over


def test_blocks_of_predicates_prefetch_the_next_one() -> None:
    """Up to its last row, to L2, and only where a block is no large part of it."""

    def levels(wide: Forest) -> set[int]:
        function = function_of(wide, bitsliced_schedule(256))
        return {s.level for s in of_type(function, lir.Prefetch)}

    made = drawn(3, 4)
    found = lowered(made, bitsliced_schedule(256)).kernel.function
    assert {(s.buffer.name, s.level) for s in of_type(found, lir.Prefetch)} == {
        ("rows", 2)
    }
    wide = replace(made, n_features=BYTES_AHEAD // (4 * 256))
    assert made.input_dtype.itemsize == 4
    assert {1, 2} == levels(wide)  # to L1, rows of several lines that come next
    wide = replace(made, n_features=wide.n_features + 1)
    assert {1} == levels(wide)


def prefetched(body: Sequence[lir.Stmt], values: dict[str, int]) -> list[int]:
    """Run loops of sums and products; return the elements of nodes they prefetch."""
    found: list[int] = []
    for stmt in body:
        match stmt:
            case lir.Let(value, lir.Const(number)):
                values[value.name] = number
            case lir.Let(value, lir.Binary("add", one, two)):
                values[value.name] = values[one.name] + values[two.name]
            case lir.Let(value, lir.Binary("mul", one, two)):
                values[value.name] = values[one.name] * values[two.name]
            case lir.For(var, lo, hi, step, inner):
                ends = (values[bound.name] for bound in (lo, hi, step))
                for values[var.name] in range(*ends):
                    found += prefetched(inner, values)
            case lir.Prefetch(buffer, index):
                assert buffer.name == "nodes"
                found.append(values[index.name])
            case _:
                raise AssertionError(stmt)
    return found


@pytest.mark.parametrize("depth", [7, 8, 11])
@pytest.mark.parametrize("representation", ["array", "reorg"])
def test_cache_prefetches_the_levels_next_to_the_roots(representation, depth):
    """Heaps grow with 2^depth, and a walk meets a node a level."""
    made, words = drawn(5, depth, shape="chain"), 2
    schedule = Schedule().represent(representation)
    hir = driver.build_hir(made, schedule, "exact")
    b, first, count = Builder(), lir.Value("first", lir.I64), lir.Value("n", lir.I64)
    layout = representations.get(representation).lay_out(hir)
    with b:
        layout.cache_trees(b, first, count)
    heap, line = 2 ** (depth + 1) - 1, 16
    near = min(heap, 255)
    # five trees are one heap: each level begins behind those of all trees
    level = [2**k for k in range(min(depth + 1, 8))]
    spans = [(5 * (width - 1) + width, 3 * width) for width in level]
    if representation == "reorg":
        spans = [(place * 5 + 1, 3) for place in range(near)]
    assert prefetched(b.finish(), {"first": 1, "n": 3}) == [
        element
        for first, n in spans
        for element in range(first * words, (first + n) * words, line)
    ]


# ------------------------------------------------------------------------ reductions


def scratch_of(function: lir.Function) -> list[str]:
    return [re.sub(r"\.\d+$", "", a.buffer.name) for a in of_type(function, lir.Alloc)]


def test_fast_privatises_and_exact_stores_leaves() -> None:
    parallel = TILES.parallel("t0")
    assert scratch_of(function_of("scalar", TILES)) == []
    assert scratch_of(function_of("scalar", parallel)) == ["leaves_1"]
    assert scratch_of(function_of("scalar", parallel, "fast")) == ["result_1"]
    # atomic additions go to the result itself
    atomic = parallel.atomic_reduce("t0")
    assert scratch_of(function_of("scalar", atomic, "fast")) == []


def test_reproducible_atomics_are_on_integers() -> None:
    atomic = TILES.parallel("t0").atomic_reduce("t0")
    found = function_of("scalar", atomic, "reproducible")
    assert [stmt.buffer.element for stmt in of_type(found, lir.AtomicAdd)] == [lir.I64]


def test_exact_sums_are_never_atomic() -> None:
    """The order would be open: exact mode stores leaves instead."""
    found = function_of("scalar", TILES.parallel("t0").atomic_reduce("t0"))
    assert of_type(found, lir.AtomicAdd) == []
    assert scratch_of(found) == ["leaves_1"]


def vector_adds(function: lir.Function) -> Counter[int]:
    return Counter(
        value.type.lanes
        for value, op in ops(function, lir.Binary)
        if op.op == "add"
        and isinstance(value.type, lir.Vec)
        and value.type.element.is_float
    )


@pytest.mark.parametrize("reduction", ["fast", "exact"])
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_vector_reduce_adds_vectors_of_its_width(width: int, reduction: str) -> None:
    parallel = TILES.parallel("t0")
    assert vector_adds(function_of("scalar", parallel, reduction)) == {}
    found = function_of("scalar", parallel.vector_reduce("t0", width), reduction)
    assert vector_adds(found) == {width: 1}


# ------------------------------------------------------------------------ node tiles


@pytest.mark.parametrize("kind", ["uniform", "probability"])
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_tile_nodes_compares_all_nodes_of_a_tile_at_once(size: int, kind: str) -> None:
    plain = lowered("full", ROWS)
    tiled = lowered("full", ROWS.tile_nodes(size, kind))
    assert "exit_table" not in {d.buffer.name for d in plain.kernel.data}
    found = tiled.kernel.function
    hops = of_type(found, lir.While)
    assert len(hops) == 1
    inside = lir.Function("hop", found.params, hops[0].body)
    tests = [op for value, op in ops(inside, lir.Compare) if op.op in ("ge", "gt")]
    assert [test.a.type for test in tests] == [lir.Vec(lir.F32, size)]
    assert loads_of(hops[0].body, "exit_table") == 1
    assert len(ops(inside, lir.MaskBits)) == 1
    # fewer hops, which is what it is for
    assert mean_depth(tiled) < mean_depth(plain)


def mean_depth(kernel: Lowered) -> float:
    tiles = kernel.hir.tiles
    return float(tiles.depth[tiles.leaf >= 0].mean())


def test_likely_tiles_shorten_likely_walks() -> None:
    made = forest("deep")

    def expected_depth(kind: str) -> float:
        tiles = lowered(made, ROWS.tile_nodes(4, kind)).hir.tiles
        leaves = tiles.leaf >= 0
        weight = made.cover[tiles.node[leaves]]
        return float((tiles.depth[leaves] * weight).sum() / weight.sum())

    assert expected_depth("probability") < expected_depth("uniform")


# ----------------------------------------------------------------- the model, loops


def test_reorder_trees_sorts_them_and_keeps_the_sums_in_order() -> None:
    made = forest("mixed trees")
    plain, sorted_ = lowered(made, ROWS), lowered(made, ROWS.reorder_trees())
    order = sorted_.hir.tiles.tree_order
    depths = plain.hir.tiles.max_depth
    assert (np.diff(depths) < 0).any()
    assert (np.diff(depths[order]) >= 0).all()
    # exact sums then need a leaf of each tree, and where to store it
    assert scratch_of(plain.kernel.function) == []
    assert scratch_of(sorted_.kernel.function) == ["leaves_1"]
    assert "tree_order" in {d.buffer.name for d in sorted_.kernel.data}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("sparse", {"nodes", "roots", "tree_records"}),
        ("array", {"nodes"}),
        ("reorg", {"nodes"}),
        (
            toy_representation.Toy.name,
            {
                "toy_thresholds", "toy_features", "toy_children", "toy_shapes",
                "toy_is_leaf", "toy_roots", "toy_default_left",
            },
        ),
    ],
)  # fmt: skip
def test_represent_chooses_the_buffers(name: str, first: set[str]) -> None:
    kernel = lowered("scalar", ROWS.represent(name)).kernel
    assert {d.buffer.name for d in kernel.data} == first | {"leaf_values"}


def nest_of(function: lir.Function, body: tuple | None = None) -> list:
    """Return the loops as nested lists of names, hops and plumbing left out."""
    found = []
    for stmt in function.body if body is None else body:
        if isinstance(stmt, lir.For):
            name = stmt.var.name.split(".")[0]
            inner = nest_of(function, stmt.body)
            if name not in ("i", "hop", "line", "row"):
                found.append([name, *inner])
    return found


@pytest.mark.parametrize(
    ("schedule", "nest"),
    [
        (ROWS, [["batch", ["tree"]]]),
        (TREES, [["tree", ["batch"]]]),
        (BLOCKS, [["b0", ["tree", ["b1"]]]]),
        (ROWS.split("tree", "s0", "s1", 3), [["batch", ["s0"], ["s1"]]]),
        (TREES.split("tree", "s0", "s1", 3), [["s0", ["batch"]], ["s1", ["batch"]]]),
        (
            ROWS.tile("tree", "t0", "t1", -2).reorder("t0", "batch", "t1"),
            [["t0", ["batch", ["t1"]]]],
        ),
    ],
    ids=repr,
)
def test_loop_directives_shape_the_loops(schedule: Schedule, nest: list) -> None:
    assert nest_of(function_of("scalar", schedule)) == nest


# --------------------------------------------------------------------- size of code


@cache
def of_size(n_trees: int) -> Forest:
    return drawn(n_trees, 3, shape="full", n_features=9)


@pytest.mark.parametrize("n_trees", [100, 5000])
def test_default_kernels_are_small(n_trees: int) -> None:
    """Each statement costs about 20 us to compile: 200 ms are 10,000 of them."""
    made = of_size(n_trees)
    total = 0
    for schedule in set(default_schedules(made, Target.host()).values()):
        function = function_of(made, schedule, level="v4")
        total += len(list(statements(function.body)))
    assert total < 8000
