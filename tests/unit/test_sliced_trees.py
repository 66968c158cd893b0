"""Bit-sliced code by count: operations a node, no gathers, length free of the model."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skforge.compiler import driver
from skforge.compiler.binning.search import Registers
from skforge.compiler.binning.transpose import RUN, WIDE_PART
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts.bitsliced import encode_trees as encoding
from skforge.compiler.layouts.bitsliced import sliced_layout
from skforge.compiler.layouts.bitsliced.encode_trees import (
    EncodedTrees,
    Muxes,
    encode_trees,
)
from skforge.compiler.layouts.bitsliced.sliced_layout import (
    FOLD_LIMIT,
    GROUP_OPS,
    GROUP_TREES,
    MAX_BITS,
    MAX_CLASSES,
    MAX_CODE_BITS,
    OPS_A_TURN,
    SlicedTrees,
    byte_planes,
    check_trees,
    fits_bits,
    folds,
    slice_trees,
)
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.combine import subset
from skforge.forest.forest import Forest
from tests.exactness.forests import drawn, forest_of, tree
from tests.exactness.sliced import MAKERS, chain, counted, even, forest, grown, sliced
from tests.refusals import error_of
from tests.strategies_forest import random_forest

V4 = Target.x86_64("v4")
LEVELS = ("v2", "v3", "v4")


def lowered(made: Forest, block: int = 512, target: Target = V4) -> lir.Function:
    hir = driver.build_hir(made, sliced(block), "exact")
    return driver.lower(hir, target).kernel.function


def operations(function: lir.Function) -> int:
    """Return how many statements there are, without constants, some of which agree."""
    every = list(statements(function.body))
    return len(every) - len(lets(function.body, lir.Const))


def lets(body: lir.Body, kind: type) -> list:
    return [
        (s.value, s.op)
        for s in statements(body)
        if isinstance(s, lir.Let) and isinstance(s.op, kind)
    ]


def loops(function: lir.Function, hint: str) -> list[lir.For]:
    found = [s for s in statements(function.body) if isinstance(s, lir.For)]
    return [loop for loop in found if loop.var.name.startswith(f"{hint}.")]


def float_compares(body: lir.Body) -> int:
    return sum(
        isinstance(op.a.type, lir.Vec) and op.a.type.element.is_float
        for _, op in lets(body, lir.Compare)
    )


# ------------------------------------------------------------ trees


@pytest.mark.parametrize("depth", range(9))
def test_a_fold_is_one_operation_a_node_below_each_level(depth: int) -> None:
    """Level l chooses among 2**l lines by 2**l - 1 operations."""
    made = drawn(3, depth, shape="full") if depth else _stump_and_leaf()
    function = lowered(made)
    muxes = len(lets(function.body, lir.PlaneMux))
    # a leaf joins the class of its neighbour, the stump
    assert muxes == max(0, (1 << depth) - 1 - depth)
    (loop,) = loops(function, "part") or [None]
    inside = function.body if loop is None else loop.body
    assert len(lets(inside, lir.PlaneMux)) == muxes


def _stump_and_leaf() -> Forest:
    random = np.random.default_rng(0)
    return forest_of([tree("full", 0, random), tree("full", 1, random)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", LEVELS)
def test_code_does_not_grow_with_the_forest(level: str) -> None:
    target = Target.x86_64(level)

    def size(n_trees: int) -> int:
        made = counted((3, 20, 200), n_trees=n_trees)
        return operations(lowered(made, target=target))

    assert size(4) == size(300)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sums", ["float32", "float64"])
def test_code_does_not_grow_with_the_outputs_of_a_leaf(level: str, sums: str) -> None:
    """A random forest of 400 classes took a minute and a half to compile."""
    target = Target.x86_64(level)

    def size(outputs: int) -> int:
        made = drawn(3, 8, n_outputs=outputs, vector=True, sums=sums)
        return operations(lowered(made, target=target))

    assert size(24) == size(400)


def test_code_of_a_list_does_not_grow_with_its_operations() -> None:
    random = np.random.default_rng(2)

    def lines(*leaves: int) -> int:
        made = forest_of([grown(n, random) for n in leaves], n_features=3)
        (loop,) = loops(lowered(made), "tree")
        assert len(lets(loop.body, lir.PlaneMux)) == OPS_A_TURN
        return len(list(statements(loop.body)))

    assert lines(140, 150) == lines(*[200] * 20)


# ------------------------------------------------------------ predicates


def test_few_thresholds_compare_directly() -> None:
    """One splat and a compare for each vector of the block's rows."""
    function = lowered(counted((9, 1, 4)))
    (loop,) = loops(function, "threshold")
    assert float_compares(loop.body) == 512 // 16
    assert not loops(function, "rows")


@pytest.mark.parametrize(
    ("count", "levels"),
    [(10, 4), (15, 4), (16, 5), (31, 5), (32, 6), (64, 7), (128, 8), (255, 8)],
)
def test_many_thresholds_are_searched(count: int, levels: int) -> None:
    """As many compares a row as the number of thresholds has bits, not thresholds."""
    function = lowered(counted((count,)))
    (loop,) = loops(function, "rows")
    together = Registers.of(V4, np.dtype("f4")).lockstep
    assert float_compares(loop.body) == together * levels
    # The first level has one pivot; a permute takes two registers of 16 of them.
    permutes = sum(max(1, (1 << level) // 32) for level in range(1, levels))
    assert len(lets(loop.body, lir.Permute)) == together * permutes
    # Among its permutes a level chooses by answers that are there already.
    chosen = sum(max(1, (1 << level) // 32) - 1 for level in range(levels))
    assert len(lets(loop.body, lir.Select)) == together * (chosen + levels - 1)
    assert not loops(function, "threshold")


def test_without_permutes_every_threshold_is_compared() -> None:
    function = lowered(counted((200, 3)), target=Target.x86_64("v2"))
    assert not loops(function, "rows")
    (loop,) = loops(function, "threshold")
    assert float_compares(loop.body) == 512 // 4


@pytest.mark.parametrize(("level", "rows"), [("v2", 4), ("v3", 32), ("v4", 16)])
def test_answers_of_a_threshold_become_bits_together(level: str, rows: int) -> None:
    function = lowered(counted((9,)), target=Target.x86_64(level))
    (loop,) = loops(function, "threshold")
    assert len(lets(loop.body, lir.MaskBits)) == 512 // rows


def test_wide_rows_are_taken_in_parts() -> None:
    function = lowered(drawn(9, 6, n_features=501))
    columns = [
        s
        for s in statements(function.body)
        if isinstance(s, lir.Alloc) and s.buffer.name.startswith("columns")
    ]
    sizes = {v.name: op.value for v, op in lets(function.body, lir.Const)}
    assert [sizes[s.size.name] for s in columns] == [RUN * WIDE_PART]


# ------------------------------------------------------------ sliced layout


ROWS = 96


def layout(made: Forest, order: np.ndarray | None = None, seed: int = 0) -> SlicedTrees:
    """Slice a forest's trees over shuffled lines; check the answers of random tests."""
    random = np.random.default_rng(seed)
    order = np.arange(made.n_trees, dtype=np.int32) if order is None else order
    n_lines = made.n_predicates + 3
    line_of = random.permutation(n_lines)[: made.n_predicates].astype(np.int32)
    trees = slice_trees(made, line_of, order, n_lines)
    right = random.random((made.n_predicates, ROWS)) < random.random(
        (made.n_predicates, 1)
    )
    lines = random.random((trees.n_lines, ROWS)) < 0.5  # garbage where none is
    lines[line_of] = right
    zero, one = trees.constants
    lines[zero], lines[one] = False, True
    assert {zero, one} == {n_lines, n_lines + 1}
    for position, t in enumerate(order.tolist()):
        np.testing.assert_array_equal(
            _in_bits(trees, position, lines), _walked(made, t, right), err_msg=str(t)
        )
    return trees


def _in_bits(trees: SlicedTrees, position: int, lines: np.ndarray) -> np.ndarray:
    """Return the leaves of one tree as the generated code finds them."""
    kind, bits = trees.shapes[trees.shape_of[position]]
    own = trees.lines[trees.line_offset[position] :]
    planes = []
    if kind == "fold":
        at = np.zeros(ROWS, np.int64)
        for _ in range(bits):
            plane = lines[own[at], np.arange(ROWS)]
            planes.append(plane)
            at = 2 * at + 1 + plane
    elif kind == "even":
        planes = [lines[own[level]] for level in range(bits)]
    else:
        first, last = trees.op_offset[position : position + 2]
        written = set()
        temporary = trees.constants[1] + 1
        for target, (select, a, b) in enumerate(trees.ops[first:last], temporary):
            # only predicates, constants and what this tree has computed are read
            for source in (select, a, b):
                assert source in written or source <= trees.constants[1]
            lines[target] = np.where(lines[select], lines[a], lines[b])
            written.add(target)
        planes = [lines[line] for line in own[:bits]]
    code = np.zeros(ROWS, np.int64)
    for plane in planes:
        code = 2 * code + plane
    return trees.leaf_row[trees.leaf_offset[position] + code]


def _walked(made: Forest, t: int, right: np.ndarray) -> np.ndarray:
    at = np.full(ROWS, made.tree_offset[t])
    row = np.arange(ROWS)
    while (made.left[at] >= 0).any():
        inner = made.left[at] >= 0
        goes_right = right[made.predicate[at], row]
        child = np.where(goes_right, made.right[at], made.left[at])
        at = np.where(inner, child, at)
    return made.leaf[at]


@settings(max_examples=25)
@given(st.data())
def test_random_forests(data: st.DataObject) -> None:
    made = data.draw(random_forest(max_trees=8, max_depth=8))
    order = np.array(data.draw(st.permutations(range(made.n_trees))), np.int32)
    if fits_bits(made):
        layout(made, order)
    else:
        with pytest.raises(ScheduleError):
            layout(made, order)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", MAKERS)
def test_named_forests(name: str) -> None:
    layout(forest(name))


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("leaves", [2, 3, 17, 128, 255, 256])
def test_chains(leaves: int, side: int) -> None:
    layout(forest_of([chain(leaves, side)]))


@pytest.mark.parametrize("leaves", [2, 5, 31, 63, 127, 200, 255, 256])
def test_trees_grown_leaf_by_leaf(leaves: int) -> None:
    random = np.random.default_rng(leaves)
    layout(forest_of([grown(leaves, random) for _ in range(6)], n_features=50))


@pytest.mark.parametrize(("leaves", "most"), [(31, 1.3), (63, 1.3), (127, 1.4)])
def test_a_list_costs_few_operations_a_node(leaves: int, most: float) -> None:
    """Numbering the leaves in order would cost 2.8 a node."""
    random = np.random.default_rng(1)
    trees = [grown(leaves, random, power=1.0) for _ in range(20)]
    made = layout(forest_of(trees, n_features=500))
    is_list = np.array([kind == "list" for kind, _ in made.shapes])[made.shape_of]
    assert is_list.sum() >= 15  # one or another is bushy enough to fold
    assert made.op_offset[-1] <= most * is_list.sum() * (leaves - 1)


@pytest.mark.parametrize(
    "depths", [[1], [6] * 9, [3, 8, 3, 5], [2, 0, 7], [8, 9, 16, 10]]
)
def test_trees_with_one_test_a_level_need_no_operations(depths: list[int]) -> None:
    made = even(*depths, n_features=40)
    laid_out = layout(made)
    assert [laid_out.shapes[k] for k in laid_out.shape_of] == [
        ("even" if depth else "fold", depth) for depth in depths
    ]
    assert len(laid_out.lines) == sum(depths) + 1  # no heaps; a spare one
    if depths[0] > 1:  # one test that differs
        mixed = made.predicate.copy()
        mixed[2] = (mixed[1] + 1) % made.n_predicates
        differs = layout(replace(made, predicate=mixed))
        assert differs.shapes[differs.shape_of[0]] == ("fold", depths[0])


def test_few_depths_have_code_of_their_own() -> None:
    random = np.random.default_rng(0)
    depths = [1, 2, 3, 4, 5, 6, 7, 8] * 3
    made = layout(forest_of([tree("full", d, random) for d in depths]))
    assert len(made.shapes) <= MAX_CLASSES
    assert max(bits for _, bits in made.shapes) == MAX_BITS
    # no tree is laid out shallower than it is
    assert (made.bits >= depths).all()


def test_depths_join_where_that_adds_the_fewest_nodes() -> None:
    random = np.random.default_rng(0)
    depths = [1] * 50 + [2] * 50 + [7] * 50 + [8] * 2
    made = layout(forest_of([tree("full", d, random) for d in depths]))
    # 50 stumps to depth 2 add 100 nodes; 50 trees of depth 7 to 8, 6400
    assert [bits for _, bits in made.shapes] == [2, 7, 8]


def test_bushy_trees_fold_and_lopsided_ones_are_lists() -> None:
    random = np.random.default_rng(0)
    shapes = [tree("full", 8, random), chain(9, 0), chain(10, 0), grown(256, random)]
    # depth 8 has 256 leaves in full
    assert folds(forest_of(shapes)).tolist() == [
        True,
        FOLD_LIMIT * 9 >= 256,
        False,
        False,
    ]


def test_even_trees_of_up_to_16_levels_fit() -> None:
    made = even(9, 16, n_features=40)
    assert fits_bits(made)
    mixed = made.predicate.copy()
    mixed[-1 - (2 << 15)] = mixed[0]  # of the last tree, on the last level
    for other in (replace(made, predicate=mixed), even(17), even(3, 17)):
        assert not fits_bits(other)


def test_more_leaves_than_codes_are_refused() -> None:
    random = np.random.default_rng(0)
    fits = forest_of([chain(256, 0)])
    assert fits_bits(fits)
    check_trees(fits)
    large = forest_of([tree("full", 8, random), chain(257, 0)])
    assert not fits_bits(large)
    assert error_of(ScheduleError, check_trees, large) == (
        'represent("bitsliced") takes trees of at most 256 leaves, but tree 1 has '
        '257. Use represent("sparse").'
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_byte_planes(dtype: type) -> None:
    values = np.random.default_rng(0).standard_normal((3, 20)).astype(dtype)
    planes = byte_planes(values, 64)
    item = np.dtype(dtype).itemsize
    assert planes.shape == (3, item, 64)
    assert not planes[:, :, 20:].any()
    whole = np.ascontiguousarray(planes[:, :, :20].transpose(0, 2, 1))
    np.testing.assert_array_equal(whole.view(dtype)[..., 0], values)


def test_offsets_of_values_may_pass_two_gigabytes() -> None:
    hir = driver.build_hir(drawn(3, 4), sliced(64), "exact")
    data = driver.lower(hir, Target.x86_64("v4")).kernel.data
    (offsets,) = [d.data for d in data if d.buffer.name == "leaf_offset"]
    assert offsets.dtype == np.int64


def test_lists_run_in_groups_by_dependence() -> None:
    """The first tree of a group runs all of it; nothing reads what comes later."""
    random = np.random.default_rng(0)
    made = forest_of([grown(20, random) for _ in range(40)])
    order = np.arange(made.n_trees)
    n_lines = made.n_predicates
    trees = slice_trees(made, np.arange(n_lines, dtype=np.int32), order, n_lines)
    own = np.diff(trees.op_offset)
    listed = np.array([trees.shapes[k][0] == "list" for k in trees.shape_of])
    assert listed.sum() > GROUP_TREES
    assert 0 < (own > 0).sum() < listed.sum()
    assert not own[~listed].any()
    temporaries = range(n_lines + 2, trees.n_lines)
    for first, count in zip(trees.op_offset[:-1], own, strict=True):
        assert count <= min(GROUP_OPS, len(temporaries))
        known: dict[int, int] = {}
        ops = trees.ops[first : first + count].tolist()
        for target, read in zip(temporaries, ops, strict=False):
            assert all(line in known for line in read if line in temporaries)
            known[target] = 1 + max(known.get(line, 0) for line in read)
        padding = 1 if count and ops[-1] == [n_lines] * 3 else 0
        levels = list(known.values())[: count - padding]
        assert levels == sorted(levels)


def test_a_bit_more_halves_the_operations_of_many_leaves() -> None:
    random = np.random.default_rng(1)
    made = forest_of([grown(250, random) for _ in range(6)])
    line_of = np.arange(made.n_predicates, dtype=np.int32)
    order = np.arange(made.n_trees)
    short = slice_trees(made, line_of, order, made.n_predicates, MAX_BITS)
    long = slice_trees(made, line_of, order, made.n_predicates)
    assert (short.bits.max(), long.bits.max()) == (MAX_BITS, MAX_CODE_BITS)
    assert len(long.ops) < 0.65 * len(short.ops)


@pytest.mark.parametrize(
    ("level", "sums", "depth", "outputs", "wanted"),
    [
        ("v3", "float32", 6, 1, True),
        ("v3", "float32", 7, 1, False),
        ("v3", "float64", 5, 1, True),
        ("v3", "float64", 6, 1, False),
        ("v3", "float64", 4, 3, True),
        ("v3", "float64", 5, 3, False),
        ("v2", "float32", 3, 1, False),
        ("v4", "float32", 3, 1, False),
    ],
)
def test_which_leaves_registers_of_bytes_hold(level, sums, depth, outputs, wanted):
    target = Target.x86_64(level)
    assert not target.has("avx512vbmi")
    more = {"n_outputs": outputs, "vector": outputs > 1}
    made = drawn(3, depth, shape="full", sums=sums, **more)
    assert sliced_layout.looks_up(made, target) == wanted
    with_vbmi = replace(target, features=f"{target.features},+avx512vbmi")
    assert level != "v4" or sliced_layout.looks_up(made, with_vbmi)


# ------------------------------------------------------------ encode trees


def encoded(made: Forest, bits: int) -> tuple[EncodedTrees, list[int], int]:
    """Encode all trees over lines of which some are shared by several predicates."""
    random = np.random.default_rng(0)
    n_lines = max(1, made.n_predicates * 3 // 4)
    line_of = random.integers(0, n_lines, made.n_predicates).astype(np.int32)
    first = n_lines + 2
    found = encode_trees(made, np.arange(made.n_trees), line_of, first, bits)
    return found, line_of.tolist(), first


@pytest.mark.parametrize(
    ("bits", "ops", "planes"), [(8, 13_675, 344), (9, 11_381, 360)]
)
def test_few_operations_find_a_leaf(bits: int, ops: int, planes: int) -> None:
    """With few planes; that it is the right one is asked by tests of exactness."""
    random = np.random.default_rng(3)
    sizes = [*range(2, 12), 31, 63, 127, 128, 129, 200, 255, 256]
    trees = [grown(n, random, power=p) for n in sizes for p in (0.1, 1.0, 3.0)]
    trees += [chain(n, n % 2) for n in (10, 17, 64, 129, 200, 255, 256)]
    found, *_ = encoded(forest_of(trees, n_features=30), bits)
    assert len(found.ops) <= ops
    assert len(found.planes) <= planes


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    trees = [grown(int(n), random) for n in random.integers(2, 257, 30)]
    made = forest_of(trees, n_features=20)
    whole, *_ = encoded(made, 8)
    monkeypatch.setattr(encoding, "CHUNK_NODES", 200)
    parts, *_ = encoded(made, 8)
    for name in ("bits", "planes", "op_offset", "ops", "level", "leaf_of"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def test_no_trees() -> None:
    made = forest_of([grown(5, np.random.default_rng(0))])
    none = np.zeros(0, np.int64)
    found = encode_trees(made, none, np.zeros(9, np.int32), 11, 8)
    assert (len(found.bits), len(found.ops), found.op_offset.tolist()) == (0, 0, [0])


@given(st.integers(0, 1 << 30), st.integers(0, 4), st.integers(1, 40))
def test_operations_are_kept_once(seed: int, expected: int, batches: int) -> None:
    """Also where the table of hashes grows."""
    random = np.random.default_rng(seed)
    zero, one, first = 6, 7, 8
    muxes, known = Muxes(zero, one, first, expected), {}
    for time in range(batches):
        size = int(random.integers(0, 30))
        tree, select, a, b = random.integers(0, [[2], [6], [8], [8]], (4, size))
        lines = muxes.add(np.full(size, time), tree, select, a, b)
        for line, *key in np.stack([lines, tree, select, a, b], axis=1).tolist():
            if key[2] == key[3]:
                assert line == key[2]
            elif key[2:] == [one, zero]:
                assert line == key[1]
            else:
                assert known.setdefault(tuple(key), line) == line
    operations = zip(muxes.trees, *muxes.operands, strict=True)
    numbers = {tuple(map(int, key)): first + i for i, key in enumerate(operations)}
    assert numbers == known


def test_memory_is_linear_in_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations take 15 bytes a node, and sorting them 35; chunks are bounded."""
    monkeypatch.setattr(encoding, "CHUNK_NODES", 1 << 12)
    random = np.random.default_rng(0)
    few = forest_of([grown(60, random) for _ in range(50)], n_features=200)
    peaks = []
    for times in (2, 4):
        made = subset(few, np.tile(np.arange(few.n_trees), times))
        line_of = np.arange(made.n_predicates, dtype=np.int32)
        order = np.arange(made.n_trees, dtype=np.int32)
        tracemalloc.start()
        slice_trees(made, line_of, order, made.n_predicates)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] <= 80 * (made.n_nodes // 2)
