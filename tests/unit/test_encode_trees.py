"""Trees are encoded all at once, in few operations and little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
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
