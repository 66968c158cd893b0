"""Every directive changes what it must: counted in LIR, LLVM, assembly and calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

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


def scratch_of(function: lir.Function) -> list[str]:
    return [re.sub(r"\.\d+$", "", a.buffer.name) for a in of_type(function, lir.Alloc)]


def vector_adds(function: lir.Function) -> Counter[int]:
    return Counter(
        value.type.lanes
        for value, op in ops(function, lir.Binary)
        if op.op == "add"
        and isinstance(value.type, lir.Vec)
        and value.type.element.is_float
    )


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


def gathered(function: lir.Function) -> dict[tuple[int, str], int]:
    """Return how often vectors of so many lanes are gathered from a buffer."""
    lets = ops(function, lir.Gather)
    return dict(Counter((value.type.lanes, op.buffer.name) for value, op in lets))


#: What directives change in a kernel, and how it is counted.
COUNTED: dict[str, Callable[[Lowered], Any]] = {
    name: lambda made, count=count: count(made.kernel.function)
    for name, count in {
        "checked": checked_hops,
        "free": free_hops,
        "cases": lambda found: [len(s.cases) for s in of_type(found, lir.Switch)],
        "loops of t1": lambda found: len(loops(found, "t1")),
        "gathered": gathered,
        "scratch": scratch_of,
        "atomic": lambda found: [
            s.buffer.element for s in of_type(found, lir.AtomicAdd)
        ],
        "vector adds": vector_adds,
        "nest": nest_of,
    }.items()
}
COUNTED["buffers"] = lambda made: {d.buffer.name for d in made.kernel.data}

PARTS = ROWS.tile("tree", "t0", "t1", 5)
PARALLEL = TILES.parallel("t0")
ATOMIC = PARALLEL.atomic_reduce("t0")
DEPTHS = (2, 4, 3, 2, 4, 2)
LANES = {("v2", "scalar"): 4, ("v3", "scalar"): 8, ("v4", "scalar"): 16}
LANES |= {("v2", "double"): 2, ("v3", "double"): 4, ("v4", "double"): 8}
TOY = "thresholds features children shapes is_leaf roots default_left"
STORED = {
    "sparse": {"nodes", "roots", "tree_records"},
    "array": {"nodes"},
    "reorg": {"nodes"},
    toy_representation.Toy.name: {f"toy_{name}" for name in TOY.split()},
}


def of_depths(shape: str, depths: Iterable[int]) -> Forest:
    random = np.random.default_rng(0)
    return forest_of([tree(shape, depth, random) for depth in depths])


#: A forest, a schedule and what is counted then: with a directive, and without it.
CASES: dict[str, tuple[Any, ...]] = {
    "one walk": (drawn(40, 5), ROWS, {"checked": [1]}),
    "one row": (drawn(40, 5), BLOCKS, {"checked": [1]}),
    # all in one loop of hops; what is left over, one by one (16 divides the block, but
    # the last block of a batch may be shorter)
    **{f"{n} rows": (drawn(40, 5), BLOCKS.interleave("b1", n), {"checked": [n, 1]})
       for n in (2, 3, 8, 16)},
    **{f"{n} trees": (drawn(40, 5), ROWS.interleave("tree", n),
                      {"checked": [n] if 40 % n == 0 else [n, 1]})
       for n in (2, 3, 8, 16)},
    "a whole tile": (
        drawn(8, 4), ROWS.tile("tree", "t0", "t1", 4).interleave("t1"),
        {"checked": [4]}),
    # all leaves of "full" are 4 deep
    "leaf checks": ("full", BLOCKS, {"free": [], "checked": [1]}),
    **{f"unroll {n}": ("full", BLOCKS.unroll_walk("b1", n),
                       {"free": [n], "checked": [1] if n < 4 else []})
       for n in (1, 2, 4, 6)},  # the last one padded further
    **{f"peel {n}": ("full", BLOCKS.peel_walk("b1", n),
                     {"free": [min(n, 4)], "checked": [1] if n < 4 else []})
       for n in (2, 4, 9)},  # never past the shallowest leaf
    "peel to the shallowest leaf": ("scalar", BLOCKS.peel_walk("b1", 4), {"free": [1]}),
    "no case": (of_depths("full", DEPTHS), BLOCKS, {"cases": []}),
    # each knows its trees' depth, so that none has a leaf check
    "a case for each depth": (of_depths("full", DEPTHS), BLOCKS.specialize("tree"),
        {"cases": [3], "checked": [], "free": [2, 3, 4]}),
    "the rest shares a case": (of_depths("chain", [1 + i % 60 for i in range(300)]),
        BLOCKS.specialize("tree"), {"cases": [MAX_CLASSES + 1]}),
    "all trees alike": ("full", BLOCKS.specialize("tree"),
        {"cases": [], "free": [4], "checked": []}),
    "a loop": (drawn(10, 4), PARTS, {"checked": [1], "loops of t1": 1}),
    "copies": (drawn(10, 4), PARTS.unroll("t1"),
        {"checked": [1] * 5, "loops of t1": 0}),
    # a hop reads a feature, its word and its threshold; then a leaf and its sum
    **{f"lanes of {kind}, {level}": (kind, BLOCKS.vectorize("b1"), {
        "gathered": {(n, "rows"): 1, (n, "nodes"): 2, (n, "leaf_values"): 1,
                     (n, "result"): 1},
        "checked": [1, 1]}, "exact", level)  # the vector of walks, and rows left over
       for (level, kind), n in LANES.items()},
    "no lanes": ("scalar", BLOCKS, {"gathered": {}}),
    "sums of serial trees": ("scalar", TILES, {"scratch": [], "vector adds": {}}),
    "leaves": ("scalar", PARALLEL, {"scratch": ["leaves_1"], "vector adds": {}}),
    "private sums": ("scalar", PARALLEL,
        {"scratch": ["result_1"], "atomic": [], "vector adds": {}}, "fast"),
    "atomic": ("scalar", ATOMIC, {"scratch": [], "atomic": [lir.F32]}, "fast"),
    "atomic integers": ("scalar", ATOMIC, {"atomic": [lir.I64]}, "reproducible"),
    # the order would be open: exact mode stores leaves instead
    "exact sums": ("scalar", ATOMIC, {"atomic": [], "scratch": ["leaves_1"]}),
    **{f"vectors of {n}, {how}": (
        "scalar", PARALLEL.vector_reduce("t0", n), {"vector adds": {n: 1}}, how)
       for n in (2, 4, 8, 16) for how in ("fast", "exact")},
    # exact sums of sorted trees need a leaf of each tree, and where to store it
    "trees in order": ("mixed trees", ROWS, {"scratch": []}),
    "sorted trees": ("mixed trees", ROWS.reorder_trees(), {
        "scratch": ["leaves_1"],
        "buffers": STORED["sparse"] | {"leaf_values", "tree_order"}}),
    **{name: ("scalar", ROWS.represent(name), {"buffers": first | {"leaf_values"}})
       for name, first in STORED.items()},
    **{f"loops of {schedule!r}": ("scalar", schedule, {"nest": nest})
       for schedule, nest in (
           (ROWS, [["batch", ["tree"]]]),
           (TREES, [["tree", ["batch"]]]),
           (BLOCKS, [["b0", ["tree", ["b1"]]]]),
           (ROWS.split("tree", "s0", "s1", 3), [["batch", ["s0"], ["s1"]]]),
           (TREES.split("tree", "s0", "s1", 3),
            [["s0", ["batch"]], ["s1", ["batch"]]]),
           (ROWS.tile("tree", "t0", "t1", -2).reorder("t0", "batch", "t1"),
            [["t0", ["batch", ["t1"]]]]))},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_directive_changes(name: str) -> None:
    made, schedule, wanted, *how = CASES[name]
    found = lowered(made, schedule, *how)
    assert {what: COUNTED[what](found) for what in wanted} == wanted


def test_walks_are_padded_for_unroll_and_never_for_peel() -> None:
    plain = lowered("scalar", BLOCKS).hir.tiles
    peeled, unrolled = (
        lowered("scalar", getattr(BLOCKS, name)("b1", 4)).hir.tiles
        for name in ("peel_walk", "unroll_walk")
    )
    assert plain.min_depth.min() == 1
    assert peeled.n_items == plain.n_items < unrolled.n_items


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
