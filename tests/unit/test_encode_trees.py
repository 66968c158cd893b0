"""Trees encoded all at once get the operations of the recursion, tree by tree."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skforge.compiler.layouts.bitsliced import encode_trees as encoding
from skforge.compiler.layouts.bitsliced.encode_trees import (
    EncodedTrees,
    Muxes,
    encode_trees,
)
from skforge.compiler.layouts.bitsliced.sliced_layout import slice_trees
from skforge.forest.combine import subset
from skforge.forest.forest import Forest
from tests.exactness.forests import forest_of
from tests.exactness.sliced import chain, grown
from tests.oracles.encode_tree import Encoder, tree_of


def encoded(made: Forest, bits: int) -> tuple[EncodedTrees, list[int], int]:
    """Encode all trees over lines of which some are shared by several predicates."""
    random = np.random.default_rng(0)
    n_lines = max(1, made.n_predicates * 3 // 4)
    line_of = random.integers(0, n_lines, made.n_predicates).astype(np.int32)
    first = n_lines + 2
    found = encode_trees(made, np.arange(made.n_trees), line_of, first, bits)
    return found, line_of.tolist(), first


def by_tree(found: EncodedTrees) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the operations and the planes of each tree."""
    ops = np.split(found.ops, found.op_offset[1:-1])[: len(found.bits)]
    first_planes = np.cumsum(found.bits) - found.bits
    return ops, np.split(found.planes, first_planes)[1:]


def compare(made: Forest, bits: int) -> None:
    found, line_of, first = encoded(made, bits)
    starts = np.cumsum(1 << found.bits) - (1 << found.bits)
    for t, (ops, planes) in enumerate(zip(*by_tree(found), strict=True)):
        tree = tree_of(made, int(made.tree_offset[t]), line_of)
        encoder = Encoder(first)
        most = min(bits, (tree.leaves - 1).bit_length() + 1)
        lines, cubes = encoder.encode(tree, most)
        assert ops.tolist() == [list(op) for op in encoder.ops]
        assert planes.tolist() == lines
        leaf_of = found.leaf_of[starts[t] :][: 1 << found.bits[t]]
        codes = np.arange(len(leaf_of))
        for leaf, mask, value in cubes:
            assert (leaf_of[(codes & mask) == value] == leaf).all()
        # a code that no row has gets some leaf of the tree
        assert set(leaf_of.tolist()) == {leaf for leaf, _, _ in cubes}


@pytest.mark.parametrize("bits", [8, 9])
@pytest.mark.parametrize("power", [0.1, 0.3, 1.0, 3.0])
def test_the_recursions_operations(power: float, bits: int) -> None:
    random = np.random.default_rng(int(10 * power))
    sizes = [*range(2, 12), 31, 63, 127, 128, 129, 200, 255, 256]
    made = forest_of([grown(n, random, power=power) for n in sizes], n_features=30)
    compare(made, bits)


@pytest.mark.parametrize("bits", [8, 9])
def test_chains_that_cannot_be_cut(bits: int) -> None:
    trees = [chain(n, n % 2) for n in (10, 17, 64, 129, 200, 255, 256)]
    compare(forest_of(trees, n_features=2), bits)


@settings(max_examples=10)
@given(st.data())
def test_random_trees(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    power = data.draw(st.sampled_from([0.2, 0.5, 1.0, 2.0]))
    sizes = data.draw(st.lists(st.integers(2, 128), min_size=1, max_size=8))
    features = data.draw(st.integers(1, 4))
    trees = [grown(n, random, power=power) for n in sizes]
    compare(forest_of(trees, n_features=features), data.draw(st.integers(7, 9)))


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
    assert [list(part) for part in by_tree(found)] == [[], []]


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
