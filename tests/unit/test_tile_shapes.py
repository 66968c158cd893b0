"""Shapes of tiles: how many, their numbers, and the look-up tables."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.ir.hir.nodes import exit_table, shape_id, shapes


def walk(edge: np.ndarray, bits: tuple[int, ...]) -> int:
    """Follow one row of edges with the comparison of slot s in ``bits[s]``."""
    slot = 0
    while slot >= 0:
        slot = int(edge[2 * slot + (1 - bits[slot])])
    return ~slot


def catalan(n: int) -> int:
    """Equation 1 of Treebeard."""
    counts = [1]
    for size in range(1, n + 1):
        counts.append(sum(counts[k] * counts[size - 1 - k] for k in range(size)))
    return counts[n]


@pytest.mark.parametrize("size", range(1, 9))
def test_there_are_catalan_many_distinct_shapes(size):
    known = shapes(size)
    assert known.edge.shape == (catalan(size), 2 * size)
    assert len(np.unique(known.edge >= 0, axis=0)) == catalan(size)


@pytest.mark.parametrize("size", range(1, 9))
def test_every_shape_is_a_binary_tree_in_level_order(size):
    for edge in shapes(size).edge:
        inner = edge[edge >= 0]
        # level order: the children appear in the order of their parents
        assert inner.tolist() == list(range(1, size))
        assert sorted(~edge[edge < 0]) == list(range(size + 1))


@pytest.mark.parametrize("size", range(1, 9))
def test_exits_are_numbered_left_to_right(size):
    def in_order(edge, slot=0):
        for target in edge[2 * slot : 2 * slot + 2]:
            yield from [~target] if target < 0 else in_order(edge, target)

    for edge in shapes(size).edge:
        assert list(in_order(edge)) == list(range(size + 1))


@pytest.mark.parametrize("size", range(1, 9))
def test_shape_ids_name_their_rows(size):
    known = shapes(size)
    np.testing.assert_array_equal(
        shape_id(known.edge >= 0), np.arange(known.n_shapes, dtype=np.int32)
    )


@pytest.mark.parametrize("size", range(1, 9))
def test_exit_edges_lead_to_their_exits(size):
    known = shapes(size)
    reached = np.take_along_axis(known.edge, known.exit_edge.astype(int), axis=1)
    assert (reached == ~np.arange(size + 1)).all()


@pytest.mark.parametrize("size", range(1, 6))
def test_the_table_holds_what_walking_the_shape_gives(size):
    table = exit_table(size)
    for edge, row in zip(shapes(size).edge, table, strict=True):
        for number in range(2**size):
            bits = tuple(int(bit) for bit in f"{number:0{size}b}")  # node 0 first
            assert row[number] == walk(edge, bits)


def test_the_table_of_single_nodes():
    assert exit_table(1).tolist() == [[1, 0]]


def test_the_papers_example():
    # Treebeard §3.6: with 011 a tile whose root has no right child is left by its
    # fourth exit, the balanced one by its third
    left_chain = shape_id(np.array([[1, 0, 1, 0, 0, 0]], dtype=bool))[0]
    balanced = shape_id(np.array([[1, 1, 0, 0, 0, 0]], dtype=bool))[0]
    assert exit_table(3)[left_chain, 0b111] == 0
    assert exit_table(3)[left_chain, 0b110] == 1
    assert exit_table(3)[left_chain, 0b011] == 3
    assert exit_table(3)[balanced, 0b011] == 2


@pytest.mark.parametrize("size", range(1, 9))
def test_all_false_takes_the_last_exit_and_all_true_the_first(size):
    table = exit_table(size)
    assert (table[:, 0] == size).all()
    assert (table[:, -1] == 0).all()


def test_tables_are_cached_and_read_only():
    assert exit_table(4) is exit_table(4)
    assert not exit_table(4).flags.writeable


@pytest.mark.parametrize("size", [0, 9])
def test_sizes_outside_the_range_are_refused(size):
    with pytest.raises(ValueError) as error:
        exit_table(size)
    assert str(error.value) == f"tiles have 1 to 8 nodes, not {size}."
